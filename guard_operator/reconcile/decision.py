"""What the operator decides about one job at one moment: frozen values, no behaviour.

`decide` makes a `Decision` of a `Snapshot`, and `actuate` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guard_operator.api.types import ConditionStatus, Latched, Phase, StopMethod, StopStatus, WorkloadRef
from guard_operator.reconcile.snapshot import Between


@dataclass(frozen=True, slots=True)
class Report:
    """The operator's part of the status."""

    phase: Phase
    conditions: tuple[ConditionStatus, ...]
    workload_ref: WorkloadRef | None = None
    stop: StopStatus | None = None
    evidence: str | None = None
    guard_digest: str | None = None


@dataclass(frozen=True, slots=True)
class RecordLatches:
    """Put into `status.guard` what a guard latched that ended before the API server took it.

    `otherwise` is reported if that fails, so that the run is stopped all the same; None: it is anyway.
    """

    fire: Latched | None
    halt: Latched | None = None
    otherwise: Report | None = None


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create what the guard needs, then the workload."""


@dataclass(frozen=True, slots=True)
class StartGuard:
    """Create what runs a guard in a pod of its own, unless it is there."""


@dataclass(frozen=True, slots=True)
class CaptureEvidence:
    """Write the evidence ConfigMap, beside the stop and never before it.

    Unless `final`, evidence without logs is not written, because the pods are still there and the next
    attempt may get them.
    """

    final: bool


@dataclass(frozen=True, slots=True)
class StopWorkload:
    """Stop the workload with this UID by `method`; a refused patch becomes a delete."""

    method: StopMethod
    uid: str


@dataclass(frozen=True, slots=True)
class LeaveQueue:
    """Have the queue's object of this name and UID admit the workload no more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteBetween:
    """Delete what makes pods for the workload, each fenced by its UID: while it is there, pods come back."""

    objects: tuple[Between, ...]


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete these pods, each fenced by its UID. `grace`: seconds they have to end; None: as they say."""

    pods: tuple[tuple[str, str], ...]
    grace: int | None = None


Action = (
    RecordLatches
    | CreateWorkload
    | StartGuard
    | CaptureEvidence
    | LeaveQueue
    | StopWorkload
    | DeleteBetween
    | DeletePods
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, what to say, and in how many seconds to look again (None: on the next event)."""

    report: Report
    actions: tuple[Action, ...] = field(default=())
    look_again: float | None = None
