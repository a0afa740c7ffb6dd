"""What to do about one job. Pure: a frozen snapshot and the time go in, a frozen decision comes out.

An ordered chain of stages; the first one that has something to say decides. Teardown comes first, because
nothing may stand between a fire and the stop. Decisions are level-triggered: they follow from what is, not
from what was done, so that they may be repeated, lost, or made by two operators at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from guard_operator.adapters import WorkloadState
from guard_operator.api.reasons import FIRE_REASONS, ConditionType, Reason
from guard_operator.api.types import (
    ConditionStatus,
    Phase,
    Status,
    StopMethod,
    StopStatus,
    WorkloadRef,
)
from guard_operator.reconcile.snapshot import (
    CaptureEvidence,
    CreateWorkload,
    Decision,
    DeletePods,
    Disruption,
    Pod,
    Preparation,
    RecordLatches,
    Report,
    Snapshot,
    StopWorkload,
    guard_of,
)

#: How long one way of stopping may go without effect before the next harder one is asked for.
REASSERT_SECONDS = 15.0
#: How often a teardown under way is looked at, and at least how often a running job.
STOPPING_SECONDS = 2.0
RUNNING_SECONDS = 60.0
#: How often a taken name is looked at.
NAME_TAKEN_SECONDS = 30.0
#: How long a log may take before the first stop request, and afterwards. Both are short: many runs may have
#: to be stopped at once while no log can be had.
HASTY_SECONDS = 0.3
PATIENT_SECONDS = 1.0

_HARDER = {
    StopMethod.STOP: StopMethod.DELETE,
    StopMethod.SUSPEND: StopMethod.DELETE,
    StopMethod.DELETE: StopMethod.DELETE_PODS,
    StopMethod.DELETE_PODS: StopMethod.DELETE_PODS,
}
_OVER = {
    ConditionType.SUCCEEDED: Phase.SUCCEEDED,
    ConditionType.FAILED: Phase.FAILED,
    ConditionType.DISRUPTED: Phase.DISRUPTED,
}
_DISRUPTIONS = {str(disruption) for disruption in Disruption}


def decide(snapshot: Snapshot, now: datetime) -> Decision:
    """The decision for this snapshot at this time (UTC)."""
    says = _Conditions(snapshot, now)
    for stage in _STAGES:
        if (decision := stage(snapshot, says, now)) is not None:
            return decision
    return _running(snapshot, says, now)


class _Conditions:
    """Builds conditions for one snapshot; `lastTransitionTime` moves only when the status does."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._job = snapshot.job
        self._now = now
        self.fired = self._fired()
        self.silent = self._silent(snapshot.heartbeat_age)
        self.halted = self._halted()
        self.isolated = self._isolated(snapshot.costs)

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
            last_transition_time=before.last_transition_time if before and unchanged else self._now,
        )

    def __call__(self, *others: ConditionStatus | None) -> tuple[ConditionStatus, ...]:
        """What holds at every stage, and `others`; sorted by type so that equal reports compare equal."""
        common = (self.fired, self.silent, self.halted, self.isolated, *others)
        return tuple(sorted((c for c in common if c is not None), key=lambda c: c.type))

    def _fired(self) -> ConditionStatus:
        """Latched by the API server; once True it stays True even if that rule was taken away."""
        fire = guard_of(self._job).fire
        before = condition_of(self._job.status, ConditionType.FIRED)
        if fire is not None:
            reason = FIRE_REASONS.get(fire.code, Reason.OTHER_RULE)
            return self.make(ConditionType.FIRED, "True", reason, f"step {fire.step}: {fire.reason}")
        if before is not None and before.status == "True":
            return before
        if guard_of(self._job).heartbeat is None:
            return self.make(
                ConditionType.FIRED, "Unknown", Reason.NO_VERDICT_YET, Reason.NO_VERDICT_YET.meaning
            )
        return self.make(ConditionType.FIRED, "False", Reason.NOT_FIRED, Reason.NOT_FIRED.meaning)

    def _silent(self, age: float | None) -> ConditionStatus:
        limit = self._job.spec.on_silence.after_seconds
        if age is None:
            status, reason, message = "Unknown", Reason.GUARD_NOT_RUNNING, Reason.GUARD_NOT_RUNNING.meaning
        elif age > limit:
            status, reason = "True", Reason.GUARD_SILENT
            message = f"no heartbeat of the guard for more than {limit} s while its pod runs"
        elif guard_of(self._job).heartbeat is None:
            status, reason, message = "Unknown", Reason.NO_VERDICT_YET, Reason.NO_VERDICT_YET.meaning
        else:
            status, reason, message = "False", Reason.GUARD_REPORTS, Reason.GUARD_REPORTS.meaning
        return self.make(ConditionType.GUARD_SILENT, status, reason, message)

    def _halted(self) -> ConditionStatus | None:
        before = condition_of(self._job.status, ConditionType.HALTED)
        if before is not None and before.status == "True":
            return before
        if (halt := guard_of(self._job).halt) is not None:
            message = f"{halt.code} at step {halt.step}: {halt.reason}"
            return self.make(ConditionType.HALTED, "True", Reason.GUARD_HALT, message)
        if self.silent.status == "True" and self._job.spec.on_silence.policy == "Stop":
            return self.make(ConditionType.HALTED, "True", Reason.GUARD_SILENT, self.silent.message)
        return None

    def _isolated(self, costs: tuple[str, ...]) -> ConditionStatus:
        if costs:
            message = "no longer protected: " + "; ".join(costs)
            return self.make(ConditionType.ISOLATED, "False", Reason.RELAXED_ISOLATION, message)
        meaning = Reason.STRICT_ISOLATION.meaning
        return self.make(ConditionType.ISOLATED, "True", Reason.STRICT_ISOLATION, meaning)


