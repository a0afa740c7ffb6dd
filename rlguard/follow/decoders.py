"""Bytes of a log into flat records, however they were cut: JSON lines and CSV. No I/O.

What is fed here is hostile: a line may have no end, be no UTF-8, hold a number of a thousand digits. What
cannot be read is left out and counted in `bad`; `why` is the cause of the last one. A line or a record whose
end is not there yet is kept until it comes.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol, Self

from pydantic_core import from_json

from rlguard.follow.frameworks import FRAMEWORKS

Record = Mapping[str, Any]

#: Between two files of one log, as event files are, or a file and the one that has taken its place.
BOUNDARY: Record = MappingProxyType({})
#: Before a log that is read from its beginning, again or for the first time.
AGAIN: Record = MappingProxyType({})

#: Longer lines and records are passed over.
MAX_LINE = 4 << 20
#: Nested dictionaries deeper than this, or with more keys, are cut there.
MAX_DEPTH = 6
MAX_KEYS = 20_000
#: Longer names are cut to one character more, by which `columns.resolve` knows them.
MAX_NAME = 200
BOM = b"\xef\xbb\xbf"
_TOO_LONG = f"longer than {MAX_LINE >> 20} MiB"
_WRAPPERS = {framework.wrapper for framework in FRAMEWORKS} - {""}
_STEP_FRACTIONS = tuple(name for framework in FRAMEWORKS for name in framework.step_fraction)
_FRACTION = re.compile(r"(\d{1,15})/\d+")


class DamagedError(ValueError):
    """Bytes of another kind of file, or damaged ones: what follows cannot be found again."""


class Decoder(Protocol):
    """Takes bytes as they come, and gives the records that are whole."""

    bad: int
    why: str

    def feed(self, data: bytes) -> list[Record]:
        """The records that end in `data`.

        Raises:
            DamagedError: nothing more can be read.
        """

    def rest(self) -> list[Record]:
        """The last record, if it lacks only its line end; for a log that has ended."""

    def anew(self) -> Decoder:
        """For a file that begins anew in the place of this one."""


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested dictionaries by "/", without the `wrapper` of a framework, and with a plain step."""
    flat: dict[str, Any] = {}
    for name, value in islice(_leaves(row, "", 0), MAX_KEYS):
        flat.setdefault(name, value)
    for name in _STEP_FRACTIONS:
        if isinstance(fraction := flat.get(name), str) and (match := _FRACTION.fullmatch(fraction)):
            flat.setdefault("global_step", int(match[1]))
    return flat


def _leaves(row: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            if depth < MAX_DEPTH:
                wrapper = depth == 0 and name in _WRAPPERS and "step" in row
                yield from _leaves(
                    value, "" if wrapper else f"{cut_name(prefix + cut_name(name))}/", depth + 1
                )
        else:
            yield cut_name(prefix + cut_name(name)), value


def cut_name(name: str) -> str:
    """The name, or so much of it as shows that it is too long."""
    return name[: MAX_NAME + 1]


def number(value: Any) -> float | None:
    """Convert to a number, None if it is missing; "0.5" is 0.5, as in CSV.

    Raises:
        ValueError: it is no number.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


class Lines:
    """Whole lines out of bytes; one that is too long is passed over to its end.

    NULs before a line are a hole: whoever had the file open when it was cut goes on where it was.
    """

    def __init__(self) -> None:
        self.bad = 0
        self.why = ""
        self._part = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[Record]:
        """See `Decoder`."""
        *whole, last = (self._part + data).split(b"\n")
        if whole and self._skipping:
            whole, self._skipping = whole[1:], False
        self._part = b"" if self._skipping else last.lstrip(b"\0")
        if len(self._part) > MAX_LINE:
            self._part, self._skipping = b"", True
            self._leave_out(_TOO_LONG)
        return [record for line in whole for record in self._read(line)]

    def rest(self) -> list[Record]:
        """See `Decoder`."""
        part, self._part = self._part, b""
        return list(self._read(part)) if part.strip() else []

    def anew(self) -> Self:
        """See `Decoder`. Counts the line whose end does not come: half a number looks like a number."""
        cut_off = self.rest()  # which counts what cannot be read
        self.bad += len(cut_off)
        return type(self)()

    def _read(self, line: bytes) -> Iterator[Record]:
        line = line.lstrip(b"\0").removeprefix(BOM)
        if not line.strip():
            return
        try:
            if len(line) > MAX_LINE:
                raise ValueError(_TOO_LONG)
            yield from self._records(line)
        except UnicodeDecodeError:
            self._leave_out("not UTF-8")
        except (ValueError, csv.Error) as error:
            self._leave_out(str(error))

    def _leave_out(self, why: str) -> None:
        self.bad += 1
        self.why = why

    def _records(self, line: bytes) -> Iterable[Record]:
        """The records of a line.

        Raises:
            ValueError, csv.Error: why it cannot be read.
        """
        raise NotImplementedError


class JsonLines(Lines):
    """One JSON object a line."""

    def _records(self, line: bytes) -> Iterable[Record]:
        try:
            row = from_json(line)
        except ValueError as error:
            line.decode()  # which may be what is wrong
            raise ValueError(f"not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"a JSON {type(row).__name__}, not an object")
        return [flatten(row)]


class CsvLines(Lines):
    """A header and one row a line; a header that comes again, as of a restarted writer, counts from there.

    A file that was cut and has no header goes on under the one before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._header: list[str] = []
        self._begins = True
        self._open = b""  # lines of a cell that is not closed yet

    def rest(self) -> list[Record]:
        """See `Decoder`."""
        records = super().rest()
        if self._open:
            self._leave_out("a cell in quotation marks has no end")
            self._open = b""
        return records

    def anew(self) -> Self:
        """See `Decoder`."""
        other = super().anew()
        other._header = self._header
        return other

    def _records(self, line: bytes) -> Iterable[Record]:
        if (self._open + line).count(b'"') % 2:  # a cell has a line end in it
            self._open += line + b"\n"
            if len(self._open) > MAX_LINE:
                self._open = b""
                raise ValueError(_TOO_LONG)
            return []
        text, self._open = (self._open + line).decode("utf-8-sig").rstrip("\r"), b""
        cells = next(csv.reader(io.StringIO(text, newline="")), [])
        begins, self._begins = self._begins, False
        other = begins and not any(map(_is_number, cells))
        if other or not self._header or (cells and cut_name(cells[0].strip()) == self._header[0]):
            self._header = [cut_name(name.strip()) for name in cells]
            if twice := {name for name in self._header if self._header.count(name) > 1}:
                raise ValueError(f"`{min(twice)}` occurs twice in the header")
            return []
        if len(cells) != len(self._header):
            raise ValueError(f"{len(cells)} cells, but the header names {len(self._header)}")
        return [dict(zip(self._header, cells, strict=True))]


def _is_number(cell: str) -> bool:
    try:
        return number(cell) is not None
    except ValueError:
        return False
