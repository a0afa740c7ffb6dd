"""Runs of MLflow: the folder of its file store, the CSV of its charts, the JSON of `metrics/get-history`."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from guard_cli.errors import CliError
from guard_cli.logs.keep import Keep
from guard_cli.logs.table import OBJECTS, Chunk, Table, begins_of, build
from guard_core.frameworks import STEP_NAMES, bare
from guard_core.terminal import plain
from guard_follow.beneath import entries
from guard_follow.names import listing

T = TypeVar("T")
#: A line of a metric: its time, step and value.
Value = tuple[float, int, float]
#: Of a step or a time, which fit into an integer of 64 bits.
LARGEST = 2**53
#: Columns of the CSV that MLflow's page makes of a chart, beside the run's name (`Run`).
RUN_ID, METRIC = "Run ID", "metric"
CHART = (RUN_ID, METRIC, "step", "timestamp", "value")
#: A chart shows so many points of a run; of a longer history MLflow takes a sample, and exports that.
POINTS = 320
#: What a spreadsheet would run begins with these, and MLflow puts an apostrophe before it: '-0.5.
_FORMULA = ("'=", "'+", "'-", "'@")
_SPACE = re.compile(r"\s*")
#: How a bad line is told.
_UNUSABLE = "Nothing was judged: repair or remove it, or export again."
_WHOLE_HISTORY = (
    "Export the history of each metric: the CSV of its chart, or the JSON of MLflow's "
    "`metrics/get-history`, all in one folder."
)


# -- the file store ------------------------------------------------------------------------------------


def read_file_store(folder: Path, keep: Keep) -> Table:
    """A run's folder of MLflow's file store: a file for each metric, with `time value step` a line.

    Raises:
        CliError: a line is none.
    """
    series: dict[str, list[Value]] = {}
    found: dict[str, None] = {"step": None}
    for file in sorted((folder / "metrics").rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        name = file.relative_to(folder / "metrics").as_posix()
        found[name] = None
        if keep(name):
            with suppress(*((CliError, OSError, UnicodeDecodeError) if keep.is_figure(name) else ())):
                series[name] = list(_stored_lines(file))
    return _table(series, found, keep)


def _stored_lines(file: Path) -> Iterator[Value]:
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        try:
            time, value, step = line.split()
            yield float(time), _whole(step), float(value)
        except ValueError:
            raise CliError(f"{file}: line {number}: not `time value step`: {line!r:.60}.") from None


# -- its exports ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """One value of an export, as it stands there.

    Fields:
        where: for people, such as "line 4".
        run: ID of the run; "" where it is not said.
        label: name of the run, for people.
        metric, time, step, value: as they stand there, of any type.
    """

    where: str
    run: str
    label: str
    metric: Any
    time: Any
    step: Any
    value: Any


def is_chart(header: Collection[str]) -> bool:
    """Whether this is the header of the CSV that MLflow makes of a chart."""
    return RUN_ID in header and METRIC in header


def is_history(document: Any) -> bool:
    """Whether a JSON document is what `metrics/get-history` answers, or a list of such entries or answers."""
    if isinstance(document, list):
        return bool(document) and all(_is_entry(part) or _is_page(part) for part in document)
    return _is_page(document)


def _is_page(part: Any) -> bool:
    metrics = part.get("metrics") if isinstance(part, dict) else None
    return isinstance(metrics, list) and all(map(_is_entry, metrics))


def _is_entry(part: Any) -> bool:
    return isinstance(part, dict) and {"key", "value"} <= part.keys()


def refuse_last_values(path: Path, found: Any) -> None:
    """Refuse what MLflow has of a run without its history.

    Args:
        path: for the message.
        found: the header of a CSV, or a JSON document.

    Raises:
        CliError: it is a table of runs, or a run as `mlflow.get_run` or `runs/get` gives it.
    """
    if isinstance(found, dict):
        run = found.get("run", found)
        last = isinstance(run, dict) and {"info", "data"} <= run.keys()
    else:
        has_step = any(bare(str(column)) in STEP_NAMES for column in found)
        of_search_runs = "run_id" in found and any(str(column).startswith("metrics.") for column in found)
        last = not has_step and (RUN_ID in found or of_search_runs)
    if last:
        raise CliError(f"{path}: of MLflow's metrics it holds only the last values. {_WHOLE_HISTORY}")


def json_documents(data: bytes) -> list[Any]:
    """The JSON documents of a file: one, or pages one after the other.

    Raises:
        ValueError: it is no JSON.
    """
    from pydantic_core import from_json

    try:
        return [from_json(data)]
    except ValueError as error:
        with suppress(ValueError, RecursionError):
            return [from_json(page) for page in _one_after_the_other(data.decode())]
        raise error


def _one_after_the_other(data: str) -> Iterator[str]:
    decode, at = json.JSONDecoder().raw_decode, 0
    while (begin := _SPACE.match(data, at).end()) < len(data):  # type: ignore[union-attr]
        _, at = decode(data, begin)
        yield data[begin:at]


def exports_in(folder: Path) -> list[Path]:
    """The exports of MLflow directly in a folder; other files of their kind are none of it.

    Raises:
        CliError: there are exports, and beside them a JSON file that cannot be read: perhaps one of them.
    """
    found, broken = [], []
    for path in sorted(folder / entry.name for entry in entries(folder)):
        if path.suffix.lower() not in (".csv", ".json") or not path.is_file() or path.is_symlink():
            continue
        try:
            if path.suffix.lower() == ".csv":
                is_export = is_chart(_header(path))
            else:
                is_export = any(map(is_history, json_documents(path.read_bytes())))
        except (OSError, ValueError, csv.Error):
            broken.append(path)
            continue
        found += [path] if is_export else []
    if found and broken:
        raise CliError(
            f"{broken[0]}: cannot be read, and stands beside exports of MLflow: one that was cut short? "
            "Nothing was judged: repair or remove it."
        )
    return found


def read_exports(paths: Sequence[Path], keep: Keep) -> Table:
    """Exports of one run: CSV of charts and JSON of `metrics/get-history`, of any number of metrics.

    Raises:
        CliError: they are of several runs, pages are missing, or a value cannot be read.
    """
    place = str(paths[0]) if len(paths) == 1 else str(paths[0].parent)
    runs: dict[str, str] = {}
    found: dict[str, None] = {"step": None}
    series: dict[str, list[Value]] = {}
    counts: dict[tuple[Path, str], int] = {}
    for path, entry in _entries(paths):
        if entry.run:
            runs.setdefault(entry.run, entry.label)
        if not isinstance(entry.metric, str):
            raise _unusable(path, entry.where, "the metric's name", entry.metric, "a word")
        found[entry.metric] = None
        if keep(entry.metric):
            with suppress(*((CliError,) if keep.is_figure(entry.metric) else ())):
                series.setdefault(entry.metric, []).append(_logged(path, entry))
            if path.suffix.lower() == ".csv":
                counts[path, entry.metric] = counts.get((path, entry.metric), 0) + 1
    if len(runs) > 1:
        several = listing([f"{label} {run}".strip() for run, label in runs.items()])
        raise CliError(
            f"{place} holds several runs: {several}. Export one of them from its own page in MLflow, or keep "
            "what has its run ID."
        )
    # MLflow does not say in which order it gives the values. What stands in two pages is one value.
    ordered = {
        name: sorted(dict.fromkeys(lines), key=lambda line: line[:2]) for name, lines in series.items()
    }
    table = _table(ordered, found, keep)
    notes = [table.note, *(_sampled(name) for (_, name), count in counts.items() if count == POINTS)]
    return replace(table, note=" ".join(filter(None, notes)) or None)


def _sampled(name: str) -> str:
    return (
        f"`{plain(name, 100)}` has {POINTS} values, as many as a chart of MLflow shows: of a longer run they "
        "are a sample. `metrics/get-history` gives all."
    )


def _entries(paths: Sequence[Path]) -> Iterator[tuple[Path, _Entry]]:
    goes_on: dict[str, bool] = {}
    for path in paths:
        if path.suffix.lower() == ".csv":
            yield from ((path, entry) for entry in _chart_entries(path))
            continue
        for page in _pages(path):
            values = list(_page_entries(page))
            for name in {str(entry.metric) for entry in values}:
                goes_on[name] = goes_on.get(name, True) and bool(page.get("next_page_token"))
            yield from ((path, entry) for entry in values)
    if unfinished := [name for name, more in goes_on.items() if more]:
        raise CliError(
            f"{paths[-1]}: of {listing(unfinished)} the last page is missing: each that is there has a "
            "`next_page_token`. Nothing was judged: ask for the next one by it, and put that beside."
        )


# -- the CSV of a chart


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [name.strip() for name in next(csv.reader(file), [])]


def _chart_entries(path: Path) -> Iterator[_Entry]:
    """The rows of a chart's CSV.

    Raises:
        CliError: a column is missing, a row is none, or several runs were drawn as one line.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if lacking := [name for name in CHART if name not in header]:
            raise CliError(
                f"{path}: the CSV of an MLflow chart without {listing(lacking)}. It must have "
                f"{', '.join(CHART)}: export it again from a line chart."
            )
        if "Group" in header:
            raise CliError(
                f"{path}: its lines are means of groups of runs, and no run's own: switch off grouping in "
                "MLflow, and export the chart of one run."
            )
        places = [header.index(name) for name in CHART]
        label = header.index("Run") if "Run" in header else places[0]
        while (row := _next_row(path, reader, header)) is not None:
            where = f"line {reader.line_num}"
            if len(row) != len(header):
                raise CliError(
                    f"{path}: {where}: {len(row)} cells, but the header names {len(header)}. {_UNUSABLE}"
                )
            cells = [_as_logged(cell) for cell in row]
            run, metric, step, time, value = (cells[place] for place in places)
            yield _Entry(where, run or cells[label], cells[label], metric, time, step, value)


