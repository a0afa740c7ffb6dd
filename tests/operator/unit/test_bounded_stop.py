"""Every stop is bounded: whatever refuses or hangs, the pods of a fired run are told to end within this time.

A run that fires, in virtual time, under an operator whose parts are real but for its caches. Nobody acts on
the stop of the workload; the API server is played, with the faults of one kind of request, and whoever else
writes the job.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from guard_operator.api.names import GUARD_CONTAINER
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.collector import EvidenceCollector
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.heartbeats import HeartbeatClock
from guard_operator.reconcile.parse import JOBS
from guard_operator.reconcile.recorder import EventRecorder
from guard_operator.runtime.client import REQUEST_SECONDS, Client, Resource
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key

Json = dict[str, Any]
KEY = ("ns", "run")
START = datetime(2026, 1, 1, tzinfo=UTC)
HUNG = TransportError("no answer")

#: What docs/operator.md promises: from the fire to the first request that the pods end, seconds.
BOUND_SECONDS = 180.0
#: The same where the API server answers at once.
PROMPT_SECONDS = 60.0
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}
WORKLOAD = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}


def refused(status: int, after: float | None = None) -> ApiError:
    """`after`: seconds that the server asks to wait."""
    return ApiError(status, "Refused", "somebody says no", after)


def owner(uid: str) -> list[Json]:
    return [{"apiVersion": "x/v1", "kind": "X", "name": "run", "uid": uid, "controller": True}]


def a_job(**status: Any) -> Json:
    spec = {
        "template": {**WORKLOAD, "spec": {}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "c"},
        },
    }
    ref = {"workloadRef": {**WORKLOAD, "name": "run", "uid": "w"}, "phase": "Running"}
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1}
    return {"metadata": metadata, "spec": spec, "status": {**ref, **status}}


def a_pod(**container: Any) -> Json:
    labels = {"index": "0", "type": "master"}
    metadata = {
        "name": "run-master-0",
        "uid": "p",
        "labels": {f"training.kubeflow.org/replica-{key}": value for key, value in labels.items()},
        "ownerReferences": owner("w"),
    }
    status = {"phase": "Running", "initContainerStatuses": [{"name": GUARD_CONTAINER, **container}]}
    return {"metadata": metadata, "spec": {"initContainers": [{"name": GUARD_CONTAINER}]}, "status": status}


class World:
    """The API server and its caches, which follow at once; and what a run of the operator does in it.

    `faults`: (verb, kind) -> what comes of such a request; one without an answer takes its time. What others
    do to the job is done `before_writes` of its status, and `all_the_time`.
    """

    def __init__(self, job: Json, faults: Mapping[tuple[str, str], ClusterError]) -> None:
        self.now, self.job, self.pod = 0.0, job, a_pod()
        self.made: Json = {
            "metadata": {"name": "run", "namespace": "ns", "uid": "w", "ownerReferences": owner("u")},
            "spec": {},
            "status": {"conditions": [{"type": "Running", "status": "True"}]},
        }
        self.faults = faults
        self.before_writes: Callable[[Json], None] = nothing
        self.all_the_time: Callable[[Json], None] = nothing
        self.read: list[str] = []
        self.asked: dict[str, float] = {}
        self._queue: WorkQueue[Key] = WorkQueue(OperatorMetrics(), lambda: self.now)
        client, config = cast(Client, self), OperatorConfig("guard:1")
        self.metrics = metrics = OperatorMetrics()
        beats = HeartbeatClock(lambda: self.now)
        none = cast(EvidenceCollector, self)
        events = cast(EventRecorder, self)
        controller = Controller(
            Gatherer(client, config, cast(Caches, self), beats, self._utc),
            Actuator(client, config, metrics, none, events, self._utc),
            self._utc,
        )
        self._controller = controller

    def run(self, seconds: float) -> World:
        """So many seconds pass after the fire."""
        self._queue.add(KEY, urgent=True)
        while self.now < seconds:
            if (key := self._queue.take(wait=False)) is not None:
                self._look(key)
                self._queue.done(key)
            self.now += 0.25
            self.all_the_time(self.job)
        return self

    def _look(self, key: Key) -> None:
        """One look of the operator, and when the next one is due."""
        try:
            again = self._controller.reconcile(copy.deepcopy(self.job))
        except ClusterError as error:
            self._queue.retry(key, getattr(error, "retry_after", None))
            return
        self._queue.forget(key)
        if again is not None:
            self._queue.add_after(key, again)

    def _utc(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def _asked(self, verb: str, resource: Resource) -> None:
        fault = self.faults.get((verb, resource.kind))
        if isinstance(fault, TransportError):
            self.now += REQUEST_SECONDS
        elif verb in {"patch", "delete"}:
            self.asked.setdefault(f"{verb} {resource.kind}", self.now)
        if fault is not None:
            raise fault

    # -- Caches ------------------------------------------------------------------------------------------

    def quiet_for(self, _namespace: str) -> float:
        return 0.0

    def workload(self, *_of: Any) -> Json:
        return copy.deepcopy(self.made)

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return [copy.deepcopy(self.pod)]

    def between(self, *_of: Any) -> list[Json]:
        return []

    # -- Client ------------------------------------------------------------------------------------------

    def get(self, resource: Resource, _namespace: str, _name: str, **_how: object) -> Json | None:
        self.read.append(resource.kind)
        self._asked("get", resource)
        return copy.deepcopy(self.job if resource.kind == JOBS.kind else self.made)

    def list(self, resource: Resource, _namespace: str, _query: Json) -> Json:
        self._asked("list", resource)
        return {"items": [copy.deepcopy(self.pod)] if resource.kind == "Pod" else []}

    def merge(
        self, resource: Resource, _namespace: str, _name: str, patch: Json, _manager: str, sub: str = ""
    ) -> None:
        self._asked("patch" if not sub else "record", resource)
        if sub:
            self.job["status"].setdefault("guard", {}).update(patch["status"]["guard"])
            self._written()

    def delete(self, resource: Resource, _namespace: str, _name: str, _uid: str, _grace: int = 0) -> None:
        self._asked("delete", resource)

    def apply(self, resource: Resource, body: Json, _manager: str, sub: str) -> None:
        self.before_writes(self.job)
        self._asked(sub, resource)
        if body["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "somebody else has written it")
        self.job["status"] |= body["status"]
        self._written()

    def _written(self) -> None:
        touch(self.job)
        self._queue.add(KEY)

    # -- the rest of an actuator -------------------------------------------------------------------------

    def collect(self, *_of: Any) -> str:
        return "evidence"

    def record(self, *_event: Any) -> None:
        """As a recorder of Events."""


def nothing(_job: Json) -> None:
    """Nobody else writes the job."""


def touch(job: Json) -> None:
    """As any write does."""
    job["metadata"]["resourceVersion"] = str(int(job["metadata"]["resourceVersion"]) + 1)


FIRED = {"guard": {"heartbeat": "2026-01-01T00:00:00Z", "fire": LATCH}}
HALTED = {"conditions": [{"type": "Halted", "status": "True", "reason": "GuardSilent", "message": "",
                          "lastTransitionTime": "2026-01-01T00:00:00Z"}]}  # fmt: skip
POD, RUN, JOB = "Pod", "PyTorchJob", JOBS.kind
READS = (("list", POD), ("get", RUN), ("get", JOB))
STOPS = (("patch", RUN), ("delete", RUN))


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize(
    "requests",
    [(), READS[:2], READS[2:], STOPS, (*READS[:2], *STOPS)],
    ids=lambda requests: ", ".join(" ".join(one) for one in requests) or "none",
)
def test_what_is_refused_holds_up_no_stop(requests: tuple[tuple[str, str], ...], status: int) -> None:
    asked = World(a_job(**FIRED), dict.fromkeys(requests, refused(status))).run(PROMPT_SECONDS).asked
    assert "delete Pod" in asked and asked["patch PyTorchJob"] == 0.0


@pytest.mark.parametrize(
    "requests",
    [READS[:1], READS[:2], READS[2:], STOPS, (*READS[:2], *STOPS)],
    ids=lambda requests: ", ".join(" ".join(one) for one in requests),
)
def test_what_hangs_holds_up_no_stop_for_long(requests: tuple[tuple[str, str], ...]) -> None:
    assert "delete Pod" in World(a_job(**FIRED), dict.fromkeys(requests, HUNG)).run(BOUND_SECONDS).asked


def test_a_server_that_never_has_time_holds_up_no_stop_for_long() -> None:
    """Each time with the longest wait that it may ask for."""
    asked = World(a_job(**FIRED), dict.fromkeys(STOPS, refused(429, after=86400.0))).run(BOUND_SECONDS).asked
    assert asked["patch PyTorchJob"] == 0.0 and "delete Pod" in asked


def test_a_halt_is_counted_once_and_by_its_reason_and_so_is_a_fire() -> None:
    """A guard whose run was stopped is no longer silent, so no gauge tells of it."""
    counted = {"halt": ("rlguard_halts_total", "GuardHalt"), "fire": ("rlguard_fires_total", "HackingGap")}
    for latch, (name, reason) in counted.items():
        world = World(a_job(guard={"heartbeat": STAMP, latch: LATCH}), {}).run(PROMPT_SECONDS)
        found = [
            (sample.name, sample.labels["reason"], sample.value)
            for metric in world.metrics.registry.collect()
            for sample in metric.samples
            if sample.name in {counter for counter, _ in counted.values()}
        ]
        assert found == [(name, reason, 1.0)]


@pytest.mark.parametrize("status", [FIRED, HALTED], ids=["fired", "halted"])
def test_who_writes_faster_than_a_cache_follows_holds_up_no_stop(status: Json) -> None:
    """No write of the status succeeds."""
    world = World(a_job(**status), {})
    world.before_writes = touch
    assert "delete Pod" in world.run(BOUND_SECONDS).asked


STAMP = "2025-12-31T00:00:00Z"
SEEN_EMPTY = {"method": "Stop", "requestedAt": STAMP, "emptySince": STAMP}


def test_a_run_that_is_resumed_after_its_stop_is_stopped_though_nothing_can_be_written() -> None:
    ended = {"type": "Stopped", "status": "True", "reason": "NoPodsLeft", "message": ""}
    stop = SEEN_EMPTY | {"stoppedAt": STAMP}
    world = World(a_job(**FIRED, stop=stop, conditions=[ended | {"lastTransitionTime": STAMP}]), {})
    world.before_writes = touch
    assert "delete Pod" in world.run(BOUND_SECONDS).asked


def test_what_must_stop_is_written_down_beside_who_writes_all_the_time() -> None:
    """Between every look of the operator and its write somebody else has changed the job."""
    world = World(a_job(**FIRED), {})
    others = itertools.count()
    world.before_writes = lambda job: touch(job) if next(others) % 2 == 0 else None
    world.run(0.25)
    assert world.job["status"]["stop"]["method"] == "Stop" and next(others) == 2


def test_of_a_run_that_goes_on_nothing_is_written_that_was_decided_of_an_older_version() -> None:
    world = World(a_job(), {})
    world.before_writes = touch
    world.run(1.0)
    assert "conditions" not in world.job["status"] and JOB not in world.read


@pytest.mark.parametrize("refusal", [403, 422, 500])
@pytest.mark.parametrize("status", [HALTED, {}], ids=["halted", "goes on"])
def test_a_last_word_that_is_refused_holds_up_no_stop(status: Json, refusal: int) -> None:
    world = World(a_job(**status), {("record", JOB): refused(refusal)})
    ended = {"exitCode": 0, "message": json.dumps({"fire": LATCH})}
    world.pod = a_pod(state={"terminated": ended})
    assert "delete Pod" in world.run(PROMPT_SECONDS).asked
    told = {one["type"]: (one["status"], one["reason"]) for one in world.job["status"]["conditions"]}
    if not status:
        assert told["Fired"] == ("True", "HackingGap")


def test_a_last_word_that_is_taken_at_last_stands_in_the_status() -> None:
    world = World(a_job(**HALTED), {("record", JOB): refused(500)})
    world.pod = a_pod(state={"terminated": {"exitCode": 0, "message": json.dumps({"fire": LATCH})}})
    assert "guard" not in world.run(5.0).job["status"]
    world.faults = {}
    assert world.run(10.0).job["status"]["guard"]["fire"]["code"] == LATCH["code"]
