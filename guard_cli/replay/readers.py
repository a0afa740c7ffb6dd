"""Reads the files that runs leave behind into one `Table`: JSONL, CSV, TRL's trainer_state.json, TensorBoard.

It keeps the columns that `names` knows or `--map` names, whatever their meaning; which is which, `run`
decides. A line that cannot be read stops the replay: half a log would give a verdict on half a run.
"""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from guard_cli.errors import CliError
from guard_cli.replay import names
from guard_cli.replay.table import OBJECTS, Chunk, Table, build

#: Of JSON lines and of CSV. What fits into the processor's cache is read up to four times as fast.
CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 1_000

#: How many bad lines an error names.
MOST_SHOWN = 5

Keep = Callable[[str], bool]


def read(path: Path, overrides: Collection[str] = ()) -> Table:
    """Read a file or a folder.

    Args:
        path: a log; or a folder that holds exactly one: a report of `rlguard run` (history.jsonl), a guard's
            state directory, an output folder of TRL (trainer_state.json, also in its newest checkpoint),
            TensorBoard event files.
        overrides: columns to keep besides those that `names` knows.

    Raises:
        CliError: there is nothing to read, or it cannot be read; with the line.
    """
    if not path.exists():
        raise CliError(f"{path}: there is no such file or folder.")
    if path.is_dir():
        return _read_folder(path, overrides)

    def keep(column: str) -> bool:
        return column in overrides or names.wanted(column)

    try:
        return _reader(path)(path, keep)
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror}.") from None


def _read_folder(path: Path, overrides: Collection[str]) -> Table:
    if (store := _read_state_dir(path)) is not None:
        return store
    histories = sorted(path.glob("history.jsonl")) or sorted(path.glob("*/history.jsonl"))
    states = (
        sorted(path.glob("trainer_state.json"))
        or sorted(path.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_number)[-1:]
    )
    events = sorted(path.rglob("events.out.tfevents.*"))
    wandb = sorted(path.rglob("wandb-history.jsonl"))
    if len(histories) == 1:
        return read(histories[0], overrides)
    if not histories and states:
        return read(states[0], overrides)
    if not histories and len(wandb) == 1 and not events:
        return read(wandb[0], overrides)
    folders = {event.parent for event in events}
    if not histories and not wandb and len(folders) == 1:
        return read_tensorboard(events, lambda column: column in overrides or names.wanted(column))
    found = [str(p.relative_to(path)) for p in [*histories, *wandb, *sorted(folders)]]
    if found:
        raise CliError(f"{path} holds several runs: {names.listing(found)}. Name one of them.")
    raise CliError(
        f"{path} holds no run: looked for history.jsonl (a report of rlguard run), a guard's store, "
        "trainer_state.json, wandb-history.jsonl and TensorBoard event files."
    )


def _read_state_dir(path: Path) -> Table | None:
    """The history of a guard's state directory, or None if it is none."""
    from guard_service.errors import StoreError
    from guard_service.store import FILE_NAME, export_history

    if not (path / FILE_NAME).is_file():
        return None
    found: dict[str, None] = {}
    try:
        rows = list(export_history(path))
    except StoreError as error:
        raise CliError(f"{error}.") from None
    chunks = [_chunk_of_rows(rows, range(1, len(rows) + 1), names.wanted, found)] if rows else []
    return build("guard state", chunks, OBJECTS.__contains__, f"{path}: row", found)


def _checkpoint_number(state: Path) -> int:
    digits = state.parent.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _reader(path: Path) -> Callable[[Path, Keep], Table]:
    if ".tfevents." in path.name:
        return lambda p, keep: read_tensorboard([p], keep)
    suffix = path.suffix.lower()
    readers = {".jsonl": read_jsonl, ".ndjson": read_jsonl, ".csv": read_csv, ".json": read_json}
    if suffix == ".wandb":
        raise CliError(
            f"{path}: W&B's own binary log is not read. Export the run's history as CSV (the table's or "
            "chart's download) or JSONL (`run.scan_history()`, one JSON object a line)."
        )
    if suffix not in readers:
        raise CliError(
            f"{path}: cannot tell what this is by its name. Known: trainer_state.json, *.jsonl, *.ndjson, "
            "*.csv, events.out.tfevents.*, and folders that hold one of them."
        )
    return readers[suffix]


