"""The teardown of a run that must end: a delete, repeated until nothing of the run is left. Pure.

It comes from a latch, which never opens, so it goes on whatever cannot be read and whatever is refused. The
first look deletes the workload in the foreground, so that its owner references lead to every pod. From the
second look on, everything that is not on its way out is deleted by its UID: pods without an owner, pods that
a controller made again, and what makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import MAX_NOTED_PODS, ConditionStatus, Phase, PodRef, StopStatus
from rlguard.operator.reconcile.conditions import Conditions, guard_maker, workload_ref_of
from rlguard.operator.reconcile.snapshot import (
    SELDOM,
    SOON,
    Action,
    CaptureEvidence,
    Decision,
    Delete,
    Doomed,
    Pod,
    Report,
    Snapshot,
    Workload,
    condition_of,
    is_true,
    must_stop,
)
from rlguard.operator.runtime.client import PODS

#: For how long a pod that has ended is left alone so that its log can be had.
LOGS_SECONDS = 15.0
#: How long after its time a pod may be there, and how long a finalizer may keep the workload, before that is
#: said.
OVERDUE_SECONDS = 15.0
FINALIZER_SECONDS = 20.0
#: So many pods are named in a message.
_SHOWN = 5
#: By this one the API server itself keeps an object until what it owns is gone.
_FOREGROUND = "foregroundDeletion"


def teardown(snapshot: Snapshot, says: Conditions, now: datetime) -> Decision | None:
    """Delete a fired or halted run until neither the workload nor a pod is left."""
    job = snapshot.job
    if not must_stop(job):
        return None
    stop = _stop(snapshot, now)
    if not _is_anything_left(snapshot):
        return _gone(snapshot, says, stop, now)
    first = snapshot.stop is None
    reason, message = _progress(snapshot, first, now)
    evidence: tuple[Action, ...] = () if job.status.evidence else (CaptureEvidence(final=False),)
    report = Report(
        Phase.STOPPING,
        says(says.make(ConditionType.STOPPED, "False", reason, message), *_kept(snapshot)),
        workload_ref_of(snapshot),
        stop,
    )
    return Decision(report, (*evidence, *_deletes(snapshot, stop, first, now)), SOON)


def _gone(snapshot: Snapshot, says: Conditions, stop: StopStatus, now: datetime) -> Decision:
    """Nothing is left. A target may be recreated at any time."""
    job = snapshot.job
    created = workload_ref_of(snapshot) is not None
    stopped = says.make(ConditionType.STOPPED, "True", Reason.NO_PODS_LEFT, Reason.NO_PODS_LEFT.meaning)
    report = Report(
        Phase.STOPPED,
        says(stopped, *_kept(snapshot), over=True),
        workload_ref_of(snapshot),
        stop.model_copy(update={"stopped_at": stop.stopped_at or now}) if created else None,
    )
    # No event tells that somebody recreated it.
    again = SELDOM if created and job.is_attached else None
    if created and job.status.evidence is None:
        return Decision(report, (CaptureEvidence(final=True),), SOON)
    return Decision(report, (), again)


def _kept(snapshot: Snapshot) -> Iterator[ConditionStatus | None]:
    """What stays said: whether it was guarded, and that its workload was gone before the latch."""
    yield condition_of(snapshot.job.status, ConditionType.GUARDED)
    if is_true(snapshot.job.status, ConditionType.DISRUPTED):
        yield condition_of(snapshot.job.status, ConditionType.DISRUPTED)


def _stop(snapshot: Snapshot, now: datetime) -> StopStatus:
    """What is noted of the teardown: since when, and the pods that are not known to be gone.

    A clock may have gone back; and what comes after Stopped is a teardown of its own.
    """
    before = snapshot.stop or StopStatus(requested_at=now)
    restarted = is_true(snapshot.job.status, ConditionType.STOPPED) and _is_anything_left(snapshot)
    pods = {pod.uid: pod.name for pod in snapshot.pods}
    if not snapshot.live:
        pods |= {uid: name for name, uid in snapshot.known.pods}
    refs = [PodRef(name=name, uid=uid) for uid, name in pods.items()]
    asked = now if restarted else min(before.requested_at, now)
    return before.model_copy(update={"requested_at": asked, "pods": refs[:MAX_NOTED_PODS]})


def _workload_left(snapshot: Snapshot) -> Workload | None:
    """The workload of the run; of a target also another one of its name, which somebody recreated.

    One that took the name before the latch is another run.
    """
    workload, job = snapshot.workload, snapshot.job
    if workload is None:
        return None
    was_there = job.status.workload_ref is not None and not is_true(job.status, ConditionType.DISRUPTED)
    recreated = job.is_attached and was_there
    return workload if workload.ours or recreated else None


def _is_anything_left(snapshot: Snapshot) -> bool:
    """Whether the workload, a pod, or something that makes pods is there, or may be."""
    makers = any(not one.terminating for one in snapshot.between) or guard_maker(snapshot)
    unknown = snapshot.unread or (snapshot.known.pods and not snapshot.live)
    return bool(_workload_left(snapshot) or snapshot.pods or unknown or makers)


def _deletes(snapshot: Snapshot, stop: StopStatus, first: bool, now: datetime) -> tuple[Delete, ...]:
    """What is deleted now: slow pods, because a kubelet never shortens a grace period; the workload; pods."""
    job, workload = snapshot.job, _workload_left(snapshot)
    limit = job.spec.stop_grace_seconds
    waits = job.status.evidence is None and (now - stop.requested_at).total_seconds() < LOGS_SECONDS
    staying = [pod for pod in snapshot.pods if not pod.terminating]
    slow = [pod for pod in staying if pod.grace > limit and not _has_ended(pod)]
    others = [pod for pod in staying if pod not in slow and not (_has_ended(pod) and waits)]
    makers = [one.doomed for one in guard_maker(snapshot)]
    if not first:
        makers += [one.doomed for one in snapshot.between if not one.terminating]
    if job.adapter is not None and workload is not None and not workload.terminating:
        makers.insert(0, Doomed(job.adapter.resource, job.workload_name, workload.uid))
    in_order = (_pods(slow, limit), tuple(makers), () if first else _pods(others))
    return tuple(Delete(objects) for objects in in_order if objects)


def _pods(pods: Iterable[Pod], grace: int | None = None) -> tuple[Doomed, ...]:
    return tuple(Doomed(PODS, pod.name, pod.uid, grace) for pod in pods)


def _has_ended(pod: Pod) -> bool:
    return pod.phase in {"Succeeded", "Failed"}


# -- what is said ----------------------------------------------------------------------------------------


def _progress(snapshot: Snapshot, first: bool, now: datetime) -> tuple[Reason, str]:
    """How far the teardown is."""
    left = _left(snapshot)
    if blocked := "; ".join(_obstacles(snapshot, now)):
        return Reason.STOP_BLOCKED, f"{blocked}; {left}"
    workload = _workload_left(snapshot)
    if workload is not None and not workload.ours:
        named = f"{snapshot.job.spec.workload.kind} {snapshot.job.workload_name}"
        who = workload.manager or "somebody"
        return Reason.TARGET_RECREATED, f"{who} recreated {named} after the fire: it is deleted again; {left}"
    return (Reason.STOP_REQUESTED if first else Reason.PODS_TERMINATING), left


def _obstacles(snapshot: Snapshot, now: datetime) -> Iterable[str]:
    """What keeps the workload or a pod, in its own words."""
    if refusal := snapshot.known.refusal:
        yield f"a delete was refused: {refusal}"
    if snapshot.unread:
        yield f"the pods cannot be read: {snapshot.unread}"
    overdue = [pod for pod in snapshot.pods if _over_by(pod, now) > OVERDUE_SECONDS]
    yield from (_overdue(pod) for pod in overdue[:_SHOWN])
    workload = _workload_left(snapshot)
    if workload is None or workload.deleted is None or (snapshot.pods and not overdue):
        return
    if (now - workload.deleted).total_seconds() > FINALIZER_SECONDS:
        named = f"{snapshot.job.spec.workload.kind} {snapshot.job.workload_name}"
        if held := [name for name in workload.finalizers if name != _FOREGROUND]:
            yield f"{named} is kept by {', '.join(held)}: does the controller run that set this finalizer?"
        elif not snapshot.pods:
            yield f"{named} waits for what it owns to be deleted: does the cluster's garbage collector run?"


def _over_by(pod: Pod, now: datetime) -> float:
    """For how long a pod on its way out should have ended, seconds."""
    return (now - pod.due).total_seconds() if pod.due is not None else 0.0


def _overdue(pod: Pod) -> str:
    """Why a pod is most likely still there: its node, or a finalizer if its containers have ended."""
    assert pod.due is not None
    if _has_ended(pod) and pod.finalizers:
        held = ", ".join(pod.finalizers)
        return f"pod {pod.name} has ended and is kept by {held}: remove that finalizer, or start what set it"
    return (
        f"pod {pod.name} should have ended at {pod.due:%H:%M:%S}: look at node {pod.node or 'unknown'}, and "
        "delete the node if it is gone for good"
    )


def _left(snapshot: Snapshot) -> str:
    """How many pods are left, and some of their names."""
    if not snapshot.pods:
        return "no pod is left; the workload is being deleted"
    shown = ", ".join(pod.name for pod in snapshot.pods[:_SHOWN])
    more = " ..." if len(snapshot.pods) > _SHOWN else ""
    return f"{len(snapshot.pods)} pods are left: {shown}{more}"
