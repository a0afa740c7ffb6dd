"""Options of the commands that read logs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from rlguard.cli.errors import CliError
from rlguard.core.frameworks import FORMATS
from rlguard.follow.columns import CANONICAL

FormatOption = Annotated[
    str,
    typer.Option("--format", help=f"Who writes it: {', '.join(FORMATS)}.", metavar="NAME"),
]
RunConfigOption = Annotated[
    Path | None,
    typer.Option(
        help="The run's own configuration, such as hydra's config.yaml: it says whether the KL is a mean "
        "over tokens. Without it the one beside the metrics is read."
    ),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help=f"Which column is what, such as reward=my/col. Names: {', '.join(CANONICAL[:6])}.",
        metavar="NAME=COLUMN",
    ),
]


def read_map(pairs: Iterable[str]) -> dict[str, str]:
    """`--map reward=my/col` options as a dictionary.

    Raises:
        CliError: an option has no `=`, or names one quantity twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if not (equals and name and column):
            raise CliError(f"--map {pair}: expected NAME=COLUMN, such as --map reward=my/col.")
        if name in found:
            raise CliError(f"--map {name} is given twice: {found[name]!r} and {column!r}.")
        found[name] = column
    return found
