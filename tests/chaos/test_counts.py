"""Each of the five counts sees what it is for, and a run as it must be is none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .counts import Count, Facts, Seen, totals, wrong
from .page import PAGE, Made, Played, findings, page
from .schedule import Run

STEP = {"attempt": 0, "step": 1, "reward": 0.5, "kl": 0.01}
STORY = ("WorkloadCreated", "KlHardStop", "StopRequested", "EvidenceCaptured", "NoPodsLeft")
TORN_DOWN = Facts(
    run=Run("hacks-0", 0.0, 5.0, hacks=True),
    verdicts=(False, True),
    seen=(Seen(), Seen(fire=True), Seen(True, True, False, True, True)),
    acknowledged={1: STEP},
    stored={1: {**STEP, "kl_kind": "ref_token_mean"}},
    stored_latch=True,
    phase="Stopped",
    events=tuple((reason, "said") for reason in STORY),
    stop_seconds=2.4,
)
HEALTHY = Facts(
    run=Run("healthy-1", 0.0, 20.0, hacks=False),
    verdicts=(False,),
    seen=(Seen(),),
    acknowledged={1: STEP},
    stored={1: STEP},
    phase="Succeeded",
    events=(("WorkloadCreated", "made"), ("NotJudged", "no split")),
)


@pytest.mark.parametrize("facts", [TORN_DOWN, HEALTHY], ids=["hacks", "healthy"])
def test_a_run_as_it_must_be_is_not_counted(facts: Facts) -> None:
    assert wrong(facts) == ()


def test_a_guard_that_comes_and_goes_may_be_told_of_again() -> None:
    told = (("GuardCrashed", "137"), ("GuardCrashed", "137"), ("StopBlocked", "503"))
    assert wrong(replace(TORN_DOWN, events=told)) == ()


OPENED = (Seen(fire=True), Seen(fire=False))
BAD = {
    "a pod is left": (replace(TORN_DOWN, pods=1), Count.FIRE_LEFT),
    "never called stopped": (replace(TORN_DOWN, phase="Stopping"), Count.FIRE_LEFT),
    "never told to end": (replace(TORN_DOWN, seen=TORN_DOWN.seen[:2]), Count.FIRE_LEFT),
    "never looked at": (replace(TORN_DOWN, seen=()), Count.FIRE_LEFT),
    "halted for a moment": (replace(HEALTHY, seen=(Seen(halted=True), Seen(halted=True))), None),
    "fired": (replace(HEALTHY, seen=(Seen(fire=True),)), Count.HEALTHY_STOPPED),
    "a stop asked for": (replace(HEALTHY, seen=(Seen(), Seen(stop=True))), Count.HEALTHY_STOPPED),
    "told to end": (replace(HEALTHY, seen=(Seen(told=True),)), Count.HEALTHY_STOPPED),
    "called failed": (replace(HEALTHY, phase="Failed"), Count.HEALTHY_STOPPED),
    "the guard forgot": (replace(TORN_DOWN, verdicts=(False, True, False)), Count.LATCH_OPENED),
    "the status forgot": (
        replace(TORN_DOWN, seen=(*OPENED, Seen(True, True, False, True, True))),
        Count.LATCH_OPENED,
    ),
    "the condition went back": (
        replace(TORN_DOWN, seen=(Seen(True, True), Seen(True, False, told=True))),
        Count.LATCH_OPENED,
    ),
    "the store has no latch": (replace(TORN_DOWN, stored_latch=False), Count.LATCH_OPENED),
    "a step is not there": (replace(HEALTHY, stored={}), Count.STEP_LOST),
    "a step is another": (replace(HEALTHY, stored={1: {**STEP, "reward": 0.4}}), Count.STEP_LOST),
    "told twice": (
        replace(TORN_DOWN, events=(*TORN_DOWN.events, ("NoPodsLeft", "again"))),
        Count.DOUBLE_EVENT,
    ),
}


@pytest.mark.parametrize(("facts", "count"), BAD.values(), ids=BAD.keys())
def test_what_went_wrong_is_counted_once(facts: Facts, count: Count | None) -> None:
    assert [one.count for one in wrong(facts)] == [count or Count.HEALTHY_STOPPED]


def test_each_step_and_each_event_too_many_counts() -> None:
    lost = replace(HEALTHY, acknowledged={1: STEP, 2: STEP}, stored={})
    thrice = replace(TORN_DOWN, events=(("NoPodsLeft", "left"),) * 3)
    assert totals([lost, thrice]) == {Count.STEP_LOST: 2, Count.DOUBLE_EVENT: 2}


def test_the_page_says_how_it_was_made_and_what_was_not_0() -> None:
    made = Made(42, "abc", 14.6, 2)
    good, bad = Played("disk", 2, (HEALTHY,)), Played("disk", 2, (replace(HEALTHY, stored={}),))
    assert "Every count is 0." in page([good], made, PAGE)
    text = page([bad], made, PAGE)
    assert "Every count is 0." not in text and findings([bad]) in text
    assert "Seed 42, commit abc, 15 minutes on 2 cores" in text and "make chaos SEED=42" in text
