"""Reads the files that runs leave behind into one `Table`, with what a follower reads them with.

A line that cannot be read stops the replay: half a log would give a verdict on half a run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlguard.cli.errors import CliError
from rlguard.cli.logs import mlflow
from rlguard.cli.logs.table import Table, TableBuilder
from rlguard.core.terminal import plain
from rlguard.follow.columns import is_reward, listing
from rlguard.follow.consoles import ConsoleLines, CountedLines
from rlguard.follow.decoders import MAX_LINE, CsvLines, DamagedError, JsonLines, Lines, Record, flatten
from rlguard.follow.event_files import LOGS, event_files, preferred
from rlguard.follow.frameworks import FRAMEWORKS
from rlguard.follow.sources import decoder_of
from rlguard.follow.tensorboard import Events

#: How many bad lines an error names.
MOST_SHOWN = 5
#: Of a console without metrics, that is looked through for the name of a framework.
LOOKED_THROUGH = 1 << 20
FORMATS = {JsonLines: "JSONL", CsvLines: "CSV", ConsoleLines: "console", CountedLines: "console"}


def read_log(path: Path, overrides: Collection[str] = ()) -> Table:
    """Read a file or a folder.

    Args:
        path: a log; or a folder that holds exactly one: a report of `rlguard run` (history.jsonl), a guard's
            state directory, an output folder of TRL (trainer_state.json, also in its newest checkpoint),
            TensorBoard event files.
        overrides: columns to keep besides those that are known.

    Raises:
        CliError: there is nothing to read, or it cannot be read; with the line.
    """
    if not path.exists():
        raise CliError(f"{path}: there is no such file or folder.")
    try:
        return _read_folder(path, overrides) if path.is_dir() else _read_file(path, overrides)
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror}.") from None


def _read_folder(path: Path, overrides: Collection[str]) -> Table:
    """The one run that is in a folder: the first kind of log that is there counts."""
    if (stored := _read_state_dir(path)) is not None:
        return stored
    states = (
        sorted(path.glob("trainer_state.json"))
        or sorted(path.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_number)[-1:]
    )
    events = event_files(path)
    from_events, left_out = preferred(events, states, ended=True)
    note = f"{left_out[:1].upper()}{left_out[1:]}." if left_out else ""
    kinds = (
        [log for name in LOGS if (log := path / name).is_file()],
        sorted(path.glob("history.jsonl")) or sorted(path.glob("*/history.jsonl")),
        sorted({event.parent for event in events}) if from_events else states,
        sorted(path.rglob("wandb-history.jsonl")),
    )
    found = next(filter(None, kinds), [])
    if len(found) > 1:
        several = listing([str(one.relative_to(path)) for one in found])
        raise CliError(f"{path} holds several runs: {several}. Name one of them.")
    if found and found[0].is_dir():
        return _noting(note, _read_events(events, overrides))
    if found:
        return _noting(note if found == states else "", _read_file(found[0], overrides))
    if exports := [file for file in sorted(path.iterdir()) if file.is_file() and mlflow.is_export(file)]:
        return _read_mlflow(exports, overrides)
    raise CliError(
        f"{path} holds no run: looked for history.jsonl (a report of rlguard run), a guard's store, "
        f"{', '.join(LOGS)}, trainer_state.json, wandb-history.jsonl, TensorBoard event files, "
        "exports of MLflow."
    )


def _noting(note: str, table: Table) -> Table:
    """The table, with what of its folder is not in it."""
    return replace(table, note=" ".join(filter(None, (note, table.note))))


def _read_state_dir(path: Path) -> Table | None:
    """The history of a guard's state directory, or None if it is none."""
    from guard_service.database import FILE_NAME
    from guard_service.errors import StoreError
    from guard_service.history import export_history

    if not (path / FILE_NAME).is_file():
        return None
    try:
        return _table("guard state", f"{path}: row", export_history(path), ())
    except StoreError as error:
        raise CliError(f"{error}.") from None


def _checkpoint_number(state: Path) -> int:
    digits = state.parent.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _read_file(path: Path, overrides: Collection[str]) -> Table:
    suffix, decoder = path.suffix.lower(), decoder_of(path)
    if suffix == ".wandb":
        raise CliError(
            f"{path}: W&B's own binary log is not read. Export the run's history as CSV (the table's or "
            "chart's download) or JSONL (`run.scan_history()`, one JSON object a line)."
        )
    if decoder is Events:
        return _read_events([path], overrides)
    if suffix == ".json":
        return _read_json(path, overrides)
    if decoder is CsvLines and mlflow.is_export(path):
        return _read_mlflow([path], overrides)
    if decoder is CsvLines or decoder is JsonLines:
        return _read_lines(path, decoder(), overrides)
    return _read_console(path, overrides)


def _table(format_name: str, where: str, rows: Iterable[Record], overrides: Collection[str]) -> Table:
    """The table of rows that are numbered from 1 on."""
    builder = TableBuilder(format_name, where, overrides)
    for line, row in enumerate(rows, start=1):
        builder.add(line, row)
    return builder.table()


# -- lines ---------------------------------------------------------------------------------------------


def _read_lines(path: Path, decoder: Lines, overrides: Collection[str]) -> Table:
    """What a decoder of lines makes of a file.

    Raises:
        CliError: naming the lines that cannot be read.
    """
    builder = TableBuilder(FORMATS[type(decoder)], f"{path}: line", overrides)
    shown: list[str] = []
    number, line, bad = 0, b"", 0

    def note_bad_line() -> None:
        nonlocal bad
        if decoder.bad > bad and len(shown) < MOST_SHOWN:
            shown.append(_about_line(number, line, decoder.why))
        bad = decoder.bad

    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):  # `note_bad_line` reads both
            records = decoder.feed(line) if line.endswith(b"\n") else [*decoder.feed(line), *decoder.rest()]
            note_bad_line()
            for record in records:
                builder.add(number, record)
    decoder.rest()
    note_bad_line()
    if shown:
        more = f"; and {bad - MOST_SHOWN} more" if bad > MOST_SHOWN else ""
        raise CliError(f"{path}: {'; '.join(shown)}{more}. Nothing was judged: repair or remove these lines.")
    return builder.table()


