"""Bytes of a log into flat records, however they were cut: JSON lines, CSV, console lines, event files.

What is fed here is hostile: a line may have no end, be no UTF-8, hold a number of a thousand digits. What
cannot be read is left out and counted in `bad`, never quoted, and the next line is read; `why` has the
cause of the last one. A line or a record whose end is not there yet is kept until it comes. No I/O, and no
expression that a line can make slow: `re` lets no other thread run, not the one that ends the trainer.
"""

from __future__ import annotations

import csv
import io
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol, Self

from pydantic_core import from_json

from guard_core.frameworks import bare
from guard_follow.frameworks import FRAMEWORKS, STEP_NAMES

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
#: Longer names are cut to one character more, by which `names.resolve` knows them.
MAX_NAME = 200
#: What the writers of verl and ROLL put around the metrics.
_WRAPPERS = ("data", "metrics")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FORMS = {
    form: [one for framework in FRAMEWORKS for one in framework.console if one.form == form]
    for form in ("json", "dict", "fields")
}
_TAGS = [tag for console in _FORMS["json"] for tag in console.after]
#: A number may stand before it, of a line that was cut off there.
_PAIRS = re.compile(r"(?<![^\s\d])step:(\d{1,15}) - ")
_WORDS = "|".join(word for one in _FORMS["dict"] for word in one.after)
_DICT = re.compile(rf"\b(?:{_WORDS}) (\d{{1,15}}): \{{")

_ITEM = re.compile(r"'([^'\n]{1,200})': '?([^',}\s]{1,40})'?[,}]")
_FIELDS = re.compile(r"\bStep (\d{1,15}) +\|")
_FIELD = re.compile(r"([A-Za-z][A-Za-z ()/-]{0,40}?) +(-?\d{1,12}(?:\.\d{1,12})?)(%?)")
_NAMES = {printed: logged for one in _FORMS["fields"] for printed, logged in one.names.items()}
BOM = b"\xef\xbb\xbf"
_TOO_LONG = f"longer than {MAX_LINE >> 20} MiB"
_TWO_LINES = "it has the metrics of two lines: the first was cut short while it was written?"
#: Where ms-swift has the step, as "12/500"; with Megatron it is the second.
SWIFT_STEPS = ("global_step/max_steps", "iteration")
_SWIFT_STEP = re.compile(r"(\d{1,15})/\d+")


class Decoder(Protocol):
    """Takes bytes as they come, and gives the records that are whole."""

    bad: int
    why: str

    def feed(self, data: bytes) -> list[Record]:
        """The records that end in `data`."""

    def rest(self) -> list[Record]:
        """The last record, if it lacks only its line end; for a log that has ended."""

    def anew(self) -> Decoder:
        """For a file that begins anew in the place of this one."""


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record with nested dictionaries joined by "/", without the wrapper of verl and ROLL."""
    flat: dict[str, Any] = {}
    for name, value in islice(_leaves(row, "", 0), MAX_KEYS):
        flat.setdefault(name, value)
    for name in SWIFT_STEPS:
        if isinstance(fraction := flat.get(name), str) and (match := _SWIFT_STEP.fullmatch(fraction)):
            flat.setdefault("global_step", int(match[1]))
    return flat


def _leaves(row: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            if depth < MAX_DEPTH:
                wrapper = depth == 0 and name in _WRAPPERS and "step" in row
                yield from _leaves(value, "" if wrapper else f"{_cut(prefix + _cut(name))}/", depth + 1)
        else:
            yield _cut(prefix + _cut(name)), value


def _cut(name: str) -> str:
    return name[: MAX_NAME + 1]


def number(value: Any) -> float | None:
    """The value as a number, None if it is missing; "0.5" is 0.5, as in CSV.

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
        """The records of the lines that end in `data`."""
        *whole, last = (self._part + data).split(b"\n")
        if whole and self._skipping:
            whole, self._skipping = whole[1:], False
        self._part = b"" if self._skipping else last.lstrip(b"\0")
        if len(self._part) > MAX_LINE:
            self._part, self._skipping = b"", True
            self._leave_out(_TOO_LONG)
        return [record for line in whole for record in self._read(line)]

    def rest(self) -> list[Record]:
        """What the last line has, though it has no end."""
        part, self._part = self._part, b""
        return list(self._read(part)) if part.strip() else []

    def anew(self) -> Self:
        """For a file that begins anew in the place of this one; counts the line whose end does not come.

        It is not read: half a number looks like a number.
        """
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
        """What the last line has, though it has no end."""
        records = super().rest()
        if self._open:
            self._leave_out("a cell in quotation marks has no end")
            self._open = b""
        return records

    def anew(self) -> Self:
        """For a file that begins anew in the place of this one; counts the line whose end does not come."""
        header = self._header
        other = super().anew()
        other._header = header
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
        if other or not self._header or (cells and _cut(cells[0].strip()) == self._header[0]):
            self._header = [_cut(name.strip()) for name in cells]
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


