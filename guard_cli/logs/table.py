"""A log as a table: one row a line, numbers as arrays, per-item outcomes as tuples. No opinion on names.

Built by the readers from chunks, so that a log of a million lines never lies in memory as dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from guard_cli.errors import CliError

Floats = npt.NDArray[np.float64]

#: Columns of outcomes of items: a list in each row of an evaluation.
OUTCOMES = ("items", "proxy_items", "fooled_items")

#: Columns that hold no number; `kl_kind` is a word.
OBJECTS = (*OUTCOMES, "kl_kind")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a log: `lines[i]` is where row i stands, `columns[name][i]` its value or None."""

    lines: Sequence[int]
    columns: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """A whole log.

    `names`: every column of the file. `numbers[name]`: shape (rows,), NaN where the cell is empty; only of
    columns that were kept. `objects[name]`: row to value, of the columns in `OBJECTS`. `line`: where each
    row stands in the file. `format`: what kind of file it was. `note`: what was left out of it, for people.
    """

    format: str
    names: tuple[str, ...]
    numbers: Mapping[str, Floats]
    objects: Mapping[str, Mapping[int, Any]]
    line: npt.NDArray[np.int64]
    note: str | None = None

    def __len__(self) -> int:
        return len(self.line)


def build(
    format_name: str,
    chunks: Iterable[Chunk],
    is_object: Callable[[str], bool],
    where: str,
    names: Iterable[str] = (),
    forgiving: Callable[[str], bool] = lambda _: False,
) -> Table:
    """Stack chunks into a table.

    Args:
        format_name: for the report.
        chunks: each with the columns to keep, and `names` of all of them.
        is_object: whether a column holds lists or words rather than numbers.
        where: what the numbers in `Chunk.lines` count, such as "line".
        names: columns of the file that no chunk keeps; read after the last chunk.
        forgiving: whether a cell of a column that is no number is only not known.

    Raises:
        CliError: a cell is not a number.
    """
    lines: list[npt.NDArray[np.int64]] = []
    parts: dict[str, list[tuple[int, Floats]]] = {}
    objects: dict[str, dict[int, Any]] = {}
    rows = 0
    for chunk in chunks:
        for name, values in chunk.columns.items():
            if is_object(name):
                kept = objects.setdefault(name, {})
                kept.update((rows + i, v) for i, v in enumerate(values) if v is not None)
            else:
                found = _readable(values) if forgiving(name) else _floats(name, values, chunk.lines, where)
                parts.setdefault(name, []).append((rows, found))
        lines.append(np.asarray(chunk.lines, dtype=np.int64))
        rows += len(chunk.lines)
    numbers = {}
    for name, pieces in parts.items():
        numbers[name] = np.full(rows, np.nan)
        for start, piece in pieces:
            numbers[name][start : start + len(piece)] = piece
    line = np.concatenate(lines) if lines else np.zeros(0, dtype=np.int64)
    return Table(format_name, tuple(dict.fromkeys([*names, *parts, *objects])), numbers, objects, line)


def _floats(name: str, values: Sequence[Any], lines: Sequence[int], where: str) -> Floats:
    try:
        return _array(values)
    except (ValueError, TypeError, OverflowError):
        return np.array([_float(name, v, n, where) for v, n in zip(values, lines, strict=True)])


def _array(values: Sequence[Any]) -> Floats:
    """One number a value; None becomes NaN, "0.5" becomes 0.5.

    Raises:
        ValueError, TypeError, OverflowError: not all of them are numbers.
    """
    found = np.array(values, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError("lists, all of one length")
    return found


def _readable(values: Sequence[Any]) -> Floats:
    """NaN where a value is no number."""
    try:
        return _array(values)
    except (ValueError, TypeError, OverflowError):
        return np.array([_float_or_nan(value) for value in values])


def _float_or_nan(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan


def _float(name: str, value: Any, line: int, where: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        raise CliError(f"{where} {line}: `{name}` is {_short(value)}, which is not a number.") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
