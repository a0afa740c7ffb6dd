"""What to do about one job. Pure: a frozen snapshot and the time go in, a frozen decision comes out.

An ordered chain of stages, in `decide`; the first one that has something to say decides. Teardown comes
first, because nothing may stand between a fire and the stop. Decisions are level-triggered: they follow from
what is, not from what was done, so that they may be repeated, lost, or made by two operators at once.

Only a latched fire is acted on as soon as it is seen. Every other reason to stop a run must come from a live
snapshot, and is written down (`Halted`, fenced by the job's resourceVersion) before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from guard_core.ending import not_judged, steps_after
from guard_operator.adapters import LASTING, WorkloadState
from guard_operator.api.names import QUEUE_LABEL
from guard_operator.api.reasons import FIRE_REASONS, ConditionType, Reason
from guard_operator.api.types import (
    ConditionStatus,
    Latched,
    MadeRef,
    Phase,
    StopMethod,
    StopStatus,
    WorkloadRef,
)
from guard_operator.reconcile.attached import UNPROTECTED
from guard_operator.reconcile.decision import (
    Action,
    CaptureEvidence,
    CreateWorkload,
    Decision,
    DeleteBetween,
    DeletePods,
    LeaveQueue,
    RecordLatches,
    Report,
    StartGuard,
    StopWorkload,
)
from guard_operator.reconcile.halts import (
    gave_up,
    halt_due,
    halted_by,
    held_back,
    is_at_once,
    is_running,
    is_silent,
    is_to_stop,
    silence_message,
    unguarded_pod,
    without_guard,
)
from guard_operator.reconcile.queues import may_undo, waits_in
from guard_operator.reconcile.snapshot import (
    OVER,
    Between,
    Disruption,
    Job,
    OwnGuard,
    Pod,
    Preparation,
    Snapshot,
    Waiting,
    Workload,
    condition_of,
    guard_of,
    is_true,
)

#: How long one way of stopping may go without effect before the next harder one is asked for.
REASSERT_SECONDS = 15.0
#: How often a teardown under way is looked at.
STOPPING_SECONDS = 2.0
#: How often at least a running job is looked at, and how often while its watch shows nothing.
RUNNING_SECONDS = 600.0
DEAF_SECONDS = 60.0
#: How often a silent guard is looked at whose run is not stopped because most others are silent, too.
HELD_BACK_SECONDS = 20.0
#: How often a run is looked at whose pods have not come or not started.
LATE_SECONDS = 10.0
#: How often a workload is looked at that the job is attached to: its labels are not the operator's, by which
#: events are known.
ATTACHED_SECONDS = 10.0
#: How often a taken name is looked at.
NAME_TAKEN_SECONDS = 30.0
#: For how long no pod must have been seen before a run is called stopped: a controller whose cache is behind
#: makes pods again. One that did not act on a request is behind: after an outage of the API server its watch
#: is back after half a minute, and what it does until then is of the past.
SETTLE_SECONDS = 5.0
SETTLE_ESCALATED_SECONDS = 30.0
#: How long after the first of these it is looked at once more.
LATER_SECONDS = 60.0
#: For how long after its end evidence of a run that was not stopped is tried for.
EVIDENCE_SECONDS = 300.0
#: How often a guard is looked at that still judges a run whose trainer has finished.
JUDGING_SECONDS = 15.0
#: For how long after that end it may be without work before it is believed: it reports every 15 s.
HEARD_SECONDS = 60.0
#: The same where it follows its trainer, whose end nobody tells it: the last step of a log without a next one
#: is taken for whole after 150 s, a checkpoint without a marker after 30 s, and is announced then.
FOLLOWED_SECONDS = 240.0
#: For how long it may judge: an evaluation and its confirmation, at the guard's own limit of 1800 s for each.
JUDGED_SECONDS = 3600.0
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
_LEFT_TO_JUDGE = "the trainer has finished; the guard judges the checkpoints that it has left"
#: What gives the last evaluations more time: of a sidecar, and of a guard in a pod of its own.
_LONGER = "set RLGUARD_DRAIN_SECONDS in the template higher"
_LONGER_APART = (
    f"its guard has {JUDGED_SECONDS / 60:.0f} minutes after the trainer: give it a faster evaluator, or set "
    "spec.guard.heldout.backlog: newest"
)
_NO_RANK0 = "the rank-0 pod is not running, so no heartbeat is expected"
#: Why there is no verdict now.
_AWAY = {
    Reason.GUARD_SILENT: "the guard is silent",
    Reason.GUARD_NOT_RUNNING: "no guard runs that has reported",
}
_DISRUPTIONS = {str(disruption) for disruption in Disruption}


def decide(snapshot: Snapshot, now: datetime) -> Decision:
    """The decision for this snapshot at this time (UTC)."""
    says = _Conditions(snapshot, now)
    decision = (
        _last_word(snapshot, says)
        or _halt(snapshot, says)
        or _teardown(snapshot, says, now)
        or _deleting(snapshot)
        or _over(snapshot, now)
        or _unknown_kind(snapshot, says)
        or _ended(snapshot, says)
        or _attach(snapshot, says)
        or _create(snapshot, says)
        or _running(snapshot, says)
    )
    # Whatever else is said, evidence that was written stays noted.
    report = replace(decision.report, evidence=snapshot.job.status.evidence)
    return replace(decision, report=report)


class _Conditions:
    """Builds conditions for one snapshot; `lastTransitionTime` moves only when the status does."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._snapshot = snapshot
        self._job = snapshot.job
        self.now = now
        self.fired = self._fired()
        self.silent = self._silent(snapshot)
        self.halted = self._halted(snapshot)
        self.isolated = self._isolated(snapshot)

    def make(self, kind: ConditionType, status: str, reason: Reason | str, message: str) -> ConditionStatus:
        """A condition of this generation."""
        before = condition_of(self._job.status, kind)
        unchanged = before is not None and before.status == status
        return ConditionStatus(
            type=kind,
            status=status,
            reason=reason,
            message=message[:32768],
            observed_generation=self._job.generation,
            last_transition_time=before.last_transition_time if before and unchanged else self.now,
        )

    def __call__(self, *others: ConditionStatus | None, over: bool = False) -> tuple[ConditionStatus, ...]:
        """What holds at every stage, and `others`; sorted by type so that equal reports compare equal.

        `over`: the run has ended, so nothing will be found any more.
        """
        fired = self._fired(over=True) if over else self.fired
        common = (fired, self.silent, self.halted, self.isolated, *others)
        return tuple(sorted((c for c in common if c is not None), key=lambda c: c.type))

    def fired_by(self, fire: Latched) -> ConditionStatus:
        """That this fired."""
        reason = FIRE_REASONS.get(fire.code, Reason.OTHER_RULE)
        return self.make(ConditionType.FIRED, "True", reason, f"step {fire.step}: {fire.reason}")

    def _fired(self, over: bool = False) -> ConditionStatus:
        """Latched by the API server; once True it stays True even if that rule was taken away.

        No verdict is told while no guard runs, or while it is silent: the last one is history.
        """
        fire = guard_of(self._job).fire
        before = condition_of(self._job.status, ConditionType.FIRED)
        if fire is not None:
            return self.fired_by(fire)
        if before is not None and before.status == "True":
            return before
        if guard_of(self._job).heartbeat is None:
            return self.make(
                ConditionType.FIRED, "Unknown", Reason.NO_VERDICT_YET, Reason.NO_VERDICT_YET.meaning
            )
        if over:
            message = f"the guard had not fired when it reported last; {_last_verdict(self._job)}"
            return self.make(ConditionType.FIRED, "False", Reason.NOT_FIRED, message)
        if is_silent(self._snapshot):
            away = Reason.GUARD_SILENT
        elif not _is_watched(self._snapshot):
            away = Reason.GUARD_NOT_RUNNING
        else:
            return self.make(ConditionType.FIRED, "False", Reason.NOT_FIRED, Reason.NOT_FIRED.meaning)
        message = f"there is no verdict now: {_AWAY[away]}; {_last_verdict(self._job)}"
        return self.make(ConditionType.FIRED, "Unknown", away, message)

    def _silent(self, snapshot: Snapshot) -> ConditionStatus:
        if is_silent(snapshot):
            reason = Reason.MOST_SILENT if is_at_once(snapshot) else Reason.GUARD_SILENT
            status, message = "True", silence_message(snapshot)
        elif snapshot.deaf:
            status, reason, message = "Unknown", Reason.WATCH_INTERRUPTED, Reason.WATCH_INTERRUPTED.meaning
        elif snapshot.heartbeat_age is None:
            status, reason, message = "Unknown", Reason.GUARD_NOT_RUNNING, _NO_RANK0
        elif guard_of(self._job).heartbeat is None:
            status, reason, message = "Unknown", Reason.NO_VERDICT_YET, Reason.NO_VERDICT_YET.meaning
        else:
            status, reason, message = "False", Reason.GUARD_REPORTS, Reason.GUARD_REPORTS.meaning
        return self.make(ConditionType.GUARD_SILENT, status, reason, message)

    def _halted(self, snapshot: Snapshot) -> ConditionStatus | None:
        before = condition_of(self._job.status, ConditionType.HALTED)
        if before is not None and before.status == "True":
            return before
        if (due := halt_due(snapshot)) is not None:
            return self.make(ConditionType.HALTED, "True", *due)
        return None

    def _isolated(self, snapshot: Snapshot) -> ConditionStatus:
        costs = snapshot.costs
        if self._job.spec.target_ref is not None:
            reason = Reason.GUARD_DATA_EXPOSED if snapshot.exposed else Reason.ATTACHED
            message = "not protected: " + "; ".join((*snapshot.exposed, *UNPROTECTED, *costs))
            return self.make(ConditionType.ISOLATED, "False", reason, message)
        before = condition_of(self._job.status, ConditionType.ISOLATED)
        if before is not None and self._job.status.workload_ref is not None:
            # What was created does not change, whatever the operator's configuration would admit today.
            return self.make(ConditionType.ISOLATED, before.status, before.reason, before.message)
        if costs:
            message = "no longer protected: " + "; ".join(costs)
            return self.make(ConditionType.ISOLATED, "False", Reason.RELAXED_ISOLATION, message)
        meaning = Reason.STRICT_ISOLATION.meaning
        return self.make(ConditionType.ISOLATED, "True", Reason.STRICT_ISOLATION, meaning)


