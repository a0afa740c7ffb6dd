"""When training waits for its guard, and that no wait is without an end."""

from __future__ import annotations

import pytest

from rlguard.client.client import EvaluationView, VerdictView
from rlguard.client.waiting import (
    STALL_SECONDS,
    TOTAL_SECONDS,
    Waits,
    lag_that_rotation_leaves,
    look,
    progress_of,
    reason_to_wait,
)

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


class Run:
    """The looks of one run at its guard."""

    def __init__(self) -> None:
        self.waits, self.warnings = Waits(0.0), []

    def waits_at(self, now: float, progress: tuple[object, ...] = ()) -> bool:
        self.waits = look(self.waits, WAITS, progress, now)
        self.warnings += [self.waits.warning] if self.waits.warning else []
        return self.waits.reason is not None


def test_a_wait_without_progress_ends_and_the_next_comes_after_some() -> None:
    run, some = Run(), (1,)
    assert run.waits_at(100.0) and run.waits_at(99.0 + STALL_SECONDS)
    assert not run.waits_at(100.0 + STALL_SECONDS)
    assert not run.waits_at(200.0 + STALL_SECONDS), "nothing was finished since"
    assert run.waits_at(300.0 + STALL_SECONDS, some)
    assert run.waits.total(300.0 + STALL_SECONDS) == STALL_SECONDS
    assert len(run.warnings) == 1 and "trains" not in run.warnings[0]


@pytest.mark.parametrize("finished", ["evaluated", "failed", "skipped", "baseline_passes"])
def test_whatever_the_guard_finishes_is_progress(finished: str) -> None:
    run, progress = Run(), progress_of(verdict(**{finished: 1}))
    assert run.waits_at(0.0, progress_of(verdict()))
    assert run.waits_at(STALL_SECONDS - 1, progress)
    assert run.waits_at(2 * STALL_SECONDS - 2, progress)
    assert not run.waits_at(2 * STALL_SECONDS - 1, progress)


def waited(steps: int, step_seconds: float) -> float:
    """Seconds of waiting in a run whose guard finishes something every minute, and is always wanted."""
    run, now = Run(), 0.0
    for _ in range(steps):
        now += step_seconds
        while run.waits_at(now, (now // 60,)):
            now += 1.0
    assert len(run.warnings) <= 1, "that the time is used up is said once"
    return run.waits.total(now)


def test_all_waits_together_end_at_half_an_hour_of_a_short_run() -> None:
    assert waited(steps=5, step_seconds=10.0) == pytest.approx(TOTAL_SECONDS, abs=1.0)


def test_all_waits_together_end_at_a_quarter_of_a_long_run() -> None:
    day = 24 * 3600.0
    total = waited(steps=int(day / 600), step_seconds=600.0)
    assert total / (day + total) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("max_lag", "kept", "most"), [(3, 2, 1), (1, 1, 0), (1, None, 1), (None, 2, None)])
def test_no_checkpoint_is_rotated_away_before_its_turn(
    max_lag: int | None, kept: int | None, most: int | None
) -> None:
    assert lag_that_rotation_leaves(max_lag, kept) == most