class ConsoleLines(Lines):
    """What trainers print, in the forms of `frameworks.Console`, and JSON objects.

    Every other line is none of its metrics, and no fault. Ray's prefix and colours are taken off.
    """

    def _records(self, line: bytes) -> Iterable[Record]:
        text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
        if found := list(islice(_PAIRS.finditer(text), MAX_KEYS)):
            if len(found) > 1:  # the last one is whole
                self._leave_out(_TWO_LINES)
            return [_of_pairs(int(found[-1][1]), text[found[-1].end() :])]
        if step := _DICT.search(text):
            return [{"step": int(step[1])} | dict(_ITEM.findall(text[step.end() :])[:MAX_KEYS])]
        if step := _FIELDS.search(text):
            return [{"step": int(step[1])} | _of_fields(text[step.end() :])]
        tag = next((tag for tag in _TAGS if tag + "{" in text), "")
        return self._of_json(text, tag) if tag or text.startswith("{") else []

    def _of_json(self, text: str, tag: str) -> Iterable[Record]:
        """An object after a tag, which must be whole; any other line in braces need not be JSON."""
        tagged = _after_tag(text, tag) if tag else ""
        if tag and text.count(tag + "{") > 1:  # the last one is whole
            self._leave_out(_TWO_LINES)
        try:
            row = from_json(tagged or text)
        except ValueError:
            if tagged:
                raise ValueError(f"what follows `{tag.strip()}` is not JSON") from None
            return []
        return [flatten(row)] if isinstance(row, dict) else []


