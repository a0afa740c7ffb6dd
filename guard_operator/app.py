"""Puts the operator together: caches, queue, controller, Lease, metrics. No decision is made here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from kubernetes.client import Configuration

from guard_operator.adapters import find_adapter, switched_on
from guard_operator.api import names
from guard_operator.config import OperatorConfig
from guard_operator.guards.keeper import Keeper
from guard_operator.guards.polls import GuardPolls
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.events import EventRecorder
from guard_operator.reconcile.evidence import EvidenceCollector
from guard_operator.reconcile.gather import DEAF_SECONDS, Gatherer
from guard_operator.reconcile.gauges import JobGauges
from guard_operator.reconcile.glance import (
    is_latched,
    is_only_a_report,
    is_over,
    is_under_way,
)
from guard_operator.reconcile.memory import RunMemory
from guard_operator.reconcile.parse import JOBS
from guard_operator.reconcile.slim import (
    slim_between,
    slim_job,
    slim_pod,
    slim_workload,
)
from guard_operator.runtime.client import PODS, STATEFUL_SETS, Client, Json, Resource
from guard_operator.runtime.errors import ClusterError
from guard_operator.runtime.health import HealthServer
from guard_operator.runtime.lease import LeaderElector, LeaseTiming
from guard_operator.runtime.manager import Manager, ManagerConfig
from guard_operator.runtime.metrics import OperatorMetrics, QueueGauges
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key, Reflector, Timing

log = logging.getLogger(__name__)

Slim = Callable[[Json], Json]

#: How often a job is looked at of which something has not been listed yet, and how often once that is waited
#: for no longer: each look unpacks it, and what is listed then has its job looked at by itself.
UNSYNCED_SECONDS = 1.0
UNLISTED_SECONDS = 30.0
#: After how long the process is called ready although a namespace has never been read.
GIVE_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which Lease elects the leader, and who asks for it."""

    namespace: str
    identity: str
    name: str
    timing: LeaseTiming = field(default_factory=LeaseTiming)


