"""Rows of prompts: JSONL, Parquet, or a folder of the library `datasets`. One reader, and one refusal.

No message quotes anything of a row (invariant 8): it names files, lines, columns and ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from guard_service.heldout.errors import SplitError
from rlguard.core.wording import count, message, nearest

T = TypeVar("T")
_Model = TypeVar("_Model", bound=BaseModel)

#: Bad rows that a refusal names, and columns.
MAX_REPORTED = 3
MAX_COLUMNS = 12
#: How a column is often called that holds the prompt.
PROMPTS = ("prompt", "question", "problem", "query", "input", "instruction")
_SHOWABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")
_SHAPES = {
    "prompt": "must be a text, or a list of messages with role (system, user, assistant) and content",
    "answer": "must be a text, a number, or a list of them",
    "id": "must be 1 to 128 visible ASCII characters without spaces",
}


@dataclass(frozen=True)
class DataRow:
    """A row, numbered from 1. `content`: a line of JSONL as it is written, or the columns of a table."""

    number: int
    content: bytes | Mapping[str, Any]

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """Its values by name; raises ValueError if the line is not one JSON object."""
        return _parse(self.content) if isinstance(self.content, bytes) else self.content

    @property
    def line(self) -> bytes:
        """As JSON, and of JSONL as it is written."""
        return self.content.strip() if isinstance(self.content, bytes) else json_line(self.content)

    def column(self, name: str) -> Any:
        """The value of a column, or of `a.b` that of `b` in `a`; None if it is not there."""
        return _column(self.columns, name)


def json_line(columns: Mapping[str, Any]) -> bytes:
    """A row as it is written."""
    return json.dumps(columns, ensure_ascii=False, default=str).encode()


def _column(columns: Mapping[str, Any], name: str) -> Any:
    if name in columns:
        return columns[name]
    first, dot, rest = name.partition(".")
    inside = columns.get(first)
    return _column(inside, rest) if dot and isinstance(inside, Mapping) else None


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno} ({error.msg}): one object a line") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object: one object a line")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key occurs twice in an object: keep one")
    return row


# -- reading -----------------------------------------------------------------------------------------------


def read_data_rows(path: Path) -> Iterator[DataRow]:
    """Yield the rows of a data set, of JSONL a line at a time.

    Raises:
        SplitError: it cannot be read.
    """
    if path.is_dir():
        yield from _read_folder(path)
    elif is_parquet(path):
        yield from _table(path, lambda: _parquet([path]))
    else:
        try:
            with path.open("rb") as file:
                yield from lines(file)
        except OSError as error:
            raise unreadable(path, error) from error


def lines(raw: Iterable[bytes]) -> Iterator[DataRow]:
    """Number the lines and leave out blank ones. They end at a newline byte and nowhere else."""
    return (DataRow(number, line) for number, line in enumerate(raw, 1) if line.strip())


def unreadable(path: Path, error: OSError) -> SplitError:
    """What to raise for a file that cannot be read."""
    return SplitError(f"{path}: {error.strerror}: check the path and who may read it")


def each(path: Path, rows: Iterable[DataRow], make: Callable[[DataRow], T]) -> Iterator[T]:
    """Yield what `make` makes of each row; then refuse those of which it made nothing.

    Raises:
        SplitError: `make` raised ValueError at some rows. Names the first.
    """
    problems: dict[str, int] = {}  # the first row of each
    bad = 0
    for row in rows:
        try:
            made = make(row)
        except ValueError as error:
            bad += 1
            problems.setdefault(str(error), row.number)
        else:
            yield made
    if problems:
        listed = [f"line {number}: {problem}" for problem, number in list(problems.items())[:MAX_REPORTED]]
        more = [f"and {bad - len(listed)} more"] if bad > len(listed) else []
        raise SplitError(f"{path}: {count(bad, 'bad line')}: {'; '.join(listed + more)}")


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def write_parquet(path: Path, rows: Sequence[DataRow]) -> None:
    """Write training rows as Parquet, for trainers that read nothing else; raises SplitError."""

    def write() -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([dict(row.columns) for row in rows]), path)

    _with_pyarrow(path, write)


def _read_folder(path: Path) -> Iterator[DataRow]:
    """What `datasets` saved there, or the Parquet or JSONL files that lie there."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(one.name for one in path.iterdir() if one.is_dir())
        raise SplitError(f"{path} holds several data sets ({', '.join(splits)}): name the folder of one")
    if (path / "dataset_info.json").is_file() or (path / "state.json").is_file():
        yield from _table(path, lambda: _saved(path))
    elif files := sorted(path.rglob("*.parquet")):
        yield from _table(path, lambda: _parquet(files))
    elif files := sorted([*path.rglob("*.jsonl"), *path.rglob("*.ndjson")]):
        rows = (row.content for file in files for row in read_data_rows(file))
        yield from (DataRow(number, content) for number, content in enumerate(rows, 1))
    else:
        raise SplitError(f"{path}: no data set in it: looked for what datasets saves, *.parquet and *.jsonl")


def _parquet(files: Sequence[Path]) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def _saved(path: Path) -> list[dict[str, Any]]:
    from datasets import load_from_disk

    return list(load_from_disk(str(path)))


def _table(path: Path, read: Callable[[], list[dict[str, Any]]]) -> Iterator[DataRow]:
    return (DataRow(number, columns) for number, columns in enumerate(_with_pyarrow(path, read), 1))


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


# -- what is wrong with a row ------------------------------------------------------------------------------


def validate(row: Mapping[str, Any], model: type[_Model]) -> _Model:
    """A row as `model`; raises ValueError, in words that quote nothing of it."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        reasons = dict.fromkeys(_reason(one) for one in errors if not _is_unknown(one))
        if names := [_name(one) for one in errors if _is_unknown(one)][:MAX_COLUMNS]:
            reasons[_unknown_keys(names, list(model.model_fields))] = None
        raise ValueError("; ".join(reasons)) from None


def _is_unknown(error: ErrorDetails) -> bool:
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1


def _unknown_keys(names: Sequence[str], known: Sequence[str]) -> str:
    near = next(filter(None, (nearest(name, known) for name in names)), "")
    hint = f"did you mean {near}? An" if near else "an"
    keys = f"unknown key{'s' * (len(names) > 1)} {', '.join(names)}"
    return f"{keys}: {hint} item has {', '.join(known)}; put anything else under meta"


def _name(error: ErrorDetails) -> str:
    top = str(error["loc"][0]) if error["loc"] else "line"
    return top if _SHOWABLE.fullmatch(top) else "<unnameable>"


def _reason(error: ErrorDetails) -> str:
    """Where and what; never the value that is there."""
    name = _name(error)
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return f"{name} is missing"
    return f"{name} {_SHAPES[name]}" if name in _SHAPES else f"{name}: {message(error)}"


def missing_column(rows: Sequence[DataRow], name: str, likely: Sequence[str]) -> tuple[str, str]:
    """Why no row has the column, naming those that there are; and which of them may be meant, or ""."""
    names = list(dict.fromkeys(name for row in rows[:100] for name in _names(row.columns)))
    known = [one for usual in likely for one in names if one.rpartition(".")[2] == usual]
    listed = ", ".join([*dict.fromkeys([*known, *names])][:MAX_COLUMNS]) or "none"
    meant = next((one for one in known if one != name), "") or nearest(name, names)
    return f"no column {name} (there are: {listed})", meant


def _names(columns: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Column names; what does not look like one may be a prompt in a wrong place."""
    for name, value in columns.items():
        if not _SHOWABLE.fullmatch(name):
            continue
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")
        else:
            yield above + name
