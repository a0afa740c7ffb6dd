"""Exports of a run in MLflow: the CSV of its charts and the JSON of `metrics/get-history`, as rows."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from guard_cli.errors import CliError
from guard_follow.names import listing

#: Columns of the CSV that MLflow makes of a chart.
CHART = ("Run ID", "metric", "step", "timestamp", "value")


def is_chart(header: Collection[str]) -> bool:
    """Whether this is the header of a chart's CSV."""
    return {*CHART} <= {*header}


def is_history(document: Any) -> bool:
    """Whether a JSON document is an answer of `metrics/get-history`."""
    return isinstance(document, dict) and isinstance(document.get("metrics"), list)


def exports_in(folder: Path) -> list[Path]:
    """The exports directly in a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".json"))
    return [path for path in files if any(True for _ in _entries(path))]


def read_exports(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The values of one run in the order of their times; those of one step that follow each other are a row.

    Raises:
        CliError: the files are of several runs, or a value cannot be read.
    """
    values: dict[tuple[float, int, str, float], None] = {}  # what stands in two files is one value
    runs: set[str] = set()
    for path in paths:
        for number, entry in enumerate(_entries(path), start=1):
            runs |= {str(run) for run in (entry.get("run_id"),) if run}
            try:
                values[_value(entry)] = None
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = f"entry {number}: no value of a metric ({error!r:.100})"
                raise CliError(f"{path}: {why}. Nothing was judged: repair it, or export again.") from None
    if len(runs) > 1:
        raise CliError(f"{paths[0].parent} holds several runs: {listing(sorted(runs))}. Keep one of them.")
    rows: list[dict[str, Any]] = []
    for _, step, metric, value in sorted(values, key=lambda value: value[:2]):
        if not rows or rows[-1]["step"] != step or metric in rows[-1]:
            rows.append({"step": step})
        rows[-1][metric] = value
    return rows


def _value(entry: Mapping[str, Any]) -> tuple[float, int, str, float]:
    """Time, step, metric and value of an entry."""
    # MLflow puts an apostrophe before what a spreadsheet would run: '-0.5.
    time, step, value = (float(str(entry[name]).lstrip("'")) for name in ("timestamp", "step", "value"))
    if not math.isfinite(time) or not step.is_integer() or isinstance(entry["value"], bool):
        raise ValueError("time or step is not a whole number")
    # MLflow's databases keep an infinite value as the largest finite one.
    known = math.isfinite(value) and abs(value) < sys.float_info.max
    return time, int(step), str(entry["key"]).lstrip("'"), value if known else math.nan


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    """The entries of an export; none of another file.

    Raises:
        CliError: it cannot be read, or another page of it is missing.
    """
    try:
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                if is_chart(reader.fieldnames or ()):
                    yield from ({**row, "run_id": row["Run ID"], "key": row["metric"]} for row in reader)
        elif is_history(page := json.loads(path.read_bytes())):
            if page.get("next_page_token"):
                raise CliError(f"{path}: a further page of it is missing: export with a larger max_results.")
            yield from page["metrics"]
    except (ValueError, RecursionError, csv.Error) as error:
        raise CliError(f"{path}: cannot be read: {error}.") from None
