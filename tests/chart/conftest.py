"""Helm, kustomize and a real API server for the chart's tests. There is no kubelet: no pod starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.operator.runtime.client import APPLY, Client
from tests.operator.integration.conftest import client, install, kubeconfig, plane

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rlguard"
VALUES = Path(__file__).parent / "values"
BUILD = Path(__file__).parent / "build.sh"
BUILD_SECONDS = 1800  # once per machine
RELEASE, NAMESPACE = "rlguard", "rlguard-system"
KUBE_VERSION = "1.34.0"  # of the control plane that the tests build

Json = dict[str, Any]

__all__ = ["client", "kubeconfig", "plane"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first may have to wait until the tools are built."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 120))


def tool(name: str) -> Path:
    """What tests/chart/build.sh makes of this name."""
    built = subprocess.run(
        [BUILD, name], stdout=subprocess.PIPE, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert built.returncode == 0, f"{BUILD} {name} failed; what it said is above"
    return Path(built.stdout.strip())


Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Run helm with a home of its own."""
    home, program = tmp_path_factory.mktemp("helm"), tool("helm")
    environment = {**os.environ, "HELM_CACHE_HOME": f"{home}/cache", "HELM_CONFIG_HOME": f"{home}/config"}
    environment |= {"HELM_DATA_HOME": f"{home}/data", "KUBECONFIG": "/dev/null"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


Render = Callable[..., list[Json]]


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The objects of a release: `render(values)` with a file's path or a mapping."""

    def run(values: Path | Json | None = None, release: str = RELEASE) -> list[Json]:
        arguments = ["template", release, CHART, "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
        if isinstance(values, Path):
            arguments += ["--values", values]
        else:
            arguments += [flag for k, v in (values or {}).items() for flag in ("--set-json", f"{k}={v}")]
        done = helm(*arguments)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.load_all(done.stdout, KeysOnce) if document]

    return run


class KeysOnce(yaml.SafeLoader):
    """Refuses a key that is there twice, as kustomize does, and whatever goes on with what Helm wrote."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Json:
        """A mapping whose keys are all different."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
        return super().construct_mapping(node, deep)


def find(objects: list[Json], kind: str, name: str | None = None) -> Json:
    """The one object of this kind (and name)."""
    found = [o for o in objects if o["kind"] == kind and name in {None, o["metadata"]["name"]}]
    assert len(found) == 1, f"{len(found)} objects {kind} {name}: {[o['metadata']['name'] for o in found]}"
    return found[0]


class Cluster:
    """Server-side apply of any object, with its plural from the server's own discovery."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def path(self, obj: Json) -> str:
        version, kind = obj["apiVersion"], obj["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            for resource in self.client.request("GET", base)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        plural, namespaced = self._plurals[version, kind]
        scope = f"/namespaces/{obj['metadata'].get('namespace', 'default')}" if namespaced else ""
        return f"{base}{scope}/{plural}/{obj['metadata']['name']}"

    def apply(self, obj: Json, dry_run: bool = True) -> Json:
        query = {"fieldManager": "chart-test", "force": "true", "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        done: Json = self.client.request("PATCH", self.path(obj), query=query, body=obj, content_type=APPLY)
        return done

    def namespaces(self, *names: str) -> None:
        """Make these."""
        for name in names:
            self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, dry_run=False)


@pytest.fixture(scope="session")
def cluster(client: Client) -> Cluster:
    """A real API server with the CRDs of RLGuard and PyTorchJob."""
    return Cluster(client)


@pytest.fixture(scope="session")
def monitored(cluster: Cluster) -> Cluster:
    """The same with the CRDs of the Prometheus operator."""
    for path in tool("crds").glob("*.yaml"):
        install(cluster.client, yaml.safe_load(path.read_text()))
    return cluster
