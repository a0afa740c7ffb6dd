"""Carries a decision out: create, write the status, then delete; and the Events of what changed.

Every request is fenced by a UID and may be repeated. The status write carries the resourceVersion of the
snapshot: a decision from a stale cache is refused and made again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from rlguard.operator.adapters import WorkloadAdapter
from rlguard.operator.api import names
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import Status
from rlguard.operator.config import OperatorConfig
from rlguard.operator.guards.keeper import Keeper
from rlguard.operator.reconcile.conditions import Conditions, as_it_is, with_conditions
from rlguard.operator.reconcile.events import Transition, event_of, transitions
from rlguard.operator.reconcile.evidence import EvidenceCollector
from rlguard.operator.reconcile.guard_pod import guard_objects
from rlguard.operator.reconcile.inject import build_workload
from rlguard.operator.reconcile.parse import JOBS, parse_job, read_status
from rlguard.operator.reconcile.snapshot import (
    Action,
    CaptureEvidence,
    CreateWorkload,
    Decision,
    Delete,
    Doomed,
    EnsureGuard,
    Job,
    Report,
    Snapshot,
    Unsaid,
    guard_of,
    must_stop,
)
from rlguard.operator.reconcile.support import new_credentials, support_objects
from rlguard.operator.runtime.background import Background
from rlguard.operator.runtime.client import EVENTS, PODS, STATEFUL_SETS, Client, Json, Resource, of_uid
from rlguard.operator.runtime.errors import ApiError, ClusterError
from rlguard.operator.runtime.metrics import OperatorMetrics

log = logging.getLogger(__name__)


#: How long one look may take to delete pods: meanwhile a worker is busy.
PODS_TIME = timedelta(seconds=5.0)
#: How long the end of the process waits for Events.
FLUSH_SECONDS = 3.0
#: How long figures of a guard wait until they are written.
FIGURES_TIME = timedelta(seconds=10.0)


@dataclass(frozen=True, slots=True)
class ActuationResult:
    """What became of a decision that was carried out.

    `refusal`: why a delete was refused, in the API server's words; "": none was. `trouble`: why the whole
    reconcile is to be repeated; None: it is not.
    """

    refusal: str = ""
    trouble: ClusterError | None = None


class Actuator:
    """See the module."""

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        metrics: OperatorMetrics,
        evidence: EvidenceCollector,
        keeper: Keeper,
    ) -> None:
        self._client = client
        self._config = config
        self._metrics = metrics
        self._evidence = evidence
        self._events = Background("events")
        self._keeper = keeper

    def actuate(self, snapshot: Snapshot, decision: Decision) -> ActuationResult:
        """Carry it out: create, write the status, delete. A status that is refused holds up no delete.

        One without an answer does: if the operator ended then, the run would be gone and nobody would know
        why.
        """
        deletes = [one for one in decision.actions if isinstance(one, Delete)]
        trouble: ClusterError | None = None
        try:
            self._create_and_write(snapshot, decision)
        except ClusterError as error:
            if not deletes or not error.decided:
                return ActuationResult(trouble=error)
            trouble = error
        refusals = [refusal for one in deletes if (refusal := self._delete(snapshot.job, one)) is not None]
        busy = next((one for one in refusals if one.status == 429), None)
        return ActuationResult(_words(refusals), trouble or busy)

    def flush(self) -> None:
        """Wait a moment for the Events that are not written yet."""
        self._events.flush(FLUSH_SECONDS)

    def _create_and_write(self, snapshot: Snapshot, decision: Decision) -> None:
        """Everything but the deletes, then one status write."""
        job, report, extra = snapshot.job, decision.report, list[Transition]()
        trouble: ClusterError | None = None
        for action in decision.actions:
            if isinstance(action, CaptureEvidence):
                report, happened = self._capture(snapshot, action, report)
                extra += happened
            elif isinstance(action, CreateWorkload | EnsureGuard):
                try:
                    self._create(job) if isinstance(action, CreateWorkload) else self._ensure_guard(job)
                except ApiError as error:
                    if not error.refused:
                        raise
                    trouble = error
                    report = _with_refusal(snapshot, action, report, error, datetime.now(UTC))
        self._write(job, report, extra)
        if trouble is not None:
            raise trouble

    def write_status(self, raw: Json, status: Status, report: Report) -> None:
        """Write the status of a job of which nothing more is decided; `status`: as it was read."""
        if as_it_is(status) != report:
            self._apply(raw["metadata"], report, (raw.get("status") or {}).get("guard") or {})
            for transition in transitions(status.conditions, report.conditions):
                self._record(raw["metadata"], transition)

    # -- create ------------------------------------------------------------------------------------------

    def _create(self, job: Job) -> None:
        adapter = _adapter(job)
        self._create_support(job)
        # The cache may be behind: a job that was deleted or has fired meanwhile gets no workload.
        current = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        if current is None:
            return
        fired = guard_of(parse_job(current)).fire is not None
        if fired or "deletionTimestamp" in current["metadata"]:
            return
        workload = build_workload(job, adapter, self._config)
        self._client.apply(adapter.resource, workload, names.OPERATOR_MANAGER)

    def _ensure_guard(self, job: Job) -> None:
        self._create_support(job)
        if (own := job.spec.guard.own_pod) is not None:
            for resource, body in guard_objects(job, own, _adapter(job), self._config):
                self._create_once(resource, job, body)

    def _create_support(self, job: Job) -> None:
        """What the guard mounts beside its volumes: its key and tokens, and its policy."""
        owner = job.namespace, job.name
        secret = self._keeper.credentials(owner, job.uid, lambda: new_credentials(job, datetime.now(UTC)))
        for resource, body in support_objects(job, secret):
            self._create_once(resource, job, body)

    def _create_once(self, resource: Resource, job: Job, body: Json) -> None:
        """Create it unless it exists; the names carry the job's UID, so what exists is this job's.

        A quota or a policy refuses what exists, too, before the API server looks whether it does. A guard
        that has reported had all that it needs, and of that only its StatefulSet was deleted since.
        """
        try:
            self._client.create(resource, job.namespace, body, names.OPERATOR_MANAGER)
        except ApiError as error:
            existed = guard_of(job).level is not None and resource is not STATEFUL_SETS
            if error.status != 409 and not (error.refused and existed):
                raise

    # -- delete ------------------------------------------------------------------------------------------

    def _delete(self, job: Job, action: Delete) -> ClusterError | None:
        """Delete all of them; the first refusal. One that is refused, or hangs, holds up no other.

        Pods are taken in any order and for a limited time: the next look goes on, with others first.
        """
        refusal: ClusterError | None = None
        end = datetime.now(UTC) + PODS_TIME
        for one in _shuffled(action.objects):
            if one.resource == PODS and datetime.now(UTC) > end:
                break
            try:
                foreground = one.resource != PODS  # a pod owns nothing
                self._client.delete(
                    one.resource, job.namespace, one.name, one.uid, one.grace, foreground=foreground
                )
            except ClusterError as error:
                log.error("%s/%s: %s %s: %s", job.namespace, job.name, one.resource.kind, one.name, error)
                refusal = refusal or error
        return refusal

    # -- evidence ----------------------------------------------------------------------------------------

    def _capture(
        self, snapshot: Snapshot, action: CaptureEvidence, report: Report
    ) -> tuple[Report, list[Transition]]:
        """What was collected meanwhile goes into the report; nothing is waited for.

        The status may not say yet how the run ended, so what is decided goes with it.
        """
        status = snapshot.job.status.model_copy(update={"conditions": list(report.conditions)})
        decided = replace(snapshot, job=replace(snapshot.job, status=status))
        if (name := self._evidence.collect(decided, action.final)) is None:
            return report, []
        message = f"verdict, history, log tails and last good checkpoint are in ConfigMap {name}"
        return replace(report, evidence=name), [Transition("Normal", Reason.EVIDENCE_CAPTURED, message)]

    # -- status and Events -------------------------------------------------------------------------------

    def _write(self, job: Job, report: Report, extra: list[Transition]) -> None:
        if as_it_is(job.status) == report and not self._is_due(job):
            return
        metadata = {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
            "generation": job.generation,
        }
        try:
            self._apply(metadata, report, job.guard)
        except ApiError as error:
            if error.status != 409 or (newer := self._same_but_newer(job)) is None:
                raise
            self._apply(metadata | {"resourceVersion": newer}, report, job.guard)
        happened = (*transitions(job.status.conditions, report.conditions), *extra)
        for transition in happened:
            if not (transition.reason == Reason.NO_PODS_LEFT and _was_stopped(job)):
                self._record(metadata, transition)
        if job.status.workload_ref is None and report.workload_ref is not None:
            for name, uid, transition in _resumption(job):
                self._record({"namespace": job.namespace, "name": name, "uid": uid}, transition)
        self._measure(job, report)

    def _is_due(self, job: Job) -> bool:
        """Whether what was read of the guard is to be written now; figures wait for a few seconds."""
        last = None if job.status.guard is None else job.status.guard.read_at
        if job.unsaid is Unsaid.FIGURES and last is not None:
            return datetime.now(UTC) - last >= FIGURES_TIME
        return job.unsaid is not Unsaid.NOTHING

    def _apply(self, metadata: Json, report: Report, guard: Mapping[str, Any]) -> None:
        self._client.apply(JOBS, status_patch(metadata, report, guard), names.OPERATOR_MANAGER, sub="status")

    def _record(self, metadata: Json, transition: Transition) -> None:
        event, namespace = event_of(metadata, transition, datetime.now(UTC)), metadata["namespace"]
        what = f"{namespace}/{metadata['name']}: Event {transition.reason}"
        self._events.add(what, partial(self._client.create, EVENTS, namespace, event, names.OPERATOR_MANAGER))

    def _same_but_newer(self, job: Job) -> str | None:
        """The newest resourceVersion, if the run must stop and only others than operators have written since.

        A latch does not open, so what was decided holds. Else it is to be decided again.
        """
        if not must_stop(job):
            return None
        raw = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        if raw is None or as_it_is(read_status(raw)) != as_it_is(job.status):
            return None
        version: str = raw["metadata"]["resourceVersion"]
        return version

    def _measure(self, job: Job, report: Report) -> None:
        old = {c.type: c.status for c in job.status.conditions}
        new = {c.type: c for c in report.conditions}
        closed = {kind for kind, said in new.items() if said.status == "True" and old.get(kind) != "True"}
        if ConditionType.FIRED in closed:
            self._metrics.fired(new[ConditionType.FIRED].reason)
        if ConditionType.HALTED in closed:
            self._metrics.halted(new[ConditionType.HALTED].reason)
        stopped = new.get(ConditionType.STOPPED)
        fire = guard_of(job).fire
        if fire and stopped and stopped.status == "True" and not _was_stopped(job):
            self._metrics.stopped(max(0.0, (datetime.now(UTC) - fire.at).total_seconds()))


def _shuffled(objects: Sequence[Doomed]) -> Iterator[Doomed]:
    """What makes pods first, in its order; then pods in any order."""
    yield from (one for one in objects if one.resource != PODS)
    pods = [one for one in objects if one.resource == PODS]
    yield from random.sample(pods, len(pods))


def _words(refusals: Sequence[ClusterError]) -> str:
    """The first refusal, as the API server words it."""
    first = refusals[0] if refusals else None
    return first.message if isinstance(first, ApiError) else "" if first is None else str(first)


def _resumption(job: Job) -> Iterator[tuple[str, str, Transition]]:
    """That it goes on from another run, told to both: name and UID of the job, and what is told."""
    origin = job.spec.resumed_from
    if origin is None:
        return
    step = "" if origin.step is None else f" (step {origin.step})"
    here = f"starts from {origin.checkpoint}{step} of job {origin.name}, which stays as it is"
    yield job.name, job.uid, Transition("Normal", Reason.RESUMED, here)
    if origin.uid is not None:
        there = f"job {job.name} starts from {origin.checkpoint}{step} of this one"
        yield origin.name, origin.uid, Transition("Normal", Reason.RESUMED, there)


def _was_stopped(job: Job) -> bool:
    """Whether Stopped was said before: it is told once, whatever comes back afterwards."""
    stop, told = job.status.stop, {c.type: c.status for c in job.status.conditions}
    return told.get(ConditionType.STOPPED) == "True" or (stop is not None and stop.stopped_at is not None)


def _with_refusal(
    snapshot: Snapshot, action: Action, report: Report, error: ApiError, now: datetime
) -> Report:
    """The report with what the API server says to what was to be made, which no dry run had found."""
    reason = Reason.GUARD_REFUSED if isinstance(action, EnsureGuard) else Reason.WORKLOAD_REFUSED
    guarded = Conditions(snapshot, now).make(ConditionType.GUARDED, "False", reason, error.message)
    return with_conditions(report, guarded)


def status_patch(metadata: Json, report: Report, guard: Mapping[str, Any]) -> Json:
    """The status for server-side apply, fenced by UID and resourceVersion; `guard`: what its guard says."""
    status: Json = {
        "observedGeneration": metadata.get("generation", 0),
        "phase": report.phase,
        "conditions": [condition.to_json() for condition in report.conditions],
    }
    if report.workload_ref is not None:
        status["workloadRef"] = report.workload_ref.to_json()
    if guard:
        status["guard"] = dict(guard)
    if report.stop is not None:
        status["stop"] = report.stop.to_json()
    if report.evidence is not None:
        status["evidence"] = report.evidence
    fence = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": fence, "status": status}


def _adapter(job: Job) -> WorkloadAdapter:
    assert job.adapter is not None, "gather refuses kinds without an adapter"
    return job.adapter
