"""What is said of one job: its conditions, and what else several stages say alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from rlguard.operator.api.reasons import FIRE_REASONS, ConditionType, Reason
from rlguard.operator.api.status import ConditionStatus, GuardStatus, Latched, Phase, Status, WorkloadRef
from rlguard.operator.reconcile.halts import (
    halt_due,
    is_at_once,
    is_silent,
    silence_message,
    unguarded_pod,
    without_guard,
)
from rlguard.operator.reconcile.snapshot import (
    Between,
    Job,
    Report,
    Snapshot,
    Waiting,
    Workload,
    condition_of,
    guard_of,
    must_stop,
)
from rlguard.operator.reconcile.targets import UNPROTECTED

_NO_RANK0 = "the rank-0 pod is not running, so nothing is expected of its guard"
#: Why there is no verdict now.
_AWAY = {
    Reason.GUARD_SILENT: "the guard is silent",
    Reason.GUARD_NOT_RUNNING: "no guard runs that was heard",
}


def new_condition(
    before: Status,
    generation: int | None,
    now: datetime,
    kind: ConditionType,
    status: str,
    reason: Reason | str,
    message: str,
) -> ConditionStatus:
    """A condition after those of `before`; `lastTransitionTime` moves only when its status does.

    It moves, too, when a run leaves its queue and waits for something else, for which it has not waited yet.
    """
    old = condition_of(before, kind)
    unchanged = old is not None and old.status == status and not (old.reason == Reason.QUEUED != reason)
    return ConditionStatus(
        type=kind,
        status=status,
        reason=reason,
        message=message[:32768],
        observed_generation=generation,
        last_transition_time=old.last_transition_time if old and unchanged else now,
    )


class Conditions:
    """Builds conditions for one snapshot."""

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
        job = self._job
        return new_condition(job.status, job.generation, self.now, kind, status, reason, message)

    def waits_for(self, pod: str, waiting: Waiting) -> ConditionStatus:
        """That the run waits for a pod which cannot start."""
        message = f"pod {pod}: {waiting.message}"
        return self.make(ConditionType.WAITING, "True", waiting.reason, message)

    def __call__(self, *others: ConditionStatus | None, over: bool = False) -> tuple[ConditionStatus, ...]:
        """What holds at every stage, and `others`.

        `over`: the run has ended, so nothing will be found any more.
        """
        fired = self._fired(over=True) if over else self.fired
        common = (fired, self.silent, self.halted, self.isolated, *others)
        return _by_type(c for c in common if c is not None)

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
        if guard_of(self._job).level is None:
            return self.make(
                ConditionType.FIRED, "Unknown", Reason.NO_VERDICT_YET, Reason.NO_VERDICT_YET.meaning
            )
        if over:
            message = f"the guard had not fired when it was heard last; {last_verdict(guard_of(self._job))}"
            return self.make(ConditionType.FIRED, "False", Reason.NOT_FIRED, message)
        if is_silent(self._snapshot):
            away = Reason.GUARD_SILENT
        elif not _is_watched(self._snapshot):
            away = Reason.GUARD_NOT_RUNNING
        else:
            return self.make(ConditionType.FIRED, "False", Reason.NOT_FIRED, Reason.NOT_FIRED.meaning)
        message = f"there is no verdict now: {_AWAY[away]}; {last_verdict(guard_of(self._job))}"
        return self.make(ConditionType.FIRED, "Unknown", away, message)

    def _silent(self, snapshot: Snapshot) -> ConditionStatus:
        if is_silent(snapshot):
            reason = Reason.MOST_SILENT if is_at_once(snapshot) else Reason.GUARD_SILENT
            status, message = "True", silence_message(snapshot)
        elif snapshot.silent_for is None:
            status, reason, message = "Unknown", Reason.GUARD_NOT_RUNNING, _NO_RANK0
        elif snapshot.unreached:
            status, reason, message = "Unknown", Reason.GUARD_UNREACHABLE, snapshot.unreached
        elif guard_of(self._job).level is None:
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
        before = condition_of(self._job.status, ConditionType.ISOLATED)
        if before is not None and self._job.is_attached and must_stop(self._job):
            return before  # its pods are not in a cache
        if self._job.is_attached:
            reason = Reason.GUARD_DATA_EXPOSED if snapshot.broken else Reason.ATTACHED
            message = "not protected: " + "; ".join((*snapshot.broken, *UNPROTECTED))
            return self.make(ConditionType.ISOLATED, "False", reason, message)
        if before is not None and self._job.status.workload_ref is not None:
            # What was created does not change, whatever the operator's configuration would admit today.
            return self.make(ConditionType.ISOLATED, before.status, before.reason, before.message)
        if snapshot.broken:
            message = "; ".join(snapshot.broken)
            return self.make(ConditionType.ISOLATED, "False", Reason.RELAXED_ISOLATION, message)
        meaning = Reason.STRICT_ISOLATION.meaning
        return self.make(ConditionType.ISOLATED, "True", Reason.STRICT_ISOLATION, meaning)


def last_verdict(last: GuardStatus) -> str:
    """The last verdict, as history."""
    at = f"{last.read_at:%Y-%m-%dT%H:%M:%SZ}" if last.read_at else "an unknown time"
    return f"its last verdict, read at {at}: {last.level} ({last.code}) at step {last.step}: {last.reason}"


def as_it_is(status: Status) -> Report:
    """What the operator has said of the job."""
    noted = status.workload_ref, status.stop, status.evidence
    return Report(status.phase or Phase.PENDING, _by_type(status.conditions), *noted)


def with_conditions(report: Report, *new: ConditionStatus) -> Report:
    """The report with these conditions in the place of those of their types."""
    others = (old for old in report.conditions if all(old.type != one.type for one in new))
    return replace(report, conditions=_by_type((*new, *others)))


def _by_type(conditions: Iterable[ConditionStatus]) -> tuple[ConditionStatus, ...]:
    """Sorted, so that equal reports compare equal."""
    return tuple(sorted(conditions, key=lambda one: one.type))


def guard_maker(snapshot: Snapshot) -> tuple[Between, ...]:
    """What makes the guard's own pod, and is not on its way out."""
    made = snapshot.guard_maker
    return () if made is None or made.terminating else (made,)


