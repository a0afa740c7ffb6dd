"""What to do about one job. Pure: a frozen snapshot and the time go in, a frozen decision comes out.

An ordered chain of stages, in `decide`; the first one that has something to say decides. Teardown comes
first, because nothing may stand between a fire and the stop. Decisions are level-triggered: they follow from
what is, not from what was done, so that they may be repeated, lost, or made by two operators at once.

Only a latched fire is acted on as soon as it is seen. Every other reason to stop a run must come from a live
snapshot, and is written down (`Halted`, fenced by the job's resourceVersion) before anything is done.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.api.names import QUEUE_LABEL
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import ConditionStatus, Phase
from rlguard.operator.reconcile.conditions import (
    Conditions,
    as_it_is,
    guard_maker,
    last_verdict,
    reference_to,
    whether_guarded,
    with_conditions,
    workload_ref_of,
)
from rlguard.operator.reconcile.endings import ended_by_itself, noted_disruption, over_already
from rlguard.operator.reconcile.halts import ended_before, gave_up, halt_due, held_back, is_silent
from rlguard.operator.reconcile.obstacles import SOON_SECONDS
from rlguard.operator.reconcile.snapshot import (
    OFTEN,
    SELDOM,
    SOON,
    Action,
    CreateWorkload,
    Decision,
    EnsureGuard,
    Preparation,
    Report,
    Snapshot,
    Waiting,
    condition_of,
    delete_makers,
    guard_of,
    is_true,
    must_stop,
)
from rlguard.operator.reconcile.teardown import teardown

#: How often at least a running job is looked at.
RUNNING_SECONDS = 600.0


def decide(snapshot: Snapshot, now: datetime) -> Decision:
    """The decision for this snapshot at this time (UTC)."""
    says = Conditions(snapshot, now)
    decision = (
        _halt(snapshot, says)
        or teardown(snapshot, says, now)
        or _report_fire(snapshot, says)
        or _unread(snapshot, says)
        or _deleting(snapshot)
        or over_already(snapshot, now)
        or ended_by_itself(snapshot, says)
        or _attach(snapshot, says)
        or _create(snapshot, says)
        or _running(snapshot, says)
    )
    return _noted(snapshot, decision)


def _noted(snapshot: Snapshot, decision: Decision) -> Decision:
    """Evidence that was written stays in the status, whatever else is decided."""
    return replace(decision, report=replace(decision.report, evidence=snapshot.job.status.evidence))


def _halt(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """An action halts the run: that is written down, and acted on once it stands in the status."""
    if must_stop(snapshot.job) or halt_due(snapshot) is None:
        return None
    if not snapshot.live and guard_of(snapshot.job).halt is None:
        return Decision(as_it_is(snapshot.job.status), look_again=SOON)
    status = snapshot.job.status
    conditions = says(condition_of(status, ConditionType.GUARDED))
    report = Report(status.phase or Phase.RUNNING, conditions, workload_ref_of(snapshot), status.stop)
    return Decision(report, look_again=SOON)


def _report_fire(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """Write down a fire that stops nothing (`onFire: Report`) and is heard of once the run is over."""
    fire, status = guard_of(snapshot.job).fire, snapshot.job.status
    if fire is None or is_true(status, ConditionType.FIRED) or not ended_before(snapshot.job):
        return None
    return Decision(with_conditions(as_it_is(status), says.fired_by(fire)), (), SOON)


def _unread(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """Nothing is known of a run of which something cannot be read. It goes on as it is, and that is said."""
    if not snapshot.unread:
        return None
    status = snapshot.job.status
    if snapshot.job.deleting or ended_before(snapshot.job):
        return Decision(as_it_is(status), look_again=SELDOM)
    unread = snapshot.unread
    silent = f"{unread}, so nobody knows whether the guard is silent, or how the run is"
    new = [says.make(ConditionType.GUARD_SILENT, "Unknown", Reason.KIND_UNREAD, silent)]
    if (fired := condition_of(status, ConditionType.FIRED)) is not None and fired.status == "False":
        message = f"there is no verdict now: {unread}; {last_verdict(guard_of(snapshot.job))}"
        new.append(says.make(ConditionType.FIRED, "Unknown", Reason.KIND_UNREAD, message))
    return Decision(with_conditions(as_it_is(status), *new), look_again=SELDOM)


def _deleting(snapshot: Snapshot) -> Decision | None:
    """Somebody's finalizer keeps a deleted job: it is torn down if it must be, and nothing else is said."""
    if not snapshot.job.deleting:
        return None
    return Decision(as_it_is(snapshot.job.status), look_again=_until_silence(snapshot))


