"""When training waits for its guard, and that no wait is without an end."""

from __future__ import annotations

import pytest

from guard_client.client import EvaluationView, VerdictView
from guard_client.waiting import STALL_SECONDS, TOTAL_SECONDS, WaitLimit, WorkDone, reason_to_wait

SCORED = {"last_evaluation": EvaluationView(step=0, score=0.5)}
WAITS = "1 unscored checkpoint"


def verdict(**fields: object) -> VerdictView:
    return VerdictView.model_validate({"fire": False, "stop": False} | fields)


@pytest.mark.parametrize(
    ("said", "unsent", "max_lag", "waits"),
    [
        (None, 0, 1, False),  # nothing was announced, and nobody has responded yet
        (None, 1, 1, True),  # the starting policy is on its way
        ({"waiting": 1}, 0, 1, True),  # it is being scored
        ({"next_pass": "baseline", **SCORED}, 0, 1, True),
        ({"next_pass": "confirmation", **SCORED}, 0, 1, True),
        ({"waiting": 1, **SCORED}, 0, 1, False),
        ({"waiting": 1, **SCORED}, 1, 1, True),
        ({"waiting": 2, **SCORED}, 0, 1, True),
        ({"waiting": 1, **SCORED}, 0, 0, True),
        ({"waiting": 9, "next_pass": "confirmation", **SCORED}, 9, None, False),  # max_lag off
        ({}, 0, 0, False),  # a guard without a baseline to make, such as one that scores nothing
    ],
)
def test_what_training_waits_for(
    said: dict[str, object] | None, unsent: int, max_lag: int, waits: bool
) -> None:
    newest = None if said is None else verdict(**said)
    assert (reason_to_wait(newest, unsent, max_lag) is not None) == waits


def test_a_wait_without_progress_ends_and_the_next_comes_after_some() -> None:
    limit, none, some = WaitLimit(0.0), WorkDone(), WorkDone(evaluated=1)
    assert limit.allows(WAITS, none, 100.0)
    assert limit.allows(WAITS, none, 99.0 + STALL_SECONDS)
    assert not limit.allows(WAITS, none, 100.0 + STALL_SECONDS)
    assert not limit.allows(WAITS, none, 200.0 + STALL_SECONDS), "nothing was finished since"
    assert limit.allows(WAITS, some, 300.0 + STALL_SECONDS)
    assert limit.total(300.0 + STALL_SECONDS) == STALL_SECONDS


@pytest.mark.parametrize(
    "progress",
    [WorkDone(*[int(i == done) for i in range(4)]) for done in range(4)]
    + [WorkDone(next_pass="confirmation")],
)
def test_whatever_the_guard_finishes_is_progress(progress: WorkDone) -> None:
    limit = WaitLimit(0.0)
    assert limit.allows(WAITS, WorkDone(), 0.0)
    assert limit.allows(WAITS, progress, STALL_SECONDS - 1)
    assert limit.allows(WAITS, progress, 2 * STALL_SECONDS - 2)
    assert not limit.allows(WAITS, progress, 2 * STALL_SECONDS - 1)


def waited(steps: int, step_seconds: float) -> float:
    """Seconds of waiting in a run whose guard finishes something every minute, and is always wanted."""
    limit, now = WaitLimit(0.0), 0.0
    for _ in range(steps):
        now += step_seconds
        while limit.allows(WAITS, WorkDone(int(now // 60)), now):
            now += 1.0
    return limit.total(now)


def test_all_waits_together_end_at_half_an_hour_of_a_short_run() -> None:
    assert waited(steps=5, step_seconds=10.0) == pytest.approx(TOTAL_SECONDS, abs=1.0)


def test_all_waits_together_end_at_a_quarter_of_a_long_run() -> None:
    day = 24 * 3600.0
    total = waited(steps=int(day / 600), step_seconds=600.0)
    assert total / (day + total) == pytest.approx(0.25, abs=0.01)
