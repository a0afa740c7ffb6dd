"""What the operator knows about one job at one moment: frozen values, and what is looked up in them.

`gather` builds a `Snapshot`, `decide` turns it into a `Decision`, `actuate` carries that out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Any

from guard_operator.adapters import WorkloadState
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import (
    ConditionStatus,
    GuardStatus,
    OnFire,
    Phase,
    Spec,
    Status,
    StopStatus,
)
from guard_operator.guards.reading import LastWord, Reading
from guard_operator.runtime.client import Resource

#: How many finalizers of a pod are named.
MAX_FINALIZERS = 4
#: What a pod has to end unless it says otherwise, seconds.
GRACE_SECONDS = 30


class Unsaid(Enum):
    """Whether the status lacks what was read of the guard. FIGURES: of what may wait for a few seconds."""

    NOTHING = auto()
    FIGURES = auto()
    VERDICT = auto()


@dataclass(frozen=True, slots=True)
class Job:
    """A `GuardedTrainingJob` whose spec validates, or has a workload and is read as far as it can be.

    `deleting`: someone's finalizer alone still keeps it. `guard_known`: all of `spec.guard` could be read.
    `guard`: `status.guard` as JSON, with what was read of the guard since; `unsaid`: what of that it lacks.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    labels: Mapping[str, str]
    spec: Spec
    status: Status
    deleting: bool = False
    guard_known: bool = True
    guard: Mapping[str, Any] = field(default_factory=dict)
    unsaid: Unsaid = Unsaid.NOTHING

    @property
    def workload_name(self) -> str:
        """What the workload is called: as its job, unless the job names one that exists."""
        target = self.spec.target_ref
        return self.name if target is None else target.name


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of the job's name, or of that which the job is attached to.

    `ours`: this very job (by UID) is its controller, or `status.workloadRef` names it (by UID).
    `created` and `deleted` (when its deletion began) are by the API server's clock. `finalizers`: what keeps
    it then. `manager`: the field manager that created it.
    """

    uid: str
    ours: bool
    state: WorkloadState
    message: str = ""
    created: datetime | None = None
    deleted: datetime | None = None
    finalizers: tuple[str, ...] = ()
    manager: str = ""

    @property
    def terminating(self) -> bool:
        """Whether its deletion has begun."""
        return self.deleted is not None


@dataclass(frozen=True, slots=True)
class Between:
    """What the workload controls, and what makes its pods, such as a RayCluster.

    `created` is by the API server's clock.
    """

    resource: Resource
    name: str
    uid: str
    terminating: bool = False
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class OwnGuard:
    """That the guard has a pod of its own. `made`: the StatefulSet that makes it; None: there is none.

    `taken`: the name of that StatefulSet, if one has it that is not the job's.
    """

    made: Between | None = None
    taken: str = ""


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
    """A pod that carries the job's UID, whoever made it: it must go when the run is stopped.

    Only a pod whose controller is the workload has anything to say: `rank0`, `guarded` (it holds rank 0 and
    a guard), `ready` (the kubelet calls that guard ready), `address` (of the pod, while its guard runs),
    `guard_since` (since when it runs; None: it does not), `failure` (how its trainer failed, in words) and
    `failed_at`, `gave_up` (what was said when it had waited for a guard elsewhere as long as it may),
    `disruption`, `waiting`, and `last_word`, which its guard left when it ended. `cut_off`: the control plane
    has lost its node.
    `grace`: how long it has to end, seconds; `due`: when it must have ended, if it is on its way out, and
    `finalizers`: what keeps it then, the first few by name.
    `created`: by the API server's clock.
    """

    name: str
    uid: str
    guarded: bool
    phase: str
    terminating: bool = False
    rank0: bool = False
    ready: bool = False
    address: str = ""
    cut_off: bool = False
    guard_since: datetime | None = None
    grace: int = GRACE_SECONDS
    due: datetime | None = None
    finalizers: tuple[str, ...] = ()
    created: datetime | None = None
    node: str = ""
    failure: str = ""
    failed_at: datetime | None = None
    gave_up: str = ""
    disruption: Disruption | None = None
    waiting: Waiting | None = None
    last_word: LastWord | None = None


def finalizers_of(metadata: Mapping[str, Any]) -> list[str]:
    """What keeps an object that is on its way out; of another one they say nothing."""
    return list(metadata.get("finalizers") or [])[:MAX_FINALIZERS] if "deletionTimestamp" in metadata else []


@dataclass(frozen=True, slots=True)
class Preparation:
    """What was found out before the workload is created. `reason` None: nothing speaks against it.

    `owned_claim`: a claim that the guard mounts and the target owns; "": none.
    """

    reason: Reason | None = None
    message: str = ""
    #: Seconds after which asking again could end differently although the spec is the same.
    ask_again: float | None = None
    owned_claim: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that `decide` looks at.

    `workload` None: there is none. `pods`: the oldest first; as they were seen last where they could not be
    read, and `pods_unread` says why. `preparation` is only there while a workload might have to be created.
    `broken`: the rows of the isolation table that `isolation: Relaxed` admits, a sentence for each.
    `reading`: what was read of the guard; None: nothing. `silent_for`: how long it could not be heard while
    the rank-0 pod was running, seconds; None while nothing is to be expected of it, or `deaf`.
    `unreached`: why it cannot be reached although the kubelet calls it ready; "" if it can.
    `most_silent`: more than half of all guards cannot be reached.
    `live`: job, workload and pods were read from the API server for this snapshot, not from a cache.
    `unknown_kind`: there is no adapter for the workload, so nothing is known of it.
    `guard_image`: of the guard that is, or would be, injected.
    `late`: pods have not come or not started, and no status says why; `overdue`: for long. `obstacle`: what
    Events say of that.
    `between`: what stands between the workload and its pods.
    `own_guard`: None where the guard is a sidecar of rank 0, and `guarded` pods are those of rank 0.
    `exposed`: what pods of a workload to which the job is attached have of the guard's, a sentence for each.
    `trainer`: the container that trains, in the pod of rank 0; "" where it is not known.
    `refusal`: why the last delete was refused, in the API server's words; "": none was.
    `asked`: how far the teardown is, if this process knows more than the status.
    `seen`: (name, UID) of pods that were seen before. `all_pods_read`: each of them was looked for, so that
    one that is not in `pods` is gone.
    """

    job: Job
    workload: Workload | None = None
    pods: tuple[Pod, ...] = ()
    preparation: Preparation | None = None
    broken: tuple[str, ...] = ()
    reading: Reading | None = None
    silent_for: float | None = None
    unreached: str = ""
    deaf: bool = False
    most_silent: bool = False
    live: bool = False
    unknown_kind: bool = False
    guard_image: str | None = None
    late: bool = False
    overdue: bool = False
    obstacle: Waiting | None = None
    between: tuple[Between, ...] = ()
    own_guard: OwnGuard | None = None
    exposed: tuple[str, ...] = ()
    trainer: str = ""
    pods_unread: str = ""
    refusal: str = ""
    asked: StopStatus | None = None
    seen: tuple[tuple[str, str], ...] = ()
    all_pods_read: bool = False

    @property
    def stop(self) -> StopStatus | None:
        """How far the teardown is; None: it has not begun."""
        return self.asked or self.job.status.stop


