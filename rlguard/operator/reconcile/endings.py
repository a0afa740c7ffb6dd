"""The end of a run that nobody stopped: it succeeded, failed, was taken or deleted; never a fire. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rlguard.core.ending import not_judged, steps_after, warned
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import ConditionStatus, Phase
from rlguard.operator.reconcile.conditions import (
    Conditions,
    as_it_is,
    guard_maker,
    whether_guarded,
    workload_ref_of,
)
from rlguard.operator.reconcile.halts import is_running, is_silent
from rlguard.operator.reconcile.snapshot import (
    OFTEN,
    OVER,
    SOON,
    CaptureEvidence,
    Decision,
    Disruption,
    Job,
    OwnEnd,
    Pod,
    Report,
    Snapshot,
    condition_of,
    delete_makers,
    guard_of,
    is_true,
    own_end,
)
from rlguard.operator.reconcile.teardown import LOGS_SECONDS

#: For how long after its end evidence of a run that was not stopped is tried for.
EVIDENCE_SECONDS = 300.0
#: For how long after that end it may be without work before it is believed: it reports every 15 s.
HEARD_SECONDS = 60.0
#: The same where it follows its trainer, whose end nobody tells it: the last step of a log without a next one
#: is taken for whole after 150 s, a checkpoint without a marker after 30 s, and is announced then.
FOLLOWED_SECONDS = 240.0
#: For how long it may judge, at least: an evaluation and its confirmation, each within the evaluator's limit
#: (`timeoutSeconds`).
JUDGED_SECONDS = 3600.0
_LEFT_TO_JUDGE = "the trainer has finished; the guard judges the checkpoints that it has left"
#: What gives the last evaluations more time: of a sidecar, and of a guard in a pod of its own.
_LONGER = "set RLGUARD_DRAIN_SECONDS in the template higher"
_LONGER_APART = (
    "its guard has {minutes:.0f} minutes after the trainer: give it a faster evaluator, or let the trainer "
    "save less often"
)
_NEVER, _LATER = (one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max))
_DISRUPTIONS = {str(disruption) for disruption in Disruption}


def over_already(snapshot: Snapshot, now: datetime) -> Decision | None:
    """A run that ended by itself stays as it ended, whatever is cleaned up later."""
    for kind, phase in OVER.items():
        if is_true(snapshot.job.status, kind):
            report = replace(as_it_is(snapshot.job.status), phase=phase)
            ended = condition_of(snapshot.job.status, kind)
            assert ended is not None
            return _with_evidence(snapshot, report, (now - ended.last_transition_time).total_seconds())
    return None


def _with_evidence(snapshot: Snapshot, report: Report, ended: float) -> Decision:
    """A run that ended by itself `ended` seconds ago leaves evidence, too; with its logs while there is hope.

    What ended long ago is left as it is, so that an operator that starts does nothing for its history.
    """
    if snapshot.job.status.evidence is not None or ended > EVIDENCE_SECONDS:
        if maker := guard_maker(snapshot):  # it has nothing more to say, and may have a GPU
            return Decision(report, (delete_makers(maker),), SOON)
        return Decision(report)
    return Decision(report, (CaptureEvidence(final=ended > LOGS_SECONDS),), SOON)


def ended_by_itself(snapshot: Snapshot, says: Conditions) -> Decision | None:
    """The workload succeeded, failed, was taken by the infrastructure, or was deleted: never a fire."""
    job, workload, how = snapshot.job, snapshot.workload, own_end(snapshot)
    if how is None:
        return None
    if how is OwnEnd.GONE or workload is None:
        end = _gone(job, snapshot, says)
    elif how is OwnEnd.SUCCEEDED:
        end = _succeeded(snapshot, says, workload.message)
    else:
        end = _failed(snapshot, says, workload.message)
    if (judging := _judging(snapshot, says, end)) is not None:
        return judging
    guarded = condition_of(job.status, ConditionType.GUARDED)
    phase = OVER[ConditionType(end.type)]
    report = Report(phase, says(end, guarded, over=True), workload_ref_of(snapshot), job.status.stop)
    return _with_evidence(snapshot, report, 0.0)


def _judging(snapshot: Snapshot, says: Conditions, end: ConditionStatus) -> Decision | None:
    """The trainer has finished, and a guard in a pod of its own judges what is left: no GPU waits for that.

    Since when is in the condition. It ends once the guard was heard since and says
    that nothing waits, or nothing more is to be expected.
    """
    if end.type != ConditionType.SUCCEEDED or not guard_maker(snapshot) or is_silent(snapshot):
        return None
    noted = _noted_end(snapshot.job)
    message = _LEFT_TO_JUDGE if noted is None else noted.message
    open_ = says.make(ConditionType.SUCCEEDED, "Unknown", Reason.GUARD_JUDGES, message)
    last, lasted = guard_of(snapshot.job), (says.now - open_.last_transition_time).total_seconds()
    quiet = HEARD_SECONDS if snapshot.job.spec.guard.metrics is None else FOLLOWED_SECONDS
    heard = _was_heard_since(snapshot) and (last.ended is not None or lasted >= quiet)
    if lasted >= judged_seconds(snapshot.job) or (heard and not last.waiting):
        return None
    report = Report(
        Phase.JUDGING,
        says(whether_guarded(snapshot, says), open_, _guard_waits(snapshot, says)),
        workload_ref_of(snapshot),
        snapshot.job.status.stop,
    )
    return Decision(report, look_again=OFTEN)


def judged_seconds(job: Job) -> float:
    """For how long the guard of this job may judge after its trainer, seconds."""
    return max(JUDGED_SECONDS, 2.0 * job.spec.guard.heldout.evaluator.timeout_seconds)


def _guard_waits(snapshot: Snapshot, says: Conditions) -> ConditionStatus | None:
    """What keeps the guard, which may have been moved, from judging; no pod that its trainer left does."""
    guards = (pod for pod in snapshot.pods if pod.guarded and not pod.terminating)
    return next((says.waits_for(pod.name, pod.waiting) for pod in guards if pod.waiting is not None), None)


def _noted_end(job: Job) -> ConditionStatus | None:
    """What was noted when a trainer was seen to have finished whose guard had still to judge."""
    noted = condition_of(job.status, ConditionType.SUCCEEDED)
    return noted if noted is not None and noted.reason == Reason.GUARD_JUDGES else None


def _was_heard_since(snapshot: Snapshot) -> bool:
    """Whether the guard was heard since its trainer was seen to have finished.

    An older verdict does not know of what was announced last. Both times are of the operator's clock.
    """
    noted, reading = _noted_end(snapshot.job), snapshot.reading
    heard_at = None if reading is None else reading.heard_at
    return noted is not None and heard_at is not None and heard_at > noted.last_transition_time


def _gone(job: Job, snapshot: Snapshot, says: Conditions) -> ConditionStatus:
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


def _failed(snapshot: Snapshot, says: Conditions, message: str) -> ConditionStatus:
    """The infrastructure took it, or it failed by itself; with exit code and last line if they can be had."""
    if (taken := _disruption(snapshot)) is not None:
        return says.make(ConditionType.DISRUPTED, "True", taken[0], f"{taken[1]}; {message}")
    words = "".join(f"; pod {pod.name}: {pod.failure}" for pod in _who_failed(snapshot.pods))
    return says.make(ConditionType.FAILED, "True", Reason.WORKLOAD_FAILED, f"{message}{words}")


def _who_failed(pods: Sequence[Pod]) -> list[Pod]:
    """The pod that failed first in this try, most likely the cause, and rank 0's; else rank 0's of earlier.

    What failed after rank 0 was ended for that.
    """
    rank0 = [pod for pod in pods if pod.rank0]
    began = next((pod.created for pod in rank0[-1:] if pod.created is not None), _NEVER)
    own = [pod for pod in rank0[-1:] if pod.failure]
    until = _when(own[0]) if own else _LATER
    others = [pod for pod in pods if pod.failure and not pod.rank0 and began <= _when(pod) <= until]
    found = [*sorted(others, key=_when)[:1], *own]
    return found or [pod for pod in rank0 if pod.failure][-1:]


def _when(pod: Pod) -> datetime:
    """When it failed; where nobody says, after all others."""
    return pod.failed_at or _LATER


def _succeeded(snapshot: Snapshot, says: Conditions, message: str) -> ConditionStatus:
    """A plain success only where all was judged: what was not has not passed."""
    last, apart = guard_of(snapshot.job), snapshot.job.has_guard_pod
    longer = _LONGER_APART.format(minutes=judged_seconds(snapshot.job) / 60) if apart else _LONGER
    missing = not_judged(last, wait_longer=longer)
    silent = ""
    if is_true(snapshot.job.status, ConditionType.GUARD_SILENT) or is_silent(snapshot):
        silent = "the guard was silent when the trainer ended"
    elif apart and not _was_heard_since(snapshot):
        silent = "the guard was not heard since the trainer ended"
    if not silent and (warning := warned(last)):
        words = f"{message}; finished with a warning: {warning}"
        return says.make(ConditionType.SUCCEEDED, "True", Reason.FINISHED_WITH_WARNING, words)
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
    return [pod for pod in snapshot.pods if (pod.rank0 if snapshot.job.has_guard_pod else pod.guarded)]


def noted_disruption(snapshot: Snapshot, says: Conditions) -> ConditionStatus | None:
    """A disruption is noted while its pod is still there, and forgotten once the guarded pod runs again."""
    taken = _disruption(snapshot)
    healthy = any(is_running(pod) for pod in _first_pods(snapshot))
    if taken is None or (healthy and _disrupted_pod(snapshot) is None):
        return None
    return says.make(ConditionType.DISRUPTED, "False", taken[0], taken[1])