def whether_guarded(snapshot: Snapshot, says: Conditions) -> ConditionStatus:
    """The workload was created with its guard; that its pods have it is seen from the pods."""
    if (unguarded := unguarded_pod(snapshot)) is not None:
        message = f"{without_guard(unguarded)}: something between operator and kubelet took it"
        return says.make(ConditionType.GUARDED, "False", Reason.GUARD_MISSING, message)
    if refused := snapshot.not_admitted:
        message = f"{'; '.join(refused)}; set guard.isolation: Relaxed to have it judged all the same"
        return says.make(ConditionType.GUARDED, "False", Reason.TARGET_REFUSED, message)
    if snapshot.unreached:
        return says.make(ConditionType.GUARDED, "Unknown", Reason.GUARD_UNREACHABLE, snapshot.unreached)
    before = condition_of(snapshot.job.status, ConditionType.GUARDED)
    if before is not None and before.reason == Reason.CLAIM_OWNED:
        return says.make(ConditionType.GUARDED, "True", Reason.CLAIM_OWNED, before.message)
    reason = Reason.WORKLOAD_ATTACHED if snapshot.job.is_attached else Reason.WORKLOAD_CREATED
    return says.make(ConditionType.GUARDED, "True", reason, reason.meaning)


def _is_watched(snapshot: Snapshot) -> bool:
    """Whether a guard runs now that was heard."""
    heard = None if snapshot.reading is None or snapshot.reading.verdict is None else snapshot.reading.pod
    running = (pod for pod in snapshot.pods if pod.guarded and pod.guard_since and pod.phase == "Running")
    return any(pod.uid == heard for pod in running)


def workload_ref_of(snapshot: Snapshot) -> WorkloadRef | None:
    """What was created. Once written it stays, so that a namesake is never taken for ours."""
    workload, ref = snapshot.workload, snapshot.job.status.workload_ref
    if ref is not None:
        return ref
    return None if workload is None or not workload.ours else reference_to(snapshot.job, workload)


def reference_to(job: Job, workload: Workload) -> WorkloadRef:
    """What is noted of this workload, by which it is known from then on."""
    kind = job.spec.workload
    return WorkloadRef(api_version=kind.api_version, kind=kind.kind, name=job.workload_name, uid=workload.uid)
