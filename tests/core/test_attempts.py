"""Which attempts started from scratch, and which of those are judged as such."""

from __future__ import annotations

import pytest

from guard_core.attempts import MOST_STARTS, Attempts


def reported(*steps: tuple[int, int]) -> Attempts:
    """After these reports: attempt and step of each."""
    folded = Attempts()
    for attempt, step in steps:
        folded.fold_step(attempt, step)
    return folded


@pytest.mark.parametrize(
    ("began", "again", "from_scratch"),
    [(1, 1, True), (10, 10, True), (1, 2, False), (10, 11, False), (10, 5, True), (0, 0, True)],
    ids=["the same", "logged every ten", "one later", "later", "earlier", "numbered from 0"],
)
def test_an_attempt_that_begins_where_the_first_did_started_from_scratch(
    began: int, again: int, from_scratch: bool
) -> None:
    folded = reported((0, began), (0, began + 50), (1, again), (1, again + 1))
    assert folded.judge(1, made=5, alarmed=False) is from_scratch
    assert bool(folded.said) is from_scratch


def test_it_is_the_first_attempt_that_is_compared_with() -> None:
    folded = reported((0, 1), (1, 51))
    assert not folded.judge(1, made=5, alarmed=False)
    folded.fold_step(2, 51)
    assert not folded.judge(2, made=5, alarmed=False)
    folded.fold_step(3, 1)
    assert folded.judge(3, made=5, alarmed=False)


def test_the_first_attempt_has_nobody_before_it() -> None:
    assert not reported((0, 1), (0, 2)).judge(0, made=5, alarmed=False)
    assert not reported((4, 1), (4, 1)).judge(4, made=5, alarmed=False)


def test_a_step_that_comes_late_is_of_no_new_attempt() -> None:
    folded = reported((0, 1), (1, 51), (0, 1))
    assert not folded.judge(0, made=5, alarmed=False) and not folded.judge(1, made=5, alarmed=False)


def test_a_late_checkpoint_of_the_attempt_before_decides_nothing() -> None:
    folded = reported((0, 1), (1, 1))
    assert not folded.judge(0, made=5, alarmed=False)
    assert folded.judge(1, made=6, alarmed=False)


def test_an_attempt_begins_once() -> None:
    folded = reported((0, 1), (1, 1))
    assert folded.judge(1, made=5, alarmed=False)
    folded.fold_step(1, 2)
    assert not folded.judge(1, made=1, alarmed=False)


def test_where_nothing_was_judged_nothing_is_forgotten_or_said() -> None:
    folded = reported((0, 1), (1, 1))
    assert not folded.judge(1, made=0, alarmed=False)
    assert folded.said == "" and folded.taken == 0
    assert not folded.judge(1, made=1, alarmed=False), "its own evaluations are kept"


def test_no_start_is_taken_while_an_alarm_waits() -> None:
    folded = reported((0, 1), (1, 1))
    assert not folded.judge(1, made=5, alarmed=True)
    assert "compared all the same" in folded.said and "an alarm waited to be decided" in folded.said
    assert not folded.judge(1, made=6, alarmed=False), "nor once the alarm is over"
    folded.fold_step(2, 1)
    assert folded.judge(2, made=6, alarmed=False)
    assert "number 1" in folded.said


def test_few_are_taken() -> None:
    folded = reported((0, 1))
    for attempt in range(1, MOST_STARTS + 3):
        folded.fold_step(attempt, 1)
        assert folded.judge(attempt, made=5, alarmed=False) is (attempt <= MOST_STARTS)
        assert f"attempt {attempt} began at step 1" in folded.said
    assert folded.taken == MOST_STARTS == 3
    assert "3 had done so before" in folded.said and "a guard of its own" in folded.said


def test_the_state_is_the_whole_of_it() -> None:
    folded = reported((0, 1), (1, 1))
    assert Attempts.from_state(folded.to_state()) == folded
    assert folded.judge(1, made=5, alarmed=False)
    folded.fold_step(2, 1)
    again = Attempts.from_state(folded.to_state())
    assert again == folded and again.judge(2, made=1, alarmed=False) and again.taken == 2
