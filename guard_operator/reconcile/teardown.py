"""The stop of a run that must end: asked for, asked for in a harder way, until no pod is left. Pure.

It comes from a latch, which never opens, so it goes on whatever cannot be read and whatever has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from guard_operator.adapters import LASTING, WorkloadState
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import Latched, Phase, StopMethod, StopStatus
from guard_operator.reconcile.conditions import Conditions, guard_maker, is_attached, workload_ref_of
from guard_operator.reconcile.decision import (
    Action,
    CaptureEvidence,
    Decision,
    DeleteBetween,
    DeletePods,
    LeaveQueue,
    RecordLatches,
    Report,
    StopWorkload,
)
from guard_operator.reconcile.queues import may_undo
from guard_operator.reconcile.snapshot import Between, Pod, Snapshot, condition_of, guard_of, is_true

#: How long one way of stopping may go without effect before the next harder one is asked for.
REASSERT_SECONDS = 15.0
#: How often a teardown under way is looked at.
STOPPING_SECONDS = 2.0
#: For how long no pod must have been seen before a run is called stopped: a controller whose cache is behind
#: makes pods again. One that did not act on a request is behind: after an outage of the API server its watch
#: is back after half a minute, and what it does until then is of the past.
SETTLE_SECONDS = 5.0
SETTLE_ESCALATED_SECONDS = 30.0
#: How long after the first of these it is looked at once more.
LATER_SECONDS = 60.0
#: For how long a pod may be there after it should have ended before that is said.
OVERDUE_SECONDS = 15.0
_HARDER = {
    StopMethod.STOP: StopMethod.DELETE,
    StopMethod.SUSPEND: StopMethod.DELETE,
    StopMethod.DELETE: StopMethod.DELETE_PODS,
    StopMethod.DELETE_PODS: StopMethod.DELETE_PODS,
}
_ENDED = frozenset({WorkloadState.SUCCEEDED, WorkloadState.FAILED})
_EMPTY = "no pod of the run is left"


def left_fire(snapshot: Snapshot) -> Latched | None:
    """A fire that a guard left when it ended, and that is not in the status."""
    if guard_of(snapshot.job).fire is not None:
        return None
    return next((pod.fire for pod in snapshot.pods if pod.guarded and pod.fire is not None), None)


def teardown(snapshot: Snapshot, says: Conditions, now: datetime) -> Decision | None:
    """A fired or halted run is stopped, and stopped again, until no pod is left."""
    if says.fired.status != "True" and says.halted is None:
        return None
    job, stop = snapshot.job, _by_now(snapshot.stop, now)
    guarded = condition_of(job.status, ConditionType.GUARDED)
    first = StopStatus(requested_at=now, method=_first_method(snapshot))
    if _nothing_can_run(snapshot):
        if workload_ref_of(snapshot) is None:  # nothing was ever created
            stopped = says.make(ConditionType.STOPPED, "True", Reason.NO_PODS_LEFT, _EMPTY)
            return Decision(Report(Phase.STOPPED, says(stopped, guarded, over=True), None, stop))
        # No stop yet: an operator asked for it and died before it said so, or the run ended by itself.
        return _empty(snapshot, says, stop or first, now)
    if stop is None:
        stop = first
        stopped = says.make(
            ConditionType.STOPPED, "False", Reason.STOP_REQUESTED, f"asked for: {stop.method}"
        )
        actions = (CaptureEvidence(final=False), *_stop_actions(snapshot, stop.method))
    else:
        stop = stop.model_copy(update={"empty_since": None})
        if _was_stopped_since(snapshot, stop, now):
            # It had its effect, and somebody resumed the run since: the same request once more, from now. A
            # run that is resumed before it was called stopped has one that keeps it from stopping.
            stop = stop.model_copy(update={"requested_at": now})
        elif _is_without_effect(snapshot) and _lasted(stop, now) >= REASSERT_SECONDS:
            stop = stop.model_copy(update={"method": _HARDER[stop.method], "requested_at": now})
        stopped = says.make(
            ConditionType.STOPPED, "False", _how_far(snapshot, now), _left(snapshot, stop, now)
        )
        evidence = () if job.status.evidence else (CaptureEvidence(final=False),)
        actions = (
            *_stop_actions(snapshot, stop.method),
            *evidence,
            *_ended_pods(snapshot, stop, now),
            *_shortened(snapshot),
        )
    if (fire := left_fire(snapshot)) is not None:
        actions = (*actions, RecordLatches(fire))
    report = Report(Phase.STOPPING, says(stopped, guarded), workload_ref_of(snapshot), stop)
    return Decision(report, actions, STOPPING_SECONDS)


def _was_stopped_since(snapshot: Snapshot, stop: StopStatus, now: datetime) -> bool:
    """Whether the run is called stopped, and this was asked for before: then it had its effect.

    `stopped_at` is of the first time, and a run may be resumed any number of times. A time in the future
    tells nothing.
    """
    said = condition_of(snapshot.job.status, ConditionType.STOPPED)
    return (
        said is not None and said.status == "True" and stop.requested_at <= said.last_transition_time <= now
    )


def _by_now(stop: StopStatus | None, now: datetime) -> StopStatus | None:
    """The same with no time in the future: a clock went back, and nothing waits until it has caught up."""
    if stop is None:
        return None
    empty = None if stop.empty_since is None else min(stop.empty_since, now)
    return stop.model_copy(update={"requested_at": min(stop.requested_at, now), "empty_since": empty})


def _empty(snapshot: Snapshot, says: Conditions, stop: StopStatus, now: datetime) -> Decision:
    """No pod is there, and none can come: called stopped once that has lasted, and looked at once more."""
    job = snapshot.job
    stop = stop.model_copy(update={"empty_since": stop.empty_since or now})
    assert stop.empty_since is not None
    lasted = (now - stop.empty_since).total_seconds()
    settle = SETTLE_SECONDS if stop.method == _first_method(snapshot) else SETTLE_ESCALATED_SECONDS
    again: float | None
    if lasted >= settle or is_true(job.status, ConditionType.STOPPED):
        stop = stop.model_copy(update={"stopped_at": stop.stopped_at or now})
        stopped = says.make(ConditionType.STOPPED, "True", Reason.NO_PODS_LEFT, _EMPTY)
        looks = lasted < LATER_SECONDS or _may_be_resumed(snapshot)
        phase, again = Phase.STOPPED, LATER_SECONDS if looks else None
    else:
        stopped = says.make(ConditionType.STOPPED, "False", Reason.SETTLING, Reason.SETTLING.meaning)
        phase, again = Phase.STOPPING, settle - lasted
    actions = () if job.status.evidence else (CaptureEvidence(final=True),)
    if actions and again is not None:
        again = min(again, STOPPING_SECONDS)
    guarded = condition_of(job.status, ConditionType.GUARDED)
    report = Report(phase, says(stopped, guarded, over=True), workload_ref_of(snapshot), stop)
    return Decision(report, actions, again)


def _first_method(snapshot: Snapshot) -> StopMethod:
    """What `onFire` asks for, one of the three mildest; of an unknown kind the pods are all that can go."""
    if snapshot.unknown_kind:
        return StopMethod.DELETE_PODS
    return StopMethod(snapshot.job.spec.on_fire.value)


def _nothing_can_run(snapshot: Snapshot) -> bool:
    """No pod is left, and none is made: the workload is gone, finished, or suspended because we asked."""
    if snapshot.pods or snapshot.pods_unread or snapshot.makers_unread or guard_maker(snapshot):
        return False
    if snapshot.unknown_kind and snapshot.job.status.workload_ref is not None:
        return False
    workload, stop = snapshot.workload, snapshot.stop
    if workload is None or not workload.ours or workload.terminating:
        # What it made goes with it, but not before it has gone: meanwhile that makes pods.
        return not _makers(snapshot)
    if workload.state is WorkloadState.SUSPENDED:
        if snapshot.queued is not None:  # whoever suspended it, nobody resumes it
            return stop is not None and not snapshot.queued.may_resume
        return stop is not None and stop.method is StopMethod.SUSPEND
    return _is_over(snapshot) and not any(one.resource in LASTING for one in _makers(snapshot))


def _is_over(snapshot: Snapshot) -> bool:
    """Whether the workload has ended, and is not started again unseen: what a template made is watched."""
    workload = snapshot.workload
    if workload is None or (workload.starts_again and is_attached(snapshot.job)):
        return False
    return workload.state in _ENDED


def _may_be_resumed(snapshot: Snapshot) -> bool:
    """Whether somebody may resume it, of which no event would tell."""
    workload = snapshot.workload
    if not is_attached(snapshot.job) or workload is None or not workload.ours:
        return False
    return workload.state is WorkloadState.SUSPENDED


def _makers(snapshot: Snapshot) -> tuple[Between, ...]:
    """What makes pods for the workload, and is not on its way out."""
    return tuple(one for one in snapshot.between if not one.terminating)


def _is_going(snapshot: Snapshot) -> bool:
    """Every pod is on its way out, or has ended: the stop has its effect."""
    if snapshot.pods_unread or not snapshot.pods:
        return False
    return all(pod.terminating or _has_ended(pod) for pod in snapshot.pods)


def _is_without_effect(snapshot: Snapshot) -> bool:
    """Whether nothing that can be read says that the stop has its effect.

    That is said by the pods; where they cannot be read, by a workload that has ended; and where that, or what
    makes its pods, cannot be read, by no pod being there.
    """
    workload = snapshot.workload
    if snapshot.pods_unread:
        return workload is None or workload.unread or not _is_over(snapshot)
    unread = workload is not None and (workload.unread or snapshot.makers_unread)
    return not (_is_going(snapshot) or (unread and not snapshot.pods))


def _lasted(stop: StopStatus, now: datetime) -> float:
    """For how long this way of stopping has been asked for, seconds."""
    return (now - stop.requested_at).total_seconds()


def _how_far(snapshot: Snapshot, now: datetime) -> Reason:
    if snapshot.pods_unread:
        return Reason.PODS_UNREAD
    overdue = any(_over_by(pod, now) > OVERDUE_SECONDS for pod in snapshot.pods)
    return Reason.PODS_OVERDUE if overdue else Reason.PODS_TERMINATING


def _has_ended(pod: Pod) -> bool:
    return pod.phase in {"Succeeded", "Failed"}


def _stop_actions(snapshot: Snapshot, method: StopMethod) -> tuple[Action, ...]:
    """The same request again is harmless; it is left out only where it has its effect."""
    actions: list[Action] = [*_hastened(snapshot)]
    workload = snapshot.workload
    queued = snapshot.queued
    if queued is not None and may_undo(queued, workload, method):
        actions.append(LeaveQueue(queued.name, queued.uid))
    asked_and_going = snapshot.stop is not None and _is_going(snapshot)
    if workload is not None and workload.ours and not workload.terminating and not asked_and_going:
        of_workload = StopMethod.DELETE if method is StopMethod.DELETE_PODS else method
        actions.append(StopWorkload(of_workload, workload.uid))
    if maker := guard_maker(snapshot):  # a sidecar ends with its trainer, too
        actions.append(DeleteBetween(maker))
    if method is StopMethod.DELETE_PODS:
        # A workload whose deletion hangs keeps what makes its pods.
        if makers := _makers(snapshot):
            actions.append(DeleteBetween(makers))
        actions.append(_delete(p for p in snapshot.pods if not p.terminating and not _is_slow(snapshot, p)))
    return tuple(actions)


def _is_slow(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether it may take longer to end than the job allows."""
    return pod.grace > snapshot.job.spec.stop_grace_seconds