class Operator:
    """The whole operator. `run` blocks until `stop`; its result is the exit code."""

    def __init__(
        self,
        configuration: Configuration,
        config: OperatorConfig,
        lease: LeaseName,
        address: tuple[str, int],
        manager: ManagerConfig | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.metrics = OperatorMetrics()
        client = Client(configuration, self.metrics.request)
        self._queue: WorkQueue[Key] = WorkQueue(self.metrics, workers=(manager or ManagerConfig()).workers)
        self._keeper = Keeper(client, lease.namespace)
        self._guards = GuardPolls(self._keeper, self._queue.add)
        scopes = config.namespaces or (None,)
        self._memory = RunMemory()
        self._caches = _Caches(
            client, scopes, config, self._queue, self._guards, self._memory, timing or Timing()
        )
        evidence, self._events = (
            EvidenceCollector(client, self._guards.evidence, self._queue.add),
            EventRecorder(client),
        )
        self._controller = Controller(
            Gatherer(client, config, self._caches, self._guards),
            Actuator(client, config, self.metrics, evidence, self._events, self._keeper),
            self._memory,
            self._guards,
        )
        elector = LeaderElector(client, lease.namespace, lease.name, lease.identity, lease.timing)
        self._manager = Manager(
            [*self._caches.reflectors, self._guards],
            self._queue,
            self._reconcile,
            elector,
            self.metrics,
            manager,
            self._caches.workable,
            self._sweep,
        )
        caches = self._caches
        self.metrics.registry.register(QueueGauges(self._queue.depth, self._queue.working_for))
        gauges = JobGauges(caches.jobs, caches.states, caches.kinds, self._guards.reading)
        self.metrics.registry.register(gauges)
        self._elector, self._identity = elector, lease.identity
        self._namespaces = config.namespaces or None
        registry = self.metrics.registry
        self._health = HealthServer(address, self._manager.healthy, self.ready, registry, self.state)

    @property
    def port(self) -> int:
        """Port of the probes and metrics."""
        return self._health.port

    def run(self) -> int:
        """Run until stopped."""
        try:
            code = self._manager.run()
            if code == 0:  # who lost the Lease ends at once
                self._events.flush()
            return code
        finally:
            self._health.close()

    def ready(self) -> bool:
        """Whether it can do all that the operator before it did, so that a rollout may end that one."""
        return self._caches.ready()

    def state(self) -> Json:
        """Leadership, queue and caches as they are now, for people: names and counts, no contents."""
        return {
            "identity": self._identity,
            "leads": self._elector.is_leader,
            "queue": self._queue.state(),
            "caches": [reflector.state() for reflector in self._caches.reflectors],
        }

    def stop(self) -> None:
        """Ask for a graceful end; safe in a signal handler."""
        self._manager.stop()

    def _sweep(self) -> None:
        """Look after watches that show nothing, and after what is kept of jobs that are gone."""
        self._caches.look_at_the_unheard()
        if not (self._elector.is_leader and self._caches.all_synced()):
            return
        with suppress(ClusterError):  # the next time
            alive = {raw["metadata"]["uid"] for raw in self._caches.jobs()}
            self._keeper.sweep(alive, self._namespaces, JOBS)

    def _reconcile(self, key: Key) -> float | None:
        """One reconcile, once what the job needs has been listed; a latch waits for nothing."""
        raw = self._caches.job(key)
        if raw is None or is_latched(raw) or self._has_latched(raw):
            return self._controller.reconcile(raw)
        if unlisted := self._caches.unlisted(raw):
            if not self._caches.is_late():
                return UNSYNCED_SECONDS
            self._controller.say_unlisted(raw, unlisted)
            return UNLISTED_SECONDS
        # Nothing is read of each run instead: where the watch of all fails, that fails, too, or hangs.
        if is_under_way(raw) and (unheard := self._caches.unheard(raw)):
            self._controller.say_unlisted(raw, unheard)
            return UNLISTED_SECONDS
        return self._controller.reconcile(raw)

    def _has_latched(self, raw: Json) -> bool:
        """Whether its guard says so, and the status does not yet."""
        reading = self._guards.reading(raw["metadata"]["uid"])
        return reading is not None and reading.verdict is not None and reading.verdict.stop


class _Caches:
    """The reflectors of jobs, pods and workloads, one set for each namespace or one for all of them.

    A namespace that is gone, or that the operator may not read, holds up no other.
    """

    def __init__(
        self,
        client: Client,
        scopes: Iterable[str | None],
        config: OperatorConfig,
        queue: WorkQueue[Key],
        guards: GuardPolls,
        memory: RunMemory,
        timing: Timing,
    ) -> None:
        self._queue = queue
        self._guards = guards
        self._memory = memory
        self._scopes = tuple(scopes)
        self._started = time.monotonic()
        self._given_up: set[str | None] = set()
        self._jobs: list[Reflector] = []
        self._pods: list[Reflector] = []
        self._workloads: dict[Resource, list[Reflector]] = {}
        for scope in self._scopes:
            self._jobs.append(Reflector(client, JOBS, scope, self._job_changed, slim_job, timing=timing))
            self._pods.append(
                Reflector(
                    client,
                    PODS,
                    scope,
                    self._owned_changed,
                    slim_pod,
                    selector=names.UID_LABEL,
                    timing=timing,
                    index=_job_uid,
                )
            )
            for resource, slim in _watched(config.kinds).items():
                self._workloads.setdefault(resource, []).append(
                    self._workload_reflector(client, scope, resource, slim, timing)
                )

    def _workload_reflector(
        self, client: Client, scope: str | None, resource: Resource, slim: Slim, timing: Timing
    ) -> Reflector:
        return Reflector(
            client,
            resource,
            scope,
            self._owned_changed,
            slim,
            selector=names.UID_LABEL,
            timing=timing,
            index=_job_uid,
        )

    @property
    def reflectors(self) -> list[Reflector]:
        """All of them."""
        workloads = (one for many in self._workloads.values() for one in many)
        return [*self._jobs, *self._pods, *workloads]

    def synced(self, namespace: str | None) -> bool:
        """Whether every cache of this namespace has its first list."""
        return _are_synced(self.reflectors, namespace)

    def all_synced(self) -> bool:
        """Whether every job there is, is known."""
        return all(one.synced for one in self._jobs)

    def unlisted(self, raw: Json) -> list[str]:
        """The kinds by which this job is decided and that have not been listed yet.

        A list can be refused for long, as while the conversion webhook of a CRD is down: jobs of other kinds
        do not wait for it.
        """
        return sorted({kind for kind, one in self._needed(raw) if not one.synced})

    def unheard(self, raw: Json) -> list[str]:
        """Those of them of which a watch has shown nothing for long, or that are no longer served.

        None where that of the jobs shows nothing, either: a fire may stand in what it does not show, so each
        job is read live then.
        """
        if self.quiet_for(raw["metadata"]["namespace"]) > DEAF_SECONDS:
            return []
        return sorted({kind for kind, one in self._needed(raw) if one.missing or _is_deaf(one)})

    def _needed(self, raw: Json) -> Iterator[tuple[str, Reflector]]:
        """(kind, what is cached of it) of all by which this job is decided."""
        namespace, needed = raw["metadata"]["namespace"], {"Pod": self._pods}
        for resource in (STATEFUL_SETS, *_of_kind(raw)):
            needed[resource.kind] = self._workloads.get(resource, [])
        for kind, many in needed.items():
            yield from ((kind, one) for one in many if one.namespace in {None, namespace})

    def workable(self) -> bool:
        """Whether there is a namespace to work on: its jobs and pods are listed, and a stop needs no more."""
        return any(self._readable(scope) for scope in self._scopes)

    def is_late(self) -> bool:
        """Whether what has not been read by now is waited for no longer."""
        return time.monotonic() - self._started > GIVE_UP_SECONDS

    def _readable(self, scope: str | None) -> bool:
        return all(one.synced for one in (*self._jobs, *self._pods) if one.namespace == scope)

    def ready(self) -> bool:
        """Whether every namespace can be worked on, but for those that were given up after a while."""
        missing = {scope for scope in self._scopes if not self.synced(scope)}
        if missing and self.is_late():
            for scope in missing - self._given_up:
                log.error("namespace %s cannot be read after %g s: not waited for", scope, GIVE_UP_SECONDS)
            self._given_up |= missing
        return self.workable() and missing <= self._given_up

    def states(self) -> Iterable[tuple[str, bool]]:
        """(namespace, "" for all; whether its jobs and pods can be read) of everything that is watched."""
        deaf = {one.namespace for one in (*self._jobs, *self._pods) if _is_deaf(one)}
        return [(scope or "", self._readable(scope) and scope not in deaf) for scope in self._scopes]

    def kinds(self) -> Iterable[tuple[str, str, bool | None]]:
        """(namespace, "" for all; kind; whether it can be read) of what jobs are made of.

        None: the API server says that there is no such kind.
        """
        return [
            (one.namespace or "", kind.kind, None if one.missing else one.synced and not _is_deaf(one))
            for kind, many in self._workloads.items()
            for one in many
        ]

    def jobs(self) -> Iterable[Json]:
        """Every job as cached."""
        for reflector in self._jobs:
            yield from reflector.items()

    def job(self, key: Key) -> Json | None:
        """The job as cached."""
        return _first(reflector.get(*key) for reflector in self._jobs)

    def quiet_for(self, namespace: str) -> float:
        """Seconds since the API server last showed something of the jobs in this namespace, or of any."""
        return min(one.quiet_for() for one in self._jobs if one.namespace in {None, namespace})

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The workload as cached; only those with the operator's labels are."""
        return _first(reflector.get(namespace, name) for reflector in self._workloads[resource])

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The pods of a job as cached."""
        return _of_job(self._pods, namespace, job_uid)

    def between(self, resource: Resource, namespace: str, job_uid: str) -> Iterable[Json]:
        """What carries a job's UID of this kind, as cached."""
        return _of_job(self._workloads[resource], namespace, job_uid)

    def _job_changed(self, old: Json | None, new: Json | None) -> None:
        raw = new or old
        assert raw is not None
        uid = raw["metadata"]["uid"]
        if new is None:
            self._memory.forget(uid)
        if new is None or is_over(new):
            self._guards.forget(uid)
        if is_only_a_report(old, new):
            return
        urgent = new is not None and is_latched(new) and "stop" not in (new.get("status") or {})
        self._queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]), urgent)

    def look_at_the_unheard(self) -> None:
        """Have every job looked at of which a watch shows nothing: it is read live, or that is said."""
        if not any(one.synced and not one.missing and _is_deaf(one) for one in self.reflectors):
            return  # as nearly always: no job need be read
        for reflector in (one for one in self._jobs if one.synced):
            for raw in reflector.items():
                if not is_over(raw) and (_is_deaf(reflector) or self.unheard(raw)):
                    self._queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]))

    def _owned_changed(self, old: Json | None, new: Json | None) -> None:
        raw = new or old
        assert raw is not None
        name = (raw["metadata"].get("labels") or {}).get(names.JOB_LABEL)
        if name:
            self._queue.add((raw["metadata"]["namespace"], name))


