"""Builds the snapshot of one job: from the caches where being late is harmless, live where it is not.

Live are: whether the workload exists before one is created, and workload and pods once a stop was requested,
because "no pod is left" must not come from a cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from pydantic import ValidationError

from guard_operator.adapters import Adapter, find
from guard_operator.api import names
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import GuardStatus, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.decide import condition_of
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.refusals import inspect, pod_spec
from guard_operator.reconcile.snapshot import (
    Disruption,
    Job,
    Pod,
    Preparation,
    Snapshot,
    Waiting,
    Workload,
    guard_of,
)
from guard_operator.runtime.client import CLAIMS, PODS, Client, Json, Resource
from guard_operator.runtime.errors import ApiError

#: What is kept of a container's status, and the reasons for which every container waits for a moment.
_OF_A_CONTAINER = ("name", "started", "state", "lastState", "restartCount")
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
#: How much of a guard's last words is repeated, characters.
LAST_WORDS = 600

CLAIM_SECONDS = 5.0
FORBIDDEN_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
REFUSED_SECONDS = 300.0

_TARGET_REASONS = {
    "PreemptionByScheduler": Disruption.PREEMPTED,
    "EvictionByEvictionAPI": Disruption.EVICTED,
    "TerminationByKubelet": Disruption.EVICTED,
    "DeletionByTaintManager": Disruption.NODE_LOST,
    "DeletionByPodGC": Disruption.NODE_LOST,
}
_POD_REASONS = {
    "Evicted": Disruption.EVICTED,
    "Preempting": Disruption.PREEMPTED,
    "NodeLost": Disruption.NODE_LOST,
    "NodeShutdown": Disruption.NODE_LOST,
    "Terminated": Disruption.NODE_LOST,
}


class Caches(Protocol):
    """What the reflectors hold."""

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The cached workload."""

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The cached pods that carry the job's UID."""


