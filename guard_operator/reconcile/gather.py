"""Builds the snapshot of one job: from the caches where being late is harmless, live where it is not.

There are two ways to know what is there. The caches are enough for a run that goes on, and for the first
delete of one that must stop: that waits for no request. Everything is read live, the job too, before a guard
is called silent, a run is halted or said to have ended, and until nothing is left of one that must stop. Of a
workload that the job does not own nothing is cached.

A read that is refused, or hangs, holds up no stop: what was seen last takes its place, marked as unread, so
that nothing is called stopped for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from guard_operator.adapters import (
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    find_adapter,
)
from guard_operator.api import names
from guard_operator.api.reasons import Reason
from guard_operator.api.types import Isolation
from guard_operator.config import OperatorConfig
from guard_operator.guards.reading import Reading
from guard_operator.reconcile.glance import is_latched
from guard_operator.reconcile.guard_pod import why_not_shared
from guard_operator.reconcile.halts import goes_on_unread, must_be_live, was_there
from guard_operator.reconcile.inject import made_for_the_guard
from guard_operator.reconcile.isolation import guard_objects_of, sentences
from guard_operator.reconcile.memory import NOTHING, Remembered
from guard_operator.reconcile.obstacles import Late, guard_is_late, reason_for, what_is_late
from guard_operator.reconcile.parse import JOBS, parse_job, with_last_word
from guard_operator.reconcile.pods import PodOwner, pod_of, time_of
from guard_operator.reconcile.refusals import is_copy, isolation_findings, template_claims
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import (
    Between,
    Job,
    OwnGuard,
    Pod,
    Preparation,
    Snapshot,
    Waiting,
    Workload,
    finalizers_of,
    guard_of,
    must_stop,
)
from guard_operator.reconcile.targets import (
    NO_BELONGINGS,
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
from guard_operator.reconcile.templates import rank0_of
from guard_operator.runtime.client import (
    CLAIMS,
    EVENTS,
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

#: Events that are read of one object, which has a few. Its owner can write more.
MAX_EVENTS = 500
#: A watch that works shows something every minute; one that has shown nothing for longer than this does not.
DEAF_SECONDS = 90.0
CHECKPOINTS = "spec.guard.checkpoints."
CLAIM_SECONDS = 5.0
#: For how long a guard that is ready cannot be reached before that is said.
UNREACHED_SECONDS = 30.0
#: How often a workload is looked for that does not exist, or cannot be guarded as it is.
TARGET_SECONDS = 10.0
FORBIDDEN_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
REFUSED_SECONDS = 300.0

#: While the workload is in one of these, a guard in a pod of its own is there, too.
_GUARDED_STATES = frozenset({WorkloadState.PENDING, WorkloadState.RUNNING})


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


class Guards(Protocol):
    """What is read of the guards."""

    def reading(self, uid: str) -> Reading | None:
        """Of the guard of this job."""

    def silent_for(self, uid: str, pod: str) -> float:
        """For how long the guard that is to be in this pod could not be heard, seconds."""

    def most_are_unreached(self) -> bool:
        """Whether more than half of all guards cannot be reached."""


@dataclass(frozen=True, slots=True)
class _Objects:
    """What is there of a run, as the API server has it, or as it was seen last.

    `made`: what carries the job's UID, by kind. `target`: what belongs to a workload that is not the job's.
    `live`: all of it was read now. `unread`: why it could not be, although it was tried.
    """

    workload: Json | None
    pods: tuple[Json, ...]
    made: Mapping[Resource, tuple[Json, ...]]
    target: Belongings = NO_BELONGINGS
    live: bool = False
    unread: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What these objects are to the run. `uid`: of its workload."""

    workload: Workload | None
    uid: str | None
    between: tuple[Between, ...]
    own_guard: OwnGuard | None
    owner: PodOwner
    pods: tuple[Pod, ...]

    @classmethod
    def of(cls, adapter: WorkloadAdapter | None, job: Job, objects: _Objects) -> _Seen:
        """By the chain of controllers alone: labels are anybody's to give."""
        raw, target = objects.workload, objects.target
        workload = None if raw is None or adapter is None else _workload(adapter, job, raw)
        uid, between, own_guard = _uid(job, workload), target.between, None
        if adapter is not None and uid is not None and job.spec.target_ref is None:
            between = controlled(adapter, uid, lambda kind: objects.made[kind])
        if job.spec.guard.own_pod is not None:
            name = names.guard_name(job.name, job.uid)
            own_guard = OwnGuard(_named(name, job, objects.made[STATEFUL_SETS]))
        controllers = frozenset(one.uid for one in between) | target.controllers
        owner = PodOwner(uid, _spec(job, raw, uid), controllers, _uid_of_guard(own_guard))
        raw_pods = sorted((*objects.pods, *target.pods), key=_age)
        pods = tuple(pod_of(adapter, one, owner) for one in raw_pods)
        return cls(workload, uid, between, own_guard, owner, pods)


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
        adapter = self._adapter(job)
        seen = _Seen.of(adapter, job, self._cached(adapter, job))
        return Snapshot(self._with_last_words(job, seen.pods), seen.workload, seen.pods)

    def gather(self, job: Job, known: Remembered = NOTHING) -> Snapshot | None:
        """The snapshot of this job; None: it is gone, and the cache does not know yet.

        `known`: what is remembered of the run beside its status.

        Raises:
            ClusterError: a live read failed for now.
        """
        adapter, deaf = self._adapter(job), self._caches.quiet_for(job.namespace) > DEAF_SECONDS
        first = known.stop is None and job.status.stop is None
        stops, cached = must_stop(job), self._cached(adapter, job)
        if (first and stops) or not (deaf or _is_stopping(job)):
            objects = cached if stops else self._with_workload(adapter, job, cached)
            snapshot = self._snapshot(adapter, job, known, objects, deaf)
            if first and must_stop(snapshot.job) and (snapshot.workload or snapshot.pods):
                return snapshot  # the first delete waits for no request
            if not (must_stop(snapshot.job) or must_be_live(snapshot)):
                return snapshot
        try:
            current = job if stops else self._read_job(job)
            if current is None:
                return None
            return self._snapshot(adapter, current, known, self._live(adapter, current, known), deaf)
        except ClusterError as error:
            if not goes_on_unread(job):
                raise
            log.warning("%s/%s: cannot be read: %s", job.namespace, job.name, error)
            return self._snapshot(adapter, job, known, replace(cached, unread=str(error)), deaf)

    # -- reads -------------------------------------------------------------------------------------------

    def _cached(self, adapter: WorkloadAdapter | None, job: Job) -> _Objects:
        """What is known without a request. A workload that was not seen is known by its UID alone."""
        place, ref = (job.namespace, job.uid), job.status.workload_ref
        raw = None
        if adapter is not None and job.spec.target_ref is None:  # only what has our labels is cached
            raw = self._caches.workload(adapter.resource, job.namespace, job.name)
        if raw is None and ref is not None and adapter is not None:
            raw = {"metadata": {"name": ref.name, "uid": ref.uid}}
        made = {kind: tuple(self._caches.between(kind, *place)) for kind in _kinds(adapter, job)}
        return _Objects(raw, tuple(self._caches.pods(*place)), made)

    def _with_workload(self, adapter: WorkloadAdapter | None, job: Job, cached: _Objects) -> _Objects:
        """The same, with what may be there although no cache has it."""
        if adapter is None:
            return cached
        if job.spec.target_ref is not None:
            return replace(self._live(adapter, job, NOTHING), live=False)
        there = self._caches.workload(adapter.resource, job.namespace, job.name) is not None
        return cached if there else replace(cached, workload=self._workload(adapter, job))

    def _live(self, adapter: WorkloadAdapter | None, job: Job, known: Remembered) -> _Objects:
        """What is there now. Where all must be gone that was seen before, each of it is looked for.

        Raises:
            ClusterError: something could not be read for now.
        """
        raw = None if adapter is None else self._workload(adapter, job)
        pods = listed(self._client, PODS, job, _of_job(job))
        made = {kind: tuple(listed(self._client, kind, job, _of_job(job))) for kind in _kinds(adapter, job)}
        target = NO_BELONGINGS
        if adapter is not None and job.spec.target_ref is not None:
            uid = _uid(job, None if raw is None else _workload(adapter, job, raw))
            target = NO_BELONGINGS if uid is None else read_target(self._client, adapter, job, raw, uid)
        if _is_stopping(job):
            found = {one["metadata"]["uid"] for one in (*pods, *target.pods)}
            others = ((name, uid) for name, uid in known.pods if uid not in found)
            missed = (of_uid(self._client.get(PODS, job.namespace, name), uid) for name, uid in others)
            pods += [one for one in missed if one is not None]
        return _Objects(raw, tuple(pods), made, target, live=True)

    def _workload(self, adapter: WorkloadAdapter, job: Job) -> Json | None:
        return self._client.get(adapter.resource, job.namespace, job.workload_name, was_there=was_there(job))

    def _read_job(self, job: Job) -> Job | None:
        raw = of_uid(self._client.get(JOBS, job.namespace, job.name), job.uid)
        return None if raw is None else parse_job(raw, self._guards.reading(job.uid))

    # -- the snapshot ------------------------------------------------------------------------------------

    def _snapshot(
        self,
        adapter: WorkloadAdapter | None,
        job: Job,
        known: Remembered,
        objects: _Objects,
        deaf: bool,
    ) -> Snapshot:
        """What these objects say, and what else is needed where the run is not to stop."""
        seen = _Seen.of(adapter, job, objects)
        job = self._with_last_words(job, seen.pods)
        stopping, live = _is_stopping(job), objects.live
        if adapter is None:
            return self._unknown_kind(job, seen, objects, stopping)
        workload, uid, pods, unread = seen.workload, seen.uid, seen.pods, objects.unread
        asks = live or not stopping  # the first delete waits for no request
        if asks and uid is not None and _may_hide_pods(job, workload, pods):
            hidden = read_unlabelled(self._client, adapter, job, objects.workload, uid)
            owner = replace(seen.owner, between=seen.owner.between | hidden.controllers)
            pods += tuple(pod_of(adapter, raw, owner) for raw in hidden.pods)
        taken = workload is not None and job.spec.target_ref is None
        not_now = taken or stopping or job.deleting or _was_created(job)
        own_guard = seen.own_guard if stopping else self._own_guard(job, workload, seen.own_guard)
        spec = _spec(job, objects.workload, uid)
        silent_for, unreached = self._silence(job, pods, deaf, workload, own_guard)
        wanted = adapter.pods_wanted(spec)
        late = () if stopping or job.deleting else _late(workload, pods, own_guard, wanted)
        target = objects.target
        preparation = None if not_now else self._prepare(adapter, job, objects.workload, target)
        return Snapshot(
            job=job,
            workload=workload,
            between=seen.between,
            own_guard=own_guard,
            pods=pods,
            pods_unread=unread,
            refusal=known.refusal,
            asked=known.stop,
            seen=known.pods,
            all_pods_read=stopping and live,
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

    def _unknown_kind(self, job: Job, seen: _Seen, objects: _Objects, stopping: bool) -> Snapshot:
        """No adapter: another version of the operator may have created it, and its pods carry our labels."""
        said = review(None, job, self._config)
        return Snapshot(
            job,
            pods=seen.pods if stopping else (),
            pods_unread=objects.unread,
            own_guard=seen.own_guard if stopping else None,  # it would make its pod again and again
            preparation=Preparation(said.reason, "; ".join(said.findings)),
            live=objects.live,
            unknown_kind=True,
        )

    def _own_guard(self, job: Job, workload: Workload | None, known: OwnGuard | None) -> OwnGuard | None:
        """The StatefulSet of the guard; or that another one has its name, and would keep it away."""
        if known is None or known.made is not None or not _has_guard(workload):
            return known
        name = names.guard_name(job.name, job.uid)
        query = {"fieldSelector": f"metadata.name={name}"}
        there = self._client.list(STATEFUL_SETS, job.namespace, query).get("items") or []
        made = _named(name, job, there)  # which the cache does not have yet
        return OwnGuard(made, taken=name if there and made is None else "")

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
            return Preparation(said.reason, "; ".join(said.findings))
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
        refused = self._dry_run(adapter, job, said.workload)
        return refused if refused.reason is not None else self._guard_refused(adapter, job)

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

    def _dry_run(self, adapter: WorkloadAdapter, job: Job, workload: Json) -> Preparation:
        """What the API server, with the workload's schema and webhooks, says to the workload.

        First as a create, because a server-side apply refuses a value of the wrong type with a 500; then as
        the apply by which it is made, which refuses more: a null, two entries of one name. One that is there
        was made by a try before, of which something else was refused.
        """
        manager, resource = names.OPERATOR_MANAGER, adapter.resource
        try:
            try:
                made = self._client.create(resource, job.namespace, workload, manager, dry_run=True)
                adapter.check_manager(made.get("spec") or {})  # MultiKueue's webhook leaves it to another one
            except ApiError as error:
                if error.status != 409:
                    raise
            self._client.apply(resource, workload, manager, dry_run=True)
        except TemplateError as error:
            return Preparation(
                Reason.WORKLOAD_REFUSED, f"spec.template: a webhook changes it: {error}", REFUSED_SECONDS
            )
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
            gone, created = "deletionTimestamp" in of, time_of(of.get("creationTimestamp"))
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


def _kinds(adapter: WorkloadAdapter | None, job: Job) -> tuple[Resource, ...]:
    """The kinds of what carries the job's UID beside its workload and its pods."""
    own = adapter.between if adapter is not None and job.spec.target_ref is None else ()
    return (*own, *((STATEFUL_SETS,) if job.spec.guard.own_pod is not None else ()))


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
        created=time_of(metadata.get("creationTimestamp")),
        deleted=time_of(metadata.get("deletionTimestamp")),
        finalizers=tuple(finalizers_of(metadata)),
        manager=_creator(metadata),
    )


def _creator(metadata: Json) -> str:
    """The field manager that wrote an object first; "" if it is not known."""
    written = [one for one in metadata.get("managedFields") or [] if one.get("time")]
    return str(min(written, key=lambda one: str(one["time"]))["manager"]) if written else ""


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
    _, pod = rank0_of(adapter, spec)
    for volume in pod.get("volumes", []):
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and volume.get("name") == guard.checkpoints.volume:
            yield f"{CHECKPOINTS}volume", claim