def _last_verdict(job: Job) -> str:
    """The last verdict, as history."""
    last = guard_of(job)
    at = f"{last.heartbeat:%Y-%m-%dT%H:%M:%SZ}" if last.heartbeat else "an unknown time"
    return f"its last verdict, of {at}: {last.level} ({last.code}) at step {last.step}: {last.reason}"


# -- stages ----------------------------------------------------------------------------------------------


def _as_it_is(job: Job) -> Report:
    """The status that the job has."""
    status = job.status
    phase = status.phase or Phase.PENDING
    return Report(phase, tuple(status.conditions), status.workload_ref, status.stop)


def _last_word(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """What a guard latched that ended before the API server took it goes into the status first.

    That happens when the trainer stops by itself while the API server is away. From there all is as always;
    also if it is refused, for then the operator's own conditions say it. Of a run that is to stop anyway it
    holds up nothing.
    """
    job, known = snapshot.job, guard_of(snapshot.job)
    if is_to_stop(job):
        return None
    fire = _left_fire(snapshot)
    left = [pod.halt for pod in snapshot.pods if pod.guarded and pod.halt is not None]
    halt = left[0] if left and known.halt is None else None
    if fire is None and halt is None:
        return None
    said = {condition.type: condition for condition in job.status.conditions}
    if fire is not None:
        said[ConditionType.FIRED] = says.fired_by(fire)
    if halt is not None:
        said[ConditionType.HALTED] = says.make(ConditionType.HALTED, "True", *halted_by(halt))
    otherwise = replace(_as_it_is(job), conditions=tuple(said[kind] for kind in sorted(said)))
    return Decision(_as_it_is(job), (RecordLatches(fire, halt, otherwise),))


def _left_fire(snapshot: Snapshot) -> Latched | None:
    """A fire that a guard left when it ended, and that is not in the status."""
    if guard_of(snapshot.job).fire is not None:
        return None
    return next((pod.fire for pod in snapshot.pods if pod.guarded and pod.fire is not None), None)


def _halt(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """An action halts the run: that is written down, and acted on once it stands in the status."""
    if is_to_stop(snapshot.job) or halt_due(snapshot) is None:
        return None
    if not snapshot.live:
        return Decision(_as_it_is(snapshot.job), look_again=STOPPING_SECONDS)
    status = snapshot.job.status
    conditions = says(condition_of(status, ConditionType.GUARDED))
    report = Report(status.phase or Phase.RUNNING, conditions, _workload_ref(snapshot), status.stop)
    return Decision(report, look_again=STOPPING_SECONDS)


def _teardown(snapshot: Snapshot, says: _Conditions, now: datetime) -> Decision | None:
    """A fired or halted run is stopped, and stopped again, until no pod is left."""
    if says.fired.status != "True" and says.halted is None:
        return None
    job, stop = snapshot.job, _by_now(snapshot.stop, now)
    guarded = condition_of(job.status, ConditionType.GUARDED)
    first = StopStatus(requested_at=now, method=_first_method(snapshot))
    if _nothing_can_run(snapshot):
        if _workload_ref(snapshot) is None:  # nothing was ever created
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
        if is_true(job.status, ConditionType.STOPPED) and not _is_of_after(stop):
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
    if (fire := _left_fire(snapshot)) is not None:
        actions = (*actions, RecordLatches(fire))
    report = Report(Phase.STOPPING, says(stopped, guarded), _workload_ref(snapshot), stop)
    return Decision(report, actions, STOPPING_SECONDS)


def _is_of_after(stop: StopStatus) -> bool:
    """Whether this was asked for after the run had been called stopped: of a run that was resumed."""
    return stop.stopped_at is not None and stop.requested_at > stop.stopped_at


def _by_now(stop: StopStatus | None, now: datetime) -> StopStatus | None:
    """The same with no time in the future: a clock went back, and nothing waits until it has caught up."""
    if stop is None:
        return None
    empty = None if stop.empty_since is None else min(stop.empty_since, now)
    return stop.model_copy(update={"requested_at": min(stop.requested_at, now), "empty_since": empty})


def _empty(snapshot: Snapshot, says: _Conditions, stop: StopStatus, now: datetime) -> Decision:
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
    report = Report(phase, says(stopped, guarded, over=True), _workload_ref(snapshot), stop)
    return Decision(report, actions, again)


def _first_method(snapshot: Snapshot) -> StopMethod:
    """What `onFire` asks for, one of the three mildest; of an unknown kind the pods are all that can go."""
    if snapshot.unknown_kind:
        return StopMethod.DELETE_PODS
    return StopMethod(snapshot.job.spec.on_fire.value)


def _nothing_can_run(snapshot: Snapshot) -> bool:
    """No pod is left, and none is made: the workload is gone, finished, or suspended because we asked."""
    if snapshot.pods or snapshot.pods_unread or snapshot.makers_unread or _guard_maker(snapshot):
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
    return workload.state in _ENDED and not any(one.resource in LASTING for one in _makers(snapshot))


def _is_attached(job: Job) -> bool:
    """Whether its workload is one that it does not own."""
    return job.spec.target_ref is not None


def _may_be_resumed(snapshot: Snapshot) -> bool:
    """Whether somebody may resume it, of which no event would tell."""
    workload = snapshot.workload
    if not _is_attached(snapshot.job) or workload is None or not workload.ours:
        return False
    return workload.state is WorkloadState.SUSPENDED


def _makers(snapshot: Snapshot) -> tuple[Between, ...]:
    """What makes pods for the workload, and is not on its way out."""
    return tuple(one for one in snapshot.between if not one.terminating)


def _guard_maker(snapshot: Snapshot) -> tuple[Between, ...]:
    """What makes the guard's own pod, and is not on its way out."""
    made = None if snapshot.own_guard is None else snapshot.own_guard.made
    return () if made is None or made.terminating else (made,)


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
        return workload is None or workload.unread or workload.state not in _ENDED
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
    if maker := _guard_maker(snapshot):  # a sidecar ends with its trainer, too
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
    """A pod that is left; one that is overdue with its node, which is most likely the reason."""
    if pod.due is None or _over_by(pod, now) <= OVERDUE_SECONDS:
        return pod.name
    return (
        f"{pod.name} (should have ended at {pod.due:%H:%M:%S}; look at node {pod.node or 'unknown'}, and if "
        "it is gone for good, delete it from the cluster)"
    )


def _over(snapshot: Snapshot, now: datetime) -> Decision | None:
    """A run that ended by itself stays as it ended, whatever is cleaned up later."""
    for kind, phase in OVER.items():
        if is_true(snapshot.job.status, kind):
            report = replace(_as_it_is(snapshot.job), phase=phase)
            ended = condition_of(snapshot.job.status, kind)
            assert ended is not None
            return _with_evidence(snapshot, report, (now - ended.last_transition_time).total_seconds())
    return None


def _with_evidence(snapshot: Snapshot, report: Report, ended: float) -> Decision:
    """A run that ended by itself `ended` seconds ago leaves evidence, too; with its logs while there is hope.

    What ended long ago is left as it is, so that an operator that starts does nothing for its history.
    """
    if snapshot.job.status.evidence is not None or ended > EVIDENCE_SECONDS:
        if maker := _guard_maker(snapshot):  # it has nothing more to say, and may have a GPU
            return Decision(report, (DeleteBetween(maker),), STOPPING_SECONDS)
        return Decision(report)
    return Decision(report, (CaptureEvidence(final=ended > REASSERT_SECONDS),), STOPPING_SECONDS)


def _deleting(snapshot: Snapshot) -> Decision | None:
    """Somebody's finalizer keeps a deleted job: it is torn down if it must be, and nothing else is said."""
    if not snapshot.job.deleting:
        return None
    return Decision(_as_it_is(snapshot.job), look_again=_until_silence(snapshot))


def _unknown_kind(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """A run of a kind that this operator has no adapter for: another version made it, so it is not judged."""
    job, preparation = snapshot.job, snapshot.preparation
    if not snapshot.unknown_kind or preparation is None or job.status.workload_ref is None:
        return None
    kept = [c for c in job.status.conditions if c.type != ConditionType.GUARDED]
    guarded = says.make(
        ConditionType.GUARDED, "Unknown", Reason.UNSUPPORTED_KIND, f"{preparation.message} by this operator"
    )
    return Decision(replace(_as_it_is(job), conditions=(*kept, guarded)))


def _ended(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """The workload succeeded, failed, was taken by the infrastructure, or was deleted: never a fire."""
    job, workload = snapshot.job, snapshot.workload
    ref = job.status.workload_ref
    if ref is None and (workload is None or not workload.ours):
        return None
    if workload is None or not workload.ours or (ref and ref.uid != workload.uid):
        end = _gone(job, snapshot, says)
    elif workload.state is WorkloadState.SUCCEEDED:
        end = _succeeded(snapshot, says, workload.message)
    elif workload.terminating:  # its pods are on their way out, which looks like a failure
        end = _gone(job, snapshot, says)
    elif workload.state is WorkloadState.FAILED:
        end = _failed(snapshot, says, workload.message)
    else:
        return None
    if (judging := _judging(snapshot, says, end)) is not None:
        return judging
    guarded = condition_of(job.status, ConditionType.GUARDED)
    phase = OVER[ConditionType(end.type)]
    report = Report(phase, says(end, guarded, over=True), _workload_ref(snapshot), job.status.stop)
    return _with_evidence(snapshot, report, 0.0)


def _judging(snapshot: Snapshot, says: _Conditions, end: ConditionStatus) -> Decision | None:
    """The trainer has finished, and a guard in a pod of its own judges what is left: no GPU waits for that.

    Since when is in the condition, and which report was the last one then. It ends once a later one says
    that nothing waits, or nothing more is to be expected.
    """
    if end.type != ConditionType.SUCCEEDED or not _guard_maker(snapshot) or is_silent(snapshot):
        return None
    noted = _noted_end(snapshot.job)
    message = f"{_LEFT_TO_JUDGE}; {_reported(snapshot.job)}" if noted is None else noted.message
    open_ = says.make(ConditionType.SUCCEEDED, "Unknown", Reason.GUARD_JUDGES, message)
    last, lasted = guard_of(snapshot.job), (says.now - open_.last_transition_time).total_seconds()
    quiet = HEARD_SECONDS if snapshot.job.spec.guard.metrics is None else FOLLOWED_SECONDS
    heard = _has_reported_since(snapshot.job) and (last.ended is not None or lasted >= quiet)
    if lasted >= JUDGED_SECONDS or (heard and not last.waiting):
        return None
    report = Report(
        Phase.JUDGING,
        says(_guarded(snapshot, says), open_),
        _workload_ref(snapshot),
        snapshot.job.status.stop,
    )
    return Decision(report, look_again=JUDGING_SECONDS)


def _noted_end(job: Job) -> ConditionStatus | None:
    """What was noted when a trainer was seen to have finished whose guard had still to judge."""
    noted = condition_of(job.status, ConditionType.SUCCEEDED)
    return noted if noted is not None and noted.reason == Reason.GUARD_JUDGES else None


def _reported(job: Job) -> str:
    """Which report of the guard is its last one: no other has the same time."""
    beat = guard_of(job).heartbeat
    return "it has not reported yet" if beat is None else f"its last report then: {beat.isoformat()}"


def _has_reported_since(job: Job) -> bool:
    """Whether the guard has reported since its trainer was seen to have finished.

    An older report does not know of what was announced last. No clocks are compared: it is another report.
    """
    noted = _noted_end(job)
    return noted is not None and not noted.message.endswith(_reported(job))


def _gone(job: Job, snapshot: Snapshot, says: _Conditions) -> ConditionStatus:
    """The workload is gone before its end was seen. How its trainer ended says the guard, if it was told.

    The trainer says so itself, so it is not believed of a rank 0 that still runs.
    """
    last = guard_of(job)
    still_runs = any(pod.rank0 and pod.phase == "Running" for pod in snapshot.pods)
    if _noted_end(job) is not None:
        return _succeeded(snapshot, says, "the trainer has finished; its workload is gone since")
    told = last.ended is not None and (last.ended.attempt, last.ended.step) == (last.attempt, last.step)
    if told and not still_runs:
        message = f"the workload is gone; its trainer told the guard at step {last.step} that it had finished"
        return _succeeded(snapshot, says, message)
    message = "the workload was deleted; a new run is a new GuardedTrainingJob"
    if snapshot.workload is not None and not snapshot.workload.ours:
        message = (
            "the workload was deleted, and another one has its name now (by its UID), which is not this run: "
            "guard that by a new GuardedTrainingJob"
        )
    return says.make(ConditionType.DISRUPTED, "True", Reason.WORKLOAD_DELETED, message)


def _failed(snapshot: Snapshot, says: _Conditions, message: str) -> ConditionStatus:
    """The infrastructure took it, or it failed by itself; with exit code and last line if they can be had."""
    if (taken := _disruption(snapshot)) is not None:
        return says.make(ConditionType.DISRUPTED, "True", taken[0], f"{taken[1]}; {message}")
    failed = next((pod for pod in reversed(snapshot.pods) if pod.failure), None)
    words = f"; pod {failed.name}: {failed.failure}" if failed else ""
    return says.make(ConditionType.FAILED, "True", Reason.WORKLOAD_FAILED, f"{message}{words}")


def _succeeded(snapshot: Snapshot, says: _Conditions, message: str) -> ConditionStatus:
    """A plain success only where all was judged: what was not has not passed."""
    last, apart = guard_of(snapshot.job), snapshot.own_guard is not None
    missing = not_judged(last, wait_longer=_LONGER_APART if apart else _LONGER)
    silent = ""
    if is_true(snapshot.job.status, ConditionType.GUARD_SILENT) or is_silent(snapshot):
        silent = "the guard was silent when the trainer ended"
    elif apart and not _has_reported_since(snapshot.job):
        silent = "the guard has not reported since the trainer ended"
    missing = "; ".join(filter(None, (silent, missing)))
    if not missing:
        message = "; ".join(filter(None, (message, steps_after(last))))
        return says.make(ConditionType.SUCCEEDED, "True", Reason.WORKLOAD_SUCCEEDED, message)
    reason = Reason.CHECKPOINTS_LEFT if last.waiting else Reason.NOT_JUDGED
    return says.make(ConditionType.SUCCEEDED, "True", reason, f"{message}; NOT JUDGED: {missing}")


def _disruption(snapshot: Snapshot) -> tuple[str, str] | None:
    """Reason and message, from a pod that is still there or from what was noted when it was."""
    if (disrupted := _disrupted_pod(snapshot)) is not None:
        return disrupted
    noted = condition_of(snapshot.job.status, ConditionType.DISRUPTED)
    return (noted.reason, noted.message) if noted and noted.reason in _DISRUPTIONS else None


def _disrupted_pod(snapshot: Snapshot) -> tuple[str, str] | None:
    """The same, from a pod that is still there, unless it is a rank-0 pod that a newer one has replaced."""
    replaced = _first_pods(snapshot)[:-1]
    for pod in snapshot.pods:
        if pod.disruption is not None and pod not in replaced:
            return pod.disruption, f"pod {pod.name}: {Reason(pod.disruption).meaning}"
    return None


def _first_pods(snapshot: Snapshot) -> list[Pod]:
    """The pods of rank 0, the oldest first; with a sidecar, those that have it."""
    return [pod for pod in snapshot.pods if (pod.rank0 if snapshot.own_guard else pod.guarded)]


def _attach(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """A workload that exists gets its guard once its UID is written down: no other is ever acted on."""
    job, workload, preparation = snapshot.job, snapshot.workload, snapshot.preparation or Preparation()
    if not _is_attached(job) or job.status.workload_ref is not None:
        return None
    if preparation.reason is Reason.TARGET_MISSING:
        waits = says.make(ConditionType.WAITING, "True", preparation.reason, preparation.message)
        return _not_yet(says, Phase.PENDING, replace(preparation, reason=Reason.WORKLOAD_PENDING), waits)
    if preparation.reason is not None:
        return _not_yet(says, Phase.REFUSED, preparation)
    assert workload is not None, "gather says that it is missing"
    meaning = Reason.WORKLOAD_ATTACHED.meaning
    guarded = says.make(ConditionType.GUARDED, "True", Reason.WORKLOAD_ATTACHED, meaning)
    report = Report(Phase.PENDING, says(guarded), _reference(snapshot, workload))
    return Decision(report, look_again=STOPPING_SECONDS)


def _not_yet(
    says: _Conditions, phase: Phase, why: Preparation, waits: ConditionStatus | None = None
) -> Decision:
    """Nothing runs under guard, and why. So there is nothing to say about isolation."""
    assert why.reason is not None
    guarded = says.make(ConditionType.GUARDED, "False", why.reason, why.message)
    conditions = tuple(c for c in says(guarded, waits) if c.type != ConditionType.ISOLATED)
    return Decision(Report(phase, conditions), look_again=why.ask_again)


def _create(snapshot: Snapshot, says: _Conditions) -> Decision | None:
    """There is no workload yet: create it, or say why not."""
    workload, preparation = snapshot.workload, snapshot.preparation or Preparation()
    if workload is not None and workload.ours:
        return None
    if workload is not None:
        message = (
            f"a {snapshot.job.spec.workload.kind} of this name exists and is not this job's: rename the job"
        )
        preparation = Preparation(Reason.NAME_TAKEN, message, NAME_TAKEN_SECONDS)
    if preparation.reason is not None:
        return _not_yet(says, Phase.REFUSED, preparation)
    guarded = says.make(
        ConditionType.GUARDED, "False", Reason.WORKLOAD_PENDING, Reason.WORKLOAD_PENDING.meaning
    )
    report = Report(Phase.PENDING, says(guarded))
    return Decision(report, (CreateWorkload(),), STOPPING_SECONDS)


def _running(snapshot: Snapshot, says: _Conditions) -> Decision:
    """The workload is there and neither finished nor to be stopped."""
    job, workload = snapshot.job, snapshot.workload
    assert workload is not None
    # A trainer that never reports does not read as one that is watched.
    running = Phase.STARTING if guard_of(job).step is None else Phase.RUNNING
    phase = {
        WorkloadState.RUNNING: running,
        WorkloadState.SUSPENDED: Phase.SUSPENDED,
    }.get(workload.state, Phase.PENDING)
    report = Report(
        phase,
        says(_guarded(snapshot, says), _noted_disruption(snapshot, says), _waiting(snapshot, says)),
        _workload_ref(snapshot),
        job.status.stop,
    )
    again = _until_silence(snapshot)
    if snapshot.late:  # no event will tell that it still is
        again = min(again or LATE_SECONDS, LATE_SECONDS)
    if snapshot.own_guard is not None and snapshot.own_guard.taken:
        again = min(again or NAME_TAKEN_SECONDS, NAME_TAKEN_SECONDS)
    if _is_attached(job):  # no event tells of its pods
        again = min(again or ATTACHED_SECONDS, ATTACHED_SECONDS)
    return Decision(report, _of_own_guard(snapshot, workload.state), again)


def _of_own_guard(snapshot: Snapshot, state: WorkloadState) -> tuple[Action, ...]:
    """A guard's own pod is there while its run is, and takes no GPU while a queue holds the run back."""
    own, maker = snapshot.own_guard, _guard_maker(snapshot)
    if state is WorkloadState.SUSPENDED:
        return (DeleteBetween(maker),) if maker else ()
    if own is None or own.made is not None or own.taken or not snapshot.job.guard_known:
        return ()
    return (StartGuard(),)


def _guarded(snapshot: Snapshot, says: _Conditions) -> ConditionStatus:
    """The workload was created with its guard; that its pods have it is seen from the pods."""
    if snapshot.own_guard is not None and (taken := snapshot.own_guard.taken):
        message = f"a StatefulSet {taken} exists and is not this job's, so no guard can be made: delete it"
        return says.make(ConditionType.GUARDED, "False", Reason.NAME_TAKEN, message)
    if snapshot.own_guard == OwnGuard() and not snapshot.job.guard_known:
        message = (
            "the guard is gone, and this version of the operator cannot read all of spec.guard to start it"
        )
        return says.make(ConditionType.GUARDED, "False", Reason.INVALID_SPEC, message)
    if (unguarded := unguarded_pod(snapshot)) is not None:
        message = f"{without_guard(unguarded)}: something between operator and kubelet took it"
        return says.make(ConditionType.GUARDED, "False", Reason.GUARD_MISSING, message)
    changed = next((pod for pod in snapshot.pods if pod.guarded and pod.changed and is_running(pod)), None)
    if changed is not None:
        message = f"the guard in pod {changed.name} is not as it was injected: something changed it since"
        return says.make(ConditionType.GUARDED, "False", Reason.GUARD_CHANGED, message)
    reason = Reason.WORKLOAD_ATTACHED if _is_attached(snapshot.job) else Reason.WORKLOAD_CREATED
    return says.make(ConditionType.GUARDED, "True", reason, reason.meaning)


def _is_watched(snapshot: Snapshot) -> bool:
    """Whether a guard runs now that has reported. Heartbeat and start are by the clock of the same node."""
    beat = guard_of(snapshot.job).heartbeat
    starts = [pod.guard_since for pod in snapshot.pods if pod.guarded and pod.phase == "Running"]
    return beat is not None and any(since is not None and since <= beat for since in starts)


def _waiting(snapshot: Snapshot, says: _Conditions) -> ConditionStatus | None:
    """The pod that the others wait for: the guarded one if it cannot start, else the first that cannot.

    Else what Events say of pods that do not come or do not start.
    """
    pods = [pod for pod in snapshot.pods if not pod.terminating]
    tired = gave_up(snapshot)
    stuck = [] if tired is None else [(True, tired.name, Waiting(Reason.GUARD_NOT_READY, tired.gave_up))]
    stuck += [(not pod.guarded, pod.name, pod.waiting) for pod in pods if pod.waiting is not None]
    if stuck:
        _, name, waiting = min(stuck, key=lambda one: one[:2])
        return says.make(ConditionType.WAITING, "True", waiting.reason, f"pod {name}: {waiting.message}")
    obstacle = _queue(snapshot) or snapshot.obstacle
    if obstacle is not None:
        return says.make(ConditionType.WAITING, "True", obstacle.reason, obstacle.message)
    return None


def _queue(snapshot: Snapshot) -> Waiting | None:
    """The queue that holds the run back. What ends of it meanwhile is not what it waits for."""
    workload, job = snapshot.workload, snapshot.job
    if workload is None or workload.state is not WorkloadState.SUSPENDED:
        return None
    own = job.spec.template.metadata.labels if job.spec.template is not None else {}
    label = job.labels.get(QUEUE_LABEL) or own.get(QUEUE_LABEL)
    return waits_in(snapshot.queued, label)


def _until_silence(snapshot: Snapshot) -> float | None:
    """When the guard would be called silent, if it is to report and nothing happens before; seconds."""
    if snapshot.deaf:
        return DEAF_SECONDS
    if snapshot.heartbeat_age is None:
        return None
    if is_silent(snapshot) and held_back(snapshot):
        return HELD_BACK_SECONDS
    left = snapshot.job.spec.on_silence.after_seconds - snapshot.heartbeat_age
    return min(RUNNING_SECONDS, left + 0.1) if left >= 0 else RUNNING_SECONDS


def _noted_disruption(snapshot: Snapshot, says: _Conditions) -> ConditionStatus | None:
    """A disruption is noted while its pod is still there, and forgotten once the guarded pod runs again."""
    taken = _disruption(snapshot)
    healthy = any(is_running(pod) for pod in _first_pods(snapshot))
    if taken is None or (healthy and _disrupted_pod(snapshot) is None):
        return None
    return says.make(ConditionType.DISRUPTED, "False", taken[0], taken[1])


def _workload_ref(snapshot: Snapshot) -> WorkloadRef | None:
    """What was created. Once written it stays, so that a namesake is never taken for ours."""
    workload, ref = snapshot.workload, snapshot.job.status.workload_ref
    if ref is not None:
        return ref if snapshot.made is None else ref.model_copy(update={"made": _noted(snapshot)})
    return None if workload is None or not workload.ours else _reference(snapshot, workload)


def _noted(snapshot: Snapshot) -> list[MadeRef] | None:
    """What is known of what the workload has made that makes its pods."""
    return list(snapshot.made or ()) or None


def _reference(snapshot: Snapshot, workload: Workload) -> WorkloadRef:
    job = snapshot.job
    return WorkloadRef(
        api_version=job.spec.workload.api_version,
        kind=job.spec.workload.kind,
        name=job.workload_name,
        uid=workload.uid,
        guard_image=snapshot.guard_image,
        made=_noted(snapshot),
    )
