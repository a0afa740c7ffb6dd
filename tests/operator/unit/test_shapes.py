"""Templates of every kind and of any shape: each is built or refused in words, and none is a traceback.

A template is an object of which the CRD knows nothing, so anybody who may create a job may put anything
anywhere. What is asked of an adapter before the template is reviewed is asked of each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from guard_operator.adapters import ComposedAdapter, TemplateError, find_adapter
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.review import review_manifest

Json = dict[str, Any]
CONFIG = OperatorConfig("guard:1")
ODD: tuple[Any, ...] = (None, 1, True, "x", [], [1], [None], {}, {"x": None}, {"x": 1})
NODE: Json = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True},
        "containers": [
            {
                "name": "node",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "ck", "mountPath": "/ck"}],
            }
        ],
        "volumes": [{"name": "ck", "persistentVolumeClaim": {"claimName": "saved"}}],
    },
}


def node(name: str) -> Json:
    """The template of a pod whose container has this name."""
    made = copy.deepcopy(NODE)
    made["spec"]["containers"][0]["name"] = name
    return made


def replicated(name: str, **labels: str) -> Json:
    template = {"metadata": {"labels": labels}, "spec": {"parallelism": 2, "template": node("node")}}
    return {"name": name, "replicas": 1, "template": template}


STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
RUNTIME: Json = {
    "mlPolicy": {"numNodes": 2, "torch": {}},
    "template": {"spec": {"replicatedJobs": [replicated("node", **STEP)]}},
}
KINDS: dict[tuple[str, str], Json] = {
    ("kubeflow.org/v1", "PyTorchJob"): {
        "runPolicy": {"suspend": False},
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": node("pytorch")},
            "Worker": {"replicas": 2, "template": node("pytorch")},
        },
    },
    ("batch/v1", "Job"): {"completionMode": "Indexed", "parallelism": 2, "template": node("trainer")},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "coordinator": {"replicatedJob": "node"},
        "failurePolicy": {"rules": [{"name": "x"}]},
        "replicatedJobs": [replicated("node"), replicated("other")],
    },
    ("ray.io/v1", "RayJob"): {
        "entrypoint": "python train.py",
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": node("ray")},
            "workerGroupSpecs": [{"replicas": 2, "labels": {"a": "b"}, "template": node("ray")}],
        },
        "submitterPodTemplate": node("submitter"),
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "runtimeRef": {"name": "torch", "kind": "ClusterTrainingRuntime"},
        "trainer": {"numNodes": 2, "env": [{"name": "A", "value": "b"}]},
        "runtimePatches": [
            {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated("node")]}}}}
        ],
    },
}


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths to everything in a value, but to the whole."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, *path, key)


def odd_ones(value: Json) -> Iterator[Json]:
    """The value with something odd in one place, for every place."""
    for path in places(value):
        for odd in ODD:
            changed = copy.deepcopy(value)
            inner: Any = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            yield changed


def manifest(kind: tuple[str, str], spec: Json) -> Json:
    return {
        "metadata": {"name": "run"},
        "spec": {
            "template": {"apiVersion": kind[0], "kind": kind[1], "spec": spec},
            "guard": {
                "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
                "checkpoints": {"volume": "ck"},
            },
        },
    }


def is_built_or_refused(kind: tuple[str, str], spec: Json, runtime: Json) -> None:
    said = review_manifest(manifest(kind, spec), CONFIG, {"spec": runtime})
    assert (said.reason is None) == bool(said.workload)
    assert said.reason is None or all(said.findings)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1])
def test_a_template_as_it_should_be_is_built(kind: tuple[str, str]) -> None:
    said = review_manifest(manifest(kind, KINDS[kind]), CONFIG, {"spec": RUNTIME})
    assert said.reason is None, said.findings


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1])
def test_a_template_of_any_shape_is_built_or_refused_in_words(kind: tuple[str, str]) -> None:
    for spec in odd_ones(KINDS[kind]):
        is_built_or_refused(kind, spec, RUNTIME)


def test_a_runtime_of_any_shape_makes_a_run_or_is_refused_in_words() -> None:
    kind = next(one for one in KINDS if one[1] == "TrainJob")
    for runtime in odd_ones(RUNTIME):
        is_built_or_refused(kind, KINDS[kind], runtime)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1])
def test_what_is_asked_before_the_review_has_an_answer(kind: tuple[str, str]) -> None:
    """A job is looked at whether its template was refused or not, and a run is stopped."""
    adapter = find_adapter(*kind)
    assert adapter is not None
    for odd in odd_ones(KINDS[kind]):
        spec = odd
        if isinstance(adapter, ComposedAdapter):
            with suppress(TemplateError):
                spec = adapter.composed(odd, {"spec": RUNTIME})
        assert adapter.pods_wanted(spec) >= 0
        assert adapter.holds_rank0({"metadata": {"labels": {}}}, spec) in (True, False)
        adapter.assigned({"metadata": {}, "spec": spec})
        adapter.state({"metadata": {}, "spec": spec})
