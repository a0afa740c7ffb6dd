"""Puts the operator together: caches, queue, controller, Lease, metrics. No decision is made here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kubernetes.client import Configuration

from rlguard.operator.adapters import find_adapter, switched_on
from rlguard.operator.api import names
from rlguard.operator.config import OperatorConfig
from rlguard.operator.guards.keeper import Keeper
from rlguard.operator.guards.polls import GuardPolls
from rlguard.operator.reconcile.actuate import Actuator
from rlguard.operator.reconcile.controller import Controller
from rlguard.operator.reconcile.evidence import EvidenceCollector
from rlguard.operator.reconcile.gather import Gatherer
from rlguard.operator.reconcile.gauges import JobGauges
from rlguard.operator.reconcile.parse import JOBS, is_latched, is_only_a_report, is_over
from rlguard.operator.reconcile.slim import (
    slim_between,
    slim_job,
    slim_pod,
    slim_workload,
)
from rlguard.operator.runtime.client import PODS, STATEFUL_SETS, Client, Json, Resource
from rlguard.operator.runtime.errors import ClusterError
from rlguard.operator.runtime.health import HealthServer
from rlguard.operator.runtime.lease import LeaderElector, LeaseTiming
from rlguard.operator.runtime.manager import Manager
from rlguard.operator.runtime.metrics import OperatorMetrics, QueueGauges
from rlguard.operator.runtime.queue import WorkQueue
from rlguard.operator.runtime.reflector import ChangeHandler, Key, Reflector

log = logging.getLogger(__name__)

Slim = Callable[[Json], Json]

#: How often a job is looked at of which something has not been listed yet.
UNSYNCED_SECONDS = 1.0
#: A watch that works shows something every minute; one that has shown nothing for longer than this does not.
DEAF_SECONDS = 90.0
#: After how long the process is called ready although a namespace has never been read.
GIVE_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which Lease elects the leader, and who asks for it."""

    namespace: str
    identity: str
    name: str
    timing: LeaseTiming


