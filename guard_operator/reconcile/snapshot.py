"""What the operator knows about one job at one moment, and what it decides: frozen values, no behaviour.

`gather` builds a `Snapshot`, `decide` turns it into a `Decision`, `actuate` carries that out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from guard_operator.adapters import WorkloadState
from guard_operator.api.reasons import Reason
from guard_operator.api.types import (
    ConditionStatus,
    GuardStatus,
    Latched,
    Phase,
    Spec,
    Status,
    StopMethod,
    StopStatus,
    WorkloadRef,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A `GuardedTrainingJob` whose spec validates."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    labels: Mapping[str, str]
    spec: Spec
    status: Status


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of the job's name. `ours` is whether this very job (by UID) is its controller."""

    uid: str
    ours: bool
    state: WorkloadState
    message: str = ""
    terminating: bool = False


class Disruption(StrEnum):
    """Why the infrastructure took a pod; the values are the reasons of the condition."""

    EVICTED = Reason.EVICTED
    PREEMPTED = Reason.PREEMPTED
    NODE_LOST = Reason.NODE_LOST


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod, or its guard, cannot start, as Kubernetes says."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that carries the job's UID. `fire` and `halt` are what its guard left behind when it ended."""

    name: str
    uid: str
    guarded: bool
    phase: str
    terminating: bool = False
    disruption: Disruption | None = None
    waiting: Waiting | None = None
    fire: Latched | None = None
    halt: Latched | None = None


@dataclass(frozen=True, slots=True)
class Preparation:
    """What was found out before the workload is created. `reason` None: nothing speaks against it."""

    reason: Reason | None = None
    message: str = ""
    #: Seconds after which asking again could end differently although the spec is the same.
    ask_again: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that `decide` looks at.

    `workload` None: there is none. `pods`: the oldest first. `preparation` is only there while a workload
    might have to be created.
    `costs` are the exceptions that `isolation: Relaxed` admitted, each with what it costs.
    `heartbeat_age` is how long ago the operator saw the guard's heartbeat change while the rank-0 pod was
    running, seconds; None while no heartbeat is to be expected.
    """

    job: Job
    workload: Workload | None = None
    pods: tuple[Pod, ...] = ()
    preparation: Preparation | None = None
    costs: tuple[str, ...] = ()
    heartbeat_age: float | None = None


# -- decisions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordLatches:
    """Put into `status.guard` what a guard latched that ended before the API server took it."""

    fire: Latched | None
    halt: Latched | None


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create what the guard needs, then the workload."""


@dataclass(frozen=True, slots=True)
class CaptureEvidence:
    """Write the evidence ConfigMap.

    `seconds` is how long a log may take; it must not hold up the stop. Unless `final`, evidence without logs
    is not written, because the pods are still there and the next attempt may get them.
    """

    seconds: float
    final: bool


@dataclass(frozen=True, slots=True)
class StopWorkload:
    """Stop the workload with this UID by `method`; a refused patch becomes a delete."""

    method: StopMethod
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete these pods, each fenced by its UID: the last resort."""

    pods: tuple[tuple[str, str], ...]


Action = RecordLatches | CreateWorkload | CaptureEvidence | StopWorkload | DeletePods


@dataclass(frozen=True, slots=True)
class Report:
    """The operator's part of the status."""

    phase: Phase
    conditions: tuple[ConditionStatus, ...]
    workload_ref: WorkloadRef | None = None
    stop: StopStatus | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, what to say, and in how many seconds to look again (None: on the next event)."""

    report: Report
    actions: tuple[Action, ...] = field(default=())
    look_again: float | None = None


def guard_of(job: Job) -> GuardStatus:
    """What the guard reports; empty while it has not."""
    return job.status.guard or GuardStatus()