def _about_line(number: int, line: bytes, why: str) -> str:
    """Of a line that cannot be read: its number, what is wrong with it, and how it begins."""
    ends = line.endswith(b"\n") or len(line) > MAX_LINE
    cut = "" if ends else ", and it has no line end: cut short while it was written?"
    text = line[:1_000].decode("utf-8", errors="replace").strip()
    return f"line {number}: {why}{cut}: {plain(text if len(text) <= 60 else text[:57] + '...')}"


def _read_console(path: Path, overrides: Collection[str]) -> Table:
    """The lines of a trainer's output that hold its metrics; without a reward, its dictionaries, counted.

    Raises:
        CliError: there is none; or naming those that hold metrics and cannot be read.
    """
    table = _read_lines(path, ConsoleLines(), overrides)
    if any(map(is_reward, table.names)):
        return table
    printed = _read_lines(path, decoder := CountedLines(), overrides)
    if printed.rows:
        note = (
            f"Hugging Face's trainer prints no step: what it logged is counted from 1 to {decoder.steps}, "
            "and where it was started again cannot be seen. Its trainer_state.json and its event files say "
            "both: replay them where you have them."
        )
        return replace(printed, note=note)
    if not table.rows:
        raise CliError(f"{path}: no line in it has metrics. {_what_to_give(path)}")
    return table


def _what_to_give(path: Path) -> str:
    """Which file to replay in place of a console without metrics."""
    with path.open("rb") as file:
        text = file.read(LOOKED_THROUGH).decode("utf-8", "replace").lower()
    for framework in FRAMEWORKS:
        called = {framework.key, framework.key.replace("-", "_")}
        if framework.reads and any(re.search(rf"\b{re.escape(name)}\b", text) for name in called):
            return f"It looks like output of {framework.name}: replay what that writes, {framework.reads}."
    read = ", ".join(framework.name for framework in FRAMEWORKS if framework.console)
    return (
        f"What {read} print is read, and lines of JSON. Else replay the file that the trainer writes: "
        "*.jsonl, *.csv, events.out.tfevents.*, trainer_state.json."
    )


# -- JSON ----------------------------------------------------------------------------------------------


def _read_json(path: Path, overrides: Collection[str]) -> Table:
    """Rows in one JSON document: a list of them, alone or under any name; columns of equal length; MLflow's.

    Raises:
        CliError: it is none of them.
    """
    try:
        document = from_json(path.read_bytes())
    except ValueError:
        return _read_lines(path, JsonLines(), overrides)
    if mlflow.is_history(document):
        return _read_mlflow([path], overrides)
    rows = _rows_of(document)
    if rows is None:
        raise CliError(
            f"{path}: no log is in it. Of JSON are read: a list of objects, alone or under a name (TRL's "
            '`log_history`), and an object of lists of one length, such as {"step": [1, 2], "reward": '
            "[0.4, 0.5]}."
        )
    is_trl = isinstance(document, dict) and "log_history" in document
    kind, where = ("trainer_state.json", "log_history entry") if is_trl else ("JSON", "entry")
    return _table(kind, f"{path}: {where}", map(flatten, rows), overrides)


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
    are_columns = all(map(_is_column, columns.values()))
    if are_columns and len({len(cells) for cells in columns.values()}) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    inside = [rows for value in document.values() if (rows := _rows_of(value)) is not None]
    return inside[0] if len(inside) == 1 else None


def _is_column(cells: Any) -> bool:
    return isinstance(cells, list) and not any(isinstance(cell, dict) for cell in cells)


# -- one value at a time -------------------------------------------------------------------------------


def _read_mlflow(paths: Sequence[Path], overrides: Collection[str]) -> Table:
    """Exports of one run in MLflow, of any number of metrics."""
    builder = TableBuilder("MLflow", "step", overrides)
    _add_measured(builder, mlflow.read_exports(paths))
    return builder.table()


def _read_events(paths: Sequence[Path], overrides: Collection[str]) -> Table:
    """Event files of one run, in the order of the times in their names.

    Raises:
        CliError: a file is no event file, or damaged, or a record of it cannot be read.
    """
    builder = TableBuilder("TensorBoard", "step", overrides)
    notes: list[str] = []
    for path in sorted(paths):
        builder.begin_file()
        _add_measured(builder, _rows_of_events(path, notes))
    return builder.table(" ".join(notes))


def _rows_of_events(path: Path, notes: list[str]) -> list[Record]:
    """The scalars of one file; those of one step that stand together are a row, as a follower has it.

    Of a tag that is there twice the first value counts.
    """
    events = Events()
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
    if events.in_mid_record:
        notes.append(f"{path.name} ends in mid-record: what was written up to there is replayed.")
    together = groupby(records, key=lambda record: record["step"])
    return [{name: v for one in [*rows][::-1] for name, v in one.items()} for _, rows in together]


def _add_measured(builder: TableBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the rows of steps of which one is judged: those with figures alone, or nothing, are none."""
    judged = {row["step"] for row in rows if any(n != "step" and builder.kind_of(n) == "judged" for n in row)}
    for row in rows:
        if row["step"] in judged and any(n != "step" and builder.kind_of(n) for n in row):
            builder.add(int(row["step"]), row)