class Operator:
    """The whole operator. `run` blocks until `stop`; its result is the exit code."""

    def __init__(
        self,
        configuration: Configuration,
        config: OperatorConfig,
        lease: LeaseName,
        address: tuple[str, int],
        workers: int,
    ) -> None:
        self.metrics = OperatorMetrics()
        client = Client(configuration, self.metrics.request)
        self._queue: WorkQueue[Key] = WorkQueue(self.metrics, workers=workers)
        self._keeper = Keeper(client, lease.namespace)
        self._guards = GuardPolls(self._keeper, self._queue.add)
        scopes = config.namespaces or (None,)
        self._caches = _Caches(client, scopes, config, self._queue, self._guards, self._gone)
        evidence = EvidenceCollector(client, self._guards.evidence, self._queue.add)
        self._actuator = Actuator(client, config, self.metrics, evidence, self._keeper)
        gatherer = Gatherer(client, config, self._caches, self._guards)
        self._controller = Controller(gatherer, self._actuator, self._guards)
        elector = LeaderElector(client, lease.namespace, lease.name, lease.identity, lease.timing)
        self._manager = Manager(
            [*self._caches.reflectors, self._guards],
            self._queue,
            self._reconcile,
            elector,
            self.metrics,
            self._caches.workable,
            self._sweep,
        )
        caches = self._caches
        self.metrics.registry.register(QueueGauges(self._queue.depth, self._queue.working_for))
        gauges = JobGauges(caches.jobs, caches.states, caches.kinds, self._guards.reading)
        self.metrics.registry.register(gauges)
        self._elector = elector
        self._namespaces = config.namespaces or None
        self._health = HealthServer(address, self._manager.healthy, self.ready, self.metrics.registry)

    @property
    def port(self) -> int:
        """Port of the probes and metrics."""
        return self._health.port

    def run(self) -> int:
        """Run until stopped."""
        try:
            code = self._manager.run()
            if code == 0:  # who lost the Lease ends at once
                self._actuator.flush()
            return code
        finally:
            self._health.close()

    def ready(self) -> bool:
        """Whether it can do all that the operator before it did, so that a rollout may end that one."""
        return self._caches.ready()

    def stop(self) -> None:
        """Ask for a graceful end; safe in a signal handler."""
        self._manager.stop()

    def _sweep(self) -> None:
        """Look after watches that show nothing, and after what is kept of jobs that are gone."""
        self._caches.look_at_the_unread()
        if not (self._elector.is_leader and self._caches.all_synced()):
            return
        with suppress(ClusterError):  # the next time
            alive = {raw["metadata"]["uid"] for raw in self._caches.jobs()}
            self._keeper.sweep(alive, self._namespaces, JOBS)

    def _gone(self, job_uid: str) -> None:
        """Forget a job that was deleted."""
        self._controller.forget(job_uid)

    def _reconcile(self, key: Key) -> float | None:
        """One reconcile, once what the job needs has been listed; a latch waits for nothing."""
        raw = self._caches.job(key)
        if raw is None or self._caches.is_done(raw):
            return None
        latched = is_latched(raw) or self._has_latched(raw)
        unread = [] if latched else self._caches.unread(raw)
        if unread and not self._caches.is_late():
            return UNSYNCED_SECONDS
        return self._controller.reconcile(raw, unread)

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
        gone: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._guards = guards
        self._gone = gone
        self._scopes = tuple(scopes)
        self._started = time.monotonic()

        def watch(
            resource: Resource, changed: ChangeHandler, slim: Slim, selector: str = ""
        ) -> list[Reflector]:
            index = _job_uid if selector else None
            return [
                Reflector(client, resource, scope, changed, slim, selector, index) for scope in self._scopes
            ]

        self._jobs = watch(JOBS, self._job_changed, slim_job)
        self._pods = watch(PODS, self._owned_changed, slim_pod, names.UID_LABEL)
        self._workloads = {
            resource: watch(resource, self._owned_changed, slim, names.UID_LABEL)
            for resource, slim in _watched(config.kinds).items()
        }

    @property
    def reflectors(self) -> list[Reflector]:
        """All of them."""
        workloads = (one for many in self._workloads.values() for one in many)
        return [*self._jobs, *self._pods, *workloads]

    def all_synced(self) -> bool:
        """Whether every job there is, is known."""
        return all(one.synced for one in self._jobs)

    def is_done(self, raw: Json) -> bool:
        """Whether the run is over, and nothing of it is left that could need a hand."""
        metadata = raw["metadata"]
        guards = self.between(STATEFUL_SETS, metadata["namespace"], metadata["uid"])
        return is_over(raw) and not is_latched(raw) and not any(guards)

    def unread(self, raw: Json) -> list[str]:
        """The kinds by which this job is decided and that cannot be read now.

        They have not been listed yet, their watch has shown nothing for long, or they are no longer served. A
        list can be refused for long, as while the conversion webhook of a CRD is down: jobs of other kinds do
        not wait for it.
        """
        begun = bool((raw.get("status") or {}).get("workloadRef"))
        return sorted({kind for kind, one in self._needed(raw) if _is_deaf(one) or (begun and one.missing)})

    def _needed(self, raw: Json) -> Iterator[tuple[str, Reflector]]:
        """(kind, what is cached of it) of all by which this job is decided."""
        namespace, needed = raw["metadata"]["namespace"], {JOBS.kind: self._jobs, "Pod": self._pods}
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
        """Whether every namespace can be worked on; after a while one that can is enough."""
        return self.workable() and (self.is_late() or all(one.synced for one in self.reflectors))

    def states(self) -> Iterable[tuple[str, bool]]:
        """(namespace, "" for all; whether its jobs and pods can be read) of everything that is watched."""
        deaf = {one.namespace for one in (*self._jobs, *self._pods) if _is_deaf(one)}
        return [(scope or "", scope not in deaf) for scope in self._scopes]

    def kinds(self) -> Iterable[tuple[str, str, bool | None]]:
        """(namespace, "" for all; kind; whether it can be read) of what jobs are made of.

        None: the API server says that there is no such kind.
        """
        return [
            (one.namespace or "", kind.kind, None if one.missing else not _is_deaf(one))
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

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The workload as cached; only those with the operator's labels are."""
        return _first(reflector.get(namespace, name) for reflector in self._workloads.get(resource, ()))

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The pods of a job as cached."""
        return _of_job(self._pods, namespace, job_uid)

    def between(self, resource: Resource, namespace: str, job_uid: str) -> Iterable[Json]:
        """What carries a job's UID of this kind, as cached."""
        return _of_job(self._workloads.get(resource, ()), namespace, job_uid)

    def _job_changed(self, old: Json | None, new: Json | None) -> None:
        metadata = (new or old or {})["metadata"]
        if new is None:
            self._gone(metadata["uid"])
        if new is None or is_over(new):
            self._guards.forget(metadata["uid"])
        if is_only_a_report(old, new):
            return
        urgent = new is not None and is_latched(new) and "stop" not in (new.get("status") or {})
        self._queue.add((metadata["namespace"], metadata["name"]), urgent)

    def look_at_the_unread(self) -> None:
        """Have every job looked at of which a watch shows nothing, so that its status says so."""
        if any(_is_deaf(one) for one in self.reflectors):  # nearly never: no job need be read
            for raw in self.jobs():
                if not is_over(raw) and self.unread(raw):
                    self._queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]))

    def _owned_changed(self, old: Json | None, new: Json | None) -> None:
        metadata = (new or old or {})["metadata"]
        if name := (metadata.get("labels") or {}).get(names.JOB_LABEL):
            self._queue.add((metadata["namespace"], name))


def _is_deaf(reflector: Reflector) -> bool:
    """Whether it has no list yet, or the API server has shown nothing for longer than a watch takes."""
    return not reflector.synced or reflector.quiet_for() > DEAF_SECONDS


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
