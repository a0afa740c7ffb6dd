"""MLflow's exports, with one value a row: the CSV of its charts, the JSON of `metrics/get-history`."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlguard.cli.errors import CliError
from rlguard.follow.columns import listing

#: Columns of the CSV that MLflow makes of a chart.
_CHART = {"Run ID", "metric", "step", "timestamp", "value"}


def is_export(path: Path) -> bool:
    """Whether a file is one; a file that cannot be read is none."""
    try:
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return {*next(csv.reader(file), [])} >= _CHART
        return path.suffix.lower() == ".json" and is_history(from_json(path.read_bytes()))
    except (ValueError, csv.Error):
        return False


def is_history(document: Any) -> bool:
    """Whether a JSON document is an answer of `metrics/get-history`."""
    return isinstance(document, dict) and isinstance(document.get("metrics"), list)


def read_exports(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The values of one run in the order of their times; those of one step that follow each other are a row.

    Raises:
        CliError: the files are of several runs, or a value cannot be read.
    """
    values: dict[tuple[float, int, str, float], None] = {}  # what stands in two files is one value
    runs: set[str] = set()
    for path in paths:
        for number, entry in enumerate(_entries(path), start=1):
            try:
                runs |= {str(run) for run in (entry.get("run_id"), entry.get("Run ID")) if run}
                values[_value(entry)] = None
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise CliError(
                    f"{path}: entry {number} is no value of a metric ({error!r:.100}). Nothing was judged: "
                    "repair or remove it, or export again."
                ) from None
    if len(runs) > 1:
        raise CliError(f"{paths[0].parent} holds several runs: {listing(sorted(runs))}. Keep one of them.")
    rows: list[dict[str, Any]] = []
    for _, step, metric, value in sorted(values, key=lambda value: value[:2]):
        if not rows or rows[-1]["step"] != step or metric in rows[-1]:
            rows.append({"step": step})
        rows[-1][metric] = value
    return rows


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix.lower() == ".json":
        yield from from_json(path.read_bytes())["metrics"]
        return
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):  # an apostrophe stands before what a spreadsheet would run: '-0.5
            yield {name: (cell or "").removeprefix("'") for name, cell in row.items()}


def _value(entry: Mapping[str, Any]) -> tuple[float, int, str, float]:
    """Time, step, metric and value of an entry."""
    time, step, value = (float(entry[name]) for name in ("timestamp", "step", "value"))
    if not math.isfinite(time) or not step.is_integer() or isinstance(entry["value"], bool):
        raise ValueError("time or step is not a whole number")
    # MLflow's databases keep an infinite value as the largest finite one.
    known = math.isfinite(value) and abs(value) < sys.float_info.max
    return (
        time,
        int(step),
        str(entry["metric"] if "metric" in entry else entry["key"]),
        value if known else math.nan,
    )
