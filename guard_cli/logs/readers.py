"""Reads the files that runs leave behind into one `Table`: JSONL, CSV, TensorBoard, console and others.

It keeps the columns that `names` knows or `--map` names, whatever their meaning; which is which, `run`
decides. A line that cannot be read stops the replay: half a log would give a verdict on half a run.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from guard_cli.errors import CliError
from guard_cli.logs import mlflow, printed
from guard_cli.logs.keep import Keep
from guard_cli.logs.table import OBJECTS, OUTCOMES, Chunk, Table, build
from guard_core.terminal import plain
from guard_follow import names
from guard_follow.events import LOGS, event_files, preferred, refuse_several
from guard_follow.frameworks import FRAMEWORKS
from guard_follow.records import (
    BOM,
    MAX_LINE,
    SWIFT_STEPS,
    ConsoleLines,
    DamagedError,
    Events,
    Record,
    flatten,
)

#: Of JSON lines and of CSV. What fits into the processor's cache is read up to four times as fast.
CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 1_000

#: How many bad lines an error names.
MOST_SHOWN = 5


def read_log(path: Path, overrides: Collection[str] = ()) -> Table:
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
    try:
        if path.is_dir():
            return _read_folder(path, overrides)
        return _reader(path)(path, Keep(overrides))
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror}.") from None


def _read_folder(path: Path, overrides: Collection[str]) -> Table:
    if (store := _read_state_dir(path)) is not None:
        return store
    logs = [log for name in LOGS if (log := path / name).is_file()]
    if len(logs) == 1:
        return read_log(logs[0], overrides)
    return _read_run(path, overrides, logs)


def _read_run(path: Path, overrides: Collection[str], logs: list[Path]) -> Table:
    """A folder without a log of its own name: whichever one run is in it."""
    histories = sorted(path.glob("history.jsonl")) or sorted(path.glob("*/history.jsonl"))
    states = (
        sorted(path.glob("trainer_state.json"))
        or sorted(path.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_number)[-1:]
    )
    events = event_files(path)
    wandb = sorted(path.rglob("wandb-history.jsonl"))
    if len(histories) == 1:
        return read_log(histories[0], overrides)
    from_events, left_out = preferred(events, states, ended=True)
    if not histories and states and not from_events:
        return _noting(left_out, read_log(states[0], overrides))
    if not histories and len(wandb) == 1 and not events:
        return read_log(wandb[0], overrides)
    folders = {event.parent for event in events}
    if not histories and not wandb and len(folders) == 1:
        refuse_several(events[0].parent)
        return _noting(left_out, read_tensorboard(events, Keep(overrides)))
    found = [str(p.relative_to(path)) for p in [*logs, *histories, *wandb, *sorted(folders)]]
    if found:
        raise CliError(f"{path} holds several runs: {names.listing(found)}. Name one of them.")
    if exports := mlflow.exports_in(path):
        return read_mlflow(exports, Keep(overrides))
    raise CliError(
        f"{path} holds no run: looked for history.jsonl (a report of rlguard run), a guard's store, "
        f"{', '.join(LOGS)}, trainer_state.json, wandb-history.jsonl, TensorBoard event files, "
        "exports of MLflow."
    )


def _noting(left_out: str, table: Table) -> Table:
    """The table, with what of its folder is not in it."""
    note = f"{left_out[:1].upper()}{left_out[1:]}." if left_out else ""
    return replace(table, note=" ".join(filter(None, (note, table.note))) or None)


def _read_state_dir(path: Path) -> Table | None:
    """The history of a guard's state directory, or None if it is none."""
    from guard_service.database import FILE_NAME
    from guard_service.errors import StoreError
    from guard_service.history import export_history

    if not (path / FILE_NAME).is_file():
        return None
    try:
        rows = list(export_history(path))
    except StoreError as error:
        raise CliError(f"{error}.") from None
    return table_of("guard state", rows, f"{path}: row")


def table_of(format_name: str, rows: list[dict[str, Any]], where: str) -> Table:
    """Rows that are read already; see `build`."""
    found: dict[str, None] = {}
    keep = Keep()
    chunks = [_chunk_of_rows(rows, range(1, len(rows) + 1), keep, found)] if rows else []
    return build(format_name, chunks, OBJECTS.__contains__, where, found, keep.is_figure)


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
    return readers.get(suffix, read_console)


# -- JSON lines ----------------------------------------------------------------------------------------


def read_jsonl(path: Path, keep: Keep) -> Table:
    """One JSON object a line; blank lines are passed over.

    Raises:
        CliError: naming the lines that are no JSON object.
    """
    found: dict[str, None] = {}
    return build(
        "JSONL", _json_chunks(path, keep, found), OBJECTS.__contains__, f"{path}: line", found, keep.is_figure
    )