class PrintedLines(Lines):
    """What Hugging Face's trainer prints when it logs: dictionaries without a step, which are counted.

    `{'loss': 0.01, 'reward': 0.5, 'kl': 0.002, 'epoch': 0.1}`, since transformers 5 with the numbers in
    quotation marks. A progress bar has no line end, so it stands in the same line. Its own figures stand
    before TRL's; its summary at the end has no loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def _records(self, line: bytes) -> Iterable[Record]:
        for part in line.decode("utf-8", "replace").split("{'loss': ")[1:]:
            inside, end, _ = part.partition("}")
            if not end:
                raise ValueError("what its trainer logged has no end")
            self.steps += 1
            yield {"step": self.steps, **dict(_ITEM.findall(f"'loss': {inside}{end}")[:MAX_KEYS])}


def _of_fields(text: str) -> dict[str, Any]:
    """The numbers between bars, under the names by which they are logged; a percentage is a share."""
    found = (_FIELD.fullmatch(part.strip()) for part in text.split("|")[:MAX_KEYS])
    return {_NAMES[m[1]]: float(m[2]) / (100 if m[3] else 1) for m in found if m and m[1] in _NAMES}


def _of_pairs(step: int, metrics: str) -> Record:
    """One line of verl's.

    Raises:
        ValueError: a metric is there twice, so they are two lines.
    """
    record: dict[str, Any] = {"step": step}
    for part in metrics.split(" - ")[:MAX_KEYS]:
        name, colon, value = part.rpartition(":")
        name = name.strip()
        if colon and name:
            if name in record and len(name) <= MAX_NAME:
                raise ValueError(_TWO_LINES)
            record[_cut(name)] = _without_type(value.strip())
    return record


def _without_type(value: str) -> str:
    """`np.float64(0.5)` as `0.5`."""
    kind, opened, inner = value.partition("(")
    return inner[:-1] if opened and kind.startswith("np.") and inner.endswith(")") else value


def _after_tag(text: str, tag: str) -> str:
    """The JSON object after the last tag, or what is there of one that was cut short."""
    start, end = text.rfind(tag + "{"), text.rfind("}")
    return text[start + len(tag) : end + 1 if end > start else None]


# -- TensorBoard ---------------------------------------------------------------------------------------


#: A record can have no more bytes: its message could not be made.
_MAX_MESSAGE = 1 << 31


class DamagedError(ValueError):
    """Bytes that are no event file: what follows cannot be found again."""


class Events:
    """TensorBoard's event files: TFRecords of `Event` messages, of which the scalars are read.

    A TFRecord is a length (uint64), a checksum of it, the bytes, and their checksum. The checksum of the
    length tells a record that is still being written from damage. The messages are read here, field by field,
    because the package `tensorboard` brings a server with it. A record that is too long, as of a picture, is
    passed over: its length is known to be right.
    """

    def __init__(self) -> None:
        self.bad = 0
        self.why = "a record that is damaged"
        #: Records that were too long; they are in `bad`, too.
        self.too_long = 0
        self._part = b""
        self._passing = 0  # bytes that are passed over

    def feed(self, data: bytes) -> list[Record]:
        """The records that end in `data`.

        Raises:
            DamagedError: it is no event file, or one that is damaged.
        """
        data, at = self._part + data, self._passing
        found: list[Record] = []
        while len(data) - at >= 12:
            length, check = struct.unpack_from("<QI", data, at)
            if check != _masked_crc(data[at : at + 8]) or length > _MAX_MESSAGE:
                raise DamagedError("not a TensorBoard event file, or one that is damaged")
            if length > MAX_LINE:
                self.too_long += 1
                self.bad += 1
            elif len(data) - at < 16 + length:
                break
            else:
                found += self._scalars(data[at + 12 : at + 12 + length])
            at += 16 + length
        self._part, self._passing = data[at:], max(0, at - len(data))
        return found

    def rest(self) -> list[Record]:
        """Nothing: a record that is not whole has no values."""
        return []

    def anew(self) -> Decoder:
        """For a file that begins anew in the place of this one."""
        return Events()

    @property
    def in_mid_record(self) -> bool:
        """Whether the end of a record is missing."""
        return bool(self._part or self._passing)

    def _scalars(self, message: bytes) -> Iterator[Record]:
        """Records with a step and one scalar, in the order of the file.

        A tag that counts steps is left out: it stands beside one value of many, and the event has the step.
        """
        try:
            step, summaries = 0, []
            for key, value in _fields(message):
                if key == 2 and isinstance(value, int):
                    step = value
                elif key == 5 and isinstance(value, bytes):
                    summaries.append(value)
            for summary in summaries:
                for key, value in _fields(summary):
                    if key == 1 and isinstance(value, bytes):
                        tag, scalar = _tag_and_scalar(value)
                        if scalar is not None and tag and bare(tag) not in STEP_NAMES:
                            yield {"step": step, tag: scalar}
        except (ValueError, IndexError, struct.error):
            self.bad += 1


def _tag_and_scalar(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for key, value in _fields(message):
        if key == 1 and isinstance(value, bytes):
            tag = _cut(value.decode("utf-8"))
        elif key == 2 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif key == 8 and isinstance(value, bytes):
            scalar = _of_tensor(value)
    return tag, scalar


#: How one number is packed in a tensor: `DataType` to the field of such numbers, and their form. Writers make
#: every scalar one of these.
_TENSORS = {1: (5, "<f"), 2: (6, "<d")}
_CONTENT = 4


def _of_tensor(message: bytes) -> float | None:
    """The number of a tensor with one element; None for anything else."""
    fields = list(_fields(message))
    dtype = next((value for key, value in fields if key == 1 and isinstance(value, int)), 0)
    if dtype not in _TENSORS:
        return None
    where, form = _TENSORS[dtype]
    packed = (value for key, value in fields if key in (_CONTENT, where) and isinstance(value, bytes))
    fit = (value for value in packed if len(value) == struct.calcsize(form))
    return next((float(struct.unpack(form, value)[0]) for value in fit), None)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers of varints, bytes of everything else."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case _:
                raise ValueError("no protobuf")
        if at + size > len(message):
            raise ValueError("cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no varint")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """The checksum of a TFRecord: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
