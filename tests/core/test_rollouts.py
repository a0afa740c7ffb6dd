"""Which rollouts are kept, and which are shown: at most three steps, whatever a trainer reports."""

from __future__ import annotations

import random

import pytest

from guard_core.codes import Code, Level
from guard_core.rollouts import NEWEST, kept_rollouts, side_by_side
from guard_core.wire import EvaluationSummary, Moment, Rollout, RolloutsReport, Verdict


def of_step(step: int, attempt: int = 0, text: str = "42") -> RolloutsReport:
    return RolloutsReport(
        attempt=attempt, step=step, rollouts=(Rollout(prompt="6*7=", completion=text, reward=1.0),)
    )


def verdict(
    *, best: tuple[int, int] | None = None, fire: tuple[int, int] | None = None, halt: bool = False
) -> Verdict:
    evaluation = None
    if best is not None:
        evaluation = EvaluationSummary(
            attempt=best[0], step=best[1], score=0.5, items=10, path="/c", sha256=None
        )
    return Verdict(
        level=Level.FIRED if fire and not halt else Level.HEALTHY,
        code=Code.OK,
        reason="",
        fire=fire is not None and not halt,
        halt=halt,
        stop=fire is not None,
        latch_attempt=None if fire is None else fire[0],
        latch_step=None if fire is None else fire[1],
        best_evaluation=evaluation,
    )


def shown(steps: list[RolloutsReport], now: Verdict) -> list[tuple[tuple[str, ...], int, int]]:
    found = side_by_side(kept_rollouts(steps, now), now)
    return [(tuple(moment.value for moment in one.moments), one.attempt, one.step) for one in found]


RUN = [of_step(step) for step in (1, 10, 20, 30, 40)]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (verdict(), [(("start",), 0, 1), (("newest",), 0, 40)]),
        (verdict(best=(0, 20)), [(("start",), 0, 1), (("last_good",), 0, 20), (("newest",), 0, 40)]),
        (
            verdict(best=(0, 20), fire=(0, 30)),
            [(("start",), 0, 1), (("last_good",), 0, 20), (("fire",), 0, 30)],
        ),
        (
            verdict(best=(0, 20), fire=(0, 30), halt=True),
            [(("start",), 0, 1), (("last_good",), 0, 20), (("halt",), 0, 30)],
        ),
        # A limit of the KL is passed between two checkpoints: what was written last before it.
        (verdict(fire=(0, 37)), [(("start",), 0, 1), (("fire",), 0, 30)]),
        # The starting policy is the checkpoint of step 0, and what it writes is seen at step 1.
        (verdict(best=(0, 0), fire=(0, 40)), [(("start", "last_good"), 0, 1), (("fire",), 0, 40)]),
        (verdict(best=(0, 40)), [(("start",), 0, 1), (("last_good", "newest"), 0, 40)]),
        # Of an attempt that reported none there is nothing to show.
        (verdict(best=(3, 20), fire=(0, 30)), [(("start",), 0, 1), (("fire",), 0, 30)]),
    ],
)
def test_the_moments_are_side_by_side(now: Verdict, expected: list[tuple[tuple[str, ...], int, int]]) -> None:
    assert shown(RUN, now) == expected
    shuffled = RUN[:]
    random.Random(5).shuffle(shuffled)
    assert shown(shuffled, now) == expected


def test_without_a_rollout_nothing_is_shown() -> None:
    assert side_by_side((), verdict(best=(0, 1), fire=(0, 2))) == ()


def test_a_later_attempt_is_newer_whatever_its_steps() -> None:
    assert shown([of_step(50), of_step(1, attempt=1)], verdict()) == [
        (("start",), 0, 50),
        (("newest",), 1, 1),
    ]


def test_of_one_step_the_first_counts() -> None:
    (only,) = kept_rollouts([of_step(1, text="first"), of_step(1, text="second")], verdict())
    assert only.rollouts[0].completion == "first"


def test_of_thousands_of_steps_a_bounded_number_is_kept_and_what_is_shown_among_them() -> None:
    now = verdict(best=(0, 700), fire=(0, 900))
    steps: tuple[RolloutsReport, ...] = ()
    for step in range(1, 2001):
        steps = kept_rollouts((*steps, of_step(step)), now)
        assert len(steps) <= NEWEST + 3
    assert [one.step for one in steps[:3]] == [1, 700, 900]
    assert [one.step for one in steps[3:]] == list(range(2001 - NEWEST, 2001))
    assert [one.moments for one in side_by_side(steps, now)] == [
        (Moment.START,),
        (Moment.LAST_GOOD,),
        (Moment.FIRE,),
    ]
