"""Which further figures are kept for plots: a bounded number, whatever a trainer reports."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from pydantic import ValidationError

from guard_core.figures import MAX_POINTS, Points, kept_figures
from guard_core.wire import MAX_FIGURE_NAME, MAX_FIGURES, FiguresReport


def of_step(step: int, attempt: int = 0, **figures: float) -> FiguresReport:
    return FiguresReport(attempt=attempt, step=step, figures=figures or {"length": float(step)})


def after(reports: list[FiguresReport], at_once: int = 7) -> Points:
    points: Points = ()
    for start in range(0, len(reports), at_once):
        points = kept_figures((*points, *reports[start : start + at_once]))
    return points


def test_a_short_run_is_kept_whole_and_in_order() -> None:
    reports = [of_step(step, attempt) for attempt in (0, 1) for step in range(100)]
    shuffled = random.Random(1).sample(reports, len(reports))
    assert after(shuffled) == tuple(reports)


def test_of_one_step_the_first_report_counts() -> None:
    assert after([of_step(1, a=1.0), of_step(1, a=2.0, b=3.0)], 1) == (of_step(1, a=1.0),)
    assert after([of_step(1, a=1.0), of_step(1, a=2.0, b=3.0)], 2) == (of_step(1, a=1.0),)


@pytest.mark.parametrize(("first", "every"), [(0, 1), (1, 10), (7, 25)])
def test_a_long_run_is_thinned_evenly_to_its_newest_step(first: int, every: int) -> None:
    last = first + every * 4_000
    points = after([of_step(step) for step in range(first, last + 1, every)], 50)
    steps = [point.step for point in points]
    assert MAX_POINTS / 2 - 1 <= len(steps) <= MAX_POINTS
    assert (steps[0], steps[-1]) == (first, last)
    gaps = [b - a for a, b in pairwise(steps)]
    assert max(gaps) <= 4 * (last - first) / MAX_POINTS


def test_a_first_step_that_is_out_of_line_does_not_thin_the_others() -> None:
    """With TRL's `logging_first_step` step 1 comes before the multiples of `logging_steps`."""
    for every in (2, 10):
        points = after([of_step(1), *(of_step(step) for step in range(every, 1001 * every, every))], 50)
        assert len(points) >= MAX_POINTS / 2 - 1
    points = after([of_step(step) for step in (*range(1, 506), *range(510, 5010, 10))], 50)
    assert max(b.step - a.step for a, b in pairwise(points)) <= 40


def test_a_run_of_many_attempts_stays_bounded() -> None:
    points = after([of_step(step, attempt) for attempt in range(700) for step in (0, 2**53 - 1)], 100)
    assert len(points) <= MAX_POINTS
    assert (points[-1].attempt, points[-1].step) == (699, 2**53 - 1)


def test_names_are_those_that_came_first() -> None:
    points = after(
        [of_step(1, known=1.0), *(of_step(s, **{f"n{s}": 1.0, "known": 2.0}) for s in range(2, 90))]
    )
    names = {name for point in points for name in point.figures}
    assert names == {"known", *(f"n{step}" for step in range(2, 1 + MAX_FIGURES))}
    assert points[-1].figures == {"known": 2.0}
    assert after([of_step(1, **{f"n{i}": 0.0 for i in range(MAX_FIGURES)}), of_step(2, more=1.0)]) == (
        of_step(1, **{f"n{i}": 0.0 for i in range(MAX_FIGURES)}),
    )


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"": 1.0},
        {"x" * (MAX_FIGURE_NAME + 1): 1.0},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 1e101},
        {"a": None},
        {"a": "1"},
        {"a": True},
        {f"n{i}": 1.0 for i in range(MAX_FIGURES + 1)},
        [("a", 1.0)],
    ],
)
def test_what_does_not_travel(figures: object) -> None:
    with pytest.raises(ValidationError):
        FiguresReport.model_validate({"attempt": 0, "step": 1, "figures": figures})