class HeartbeatClock:
    """How long ago a heartbeat was seen to change. It compares no clocks of two machines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}

    def age(self, job_uid: str, beat: object) -> float:
        """Seconds since `beat` was first seen for this job."""
        now = self._clock()
        known, since = self._seen.get(job_uid, (None, now))
        if known != beat:
            since = now
        self._seen[job_uid] = (beat, since)
        return now - since

    def forget(self, job_uid: str) -> None:
        """Drop a job that is gone."""
        self._seen.pop(job_uid, None)


class Gatherer:
    """See the module."""

    def __init__(self, client: Client, config: OperatorConfig, caches: Caches, beats: HeartbeatClock) -> None:
        self._client = client
        self._config = config
        self._caches = caches
        self._beats = beats

    def gather(self, job: Job) -> Snapshot:
        """The snapshot of this job.

        Raises:
            ClusterError: a live read failed for now.
        """
        template = job.spec.template
        adapter = find(template.api_version, template.kind)
        if adapter is None:
            message = f"spec.template: {template.api_version} {template.kind} cannot be guarded"
            return Snapshot(job, preparation=Preparation(Reason.UNSUPPORTED_KIND, message))
        stopping = _is_stopping(job)
        raw_pods = list(self._caches.pods(job.namespace, job.uid))
        # The first stop request need not wait for live reads; whether something is left must not be cached.
        live = stopping and (job.status.stop is not None or not raw_pods)
        raw_workload = self._workload(adapter, job, live)
        workload = None if raw_workload is None else _workload(adapter, job, raw_workload)
        raw_pods = self._live_pods(job) if live else raw_pods
        pods = tuple(_pod(adapter, raw) for raw in sorted(raw_pods, key=_age))
        findings = inspect(adapter, template.spec, job.spec.guard, self._config)
        return Snapshot(
            job=job,
            workload=workload,
            pods=pods,
            preparation=None if workload or stopping or _was_created(job) else self._prepare(adapter, job),
            costs=tuple(finding.cost for finding in findings if finding.cost is not None),
            heartbeat_age=self._heartbeat_age(job, pods),
        )

    def _workload(self, adapter: Adapter, job: Job, live: bool) -> Json | None:
        cached = None if live else self._caches.workload(adapter.resource, job.namespace, job.name)
        return cached or self._client.get(adapter.resource, job.namespace, job.name)

    def _live_pods(self, job: Job) -> list[Json]:
        query = {"labelSelector": f"{names.UID_LABEL}={job.uid}"}
        items: list[Json] = self._client.list(PODS, job.namespace, query).get("items") or []
        return items

    def _heartbeat_age(self, job: Job, pods: tuple[Pod, ...]) -> float | None:
        guarded = [pod for pod in pods if pod.guarded and pod.phase == "Running" and not pod.terminating]
        if not guarded:
            self._beats.forget(job.uid)
            return None
        return self._beats.age(job.uid, (guard_of(job).heartbeat, guarded[0].uid))

    def _prepare(self, adapter: Adapter, job: Job) -> Preparation:
        """Everything that can be found out before the workload exists; the first obstacle wins."""
        guard, spec = job.spec.guard, job.spec.template.spec
        refused = [f for f in inspect(adapter, spec, guard, self._config) if f.cost is None]
        if refused:
            message = "; ".join(f"{finding.field} {finding.message}" for finding in refused)
            return Preparation(Reason.TEMPLATE_REFUSED, message)
        for field, claim in _claims(adapter, job):
            if self._client.get(CLAIMS, job.namespace, claim) is None:
                message = (
                    f"{field}: PersistentVolumeClaim {claim} does not exist in {job.namespace}: create it"
                )
                return Preparation(Reason.CLAIM_MISSING, message, CLAIM_SECONDS)
        return self._dry_run(adapter, job)

    def _dry_run(self, adapter: Adapter, job: Job) -> Preparation:
        """What the API server, with the workload's schema and webhooks, says to the workload.

        As a create, because a server-side apply answers a value of the wrong type with a 500.
        """
        workload = build_workload(job, adapter, self._config)
        try:
            manager = names.OPERATOR_MANAGER
            self._client.create(adapter.resource, job.namespace, workload, manager, dry_run=True)
        except ApiError as error:
            message, again = error.message, REFUSED_SECONDS
            if error.status == 404:
                kind = f"{workload['kind']} ({workload['apiVersion']})"
                message, again = f"the cluster has no {kind}: install it; {message}", FORBIDDEN_SECONDS
            elif error.status == 403:
                again = FORBIDDEN_SECONDS
            elif error.status == 500:  # most likely a webhook that does not answer: its controller is down
                again = WEBHOOK_SECONDS
            elif not error.permanent:
                raise
            return Preparation(Reason.WORKLOAD_REFUSED, f"spec.template: {message}", again)
        return Preparation()


def parse_job(raw: Mapping[str, Any]) -> Job:
    """The job of an object of the API server.

    Once there is a workload, its policy is the guard's business alone: a policy that this version of the
    operator would not admit must not take the kill switch away, so it is left out.

    Raises:
        pydantic.ValidationError: the spec or the status does not validate.
    """
    metadata, spec = raw["metadata"], raw["spec"]
    status = Status.model_validate(raw.get("status") or {})
    if status.workload_ref is not None and isinstance(guard := spec.get("guard"), dict):
        spec = {**spec, "guard": {key: value for key, value in guard.items() if key != "policy"}}
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        labels=metadata.get("labels") or {},
        spec=Spec.model_validate(spec),
        status=status,
    )


def slim_pod(raw: Json) -> Json:
    """The part of a pod that is cached."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    kept = (
        "name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp", "resourceVersion",
    )  # fmt: skip
    inits = (raw.get("spec") or {}).get("initContainers") or []
    containers = {
        key: [{k: one[k] for k in _OF_A_CONTAINER if k in one} for one in status.get(key) or []]
        for key in ("initContainerStatuses", "containerStatuses")
    }
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"initContainers": [{"name": container["name"]} for container in inits]},
        "status": {key: status[key] for key in ("phase", "reason", "conditions") if key in status}
        | containers,
    }


def slim_workload(adapter: Adapter, raw: Json) -> Json:
    """The part of a workload that is cached: not its pod templates."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    kept = ("name", "namespace", "uid", "labels", "ownerReferences", "deletionTimestamp", "resourceVersion")
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {key: spec[key] for key in adapter.state_fields if key in spec},
        "status": raw.get("status") or {},
    }


def slim_job(raw: Json) -> Json:
    """The part of a job that is cached: not the guard's detector state, which may be large."""
    metadata = {k: v for k, v in raw["metadata"].items() if k not in {"managedFields", "annotations"}}
    status = dict(raw.get("status") or {})
    if "guard" in status:
        status["guard"] = {k: v for k, v in status["guard"].items() if k != "detectorState"}
    return {"metadata": metadata, "spec": raw["spec"], "status": status}


