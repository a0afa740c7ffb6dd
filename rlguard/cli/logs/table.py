"""A log as rows of cells, of the columns that may be judged. No opinion on which column is what."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlguard.cli.errors import CliError
from rlguard.core.frameworks import figure_of
from rlguard.follow.columns import MOST_FIGURES, quantity_of
from rlguard.follow.decoders import Record, number

#: Columns of outcomes of items: a list in each row of an evaluation.
OUTCOMES = ("items", "proxy_items", "fooled_items")

#: Columns that hold no number; `kl_kind` is a word.
OBJECTS = (*OUTCOMES, "kl_kind")


@dataclass(frozen=True, slots=True)
class TableRow:
    """Where a row stands in its file, and its cells by column; `begins`: a further file begins with it.

    A cell is a number, but of a column in `OBJECTS`. A cell that is empty is not there.
    """

    line: int
    cells: Mapping[str, Any]
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A whole log.

    `format`: what kind of file it was. `names`: every column of it. `note`: what was left out, for people.
    """

    format: str
    names: tuple[str, ...]
    rows: Sequence[TableRow]
    note: str


class TableBuilder:
    """Takes the records of a log, and makes the table of them.

    Of a record only the cells are kept that `names` knows or `--map` names, and so many with further figures.

    Args:
        format_name: for the report.
        where: what the number of a row counts, for messages, such as "log.jsonl: line".
        overrides: columns to keep besides those that `names` knows.
    """

    def __init__(self, format_name: str, where: str, overrides: Collection[str] = ()) -> None:
        self._format, self._where, self._overrides = format_name, where, frozenset(overrides)
        self._kinds: dict[str, str] = {}
        self._figures = 0
        self._rows: list[TableRow] = []
        self._begins = False

    def kind_of(self, column: str) -> str:
        """What becomes of a column: "judged", "figure", or "" where it is not kept."""
        if column not in self._kinds:
            if column in self._overrides or quantity_of(column):
                kind = "judged"
            else:
                kind = "figure" if figure_of(column) and self._figures < MOST_FIGURES else ""
                self._figures += kind == "figure"
            self._kinds[column] = kind
        return self._kinds[column]

    def begin_file(self) -> None:
        """What comes now is of another file."""
        self._begins = bool(self._rows)

    def add(self, line: int, record: Record) -> None:
        """Add a row.

        Raises:
            CliError: a cell by which a run is judged is no number.
        """
        cells: dict[str, Any] = {}
        for name, value in record.items():
            kind = self.kind_of(name)
            if not kind or value is None or value == "":
                continue
            if name in OBJECTS:
                cells[name] = _list_of(value) if name in OUTCOMES else value
                continue
            try:
                cells[name] = number(value)
            except ValueError:
                if kind == "judged":
                    raise CliError(
                        f"{self._where} {line}: `{name}` is {_short(value)}, which is not a number."
                    ) from None
        self._rows.append(TableRow(line, cells, self._begins))
        self._begins = False

    def table(self, note: str = "") -> Table:
        """The table of all rows."""
        return Table(self._format, tuple(self._kinds), self._rows, note)


def _list_of(value: Any) -> Any:
    """A list that is written as JSON, as in a cell of a CSV; anything else as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
