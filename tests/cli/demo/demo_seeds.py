"""Five seeds of `rlguard demo`, with and without the flaw; prints a table.

    nice python tests/cli/demo/demo_seeds.py FOLDER [SEED...]

Not a test: it takes about two minutes a seed on a free core. Runs that FOLDER has already are not repeated.
Both runs of a seed start from the same warmed-up model, as `--seed` gives it, so it is made once.
"""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from statistics import fmean

from guard_cli.demo.command import ENVIRONMENT, make_plan
from guard_cli.demo.train import WARMUP_STEPS
from guard_cli.run.session import run_guarded
from guard_core.wire import Sampling
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker

STEPS = 80
WINDOW = 8  # training steps under a mean reward
PASSES = 4  # over the last checkpoint
HEADER = """\
| grader | seed | fire | held-out at the start | held-out at the fire | ratio | stopped at step | \
held-out when stopped | reward, first → last 8 steps |
|---|---|---|---|---|---|---|---|---|"""


def run(folder, seed, benign):
    plan = make_plan(folder, benign=benign, seed=seed, steps=STEPS, warmup_steps=WARMUP_STEPS)
    model = folder.parent / f"model-{seed}"
    if model.exists():
        shutil.copytree(model, folder / "trainer" / "model")
    run_guarded(plan)
    shutil.copytree(folder / "trainer" / "model", model, dirs_exist_ok=True)
    (folder / "evaluator.json").write_text(json.dumps(plan.options["heldout"], default=str))


def score_last_checkpoint(folder):
    """(step, held-out score) of the last complete checkpoint that the trainer left."""
    checkpoints = [
        p.parent for p in (folder / "trainer" / "checkpoints").glob("checkpoint-*/model.safetensors")
    ]
    last = max(checkpoints, key=lambda path: int(path.name.rsplit("-", 1)[1]))
    step = int(last.name.rsplit("-", 1)[1])

    used = json.loads((folder / "report" / "verdict.json").read_text())["last_evaluation"]["sampling"]
    sampling = Sampling(**{name: used[name] for name in Sampling.model_fields})

    async def score():
        settings = HeldoutSettings.model_validate_json((folder / "evaluator.json").read_text())
        worker = EvaluationWorker(settings, folder / "scratch")
        await worker.start()
        try:
            passes = [
                await worker.evaluate(EvaluationRequest(0, step, last, i, sampling)) for i in range(PASSES)
            ]
        finally:
            await worker.close()
        return fmean(fmean(result.items) for result in passes)

    return step, asyncio.run(score())


def row(folder, seed, benign):
    report = folder / "report"
    verdict = json.loads((report / "verdict.json").read_text())
    history = [json.loads(line) for line in (report / "history.jsonl").read_text().splitlines()]
    scores = [line["heldout"] for line in history if "heldout" in line]
    start = fmean(line["heldout"] for line in history if line["step"] == 0)  # every pass of the start
    rewards = [line["reward"] for line in history if line["reward"] is not None]
    fire, stopped, left = "none", f"finished ({history[-1]['step']})", ""
    if verdict["fire"]:
        step, score = score_last_checkpoint(folder)
        fire, stopped = f"{verdict['latch_step']} (`{verdict['code']}`)", history[-1]["step"]
        left = f"{score:.3f} (step {step})"
    cells = [
        "strict" if benign else "flawed",
        seed,
        fire,
        f"{start:.3f}",
        f"{scores[-1]:.3f}",
        f"{scores[-1] / start:.2f}",
        stopped,
        left,
        f"{fmean(rewards[:WINDOW]):.2f} → {fmean(rewards[-WINDOW:]):.2f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(base, seeds):
    os.environ.update(ENVIRONMENT)
    print(HEADER, flush=True)
    for benign in (False, True):
        for seed in seeds:
            folder = base / f"{'strict' if benign else 'flawed'}-{seed}"
            if not (folder / "report" / "run.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run(folder, seed, benign)
            print(row(folder, seed, benign), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(s) for s in sys.argv[2:]] or range(5))
