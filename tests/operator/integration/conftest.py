"""Fixtures over one real API server for the whole session; every test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.operator.api.schema import crd
from rlguard.operator.runtime.client import APPLY, Client, Resource, load_configuration

from .controlplane import BUILD_SECONDS, ControlPlane, control_plane
from .waiting import eventually
from .world import World, world

MakeJob = Callable[..., dict[str, Any]]
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first may have to wait until the control plane is built."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 120))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane with both CRDs installed."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        client = Client(load_configuration(str(plane.kubeconfig(plane.ca_file.parent / "kubeconfig"))))
        pytorchjob = yaml.safe_load((plane.crds / "kubeflow.org_pytorchjobs.yaml").read_text())
        for definition in (crd(), pytorchjob):
            install(client, definition)
        yield plane


def install(client: Client, definition: dict[str, Any]) -> None:
    """Apply a CRD and wait until the API server serves it."""
    name = definition["metadata"]["name"]
    path = CRDS.path(None, name)
    # One of a megabyte takes a busy server longer than an ordinary request may.
    query, seconds = {"fieldManager": "test"}, 60.0
    client.request("PATCH", path, query=query, body=definition, content_type=APPLY, timeout=seconds)

    def established() -> bool:
        conditions = client.request("GET", path).get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    eventually(established, f"{name} is established", seconds)
    spec = definition["spec"]
    served = Resource(spec["group"], spec["versions"][0]["name"], spec["names"]["plural"], "")
    eventually(lambda: client.list(served, None, {}) is not None, f"{name} is served")


@pytest.fixture(scope="session")
def kubeconfig(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's kubeconfig."""
    return plane.kubeconfig(tmp_path_factory.mktemp("kubeconfig") / "config")


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Client:
    """The administrator's client."""
    return Client(load_configuration(str(kubeconfig)))


_numbers = count(1)


@pytest.fixture
def namespace(client: Client) -> str:
    """A fresh namespace."""
    return new_namespace(client)


def new_namespace(client: Client) -> str:
    """Make a namespace; its name."""
    name = f"test-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    client.request("POST", NAMESPACES.path(), body=body)
    return name


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[World]:
    with world(plane, client, namespace, tmp_path) as made:
        yield made


@pytest.fixture
def running(here: World, make_job: MakeJob) -> World:
    """A job that runs, with its guard reporting."""
    here.claim()
    here.submit(make_job())
    here.operator()
    here.start()
    return here


@pytest.fixture
def make_job(namespace: str) -> Callable[..., dict[str, Any]]:
    """A valid job; keyword arguments replace parts of `spec.guard`."""

    def make(name: str = "run", **guard: Any) -> dict[str, Any]:
        return sample_job(name, namespace, **guard)

    return make


def sample_job(name: str, namespace: str, **guard: Any) -> dict[str, Any]:
    """A valid GuardedTrainingJob around a PyTorchJob with one Master."""
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [
            {
                "name": "pytorch",
                "image": "trainer:1",
                "volumeMounts": [{"name": "checkpoints", "mountPath": "/ckpt"}],
            }
        ],
        "volumes": [{"name": "checkpoints", "emptyDir": {}}],
    }
    return {
        "apiVersion": "rlguard.dev/v1alpha1",
        "kind": "GuardedTrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "template": {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": pod}}}},
            },
            "guard": {
                "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
                "checkpoints": {"volume": "checkpoints"},
                **guard,
            },
        },
    }


def attached(job: dict[str, Any], kind: Resource, name: str) -> dict[str, Any]:
    """The job, attached to a workload of this kind and name that is somebody else's."""
    del job["spec"]["template"]
    job["spec"]["targetRef"] = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name}
    job["spec"]["guard"] |= {
        "placement": "Pod",
        "state": {"claimName": "state"},
        "checkpoints": {"claimName": "shared"},
        "metrics": {"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
    }
    return job
