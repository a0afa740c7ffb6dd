"""Carries a decision out: actions first, then one status write, then the Events of what changed.

Every request is fenced by a UID and may be repeated. The status write carries the resourceVersion of the
snapshot: a decision from a stale cache is refused and made again.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol, assert_never

from guard_core.policy import Policy
from guard_operator.adapters import Child, TemplateError, WorkloadAdapter, find_adapter
from guard_operator.api import names
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import ApiModel, ConditionStatus, Status, StopMethod
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.certificate import own_certificate
from guard_operator.reconcile.collector import EvidenceCollector
from guard_operator.reconcile.conditions import Conditions
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
from guard_operator.reconcile.events import Transition, transitions
from guard_operator.reconcile.guard_pod import guard_objects, host_of
from guard_operator.reconcile.halts import is_to_stop
from guard_operator.reconcile.inject import (
    build_workload,
    created_for,
    guard_service_account,
    support_objects,
)
from guard_operator.reconcile.parse import JOBS, read_policy, read_status
from guard_operator.reconcile.recorder import EventRecorder
from guard_operator.reconcile.snapshot import Between, Job, Snapshot, guard_of, with_conditions
from guard_operator.runtime.client import (
    KUEUE_WORKLOADS,
    PODS,
    STATEFUL_SETS,
    Client,
    Json,
    Resource,
    controller_of,
    of_uid,
)
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError

log = logging.getLogger(__name__)


#: Of an API server or an etcd that has no time: no refusal, and perhaps done all the same.
_NOT_NOW = (503, 504)
#: How long one look may take to delete pods. Meanwhile their workload is not stopped, and a worker is busy.
PODS_TIME = timedelta(seconds=5.0)
#: What holds up nothing that follows it, least of all the status, by which what is harder gets its turn.
_OF_TEARDOWN = (LeaveQueue, StopWorkload, DeleteBetween, DeletePods)
#: What is refused of these is said in the status: nobody would know else why there is no guard.
_MAKES = (CreateWorkload, StartGuard)


class Observer(Protocol):
    """Told about what is worth a metric."""

    def fired(self, reason: str) -> None:
        """A fire was recorded."""

    def halted(self, reason: str) -> None:
        """A halt was recorded."""

    def stopped(self, seconds: float) -> None:
        """The last pod of a fired run is gone, `seconds` after the guard latched."""


class Actuator:
    """See the module. `clock` gives the time in UTC."""

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        observer: Observer,
        evidence: EvidenceCollector,
        events: EventRecorder,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._config = config
        self._observer = observer
        self._evidence = evidence
        self._events = events
        self._clock = clock

    def actuate(self, snapshot: Snapshot, decision: Decision) -> None:
        """Carry it out.

        Raises:
            ClusterError: something did not work for now; the whole reconcile is to be repeated.
        """
        report, extra = decision.report, list[Transition]()
        trouble: ClusterError | None = None
        for action in decision.actions:
            try:
                report, happened = self._act(snapshot, action, report)
            except ClusterError as error:
                trouble = error
                if isinstance(action, _MAKES) and isinstance(error, ApiError) and error.refused:
                    report = _with_refusal(snapshot, action, report, error, self._clock())
                elif not isinstance(action, _OF_TEARDOWN):
                    raise
                continue
            extra += happened
        extra += _escalation(snapshot.job, decision.report)
        self._write(snapshot.job, report, extra)
        if trouble is not None:
            raise trouble

    def say(self, raw: Json, report: Report) -> None:
        """Write the status of a job of which nothing more is decided."""
        metadata = raw["metadata"]
        self._client.apply(JOBS, status_patch(metadata, report), names.OPERATOR_MANAGER, sub="status")

    def _act(self, snapshot: Snapshot, action: Action, report: Report) -> tuple[Report, list[Transition]]:
        """Do one thing; the report with what came of it, and Events of its own."""
        job = snapshot.job
        match action:
            case RecordLatches():
                return self._record(job, action, report), []
            case CreateWorkload():
                self._create(job)
            case StartGuard():
                self._start_guard(job)
            case CaptureEvidence():
                return self._capture(snapshot, action, report)
            case LeaveQueue():
                self._leave_queue(job, action)
            case StopWorkload():
                return self._stop(job, action, report)
            case DeleteBetween():
                self._delete_between(job, action.objects)
            case DeletePods():
                self._delete_pods(job, action)
            case _:
                assert_never(action)
        return report, []

    def _record(self, job: Job, latches: RecordLatches, report: Report) -> Report:
        """Write it down; what is to be reported then. One that is refused holds up no stop."""
        guard = {
            key: _dump(latch)
            for key, latch in (("fire", latches.fire), ("halt", latches.halt))
            if latch is not None
        }
        fence = {"uid": job.uid, "resourceVersion": job.resource_version}
        patch = {"metadata": fence, "status": {"guard": guard}}
        try:
            self._client.merge(JOBS, job.namespace, job.name, patch, names.OPERATOR_MANAGER, sub="status")
        except ClusterError as error:
            log.error("%s/%s: what its guard left cannot be written: %s", job.namespace, job.name, error)
            return latches.otherwise or report
        return report

    # -- create ------------------------------------------------------------------------------------------

    def _create(self, job: Job) -> None:
        adapter = _adapter(job)
        self._create_support(job, job.spec.guard.policy)
        # The cache may be behind: a job that was deleted or has fired meanwhile gets no workload.
        current = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        if current is None:
            return
        guard = (current.get("status") or {}).get("guard") or {}
        if "fire" in guard or "deletionTimestamp" in current["metadata"]:
            return
        workload = build_workload(job, adapter, self._config)
        for resource, body in created_for(job, adapter, workload):
            self._client.apply(resource, body, names.OPERATOR_MANAGER)

    def _create_support(self, job: Job, policy: Policy) -> None:
        """What the guard needs beside the workload."""
        tokens = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        own = job.spec.guard.own_pod
        certificate = None if own is None else own_certificate(host_of(job), self._clock())
        account = guard_service_account(job, _adapter(job))
        for resource, body in support_objects(job, policy, account, tokens, certificate):
            self._create_once(resource, job, body)

    def _start_guard(self, job: Job) -> None:
        own = job.spec.guard.own_pod
        assert own is not None, "only a guard in a pod of its own is started"
        if job.spec.target_ref is not None:  # else it was made with the workload
            raw = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
            if raw is None:
                return
            policy = read_policy(raw)
            if policy is None:  # of a run that goes on: its guard is silent, which stops it
                log.error("%s/%s: its policy cannot be read, so it gets no guard", job.namespace, job.name)
                return
            self._create_support(job, policy)
        try:
            objects = [*guard_objects(job, own, _adapter(job), self._config, self._config.scrapers)]
        except TemplateError as error:  # of a run that goes on: its guard is silent, which stops it
            log.error("%s/%s: its guard cannot be started: %s", job.namespace, job.name, error)
            return
        for resource, body in objects:
            self._create_once(resource, job, body)

    def _create_once(self, resource: Resource, job: Job, body: Json) -> None:
        """Create it unless it exists; the names carry the job's UID, so what exists is this job's.

        A quota or a policy refuses what exists, too, before the API server looks whether it does. A guard
        that has reported had all that it needs, and of that only its StatefulSet was deleted since.
        """
        try:
            self._client.create(resource, job.namespace, body, names.OPERATOR_MANAGER)
        except ApiError as error:
            existed = guard_of(job).heartbeat is not None and resource is not STATEFUL_SETS
            if error.status != 409 and not (error.refused and existed):
                raise

    # -- stop --------------------------------------------------------------------------------------------

    def _stop(self, job: Job, action: StopWorkload, report: Report) -> tuple[Report, list[Transition]]:
        adapter = _adapter(job)
        refusal = f"a {adapter.resource.kind} as it is has nothing that could be asked for it"
        try:
            if self._ask(adapter, job, action):
                return report, []
        except ApiError as error:
            if error.status in {404, 409, *_NOT_NOW}:
                return report, []  # it is gone, another one has its name, or perhaps it was done
            if error.status == 429:
                raise
            refusal = error.message
        except TransportError:
            # As with a webhook that hangs. The stop must be written: the next look tells what came of it, and
            # what has had no effect for long is followed by what is harder.
            return report, []
        done = "the workload was deleted"
        try:
            self._client.delete(adapter.resource, job.namespace, job.workload_name, action.uid)
        except ApiError as error:
            if error.status == 429:
                raise
            # The stop must be written all the same: its time begins, and then the pods are deleted.
            done = f"a delete was asked for, and refused, too ({error.message}): its pods are next"
        except TransportError as error:
            done = f"a delete was asked for, without an answer ({error}): its pods are next"
        if action.method is StopMethod.DELETE or report.stop is None:
            return report, []
        # A webhook that is down refuses every patch, but it does not stand in the way of a delete.
        stop = report.stop.model_copy(update={"method": StopMethod.DELETE})
        message = f"{action.method} was refused, so {done}: {refusal}"
        return replace(report, stop=stop), [Transition("Warning", Reason.STOP_ESCALATED, message)]

    def _leave_queue(self, job: Job, action: LeaveQueue) -> None:
        """A queue that refuses holds up no stop: without its effect the workload is deleted."""
        patch: Json = {"metadata": {"uid": action.uid}, "spec": {"active": False}}
        try:
            self._client.merge(KUEUE_WORKLOADS, job.namespace, action.name, patch, names.OPERATOR_MANAGER)
        except ClusterError as error:
            if error.status == 429:
                raise
            if error.status not in {404, 409}:  # gone, or changed meanwhile: the next look will tell
                log.error("%s/%s: Workload %s: %s", job.namespace, job.name, action.name, error)

    def _delete_pods(self, job: Job, action: DeletePods) -> None:
        """One that is refused keeps no other from being deleted, nor does one that hangs: next time, others
        are first.
        """
        refused, end = None, self._clock() + PODS_TIME
        for name, uid in random.sample(action.pods, len(action.pods)):
            if self._clock() > end:
                break  # the next look goes on
            try:
                self._client.delete(PODS, job.namespace, name, uid, action.grace)
            except ApiError as error:
                refused = error
        if refused is not None:
            raise refused

    def _delete_between(self, job: Job, objects: tuple[Between, ...]) -> None:
        """What cannot be deleted keeps no pod from being deleted: that is next."""
        for one in objects:
            try:
                self._client.delete(one.resource, job.namespace, one.name, one.uid)
            except ClusterError as error:
                if error.status == 429:
                    raise
                log.error("%s/%s: %s %s: %s", job.namespace, job.name, one.resource.kind, one.name, error)

    def _ask(self, adapter: WorkloadAdapter, job: Job, action: StopWorkload) -> bool:
        """Ask workload and children to end; whether there was any that could be asked."""
        patch = adapter.stop_patch(action.method)
        if patch is not None:
            self._merge(adapter.resource, job, job.workload_name, action.uid, patch)
        try:
            spec = self._spec(adapter, job, action.uid)
        except ClusterError as error:
            if patch is None:
                raise
            # It took the request: that its children cannot be known now is no refusal.
            log.warning(
                "%s/%s: what else ends it is asked at the next look: %s", job.namespace, job.name, error
            )
            return True
        if job.spec.target_ref is not None and any(spec.get(field) for field in adapter.undone_by):
            return patch is not None
        children = adapter.stop_children(action.method, job.workload_name, spec)
        asked = [self._ask_child(job, action, child) for child in children]
        return patch is not None or any(asked)

    def _spec(self, adapter: WorkloadAdapter, job: Job, uid: str) -> Json:
        """The spec of the workload: of its template, or as one to which the job is attached is now."""
        if job.spec.target_ref is None:
            return job.spec.made_from.spec
        raw = self._client.get(adapter.resource, job.namespace, job.workload_name)
        spec = (of_uid(raw, uid) or {}).get("spec")
        return spec if isinstance(spec, dict) else {}

    def _ask_child(self, job: Job, action: StopWorkload, child: Child) -> bool:
        """Whether it is there, and the workload's own: anybody may have made a namesake."""
        raw = self._client.get(child.resource, job.namespace, child.name)
        if raw is None or controller_of(raw) != action.uid:
            return False
        uid = raw["metadata"]["uid"]
        if child.patch is None:
            self._client.delete(child.resource, job.namespace, child.name, uid)
        else:
            self._merge(child.resource, job, child.name, uid, child.patch)
        return True

    def _merge(self, resource: Resource, job: Job, name: str, uid: str, patch: Json) -> None:
        fenced = patch | {"metadata": {"uid": uid}}
        self._client.merge(resource, job.namespace, name, fenced, names.OPERATOR_MANAGER)

    # -- evidence ----------------------------------------------------------------------------------------

    def _capture(
        self, snapshot: Snapshot, action: CaptureEvidence, report: Report
    ) -> tuple[Report, list[Transition]]:
        """What was collected meanwhile goes into the report; nothing is waited for.

        The status may not say yet how the run ended, so what is decided goes with it.
        """
        decided = replace(snapshot, job=with_conditions(snapshot.job, report.conditions))
        if (name := self._evidence.collect(decided, action.final)) is None:
            return report, []
        message = f"verdict, history, log tails and last good checkpoint are in ConfigMap {name}"
        return replace(report, evidence=name), [Transition("Normal", Reason.EVIDENCE_CAPTURED, message)]

    # -- status and Events -------------------------------------------------------------------------------

    def _write(self, job: Job, report: Report, extra: list[Transition]) -> None:
        if _says(job.status) == _sayable(report):
            return
        try:
            self._apply(job, report, job.resource_version)
        except ApiError as error:
            if error.status != 409 or (version := self._same_but_newer(job)) is None:
                raise
            self._apply(job, report, version)
        happened = (*transitions(job.status.conditions, report.conditions), *extra)
        for transition in happened:
            if not (transition.reason == Reason.NO_PODS_LEFT and _was_stopped(job)):
                self._events.record(job, transition, self._clock())
        if job.status.workload_ref is None and report.workload_ref is not None:
            for one, transition in _resumption(job):
                self._events.record(one, transition, self._clock())
        self._measure(job, report)

    def _apply(self, job: Job, report: Report, version: str) -> None:
        metadata = {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": version,
            "generation": job.generation,
        }
        self._client.apply(JOBS, status_patch(metadata, report), names.OPERATOR_MANAGER, sub="status")

    def _same_but_newer(self, job: Job) -> str | None:
        """The newest resourceVersion, if the run must stop and only others than operators have written since.

        A latch does not open, so what was decided holds. Else it is to be decided again.
        """
        if not is_to_stop(job):
            return None
        raw = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        if raw is None or _says(read_status(raw)) != _says(job.status):
            return None
        version: str = raw["metadata"]["resourceVersion"]
        return version

    def _measure(self, job: Job, report: Report) -> None:
        old = {c.type: c.status for c in job.status.conditions}
        new = {c.type: c for c in report.conditions}
        closed = {kind for kind, said in new.items() if said.status == "True" and old.get(kind) != "True"}
        if ConditionType.FIRED in closed:
            self._observer.fired(new[ConditionType.FIRED].reason)
        if ConditionType.HALTED in closed:
            self._observer.halted(new[ConditionType.HALTED].reason)
        stopped = new.get(ConditionType.STOPPED)
        fire, stop = guard_of(job).fire, report.stop
        if fire and stopped and stopped.status == "True" and not _was_stopped(job):
            empty = (stop and stop.empty_since) or self._clock()
            self._observer.stopped(max(0.0, (empty - fire.at).total_seconds()))


