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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from rlguard.operator.adapters import TemplateError, WorkloadAdapter, WorkloadState, find_adapter
from rlguard.operator.api import names
from rlguard.operator.api.guard import Isolation
from rlguard.operator.config import OperatorConfig
from rlguard.operator.guards.polls import GuardPolls
from rlguard.operator.reconcile.halts import goes_on_unread, must_be_live, was_there
from rlguard.operator.reconcile.isolation import guard_objects_of, sentences
from rlguard.operator.reconcile.obstacles import SOON_SECONDS, Late, reason_for, what_is_late
from rlguard.operator.reconcile.parse import JOBS, parse_job, with_last_word
from rlguard.operator.reconcile.pods import PodOwner, pod_of, time_of
from rlguard.operator.reconcile.prepare import find_preparation
from rlguard.operator.reconcile.refusals import isolation_findings
from rlguard.operator.reconcile.review import review
from rlguard.operator.reconcile.snapshot import (
    NOTHING_REMEMBERED,
    Between,
    Job,
    Pod,
    Preparation,
    Remembered,
    Snapshot,
    Waiting,
    Workload,
    finalizers_of,
    guard_of,
    must_stop,
)
from rlguard.operator.reconcile.targets import (
    NO_BELONGINGS,
    Belongings,
    attached_trainer,
    controlled,
    exposures,
    listed,
    read_target,
    read_unlabelled,
)
from rlguard.operator.runtime.client import (
    EVENTS,
    PODS,
    STATEFUL_SETS,
    Client,
    Json,
    Resource,
    controller_of,
    of_uid,
)
from rlguard.operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

#: Events that are read of one object, which has a few. Its owner can write more.
MAX_EVENTS = 500
#: For how long a guard that is ready cannot be reached before that is said.
UNREACHED_SECONDS = 30.0


class Caches(Protocol):
    """What the reflectors hold."""

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The cached workload."""

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The cached pods that carry the job's UID."""

    def between(self, resource: Resource, namespace: str, job_uid: str) -> Iterable[Json]:
        """What is cached of this kind and carries the job's UID."""


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
    guard_maker: Between | None
    owner: PodOwner
    pods: tuple[Pod, ...]

    @classmethod
    def of(cls, adapter: WorkloadAdapter, job: Job, objects: _Objects) -> _Seen:
        """By the chain of controllers alone: labels are anybody's to give."""
        raw, target = objects.workload, objects.target
        workload = None if raw is None else _workload(adapter, job, raw)
        uid, between, guard_maker = _uid(job, workload), target.between, None
        if uid is not None and not job.is_attached:
            between = controlled(adapter, uid, lambda kind: objects.made[kind])
        if job.has_guard_pod:
            guard_maker = _guard_maker(job, objects.made[STATEFUL_SETS])
        guard_uid = None if guard_maker is None else guard_maker.uid
        owner = PodOwner(uid, _spec(job, raw, uid), frozenset(one.uid for one in between), guard_uid)
        raw_pods = sorted((*objects.pods, *target.pods), key=_age)
        pods = tuple(pod_of(adapter, one, owner) for one in raw_pods)
        return cls(workload, uid, between, guard_maker, owner, pods)


class UnsupportedKindError(Exception):
    """This operator guards no workload of the job's kind."""


