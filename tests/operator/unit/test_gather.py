"""The parts of gathering that need no server: heartbeats, disruptions, what a cache keeps, parsing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from guard_operator.adapters import ADAPTERS
from guard_operator.reconcile.gather import (
    HeartbeatClock,
    _pod,
    parse_job,
    slim_job,
    slim_pod,
    slim_workload,
)
from guard_operator.reconcile.snapshot import Disruption

ADAPTER = ADAPTERS[0]
Json = dict[str, Any]


def pod(status: Json | None = None, **metadata: Any) -> Json:
    labels = {"training.kubeflow.org/replica-index": "0", "rlguard.dev/job": "run"}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "labels": labels,
            "managedFields": [1],
            **metadata,
        },
        "spec": {
            "initContainers": [{"name": "rlguard-guard", "image": "g"}],
            "containers": [{"name": "pytorch"}],
        },
        "status": {"phase": "Running", "hostIP": "x", **(status or {})},
    }


def target(reason: str) -> Json:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


DISRUPTIONS: dict[str, tuple[Json, Disruption | None]] = {
    "none": ({}, None),
    "preempted": (target("PreemptionByScheduler"), Disruption.PREEMPTED),
    "evicted by the API": (target("EvictionByEvictionAPI"), Disruption.EVICTED),
    "node pressure": (target("TerminationByKubelet"), Disruption.EVICTED),
    "tainted node": (target("DeletionByTaintManager"), Disruption.NODE_LOST),
    "collected with its node": (target("DeletionByPodGC"), Disruption.NODE_LOST),
    "unknown reason": (target("Meteorite"), Disruption.EVICTED),
    "evicted, old style": ({"reason": "Evicted"}, Disruption.EVICTED),
    "node shut down": ({"reason": "NodeShutdown"}, Disruption.NODE_LOST),
    "another condition": ({"conditions": [{"type": "Ready", "status": "True"}]}, None),
    "target withdrawn": ({"conditions": [{"type": "DisruptionTarget", "status": "False"}]}, None),
    "out of memory": ({"phase": "Failed", "reason": "OOMKilled"}, None),
}


@pytest.mark.parametrize(("status", "expected"), DISRUPTIONS.values(), ids=DISRUPTIONS.keys())
def test_disruptions(status: Json, expected: Disruption | None) -> None:
    assert _pod(ADAPTER, slim_pod(pod(status))).disruption is expected


def test_a_slim_pod_says_the_same_as_the_pod() -> None:
    for raw in (pod(), pod(target("DeletionByPodGC")), pod(deletionTimestamp="2026-01-01T00:00:00Z")):
        assert _pod(ADAPTER, slim_pod(raw)) == _pod(ADAPTER, raw)
    assert "managedFields" not in slim_pod(pod())["metadata"]


def unscheduled(message: str) -> Json:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def container(name: str = "pytorch", *, key: str = "containerStatuses", **status: Any) -> Json:
    return {key: [{"name": name, **status}]}


def guard(**status: Any) -> Json:
    return container("rlguard-guard", key="initContainerStatuses", **status)


def waits(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


CRASH = {"terminated": {"exitCode": 2, "message": "INFO start\nrlguard guard: no split\n"}}
WAITING: dict[str, tuple[Json, tuple[str, str] | None]] = {
    "no node": (unscheduled("0/3 nodes"), ("Unschedulable", "0/3 nodes")),
    "no image": (
        container(state=waits("ImagePullBackOff", "not found")),
        ("ContainerWaiting", "container pytorch: ImagePullBackOff: not found"),
    ),
    "no Secret for the guard": (
        guard(state=waits("CreateContainerConfigError", 'secret "x" not found')),
        ("ContainerWaiting", 'container rlguard-guard: CreateContainerConfigError: secret "x" not found'),
    ),
    "the trainer crashes": (
        container(state=waits("CrashLoopBackOff")),
        ("ContainerWaiting", "container pytorch: CrashLoopBackOff"),
    ),
    "the guard has crashed": (
        guard(state=CRASH, restartCount=0),
        (
            "GuardCrashed",
            "the guard ended with exit code 2 (0 restarts): INFO start\nrlguard guard: no split",
        ),
    ),
    "the guard waits for its restart": (
        guard(state=waits("CrashLoopBackOff"), lastState={"terminated": {"exitCode": 137}}, restartCount=3),
        ("GuardCrashed", "the guard ended with exit code 137 (3 restarts)"),
    ),
    "the guard starts once more": (
        guard(state={"running": {}}, started=False, lastState=CRASH, restartCount=1),
        (
            "GuardCrashed",
            "the guard ended with exit code 2 (1 restarts): INFO start\nrlguard guard: no split",
        ),
    ),
    "the guard was ended because it did not get ready": (
        guard(
            state={"running": {}}, started=False, lastState={"terminated": {"exitCode": 0}}, restartCount=1
        ),
        ("GuardCrashed", "the guard ended with exit code 0 (1 restarts)"),
    ),
    "the guard is up again": (guard(state={"running": {}}, started=True, lastState=CRASH), None),
    "the guard has done its work": (guard(state={"terminated": {"exitCode": 0}}), None),
    "on the way": (container(state=waits("PodInitializing")), None),
    "over": ({"phase": "Failed", **guard(state=CRASH)}, None),
}


@pytest.mark.parametrize(("status", "expected"), WAITING.values(), ids=WAITING.keys())
def test_what_a_pod_waits_for(status: Json, expected: tuple[str, str] | None) -> None:
    found = _pod(ADAPTER, slim_pod(pod(status))).waiting
    assert (None if found is None else (found.reason, found.message)) == expected


def ended(message: str, key: str = "state", name: str = "rlguard-guard") -> Json:
    state = {"terminated": {"exitCode": 0, "message": message}}
    return {"initContainerStatuses": [{"name": "other", "state": {}}, {"name": name, key: state}]}


LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("key", ["state", "lastState"])
def test_the_last_word_of_a_guard_is_read(key: str) -> None:
    raw = pod(ended(json.dumps({"fire": LATCH}), key))
    found = _pod(ADAPTER, slim_pod(raw))
    assert found.fire is not None and found.fire.step == 4 and found.halt is None
    assert found == _pod(ADAPTER, raw)


@pytest.mark.parametrize(
    "status",
    [
        ended(""),
        ended("Traceback (most recent call last)"),
        ended('{"fire": {"code": "x"}}'),
        ended("[]"),
        ended(json.dumps({"fire": LATCH}), name="init"),
    ],
    ids=["none", "no JSON", "half a latch", "no object", "of another container"],
)
def test_what_is_no_last_word_says_nothing(status: Json) -> None:
    found = _pod(ADAPTER, pod(status))
    assert found.fire is None and found.halt is None


def test_only_index_0_with_a_guard_is_the_guarded_pod() -> None:
    assert _pod(ADAPTER, pod()).guarded
    other = pod(labels={"training.kubeflow.org/replica-index": "1"})
    assert not _pod(ADAPTER, other).guarded
    assert not _pod(ADAPTER, pod() | {"spec": {}}).guarded


def test_a_slim_workload_has_the_same_state() -> None:
    raw = {
        "metadata": {"name": "w", "uid": "u", "managedFields": [1]},
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": {}}},
    }
    slim = slim_workload(ADAPTER, raw)
    assert ADAPTER.state(slim) == ADAPTER.state(raw)
    assert "pytorchReplicaSpecs" not in slim["spec"]


def test_heartbeats_age_from_when_they_were_seen() -> None:
    now = [100.0]
    beats = HeartbeatClock(lambda: now[0])
    assert beats.age("job", "a") == 0
    now[0] += 7
    assert beats.age("job", "a") == 7
    assert beats.age("other", "a") == 0
    assert beats.age("job", "b") == 0
    beats.forget("job")
    now[0] += 7
    assert beats.age("job", "b") == 0


def raw_job(**status: Any) -> Json:
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
            "checkpoints": {"volume": "c"},
        },
    }
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", "managedFields": [1]}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_slim_job_is_the_same_job_without_the_detector_state() -> None:
    raw = raw_job(guard={"step": 3, "detectorState": "x" * 10_000}, phase="Running")
    slim, full = parse_job(slim_job(raw)), parse_job(raw)
    assert slim.spec == full.spec
    assert slim.status.guard is not None and slim.status.guard.step == 3
    assert slim.status.guard.detector_state is None
    assert raw["status"]["guard"]["detectorState"], "the original is left as it is"


def test_a_status_of_a_newer_version_is_read() -> None:
    job = parse_job(raw_job(guard={"step": 3, "novelty": 1}, another={"x": 1}))
    assert job.status.guard is not None and job.status.guard.step == 3


def test_a_spec_that_does_not_validate_names_the_field() -> None:
    raw = raw_job()
    raw["spec"]["guard"]["policy"] = {"heldoutGuard": {"emaAlpha": 2}}
    with pytest.raises(ValidationError, match="ema_alpha"):
        parse_job(raw)


def test_a_policy_of_another_version_does_not_take_the_kill_switch_away() -> None:
    ref = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run", "uid": "w"}
    raw = raw_job(workloadRef=ref)
    raw["spec"]["guard"]["policy"] = {"from": "the future"}
    assert parse_job(raw).status.workload_ref is not None