def _attach(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """A workload that exists gets its guard once its UID is written down: no other is ever acted on."""
    job, workload, preparation = snapshot.job, snapshot.workload, snapshot.preparation
    if not job.is_attached or job.status.workload_ref is not None:
        return None
    if preparation.reason is Reason.TARGET_MISSING:
        waits = says.make(ConditionType.WAITING, "True", preparation.reason, preparation.message)
        return _not_yet(says, Phase.PENDING, replace(preparation, reason=Reason.WORKLOAD_PENDING), waits)
    if preparation.reason is not None:
        return _not_yet(says, Phase.REFUSED, preparation)
    assert workload is not None, "gather says that it is missing"
    reason, message = Reason.WORKLOAD_ATTACHED, Reason.WORKLOAD_ATTACHED.meaning
    if claim := preparation.owned_claim:
        reason = Reason.CLAIM_OWNED
        message = (
            f"the workload is guarded. It owns PersistentVolumeClaim {claim}, so a fire deletes the "
            "checkpoints, too: remove that owner reference to keep them"
        )
    guarded = says.make(ConditionType.GUARDED, "True", reason, message)
    report = Report(Phase.PENDING, says(guarded), reference_to(job, workload))
    return Decision(report, look_again=SOON)


def _not_yet(
    says: Conditions, phase: Phase, why: Preparation, waits: ConditionStatus | None = None
) -> Decision:
    """Nothing runs under guard, and why. So there is nothing to say about isolation."""
    assert why.reason is not None
    guarded = says.make(ConditionType.GUARDED, "False", why.reason, why.message)
    conditions = tuple(c for c in says(guarded, waits) if c.type != ConditionType.ISOLATED)
    return Decision(Report(phase, conditions), look_again=why.ask_again)


def _create(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """There is no workload yet: create it, or say why not."""
    workload, preparation = snapshot.workload, snapshot.preparation
    if workload is not None and workload.ours:
        return None
    if workload is not None:
        message = (
            f"a {snapshot.job.spec.workload.kind} of this name exists and is not this job's: rename the job"
        )
        preparation = Preparation(Reason.NAME_TAKEN, message, SELDOM)
    if preparation.reason is not None:
        return _not_yet(says, Phase.REFUSED, preparation)
    guarded = says.make(
        ConditionType.GUARDED, "False", Reason.WORKLOAD_PENDING, Reason.WORKLOAD_PENDING.meaning
    )
    report = Report(Phase.PENDING, says(guarded))
    return Decision(report, (CreateWorkload(),), SOON)


def _running(snapshot: Snapshot, says: Conditions) -> Decision:
    """The workload is there and neither finished nor to be stopped."""
    job, workload = snapshot.job, snapshot.workload
    assert workload is not None
    # A trainer that never reports does not read as one that is watched.
    running = Phase.STARTING if guard_of(job).step is None else Phase.RUNNING
    if all(pod.terminating for pod in snapshot.pods):  # its controller may say Running until it makes others
        running = Phase.PENDING
    phase = {
        WorkloadState.RUNNING: running,
        WorkloadState.SUSPENDED: Phase.SUSPENDED,
    }.get(workload.state, Phase.PENDING)
    report = Report(
        phase,
        says(whether_guarded(snapshot, says), noted_disruption(snapshot, says), _waiting(snapshot, says)),
        workload_ref_of(snapshot),
        job.status.stop,
    )
    again = _until_silence(snapshot)
    if snapshot.late_for is not None or job.is_attached:  # no event tells that it still is, or of its pods
        again = min(again or OFTEN, OFTEN)
    return Decision(report, _for_the_guard(snapshot, workload.state), again)


def _for_the_guard(snapshot: Snapshot, state: WorkloadState) -> tuple[Action, ...]:
    """Its own pod is there while the run is, and takes no GPU while a queue holds the run back.

    What a pod that does not start may lack is made again, if somebody removed it.
    """
    maker = guard_maker(snapshot)
    if state is WorkloadState.SUSPENDED:
        return (delete_makers(maker),) if maker else ()
    missing = snapshot.job.has_guard_pod and snapshot.guard_maker is None
    return (EnsureGuard(),) if missing or (snapshot.late_for or 0.0) > SOON_SECONDS else ()


def _waiting(snapshot: Snapshot, says: Conditions) -> ConditionStatus | None:
    """The pod that the others wait for: the guarded one if it cannot start, else the first that cannot.

    Else what Events say of pods that do not come or do not start.
    """
    pods = [pod for pod in snapshot.pods if not pod.terminating]
    tired = gave_up(snapshot)
    stuck = [] if tired is None else [(True, tired.name, Waiting(Reason.GUARD_NOT_READY, tired.gave_up))]
    stuck += [(not pod.guarded, pod.name, pod.waiting) for pod in pods if pod.waiting is not None]
    if stuck:
        _, name, waiting = min(stuck, key=lambda one: one[:2])
        return says.waits_for(name, waiting)
    obstacle = _queue(snapshot) or snapshot.obstacle
    if obstacle is not None:
        return says.make(ConditionType.WAITING, "True", obstacle.reason, obstacle.message)
    return None


def _queue(snapshot: Snapshot) -> Waiting | None:
    """The queue that holds the run back, by Kueue's label. What ends of it meanwhile does not count."""
    workload, job = snapshot.workload, snapshot.job
    if workload is None or workload.state is not WorkloadState.SUSPENDED:
        return None
    own = job.spec.template.metadata.labels if job.spec.template is not None else {}
    label = job.labels.get(QUEUE_LABEL) or own.get(QUEUE_LABEL)
    if label is None:
        return None
    return Waiting(Reason.QUEUED, f"waits in queue {label}, which resumes it")


def _until_silence(snapshot: Snapshot) -> float | None:
    """When the guard would be called silent, if it is to report and nothing happens before; seconds."""
    if snapshot.silent_for is None:
        return None
    if is_silent(snapshot) and held_back(snapshot):
        return SELDOM
    if snapshot.reading is not None and snapshot.reading.unreached_since is not None:
        return OFTEN  # no event tells that it still cannot be reached
    left = snapshot.job.spec.on_silence.after_seconds - snapshot.silent_for
    return min(RUNNING_SECONDS, left + 0.1) if left >= 0 else RUNNING_SECONDS
