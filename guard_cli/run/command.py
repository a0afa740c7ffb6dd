"""`rlguard run`: parses the command line of a guarded run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from guard_cli import guard_settings as options
from guard_cli.errors import CliError, exit_code_help

EPILOG = (
    "Example:  rlguard run --heldout heldout.jsonl --policy policy.yaml --checkpoints out "
    "--max-new-tokens 64 -- python train.py   |   " + exit_code_help()
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The trainer, after `--`.")],
    heldout: options.HeldoutOption = None,
    policy: options.PolicyOption = None,
    checkpoints: options.CheckpointsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Report folder; rlguard-runs/TIME without it. It must be new."),
    ] = None,
    config: options.ConfigOption = None,
    train_prompts: options.TrainPromptsOption = None,
    scorer: options.ScorerOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    temperature: options.TemperatureOption = None,
    samples: options.SamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    device: options.DeviceOption = None,
    openai_url: options.OpenAIOption = None,
    openai_model: options.ModelOption = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds between SIGTERM and SIGKILL of the trainer.")
    ] = 10.0,
    drain: Annotated[
        float,
        typer.Option("--drain", min=0, help="Seconds for the last evaluations after the trainer has ended."),
    ] = 600.0,
) -> None:
    """Run a trainer under a guard on this machine, stop it when the guard says so, and write a report.

    The trainer gets RLGUARD_URL and RLGUARD_TOKEN. With trainer.add_callback(GuardCallback.from_env()) it
    reports its steps and checkpoints. On a fire, or a stop by policy, its whole process tree is ended.
    """
    from guard_cli.run.session import Plan, run_guarded

    file = options.read_config(config)
    if heldout is None and not file.get("heldout"):
        raise CliError("no held-out split: give --heldout heldout.jsonl (make one with `rlguard split make`)")
    given = {
        "heldout": options.heldout_options(
            heldout=options.absolute(heldout),
            train_prompts=options.absolute(train_prompts),
            scorer=scorer,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            samples=samples,
            batch_size=batch_size,
            device=device,
            openai_url=openai_url,
            openai_model=openai_model,
        ),
        "policy_file": options.absolute(policy),
        "checkpoint_root": checkpoint_root(checkpoints, "checkpoint_root" in file),
    }
    plan = Plan(
        command=command,
        out=out or Path("rlguard-runs") / time.strftime("%Y%m%d-%H%M%S"),
        options=given,
        config=file,
        grace=grace,
        drain=drain,
    )
    finished = run_guarded(plan)
    typer.echo(f"rlguard: {finished.outcome.sentence}\nrlguard: report in {plan.out}/report.html", err=True)
    raise typer.Exit(finished.outcome.code)


def checkpoint_root(given: Path | None, in_file: bool) -> Path | None:
    """Where the trainer may save: what was given, else what the file says, else the working directory."""
    if given is not None:
        return given.absolute()
    return None if in_file else Path.cwd()