def _next_row(path: Path, reader: Any, header: list[str]) -> list[str] | None:
    """The next row that is neither blank nor the header of a file that was joined on."""
    try:
        return next((row for row in reader if row and row != header), None)
    except csv.Error as error:
        raise CliError(f"{path}: line {reader.line_num}: not CSV: {error}.") from None


def _as_logged(cell: str) -> str:
    return cell[1:] if cell.startswith(_FORMULA) else cell


# -- the JSON of metrics/get-history


def _pages(path: Path) -> Iterator[Mapping[str, Any]]:
    """The answers of a file."""
    for document in json_documents(path.read_bytes()):
        parts = document if isinstance(document, list) else [document]
        if parts and all(map(_is_entry, parts)):
            yield {"metrics": parts}
            continue
        if other := [part for part in parts if part and not _is_page(part)]:
            raise CliError(
                f"{path}: beside values of metrics it holds {other[0]!r:.60}: an answer of MLflow that says "
                f"an error? {_UNUSABLE}"
            )
        yield from filter(None, parts)


def _page_entries(page: Mapping[str, Any]) -> Iterator[_Entry]:
    for number, part in enumerate(page["metrics"], start=1):
        run = part.get("run_id") or ""
        yield _Entry(
            f"entry {number} of `metrics`",
            *(str(run), "", part["key"], part.get("timestamp"), part.get("step"), part["value"]),
        )


