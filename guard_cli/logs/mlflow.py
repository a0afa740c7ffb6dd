"""Exports of a run in MLflow: the CSV of its charts and the JSON of `metrics/get-history`, as rows."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from guard_cli.errors import CliError
from guard_follow.names import listing

#: Columns of the CSV that MLflow makes of a chart.
CHART = {"Run ID", "metric", "step", "timestamp", "value"}
#: MLflow puts an apostrophe before what a spreadsheet would run: '-0.5.
FORMULA = ("'=", "'+", "'-", "'@")
REPAIR = "Nothing was judged: repair or remove it, or export again."


def is_history(document: Any) -> bool:
    """Whether a JSON document is an answer of `metrics/get-history`."""
    return isinstance(document, dict) and isinstance(document.get("metrics"), list)


def is_export(path: Path) -> bool | None:
    """Whether a file is one; None if it cannot be read."""
    try:
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return {*next(csv.reader(file), [])} >= CHART
        return path.suffix.lower() == ".json" and is_history(from_json(path.read_bytes()))
    except (ValueError, csv.Error):
        return None


def exports_in(folder: Path) -> list[Path]:
    """The exports directly in a folder; other files of their kind are passed over.

    Raises:
        CliError: beside an export there is a file that cannot be read, perhaps a page of it.
    """
    kinds = {path: is_export(path) for path in sorted(folder.iterdir()) if path.is_file()}
    exports = [path for path, kind in kinds.items() if kind]
    if exports and (broken := [path for path, kind in kinds.items() if kind is None]):
        raise CliError(f"{broken[0]}: cannot be read, and lies beside exports of MLflow. {REPAIR}")
    return exports


def read_exports(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The values of one run in the order of their times; those of one step that follow each other are a row.

    Raises:
        CliError: the files are of several runs, a value cannot be read, or a metric's last page is missing.
    """
    values: dict[tuple[float, int, str, float], None] = {}  # what stands in two files is one value
    runs: set[str] = set()
    unfinished: dict[str, bool] = {}
    for path in paths:
        is_csv = path.suffix.lower() == ".csv"
        for where, entry in _chart_entries(path) if is_csv else _history_entries(path, unfinished):
            runs |= {str(run) for run in (entry.get("run_id"),) if run}
            try:
                values[_value(entry)] = None
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise CliError(f"{path}: {where}: no value of a metric ({error!r:.100}). {REPAIR}") from None
    if len(runs) > 1:
        raise CliError(f"{paths[0].parent} holds several runs: {listing(sorted(runs))}. Keep one of them.")
    if more := [name for name, goes_on in unfinished.items() if goes_on]:
        raise CliError(f"{paths[0].parent}: the last page of {listing(more)} is missing. {REPAIR}")
    rows: list[dict[str, Any]] = []
    for _, step, metric, value in sorted(values, key=lambda value: value[:2]):
        if not rows or rows[-1]["step"] != step or metric in rows[-1]:
            rows.append({"step": step})
        rows[-1][metric] = value
    return rows


def _value(entry: Mapping[str, Any]) -> tuple[float, int, str, float]:
    """Time, step, metric and value of an entry."""
    time, step, value = (float(entry[name]) for name in ("timestamp", "step", "value"))
    if not math.isfinite(time) or not step.is_integer() or isinstance(entry["value"], bool):
        raise ValueError("time or step is not a whole number")
    # MLflow's databases keep an infinite value as the largest finite one.
    known = math.isfinite(value) and abs(value) < sys.float_info.max
    return time, int(step), str(entry["key"]), value if known else math.nan


def _chart_entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            cells = {name: cell for name, cell in row.items() if isinstance(cell, str)}
            cells |= {name: cell[1:] for name, cell in cells.items() if cell.startswith(FORMULA)}
            named = {"run_id": cells.get("Run ID"), "key": cells.get("metric")}
            yield f"line {reader.line_num}", cells | named


def _history_entries(path: Path, unfinished: dict[str, bool]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a page; `unfinished`: which metrics have only pages that name a next one."""
    page = from_json(path.read_bytes())
    for number, entry in enumerate(page["metrics"], start=1):
        if not isinstance(entry, dict):
            raise CliError(f"{path}: entry {number} of `metrics` is not an object. {REPAIR}")
        name = str(entry.get("key"))
        unfinished[name] = unfinished.get(name, True) and bool(page.get("next_page_token"))
        yield f"entry {number} of `metrics`", entry