class Gatherer:
    """See the module. `clock` gives the time in UTC."""

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        caches: Caches,
        guards: GuardPolls,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._config = config
        self._caches = caches
        self._guards = guards
        self._clock = clock

    def gather(
        self, job: Job, known: Remembered = NOTHING_REMEMBERED, unread: Sequence[str] = ()
    ) -> Snapshot | None:
        """The snapshot of this job; None: it is gone, and the cache does not know yet.

        Args:
            job: as it is cached.
            known: what is remembered of the run beside its status.
            unread: kinds that cannot be read. Then it costs no request: those fail, too, or hang.

        Raises:
            ClusterError: a live read failed for now.
            UnsupportedKindError: nothing can be known of a workload of this kind.
        """
        adapter = self._adapter(job)
        first = known.stop is None and job.status.stop is None
        stops, (cached, complete) = must_stop(job), self._cached(adapter, job)
        if unread:
            seen = _Seen.of(adapter, job, cached)
            job = self._with_last_words(job, seen.pods)
            why = f"{', '.join(unread)} cannot be listed or watched"
            return Snapshot(job, seen.workload, seen.pods, known=known, unread=why)
        if (first and stops) or not _is_stopping(job):
            objects = cached if complete or stops else self._uncached(adapter, job, cached)
            snapshot = self._snapshot(adapter, job, known, objects)
            if first and must_stop(snapshot.job) and (snapshot.workload or snapshot.pods):
                return snapshot  # the first delete waits for no request
            if not (must_stop(snapshot.job) or must_be_live(snapshot)):
                return snapshot
        try:
            current = job if stops else self._read_job(job)
            if current is None:
                return None
            return self._snapshot(adapter, current, known, self._live(adapter, current, known))
        except ClusterError as error:
            if not goes_on_unread(job):
                raise
            log.warning("%s/%s: cannot be read: %s", job.namespace, job.name, error)
            return self._snapshot(adapter, job, known, replace(cached, unread=str(error)))

    # -- reads -------------------------------------------------------------------------------------------

    def _cached(self, adapter: WorkloadAdapter, job: Job) -> tuple[_Objects, bool]:
        """What is known without a request, and whether the workload is in it: else its UID is, if noted."""
        place, ref = (job.namespace, job.uid), job.status.workload_ref
        raw = None
        if not job.is_attached:  # only what has our labels is cached
            raw = self._caches.workload(adapter.resource, job.namespace, job.name)
        noted = None if ref is None else {"metadata": {"name": ref.name, "uid": ref.uid}}
        made = {kind: tuple(self._caches.between(kind, *place)) for kind in _kinds(adapter, job)}
        return _Objects(raw or noted, tuple(self._caches.pods(*place)), made), raw is not None

    def _uncached(self, adapter: WorkloadAdapter, job: Job, cached: _Objects) -> _Objects:
        """What is there of a run whose workload no cache has, as of every target."""
        if not job.is_attached:
            return replace(cached, workload=self._workload(adapter, job))
        return replace(self._live(adapter, job, NOTHING_REMEMBERED), live=False)

    def _live(self, adapter: WorkloadAdapter, job: Job, known: Remembered) -> _Objects:
        """What is there now. Each pod that was seen before is looked for: it may have lost its labels.

        Raises:
            ClusterError: something could not be read for now.
        """
        raw = self._workload(adapter, job)
        pods = listed(self._client, PODS, job, _of_job(job))
        made = {kind: tuple(listed(self._client, kind, job, _of_job(job))) for kind in _kinds(adapter, job)}
        target = NO_BELONGINGS
        if job.is_attached:
            uid = _uid(job, None if raw is None else _workload(adapter, job, raw))
            target = NO_BELONGINGS if uid is None else read_target(self._client, adapter, job, raw, uid)
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

    def _snapshot(self, adapter: WorkloadAdapter, job: Job, known: Remembered, objects: _Objects) -> Snapshot:
        """What these objects say, and what else is needed where the run is not to stop."""
        seen = _Seen.of(adapter, job, objects)
        job = self._with_last_words(job, seen.pods)
        pods = self._with_hidden(adapter, job, objects, seen)
        spec = _spec(job, objects.workload, seen.uid)
        late_for, obstacle = self._lateness(adapter, job, seen, spec)
        silent_for, unreached = self._silence(job, pods, seen.workload)
        snapshot = Snapshot(
            job=job,
            workload=seen.workload,
            between=seen.between,
            guard_maker=seen.guard_maker,
            pods=pods,
            unread=objects.unread,
            known=known,
            preparation=self._preparation(adapter, job, seen.workload, objects),
            broken=_broken(adapter, job, objects.target.pods, self._config),
            trainer=attached_trainer(adapter, spec),
            reading=self._guards.reading(job.uid),
            silent_for=silent_for,
            unreached=unreached,
            most_silent=bool(silent_for) and self._guards.most_are_unreached(),
            live=objects.live,
            late_for=late_for,
            obstacle=obstacle,
        )
        # Of a guard that is not asked nothing is to be heard.
        return replace(snapshot, silent_for=None, unreached="") if snapshot.not_admitted else snapshot

    def _with_hidden(
        self, adapter: WorkloadAdapter, job: Job, objects: _Objects, seen: _Seen
    ) -> tuple[Pod, ...]:
        """The pods, with those that lost the operator's label; the first delete waits for no request."""
        asks = objects.live or not _is_stopping(job)
        if not asks or seen.uid is None or not _may_hide_pods(job, seen.workload, seen.pods):
            return seen.pods
        hidden = read_unlabelled(self._client, adapter, job, objects.workload, seen.uid)
        owner = replace(seen.owner, between=seen.owner.between | {one.uid for one in hidden.between})
        known = {pod.uid for pod in seen.pods}
        others = (raw for raw in hidden.pods if raw["metadata"]["uid"] not in known)
        return seen.pods + tuple(pod_of(adapter, raw, owner) for raw in others)

    def _preparation(
        self, adapter: WorkloadAdapter, job: Job, workload: Workload | None, objects: _Objects
    ) -> Preparation:
        """What can be found out before there is a guarded workload, where it is the time for that."""
        taken = workload is not None and not job.is_attached
        if taken or job.status.workload_ref is not None or job.deleting or _is_stopping(job):
            return Preparation()
        return find_preparation(self._client, self._config, adapter, job, objects.workload, objects.target)

    def _with_last_words(self, job: Job, pods: Iterable[Pod]) -> Job:
        """The job with what its guards left when they ended, where nobody had heard it."""
        for pod in pods:
            if pod.guarded and pod.last_word is not None:
                job = with_last_word(job, pod.last_word, self._clock())
        return job

    def _adapter(self, job: Job) -> WorkloadAdapter:
        adapter = find_adapter(job.spec.workload.api_version, job.spec.workload.kind, self._config.kinds)
        if adapter is None:
            raise UnsupportedKindError(*review(None, job, self._config).findings)
        return adapter

    def _lateness(
        self,
        adapter: WorkloadAdapter,
        job: Job,
        seen: _Seen,
        spec: Mapping[str, Any],
    ) -> tuple[float | None, Waiting | None]:
        """For how long pods have not come or not started (None: they have), and what Events say of it."""
        if job.deleting or _is_stopping(job):
            return None, None
        wanted = 1 if job.is_attached else _pods_wanted(adapter, spec)
        late = what_is_late(seen.workload, seen.pods, wanted, seen.guard_maker)
        due = [one for one in late if one.lasts(self._clock()) > SOON_SECONDS]
        told = ((one, self._events_of(job, one)) for one in due)
        obstacles = (reason_for(one, events, seen.pods) for one, events in told if events is not None)
        longest = max((one.lasts(self._clock()) for one in late), default=None)
        return longest, next(filter(None, obstacles), None)

    def _events_of(self, job: Job, late: Late) -> list[Json] | None:
        """The Events of what is late. Words only: without them everything goes on."""
        query = {"fieldSelector": f"involvedObject.uid={late.uid}", "limit": str(MAX_EVENTS)}
        try:
            return self._client.list(EVENTS, job.namespace, query).get("items") or []
        except ClusterError as error:
            log.info("%s/%s: Events not read: %s", job.namespace, job.name, error)
            return None

    def _silence(
        self,
        job: Job,
        pods: tuple[Pod, ...],
        workload: Workload | None,
    ) -> tuple[float | None, str]:
        """For how long the guard could not be heard; and why not, if the kubelet calls it ready.

        Nothing is counted while nothing is expected of it. A rank 0 without its guard is silent from its
        start. A guard in a pod of its own is to be heard after its trainer's end, too.
        """
        ours = workload is not None and workload.ours
        succeeded = workload is not None and workload.state is WorkloadState.SUCCEEDED
        ended = job.has_guard_pod and (not ours or succeeded)
        running = [pod for pod in pods if pod.rank0 and pod.phase == "Running" and not pod.terminating]
        guards = [pod for pod in pods if pod.guarded and pod.address and not pod.terminating]
        if not (running or (ended and guards)):
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


