"""The operator over a fleet in virtual time: a silent guard is met, and no other run stopped.

Real are caches, queue, clock of heartbeats and controller; played are the API server, its watches and the
guards. By a seed, faults follow one another: a watch that passes nothing on (also for so long that it is
called broken), lists and watches that are refused, guards that do not reach the API server, workers that are
slow, news that comes late.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from guard_operator.reconcile.heartbeats import HeartbeatClock

from guard_operator import app
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.decision import Decision, Delete
from guard_operator.reconcile.gather import Gatherer
from guard_operator.reconcile.memory import RunMemory
from guard_operator.reconcile.snapshot import Snapshot
from guard_operator.runtime import reflector
from guard_operator.runtime.client import Client, Resource
from guard_operator.runtime.errors import ApiError
from guard_operator.runtime.lease import LeaderElector
from guard_operator.runtime.manager import SWEEP_SECONDS, Manager
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key, Reflector, Timing

Json = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
GUARDS, SILENT = 12, "run-0"
REPORT_SECONDS, LIMIT = 15, 30
#: How long after the last fault the silent guard may go on: `integration/test_silence.py` gives it as long.
MEET_SECONDS = 180


def labels(name: str) -> Json:
    return {"rlguard.dev/job": name, "rlguard.dev/job-uid": name}


def a_job(name: str) -> Json:
    ref = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name, "uid": f"w-{name}"}
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "c"},
        },
        "onSilence": {"afterSeconds": LIMIT, "action": "Stop"},
    }
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": spec,
        "status": {"workloadRef": ref},
    }


def a_workload(name: str) -> Json:
    owner = {"apiVersion": "x/v1", "kind": "X", "name": name, "uid": name, "controller": True}
    meta = {"name": name, "namespace": "ns", "uid": f"w-{name}", "labels": labels(name)}
    conditions = [{"type": "Running", "status": "True"}]
    return {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": {},
        "status": {"conditions": conditions},
    }


def a_pod(name: str) -> Json:
    owner = {"apiVersion": "x/v1", "kind": "X", "name": name, "uid": f"w-{name}", "controller": True}
    rank = {
        f"training.kubeflow.org/replica-{key}": value for key, value in (("index", "0"), ("type", "master"))
    }
    meta = {"name": f"{name}-master-0", "namespace": "ns", "uid": f"p-{name}", "labels": labels(name) | rank}
    guard = {"name": "rlguard-guard", "started": True, "state": {"running": {"startedAt": START.isoformat()}}}
    return {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": {"initContainers": [{"name": "rlguard-guard"}], "containers": [{"name": "pytorch"}]},
        "status": {"phase": "Running", "initContainerStatuses": [guard]},
    }


class Fleet:
    """See the module. It is the client of its operator, too."""

    def __init__(self, seed: int) -> None:
        self.now, self._random = 0.0, random.Random(seed)
        self.frozen = self.refused = self.unheard = False
        self.late, self.pace = 0.0, 100
        self.stopped: dict[str, float] = {}
        self.silent: set[str] = set()
        self._due = {f"run-{n}": self._random.uniform(0, REPORT_SECONDS) for n in range(GUARDS)}
        self._there = {name: a_job(name) for name in self._due}
        self._version, self._steps = 0, 0
        self._news: list[tuple[float, Json]] = []

        config, metrics = OperatorConfig("guard:1"), OperatorMetrics()
        self._queue: WorkQueue[Key] = WorkQueue(metrics, lambda: self.now)
        beats, client = HeartbeatClock(lambda: self.now), cast(Client, self)
        self._caches = app._Caches(client, ("ns",), config, self._queue, beats, RunMemory(), Timing())
        gatherer = Gatherer(client, config, self._caches, beats, self._utc)
        self._controller = Controller(gatherer, cast(Actuator, self), RunMemory(), self._utc)
        self._manager = Manager(
            [],
            self._queue,
            self._reconcile,
            cast(LeaderElector, None),
            metrics,
            None,
            lambda: True,
            lambda: None,
        )
        (self._watch,) = self._caches._jobs
        for one in self._caches.reflectors:
            one._synced.set()
        for name in self._due:
            self._show(
                self._caches._workloads[Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")][0],
                a_workload(name),
            )
            self._show(self._caches._pods[0], a_pod(name))
            self._write(name, {})

    def _utc(self) -> datetime:
        return START + timedelta(seconds=self.now)

    # -- the API server ----------------------------------------------------------------------------------

    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        if resource.kind == "GuardedTrainingJob":
            return copy.deepcopy(self._there[name])
        return a_workload(name)

    def list(self, resource: Resource, _namespace: str, query: Mapping[str, str]) -> Json:
        if self.refused:
            raise ApiError(500, "InternalError", "injected")
        name = query["labelSelector"].partition("=")[2]
        return {"items": [a_pod(name)] if resource.kind == "Pod" else []}

    def actuate(self, snapshot: Snapshot, decision: Decision) -> str:
        """Write the status, fenced as the real one is; note who is stopped."""
        name, report = snapshot.job.name, decision.report
        raw = self._there[name]
        conditions = [one.model_dump(mode="json", by_alias=True) for one in report.conditions]
        told = {"phase": str(report.phase), "conditions": conditions}
        if any(raw["status"].get(key) != value for key, value in told.items()):
            if snapshot.job.resource_version != raw["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the cache is behind")
            self._write(name, told)
        if any(isinstance(action, Delete) for action in decision.actions):
            self.stopped.setdefault(name, self.now)
        return ""

    def _write(self, name: str, status: Json) -> None:
        raw = self._there[name]
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        raw["status"] |= status
        self._news.append((self.now + self._random.uniform(0, self.late), copy.deepcopy(raw)))

    def _report(self) -> None:
        for name, due in self._due.items():
            if due <= self.now:
                self._due[name] = self.now + REPORT_SECONDS
                if not self.unheard and name not in self.silent:
                    self._steps += 1
                    guard = {
                        "heartbeat": f"{self._utc():%Y-%m-%dT%H:%M:%SZ}",
                        "step": self._steps,
                        "level": "healthy",
                    }
                    self._write(name, {"guard": guard})

    # -- the operator ------------------------------------------------------------------------------------

    def _reconcile(self, key: Key) -> float | None:
        raw = self._caches.job(key)
        if self._random.random() < 0.5:
            self._deliver()  # news may come between the look into a cache and what follows from it
        return self._controller.reconcile(raw)

    def _deliver(self) -> None:
        """What a watch passes on: in order, and not before its time."""
        while self._news and self._news[0][0] <= self.now and not (self.frozen or self.refused):
            self._show(self._watch, self._news.pop(0)[1])

    def _show(self, of: Reflector, raw: Json) -> None:
        of._fold({"type": "MODIFIED", "object": {"metadata": {}, **copy.deepcopy(raw)} | _versioned(raw)})
        of._shown_at = self.now

    def run(self, seconds: float) -> None:
        """So many seconds pass."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self._report()
            self._deliver()
            if self.now % SWEEP_SECONDS == 0:
                self._caches.look_at_the_unheard()
            for _ in range(self.pace):
                self._queue._collect_due()
                if not self._queue.depth():
                    break
                key = self._queue.take()
                assert key is not None
                self._manager._one(key)
                self._queue.done(key)

    # -- faults ------------------------------------------------------------------------------------------

    def fault(self) -> None:
        """One of those that the module names, for a while."""
        kind = self._random.choice(["frozen", "broken", "refused", "unheard", "slow", "late", "none"])
        seconds = self._random.uniform(20, 80)
        self.frozen = kind in {"frozen", "broken"}
        self.refused, self.unheard = kind == "refused", kind == "unheard"
        self.pace, self.late = (1 if kind == "slow" else 100), (25.0 if kind == "late" else 0.0)
        self.run(seconds + (100 if kind == "broken" else 0))
        self.heal()

    def heal(self) -> None:
        self.frozen = self.refused = self.unheard = False
        self.pace, self.late = 100, 0.0


