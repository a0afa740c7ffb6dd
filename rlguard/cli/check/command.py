"""`rlguard check`: what would be refused or could not be judged, before a GPU is paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlguard.cli import guard_settings as options
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings
    from rlguard.cli.check.rows import Found, Trainer
    from rlguard.core.preflight import CheckRow

WOULD_BE_REFUSED = 2
STYLES = {"ok": "green", "warn": "yellow", "refuse": "bold red", "not checked": "dim"}

EXIT_CODES = {
    0: "nothing would be refused, whatever it warns of",
    WOULD_BE_REFUSED: "something would be, or a file cannot be used",
}
EPILOG = epilog(
    "rlguard check --heldout heldout.jsonl --train-prompts train.jsonl --checkpoints out --save-steps 50 "
    "--max-steps 1000 --beta 0.001",
    "rlguard check --heldout heldout.jsonl --model ./start-model --time "
    "--step-seconds 8 --save-steps 50 --max-steps 1000 --save-total-limit 3",
    codes=EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
@options.with_evaluation
def check(
    heldout: options.HeldoutOption = None,
    train_prompts: options.TrainPromptsOption = None,
    policy: options.PolicyOption = None,
    config: options.ConfigOption = None,
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", help="Where the trainer will save: its output_dir.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Starting policy or a checkpoint, as the trainer saves it.")
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Evaluate --model and measure how long it takes.")
    ] = False,
    save_steps: Annotated[
        float | None,
        typer.Option("--save-steps", help="The trainer's save_steps; below 1 a share of max_steps."),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, help="The trainer's max_steps.")
    ] = None,
    save_total_limit: Annotated[
        int | None, typer.Option("--save-total-limit", min=1, help="The trainer's save_total_limit.")
    ] = None,
    beta: Annotated[float | None, typer.Option("--beta", min=0, help="The trainer's beta.")] = None,
    step_seconds: Annotated[
        float | None, typer.Option("--step-seconds", help="Seconds of one training step.")
    ] = None,
    *,
    evaluation: options.EvaluationOptions,
) -> None:
    """Look at a run before it starts: what would be refused, what could not be judged, and what to do.

    Reads the split, tries the scorer on the items' own answers, and looks at folders, a checkpoint and the
    trainer's figures. What is not given is not checked.
    """
    from rlguard.cli.check.rows import Trainer, rows

    heldout_settings = options.heldout_options(
        heldout=options.absolute(heldout),
        train_prompts=options.absolute(train_prompts),
        **evaluation,
    )
    given = {"heldout": heldout_settings or None, "policy_file": options.absolute(policy)}
    settings = options.without_a_guard(options.read_config(config), given, root=options.absolute(checkpoints))
    for name, value in (("--save-steps", save_steps), ("--step-seconds", step_seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise CliError(f"{name} {value:g}: must be above 0")
    trainer = Trainer(save_steps, max_steps, save_total_limit, beta, step_seconds)
    table = rows(_gather(settings, trainer, checkpoints, model, timed=time))
    _show(table)
    raise typer.Exit(WOULD_BE_REFUSED if any(row.level == "refuse" for row in table) else 0)


def _gather(
    settings: GuardSettings, trainer: Trainer, checkpoints: Path | None, model: Path | None, *, timed: bool
) -> Found:
    from rlguard.cli.check import gather
    from rlguard.cli.check.rows import Found

    heldout = settings.heldout
    if heldout is None:
        raise options.no_split()
    if timed and model is None:
        raise CliError("--time needs a model to evaluate: give --model DIR")
    split = gather.look_at_split(heldout)
    root, metrics, measured = settings.checkpoint_root, settings.metrics, None
    if split.items is not None:
        tried = model.absolute() if timed and model is not None else None
        scratch = checkpoints if tried and checkpoints is not None and checkpoints.is_dir() else Path.cwd()
        scorer, measured = gather.try_evaluation(heldout, tried, scratch)
        split = replace(split, scorer=scorer)
    return Found(
        trainer=trainer,
        policy=settings.policy(),
        split=split,
        sampling=heldout.evaluator.sampling_ahead(),
        grader=heldout.proxy_scorer is not None,
        folder=None if checkpoints is None else gather.look_at_folder(checkpoints, root),
        followed=None if metrics is None else gather.look_at_followed(metrics, root, checkpoints),
        model=None if model is None else gather.look_at_model(model, heldout.base_model),
        measured=measured,
    )


def _show(table: Sequence[CheckRow]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(pad_edge=False, box=None, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for row in table:
        shown.add_row(row.name, f"[{STYLES[row.level]}]{row.level}[/]", escape(row.says))
    console = Console()
    console.print(shown)
    counts = Counter(row.level.value for row in table)
    console.print(", ".join(f"{counts[level]} {level}" for level in STYLES if counts[level]))