def _guard_maker(job: Job, sets: Iterable[Json]) -> Between | None:
    """Of these StatefulSets the one of the guard, which the job controls."""
    name = names.guard_name(job.name, job.uid)
    for raw in sets:
        of = raw["metadata"]
        if of["name"] == name and controller_of(raw) == job.uid:
            gone, created = "deletionTimestamp" in of, time_of(of.get("creationTimestamp"))
            return Between(STATEFUL_SETS, name, of["uid"], gone, created)
    return None


def _may_hide_pods(job: Job, workload: Workload | None, pods: tuple[Pod, ...]) -> bool:
    """Whether a pod without the operator's label may be the one that is missing.

    Whoever may change the workload can take the label off its template. Its own controller needs others.
    """
    if job.is_attached:
        return False
    if must_stop(job):
        return not pods
    runs = workload is not None and workload.ours and workload.state is WorkloadState.RUNNING
    return runs and not any(pod.rank0 for pod in pods)


def _kinds(adapter: WorkloadAdapter, job: Job) -> tuple[Resource, ...]:
    """The kinds of what carries the job's UID beside its workload and its pods."""
    own = adapter.between if not job.is_attached else ()
    return (*own, *((STATEFUL_SETS,) if job.has_guard_pod else ()))


def _pods_wanted(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> int:
    """How many pods a template makes at once; 1 while it is not known to be one."""
    with suppress(TemplateError):
        return sum(one.pods for one in adapter.pod_templates(spec))
    return 1


def _is_stopping(job: Job) -> bool:
    """Whether this job is being, or will now be, torn down; errs on the side of reading live."""
    stops = must_stop(job) or guard_of(job).halt is not None
    return stops or job.status.stop is not None


def _of_job(job: Job) -> str:
    """Label selector of what belongs to the job."""
    return f"{names.UID_LABEL}={job.uid}"


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
    wanted = workload is not None and (workload.ours or job.is_attached)
    return workload.uid if workload is not None and wanted else None


def _spec(job: Job, raw: Json | None, uid: str | None) -> Mapping[str, Any]:
    """The spec of the workload: of its template, or of one that the job is attached to as it is now."""
    if not job.is_attached:
        return job.spec.made_from.spec
    spec = (of_uid(raw, uid) or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def _broken(
    adapter: WorkloadAdapter, job: Job, pods: Iterable[Json], config: OperatorConfig
) -> tuple[str, ...]:
    """The rows of the isolation table that a target breaks, or that `Relaxed` admits in the template."""
    guard = job.spec.guard
    own = guard_objects_of(job.name, job.uid, guard, config)
    if job.is_attached:
        return tuple(one for pod in pods for one in exposures(pod, own))
    if guard.isolation is Isolation.STRICT:
        return ()
    return sentences(isolation_findings(adapter, job.spec.made_from.spec, guard, own))


def _age(raw: Json) -> tuple[str, str]:
    """Sorts the oldest pod first; RFC 3339 times sort as text."""
    return raw["metadata"].get("creationTimestamp", ""), raw["metadata"]["name"]