def _hastened(snapshot: Snapshot) -> tuple[DeletePods, ...]:
    """Slow pods are told to end before what makes them is: a kubelet keeps the grace period it began with."""
    return _in_time(snapshot, (p for p in snapshot.pods if not p.terminating and not _has_ended(p)))


def _delete(pods: Iterable[Pod], grace: int | None = None) -> DeletePods:
    return DeletePods(tuple((pod.name, pod.uid) for pod in pods), grace)


def _shortened(snapshot: Snapshot) -> tuple[DeletePods, ...]:
    """Slow pods that others told to end: the API server takes less time for them, a kubelet may not."""
    return _in_time(snapshot, (pod for pod in snapshot.pods if pod.terminating))


def _in_time(snapshot: Snapshot, pods: Iterable[Pod]) -> tuple[DeletePods, ...]:
    """The slow ones of these pods, with the time that the job allows."""
    slow = [pod for pod in pods if _is_slow(snapshot, pod)]
    return (_delete(slow, snapshot.job.spec.stop_grace_seconds),) if slow else ()


def _ended_pods(snapshot: Snapshot, stop: StopStatus, now: datetime) -> tuple[DeletePods, ...]:
    """Pods that have ended and that their workload keeps go too, but their logs are had first, if at all.

    Of pods that cannot be read, each that was seen last may have been left behind.
    """
    unread = bool(snapshot.pods_unread)
    ended = [pod for pod in snapshot.pods if (unread or _has_ended(pod)) and not pod.terminating]
    waits = (unread or snapshot.job.status.evidence is None) and _lasted(stop, now) < REASSERT_SECONDS
    return (_delete(ended),) if ended and not waits else ()


