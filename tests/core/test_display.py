"""What is kept of a run for people to see: few rollouts, figures and rounds, whatever a trainer reports."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.codes import Code, Level
from rlguard.core.display import MAX_POINTS, NEWEST, Points, kept_figures, kept_rollouts, side_by_side
from rlguard.core.thinning import (
    MAX_ROUNDS,
    NEWEST_ROUNDS,
    fewer_lines,
    rounds_that_stay,
    size,
    thinned,
)
from rlguard.core.wire import (
    MAX_FIGURE_NAME,
    MAX_FIGURES,
    EvaluationSummary,
    FiguresReport,
    Rollout,
    RolloutsReport,
    Verdict,
)

# -- rollouts ------------------------------------------------------------------------------------------------


def wrote(step: int, attempt: int = 0, text: str = "42") -> RolloutsReport:
    rollouts = (Rollout(prompt="6*7=", completion=text, reward=1.0),)
    return RolloutsReport(attempt=attempt, step=step, rollouts=rollouts)


def verdict(
    best: tuple[int, int] | None = None, latch: tuple[int, int] | None = None, halt: bool = False
) -> Verdict:
    evaluation = None
    if best is not None:
        evaluation = EvaluationSummary(attempt=best[0], step=best[1], score=0.5, items=10, path="/c")
    return Verdict(
        level=Level.HEALTHY,
        code=Code.OK,
        reason="",
        fire=latch is not None and not halt,
        halt=halt,
        stop=latch is not None,
        latch_attempt=None if latch is None else latch[0],
        latch_step=None if latch is None else latch[1],
        best_evaluation=evaluation,
    )


def shown(steps: list[RolloutsReport], now: Verdict) -> list[tuple[str, int, int]]:
    found = side_by_side(kept_rollouts(steps, now), now)
    return [(" ".join(one.moments), one.attempt, one.step) for one in found]


RUN = [wrote(step) for step in (1, 10, 20, 30, 40)]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (verdict(), [("start", 0, 1), ("newest", 0, 40)]),
        (verdict((0, 20)), [("start", 0, 1), ("last_good", 0, 20), ("newest", 0, 40)]),
        (verdict((0, 20), (0, 30)), [("start", 0, 1), ("last_good", 0, 20), ("fire", 0, 30)]),
        (verdict((0, 20), (0, 30), halt=True), [("start", 0, 1), ("last_good", 0, 20), ("halt", 0, 30)]),
        # A limit of the KL is passed between two checkpoints: what was written last before it.
        (verdict(latch=(0, 37)), [("start", 0, 1), ("fire", 0, 30)]),
        # The starting policy is the checkpoint of step 0, and what it writes is seen at step 1.
        (verdict((0, 0), (0, 40)), [("start last_good", 0, 1), ("fire", 0, 40)]),
        # Of an attempt that reported none there is nothing to show.
        (verdict((3, 20), (0, 30)), [("start", 0, 1), ("fire", 0, 30)]),
    ],
)
def test_the_moments_of_a_run_are_side_by_side(now: Verdict, expected: list[tuple[str, int, int]]) -> None:
    shuffled = RUN[:]
    random.Random(5).shuffle(shuffled)
    assert shown(RUN, now) == shown(shuffled, now) == expected
    assert side_by_side((), now) == ()


def test_a_later_attempt_is_newer_and_of_one_step_the_first_report_counts() -> None:
    assert shown([wrote(50), wrote(1, attempt=1)], verdict()) == [("start", 0, 50), ("newest", 1, 1)]
    (only,) = kept_rollouts([wrote(1, text="first"), wrote(1, text="second")], verdict())
    assert only.rollouts[0].completion == "first"


def test_of_thousands_of_steps_a_bounded_number_is_kept_and_what_is_shown_among_them() -> None:
    now = verdict((0, 700), (0, 900))
    steps: tuple[RolloutsReport, ...] = ()
    for step in range(1, 2001):
        steps = kept_rollouts((*steps, wrote(step)), now)
    assert [one.step for one in steps] == [1, 700, 900, *range(2001 - NEWEST, 2001)]


# -- figures -------------------------------------------------------------------------------------------------


def measured(step: int, attempt: int = 0, **figures: float) -> FiguresReport:
    return FiguresReport(attempt=attempt, step=step, figures=figures or {"length": float(step)})


def after(reports: list[FiguresReport], at_once: int = 7) -> Points:
    points: Points = ()
    for start in range(0, len(reports), at_once):
        points = kept_figures((*points, *reports[start : start + at_once]))
    return points


@pytest.mark.parametrize(("first", "every"), [(0, 1), (1, 10), (7, 25)])
def test_a_long_run_is_thinned_evenly_to_its_newest_step(first: int, every: int) -> None:
    """Also where its first step is out of line, as with TRL's `logging_first_step`."""
    last = first + every * 4_000
    for steps in (range(first, last + 1, every), (first, *range(first + every, last + 1, every))):
        kept = [point.step for point in after([measured(step) for step in steps], 50)]
        assert MAX_POINTS / 2 - 1 <= len(kept) <= MAX_POINTS and (kept[0], kept[-1]) == (first, last)
        assert max(b - a for a, b in pairwise(kept)) <= 4 * (last - first) / MAX_POINTS