# -- JSON lines ----------------------------------------------------------------------------------------


def read_jsonl(path: Path, keep: Keep) -> Table:
    """One JSON object a line; blank lines are passed over.

    Raises:
        CliError: naming the lines that are no JSON object.
    """
    found: dict[str, None] = {}
    return build("JSONL", _json_chunks(path, keep, found), OBJECTS.__contains__, f"{path}: line", found)


def _json_chunks(path: Path, keep: Keep, found: dict[str, None]) -> Iterator[Chunk]:
    from pydantic_core import from_json

    first = 1
    with path.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            numbers: Any = range(first, first + len(lines))
            first += len(lines)
            if any(line.isspace() for line in lines):
                full = [(n, line) for n, line in zip(numbers, lines, strict=True) if not line.isspace()]
                numbers, lines = [n for n, _ in full], [line for _, line in full]
            try:
                rows = [from_json(line) for line in lines]
            except ValueError:
                rows = []
            if len(rows) != len(lines) or not all(type(row) is dict for row in rows):
                raise CliError(_bad_lines(path, numbers, lines))
            yield _chunk_of_rows(rows, numbers, keep, found)


def _chunk_of_rows(rows: list[dict[str, Any]], lines: Any, keep: Keep, found: dict[str, None]) -> Chunk:
    columns = set().union(*rows)
    found.update(dict.fromkeys(sorted(columns)))
    return Chunk(lines, {name: [row.get(name) for row in rows] for name in columns if keep(name)})


def _bad_lines(path: Path, numbers: Any, lines: list[bytes]) -> str:
    bad = [(n, line, why) for n, line in zip(numbers, lines, strict=True) if (why := _why_bad(line))]
    shown = "; ".join(f"line {n}: {why}: {_excerpt(line)}" for n, line, why in bad[:MOST_SHOWN])
    more = f"; and {len(bad) - MOST_SHOWN} more" if len(bad) > MOST_SHOWN else ""
    return f"{path}: {shown}{more}. Nothing was judged: repair or remove these lines."


def _why_bad(line: bytes) -> str:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError as error:
        cut = "" if line.endswith(b"\n") else ", and it has no line end: cut short while it was written?"
        return f"not JSON ({error}){cut}"
    return "" if isinstance(value, dict) else f"a JSON {type(value).__name__}, not an object"