def _over_by(pod: Pod, now: datetime) -> float:
    """For how long a pod on its way out should have ended, seconds."""
    return (now - pod.due).total_seconds() if pod.due is not None else 0.0


def _left(snapshot: Snapshot, stop: StopStatus, now: datetime) -> str:
    if snapshot.unknown_kind and snapshot.preparation is not None:
        return (
            f"{snapshot.preparation.message} nor stopped by this operator: its pods are deleted as they come"
        )
    if not snapshot.pods and not snapshot.pods_unread:
        why = f", and what makes them cannot be read: {unread}" if (unread := snapshot.makers_unread) else ""
        return f"asked for: {stop.method}; the workload may still make pods{why}"
    shown = ", ".join(_shown(pod, now) for pod in snapshot.pods[:5])
    more = " ..." if len(snapshot.pods) > 5 else ""
    left = f"{len(snapshot.pods)} pods are left: {shown}{more}"
    if snapshot.pods_unread:
        why = f"its pods cannot be read, so nobody knows what is left: {snapshot.pods_unread}"
        left = f"{why}; as they were seen last, {left}" if snapshot.pods else why
    return f"asked for: {stop.method}; {left}"


def _shown(pod: Pod, now: datetime) -> str:
    """A pod that is left; one that is overdue with its node, which is most likely the reason.

    Where its containers have ended its node is not: a finalizer keeps it.
    """
    if pod.due is None or _over_by(pod, now) <= OVERDUE_SECONDS:
        return pod.name
    if _has_ended(pod) and pod.finalizers:
        held = ", ".join(pod.finalizers)
        return f"{pod.name} (has ended, and is kept by {held}: who set that finalizer must take it away)"
    return (
        f"{pod.name} (should have ended at {pod.due:%H:%M:%S}; look at node {pod.node or 'unknown'}, and if "
        "it is gone for good, delete it from the cluster)"
    )
