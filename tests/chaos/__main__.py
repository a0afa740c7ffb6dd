"""Everything breaks, at random moments, around runs that hack and runs that do not.

python -m tests.chaos [--seed 1] [--runs 100] [--only 'etcd killed'] [--page docs/evidence/reliability.md]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .act import play, stage
from .counts import totals
from .page import PAGE, Made, Played, findings, page, table
from .schedule import plan

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, help="what happens when; default: a random one, which is printed")
    add("--runs", type=int, default=100, help="fires, and as many healthy runs (default 100)")
    add("--only", help="only the round of this name")
    add("--page", type=Path, help="write the results to this page")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # what it started ends with it
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    rounds = [one for one in plan(seed, options.runs) if options.only in {None, one.name}]
    if not rounds:
        parser.error(f"--only must be one of: {', '.join(one.name for one in plan(seed, 1))}")
    print(f"seed {seed}", flush=True)
    tried, began, played = commit(), time.monotonic(), list[Played]()
    with tempfile.TemporaryDirectory(prefix="rlguard-chaos-") as name, stage(Path(name), clocks=True) as made:
        for one in rounds:
            facts = play(made, one, seed)
            played.append(Played(one.name, len(one.strikes), facts))
            print(
                f"{time.monotonic() - began:5.0f} s  {one.name}: {dict(totals(facts)) or 'all 0'}", flush=True
            )
    print(f"\n{table(played)}\n\n{findings(played)}")
    if options.page is not None:
        minutes = (time.monotonic() - began) / 60
        options.page.write_text(page(played, Made(seed, tried, minutes, os.cpu_count() or 0), PAGE), "utf-8")
    return 1 if any(totals(one.facts) for one in played) else 0


def commit() -> str:
    """The commit that is tried, and whether something was changed since."""
    return (_git("rev-parse", "--short=12", "HEAD") or "unknown") + (
        " with changes"
        if _git("status", "--porcelain", "--untracked-files=no", "--", ":!docs/evidence/reliability*.md")
        else ""
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