def test_a_run_of_many_attempts_stays_bounded() -> None:
    points = after([measured(step, attempt) for attempt in range(700) for step in (0, 2**53 - 1)], 100)
    assert len(points) <= MAX_POINTS and (points[-1].attempt, points[-1].step) == (699, 2**53 - 1)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"": 1.0},
        {"x" * (MAX_FIGURE_NAME + 1): 1.0},
        {"a": float("nan")},
        {"a": 1e101},
        {"a": None},
        {"a": True},
        {f"n{i}": 1.0 for i in range(MAX_FIGURES + 1)},
    ],
)
def test_figures_that_do_not_travel(figures: object) -> None:
    with pytest.raises(ValidationError):
        FiguresReport.model_validate({"attempt": 0, "step": 1, "figures": figures})


# -- places --------------------------------------------------------------------------------------------------

#: Of each attempt its first step, and how far each further round is from the one before it: few long ones, or
#: many short ones.
attempts = st.one_of(
    st.lists(
        st.tuples(st.integers(0, 1000), st.lists(st.integers(1, 500), max_size=longest)),
        min_size=1,
        max_size=most,
    )
    for longest, most in ((60, 6), (2, 80))
)


def placed(given_attempts: list[tuple[int, list[int]]]) -> list[CheckpointKey]:
    places = []
    for attempt, (step, gaps) in enumerate(given_attempts):
        places.append(CheckpointKey(attempt, step))
        for gap in gaps:
            places.append(CheckpointKey(attempt, places[-1].step + gap))
    return places


@given(attempts, st.integers(0, 10_000))
def test_the_first_the_best_and_the_newest_round_stay_in_order_and_few(
    given_attempts: list[tuple[int, list[int]]], which: int
) -> None:
    places = placed(given_attempts)
    best = which % len(places)
    stay = rounds_that_stay(places, places[best])
    assert len(stay) <= MAX_ROUNDS and all(a < b for a, b in pairwise(stay))
    assert {0, best, *range(max(0, len(places) - NEWEST_ROUNDS), len(places))} <= {*stay}
    assert len(places) > MAX_ROUNDS or stay == list(range(len(places)))


@given(attempts, st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_what_is_thinned_as_it_grows_loses_none_of_those_that_stay_of_the_whole(
    given_attempts: list[tuple[int, list[int]]], portions: list[int]
) -> None:
    places = placed(given_attempts)
    kept: list[CheckpointKey] = []
    start = 0
    while start < len(places):
        for portion in portions:
            known = [*kept, *places[start : start + portion]]
            kept = [known[i] for i in rounds_that_stay(known, None)]
            start += portion
    assert {*kept} >= {places[i] for i in rounds_that_stay(places, None)}
    assert kept == sorted({*kept}) and len(kept) <= MAX_ROUNDS


def test_of_more_attempts_than_there_is_room_for_the_newest_stay_beside_the_spared() -> None:
    places = [CheckpointKey(attempt, 0) for attempt in range(9)]
    assert thinned(places, 3, {0, 4, 8}) == [0, 4, 8] and thinned(places, 4, {0, 4, 8}) == [0, 4, 7, 8]


def test_lines_go_until_the_rest_fits_first_and_last_last() -> None:
    text = "\n".join(["head", *(f"{n:03}é" for n in range(1, 101))])
    assert fewer_lines(text, size(text)) == text
    for most in range(size("head", "100é"), size(text)):
        fewer = (fewer_lines(text, most) or "").split("\n")
        assert fewer[0] == "head" and fewer[-1] == "100é" and len("\n".join(fewer).encode()) <= most
        assert fewer[1:] == sorted({*fewer[1:]}) and {*fewer} <= {*text.split("\n")}
        assert len(fewer) == 51 or most < size(text) // 2 + 5, "no more than every second goes"
    assert fewer_lines(text, 5) == "head" and fewer_lines(text, 3) is None
