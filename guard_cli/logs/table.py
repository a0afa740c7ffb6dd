"""A log as a table: one row a record, numbers as arrays, per-item outcomes as lists. No opinion on names.

A log of a million lines never lies in memory as dictionaries: of each record only the cells are kept that
`names` knows or `--map` names, and so many with further figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from guard_cli.errors import CliError
from guard_core.frameworks import figure_of
from guard_follow import names
from guard_follow.records import Record, number

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Columns of outcomes of items: a list in each row of an evaluation.
OUTCOMES = ("items", "proxy_items", "fooled_items")

#: Columns that hold no number; `kl_kind` is a word.
OBJECTS = (*OUTCOMES, "kl_kind")


@dataclass(frozen=True, slots=True)
class Table:
    """A whole log.

    `names`: every column of the file. `numbers[name]`: shape (rows,), NaN where the cell is empty; only of
    columns that were kept. `objects[name]`: row to value, of the columns in `OBJECTS`. `line`: where each
    row stands in the file. `begins`: rows with which a further file of the log begins. `format`: what kind of
    file it was. `note`: what was left out of it, for people.
    """

    format: str
    names: tuple[str, ...]
    numbers: Mapping[str, Floats]
    objects: Mapping[str, Mapping[int, Any]]
    line: Ints
    begins: frozenset[int]
    note: str

    def __len__(self) -> int:
        return len(self.line)


class TableBuilder:
    """Takes the records of a log, and makes the table of them.

    Args:
        format_name: for the report.
        where: what the number of a row counts, for messages, such as "log.jsonl: line".
        overrides: columns to keep besides those that `names` knows.
    """

    def __init__(self, format_name: str, where: str, overrides: Collection[str] = ()) -> None:
        self._format, self._where, self._overrides = format_name, where, frozenset(overrides)
        self._kinds: dict[str, str] = {}
        self._figures = 0
        self._lines: list[int] = []
        self._begins: set[int] = set()
        self._cells: dict[str, tuple[list[int], list[float]]] = {}
        self._objects: dict[str, dict[int, Any]] = {}

    def kind_of(self, column: str) -> str:
        """What becomes of a column: "judged", "figure", or "" where it is not kept."""
        if column not in self._kinds:
            if column in self._overrides or names.wanted(column):
                kind = "judged"
            else:
                kind = "figure" if figure_of(column) and self._figures < names.MOST_FIGURES else ""
                self._figures += kind == "figure"
            self._kinds[column] = kind
        return self._kinds[column]

    def begin_file(self) -> None:
        """What comes now is of another file."""
        self._begins.add(len(self._lines))

    def add(self, line: int, record: Record) -> None:
        """Add a row.

        Raises:
            CliError: a cell by which a run is judged is no number.
        """
        row = len(self._lines)
        self._lines.append(line)
        for name, value in record.items():
            kind = self.kind_of(name)
            if not kind or value is None or value == "":
                continue
            if name in OBJECTS:
                self._objects.setdefault(name, {})[row] = _list_of(value) if name in OUTCOMES else value
                continue
            try:
                found = number(value)
            except ValueError:
                if kind == "judged":
                    raise CliError(
                        f"{self._where} {line}: `{name}` is {_short(value)}, which is not a number."
                    ) from None
                continue
            rows, values = self._cells.setdefault(name, ([], []))
            rows.append(row)
            values.append(math.nan if found is None else found)

    def table(self, note: str = "") -> Table:
        """The table of all rows."""
        numbers = {}
        for name, (rows, values) in self._cells.items():
            numbers[name] = np.full(len(self._lines), np.nan)
            numbers[name][rows] = values
        line = np.array(self._lines, dtype=np.int64)
        begins = frozenset(self._begins - {0})
        return Table(self._format, tuple(self._kinds), numbers, self._objects, line, begins, note)


def _list_of(value: Any) -> Any:
    """A list that is written as JSON, as in a cell of a CSV; anything else as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