def condition_of(status: Status, kind: ConditionType) -> ConditionStatus | None:
    """The condition of this type, if there is one."""
    return next((c for c in status.conditions if c.type == kind), None)


# -- stages ----------------------------------------------------------------------------------------------


def _last_word(snapshot: Snapshot, _says: _Conditions, _now: datetime) -> Decision | None:
    """What a guard latched that ended before the API server took it goes into the status first.

    That happens when the trainer stops by itself while the API server is away. From there all is as always.
    """
    job, known = snapshot.job, guard_of(snapshot.job)
    left = [pod for pod in snapshot.pods if pod.guarded]
    fire = next((pod.fire for pod in left if pod.fire is not None and known.fire is None), None)
    halt = next((pod.halt for pod in left if pod.halt is not None and known.halt is None), None)
    if fire is None and halt is None:
        return None
    status = job.status
    as_it_is = Report(
        status.phase or Phase.PENDING, tuple(status.conditions), status.workload_ref, status.stop
    )
    return Decision(as_it_is, (RecordLatches(fire, halt),))


def _teardown(snapshot: Snapshot, says: _Conditions, now: datetime) -> Decision | None:
    """A fired or halted run is stopped, and stopped again, until no pod is left."""
    if says.fired.status != "True" and says.halted is None:
        return None
    job, stop = snapshot.job, snapshot.job.status.stop
    guarded = condition_of(job.status, ConditionType.GUARDED)
    # What `onFire` may ask for are the three mildest methods.
    first = StopStatus(requested_at=now, method=StopMethod(job.spec.on_fire.value))
    if _nothing_can_run(snapshot):
        if stop is None and job.status.workload_ref is not None:
            # An operator that asked for the stop and died before it said so, or a run that ended by itself.
            stop = first
        message = "no pod of the run is left"
        stopped = says.make(ConditionType.STOPPED, "True", Reason.NO_PODS_LEFT, message)
        report = Report(Phase.STOPPED, says(stopped, guarded), _workload_ref(snapshot), stop)
        captured = stop is None or stop.evidence is not None
        return Decision(report, () if captured else (CaptureEvidence(PATIENT_SECONDS, final=True),))
    if stop is None:
        stop = first
        stopped = says.make(
            ConditionType.STOPPED, "False", Reason.STOP_REQUESTED, f"asked for: {stop.method}"
        )
        actions = (CaptureEvidence(HASTY_SECONDS, final=False), *_stop_actions(snapshot, stop.method))
    else:
        if not _is_going(snapshot) and (now - stop.requested_at).total_seconds() >= REASSERT_SECONDS:
            stop = stop.model_copy(update={"method": _HARDER[stop.method], "requested_at": now})
        stopped = says.make(ConditionType.STOPPED, "False", Reason.PODS_TERMINATING, _left(snapshot, stop))
        evidence = () if stop.evidence else (CaptureEvidence(PATIENT_SECONDS, final=False),)
        actions = (*_stop_actions(snapshot, stop.method), *evidence, *_ended_pods(snapshot, stop, now))
    report = Report(Phase.STOPPING, says(stopped, guarded), _workload_ref(snapshot), stop)
    return Decision(report, actions, STOPPING_SECONDS)


def _nothing_can_run(snapshot: Snapshot) -> bool:
    """No pod is left, and the workload makes none: it is gone, finished, or suspended because we asked."""
    if snapshot.pods:
        return False
    workload, stop = snapshot.workload, snapshot.job.status.stop
    if workload is None or not workload.ours or workload.terminating:
        return True
    if workload.state is WorkloadState.SUSPENDED:
        return stop is not None and stop.method is StopMethod.SUSPEND
    return workload.state in {WorkloadState.SUCCEEDED, WorkloadState.FAILED}


