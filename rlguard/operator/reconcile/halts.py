"""Whether a run is to be halted, and why: its guard halted it, or its guard is silent. Pure, over a snapshot.

`gather` asks what must be read live before it is believed, `decide` what to do about it.
"""

from __future__ import annotations

from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.reconcile.snapshot import (
    OVER,
    Job,
    Pod,
    Snapshot,
    guard_of,
    is_true,
    must_stop,
    own_end,
)


def must_be_live(snapshot: Snapshot) -> bool:
    """Whether this snapshot leads to what must not come from a cache: a silent guard, a halt, or a run's end.

    An end is written once, and a cache may know of a workload that failed, and not yet of the pod that was
    evicted, or of the fire that its guard left.

    A run that is to be stopped anyway waits for no request.
    """
    ended = not ended_before(snapshot.job) and own_end(snapshot) is not None
    return not must_stop(snapshot.job) and (ended or is_silent(snapshot) or halt_due(snapshot) is not None)


def halt_due(snapshot: Snapshot) -> tuple[Reason, str] | None:
    """Which action halts the run now, and why; None: none does."""
    if (halt := guard_of(snapshot.job).halt) is not None:
        return Reason.GUARD_HALT, f"{halt.code} at step {halt.step}: {halt.reason}"
    silence_counts = _stops_silence(snapshot) and not ended_before(snapshot.job)
    if silence_counts and snapshot.reading is not None and snapshot.reading.lost:
        return Reason.PAST_UNKNOWN, snapshot.reading.lost
    if is_silent(snapshot) and silence_counts and not held_back(snapshot):
        return Reason.GUARD_SILENT, silence_message(snapshot)
    if silence_counts and (pod := gave_up(snapshot)) is not None:
        return Reason.GUARD_NOT_READY, f"pod {pod.name}: {pod.gave_up}"
    return None


def goes_on_unread(job: Job) -> bool:
    """Whether a teardown goes on although something cannot be read.

    Not once it is stopped: one failed request does not put that into doubt.
    """
    latched = must_stop(job) or guard_of(job).halt is not None
    return latched and job.status.workload_ref is not None and not is_true(job.status, ConditionType.STOPPED)


def was_there(job: Job) -> bool:
    """Whether a run goes on, as far as is known, so that a kind that is no longer served says nothing of it.

    Of one that is to stop it makes no more pods, and those that there are have the operator's labels.
    """
    return job.status.workload_ref is not None and not (must_stop(job) or ended_before(job))


def ended_before(job: Job) -> bool:
    """Whether the run has ended; a pod may outlive it, and its guard has said its last word."""
    return any(is_true(job.status, kind) for kind in OVER)


def is_silent(snapshot: Snapshot) -> bool:
    """Whether the guard could not be heard for longer than the job allows."""
    age = snapshot.silent_for
    return age is not None and age > snapshot.job.spec.on_silence.after_seconds


def _stops_silence(snapshot: Snapshot) -> bool:
    return snapshot.job.spec.on_silence.action == "Stop"


def held_back(snapshot: Snapshot) -> str:
    """Why a silence is not this guard's fault, so that it stops no run; "" if it may be."""
    if unguarded_pod(snapshot) is not None:
        return ""
    if is_at_once(snapshot):
        return (
            "more than half of all guards cannot be reached: the fault is not theirs, and no run is stopped"
        )
    # Of a guard elsewhere it is no excuse: its trainer goes on, and nobody judges it.
    trains = {pod.node for pod in snapshot.pods if pod.rank0 and is_running(pod)}
    here = (pod for pod in snapshot.pods if pod.guarded and is_running(pod) and pod.node in trains)
    if (lost := next((pod for pod in here if pod.cut_off), None)) is not None:
        return f"node {lost.node} does not respond, so its guard cannot be heard and no run is stopped"
    return ""


def is_at_once(snapshot: Snapshot) -> bool:
    """Whether this silence is that of most guards; a rank 0 without its guard is a case of its own."""
    return snapshot.most_silent and unguarded_pod(snapshot) is None


def silence_message(snapshot: Snapshot) -> str:
    """What is to be said of a silent guard, and why its run goes on although its silence should stop it."""
    limit = snapshot.job.spec.on_silence.after_seconds
    if (unguarded := unguarded_pod(snapshot)) is not None:
        return f"{without_guard(unguarded)}, for more than {limit} s"
    error = "" if snapshot.reading is None else snapshot.reading.error
    said = f" ({error})" if error else ""
    message = f"the guard could not be heard for more than {limit} s{said}, and is not ready"
    why = held_back(snapshot) if _stops_silence(snapshot) else ""
    return f"{message}; {why}" if why else message


def unguarded_pod(snapshot: Snapshot) -> Pod | None:
    """A pod in which rank 0 runs without its guard. One in a pod of its own may be away: it is silent."""
    if snapshot.job.has_guard_pod:
        return None
    return next((pod for pod in snapshot.pods if pod.rank0 and not pod.guarded and is_running(pod)), None)


def gave_up(snapshot: Snapshot) -> Pod | None:
    """The pod of rank 0, if it waited for its guard for as long as it may, and has made no step.

    What restarts its containers would have it wait for ever, with its GPUs.
    """
    newest = next((pod for pod in reversed(snapshot.pods) if pod.rank0), None)
    waited = newest is not None and newest.gave_up and newest.phase in {"Pending", "Failed"}
    return newest if waited and newest is not None and not newest.terminating else None


def without_guard(pod: Pod) -> str:
    """The sentence about such a pod."""
    return f"rank 0 runs in pod {pod.name} without its guard"


def is_running(pod: Pod) -> bool:
    """Whether its containers run and it is not on its way out."""
    return pod.phase == "Running" and not pod.terminating
