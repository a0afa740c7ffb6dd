"""`rlguard split`: make a held-out split, or check that one is disjoint from the training prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guard_service.heldout.split import HeldoutItem

NOT_DISJOINT = 1
#: Of `split check`.
EXIT_CODES = {0: "disjoint, or dropped", NOT_DISJOINT: "not disjoint", 2: "a file cannot be used"}
EXIT_CODES_OF_MAKE = {
    0: "both files are written",
    2: "wrong arguments, a file cannot be used or written, or an output exists",
}

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

PromptColumn = Annotated[
    str, typer.Option("--prompt-column", help="Column of DATA or of the training file that holds the prompt.")
]
ExactOnly = Annotated[
    bool,
    typer.Option("--exact-only", help="Near-duplicates may be on both sides; the same prompt never may."),
]


@app.command(
    epilog=epilog(
        "rlguard split check --train train.jsonl --heldout heldout.jsonl",
        "rlguard split check --train train.jsonl --heldout heldout.jsonl --drop disjoint.jsonl",
        codes=EXIT_CODES,
    )
)
def check(
    train: Annotated[Path, typer.Option("--train", help="Training prompts, JSONL with prompt.")],
    heldout: Annotated[
        Path, typer.Option("--heldout", help="Held-out split, JSONL with id, prompt, answer.")
    ],
    drop: Annotated[
        Path | None, typer.Option("--drop", help="Write the split without the offending items to this file.")
    ] = None,
    prompt_column: PromptColumn = "prompt",
    exact_only: ExactOnly = False,
) -> None:
    """Say whether a held-out split is disjoint from the training prompts, and which ids are not."""
    from guard_service.heldout.disjoint import check_disjoint
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.make_split import drop_overlapping
    from guard_service.heldout.split import HeldoutSplit, read_train_prompts

    try:
        items = HeldoutSplit.load(heldout).items
        report = check_disjoint(read_train_prompts(train, prompt_column), items, not exact_only)
        told = report.summary(most=20)
        if drop is not None:
            left, out = drop_overlapping(
                train, heldout, drop, prompt_column=prompt_column, near=not exact_only
            )
            told += f"\n{left} items in {drop}, {out} left out: disjoint now"
    except SplitError as error:
        raise CliError(str(error)) from None
    if alone := ungrouped(items, not exact_only):
        print(f"warning: {alone}", file=sys.stderr)
    passed = report.disjoint or drop is not None
    print(told, file=sys.stdout if passed else sys.stderr)
    raise typer.Exit(0 if passed else NOT_DISJOINT)


@app.command(
    epilog=epilog(
        "rlguard split make data.jsonl --train train.jsonl --heldout held.jsonl --fraction 0.05",
        "rlguard split make gsm8k.jsonl --train train.jsonl --heldout held.jsonl --prompt-column question",
        codes=EXIT_CODES_OF_MAKE,
    )
)
def make(
    source: Annotated[
        Path, typer.Argument(metavar="DATA", help="JSONL, Parquet, or a folder that `datasets` saved.")
    ],
    train: Annotated[Path, typer.Option("--train", help="Training file to write: *.jsonl or *.parquet.")],
    heldout: Annotated[Path, typer.Option("--heldout", help="Held-out file to write.")],
    fraction: Annotated[float, typer.Option("--fraction", help="Share of prompts to hold out.")] = 0.05,
    salt: Annotated[str, typer.Option("--salt", help="Another salt makes another split.")] = "rlguard",
    prompt_column: PromptColumn = "prompt",
    answer_column: Annotated[
        str,
        typer.Option(
            "--answer-column", help="Column that holds the answer, such as reward_model.ground_truth."
        ),
    ] = "answer",
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="Items have none: a scorer of your own needs none.")
    ] = False,
    exact_only: ExactOnly = False,
) -> None:
    """Divide a data set by hash of the prompt, near-duplicates on one side, so that `split check` passes."""
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.make_split import make_split

    try:
        made = make_split(
            source,
            train,
            heldout,
            fraction=fraction,
            salt=salt,
            prompt_column=prompt_column,
            answer_column=None if no_answer else answer_column,
            near=not exact_only,
        )
    except SplitError as error:
        raise CliError(str(error)) from None
    repeated = f" ({made.repeated} repeated rows left out)" if made.repeated else ""
    print(f"{made.train} training rows in {train}, {made.heldout} held-out items in {heldout}{repeated}")
    if made.grouped:
        print(f"{made.grouped} held-out items have a group: those of one group count as one item")
    if made.near:
        print(f"{made.near} rows that the hash held out are near-duplicates of training rows: they are there")


def ungrouped(items: Sequence[HeldoutItem], near: bool) -> str:
    """A sentence if near-duplicates within the split are not one group; else ""."""
    from guard_service.heldout.disjoint import families

    found = [[items[place] for place in places] for places in families(items, near)]
    apart = [family for family in found if family[0].group is None or len({i.group for i in family}) > 1]
    if not apart:
        return ""
    count, example = sum(map(len, apart)), ", ".join(repr(item.id) for item in apart[0])
    return (
        f"{count} held-out items are near-duplicates of each other and not in one group (such as "
        f"{example}). They succeed or fail together, so the score is noisier than their number says: give "
        "them the same `group`, or keep one of them"
    )
