"""Puts the operator together: caches, queue, controller, Lease, metrics. No decision is made here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from kubernetes.client import Configuration

from guard_operator.adapters import ADAPTERS, Adapter
from guard_operator.api import names
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import JOBS, Actuator
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.gather import Gatherer, HeartbeatClock, slim_job, slim_pod, slim_workload
from guard_operator.runtime.client import PODS, Client, Json, Resource
from guard_operator.runtime.health import HealthServer
from guard_operator.runtime.lease import LeaderElector, LeaseTiming
from guard_operator.runtime.manager import Manager, ManagerConfig
from guard_operator.runtime.metrics import Metrics
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key, Reflector, Timing


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
        self.metrics = Metrics()
        client = Client(configuration, self.metrics.request)
        self._beats = HeartbeatClock()
        self._queue: WorkQueue[Key] = WorkQueue(self.metrics)
        self._scopes = config.namespaces or (None,)
        self._caches = _Caches(client, self._scopes, self._queue, self._beats, timing or Timing())
        controller = Controller(
            Gatherer(client, config, self._caches, self._beats), Actuator(client, config, self.metrics)
        )
        elector = LeaderElector(client, lease.namespace, lease.name, lease.identity, lease.timing)
        self._manager = Manager(
            self._caches.reflectors,
            self._queue,
            lambda key: controller.reconcile(self._caches.job(key)),
            elector,
            self.metrics,
            manager,
        )
        self.metrics.collect_live(self._queue.depth, self._queue.working_for, self._caches.evaluation_times)
        self._health = HealthServer(
            address, self._manager.healthy, self._manager.ready, self.metrics.registry
        )

    @property
    def port(self) -> int:
        """Port of the probes and metrics."""
        return self._health.port

    def run(self) -> int:
        """Run until stopped."""
        try:
            return self._manager.run()
        finally:
            self._health.close()

    def stop(self) -> None:
        """Ask for a graceful end; safe in a signal handler."""
        self._manager.stop()


class _Caches:
    """The reflectors of jobs, pods and workloads, one set for each namespace or one for all of them."""

    def __init__(
        self,
        client: Client,
        scopes: Iterable[str | None],
        queue: WorkQueue[Key],
        beats: HeartbeatClock,
        timing: Timing,
    ) -> None:
        self._queue = queue
        self._beats = beats
        self._jobs: list[Reflector] = []
        self._pods: list[Reflector] = []
        self._workloads: dict[Resource, list[Reflector]] = {adapter.resource: [] for adapter in ADAPTERS}
        for scope in scopes:
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
            for adapter in ADAPTERS:
                self._workloads[adapter.resource].append(
                    self._workload_reflector(client, scope, adapter, timing)
                )

    def _workload_reflector(
        self, client: Client, scope: str | None, adapter: Adapter, timing: Timing
    ) -> Reflector:
        return Reflector(
            client,
            adapter.resource,
            scope,
            self._owned_changed,
            lambda raw: slim_workload(adapter, raw),
            selector=names.UID_LABEL,
            timing=timing,
        )

    @property
    def reflectors(self) -> list[Reflector]:
        """All of them."""
        return [*self._jobs, *self._pods, *(one for many in self._workloads.values() for one in many)]

    def job(self, key: Key) -> Json | None:
        """The job as cached."""
        return _first(reflector.get(*key) for reflector in self._jobs)

    def workload(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The workload as cached; only those with the operator's labels are."""
        return _first(reflector.get(namespace, name) for reflector in self._workloads[resource])

    def pods(self, namespace: str, job_uid: str) -> Iterable[Json]:
        """The pods of a job as cached."""
        for reflector in self._pods:
            for pod in reflector.indexed(job_uid):
                if pod["metadata"]["namespace"] == namespace:
                    yield pod

    def evaluation_times(self) -> Iterable[tuple[str, str, datetime]]:
        """(namespace, name, time of the last evaluation) of every running job."""
        for reflector in self._jobs:
            for raw in reflector.items():
                status = raw.get("status") or {}
                at = (status.get("guard") or {}).get("lastEvaluationTime")
                if status.get("phase") == "Running" and at:
                    metadata = raw["metadata"]
                    yield metadata["namespace"], metadata["name"], datetime.fromisoformat(at)

    def _job_changed(self, old: Json | None, new: Json | None) -> None:
        raw = new or old
        assert raw is not None
        if new is None:
            self._beats.forget(raw["metadata"]["uid"])
        self._queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]))

    def _owned_changed(self, old: Json | None, new: Json | None) -> None:
        raw = new or old
        assert raw is not None
        name = (raw["metadata"].get("labels") or {}).get(names.JOB_LABEL)
        if name:
            self._queue.add((raw["metadata"]["namespace"], name))


def _job_uid(raw: Json) -> str:
    return str((raw["metadata"].get("labels") or {}).get(names.UID_LABEL, ""))


def _first(found: Iterable[Json | None]) -> Json | None:
    return next((one for one in found if one is not None), None)
