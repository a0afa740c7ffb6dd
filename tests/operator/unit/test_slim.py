"""A decision over what is cached is the decision over the whole object."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_operator.adapters import ADAPTERS
from guard_operator.api import names
from guard_operator.reconcile.gather import _Owner, _pod, _workload
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.slim import slim_job, slim_pod, slim_workload
from guard_operator.runtime.packing import Packer, compact_json

Json = dict[str, Any]
STAMP = "2026-01-01T00:00:00Z"
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": STAMP}
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}

words = st.sampled_from(["", "ImagePullBackOff", "NodeNotReady", "ContainerCreating", "Evicted", "a\nb\nend"])
truth = st.sampled_from(["True", "False", "Unknown"])
stamps = st.sampled_from([STAMP, "2026-01-01T00:00:30Z"])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


ended = some(
    exitCode=st.sampled_from([0, 1, 137]),
    message=st.sampled_from(["", "bye", json.dumps({"fire": LATCH}), json.dumps({"halt": LATCH})]),
)
state = some(waiting=some(reason=words, message=words), running=some(startedAt=stamps), terminated=ended)
status_of_one = st.fixed_dictionaries(
    {"name": st.sampled_from([names.GUARD_CONTAINER, "pytorch", "init"])},
    optional={
        "state": state, "lastState": state, "started": st.booleans(), "restartCount": st.integers(0, 9),
        "imageID": words,
    },
)  # fmt: skip
condition = st.fixed_dictionaries(
    {"type": st.sampled_from(["PodScheduled", "Ready", "DisruptionTarget", "Initialized"]), "status": truth},
    optional={
        "reason": words | st.just("PreemptionByScheduler"),
        "message": words,
        "lastTransitionTime": stamps,
    },
)
labels = some(
    **{
        label: st.sampled_from(["0", "1", "master", "Worker"]) for one in ADAPTERS for label in one.pod_labels
    },
    **{names.JOB_LABEL: st.just("run"), "other": words},
)
owner = st.fixed_dictionaries({"uid": st.sampled_from(["w", "x"])}, optional={"controller": st.booleans()})
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p"), "namespace": st.just("ns"), "uid": st.just("u")},
            optional={
                "labels": labels,
                "annotations": some(**{names.DIGEST_ANNOTATION: words}),
                "ownerReferences": st.lists(owner, max_size=2),
                "creationTimestamp": stamps,
                "deletionTimestamp": stamps,
                "deletionGracePeriodSeconds": st.integers(0, 90),
                "finalizers": st.lists(words, max_size=6),
            },
        )
    },
    optional={
        "spec": some(
            nodeName=words,
            terminationGracePeriodSeconds=st.integers(0, 90),
            initContainers=st.lists(
                st.fixed_dictionaries({"name": st.sampled_from([names.GUARD_CONTAINER, "init"])}), max_size=2
            ),
            containers=st.just([{"name": "pytorch", "image": "i"}]),
        ),
        "status": some(
            phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
            reason=words,
            conditions=st.lists(condition, max_size=3),
            containerStatuses=st.lists(status_of_one, max_size=2),
            initContainerStatuses=st.lists(status_of_one, max_size=2),
        ),
    },
)


@settings(deadline=None)
@given(
    pods,
    st.sampled_from(["w", None]),
    st.sampled_from(ADAPTERS),
    st.sampled_from(["Master", "Worker"]),
    st.sampled_from([None, "v0:other", "v1:other"]),
)
def test_a_slim_pod_says_what_the_pod_says(
    raw: Json, uid: str | None, adapter: Any, role: str, noted: str | None
) -> None:
    owner = _Owner(uid, {"pytorchReplicaSpecs": {role: {}}}, digest=noted)
    packer = Packer()
    assert _pod(adapter, packer.unpack(packer.pack(slim_pod(raw))), owner) == _pod(adapter, raw, owner)


def a_pod(status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Json:
    """The pod of rank 0, with its guard, of the workload w."""
    labels = {"training.kubeflow.org/replica-index": "0", "training.kubeflow.org/replica-type": "master"}
    owners = [{"uid": "w", "controller": True}]
    base = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels, "ownerReferences": owners}
    guard = {"initContainers": [{"name": names.GUARD_CONTAINER}]}
    return {
        "metadata": base | metadata,
        "spec": guard | (spec or {}),
        "status": {"phase": "Running"} | (status or {}),
    }


def told(kind: str, status: str, reason: str) -> Json:
    return {"conditions": [{"type": kind, "status": status, "reason": reason}]}


FIRED = {"terminated": {"exitCode": 0, "message": json.dumps({"fire": LATCH})}}
#: One pod for each thing that a slim pod must keep, and what of it then differs from a plain pod.
TELLING = {
    "plain": a_pod(),
    "on its way out": a_pod(deletionTimestamp=STAMP),
    "kept on its way out": a_pod(deletionTimestamp=STAMP, finalizers=[f"a/{n}" for n in range(9)]),
    "with time to end": a_pod(spec={"terminationGracePeriodSeconds": 86400}),
    "no node takes it": a_pod(told("PodScheduled", "False", "Unschedulable")),
    "its node is lost": a_pod(told("Ready", "False", "NodeNotReady")),
    "evicted": a_pod(told("DisruptionTarget", "True", "EvictionByEvictionAPI")),
    "its trainer failed": a_pod(
        {
            "containerStatuses": [
                {"name": "pytorch", "state": {"terminated": {"exitCode": 1, "message": "bye"}}}
            ]
        }
    ),
    "its guard latched before it was started again": a_pod(
        {"initContainerStatuses": [{"name": names.GUARD_CONTAINER, "state": {}, "lastState": FIRED}]}
    ),
    "nobody's": a_pod(ownerReferences=[{"uid": "w"}]),
}


@pytest.mark.parametrize("raw", TELLING.values(), ids=TELLING.keys())
def test_what_a_slim_pod_must_keep(raw: Json) -> None:
    adapter, owner = ADAPTERS[0], _Owner("w", {"pytorchReplicaSpecs": {"Master": {}}})
    whole = _pod(adapter, raw, owner)
    assert _pod(adapter, slim_pod(raw), owner) == whole
    if raw != TELLING["plain"]:
        assert whole != _pod(adapter, TELLING["plain"], owner), "else it would show nothing"


def test_of_what_keeps_a_pod_a_few_are_named_and_none_while_it_runs() -> None:
    """Those of a Job's pods are on each of them, and a pod may have any number."""
    kept = slim_pod(TELLING["kept on its way out"])["metadata"]["finalizers"]
    assert kept == ["a/0", "a/1", "a/2", "a/3"]
    assert "finalizers" not in slim_pod(a_pod(finalizers=["a/b"]))["metadata"]


