"""Builds the snapshot of one job: from the caches where being late is harmless, live where it is not.

Live are: whether the workload exists before one is created; workload and pods once a stop was requested,
because "no pod is left" must not come from a cache; and everything, the job too, before a guard is called
silent or a run is halted, because a cache that is behind looks like a guard that is.

A read that is refused, or hangs, holds up no stop: where a run is to stop that was not seen empty, what was
seen last takes its place, and is marked, so that nothing is called stopped for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from guard_operator.adapters import (
    ComposedAdapter,
    TemplateError,
    TemplateSource,
    WorkloadAdapter,
    WorkloadState,
    find_adapter,
)
from guard_operator.api import names
from guard_operator.api.reasons import Reason
from guard_operator.api.types import Isolation
from guard_operator.config import OperatorConfig
from guard_operator.guards.reading import LastWord, Reading, error_of, last_word
from guard_operator.reconcile import layout
from guard_operator.reconcile.glance import is_latched
from guard_operator.reconcile.guard_pod import why_not_shared
from guard_operator.reconcile.halts import goes_on_unread, must_be_live, was_there
from guard_operator.reconcile.inject import created_for, made_for_the_guard
from guard_operator.reconcile.isolation import guard_objects_of, sentences
from guard_operator.reconcile.memory import NOTHING, Remembered
from guard_operator.reconcile.obstacles import Late, guard_is_late, reason_for, what_is_late
from guard_operator.reconcile.parse import JOBS, parse_job, with_last_word
from guard_operator.reconcile.queues import GIVEN_AWAY, OWNER_LABEL, is_given_away, queued_of
from guard_operator.reconcile.refusals import is_copy, isolation_findings, pod_spec, template_claims
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import (
    GRACE_SECONDS,
    Between,
    Disruption,
    Job,
    OwnGuard,
    Pod,
    Preparation,
    Queued,
    Snapshot,
    Waiting,
    Workload,
    finalizers_of,
    guard_of,
    must_stop,
    with_spec,
)
from guard_operator.reconcile.targets import (
    Belongings,
    attached_trainer,
    controlled,
    exposures,
    has_made_nothing,
    listed,
    read_target,
    read_unlabelled,
    why_not_attached,
)
from guard_operator.runtime.client import (
    CLAIMS,
    EVENTS,
    KUEUE_WORKLOADS,
    PODS,
    STATEFUL_SETS,
    Client,
    Json,
    Resource,
    controller_of,
    of_uid,
)
from guard_operator.runtime.errors import ApiError, ClusterError

log = logging.getLogger(__name__)

#: The reasons for which every container waits for a moment.
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
#: How much of a container's last words is repeated, characters.
LAST_WORDS = 600
#: Events that are read of one object, which has a few. Its owner can write more.
MAX_EVENTS = 500
#: Objects of a queue that are read for one workload, which has one.
MAX_QUEUED = 20
#: A watch that works shows something every minute; one that has shown nothing for longer than this does not.
DEAF_SECONDS = 90.0
CHECKPOINTS = "spec.guard.checkpoints."
CLAIM_SECONDS = 5.0
SOURCE_SECONDS = 15.0
#: For how long a guard that is ready cannot be reached before that is said.
UNREACHED_SECONDS = 30.0
#: How often a workload is looked for that does not exist, or cannot be guarded as it is.
TARGET_SECONDS = 10.0
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


#: While the workload is in one of these, a guard in a pod of its own is there, too.
_GUARDED_STATES = frozenset({WorkloadState.PENDING, WorkloadState.RUNNING})


#: In the object of a workload that could not be read, beside what was seen last of it.
_UNREAD = "unread"


class Caches(Protocol):
    """What the reflectors hold."""

    def quiet_for(self, namespace: str) -> float:
        """Seconds since the API server last showed something of the jobs in this namespace."""

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The cached workload."""

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The cached pods that carry the job's UID."""

    def between(self, resource: Resource, namespace: str, job_uid: str) -> Iterable[Json]:
        """What is cached of this kind and carries the job's UID."""

    def queued(self, namespace: str, workload_uid: str) -> Iterable[Json]:
        """What is cached of queues and says that it is for the workload of this UID."""


class Guards(Protocol):
    """What is read of the guards."""

    def reading(self, uid: str) -> Reading | None:
        """Of the guard of this job."""

    def silent_for(self, uid: str, pod: str) -> float:
        """For how long the guard that is to be in this pod could not be heard, seconds."""

    def most_are_unreached(self) -> bool:
        """Whether more than half of all guards cannot be reached."""


class _Missing(TemplateError):
    """What a template names is not there."""