def _json_chunks(path: Path, keep: Keep, found: dict[str, None]) -> Iterator[Chunk]:
    from pydantic_core import from_json

    first = 1
    with path.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            if first == 1:  # NULs: of a file that was cut under its writer
                lines[0] = lines[0].lstrip(b"\0").removeprefix(BOM)
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
                said = [(n, line, _why_bad(line)) for n, line in zip(numbers, lines, strict=True)]
                raise _bad_lines(path, [(n, line, why) for n, line, why in said if why])
            wrapped = any(type(value) is dict for row in rows for value in row.values())
            wrapped = wrapped or any(name in row for row in rows for name in SWIFT_STEPS)
            rows = [flatten(row) for row in rows] if wrapped else rows
            yield _chunk_of_rows(rows, numbers, keep, found)


def _chunk_of_rows(rows: list[dict[str, Any]], lines: Any, keep: Keep, found: dict[str, None]) -> Chunk:
    columns = set().union(*rows)
    found.update(dict.fromkeys(sorted(columns)))
    return Chunk(lines, {name: [row.get(name) for row in rows] for name in columns if keep(name)})


def _bad_lines(path: Path, bad: Sequence[tuple[int, bytes, str]]) -> CliError:
    """Of lines that cannot be read: the number of each, what stands there, and what is wrong with it."""
    shown = "; ".join(f"line {n}: {why}: {_excerpt(line)}" for n, line, why in bad[:MOST_SHOWN])
    more = f"; and {len(bad) - MOST_SHOWN} more" if len(bad) > MOST_SHOWN else ""
    return CliError(f"{path}: {shown}{more}. Nothing was judged: repair or remove these lines.")


def _why_bad(line: bytes) -> str:
    from pydantic_core import from_json

    try:
        value = json.loads(line)
        from_json(line)  # which also refuses half of a surrogate pair, and reads less deep
    except UnicodeDecodeError:
        return "not UTF-8"
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not JSON ({error}){_cut_short(line)}"
    return "" if isinstance(value, dict) else f"a JSON {type(value).__name__}, not an object"


def _cut_short(line: bytes) -> str:
    return "" if line.endswith(b"\n") else ", and it has no line end: cut short while it was written?"


def _excerpt(line: bytes) -> str:
    """The beginning of a line, which may be of any length."""
    text = line[:1_000].decode("utf-8", errors="replace").strip()
    return plain(text if len(text) <= 60 else text[:57] + "...")


# -- CSV -----------------------------------------------------------------------------------------------


