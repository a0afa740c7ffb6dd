"""Scenario 16: every recorded run is stopped, or not, at the step that the table says."""

from __future__ import annotations

import csv

import pytest

from tests.scenarios.recorded_runs import TABLE, judge, recordings

with TABLE.open() as file:
    ROWS = {name: (level, step) for name, level, step in list(csv.reader(file))[1:]}
RUNS = recordings()
#: `make test` takes every eighth; the others are for `make test-all`.
SAMPLE = set(sorted(RUNS)[::8])


def test_the_table_has_every_recorded_run() -> None:
    assert list(ROWS) == list(RUNS), "write it anew: python -m tests.scenarios.recorded_runs"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.nightly) for name in RUNS]
)
def test_a_recorded_run_is_judged_as_the_table_says(name: str) -> None:
    assert judge(RUNS[name]) == ROWS[name]