def test_what_a_slim_job_must_keep() -> None:
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    raw = {
        "metadata": metadata,
        "spec": SPEC,
        "status": {"guard": {"step": 3, "fire": LATCH, "detectorState": "x"}},
    }
    assert slim_job(raw)["status"] == {"guard": {"step": 3, "fire": LATCH}}


conditions = st.lists(
    some(type=st.sampled_from(["Failed", "Running", "Succeeded", "Complete"]), status=truth, message=words),
    max_size=3,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {"name": st.just("run"), "uid": st.just("w")}, optional={"deletionTimestamp": stamps}
            )
        },
        optional={
            "spec": some(suspend=st.booleans(), runPolicy=some(suspend=st.booleans()), template=st.just({})),
            "status": some(conditions=conditions, ready=st.integers(0, 2)),
        },
    ),
    st.sampled_from(ADAPTERS),
)
def test_a_slim_workload_says_what_the_workload_says(raw: Json, adapter: Any) -> None:
    job = parse_job(
        {"metadata": {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "spec": SPEC}
    )
    assert _workload(adapter, job, slim_workload(adapter, raw)) == _workload(adapter, job, raw)


latched = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["Fired", "Halted"]),
        "status": truth,
        "reason": words,
        "lastTransitionTime": stamps,
    }
)
reported = some(
    fire=st.just(LATCH),
    halt=st.just(LATCH),
    step=st.integers(0, 9),
    detectorState=words,
    historyTail=st.sampled_from([[], [{"attempt": 0, "step": 4, "reward": 0.5, "heldout": 0.4}]]),
    rollouts=st.sampled_from(
        [[], [{"moments": [], "attempt": 0, "step": 4, "prompt": "p", "completion": "c", "reward": 1}]]
    ),
    keptSteps=words,
)


@settings(deadline=None)
@given(
    some(
        phase=st.sampled_from(["Running", "Stopped", "Newer"]),
        conditions=st.lists(latched, max_size=2),
        guard=reported,
    )
)
def test_a_slim_job_is_the_job_but_for_what_is_read_live(status: Json) -> None:
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", "managedFields": [1]}
    raw = {"metadata": metadata, "spec": SPEC, "status": status}
    without = copy.deepcopy(raw)
    for field in ("detectorState", "historyTail", "rollouts", "keptSteps"):
        without["status"].get("guard", {}).pop(field, None)
    assert parse_job(slim_job(raw)) == parse_job(without)


def test_of_a_job_that_is_over_no_spec_is_cached() -> None:
    condition = {"type": "Succeeded", "status": "True"}
    over = {"metadata": {}, "spec": SPEC, "status": {"conditions": [condition], "evidence": "e"}}
    assert "spec" not in slim_job(over)
    assert slim_job({**over, "status": {"conditions": [condition]}})["spec"] == SPEC


def test_what_is_cached_of_a_pod_that_runs_is_small() -> None:
    one = {"name": "pytorch", "imageID": "sha256:" + "0" * 64, "state": {"running": {"startedAt": STAMP}}}
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "managedFields": [{"x": "y" * 5000}]},
        "spec": {"containers": [{"name": "pytorch", "env": [{"name": "A", "value": "b" * 5000}]}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [one],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    assert len(compact_json(slim_pod(raw))) < 250
