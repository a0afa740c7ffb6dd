"""Real parts of a cluster are killed and cut off around runs that hack and runs that do not.

python -m tests.chaos.on_kind [--seed 1] [--runs 21] [--only 'etcd killed'] [--page PAGE]

RLGUARD_E2E names the file of a cluster, which `make kind-up` makes; the chart is installed in it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.conftest import EXISTING, fresh_namespace
from tests.e2e.kube import Cluster, install

from ..__main__ import commit
from ..counts import totals
from ..page import Made, Played, findings, page, table
from .plan import plan
from .play import play

PAGE = Path(__file__).with_name("page.md").read_text("utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.on_kind", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, help="what happens when; default: a random one, which is printed")
    add("--runs", type=int, default=21, help="fires, and as many healthy runs (default 21)")
    add("--only", help="only the round of this name")
    add("--page", type=Path, help="write the results to this page")
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    rounds = [one for one in plan(seed, options.runs) if options.only in {None, one.name}]
    if not rounds:
        parser.error(f"--only must be one of: {', '.join(one.name for one in plan(seed, 1))}")
    cluster = Cluster.from_json(Path(os.environ[EXISTING]).read_text())
    install(cluster)
    print(f"seed {seed}", flush=True)
    tried, began, played = commit(), time.monotonic(), list[Played]()
    with tempfile.TemporaryDirectory(prefix="rlguard-chaos-") as directory:
        for number, one in enumerate(rounds):
            with fresh_namespace(cluster, f"chaos-{number}") as namespace:
                facts = play(cluster, namespace, one, Path(directory))
            played.append(Played(one.name, len(one.strikes), facts))
            spent = time.monotonic() - began
            print(f"{spent:5.0f} s  {one.name}: {dict(totals(facts)) or 'all 0'}", flush=True)
            if options.page is not None:  # after each, as the next takes minutes and may never end
                made = Made(seed, tried, spent / 60, os.cpu_count() or 0)
                options.page.write_text(page(played, made, PAGE), "utf-8")
    print(f"\n{table(played)}\n\n{findings(played)}")
    return 1 if any(totals(one.facts) for one in played) else 0


if __name__ == "__main__":
    sys.exit(main())
