"""`rlguard split`: make a held-out split, or check that one is disjoint from the training prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from guard_cli.errors import CliError

NOT_DISJOINT = 1

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.command(
    epilog="Example:  rlguard split check --train train.jsonl --heldout heldout.jsonl   |   "
    "Exit codes: 0 disjoint; 1 not disjoint; 2 a file cannot be used."
)
def check(
    train: Annotated[Path, typer.Option("--train", help="Training prompts, JSONL with prompt.")],
    heldout: Annotated[
        Path, typer.Option("--heldout", help="Held-out split, JSONL with id, prompt, answer.")
    ],
    most: Annotated[int, typer.Option("--most", min=0, help="Offending pairs to list.")] = 20,
) -> None:
    """Say whether a held-out split is disjoint from the training prompts, and which ids are not."""
    from guard_service.heldout.disjoint import check_disjoint
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.split import HeldoutSplit, read_train_prompts

    try:
        report = check_disjoint(read_train_prompts(train), HeldoutSplit.load(heldout))
    except SplitError as error:
        raise CliError(str(error)) from None
    print(report.summary(most), file=sys.stdout if report.disjoint else sys.stderr)
    raise typer.Exit(0 if report.disjoint else NOT_DISJOINT)


@app.command(
    epilog="Example:  rlguard split make data.jsonl --train train.jsonl --heldout held.jsonl --fraction 0.05"
)
def make(
    source: Annotated[Path, typer.Argument(metavar="DATA", help="JSONL with prompt and answer.")],
    train: Annotated[Path, typer.Option("--train", help="Training file to write.")],
    heldout: Annotated[Path, typer.Option("--heldout", help="Held-out file to write.")],
    fraction: Annotated[float, typer.Option("--fraction", help="Share of prompts to hold out.")] = 0.05,
    salt: Annotated[str, typer.Option("--salt", help="Another salt makes another split.")] = "rlguard",
) -> None:
    """Divide a data set by hash of the prompt: no prompt changes sides when rows are added or shuffled."""
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.split import make_split

    try:
        made = make_split(source, train, heldout, fraction=fraction, salt=salt)
    except SplitError as error:
        raise CliError(str(error)) from None
    repeated = f" ({made.repeated} repeated rows left out)" if made.repeated else ""
    print(f"{made.train} training rows in {train}, {made.heldout} held-out items in {heldout}{repeated}")