# -- values of both


def _logged(path: Path, entry: _Entry) -> Value:
    """A line of a metric.

    Raises:
        CliError: its time, its step or its value is no number.
    """
    time = _read(_finite, path, entry.where, "`timestamp`", entry.time)
    step = _read(_whole, path, entry.where, "`step`", entry.step)
    value = _read(_number, path, entry.where, f"`{plain(entry.metric, 100)}`", entry.value)
    if math.isnan(value):
        return time, step, math.nan  # the same object, so that two such lines are equal
    # MLflow's data bases keep an infinite value as the largest finite one.
    return time, step, math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def _read(read: Callable[[Any], T], path: Path, where: str, what: str, value: Any) -> T:
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError):
        wanted = "a whole number" if read is _whole else "a number"
        raise _unusable(path, where, what, value, wanted) from None


def _unusable(path: Path, where: str, what: str, value: Any, wanted: str) -> CliError:
    is_it = "is missing" if value is None else f"is {value!r:.60}, which is not {wanted}"
    return CliError(f"{path}: {where}: {what} {is_it}. {_UNUSABLE}")


def _number(value: Any) -> float:
    """The value as a number; "NaN" is one, too, as in JSON of protobuf.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _finite(value: Any) -> float:
    """The value as a number.

    Raises:
        ValueError, TypeError, OverflowError: it is none, or infinite.
    """
    if not math.isfinite(number := _number(value)):
        raise ValueError
    return number


def _whole(value: Any) -> int:
    """The value as a whole number; "5" and 5.0 are 5.

    Raises:
        ValueError, TypeError, OverflowError: it is none, or larger than a table can hold.
    """
    number = int(value) if isinstance(value, str) else int(_number(value))
    if abs(number) >= LARGEST or (isinstance(value, float) and number != value):
        raise ValueError
    return number


# -- the starts of the trainer -------------------------------------------------------------------------


def _table(series: Mapping[str, Sequence[Value]], found: Collection[str], keep: Keep) -> Table:
    """The lines of each metric as a table.

    Args:
        series: of the metrics that are kept.
        found: the names of all.
        keep: says which of them only are further figures.
    """
    starts, note = _starts(series, {name for name in series if not keep.is_figure(name)})
    chunks = [_rows_by_step(start, keep) for start in starts]
    table = build("MLflow", chunks, OBJECTS.__contains__, "step", found)
    return replace(table, note=note, begins=begins_of(chunks), whole_rows=False)


def _starts(
    series: Mapping[str, Sequence[Value]], judged: Collection[str]
) -> tuple[list[dict[str, dict[int, float]]], str | None]:
    """The values of each start of the trainer, by metric and step, and a note on what was written twice.

    A start begins where the steps of a metric go back; what the others have from that time on is of it, too.
    Where the times do not tell the order of the lines, all are of one start.

    Args:
        series: the lines of each metric, in the order of its file.
        judged: the metrics that decide where a start begins.
    """
    is_told = all(a[:2] <= b[:2] for name in judged for a, b in pairwise(series[name]))
    lines = [(name, *line) for name, logged in series.items() for line in logged]
    if is_told:
        lines.sort(key=lambda line: line[1])
    starts: list[dict[str, dict[int, float]]] = [{}]
    newest: dict[str, int] = {}
    twice: set[int] = set()
    for name, _, step, value in lines:
        if is_told and name in judged:
            if step < newest.get(name, step):
                starts.append({})
                newest = {}
            newest[name] = step
        values = starts[-1].setdefault(name, {})
        if step in values and name in judged:
            twice.add(step)
        values[step] = value
    return starts, _written_twice(twice, is_told)


def _written_twice(steps: Collection[int], is_told: bool) -> str | None:
    if not steps:
        return None
    said = f"{len(steps)} steps were written twice (the first: step {min(steps)}); the later value counts."
    return said if is_told else f"{said} By their times the starts of the trainer cannot be told apart."


def _rows_by_step(series: Mapping[str, Mapping[int, float]], keep: Keep) -> Chunk:
    """The values of one start of the trainer, by metric and step, as rows."""
    steps = _judged_steps(series, keep)
    columns = {name: [values.get(step) for step in steps] for name, values in series.items()}
    return Chunk(steps, {**columns, "step": steps})


def _judged_steps(series: Mapping[str, Mapping[int, float]], keep: Keep) -> list[int]:
    """The steps that are rows: one at which there are only further figures is none."""
    return sorted(set().union(*(values for name, values in series.items() if not keep.is_figure(name))))