def _excerpt(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return text if len(text) <= 60 else text[:57] + "..."


# -- CSV -----------------------------------------------------------------------------------------------


def read_csv(path: Path, keep: Keep) -> Table:
    """A header line and one row a line; an empty cell is a missing value.

    Raises:
        CliError: there is no header, a name stands in it twice, or a row has too few or too many cells.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            raise CliError(f"{path}: empty; expected a header line with the names of the columns.")
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise CliError(f"{path}: line 1: {names.listing(twice)} stands twice in the header.")
        chunks = _csv_chunks(path, reader, header, keep)
        return build("CSV", chunks, OBJECTS.__contains__, f"{path}: line", header)


def _csv_chunks(path: Path, reader: Any, header: list[str], keep: Keep) -> Iterator[Chunk]:
    kept = [(i, name) for i, name in enumerate(header) if keep(name)]
    before = reader.line_num
    while rows := _csv_rows(path, reader):
        lines: Any = range(before + 1, reader.line_num + 1)
        if len(lines) != len(rows):  # there are line ends in cells
            lines = list(accumulate((1 + "".join(row).count("\n") for row in rows), initial=before))[1:]
        if {*map(len, rows)} != {len(header)}:
            lines, rows = _full_rows(path, lines, rows, len(header))
        cells = list(zip(*rows, strict=True)) or [()] * len(header)
        columns = {name: [cell or None for cell in cells[i]] for i, name in kept}
        if "items" in columns:
            columns["items"] = [_json_cell(path, n, v) for n, v in zip(lines, columns["items"], strict=True)]
        yield Chunk(lines, columns)
        before = reader.line_num


def _csv_rows(path: Path, reader: Any) -> list[list[str]]:
    try:
        return list(islice(reader, CHUNK_ROWS))
    except csv.Error as error:
        raise CliError(f"{path}: line {reader.line_num}: not CSV: {error}.") from None


def _full_rows(
    path: Path, lines: Iterable[int], rows: list[list[str]], width: int
) -> tuple[list[int], list[list[str]]]:
    """Without blank lines; no other row may have more or fewer cells than the header."""
    full = [(line, row) for line, row in zip(lines, rows, strict=True) if row]
    for line, row in full:
        if len(row) != width:
            raise CliError(
                f"{path}: line {line}: {len(row)} cells, but the header names {width}. "
                "Nothing was judged: repair or remove this line."
            )
    return [line for line, _ in full], [row for _, row in full]


def _json_cell(path: Path, line: int, cell: str | None) -> Any:
    try:
        return None if cell is None else json.loads(cell)
    except ValueError:
        raise CliError(f"{path}: line {line}: `items` is not a JSON list: {cell!r:.60}.") from None


# -- TRL -----------------------------------------------------------------------------------------------


def read_json(path: Path, keep: Keep) -> Table:
    """TRL's trainer_state.json: its `log_history` is a list of rows.

    Raises:
        CliError: it is no JSON, or has no `log_history`.
    """
    from pydantic_core import from_json

    try:
        state = from_json(path.read_bytes())
    except ValueError as error:
        raise CliError(
            f"{path}: not JSON ({error}). A log of one object a line must be named *.jsonl."
        ) from None
    rows = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CliError(f"{path}: a JSON file must be TRL's trainer_state.json with a list `log_history`.")
    found: dict[str, None] = {}
    chunks = [_chunk_of_rows(rows, range(1, len(rows) + 1), keep, found)] if rows else []
    return build("trainer_state.json", chunks, OBJECTS.__contains__, f"{path}: log_history entry", found)


# -- TensorBoard ---------------------------------------------------------------------------------------


def read_tensorboard(paths: list[Path], keep: Keep) -> Table:
    """Event files of one run, in the order in which they were begun; one row a step and file.

    Raises:
        CliError: the `tensorboard` package is missing, or a record is broken.
    """
    found: dict[str, None] = {}
    cut: list[str] = []
    chunks = [_event_chunk(path, keep, found, cut) for path in sorted(paths, key=lambda p: p.name)]
    table = build("TensorBoard", chunks, OBJECTS.__contains__, "step", found)
    note = f"{', '.join(cut)} ends in mid-record: what was written up to there is replayed." if cut else None
    return Table(table.format, table.names, table.numbers, table.objects, table.line, note)


def _event_chunk(path: Path, keep: Keep, found: dict[str, None], cut: list[str]) -> Chunk:
    """The scalars of one file as rows by step. Of a step written twice, the later value counts."""
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        raise CliError(
            "reading TensorBoard event files needs the package `tensorboard`: pip install tensorboard."
        ) from None
    series: dict[str, dict[int, float]] = {}
    dropped: set[str] = set()
    for record in _records(path, cut):
        try:
            event = Event.FromString(record)
        except DecodeError:
            raise CliError(f"{path}: not a TensorBoard event file, or one that is damaged.") from None
        for value in event.summary.value:
            tag = value.tag
            if tag in dropped:
                continue
            if tag not in series:
                found[tag] = None
                if not keep(tag):
                    dropped.add(tag)
                    continue
            number = _scalar(value)
            if number is not None:
                series.setdefault(tag, {})[event.step] = number
    steps = sorted(set().union(*series.values()))
    columns = {tag: [values.get(step) for step in steps] for tag, values in series.items()}
    found["step"] = None
    return Chunk(steps, {**columns, "step": steps})


def _records(path: Path, cut: list[str]) -> Iterator[bytes]:
    """The records of a TFRecord file: length (uint64), its CRC, the bytes, their CRC.

    tensorboard's own loader checks the CRCs in pure Python at ten times the cost of everything else here;
    a broken record is found by its length or by the protobuf parser.
    """
    data = path.read_bytes()
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            break
        yield data[at + 12 : end]
        at = end + 4
    if at != len(data):
        cut.append(path.name)


def _scalar(value: Any) -> float | None:
    """The number in a summary value, in the old or the new encoding, or None if it is no scalar."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or any(d.size != 1 for d in value.tensor.tensor_shape.dim):
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if numbers:
            return float(numbers[0])
    kinds = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64}
    if tensor.tensor_content and tensor.dtype in kinds:
        return float(np.frombuffer(tensor.tensor_content, kinds[tensor.dtype])[0])
    return None
