"""`rlguard run`: parses the command line of a guarded run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlguard.cli import guard_settings as options
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import RUN_EXIT_CODES, CliError, Result
from rlguard.cli.grouped import GroupedCommand
from rlguard.cli.logs.options import FormatOption, MapOption, RunConfigOption, read_map
from rlguard.cli.output import say
from rlguard.follow.config import FollowConfig

if TYPE_CHECKING:
    from rlguard.cli.run.plan import Finished, Plan

EPILOG = epilog(
    "rlguard run --heldout heldout.jsonl --checkpoints out --max-new-tokens 64 -- python train.py",
    codes=RUN_EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG, cls=GroupedCommand)
@options.with_evaluation
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The trainer, after `--`.")],
    heldout: options.HeldoutOption = None,
    evaluations_token_file: options.EvaluationsTokenOption = None,
    policy: options.PolicyOption = None,
    checkpoints: options.CheckpointsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Report folder; rlguard-runs/TIME without it. It must be new."),
    ] = None,
    name: options.NameOption = None,
    config: options.ConfigOption = None,
    train_prompts: options.TrainPromptsOption = None,
    backlog: options.BacklogOption = None,
    *,
    evaluation: options.EvaluationOptions,
    follow: Annotated[
        Path | None,
        typer.Option(
            help="Read steps and checkpoints from what the trainer writes, with no line of code in it: a "
            "log, a folder of event files, or - for what it prints. What is there already is not read.",
        ),
    ] = None,
    format_: FormatOption = "auto",
    run_config: RunConfigOption = None,
    column: MapOption = None,
    resume_from: Annotated[
        Path | None,
        typer.Option(
            "--resume-from",
            help="Checkpoint of another run to start from, such as its best_checkpoint: the trainer gets it "
            "as RLGUARD_RESUME_FROM.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    max_lag: Annotated[
        str | None,
        typer.Option(
            "--max-lag",
            metavar="N|off",
            help="Checkpoints that may be unscored while the trainer goes on; 1 without it. With `off` it "
            "never waits for the guard, and a fire may come late. Above 2, raise stale.after_rounds of the "
            "policy with it.",
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds between SIGTERM and SIGKILL of the trainer.")
    ] = 10.0,
    drain: Annotated[
        float,
        typer.Option("--drain", min=0, help="Seconds for the last evaluations after the trainer has ended."),
    ] = 600.0,
    on_end: Annotated[
        str | None,
        typer.Option(
            "--on-end",
            metavar="COMMAND",
            help="Shell command to run once after the run, with RLGUARD_OUTCOME, RLGUARD_EXIT_CODE and "
            "RLGUARD_FOLDER. Its failure does not change the exit code.",
        ),
    ] = None,
) -> None:
    """Run a trainer under a guard on this machine, stop it when the guard says so, and write a report.

    The trainer gets RLGUARD_URL and RLGUARD_TOKEN, and reports its steps and checkpoints with
    trainer.add_callback(GuardCallback.from_env(trainer)). On a fire or a halt its whole process tree is
    ended.
    """
    from rlguard.cli.run.on_end import run_on_end
    from rlguard.cli.run.plan import Plan
    from rlguard.cli.run.session import run_guarded

    file = options.read_config(config)
    evaluated = heldout is not None or evaluations_token_file is not None
    sections = ("heldout", "evaluations_token_file")
    if not evaluated and not any(options.is_set(name, file) for name in sections):
        raise options.no_split()
    given = {
        "run_name": name,
        "evaluations_token_file": options.absolute(evaluations_token_file),
        "heldout": options.heldout_options(
            heldout=options.absolute(heldout),
            train_prompts=options.absolute(train_prompts),
            backlog=backlog,
            **evaluation,
        )
        or None,
        "policy_file": options.absolute(policy),
        "checkpoint_root": checkpoint_root(checkpoints, options.is_set("checkpoint_root", file)),
    }
    plan = Plan(
        command=command,
        out=out or Path("rlguard-runs") / time.strftime("%Y%m%d-%H%M%S"),
        options=given,
        config=file,
        grace=grace,
        drain=drain,
        max_lag=_lag(max_lag, followed=follow is not None),
        follow=_followed(follow, format_, run_config, column or []),
        resume_from=options.absolute(resume_from),
        arguments=sys.argv[1:],
    )
    finished = run_guarded(plan)
    for line in last_lines(plan, finished):
        say(f"rlguard: {line}")
    if on_end is not None:
        run_on_end(on_end, finished.outcome, plan.out)
    raise typer.Exit(finished.outcome.code)


def last_lines(plan: Plan, finished: Finished) -> Iterator[str]:
    """The end of a run: the report, what happened besides, how to go on, and the outcome last."""
    from rlguard.cli.run.outcome import notes
    from rlguard.cli.saved_run import how_it_starts, how_to_go_on

    yield f"report in {plan.out}/report.html"
    yield from notes(finished.ending)
    if finished.outcome.result is not Result.FINISHED and (command := how_to_go_on(plan.out)):
        yield f"to go on from the last good checkpoint: {command}"
        if how := how_it_starts(plan.out):
            yield how
    yield finished.outcome.sentence


def _lag(given: str | None, *, followed: bool) -> str | None:
    """What `--max-lag` says, checked."""
    if given is None:
        return None
    if given != "off" and not (given.isascii() and given.isdigit()):
        raise CliError(f"--max-lag must be a whole number of checkpoints or off, got {given!r}")
    if followed:
        raise CliError("--max-lag: a trainer that is followed cannot be told to wait; leave it out")
    return given


def _followed(
    metrics: Path | None, format_: str, run_config: Path | None, column: list[str]
) -> FollowConfig | None:
    """What `--follow` and the options beside it say; None without it."""
    from rlguard.cli.run.plan import TRAINER_OUTPUT
    from rlguard.follow.sources import framework_of

    framework_of(format_)
    if metrics is None:
        if format_ != "auto" or run_config is not None or column:
            raise CliError("--format, --run-config and --map are for a log that is followed: give --follow")
        return None
    return FollowConfig(
        metrics=metrics if metrics == TRAINER_OUTPUT else metrics.absolute(),
        format=format_,
        overrides=read_map(column),
        run_config=run_config,
    )


def checkpoint_root(given: Path | None, is_set: bool) -> Path | None:
    """Where the trainer may save: what was given, else what is set elsewhere, else the working directory."""
    if given is not None:
        return given.absolute()
    return None if is_set else Path.cwd()