def with_conditions(job: Job, conditions: Iterable[ConditionStatus]) -> Job:
    """The job with these conditions in its status."""
    return replace(job, status=job.status.model_copy(update={"conditions": list(conditions)}))


def guard_of(job: Job) -> GuardStatus:
    """What the guard reports; empty while it has not."""
    return job.status.guard or GuardStatus()


def condition_of(status: Status, kind: ConditionType) -> ConditionStatus | None:
    """The condition of this type, if there is one."""
    return next((c for c in status.conditions if c.type == kind), None)


#: The conditions with which a run has ended, and its phase then.
OVER = {
    ConditionType.SUCCEEDED: Phase.SUCCEEDED,
    ConditionType.FAILED: Phase.FAILED,
    ConditionType.DISRUPTED: Phase.DISRUPTED,
}


def is_true(status: Status, kind: ConditionType) -> bool:
    """Whether there is such a condition and it holds."""
    condition = condition_of(status, kind)
    return condition is not None and condition.status == "True"


def must_stop(job: Job) -> bool:
    """Whether the status says that the run must stop: a fire that is to stop it, or a halt."""
    fired = guard_of(job).fire is not None or is_true(job.status, ConditionType.FIRED)
    return is_true(job.status, ConditionType.HALTED) or (fired and job.spec.on_fire is OnFire.STOP)


class OwnEnd(Enum):
    """What became of a workload that nobody stopped. GONE: there is none, or another one than it was."""

    GONE = auto()
    SUCCEEDED = auto()
    FAILED = auto()


def own_end(snapshot: Snapshot) -> OwnEnd | None:
    """How the workload ended, if nobody stopped it."""
    workload, ref = snapshot.workload, snapshot.job.status.workload_ref
    if ref is None and (workload is None or not workload.ours):
        return None
    if workload is None or not workload.ours or (ref and ref.uid != workload.uid):
        return OwnEnd.GONE
    if workload.state is WorkloadState.SUCCEEDED:
        return OwnEnd.SUCCEEDED
    if workload.terminating:  # its pods are on their way out, which looks like a failure
        return OwnEnd.GONE
    return OwnEnd.FAILED if workload.state is WorkloadState.FAILED else None
