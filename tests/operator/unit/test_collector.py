"""Evidence is collected beside the reconciles: the logs, and what is said where one cannot be had."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

from guard_operator.api.types import Spec, Status
from guard_operator.reconcile.evidence import EvidenceCollector
from guard_operator.reconcile.snapshot import Job, Pod, Snapshot
from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import TransportError

Json = dict[str, Any]
SPEC = {
    "template": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "train"}]}}},
    },
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
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
    """Gives the logs but those of `silent` containers and pods."""

    def __init__(self, *silent: str) -> None:
        self.made: list[Json] = []
        self._silent = silent

    def log_tail(self, namespace: str, pod: str, container: str, *_bounds: Any) -> str:
        if {pod, container} & {*self._silent}:
            raise TransportError("it is gone")
        return f"{namespace} {pod} {container}"

    def create(self, _resource: Any, _namespace: str, body: Json, _manager: str) -> None:
        self.made.append(body)


def collected(cluster: Cluster, snapshot: Snapshot = SNAPSHOT, final: bool = True) -> Json:
    """What was written."""
    done = threading.Event()
    collector = EvidenceCollector(
        cast(Client, cluster), told=lambda uid: {"history.jsonl": uid}, collected=lambda _key: done.set()
    )
    collector.collect(snapshot, final)
    assert done.wait(30)
    (body,) = cluster.made
    return dict(body["data"])


def test_both_logs_and_what_the_guard_told_are_there() -> None:
    data = collected(Cluster(), final=False)
    assert data["history.jsonl"] == SNAPSHOT.job.uid, "with what its guard told"
    assert (data["trainer.log"], data["guard.log"]) == ("ns run-0 train", "ns run-0 rlguard-guard")


def test_the_trainers_log_is_there_without_the_guards() -> None:
    data = collected(Cluster("rlguard-guard"), final=False)
    assert (data["trainer.log"], data["guard.log"]) == ("ns run-0 train", "not available: it is gone")


def test_at_the_end_a_log_that_cannot_be_had_is_said_to_be_missing() -> None:
    data = collected(Cluster("train"))
    assert (data["trainer.log"], data["guard.log"]) == ("not available: it is gone", "ns run-0 rlguard-guard")


def test_without_a_pod_both_logs_are_said_to_be_missing() -> None:
    data = collected(Cluster(), replace(SNAPSHOT, pods=()))
    assert data["trainer.log"] == data["guard.log"]
    assert data["guard.log"].startswith("not available: no pod is there")
