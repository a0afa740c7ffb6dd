"""Evidence is collected beside the reconciles: both logs at once, for their pod may go at any moment."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from guard_operator.api.types import ConditionStatus, Phase, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.collector import EvidenceCollector, seconds_of_try
from guard_operator.reconcile.decision import CaptureEvidence, Report
from guard_operator.reconcile.snapshot import Job, Pod, Snapshot
from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import TransportError

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = {
    "template": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "train"}]}}},
    },
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}
SNAPSHOT = Snapshot(
    Job("run", "ns", "0123456789", 1, "1", {}, Spec.model_validate(SPEC), Status()),
    pods=(
        Pod("run-0", "p", guarded=True, phase="Running", rank0=True),
        Pod("run-worker-0", "w", guarded=False, phase="Running"),
    ),
    trainer="train",
)


class Cluster:
    """Gives a log only while the other one is asked for, too; of `silent` containers and pods it has none."""

    def __init__(self, *silent: str) -> None:
        self.made: list[Json] = []
        self.job: Json | None = None
        self._silent = silent
        self._both = threading.Barrier(2, timeout=30)

    def get(self, *_place: Any) -> Json | None:
        return self.job

    def log_tail(self, namespace: str, pod: str, container: str, *_bounds: Any) -> str:
        self._both.wait()
        if {pod, container} & {*self._silent}:
            raise TransportError("it is gone")
        return f"{namespace} {pod} {container}"

    def create(self, _resource: Any, _namespace: str, body: Json, _manager: str) -> None:
        self.made.append(body)


def collected(cluster: Cluster, final: bool, *replacing: Pod) -> bool:
    """Whether it was written."""
    snapshot = replace(SNAPSHOT, pods=(*SNAPSHOT.pods, *replacing))
    return EvidenceCollector(cast(Client, cluster))._write(snapshot, final, 1.0) is not None


def test_both_logs_are_asked_for_at_once() -> None:
    cluster = Cluster()
    assert collected(cluster, final=False)
    data = cluster.made[0]["data"]
    assert (data["trainer.log"], data["guard.log"]) == ("ns run-0 train", "ns run-0 rlguard-guard")


def test_the_trainers_log_is_there_without_the_guards() -> None:
    cluster = Cluster("rlguard-guard")
    assert collected(cluster, final=False)
    data = cluster.made[0]["data"]
    assert (data["trainer.log"], data["guard.log"]) == ("ns run-0 train", "not available: it is gone")


@pytest.mark.parametrize("final", [False, True])
def test_without_the_trainers_log_nothing_is_written_before_the_end(final: bool) -> None:
    cluster = Cluster("train")
    assert collected(cluster, final) is final
    said = [(body["data"]["trainer.log"], body["data"]["guard.log"]) for body in cluster.made]
    assert said == [("not available: it is gone", "ns run-0 rlguard-guard")] * final


def test_without_a_pod_both_logs_are_said_to_be_missing() -> None:
    cluster = Cluster()
    snapshot = replace(SNAPSHOT, pods=())
    collector = EvidenceCollector(cast(Client, cluster))
    assert collector._write(snapshot, False, 1.0) is None and cluster.made == []
    assert collector._write(snapshot, True, 1.0) is not None
    data = cluster.made[0]["data"]
    assert data["trainer.log"] == data["guard.log"]
    assert data["guard.log"].startswith("not available: no pod is there")


def test_a_log_has_twice_the_time_at_each_try() -> None:
    """A busy node that never answers within a second would else be asked in vain until its pods are gone."""
    asked: queue.SimpleQueue[float] = queue.SimpleQueue()

    class Slow(Cluster):
        def log_tail(self, _namespace: str, _pod: str, container: str, _bytes: int, timeout: float) -> str:
            if container == "train":
                asked.put(timeout)
            if timeout < 7.0:
                raise TransportError("no response in time")
            return "at last"

    cluster, done = Slow(), threading.Event()
    collector = EvidenceCollector(cast(Client, cluster), lambda _: done.set())
    had: list[float] = []
    while len(had) < 3:
        collector.collect(SNAPSHOT, False)
        had.append(asked.get(timeout=30))
        while len(had) < 3 and SNAPSHOT.job.uid in collector._under_way:
            time.sleep(0.001)
    assert done.wait(30) and had == [3.0, 6.0, 8.0]
    assert cluster.made[0]["data"]["trainer.log"] == "at last"
    assert seconds_of_try(50) == 8.0 and not collector._tries


def test_a_pod_that_never_ran_hides_no_log() -> None:
    """A Job's controller with an old cache replaces the pod that is being stopped."""
    cluster = Cluster("run-1")
    assert collected(cluster, False, Pod("run-1", "q", guarded=True, phase="Pending", rank0=True))
    data = cluster.made[0]["data"]
    assert (data["trainer.log"], data["guard.log"]) == ("ns run-0 train", "ns run-0 rlguard-guard")


def test_of_two_that_ran_the_newest_is_asked() -> None:
    cluster = Cluster()
    assert collected(cluster, False, Pod("run-1", "q", guarded=True, phase="Running", rank0=True))
    assert cluster.made[0]["data"]["trainer.log"] == "ns run-1 train"


def test_a_guard_apart_that_waits_for_a_node_hides_no_log_of_the_trainer() -> None:
    cluster = Cluster("run-guard-0")
    waits = Pod("run-guard-0", "g", guarded=True, phase="Pending")
    trains = Pod("run-0", "p", guarded=False, phase="Running", rank0=True)
    snapshot = replace(SNAPSHOT, pods=(waits, trains))
    assert EvidenceCollector(cast(Client, cluster))._write(snapshot, False, 1.0) is not None
    assert cluster.made[0]["data"]["trainer.log"] == "ns run-0 train"


END = ConditionStatus(
    type="Disrupted", status="True", reason="WorkloadDeleted", message="m", last_transition_time=NOW
)


@pytest.mark.parametrize("there", [True, False])
def test_how_it_ended_is_kept_as_it_was_decided(there: bool) -> None:
    """The end of a run that nobody stopped is written into its status after the evidence is asked for."""
    cluster, asked = Cluster(), list[tuple[Snapshot, bool]]()
    status = {"guard": {"reason": "of now"}, "conditions": []}
    metadata = {
        "name": "run",
        "namespace": "ns",
        "uid": "0123456789",
        "resourceVersion": "2",
        "generation": 1,
    }
    cluster.job = {"metadata": metadata, "spec": SPEC, "status": status} if there else None

    class Asked:
        def collect(self, snapshot: Snapshot, final: bool) -> None:
            asked.append((snapshot, final))

    none = cast(Any, None)
    acts = Actuator(cast(Client, cluster), OperatorConfig("guard:1"), none, cast(Any, Asked()), none)
    acts._capture(SNAPSHOT, CaptureEvidence(final=True), Report(Phase.DISRUPTED, (END,)))
    [(snapshot, final)] = asked
    assert EvidenceCollector(cast(Client, cluster))._write(snapshot, final, 1.0) is not None
    data = cluster.made[0]["data"]
    assert [one["reason"] for one in json.loads(data["conditions.json"])] == ["WorkloadDeleted"]
    assert ("of now" in data["verdict.json"]) is there
    assert SNAPSHOT.job.status.conditions == []
