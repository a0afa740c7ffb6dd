"""What the operator knows about one job at one moment, and what it decides: frozen values, no behaviour.

`gather` builds a `Snapshot`, `decide` turns it into a `Decision`, `actuate` carries that out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Any

from rlguard.core.wire import Verdict
from rlguard.operator.adapters import WorkloadAdapter, WorkloadState, find_adapter
from rlguard.operator.api.guard import Isolation
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import ConditionStatus, GuardStatus, Phase, Status, StopStatus, WorkloadRef
from rlguard.operator.api.types import OnFire, Spec
from rlguard.operator.guards.reading import Reading
from rlguard.operator.runtime.client import Resource

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
    """A `GuardedTrainingJob` whose spec validates.

    `deleting`: someone's finalizer alone still keeps it.
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
    guard: Mapping[str, Any] = field(default_factory=dict)
    unsaid: Unsaid = Unsaid.NOTHING

    @property
    def has_guard_pod(self) -> bool:
        """Whether the guard has a pod of its own, and is no sidecar of rank 0."""
        return self.spec.guard.own_pod is not None

    @property
    def is_attached(self) -> bool:
        """Whether its workload is one that it does not own."""
        return self.spec.target_ref is not None

    @property
    def adapter(self) -> WorkloadAdapter | None:
        """The row of its workload's kind; None: it cannot be guarded."""
        return find_adapter(self.spec.workload.api_version, self.spec.workload.kind)

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
class Doomed:
    """An object to delete, fenced by its UID. `grace`: seconds that a pod has to end; None: as it says."""

    resource: Resource
    name: str
    uid: str
    grace: int | None = None


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

    @property
    def doomed(self) -> Doomed:
        """It, to be deleted."""
        return Doomed(self.resource, self.name, self.uid)


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
    last_word: Verdict | None = None


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
class Remembered:
    """What this process remembers of a run beside its status.

    `pods`: (name, UID) of those that were seen and are not known to be gone. `stop`: the teardown under way.
    `refusal`: why the last delete was refused.
    """

    pods: tuple[tuple[str, str], ...] = ()
    stop: StopStatus | None = None
    refusal: str = ""


NOTHING_REMEMBERED = Remembered()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that `decide` looks at.

    `workload` None: there is none. `pods`: the oldest first. `unread`: why something cannot be read, so that
    it is here as it was seen last, and nothing but a latch is acted on; "": all of it can be.
    `preparation`: made while a workload might have to be created.
    `broken`: the rows of the isolation table that `isolation: Relaxed` admits in the template, or that pods
    of a target break; a sentence for each.
    `reading`: what was read of the guard; None: nothing. `silent_for`: how long it could not be heard while
    the rank-0 pod was running, seconds; None while nothing is to be expected of it.
    `unreached`: why it cannot be reached although the kubelet calls it ready; "" if it can.
    `most_silent`: more than half of all guards cannot be reached.
    `live`: all was read from the API server for this snapshot, and each pod that is `known` was looked for:
    one that is not in `pods` is gone.
    `late_for`: seconds for which pods have not come or not started, and no status says why; None: they have.
    `obstacle`: what Events say of that.
    `between`: what stands between the workload and its pods.
    `guard_maker`: the StatefulSet that makes the guard's own pod; None: there is none.
    `trainer`: the container that trains, in the pod of rank 0; "" where it is not known.
    """

    job: Job
    workload: Workload | None = None
    pods: tuple[Pod, ...] = ()
    preparation: Preparation = Preparation()
    broken: tuple[str, ...] = ()
    reading: Reading | None = None
    silent_for: float | None = None
    unreached: str = ""
    most_silent: bool = False
    live: bool = False
    late_for: float | None = None
    obstacle: Waiting | None = None
    between: tuple[Between, ...] = ()
    guard_maker: Between | None = None
    trainer: str = ""
    known: Remembered = NOTHING_REMEMBERED
    unread: str = ""

    @property
    def not_admitted(self) -> tuple[str, ...]:
        """Why the guard of a target is not told of its run yet: broken rows of the isolation table."""
        heard = self.reading is not None and self.reading.verdict is not None
        relaxed = self.job.spec.guard.isolation is Isolation.RELAXED
        return () if relaxed or heard or guard_of(self.job).level is not None else self.broken

    @property
    def stop(self) -> StopStatus | None:
        """How far the teardown is; None: it has not begun."""
        return self.known.stop or self.job.status.stop


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


# -- the decision -----------------------------------------------------------------------------------------

#: In how many seconds to look again where no event tells of a change: at what is under way, at what somebody
#: else may have mended, and at what costs requests or hardly ever changes.
SOON, OFTEN, SELDOM = 2.0, 10.0, 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """The operator's part of the status."""

    phase: Phase
    conditions: tuple[ConditionStatus, ...]
    workload_ref: WorkloadRef | None = None
    stop: StopStatus | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create what the guard needs, then the workload."""


@dataclass(frozen=True, slots=True)
class EnsureGuard:
    """Create what is missing of what the guard mounts, with the same bytes, and of what runs its own pod."""


@dataclass(frozen=True, slots=True)
class CaptureEvidence:
    """Write the evidence ConfigMap, beside the stop and never before it.

    Unless `final`, evidence without logs is not written, because the pods are still there and the next
    attempt may get them.
    """

    final: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete these objects in the foreground: what they own goes before they do."""

    objects: tuple[Doomed, ...]


def delete_makers(makers: Iterable[Between]) -> Delete:
    """Delete what makes pods."""
    return Delete(tuple(one.doomed for one in makers))


Action = CreateWorkload | EnsureGuard | CaptureEvidence | Delete


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, what to say, and in how many seconds to look again (None: on the next event)."""

    report: Report
    actions: tuple[Action, ...] = field(default=())
    look_again: float | None = None