def read_csv(path: Path, keep: Keep) -> Table:
    """A header line and one row a line; an empty cell is a missing value.

    Raises:
        CliError: there is no header, a name stands in it twice, or a row has too few or too many cells.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(iter(_csv_rows(path, reader, 1)), [])]
        if not any(header):
            raise CliError(f"{path}: empty; expected a header line with the names of the columns.")
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise CliError(f"{path}: line 1: {names.listing(twice)} occurs twice in the header.")
        if mlflow.is_chart(header):
            return read_mlflow([path], keep)
        chunks = _csv_chunks(path, reader, header, keep)
        return build("CSV", chunks, OBJECTS.__contains__, f"{path}: line", header, keep.is_figure)


def _csv_chunks(path: Path, reader: Any, header: list[str], keep: Keep) -> Iterator[Chunk]:
    kept = [(i, name) for i, name in enumerate(header) if keep(name)]
    before = reader.line_num
    while rows := _csv_rows(path, reader):
        lines: Any = range(before + 1, reader.line_num + 1)
        if len(lines) != len(rows):  # there are line ends in cells
            lines = list(accumulate((1 + "".join(row).count("\n") for row in rows), initial=before))[1:]
        if {*map(len, rows)} != {len(header)} or header in rows:
            lines, rows = _full_rows(path, lines, rows, header)
        cells = list(zip(*rows, strict=True)) or [()] * len(header)
        columns = {name: [cell or None for cell in cells[i]] for i, name in kept}
        for name in {*OUTCOMES} & columns.keys():
            columns[name] = [_json_cell(path, n, name, v) for n, v in zip(lines, columns[name], strict=True)]
        yield Chunk(lines, columns)
        before = reader.line_num


def _csv_rows(path: Path, reader: Any, most: int = CHUNK_ROWS) -> list[list[str]]:
    try:
        return list(islice(reader, most))
    except csv.Error as error:
        raise CliError(f"{path}: line {reader.line_num}: not CSV: {error}.") from None


def _full_rows(
    path: Path, lines: Iterable[int], rows: list[list[str]], header: list[str]
) -> tuple[list[int], list[list[str]]]:
    """Without blank lines and the header of a restarted writer; no other row may be longer or shorter."""
    full = [(line, row) for line, row in zip(lines, rows, strict=True) if row and row != header]
    for line, row in full:
        if len(row) != len(header):
            raise CliError(
                f"{path}: line {line}: {len(row)} cells, but the header names {len(header)}. "
                "Nothing was judged: repair or remove this line."
            )
    return [line for line, _ in full], [row for _, row in full]


def _json_cell(path: Path, line: int, name: str, cell: str | None) -> Any:
    try:
        return None if cell is None else json.loads(cell)
    except (ValueError, RecursionError):
        raise CliError(f"{path}: line {line}: `{name}` is not a JSON list: {cell!r:.60}.") from None


# -- JSON ----------------------------------------------------------------------------------------------


def read_json(path: Path, keep: Keep) -> Table:
    """Rows in one JSON document: a list of them, alone or under any name; columns of equal length; MLflow's.

    Raises:
        CliError: it is none of them.
    """
    from pydantic_core import from_json

    try:
        state = from_json(path.read_bytes())
    except ValueError:
        return read_jsonl(path, keep)
    if mlflow.is_history(state):
        return read_mlflow([path], keep)
    rows = _rows_of(state)
    if rows is None:
        raise CliError(
            f"{path}: no log is in it. Of JSON are read: a list of objects, alone or under a name (TRL's "
            '`log_history`), and an object of lists of one length, such as {"step": [1, 2], "reward": '
            "[0.4, 0.5]}."
        )
    found: dict[str, None] = {}
    rows = [flatten(row) for row in rows]
    chunks = [_chunk_of_rows(rows, range(1, len(rows) + 1), keep, found)] if rows else []
    is_trl = isinstance(state, dict) and "log_history" in state
    kind, where = ("trainer_state.json", "log_history entry") if is_trl else ("JSON", "entry")
    return build(kind, chunks, OBJECTS.__contains__, f"{path}: {where}", found, keep.is_figure)


def _is_column(cells: Any) -> bool:
    return isinstance(cells, list) and not any(isinstance(cell, dict) for cell in cells)


def _rows_of(document: Any) -> list[dict[str, Any]] | None:
    """The rows of a JSON document; None if none are known in it."""
    if isinstance(document, dict) and "log_history" in document:
        document = document["log_history"]
    if isinstance(document, list):
        return document if document and all(isinstance(row, dict) for row in document) else None
    if not isinstance(document, dict):
        return None
    columns = {  # pandas writes a column as an object with the numbers of its rows
        name: list(cells.values()) if isinstance(cells, dict) else cells for name, cells in document.items()
    }
    lists = {name: cells for name, cells in columns.items() if _is_column(cells)}
    if len(lists) == len(columns) and len({len(cells) for cells in lists.values()}) == 1:
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    inside = [rows for value in document.values() if (rows := _rows_of(value)) is not None]
    return inside[0] if len(inside) == 1 else None


# -- MLflow --------------------------------------------------------------------------------------------


def read_mlflow(paths: Sequence[Path], keep: Keep) -> Table:
    """Exports of one run in MLflow, of any number of metrics.

    Raises:
        CliError: see `mlflow.read_exports`.
    """
    rows = mlflow.read_exports(paths)
    found = dict.fromkeys(name for row in rows for name in row)
    kept = [{name: value for name, value in row.items() if name == "step" or keep(name)} for row in rows]
    return build("MLflow", [_rows_of_events(kept, keep)], OBJECTS.__contains__, "step", found)


# -- TensorBoard ---------------------------------------------------------------------------------------


def read_tensorboard(paths: Sequence[Path], keep: Keep) -> Table:
    """Event files of one run, in the order of the times in their names.

    Raises:
        CliError: a file is no event file, or damaged, or a record of it cannot be read.
    """
    found: dict[str, None] = {}
    notes: list[str] = []
    chunks = [_event_chunk(path, keep, found, notes) for path in sorted(paths)]
    table = build("TensorBoard", chunks, OBJECTS.__contains__, "step", found)
    return replace(table, note=" ".join(notes) or None)


def _event_chunk(path: Path, keep: Keep, found: dict[str, None], notes: list[str]) -> Chunk:
    """The scalars of one file as rows; those of one step that stand together are one, as a follower has it.

    Of a tag that is there twice the first value counts.
    """
    events = Events()
    rows: list[dict[str, float]] = []
    try:
        records = events.feed(path.read_bytes())
    except DamagedError as error:
        raise CliError(f"{path}: {error}.") from None
    if events.too_long:
        notes.append(
            f"{events.too_long} records of {path.name} have more than {MAX_LINE >> 20} MiB: not read."
        )
    if unread := events.bad - events.too_long:
        raise CliError(
            f"{path}: {unread} records in it cannot be read. Nothing was judged: the file is damaged; "
            "replay another log of this run, such as a CSV export."
        )
    for record in records:
        if not rows or rows[-1]["step"] != record["step"]:
            rows.append({"step": record["step"]})
        for tag in record.keys() - {"step"}:
            found[tag] = None
            if keep(tag):
                rows[-1].setdefault(tag, record[tag])
    if events.in_mid_record:
        notes.append(f"{path.name} ends in mid-record: what was written up to there is replayed.")
    found["step"] = None
    return _rows_of_events(rows, keep)


def _rows_of_events(rows: Sequence[Mapping[str, float]], keep: Keep) -> Chunk:
    """Rows as a chunk; a step at which there are only further figures is none."""
    judged = [row["step"] for row in rows if any(n != "step" and not keep.is_figure(n) for n in row)]
    steps = {*judged}
    rows = [row for row in rows if len(row) > 1 and row["step"] in steps]
    names = {"step", *(name for row in rows for name in row)}
    lines = [int(row["step"]) for row in rows]
    return Chunk(lines, {name: [row.get(name) for row in rows] for name in names})


# -- what a trainer prints -----------------------------------------------------------------------------


def read_console(path: Path, keep: Keep) -> Table:
    """The lines of a trainer's output that hold its metrics: those of verl and ROLL, and JSON objects.

    Where none of them has a reward, the dictionaries of Hugging Face's trainer.

    Raises:
        CliError: there is none; or naming those that hold metrics and cannot be read.
    """
    numbers, rows = _console_rows(path)
    note = None
    if not any(map(names.is_reward, {name for row in rows for name in row})):
        numbers, rows, note = _printed_rows(path) or (numbers, rows, None)
    if not rows:
        raise CliError(f"{path}: no line in it has metrics. {_what_to_give(path)}")
    found: dict[str, None] = {}
    chunk = _chunk_of_rows([dict(row) for row in rows], numbers, keep, found)
    table = build("console", [chunk], OBJECTS.__contains__, f"{path}: line", found, keep.is_figure)
    return replace(table, note=note)


def _what_to_give(path: Path) -> str:
    """Which file to replay in place of a console without metrics."""
    with path.open("rb") as file:
        text = file.read(CHUNK_BYTES).decode("utf-8", "replace").lower()
    for framework in FRAMEWORKS:
        names = {framework.key, framework.key.replace("-", "_")}
        if framework.reads and any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
            return f"It looks like output of {framework.name}: replay what that writes, {framework.reads}."
    read = ", ".join(framework.name for framework in FRAMEWORKS if framework.console)
    return (
        f"What {read} and TRL print is read, and lines of JSON. Else replay the file that the trainer "
        "writes: *.jsonl, *.csv, events.out.tfevents.*, trainer_state.json."
    )


def _printed_rows(path: Path) -> tuple[list[int], list[Record], str] | None:
    """What Hugging Face's trainer printed: line numbers, rows with a step each, and a note; None if nothing.

    Raises:
        CliError: naming the lines with a dictionary that has no end.
    """
    numbers: list[int] = []
    rows: list[Record] = []
    bad: list[tuple[int, bytes, str]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                records = printed.records(line)
            except ValueError:
                bad.append((number, line, f"what its trainer logged has no end{_cut_short(line)}"))
                continue
            numbers += [number] * len(records)
            rows += [{"step": len(rows) + n, **record} for n, record in enumerate(records, start=1)]
    if bad:
        raise _bad_lines(path, bad)
    note = (
        f"Hugging Face's trainer prints no step: what it logged is counted from 1 to {len(rows)}, and where "
        "it was started again cannot be seen. Its trainer_state.json and its event files say both: replay "
        "them where you have them."
    )
    return (numbers, rows, note) if rows else None


def _console_rows(path: Path) -> tuple[list[int], list[Record]]:
    """The lines that hold metrics, with their numbers.

    Raises:
        CliError: naming those that cannot be read.
    """
    numbers: list[int] = []
    rows: list[Record] = []
    bad: list[tuple[int, bytes, str]] = []
    lines = ConsoleLines()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            before = lines.bad
            records = lines.feed(line) if line.endswith(b"\n") else [*lines.feed(line), *lines.rest()]
            if lines.bad > before:
                bad.append((number, line, _why_no_metrics(line)))
            numbers += [number] * len(records)
            rows += records
    if bad:
        raise _bad_lines(path, bad)
    return numbers, rows


def _why_no_metrics(line: bytes) -> str:
    """Why a line that should hold metrics cannot be read."""
    if len(line) > MAX_LINE:
        return f"longer than {MAX_LINE >> 20} MiB"
    if b"metrics_tag:" not in line or line.count(b"metrics_tag:") > 1:
        return "it has the metrics of two lines: the first was cut short while it was written?"
    return f"what follows `metrics_tag:` is not JSON{_cut_short(line)}"