def _resumption(job: Job) -> Iterator[tuple[Job, Transition]]:
    """That it goes on from another run, told to both."""
    origin = job.spec.resumed_from
    if origin is None:
        return
    step = "" if origin.step is None else f" (step {origin.step})"
    here = f"starts from {origin.checkpoint}{step} of job {origin.name}, which stays as it is"
    yield job, Transition("Normal", Reason.RESUMED, here)
    if origin.uid is not None:
        there = f"job {job.name} starts from {origin.checkpoint}{step} of this one"
        yield replace(job, name=origin.name, uid=origin.uid), Transition("Normal", Reason.RESUMED, there)


def _was_stopped(job: Job) -> bool:
    """Whether Stopped was said before: it is told once, whatever comes back afterwards."""
    stop, told = job.status.stop, {c.type: c.status for c in job.status.conditions}
    return told.get(ConditionType.STOPPED) == "True" or (stop is not None and stop.stopped_at is not None)


def _says(status: Status) -> object:
    """The operator's part of the status as it is; comparable with `_sayable`."""
    noted = status.workload_ref, status.guard_digest, status.stop, status.evidence
    return status.phase, _sorted(status.conditions), *noted


def _sayable(report: Report) -> object:
    noted = report.workload_ref, report.guard_digest, report.stop, report.evidence
    return report.phase, _sorted(report.conditions), *noted