def _is_deaf(reflector: Reflector) -> bool:
    """Whether the API server has shown nothing of it for longer than a watch that works takes."""
    return reflector.quiet_for() > DEAF_SECONDS


def _are_synced(reflectors: Iterable[Reflector], namespace: str | None) -> bool:
    """Whether those of them that have this namespace have their first list."""
    return all(one.synced for one in reflectors if one.namespace in {None, namespace})


def _job_uid(raw: Json) -> str:
    return str((raw["metadata"].get("labels") or {}).get(names.UID_LABEL, ""))


def _of_job(reflectors: Iterable[Reflector], namespace: str, job_uid: str) -> Iterable[Json]:
    for reflector in reflectors:
        for raw in reflector.indexed(job_uid):
            if raw["metadata"]["namespace"] == namespace:
                yield raw


def _watched(kinds: Collection[str]) -> dict[Resource, Slim]:
    """The kinds of workloads, and those between them and their pods, with what is kept of each."""
    adapters = switched_on(kinds)
    between: dict[Resource, Slim] = {
        resource: slim_between for adapter in adapters for resource in adapter.between
    }
    between[STATEFUL_SETS] = slim_between  # guards in pods of their own
    made = {one.resource: partial(slim_workload, one) for one in adapters if not one.only_attached}
    return between | made


def _of_kind(raw: Json) -> tuple[Resource, ...]:
    """What the workload of a job is, and what stands between it and its pods."""
    spec, ref = raw.get("spec") or {}, (raw.get("status") or {}).get("workloadRef")
    made = spec.get("targetRef") or spec.get("template") or ref or {}
    adapter = find_adapter(str(made.get("apiVersion")), str(made.get("kind")))
    if adapter is None:
        return ()
    return (adapter.resource, *adapter.between)


def _first(found: Iterable[Json | None]) -> Json | None:
    return next((one for one in found if one is not None), None)
