"""The cluster as a user sees it: kubectl, helm, the API, and the node behind it.

`Cluster` is made from the JSON that tests/e2e/cluster/up.sh prints. A `Namespace` is made for each test, a
`Job` is one GuardedTrainingJob in it. What is asserted lies in then.py.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlguard.operator.api import names
from rlguard.operator.api.names import GROUP, KIND, PLURAL, UID_LABEL, VERSION
from rlguard.operator.runtime.client import PODS, Client, Resource, load_configuration

from . import timeouts

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rlguard"
KIND_VALUES = ROOT / "k8s" / "overlays" / "kind" / "values.yaml"
RELEASE, SYSTEM = "rlguard", "rlguard-system"
TRAINING = "kubeflow"  # where the training-operator runs

JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
GUARD_CONTAINER, TRAINER_CONTAINER = names.GUARD_CONTAINER, "pytorch"


class CommandError(AssertionError):
    """A command failed that should not have; its message has all that it said."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster and the programs to talk to it."""

    name: str
    kubeconfig: Path
    programs: dict[str, str]
    images: dict[str, str]

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        """From what up.sh prints."""
        said = json.loads(text)
        programs = {name: said[name] for name in ("kubectl", "helm", "kind")}
        return cls(said["name"], Path(said["kubeconfig"]), programs, said["images"])

    @cached_property
    def client(self) -> Client:
        """The administrator's client, which the operator uses too."""
        return Client(load_configuration(str(self.kubeconfig)))

    def try_kubectl(
        self, *arguments: str, give: str | None = None, within: float = timeouts.COMMAND
    ) -> subprocess.CompletedProcess[str]:
        """kubectl as a user types it; `give` is its standard input. Its result, whatever it is."""
        command = [self.programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments]
        return _run(command, within, give)

    def kubectl(self, *arguments: str, give: str | None = None, within: float = timeouts.COMMAND) -> str:
        """The output of a kubectl command that must succeed."""
        return _must(self.try_kubectl(*arguments, give=give, within=within))

    def helm(self, *arguments: str) -> str:
        """The output of a helm command that must succeed."""
        command = [self.programs["helm"], f"--kubeconfig={self.kubeconfig}", *arguments]
        return _must(_run(command, timeouts.INSTALL, None))

    def on_node(self, node: str, *command: str) -> str:
        """The output of a command in the machine that is the node: a container of the same name."""
        return _must(_run(["docker", "exec", node, *command], timeouts.COMMAND, None))

    def tasks(self, pod: Json, *command: str) -> str:
        """`ctr task ...` on the node that the pod is on: containers, without the API server."""
        return self.on_node(pod["spec"]["nodeName"], "ctr", "--namespace", "k8s.io", "task", *command)

    def signal(self, pod: Json, container: str, signal: str) -> str:
        """Send a signal to the first process of a container, from its node; the container's ID."""
        one = container_id(container_statuses(pod)[container])
        self.tasks(pod, "kill", "--signal", signal, one)
        return one


def _run(command: list[str], seconds: float, give: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=give, capture_output=True, text=True, timeout=seconds, check=False)


def _must(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        words = " ".join(done.args)
        raise CommandError(f"{words}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def container_statuses(pod: Json) -> dict[str, Json]:
    """The statuses of a pod's containers by name, sidecars and other init containers included."""
    status = pod["status"]
    every = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    return {one["name"]: one for one in every}


def container_id(status: Json) -> str:
    """The ID of a container that was started, as containerd knows it."""
    return str(status["containerID"]).removeprefix("containerd://")


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test."""

    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, give: str | None = None, within: float = timeouts.COMMAND) -> str:
        """kubectl in this namespace; it must succeed."""
        return self.cluster.kubectl("--namespace", self.name, *arguments, give=give, within=within)

    def try_kubectl(self, *arguments: str, give: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl in this namespace, whatever comes of it."""
        return self.cluster.try_kubectl("--namespace", self.name, *arguments, give=give)

    def job(self, name: str) -> Job:
        """The job of that name."""
        return Job(self, name)


@dataclass(frozen=True)
class Job:
    """A GuardedTrainingJob. Every property reads the API server anew."""

    namespace: Namespace
    name: str

    @property
    def client(self) -> Client:
        return self.namespace.cluster.client

    @property
    def raw(self) -> Json:
        found = self.client.get(JOBS, self.namespace.name, self.name)
        assert found is not None, f"there is no GuardedTrainingJob {self.namespace.name}/{self.name}"
        return found

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def status(self) -> Json:
        return self.raw.get("status") or {}

    @property
    def guard(self) -> Json:
        """`status.guard`; {} before an operator has read it."""
        return self.status.get("guard") or {}

    @property
    def conditions(self) -> dict[str, Json]:
        """The conditions by type."""
        return {condition["type"]: condition for condition in self.status.get("conditions") or []}

    @property
    def guard_pod(self) -> Json | None:
        """The pod in which its guard runs."""
        return self.pod

    @property
    def workload(self) -> Json | None:
        """The PyTorchJob, or None."""
        return self.client.get(PYTORCHJOBS, self.namespace.name, self.name)

    @property
    def pods(self) -> list[Json]:
        """Every pod of the run, by the label that the operator puts on them."""
        query = {"labelSelector": f"{UID_LABEL}={self.uid}"}
        items: list[Json] = self.client.list(PODS, self.namespace.name, query).get("items") or []
        return items

    @property
    def pod_name(self) -> str:
        """The name of the pod of rank 0."""
        return f"{self.name}-master-0"

    @property
    def trainer_container(self) -> str:
        """The name of the container that trains."""
        return TRAINER_CONTAINER

    @property
    def pod(self) -> Json:
        """The pod of rank 0, in which the guard is."""
        found = self.client.get(PODS, self.namespace.name, self.pod_name)
        assert found is not None, f"{self.pod_name} does not exist"
        return found

    def container(self, name: str) -> Json:
        """The status of a container of that pod: TRAINER_CONTAINER or GUARD_CONTAINER."""
        return container_statuses(self.pod)[name]

    def try_exec(self, container: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command inside a container of the rank-0 pod, whatever comes of it."""
        return self.namespace.try_kubectl("exec", self.pod_name, "--container", container, "--", *command)

    def exec(self, container: str, *command: str) -> str:
        """The output of a command inside a container that must succeed."""
        return _must(self.try_exec(container, *command))

    def log(self, container: str) -> str:
        """The log of a container of the rank-0 pod."""
        return self.namespace.kubectl("logs", self.pod_name, "--container", container)


def install(cluster: Cluster, *values: str) -> None:
    """Install or upgrade the chart as docs/tasks/run-on-kubernetes.md says for kind; `values` go to helm."""
    command = ("upgrade", RELEASE, str(CHART), "--install", "--namespace", SYSTEM, "--create-namespace")
    cluster.helm(*command, "--values", str(KIND_VALUES), "--wait", f"--timeout={timeouts.INSTALL}s", *values)
