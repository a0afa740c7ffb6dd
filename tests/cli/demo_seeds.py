"""Five seeds of `rlguard demo`, with and without the flaw; prints the table of docs/demo.md.

    nice python tests/cli/demo_seeds.py FOLDER [SEED...]

Not a test: it takes about two minutes a seed on a free core. Runs that FOLDER has already are not repeated.
Both runs of a seed start from the same warmed-up model, as `--seed` gives it, so it is made once.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from guard_cli.demo.command import ENVIRONMENT, make_plan
from guard_cli.demo.tasks import load_task
from guard_cli.demo.train import WARMUP_STEPS
from guard_cli.run.session import run_guarded

STEPS = 80


def run(folder, seed, benign):
    plan = make_plan(
        load_task("addition"), folder, benign=benign, seed=seed, steps=STEPS, warmup_steps=WARMUP_STEPS
    )
    model = folder.parent / f"model-{seed}"
    if model.exists():
        shutil.copytree(model, folder / "trainer" / "model")
    run_guarded(plan)
    shutil.copytree(folder / "trainer" / "model", model, dirs_exist_ok=True)


def row(folder, seed, benign):
    report = folder / "report"
    verdict = json.loads((report / "verdict.json").read_text())
    facts = json.loads((report / "run.json").read_text())
    history = [json.loads(line) for line in (report / "history.jsonl").read_text().splitlines()]
    scores = [(line["step"], line["heldout"]) for line in history if "heldout" in line]
    rewards = [line["reward"] for line in history]
    fired = f"{verdict['latch_step']} (`{verdict['code']}`)" if verdict["fire"] else "none"
    cells = [
        "strict" if benign else "flawed",
        seed,
        fired,
        history[-1]["step"],
        f"{scores[0][1]:.3f}",
        f"{scores[-1][1]:.3f}",
        f"{scores[-1][1] / scores[0][1]:.2f}",
        f"{sum(rewards[:8]) / 8:.2f} → {sum(rewards[-8:]) / 8:.2f}",
        f"{facts['seconds']:.0f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(base, seeds):
    os.environ.update(ENVIRONMENT)
    for seed in seeds:
        for benign in (False, True):
            folder = base / f"{'strict' if benign else 'flawed'}-{seed}"
            if not (folder / "report" / "run.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run(folder, seed, benign)
            print(row(folder, seed, benign), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(s) for s in sys.argv[2:]] or range(5))