def _is_going(snapshot: Snapshot) -> bool:
    """Every pod is on its way out, or has ended: the stop has its effect."""
    return bool(snapshot.pods) and all(pod.terminating or _has_ended(pod) for pod in snapshot.pods)


def _has_ended(pod: Pod) -> bool:
    return pod.phase in {"Succeeded", "Failed"}


def _stop_actions(snapshot: Snapshot, method: StopMethod) -> tuple[StopWorkload | DeletePods, ...]:
    """The same request again is harmless; it is left out only where it has its effect."""
    actions: list[StopWorkload | DeletePods] = []
    workload = snapshot.workload
    asked_and_going = snapshot.job.status.stop is not None and _is_going(snapshot)
    if workload is not None and workload.ours and not workload.terminating and not asked_and_going:
        of_workload = StopMethod.DELETE if method is StopMethod.DELETE_PODS else method
        actions.append(StopWorkload(of_workload, workload.uid))
    if method is StopMethod.DELETE_PODS:
        actions.append(DeletePods(tuple((p.name, p.uid) for p in snapshot.pods if not p.terminating)))
    return tuple(actions)


def _ended_pods(snapshot: Snapshot, stop: StopStatus, now: datetime) -> tuple[DeletePods, ...]:
    """Pods that have ended and that their workload keeps go too, but their logs are had first, if at all."""
    ended = tuple((p.name, p.uid) for p in snapshot.pods if _has_ended(p) and not p.terminating)
    waits = stop.evidence is None and (now - stop.requested_at).total_seconds() < REASSERT_SECONDS
    return (DeletePods(ended),) if ended and not waits else ()


def _left(snapshot: Snapshot, stop: StopStatus) -> str:
    if not snapshot.pods:
        return f"asked for: {stop.method}; the workload may still make pods"
    names = ", ".join(pod.name for pod in snapshot.pods[:5]) + (" ..." if len(snapshot.pods) > 5 else "")
    return f"asked for: {stop.method}; {len(snapshot.pods)} pods are left: {names}"


def _over(snapshot: Snapshot, _says: _Conditions, _now: datetime) -> Decision | None:
    """A run that ended by itself stays as it ended, whatever is cleaned up later."""
    status = snapshot.job.status
    for kind, phase in _OVER.items():
        condition = condition_of(status, kind)
        if condition is not None and condition.status == "True":
            return Decision(Report(phase, tuple(status.conditions), status.workload_ref, status.stop))
    return None


def _ended(snapshot: Snapshot, says: _Conditions, _now: datetime) -> Decision | None:
    """The workload succeeded, failed, was taken by the infrastructure, or was deleted: never a fire."""
    job, workload = snapshot.job, snapshot.workload
    ref = job.status.workload_ref
    if ref is None and (workload is None or not workload.ours):
        return None
    if workload is None or not workload.ours or workload.terminating or (ref and ref.uid != workload.uid):
        message = "the workload was deleted; a new run is a new GuardedTrainingJob"
        end = says.make(ConditionType.DISRUPTED, "True", Reason.WORKLOAD_DELETED, message)
    elif workload.state is WorkloadState.SUCCEEDED:
        end = _succeeded(snapshot, says, workload.message)
    elif workload.state is WorkloadState.FAILED:
        taken = _disruption(snapshot)
        end = (
            says.make(ConditionType.DISRUPTED, "True", taken[0], f"{taken[1]}; {workload.message}")
            if taken
            else says.make(ConditionType.FAILED, "True", Reason.WORKLOAD_FAILED, workload.message)
        )
    else:
        return None
    guarded = condition_of(job.status, ConditionType.GUARDED)
    phase = _OVER[ConditionType(end.type)]
    return Decision(Report(phase, says(end, guarded), _workload_ref(snapshot), job.status.stop))


def _succeeded(snapshot: Snapshot, says: _Conditions, message: str) -> ConditionStatus:
    """Not without a word where the drain was too short: what nobody has looked at is unknown, not healthy."""
    waiting, reason = guard_of(snapshot.job).waiting, Reason.WORKLOAD_SUCCEEDED
    if waiting:
        reason = Reason.CHECKPOINTS_LEFT
        message += f"; {waiting} checkpoints were not evaluated, so no verdict is about them"
    return says.make(ConditionType.SUCCEEDED, "True", reason, message)


def _disruption(snapshot: Snapshot) -> tuple[str, str] | None:
    """Reason and message, from a pod that is still there or from what was noted when it was."""
    if (disrupted := _disrupted_pod(snapshot)) is not None:
        return disrupted
    noted = condition_of(snapshot.job.status, ConditionType.DISRUPTED)
    return (noted.reason, noted.message) if noted and noted.reason in _DISRUPTIONS else None


