"""Why a pod does not come or does not start, from Events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.api.reasons import Reason
from rlguard.operator.reconcile.obstacles import Late, reason_for, what_is_late
from rlguard.operator.reconcile.snapshot import Between, Pod, Waiting, Workload
from rlguard.operator.runtime.client import STATEFUL_SETS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def workload(state: WorkloadState = WorkloadState.PENDING, **values: Any) -> Workload:
    return Workload(**{"uid": "w", "ours": True, "state": state, "created": at(0), **values})


def pod(name: str = "run-0", phase: str = "Pending", **values: Any) -> Pod:
    return Pod(
        **{"name": name, "uid": f"uid-{name}", "guarded": False, "phase": phase, "created": at(1), **values}
    )


FULL = Waiting(Reason.UNSCHEDULABLE, "no node")
RANK0 = pod("run-master-0", guarded=True)
LATE: dict[str, tuple[Workload | None, tuple[Pod, ...], int, Late | None]] = {
    "there is no workload": (None, (), 1, None),
    "it is somebody else's": (workload(ours=False), (), 1, None),
    "it is on its way out": (workload(deleted=at(0)), (), 1, None),
    "a queue holds it": (workload(WorkloadState.SUSPENDED), (), 1, None),
    "no pod": (workload(), (), 1, Late("w", at(0))),
    "one pod of two": (workload(), (pod(phase="Running"),), 2, Late("w", at(1))),
    "all run": (workload(WorkloadState.RUNNING), (pod(phase="Running"), pod("b", "Running")), 2, None),
    "a pod starts": (workload(), (pod(),), 1, Late("uid-run-0", at(1), "run-0")),
    "the guarded one first": (workload(), (pod("a"), RANK0), 2, Late(RANK0.uid, at(1), RANK0.name)),
    "it is known why": (workload(), (pod(waiting=FULL),), 2, None),
}  # fmt: skip


@pytest.mark.parametrize(("work", "pods", "wanted", "late"), LATE.values(), ids=LATE.keys())
def test_what_is_late(work: Workload | None, pods: tuple[Pod, ...], wanted: int, late: Late | None) -> None:
    assert what_is_late(work, pods, wanted) == (() if late is None else (late,))


def test_a_guard_in_a_pod_of_its_own_is_late_before_the_run_that_waits_for_it() -> None:
    maker, rank0 = Between(STATEFUL_SETS, "g", "set", created=at(0)), pod("run-0", "Running")
    assert what_is_late(workload(), (rank0,), 1, maker) == (Late("set", at(0)),)
    guard = pod("g-0", guarded=True)
    both = (Late("uid-g-0", at(1), "g-0"), Late("w", at(0)))
    assert what_is_late(workload(), (guard,), 1, maker) == both
    assert what_is_late(workload(), (), 0, replace(maker, terminating=True)) == ()


def event(seconds: float, reason: str, message: str = "", kind: str = "Warning", **values: Any) -> Json:
    stamp = f"{at(seconds):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "metadata": {},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": stamp,
        **values,
    }


POD, PODS = Late("u", at(0), "run-0"), Late("w", at(0))
NO_SECRET = 'MountVolume.SetUp failed for volume "rlguard-heldout" : secret "heldout" not found'
QUOTA = 'Error creating: pods "run-master-0" is forbidden: exceeded quota'
MOUNT, REFUSED = event(5, "FailedMount", NO_SECRET), event(5, "FailedCreatePod", QUOTA)
LATER = {"lastObservedTime": "2026-01-01T13:00:00.1Z"}
NOBODY = "no pod was made and no Event says why: does its controller run?"
SAYS: dict[str, tuple[Late, list[Json], tuple[Pod, ...], Waiting | None]] = {
    "a missing secret": (
        POD, [event(5, "Scheduled", kind="Normal"), MOUNT], (pod(),),
        Waiting(Reason.VOLUME_UNAVAILABLE, f"pod run-0: FailedMount: {NO_SECRET}"),
    ),
    "it was mounted since": (POD, [MOUNT, event(9, "Pulling", kind="Normal")], (pod(),), None),
    "nothing is told of the pod": (POD, [], (pod(),), None),
    "the newest by its series": (
        POD, [event(9, "Old", "old"), event(1, "New", "new", series=LATER)], (pod(),),
        Waiting(Reason.CONTAINER_WAITING, "pod run-0: New: new"),
    ),
    "a quota": (PODS, [REFUSED], (), Waiting(Reason.PODS_MISSING, f"FailedCreatePod: {QUOTA}")),
    "a quota for the second pod": (
        PODS, [event(0, "SuccessfulCreatePod", kind="Normal"), REFUSED], (pod(phase="Running"),),
        Waiting(Reason.PODS_MISSING, f"FailedCreatePod: {QUOTA}"),
    ),
    "a pod came since": (PODS, [REFUSED], (pod(created=at(5)),), None),
    "no controller": (PODS, [event(5, "Created", kind="Normal")], (), Waiting(Reason.PODS_MISSING, NOBODY)),
    "an event without anything": (POD, [{"metadata": {}}], (pod(),), None),
}  # fmt: skip


@pytest.mark.parametrize(("late", "events", "pods", "says"), SAYS.values(), ids=SAYS.keys())
def test_what_events_say(late: Late, events: list[Json], pods: tuple[Pod, ...], says: Waiting | None) -> None:
    assert reason_for(late, events, pods) == says