def _versioned(raw: Json) -> Json:
    return {"metadata": {"resourceVersion": "0", **raw["metadata"]}}


@pytest.fixture
def fleet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet of a seed; the reflectors have its time."""
    made: list[Fleet] = []
    clock = SimpleNamespace(monotonic=lambda: made[0].now if made else 0.0)
    monkeypatch.setattr(reflector, "time", clock)
    made.append(Fleet(request.param))
    return made[0]


@pytest.mark.parametrize("fleet", range(12), indirect=True)
def test_a_silent_guard_is_met_and_no_healthy_run_is_stopped(fleet: Fleet) -> None:
    fleet.run(60)
    fleet.fault()
    fleet.run(60)
    fleet.silent = {SILENT}
    fleet.fault()
    fleet.run(60)
    fleet.fault()
    assert set(fleet.stopped) <= {SILENT}
    fleet.run(MEET_SECONDS)
    assert set(fleet.stopped) == {SILENT}


@pytest.mark.parametrize("fleet", range(3), indirect=True)
def test_without_a_fault_a_silent_guard_is_met_within_its_limit(fleet: Fleet) -> None:
    """Its last report may be as old as the time between two."""
    fleet.run(200)
    fleet.silent = {SILENT}
    fleet.run(REPORT_SECONDS + LIMIT + 5)
    assert set(fleet.stopped) == {SILENT}


@pytest.mark.parametrize("fleet", [2, 32], indirect=True)
def test_guards_that_fall_silent_together_while_their_news_is_late_are_not_told_apart(fleet: Fleet) -> None:
    """The last reports of some are shown long before those of others, as if these had gone on."""
    fleet.run(60)
    fleet.late = 25.0
    fleet.run(39)
    fleet.heal()
    fleet.unheard = True
    fleet.run(34)
    fleet.heal()
    fleet.run(100)
    assert fleet.stopped == {}
    fleet.silent = {SILENT}
    fleet.run(MEET_SECONDS)
    assert set(fleet.stopped) == {SILENT}