def _with_refusal(
    snapshot: Snapshot, action: Action, report: Report, error: ApiError, now: datetime
) -> Report:
    """The report with what the API server says to what was to be made, which no dry run had found."""
    reason = Reason.GUARD_REFUSED if isinstance(action, StartGuard) else Reason.WORKLOAD_REFUSED
    guarded = Conditions(snapshot, now).make(ConditionType.GUARDED, "False", reason, error.message)
    others = (condition for condition in report.conditions if condition.type != guarded.type)
    return replace(report, conditions=tuple(sorted((*others, guarded), key=lambda c: c.type)))


def _escalation(job: Job, report: Report) -> Iterator[Transition]:
    """An Event if a harder way of stopping took the place of one that had no effect."""
    before, after = job.status.stop, report.stop
    if before is not None and after is not None and before.method != after.method:
        message = f"{before.method} has had no effect since {before.requested_at:%H:%M:%S}: {after.method}"
        yield Transition("Warning", Reason.STOP_ESCALATED, message)


def _sorted(conditions: Iterable[ConditionStatus]) -> list[ConditionStatus]:
    return sorted(conditions, key=lambda condition: condition.type)


def status_patch(metadata: Json, report: Report) -> Json:
    """The operator's part of the status, for server-side apply, fenced by UID and resourceVersion."""
    status: Json = {
        "observedGeneration": metadata.get("generation", 0),
        "phase": report.phase,
        "conditions": [_dump(condition) for condition in report.conditions],
    }
    if report.workload_ref is not None:
        status["workloadRef"] = _dump(report.workload_ref)
    if report.guard_digest is not None:
        status["guardDigest"] = report.guard_digest
    if report.stop is not None:
        status["stop"] = _dump(report.stop)
    if report.evidence is not None:
        status["evidence"] = report.evidence
    fence = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": fence, "status": status}


def _dump(model: ApiModel) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _adapter(job: Job) -> WorkloadAdapter:
    adapter = find_adapter(job.spec.workload.api_version, job.spec.workload.kind)
    assert adapter is not None, "gather refuses kinds without an adapter"
    return adapter