class Gatherer:
    """See the module. `clock` gives the time in UTC."""

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        caches: Caches,
        guards: Guards,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._config = config
        self._caches = caches
        self._guards = guards
        self._clock = clock

    def read_again(self, cached: Json) -> Json | None:
        """The whole of a job that is over; None: it is gone, or nothing of it is left that could need a hand.

        Raises:
            ClusterError: it could not be read for now.
        """
        metadata = cached["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        if not is_latched(cached) and not any(self._caches.between(STATEFUL_SETS, namespace, uid)):
            return None
        return of_uid(self._client.get(JOBS, namespace, metadata["name"]), uid)

    def last_words(self, job: Job) -> Snapshot:
        """The snapshot of a job of which nothing is known but what its guards left when they ended.

        It is of caches alone, so it costs no request where requests fail, or hang.
        """
        ref, adapter = job.status.workload_ref, self._adapter(job)
        uid = None if ref is None else ref.uid
        guard = _uid_of_guard(self._own_guard(job, None, live=False))
        between = () if adapter is None else self._between(adapter, job, uid, live=False)
        owner = _Owner(uid, _spec(job, None, uid), frozenset(one.uid for one in between), guard)
        raw_pods = sorted(self._caches.pods(job.namespace, job.uid), key=_age)
        pods = tuple(_pod(adapter, raw, owner) for raw in raw_pods)
        workload = None if uid is None else Workload(uid, True, WorkloadState.RUNNING, unread=True)
        return Snapshot(self._with_last_words(job, pods), workload, pods)

    def gather(self, job: Job, known: Remembered = NOTHING) -> Snapshot | None:
        """The snapshot of this job; None: it is gone, and the cache does not know yet.

        `known`: what is remembered of the run beside its status.

        Raises:
            ClusterError: a live read failed for now.
        """
        deaf = self._caches.quiet_for(job.namespace) > DEAF_SECONDS
        if not deaf:
            snapshot = self._look(job, known, live=False)
            if not must_be_live(snapshot):
                return snapshot
        try:
            raw = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        except ClusterError:
            if not must_stop(job):
                raise
            return self._look(job, known, live=False, deaf=deaf)
        if raw is None:
            return None
        again = parse_job(raw, self._guards.reading(job.uid))
        return self._look(again, known, live=True, deaf=deaf)

    def _look(self, job: Job, known: Remembered, live: bool, deaf: bool = False) -> Snapshot:
        """The snapshot; with `live` nothing in it is from a cache."""
        adapter = self._adapter(job)
        if adapter is None:
            return self._unknown_kind(job, live)
        stopping = _is_stopping(job)
        raw_pods = list(self._caches.pods(job.namespace, job.uid))
        # The first delete need not wait for live reads; whether something is left must not be cached.
        begun = known.stop is not None or job.status.stop is not None
        uncached = live or (stopping and (begun or not raw_pods))
        raw_workload = self._workload(adapter, job, uncached)
        workload = None if raw_workload is None else _workload(adapter, job, raw_workload)
        uid = _uid(job, workload)
        first_stop = must_stop(job) and not begun
        if first_stop and workload is not None and workload.unread:
            # Each further read may hang for as long as this one did: they are for the next look.
            uncached, unread, target = False, "its workload cannot be read", Belongings()
        else:
            raw_pods, unread = self._pods_now(job, raw_pods) if uncached else (raw_pods, "")
            target = read_target(self._client, adapter, job, raw_workload, uid)
        between = (*target.between, *self._between(adapter, job, uid, uncached))
        own_guard = self._own_guard(job, None if stopping else workload, uncached)
        guard = _uid_of_guard(own_guard)
        spec = _spec(job, raw_workload, uid)
        owner = _Owner(uid, spec, frozenset(one.uid for one in between) | target.controllers, guard)
        pods = tuple(_pod(adapter, raw, owner) for raw in sorted((*raw_pods, *target.pods), key=_age))
        told = self._with_last_words(job, pods)
        if must_stop(told) != must_stop(job) or guard_of(told).halt != guard_of(job).halt:
            return self._look(told, known, live, deaf)
        job = told
        to_look = not (unread or first_stop) and (uncached or not stopping)
        if to_look and uid is not None and _may_hide_pods(job, workload, pods):
            hidden = read_unlabelled(self._client, adapter, job, raw_workload, uid)
            unread, owner = hidden.unread, replace(owner, between=owner.between | hidden.controllers)
            pods += tuple(_pod(adapter, raw, owner) for raw in hidden.pods)
        unread = unread or target.unread
        if stopping and uncached:
            missed, why = self._missed(job, known.pods, pods)
            pods, unread = (*pods, *(_pod(adapter, raw, owner) for raw in missed)), unread or why
        made_or_taken = workload is not None and job.spec.target_ref is None
        not_now = made_or_taken or stopping or job.deleting or _was_created(job)
        job, missing = self._composed(adapter, job, not_now, uncached)
        spec = _spec(job, raw_workload, uid)
        silent_for, unreached = self._silence(job, pods, deaf, workload, own_guard)
        wanted = adapter.pods_wanted(spec)
        late = () if stopping or job.deleting else _late(workload, pods, own_guard, wanted)
        preparation = None if not_now else missing or self._prepare(adapter, job, raw_workload, target)
        return Snapshot(
            job=job,
            workload=workload,
            between=between,
            own_guard=own_guard,
            queued=self._queued(job, workload, uncached),
            pods=pods,
            pods_unread=unread,
            refusal=known.refusal,
            asked=known.stop,
            seen=known.pods,
            all_pods_read=stopping and uncached and not unread,
            preparation=preparation,
            broken=_broken(adapter, job, self._config),
            exposed=tuple(one for raw in target.pods for one in _exposed(job, raw, self._config)),
            trainer=attached_trainer(adapter, spec),
            reading=self._guards.reading(job.uid),
            silent_for=silent_for,
            unreached=unreached,
            most_silent=bool(silent_for) and self._guards.most_are_unreached(),
            deaf=deaf,
            live=live,
            guard_image=job.spec.guard.image or self._config.guard_image,
            late=bool(late),
            overdue=any(one.is_due(self._clock()) for one in late),
            obstacle=next(filter(None, (self._obstacle(job, one, pods) for one in late)), None),
        )

    def _with_last_words(self, job: Job, pods: Iterable[Pod]) -> Job:
        """The job with what its guards left when they ended, where nobody had heard it."""
        for pod in pods:
            if pod.guarded and pod.last_word is not None:
                job = with_last_word(job, pod.last_word, self._clock())
        return job

    def _adapter(self, job: Job) -> WorkloadAdapter | None:
        return find_adapter(job.spec.workload.api_version, job.spec.workload.kind, self._config.kinds)

    def _obstacle(self, job: Job, late: Late, pods: tuple[Pod, ...]) -> Waiting | None:
        """What the Events say of it. Words only: without them everything goes on."""
        if not late.is_due(self._clock()):
            return None
        query = {"fieldSelector": f"involvedObject.uid={late.uid}", "limit": str(MAX_EVENTS)}
        try:
            events = self._client.list(EVENTS, job.namespace, query).get("items") or []
        except ClusterError as error:
            log.info("%s/%s: Events not read: %s", job.namespace, job.name, error)
            return None
        return reason_for(late, events, pods)

    def _unknown_kind(self, job: Job, live: bool) -> Snapshot:
        """No adapter: another version of the operator may have created it, and its pods carry our labels."""
        stopping, raw_pods, unread = _is_stopping(job), list[Json](), ""
        if stopping:
            seen = list(self._caches.pods(job.namespace, job.uid))
            raw_pods, unread = self._pods_now(job, seen)
        pods = tuple(_pod(None, raw, _Owner()) for raw in raw_pods)
        # It would make its pod again and again.
        own_guard = self._own_guard(job, None, live=True) if stopping else None
        said = review(None, job, self._config)
        preparation = Preparation(said.reason, "; ".join(said.findings))
        return Snapshot(
            job,
            pods=pods,
            pods_unread=unread,
            own_guard=own_guard,
            preparation=preparation,
            live=live,
            unknown_kind=True,
        )

    def _missed(
        self, job: Job, seen: Iterable[tuple[str, str]], pods: Iterable[Pod]
    ) -> tuple[list[Json], str]:
        """Pods that were seen before, are not among these and are there, and why one cannot be read.

        Each read may hang, so the first that fails is the last.
        """
        listed, found = {pod.uid for pod in pods}, list[Json]()
        for name, uid in seen:
            if uid in listed:
                continue
            try:
                raw = of_uid(self._client.get(PODS, job.namespace, name), uid)
            except ClusterError as error:
                return found, str(error)
            found += [] if raw is None else [raw]
        return found, ""

    def _workload(self, adapter: WorkloadAdapter, job: Job, live: bool) -> Json | None:
        cached = None if live else self._cached_workload(adapter, job)
        try:
            return cached or self._client.get(
                adapter.resource, job.namespace, job.workload_name, was_there=was_there(job)
            )
        except ClusterError as error:
            if (known := self._last_known(adapter, job)) is None:
                raise
            log.warning("%s/%s: its workload cannot be read: %s", job.namespace, job.name, error)
            return known

    def _last_known(self, adapter: WorkloadAdapter, job: Job) -> Json | None:
        """Of a run that is to stop, the workload that cannot be read: as seen last, else its UID alone."""
        ref = job.status.workload_ref
        if not goes_on_unread(job) or ref is None:
            return None
        seen = self._cached_workload(adapter, job) or {"metadata": {"name": ref.name, "uid": ref.uid}}
        return seen | {_UNREAD: True}

    def _cached_workload(self, adapter: WorkloadAdapter, job: Job) -> Json | None:
        if job.spec.target_ref is not None:  # caches have only what has the operator's labels
            return None
        return self._caches.workload(adapter.resource, job.namespace, job.name)

    def _pods_now(self, job: Job, seen: list[Json]) -> tuple[list[Json], str]:
        """Live; of a run that is to stop else those that were `seen` last, and why they could not be read."""
        try:
            return self._labelled(PODS, job), ""
        except ClusterError as error:
            if not goes_on_unread(job):
                raise
            log.warning("%s/%s: its pods cannot be read: %s", job.namespace, job.name, error)
            return seen, str(error)

    def _labelled(self, resource: Resource, job: Job) -> list[Json]:
        return listed(self._client, resource, job, _of_job(job))

    def _between(
        self, adapter: WorkloadAdapter, job: Job, uid: str | None, live: bool
    ) -> tuple[Between, ...]:
        """What a workload that is ours controls, and so on, down to what may control its pods."""
        if uid is None or job.spec.target_ref is not None:
            return ()
        return controlled(adapter, uid, lambda kind: self._made(kind, job, live))

    def _composed(
        self, adapter: WorkloadAdapter, job: Job, created: bool, live: bool
    ) -> tuple[Job, Preparation | None]:
        """The job, and in its template what the workload is made of: of one that exists, its copy.

        Or why there is nothing to create it from; a job whose copy is gone stays as it is.
        """
        if not isinstance(adapter, ComposedAdapter) or job.spec.target_ref is not None:
            return job, None
        template = job.spec.made_from
        try:
            if created:
                copy = self._copy(adapter, job, live)
                spec = template.spec if copy is None else adapter.recomposed(template.spec, copy)
            else:
                spec = adapter.composed(template.spec, self._source(adapter.source(template.spec), job))
        except TemplateError as error:
            reason = Reason.SOURCE_MISSING if isinstance(error, _Missing) else Reason.TEMPLATE_REFUSED
            return job, Preparation(reason, f"spec.template.spec.{error}", SOURCE_SECONDS)
        except ApiError as error:
            if error.status != 403 and not error.permanent:
                raise
            message = f"spec.template: {error.message}"
            return job, Preparation(Reason.WORKLOAD_REFUSED, message, FORBIDDEN_SECONDS)
        return with_spec(job, spec), None

    def _source(self, source: TemplateSource, job: Job) -> Json:
        """What a template names, as it is now.

        Raises:
            _Missing: there is none.
        """
        namespace = job.namespace if source.namespaced else None
        if (found := self._client.get(source.resource, namespace, source.name)) is None:
            where = f" in {namespace}" if namespace else ""
            why = f"{source.resource.kind} {source.name} does not exist{where}: create it"
            raise _Missing(source.field, why)
        return found

    def _copy(self, adapter: ComposedAdapter, job: Job, live: bool) -> Json | None:
        """What the workload was made of: the job controls it, and it has its name."""
        name = names.support_name(job.name, job.uid)
        cached = () if live else self._made(adapter.copied, job, live=False)
        found = next((raw for raw in cached if raw["metadata"]["name"] == name), None)
        try:
            found = found or self._client.get(adapter.copied, job.namespace, name)
        except ClusterError:
            if not _is_stopping(job):
                raise
        return found if found is not None and controller_of(found) == job.uid else None

    def _queued(self, job: Job, workload: Workload | None, live: bool) -> Queued | None:
        """What a queue has of the job's workload. What cannot be read holds up no stop."""
        if not self._config.kueue or workload is None or not workload.ours:
            return None
        if not live:
            return queued_of(self._caches.queued(job.namespace, workload.uid), workload.uid)
        query = {"labelSelector": f"{OWNER_LABEL}={workload.uid}", "limit": str(MAX_QUEUED)}
        try:
            found = self._client.list(KUEUE_WORKLOADS, job.namespace, query).get("items") or []
        except ClusterError as error:
            if error.status != 404:  # a cluster without Kueue
                log.warning("%s/%s: its queue cannot be read: %s", job.namespace, job.name, error)
            return None
        return queued_of(found, workload.uid)

    def _own_guard(self, job: Job, workload: Workload | None, live: bool) -> OwnGuard | None:
        """The StatefulSet of the guard: the job controls it, and it has its name.

        Where there is none although the run is there, another one may have the name, and would keep it away.
        """
        if job.spec.guard.own_pod is None:
            return None
        name = names.guard_name(job.name, job.uid)
        if (made := _named(name, job, self._made(STATEFUL_SETS, job, live))) is not None:
            return OwnGuard(made)
        if not _has_guard(workload):
            return OwnGuard()
        query = {"fieldSelector": f"metadata.name={name}"}
        there = self._client.list(STATEFUL_SETS, job.namespace, query).get("items") or []
        made = _named(name, job, there)  # which the cache does not have yet
        return OwnGuard(made, taken=name if there and made is None else "")

    def _made(self, kind: Resource, job: Job, live: bool) -> Iterable[Json]:
        """What of this kind has the job's UID as a label; of a run that is to stop at least as cached."""
        if live:
            try:
                return self._labelled(kind, job)
            except ClusterError as error:
                if not _is_stopping(job):
                    raise
                log.warning("%s/%s: %s cannot be read: %s", job.namespace, job.name, kind.plural, error)
        return self._caches.between(kind, job.namespace, job.uid)

    def _silence(
        self,
        job: Job,
        pods: tuple[Pod, ...],
        deaf: bool,
        workload: Workload | None,
        own_guard: OwnGuard | None,
    ) -> tuple[float | None, str]:
        """For how long the guard could not be heard; and why not, if the kubelet calls it ready.

        Nothing is counted while nothing is expected of it. A rank 0 without its guard is silent from its
        start. A guard in a pod of its own is to be heard after its trainer's end, too.
        """
        ours = workload is not None and workload.ours
        succeeded = workload is not None and workload.state is WorkloadState.SUCCEEDED
        ended = own_guard is not None and (not ours or succeeded)
        running = [pod for pod in pods if pod.rank0 and pod.phase == "Running" and not pod.terminating]
        guards = [pod for pod in pods if pod.guarded and pod.address and not pod.terminating]
        if deaf or not (running or (ended and guards)):
            return None, ""
        guard = guards[-1] if guards else None
        silent_for = self._guards.silent_for(job.uid, (guard or running[0]).uid)
        if guard is None or not guard.ready or not silent_for:
            return silent_for, ""
        reading = self._guards.reading(job.uid)
        target, error = ("", "") if reading is None else (reading.target, reading.error)
        if silent_for < UNREACHED_SECONDS or not error:
            return 0.0, ""
        return 0.0, (
            f"the operator cannot reach the guard in {target}, which the kubelet calls ready: {error}; "
            "does a NetworkPolicy keep the operator out?"
        )

    def _prepare(
        self, adapter: WorkloadAdapter, job: Job, raw: Json | None, target: Belongings
    ) -> Preparation:
        """Everything that can be found out before there is a guarded workload; the first obstacle wins."""
        if (said := review(adapter, job, self._config)).reason is not None:
            # What somebody else's object has may be mended without a change of the job.
            again = SOURCE_SECONDS if isinstance(adapter, ComposedAdapter) else None
            return Preparation(said.reason, "; ".join(said.findings), again)
        if (missing := self._missing(adapter, job)) is not None:
            return missing
        if job.spec.target_ref is not None:
            found = _target(adapter, job, raw, target)
            found = self._guard_refused(adapter, job) if found.reason is None else found
            return replace(found, owned_claim=self._owned_claim(job, raw)) if found.reason is None else found
        guard, spec = job.spec.guard, job.spec.made_from.spec
        own = guard_objects_of(job.name, job.uid, guard, self._config)
        for field, claim in template_claims(adapter, spec):
            if is_copy(self._client.get(CLAIMS, job.namespace, claim) or {}, own):
                message = (
                    f"{field}: PersistentVolumeClaim {claim} is a copy of one that only the guard may have"
                )
                return Preparation(Reason.TEMPLATE_REFUSED, message)
        for resource, body in created_for(job, adapter, said.workload, dry_run=True):
            if (refused := self._dry_run(resource, job, body)).reason is not None:
                return refused
        return self._guard_refused(adapter, job)

    def _guard_refused(self, adapter: WorkloadAdapter, job: Job) -> Preparation:
        """What the API server says to what is made for the guard: a quota, a policy, a value of the spec.

        Found out later it would be a run without its guard, and end as a silent one.
        """
        for resource, body in made_for_the_guard(job, adapter, self._config):
            try:
                self._client.create(resource, job.namespace, body, names.OPERATOR_MANAGER, dry_run=True)
            except ApiError as error:
                if error.status == 409:  # made by a try before, of which something else was refused
                    continue
                if (again := _again_after(error)) is None:
                    raise
                what = f"the {body['kind']} {body['metadata']['name']} for the guard: {error.message}"
                return Preparation(Reason.GUARD_REFUSED, what, again)
        return Preparation()

    def _owned_claim(self, job: Job, target: Json | None) -> str:
        """The checkpoint claim, if the target owns it: it is deleted with its owner."""
        name = job.spec.guard.checkpoints.claim_name
        if name is None or target is None:
            return ""
        claim = self._client.get(CLAIMS, job.namespace, name) or {"metadata": {}}
        owners = claim["metadata"].get("ownerReferences") or []
        return name if any(one.get("uid") == target["metadata"]["uid"] for one in owners) else ""

    def _missing(self, adapter: WorkloadAdapter, job: Job) -> Preparation | None:
        """A claim that is not there, or that two nodes cannot share where they must."""
        for where, claim in _claims(adapter, job):
            if (raw := self._client.get(CLAIMS, job.namespace, claim)) is None:
                message = (
                    f"{where}: PersistentVolumeClaim {claim} does not exist in {job.namespace}: create it"
                )
                return Preparation(Reason.CLAIM_MISSING, message, CLAIM_SECONDS)
            shared = job.spec.guard.own_pod is not None and where.startswith(CHECKPOINTS)
            if shared and (why := why_not_shared(raw)):
                message = f"{where}: PersistentVolumeClaim {claim}: {why}"
                refused = Reason.TEMPLATE_REFUSED if job.spec.target_ref is None else Reason.TARGET_REFUSED
                return Preparation(refused, message, CLAIM_SECONDS)
        return None

    def _dry_run(self, resource: Resource, job: Job, workload: Json) -> Preparation:
        """What the API server, with the workload's schema and webhooks, says to the workload.

        First as a create, because a server-side apply refuses a value of the wrong type with a 500; then as
        the apply by which it is made, which refuses more: a null, two entries of one name. One that is there
        was made by a try before, of which something else was refused.
        """
        manager = names.OPERATOR_MANAGER
        try:
            try:
                made = self._client.create(resource, job.namespace, workload, manager, dry_run=True)
                if is_given_away(made):
                    return Preparation(Reason.WORKLOAD_REFUSED, GIVEN_AWAY, REFUSED_SECONDS)
            except ApiError as error:
                if error.status != 409:
                    raise
            self._client.apply(resource, workload, manager, dry_run=True)
        except ApiError as error:
            if (again := _again_after(error)) is None:
                raise
            message = error.message
            if error.status == 404:
                kind = f"{workload['kind']} ({workload['apiVersion']})"
                message, again = f"the cluster has no {kind}: install it; {message}", FORBIDDEN_SECONDS
            return Preparation(Reason.WORKLOAD_REFUSED, f"spec.template: {message}", again)
        return Preparation()


def _again_after(error: ApiError) -> float | None:
    """After how many seconds to ask again what was refused; None: it was no refusal."""
    if error.status == 403:
        return FORBIDDEN_SECONDS
    if error.status == 500:  # most likely a webhook that does not respond: its controller is down
        return WEBHOOK_SECONDS
    return REFUSED_SECONDS if error.permanent else None


def _named(name: str, job: Job, sets: Iterable[Json]) -> Between | None:
    """Of these StatefulSets the one that has this name, and that the job controls."""
    for raw in sets:
        of = raw["metadata"]
        if of["name"] == name and controller_of(raw) == job.uid:
            gone, created = "deletionTimestamp" in of, _time(of.get("creationTimestamp"))
            return Between(STATEFUL_SETS, name, of["uid"], gone, created)
    return None


def _has_guard(workload: Workload | None) -> bool:
    """Whether a guard in a pod of its own is, or is to be, there."""
    return workload is not None and workload.ours and workload.state in _GUARDED_STATES


def _may_hide_pods(job: Job, workload: Workload | None, pods: tuple[Pod, ...]) -> bool:
    """Whether a pod without the operator's label may be the one that is missing.

    Whoever may change the workload can take the label off its template. Its own controller needs others.
    """
    if job.spec.target_ref is not None:
        return False
    if must_stop(job):
        return not pods
    runs = workload is not None and workload.ours and workload.state is WorkloadState.RUNNING
    return runs and not any(pod.rank0 for pod in pods)


def _uid_of_guard(own: OwnGuard | None) -> str | None:
    """UID of what makes the pods of a guard that has its own; None: there is none."""
    return None if own is None or own.made is None else own.made.uid


def _late(
    workload: Workload | None, pods: tuple[Pod, ...], own: OwnGuard | None, wanted: int
) -> tuple[Late, ...]:
    """What the run waits for; first a guard in a pod of its own, for which its trainer waits."""
    if own is None:
        found = [what_is_late(workload, pods, wanted)]
    else:
        of_run = [pod for pod in pods if not pod.guarded]
        found = [guard_is_late(own.made, workload, pods), what_is_late(workload, of_run, wanted)]
    return tuple(one for one in found if one is not None)


def _is_stopping(job: Job) -> bool:
    """Whether this job is being, or will now be, torn down; errs on the side of reading live."""
    stops = must_stop(job) or guard_of(job).halt is not None
    return stops or job.status.stop is not None


def _of_job(job: Job) -> str:
    """Label selector of what belongs to the job."""
    return f"{names.UID_LABEL}={job.uid}"


def _was_created(job: Job) -> bool:
    return job.status.workload_ref is not None


def _workload(adapter: WorkloadAdapter, job: Job, raw: Json) -> Workload:
    metadata, ref = raw["metadata"], job.status.workload_ref
    state, message = adapter.state(raw)
    return Workload(
        uid=metadata["uid"],
        ours=controller_of(raw) == job.uid or (ref is not None and ref.uid == metadata["uid"]),
        state=state,
        message=message,
        created=_time(metadata.get("creationTimestamp")),
        deleted=_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(finalizers_of(metadata)),
        manager=_creator(metadata),
        unread=bool(raw.get(_UNREAD)),
    )


def _creator(metadata: Json) -> str:
    """The field manager that wrote an object first; "" if it is not known."""
    written = [one for one in metadata.get("managedFields") or [] if one.get("time")]
    return str(min(written, key=lambda one: str(one["time"]))["manager"]) if written else ""


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _uid(job: Job, workload: Workload | None) -> str | None:
    """UID of the job's workload: as it was noted, else of one that is there and is, or is to be, ours."""
    if job.status.workload_ref is not None:
        return job.status.workload_ref.uid
    wanted = workload is not None and (workload.ours or job.spec.target_ref is not None)
    return workload.uid if workload is not None and wanted else None


def _spec(job: Job, raw: Json | None, uid: str | None) -> Mapping[str, Any]:
    """The spec of the workload: of its template, or of one that the job is attached to as it is now."""
    if job.spec.target_ref is None:
        return job.spec.made_from.spec
    spec = (of_uid(raw, uid) or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def _target(adapter: WorkloadAdapter, job: Job, raw: Json | None, found: Belongings) -> Preparation:
    """Whether the workload that the job names is there, and can be guarded."""
    named = f"spec.targetRef: {adapter.resource.kind} {job.workload_name}"
    if raw is None:
        message = f"{named} ({adapter.resource.api_version}) does not exist in {job.namespace}"
        return Preparation(Reason.TARGET_MISSING, message, TARGET_SECONDS)
    if why := why_not_attached(adapter, raw, found.labelled, found.made):
        return Preparation(Reason.TARGET_REFUSED, f"{named}: {why}", TARGET_SECONDS)
    if has_made_nothing(adapter, raw, found.made):
        message = f"{named} has made nothing yet that has pods"
        return Preparation(Reason.TARGET_MISSING, message, TARGET_SECONDS)
    return Preparation()


def _broken(adapter: WorkloadAdapter, job: Job, config: OperatorConfig) -> tuple[str, ...]:
    """The rows of the isolation table that `isolation: Relaxed` admits in the template."""
    guard = job.spec.guard
    if job.spec.target_ref is not None or guard.isolation is Isolation.STRICT:
        return ()
    own = guard_objects_of(job.name, job.uid, guard, config)
    return sentences(isolation_findings(adapter, job.spec.made_from.spec, guard, own))


def _exposed(job: Job, pod: Json, config: OperatorConfig) -> Iterable[str]:
    """The rows that this pod of a workload breaks to which the job is attached."""
    return exposures(pod, guard_objects_of(job.name, job.uid, job.spec.guard, config))


def _age(raw: Json) -> tuple[str, str]:
    """Sorts the oldest pod first; RFC 3339 times sort as text."""
    return raw["metadata"].get("creationTimestamp", ""), raw["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class _Owner:
    """The workload of pods: its UID (None: there is none), its spec, and what is between it and its pods.

    `guard`: UID of the StatefulSet of a guard in a pod of its own.
    """

    uid: str | None = None
    spec: Mapping[str, Any] | None = None
    between: frozenset[str] = frozenset()
    guard: str | None = None


def _pod(adapter: WorkloadAdapter | None, raw: Json, workload: _Owner) -> Pod:
    """The pod, of which only name and end count unless the workload, or what that controls, controls it.

    Anyone who may create a pod can give it our labels and have it end with any words.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    grace = metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    bare = Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        guarded=False,
        phase=status.get("phase", "Unknown"),
        terminating="deletionTimestamp" in metadata,
        grace=GRACE_SECONDS if grace is None else grace,
        due=_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(finalizers_of(metadata)),
        created=_time(metadata.get("creationTimestamp")),
        node=spec.get("nodeName", ""),
    )
    if workload.guard is not None and controller_of(raw) == workload.guard:
        alone = [one for one in spec.get("containers") or [] if _is_guard(one)]
        return _with_guard(replace(bare, guarded=bool(alone)), raw)
    if adapter is None or workload.uid is None or controller_of(raw) not in {workload.uid, *workload.between}:
        return bare
    guards = [one for one in spec.get("initContainers") or [] if _is_guard(one)]
    rank0 = adapter.holds_rank0(raw, workload.spec or {})
    failure, failed_at = _failure(status)
    pod = replace(
        bare,
        rank0=rank0,
        guarded=rank0 and bool(guards),
        failure=failure,
        failed_at=failed_at,
        gave_up=_gave_up(status) if rank0 else "",
        disruption=_disruption(status),
    )
    return _with_guard(pod, raw)


def _with_guard(pod: Pod, raw: Json) -> Pod:
    """The pod, with what is known of its containers and of the guard in it."""
    status = raw.get("status") or {}
    return replace(
        pod,
        cut_off=_cut_off(status),
        guard_since=_guard_since(status),
        waiting=_waiting(status),
        ready=_is_ready(status),
        address=str(status.get("podIP") or "") if _guard_since(status) is not None else "",
        last_word=_last_word(status),
    )


def _guards(status: Mapping[str, Any]) -> list[Json]:
    """The guard's status, as a sidecar or as the container of its own pod."""
    all_ = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [one for one in all_ if _is_guard(one)]


def _is_guard(container: Mapping[str, Any]) -> bool:
    return container.get("name") == names.GUARD_CONTAINER


def _guard_since(status: Mapping[str, Any]) -> datetime | None:
    """When the guard that runs now was started; None if none runs."""
    for guard in _guards(status):
        if started := ((guard.get("state") or {}).get("running") or {}).get("startedAt"):
            return datetime.fromisoformat(started)
    return None


def _failure(status: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """Exit code and last line of the first container that failed, and when it did; "" if none did."""
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            last = f": {line}" if (line := _last_line(ended)) else ""
            words = f"container {one['name']} ended with exit code {ended['exitCode']}{last}"
            return words, _time(ended.get("finishedAt"))
    return "", None


def _gave_up(status: Mapping[str, Any]) -> str:
    """What was said when a guard elsewhere was not ready in time; "" if it was, or still may be."""
    for one in status.get("initContainerStatuses") or []:
        states = (one.get("state") or {}, one.get("lastState") or {})
        ended: Json = next((state["terminated"] for state in states if state.get("terminated")), {})
        if one.get("name") == names.WAITING_CONTAINER and ended.get("exitCode") == layout.GAVE_UP:
            return _last_line(ended) or "the guard was not ready in time"
    return ""


def _last_line(ended: Mapping[str, Any]) -> str:
    """The last line of the message of a container that ended."""
    lines = [line.strip() for line in (ended.get("message") or "").splitlines() if line.strip()]
    return lines[-1][:LAST_WORDS] if lines else ""


def _last_word(status: Mapping[str, Any]) -> LastWord | None:
    """What the guard left in its termination message; None if it did not end or left nothing of the kind."""
    for guard in _guards(status):
        for state in (guard.get("state") or {}, guard.get("lastState") or {}):
            if message := (state.get("terminated") or {}).get("message"):
                return last_word(message)
    return None


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet calls the guard ready."""
    return any(bool(one.get("ready")) for one in _guards(status))


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
        last = error_of(ended.get("message") or "").strip()[-LAST_WORDS:]
        how = f"exit code {ended['exitCode']} ({status.get('restartCount', 0)} restarts)"
        return Waiting(Reason.GUARD_CRASHED, f"the guard ended with {how}: {last}".removesuffix(": "))
    waits = state.get("waiting") or {}
    if (reason := waits.get("reason", "")) in _STARTING:
        return None
    message = f"container {status['name']}: {reason}: {waits.get('message', '')}"
    return Waiting(Reason.CONTAINER_WAITING, message.removesuffix(": "))


def _cut_off(status: Mapping[str, Any]) -> bool:
    """Whether the control plane has lost the node: the kubelet itself never gives this reason."""
    ready = (c for c in status.get("conditions") or [] if c.get("type") == "Ready")
    return any(c.get("status") != "True" and c.get("reason") == "NodeNotReady" for c in ready)


def _disruption(status: Mapping[str, Any]) -> Disruption | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return _TARGET_REASONS.get(condition.get("reason", ""), Disruption.EVICTED)
    return _POD_REASONS.get(status.get("reason", ""))


def _claims(adapter: WorkloadAdapter, job: Job) -> Iterable[tuple[str, str]]:
    """The claims without which the guarded pod would never start, each with the field that names it."""
    guard = job.spec.guard
    if guard.heldout.volume.claim_name is not None:
        yield "spec.guard.heldout.volume.claimName", guard.heldout.volume.claim_name
    if guard.state.claim_name is not None:
        yield "spec.guard.state.claimName", guard.state.claim_name
    if guard.checkpoints.claim_name is not None:
        yield f"{CHECKPOINTS}claimName", guard.checkpoints.claim_name
    if job.spec.target_ref is not None:
        return
    spec = job.spec.made_from.spec
    for template in adapter.pod_templates(spec):
        for volume in pod_spec(spec, template).get("volumes", []):
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and template.guarded and volume.get("name") == guard.checkpoints.volume:
                yield f"{CHECKPOINTS}volume", claim
