"""Which attempts started from scratch, and with which checkpoint a new series begins."""

from __future__ import annotations

import pytest

from guard_core.attempts import MOST_STARTS, EvaluationSeries
from guard_core.steps import AttemptStarts


def reported(*steps: tuple[int, int], base: int | None = 0) -> AttemptStarts:
    """Steps (attempt, step), after a baseline."""
    starts = AttemptStarts()
    for place, (attempt, step) in enumerate(steps):
        starts.fold_step(attempt, step)
        if place == 0 and base is not None:
            starts.fold_checkpoint(attempt, base)
    return starts


@pytest.mark.parametrize(
    ("began", "again", "from_scratch"),
    [(1, 1, True), (10, 10, True), (0, 0, True), (10, 5, True), (1, 2, True), (1, 3, False)],
    ids=["the same", "logged every ten", "from 0", "earlier", "its first is late", "goes on"],
)
@pytest.mark.parametrize("base", [0, None], ids=["judged", "not judged yet"])
def test_an_attempt_that_begins_where_the_first_did_started_from_scratch(
    began: int, again: int, from_scratch: bool, base: int | None
) -> None:
    starts = reported((0, began), (0, began + 50), (1, again), (1, again + 1), base=base)
    assert starts.newest == (1 if from_scratch else 0)


def test_what_is_heard_first_says_it() -> None:
    assert reported((0, 1), (0, 90), (1, 51), (1, 1)).newest == 0
    starts = reported((0, 1), (0, 90), (1, 51))
    starts.fold_checkpoint(1, 0)
    assert starts.newest == 0, "nor does a checkpoint of the start that somebody finds"


def test_a_step_of_an_earlier_attempt_is_no_start() -> None:
    assert reported((0, 1), (0, 50), (2, 51), (1, 1), (0, 1)).newest == 0


def test_a_checkpoint_at_the_baselines_step_says_it_before_any_report() -> None:
    starts = reported((0, 1), (0, 50))
    starts.fold_checkpoint(1, 50)
    assert starts.newest == 0
    starts.fold_checkpoint(2, 0)
    assert starts.newest == 2


def begins(
    series: EvaluationSeries, start: int, attempt: int | None = None, made: int = 5, alarmed: bool = False
) -> bool:
    return series.begins(start, start if attempt is None else attempt, made=made, alarmed=alarmed)


def test_the_first_checkpoint_of_a_start_begins_a_series_and_no_other() -> None:
    series = EvaluationSeries()
    assert not begins(series, 0, made=0) and series.said == ""
    assert begins(series, 1) and "number 1" in series.said
    assert not begins(series, 1)
    assert begins(series, 2, attempt=3), "or that of an attempt which went on from it"


def test_a_late_checkpoint_of_the_attempt_before_begins_none() -> None:
    series = EvaluationSeries()
    begins(series, 0)
    assert not begins(series, 1, attempt=0)
    assert begins(series, 1)


def test_where_nothing_was_judged_nothing_is_forgotten_or_said() -> None:
    series = EvaluationSeries()
    begins(series, 0, made=0)
    assert not begins(series, 1, made=0) and series.said == "" and series.taken == 0


def test_a_start_waits_while_an_alarm_does() -> None:
    series = EvaluationSeries()
    begins(series, 0)
    assert not begins(series, 1, alarmed=True) and "alarm waits" in series.said
    assert begins(series, 1)


def test_few_are_taken() -> None:
    series = EvaluationSeries()
    begins(series, 0)
    assert all(begins(series, n) for n in range(1, MOST_STARTS + 1)) and not series.refused
    assert not begins(series, MOST_STARTS + 1)
    assert series.refused and f"as {MOST_STARTS} had done before" in series.said
