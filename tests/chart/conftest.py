"""Helm, kustomize and a real API server for the chart's tests. There is no kubelet: no pod starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART, CRDS = ROOT / "charts" / "rlguard", ROOT / "charts" / "rlguard-crds"
VALUES = Path(__file__).parent / "values"
BUILD = Path(__file__).parent / "build.sh"
BUILD_SECONDS = 1800  # once per machine
RELEASE, NAMESPACE = "rlguard", "rlguard-system"
KUBE_VERSION = "1.34.0"  # of the control plane that the tests build

Json = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first may have to wait until the tools are built."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 120))


def load(path: Path, name: str) -> ModuleType:
    """A module by its path: of tests/operator, which is no package from here."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Tools:
    """What tests/chart/build.sh makes: each when a test first asks for it."""

    @cached_property
    def helm(self) -> Path:
        return self._build("helm")

    @cached_property
    def kustomize(self) -> Path:
        return self._build("kustomize")

    @cached_property
    def promtool(self) -> Path:
        return self._build("promtool")

    @cached_property
    def monitoring_crds(self) -> Path:
        return self._build("crds")

    @staticmethod
    def _build(tool: str) -> Path:
        command = [BUILD, tool]
        built = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=BUILD_SECONDS, check=False)
        assert built.returncode == 0, f"{BUILD} {tool} failed; what it said is above"
        return Path(built.stdout.strip())


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools()


Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def helm(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Run helm with a home of its own."""
    home = tmp_path_factory.mktemp("helm")
    environment = {**os.environ, "HELM_CACHE_HOME": f"{home}/cache", "HELM_CONFIG_HOME": f"{home}/config"}
    environment |= {"HELM_DATA_HOME": f"{home}/data", "KUBECONFIG": "/dev/null"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(tools.helm), *map(str, arguments)]
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


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's kubeconfig, once `client` is there."""
    return tmp_path_factory.mktemp("kubeconfig") / "config"


@pytest.fixture(scope="session")
def client(tools: Tools, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An administrator of a real API server with the CRDs: ours, PyTorchJob, the Prometheus operator's."""
    from guard_operator.api.schema import crd
    from guard_operator.runtime.client import APPLY, Client, load_configuration

    integration = ROOT / "tests" / "operator" / "integration"
    controlplane = load(integration / "controlplane.py", "chart_controlplane")
    eventually = load(integration / "waiting.py", "chart_waiting").eventually
    directory = tmp_path_factory.mktemp("control-plane")
    with controlplane.control_plane(directory) as plane:
        client = Client(load_configuration(str(plane.kubeconfig(kubeconfig))))
        files = [plane.crds / "kubeflow.org_pytorchjobs.yaml", *tools.monitoring_crds.glob("*.yaml")]
        for definition in [crd(), *(yaml.safe_load(path.read_text()) for path in files)]:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
            client.request("PATCH", path, query={"fieldManager": "test"}, body=definition, content_type=APPLY)
            spec = definition["spec"]
            served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            eventually(lambda served=served: client.request("GET", served), f"{served} is served")
        yield client


class Cluster:
    """Server-side apply of any object, with its plural from the server's own discovery."""

    def __init__(self, client: Any) -> None:
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
        from guard_operator.runtime.client import APPLY

        query = {"fieldManager": "chart-test", "force": "true", "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        done: Json = self.client.request("PATCH", self.path(obj), query=query, body=obj, content_type=APPLY)
        return done


@pytest.fixture(scope="session")
def cluster(client: Any) -> Cluster:
    return Cluster(client)
