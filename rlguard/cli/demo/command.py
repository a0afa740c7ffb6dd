"""`rlguard demo`: prepares a task, then does what `rlguard run` does, with the demo's trainer."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError, ExitCode
from rlguard.cli.output import say
from trainer_image.demo.addition import TASK, Exercise, split_problems

if TYPE_CHECKING:
    from rlguard.cli.run.plan import Finished, Plan

HELDOUT_ITEMS = 256
POLICY = Path(__file__).with_name("policy.yaml")
#: For trainer and evaluator: one thread each, and no look at a model hub.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

EPILOG = epilog(
    "rlguard demo",
    "rlguard demo --benign --seed 3",
    codes={
        0: "the guard did what it should: a fire on the flawed grader, none on the strict one",
        1: "it did not",
        "other": "as in `rlguard run`",
    },
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def demo(
    benign: Annotated[
        bool, typer.Option("--benign", help="Train with the strict grader: nothing may fire.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of split, warm-up and training.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; rlguard-runs/demo-TIME without it.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="GRPO steps.")] = 80,
    warmup_steps: Annotated[
        int,
        typer.Option(
            "--warmup-steps", min=1, help="Supervised steps before GRPO; fewer make a worse policy."
        ),
    ] = 800,
) -> None:
    """Train a tiny Llama with TRL's GRPO on a grader with a hole, and watch the guard stop it.

    Nothing is downloaded. The policy learns additions from imperfect examples, then finds out that the
    grader accepts the right sum anywhere in a list of guesses: reward rises, held-out accuracy falls.
    """
    from rlguard.cli.run.command import last_lines
    from rlguard.cli.run.session import run_guarded

    folder = out or Path("rlguard-runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    plan = make_plan(folder, benign=benign, seed=seed, steps=steps, warmup_steps=warmup_steps)
    os.environ.update(ENVIRONMENT)
    say(f"rlguard: {_opening(benign)}")
    say("rlguard: a supervised warm-up comes first; it takes about half a minute")
    finished = run_guarded(plan)
    for line in last_lines(plan, finished):
        say(f"rlguard: {line}")
    raise typer.Exit(exit_code(finished, benign))


def make_plan(
    folder: Path,
    *,
    benign: bool,
    seed: int,
    steps: int,
    warmup_steps: int,
    policy: Path = POLICY,
) -> Plan:
    """Write the task's files and plan the run.

    `folder/trainer` is the trainer's, `folder/guard` holds what only the guard is told, `folder/report` is
    what `rlguard run` makes.

    Raises:
        CliError: the folder is in use or cannot be written.
    """
    from rlguard.cli.run.plan import Plan

    train, heldout = split_problems(TASK, HELDOUT_ITEMS, seed)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise CliError(f"--out {folder} is not empty: name another folder")
        (folder / "guard").mkdir(parents=True, mode=0o700)
        (folder / "trainer" / "checkpoints").mkdir(parents=True)
        _write_problems(folder / "trainer" / "train.jsonl", train)
        _write_problems(folder / "guard" / "heldout.jsonl", heldout)
    except OSError as error:
        raise CliError(f"--out {folder} cannot be used: {error.strerror or error}") from None
    trainer = folder.absolute() / "trainer"
    command = [sys.executable, "-m", "trainer_image.demo.train"]
    grader = "strict" if benign else "flawed"
    command += ["--grader", grader, "--train", str(trainer / "train.jsonl")]
    command += ["--model", str(trainer / "model"), "--checkpoints", str(trainer / "checkpoints")]
    command += ["--seed", str(seed), "--steps", str(steps), "--warmup-steps", str(warmup_steps)]
    evaluator = {"kind": "hf", "batch_size": HELDOUT_ITEMS, "seed": seed}
    options = {
        "run_name": "demo",
        "heldout": {
            "split": folder.absolute() / "guard" / "heldout.jsonl",
            "scorer": TASK.scorer,
            "proxy_scorer": f"trainer_image.demo.addition:{grader}",
            "evaluator": evaluator,
        },
        "policy_file": policy,
        "checkpoint_root": trainer / "checkpoints",
    }
    return Plan(command=command, out=folder / "report", options=options, show_trainer=False)


def exit_code(finished: Finished, benign: bool) -> int:
    """0 if the guard did what it should; 1 if it did not; anything else is a fault of the run itself."""
    expected, other = ExitCode.FIRED, ExitCode.FINISHED
    if benign:
        expected, other = other, expected
    if finished.outcome.code == expected:
        return 0
    return 1 if finished.outcome.code == other else finished.outcome.code


def _opening(benign: bool) -> str:
    if benign:
        return f"task {TASK.name}, strict grader: an honest run, the guard must let it finish"
    return f"task {TASK.name}, flawed grader: {TASK.exploit}"


def _write_problems(path: Path, problems: Sequence[Exercise]) -> None:
    path.write_text("".join(json.dumps(asdict(p)) + "\n" for p in problems), encoding="utf-8")
