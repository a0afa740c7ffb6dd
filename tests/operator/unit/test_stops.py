"""What is remembered of a stop: whatever is further, by the status or by what was decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from guard_operator.api.types import MadeRef, Spec, Status, StopMethod, StopStatus
from guard_operator.reconcile.snapshot import Job
from guard_operator.reconcile.stops import FORGET_SECONDS, StopClock

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = {
    "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}


def stop(method: str, ago: float = 0.0) -> StopStatus:
    return StopStatus(method=StopMethod(method), requested_at=NOW - timedelta(seconds=ago))


def ended(method: str, ago: float) -> StopStatus:
    """It had its effect half as long ago as it was asked for."""
    return stop(method, ago).model_copy(update={"stopped_at": NOW - timedelta(seconds=ago / 2)})


def job(written: StopStatus | None, uid: str = "u") -> Job:
    return Job("run", "ns", uid, 1, "1", {}, Spec.model_validate(SPEC), Status(stop=written))


@pytest.mark.parametrize(
    ("noted", "written", "further"),
    [
        (None, None, None),
        (None, stop("Stop"), stop("Stop")),
        (stop("Stop"), None, stop("Stop")),
        (stop("Delete"), stop("Stop", 60), stop("Delete")),
        (stop("Suspend"), stop("Delete"), stop("Delete")),
        (stop("Delete", 60), stop("DeletePods"), stop("DeletePods")),
        (stop("Stop", 10), stop("Stop"), stop("Stop", 10)),
        (stop("Stop"), stop("Stop", 10), stop("Stop", 10)),
        (stop("Stop"), ended("Stop", 60), stop("Stop")),
        (stop("Stop", 40), ended("Stop", 60), ended("Stop", 60)),
        (stop("Stop"), ended("Delete", 60), ended("Delete", 60)),
    ],
)
def test_what_is_further_counts(
    noted: StopStatus | None, written: StopStatus | None, further: StopStatus | None
) -> None:
    clock = StopClock()
    clock.note("u", noted)
    assert clock.asked(job(written)) == further
    assert clock.asked(job(None, "another")) is None, "each run has its own"


def test_what_is_no_longer_looked_at_is_forgotten() -> None:
    now = [0.0]
    clock = StopClock(lambda: now[0])
    clock.note("u", stop("Delete"))
    clock.note("gone", stop("Delete"))
    for _ in range(3):
        now[0] += FORGET_SECONDS / 2
        clock.note("u", stop("Delete"))
    assert clock.asked(job(None)) is not None and clock.asked(job(None, "gone")) is None
    clock.note("u", None)
    assert clock.asked(job(None)) is None


def test_what_its_workload_has_made_is_remembered_for_as_long_as_its_stop() -> None:
    now = [0.0]
    clock, made = StopClock(lambda: now[0]), MadeRef(api_version="v1", kind="K", name="n", uid="m")
    clock.note("u", stop("Delete"), [made])
    clock.note("gone", stop("Delete"), [made])
    assert clock.made(job(None)) == (made,) and clock.made(job(None, "another")) == ()
    now[0] += FORGET_SECONDS
    clock.note("u", stop("Delete"), [made])
    assert clock.made(job(None)) == (made,) and clock.made(job(None, "gone")) == ()
    clock.note("u", None, [made])
    assert clock.made(job(None)) == ()
