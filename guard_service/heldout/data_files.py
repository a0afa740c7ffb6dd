"""Rows of a data set: JSONL, Parquet, or a folder of the library `datasets`. Columns by a dotted name.

No message quotes anything of a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from guard_core.wording import nearest
from guard_service.heldout.errors import SplitError
from guard_service.heldout.graders import ANSWERS
from guard_service.heldout.jsonl import is_showable, lines, parse_object, read_file, refuse

T = TypeVar("T")

#: How a column is often called that holds the answer, or the prompt.
LIKELY = {
    "answer": ANSWERS,
    "prompt": ("prompt", "question", "problem", "query", "input", "instruction"),
}
#: Columns that a message names.
MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row. `number`: from 1; `line`: as JSON, and of JSONL as it is written."""

    number: int
    columns: Mapping[str, Any]
    line: bytes


def read_data(path: Path) -> list[DataRow]:
    """All rows.

    Raises:
        SplitError: it cannot be read, or a line is no JSON object.
    """
    if path.is_dir():
        return _read_folder(path)
    if is_parquet(path):
        return _numbered(_with_pyarrow(path, lambda: _parquet([path])))
    rows, problems = [], []
    for number, line in lines(read_file(path).split(b"\n")):
        try:
            rows.append(DataRow(number, parse_object(line), line.strip()))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    refuse(path, problems)
    return rows


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def write_parquet(path: Path, rows: Sequence[DataRow]) -> None:
    """Write training rows as Parquet, for trainers that read nothing else.

    Raises:
        SplitError: it cannot be written.
    """

    def write() -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([dict(row.columns) for row in rows]), path)

    _with_pyarrow(path, write)


def column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of `a.b` that of `b` in `a`; None if it is not there."""
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inside = row.get(first)
    return column(inside, rest) if dot and isinstance(inside, Mapping) else None


def missing_column(rows: Sequence[DataRow], name: str, what: str, option: str) -> str:
    """Why no row has the column, and what to do: names the columns that there are, the likely one first."""
    names = list(dict.fromkeys(name for row in rows[:100] for name in _names(row.columns)))
    known = [one for likely in LIKELY[what] for one in names if one.rpartition(".")[2] == likely]
    near = next((one for one in known if one != name), None) or nearest(name, names)
    listed = ", ".join([*dict.fromkeys([*known, *names])][:MOST_NAMED]) or "none"
    return f"no column {name} (there are: {listed}): name it with {option} {near or 'COLUMN'}"


def _names(row: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in row.items():
        if not is_showable(name):
            continue
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")
        else:
            yield above + name


def _read_folder(path: Path) -> list[DataRow]:
    """What `datasets` saved there, or the Parquet or JSONL files that lie there."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(one.name for one in path.iterdir() if one.is_dir())
        raise SplitError(f"{path} holds several data sets ({', '.join(splits)}): name the folder of one")
    if (path / "dataset_info.json").is_file() or (path / "state.json").is_file():
        return _numbered(_with_pyarrow(path, lambda: _saved(path)))
    if files := sorted(path.rglob("*.parquet")):
        return _numbered(_with_pyarrow(path, lambda: _parquet(files)))
    if files := sorted([*path.rglob("*.jsonl"), *path.rglob("*.ndjson")]):
        rows = [row for file in files for row in read_data(file)]
        return [DataRow(number, row.columns, row.line) for number, row in enumerate(rows, 1)]
    raise SplitError(f"{path}: no data set in it: looked for what datasets saves, *.parquet and *.jsonl")


def _parquet(files: Sequence[Path]) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def _saved(path: Path) -> list[dict[str, Any]]:
    from datasets import load_from_disk

    return list(load_from_disk(str(path)))


def _with_pyarrow(path: Path, act: Callable[[], T]) -> T:
    """What `act` gives, which reads or writes this path with pyarrow.

    Raises:
        SplitError: it is not installed, or fails.
    """
    if find_spec("pyarrow") is None:
        raise SplitError(f"{path}: Parquet needs the package pyarrow: pip install pyarrow")
    try:
        return act()
    except Exception as error:  # of pyarrow and of datasets
        raise SplitError(f"{path}: cannot be used as a table ({type(error).__name__})") from None


def _numbered(rows: Sequence[dict[str, Any]]) -> list[DataRow]:
    return [
        DataRow(number, row, json.dumps(row, ensure_ascii=False, default=str).encode())
        for number, row in enumerate(rows, 1)
    ]