def _is_stopping(job: Job) -> bool:
    """Whether this job is being, or will now be, torn down; errs on the side of reading live."""
    fired, halted = (condition_of(job.status, kind) for kind in (ConditionType.FIRED, ConditionType.HALTED))
    guard = guard_of(job)
    return (
        guard.fire is not None
        or guard.halt is not None
        or job.status.stop is not None
        or any(condition is not None and condition.status == "True" for condition in (fired, halted))
    )


def _was_created(job: Job) -> bool:
    return job.status.workload_ref is not None


def _workload(adapter: Adapter, job: Job, raw: Json) -> Workload:
    metadata = raw["metadata"]
    owners = metadata.get("ownerReferences") or []
    state, message = adapter.state(raw)
    return Workload(
        uid=metadata["uid"],
        ours=any(owner.get("uid") == job.uid and owner.get("controller") for owner in owners),
        state=state,
        message=message,
        terminating="deletionTimestamp" in metadata,
    )


def _age(raw: Json) -> tuple[str, str]:
    """Sorts the oldest pod first; RFC 3339 times sort as text."""
    return raw["metadata"].get("creationTimestamp", ""), raw["metadata"]["name"]


def _pod(adapter: Adapter, raw: Json) -> Pod:
    metadata, status = raw["metadata"], raw.get("status") or {}
    inits = (raw.get("spec") or {}).get("initContainers") or []
    has_guard = any(container.get("name") == names.GUARD_CONTAINER for container in inits)
    last_word = _last_word(status)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        guarded=has_guard and adapter.holds_rank0(raw),
        phase=status.get("phase", "Unknown"),
        terminating="deletionTimestamp" in metadata,
        disruption=_disruption(status),
        waiting=_waiting(status),
        fire=last_word.fire,
        halt=last_word.halt,
    )


def _last_word(status: Mapping[str, Any]) -> GuardStatus:
    """What the guard left in its termination message; empty if it did not end or left nothing of the kind."""
    for guard in status.get("initContainerStatuses") or []:
        for state in (guard.get("state") or {}, guard.get("lastState") or {}):
            message = (state.get("terminated") or {}).get("message")
            if guard["name"] == names.GUARD_CONTAINER and message:
                with suppress(ValidationError):
                    return GuardStatus.model_validate_json(message)
    return GuardStatus()


def _waiting(status: Mapping[str, Any]) -> Waiting | None:
    """What keeps the pod from running; None for what every pod passes through."""
    if status.get("phase") in {"Succeeded", "Failed"}:
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Waiting(Reason.UNSCHEDULABLE, condition.get("message") or condition.get("reason", ""))
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if (waiting := _container_waiting(one)) is not None:
            return waiting
    return None


def _container_waiting(status: Mapping[str, Any]) -> Waiting | None:
    state, before = status.get("state") or {}, status.get("lastState") or {}
    ended = state.get("terminated") or before.get("terminated") or {}
    # A guard that the kubelet ends because it does not get ready has code 0, as one at the end of its pod.
    failed = ended.get("exitCode") or (ended and "terminated" not in state)
    if status["name"] == names.GUARD_CONTAINER and not status.get("started") and failed:
        last = (ended.get("message") or "").strip()[-LAST_WORDS:]
        how = f"exit code {ended['exitCode']} ({status.get('restartCount', 0)} restarts)"
        return Waiting(Reason.GUARD_CRASHED, f"the guard ended with {how}: {last}".removesuffix(": "))
    waits = state.get("waiting") or {}
    if (reason := waits.get("reason", "")) in _STARTING:
        return None
    message = f"container {status['name']}: {reason}: {waits.get('message', '')}"
    return Waiting(Reason.CONTAINER_WAITING, message.removesuffix(": "))


def _disruption(status: Mapping[str, Any]) -> Disruption | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return _TARGET_REASONS.get(condition.get("reason", ""), Disruption.EVICTED)
    return _POD_REASONS.get(status.get("reason", ""))


def _claims(adapter: Adapter, job: Job) -> Iterable[tuple[str, str]]:
    """The claims without which the guarded pod would never start, each with the field that names it."""
    guard, spec = job.spec.guard, job.spec.template.spec
    if guard.heldout.volume.claim_name is not None:
        yield "spec.guard.heldout.volume.claimName", guard.heldout.volume.claim_name
    if guard.state.claim_name is not None:
        yield "spec.guard.state.claimName", guard.state.claim_name
    for template in adapter.pod_templates(spec):
        for volume in pod_spec(spec, template).get("volumes", []):
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and template.guarded and volume.get("name") == guard.checkpoints.volume:
                yield "spec.guard.checkpoints.volume", claim