def _disrupted_pod(snapshot: Snapshot) -> tuple[str, str] | None:
    """The same, from a pod that is still there, unless it is a rank-0 pod that a newer one has replaced."""
    replaced = [pod for pod in snapshot.pods if pod.guarded][:-1]
    for pod in snapshot.pods:
        if pod.disruption is not None and pod not in replaced:
            return pod.disruption, f"pod {pod.name}: {Reason(pod.disruption).meaning}"
    return None


def _create(snapshot: Snapshot, says: _Conditions, _now: datetime) -> Decision | None:
    """There is no workload yet: create it, or say why not."""
    workload, preparation = snapshot.workload, snapshot.preparation or Preparation()
    if workload is not None and workload.ours:
        return None
    if workload is not None:
        message = (
            f"a {snapshot.job.spec.template.kind} of this name exists and is not this job's: rename the job"
        )
        preparation = Preparation(Reason.NAME_TAKEN, message, NAME_TAKEN_SECONDS)
    if preparation.reason is not None:
        guarded = says.make(ConditionType.GUARDED, "False", preparation.reason, preparation.message)
        # Nothing runs, so there is nothing to say about isolation.
        conditions = tuple(c for c in says(guarded) if c.type != ConditionType.ISOLATED)
        report = Report(Phase.REFUSED, conditions)
        return Decision(report, look_again=preparation.ask_again)
    guarded = says.make(
        ConditionType.GUARDED, "False", Reason.WORKLOAD_PENDING, Reason.WORKLOAD_PENDING.meaning
    )
    report = Report(Phase.PENDING, says(guarded))
    return Decision(report, (CreateWorkload(),), STOPPING_SECONDS)


def _running(snapshot: Snapshot, says: _Conditions, _now: datetime) -> Decision:
    """The workload is there and neither finished nor to be stopped."""
    job, workload = snapshot.job, snapshot.workload
    assert workload is not None
    guarded = says.make(
        ConditionType.GUARDED, "True", Reason.WORKLOAD_CREATED, Reason.WORKLOAD_CREATED.meaning
    )
    phase = {
        WorkloadState.RUNNING: Phase.RUNNING,
        WorkloadState.SUSPENDED: Phase.SUSPENDED,
    }.get(workload.state, Phase.PENDING)
    report = Report(
        phase,
        says(guarded, _noted_disruption(snapshot, says), _waiting(snapshot, says)),
        _workload_ref(snapshot),
        job.status.stop,
    )
    return Decision(report, look_again=_until_silence(snapshot))


def _waiting(snapshot: Snapshot, says: _Conditions) -> ConditionStatus | None:
    """The pod that the others wait for: the guarded one if it cannot start, else the first that cannot."""
    pods = [pod for pod in snapshot.pods if not pod.terminating]
    stuck = [(not pod.guarded, pod.name, pod.waiting) for pod in pods if pod.waiting is not None]
    if not stuck:
        return None
    _, name, waiting = min(stuck, key=lambda one: one[:2])
    return says.make(ConditionType.WAITING, "True", waiting.reason, f"pod {name}: {waiting.message}")


def _until_silence(snapshot: Snapshot) -> float | None:
    """When the guard would be called silent, if it is to report and nothing happens before; seconds."""
    if snapshot.heartbeat_age is None:
        return None
    left = snapshot.job.spec.on_silence.after_seconds - snapshot.heartbeat_age
    return min(RUNNING_SECONDS, left + 0.1) if left >= 0 else RUNNING_SECONDS


def _noted_disruption(snapshot: Snapshot, says: _Conditions) -> ConditionStatus | None:
    """A disruption is noted while its pod is still there, and forgotten once the guarded pod runs again."""
    taken = _disruption(snapshot)
    healthy = any(_runs(pod) for pod in snapshot.pods if pod.guarded)
    if taken is None or (healthy and _disrupted_pod(snapshot) is None):
        return None
    return says.make(ConditionType.DISRUPTED, "False", taken[0], taken[1])


def _runs(pod: Pod) -> bool:
    return pod.phase == "Running" and not pod.terminating


def _workload_ref(snapshot: Snapshot) -> WorkloadRef | None:
    """What was created. Once written it stays, so that a namesake is never taken for ours."""
    job, workload = snapshot.job, snapshot.workload
    if job.status.workload_ref is not None or workload is None or not workload.ours:
        return job.status.workload_ref
    template = job.spec.template
    return WorkloadRef(api_version=template.api_version, kind=template.kind, name=job.name, uid=workload.uid)


_STAGES: tuple[Callable[[Snapshot, _Conditions, datetime], Decision | None], ...] = (
    _last_word,
    _teardown,
    _over,
    _ended,
    _create,
)
