"""The cluster by its command line: kubectl, helm, and docker for the node. Nothing here asserts a promise."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "rlguard"
KIND_VALUES = ROOT / "k8s" / "overlays" / "kind" / "values.yaml"
RELEASE, SYSTEM = "rlguard", "rlguard-system"
TRAINER = "pytorch"

#: Seconds after which a wait is called a hang: many times what two busy cores need.
COMMAND, INSTALL, START, STOP, GONE = 120, 300, 900, 600, 300


@dataclass(frozen=True)
class Cluster:
    """A running cluster and the programs to talk to it."""

    kubeconfig: str
    programs: dict[str, str]
    images: dict[str, str]

    @classmethod
    def read(cls, path: str) -> Cluster:
        """From the file that `make kind-up` writes."""
        known = json.loads(Path(path).read_text())
        programs = {name: known[name] for name in ("kubectl", "helm")}
        return cls(known["kubeconfig"], programs, known["images"])

    def command(self, program: str, *arguments: str) -> list[str]:
        return [self.programs[program], f"--kubeconfig={self.kubeconfig}", *arguments]

    def try_kubectl(
        self, *arguments: str, give: str | None = None, within: float = COMMAND
    ) -> subprocess.CompletedProcess[str]:
        """The result of a kubectl command, whatever it is; `give` is its standard input."""
        return _run(self.command("kubectl", *arguments), within, give)

    def kubectl(self, *arguments: str, give: str | None = None, within: float = COMMAND) -> str:
        """The output of a kubectl command that must succeed."""
        return _output(self.try_kubectl(*arguments, give=give, within=within))

    def helm(self, *arguments: str) -> str:
        """The output of a helm command that must succeed."""
        return _output(_run(self.command("helm", *arguments), INSTALL + COMMAND, None))

    def on_node(self, node: str, *command: str) -> str:
        """The output of a command in the container that is the node."""
        return _output(_run(["docker", "exec", node, *command], COMMAND, None))

    def install(self) -> None:
        """Install or upgrade the chart as the install page says for kind."""
        where = ("--namespace", SYSTEM, "--create-namespace", "--values", str(KIND_VALUES))
        self.helm("upgrade", RELEASE, str(CHART), "--install", *where, "--wait", f"--timeout={INSTALL}s")


@dataclass(frozen=True)
class Namespace:
    """A namespace of one scenario."""

    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, give: str | None = None, within: float = COMMAND) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, give=give, within=within)

    def try_kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.try_kubectl("--namespace", self.name, *arguments)

    def items(self, kinds: str, *options: str) -> list[Json]:
        """All objects of these kinds."""
        found: list[Json] = json.loads(self.kubectl("get", kinds, *options, "--output=json"))["items"]
        return found


@dataclass(frozen=True)
class Run:
    """One GuardedTrainingJob. Every property reads the API server anew."""

    namespace: Namespace
    name: str

    @property
    def job(self) -> Json:
        found: Json = json.loads(self.namespace.kubectl("get", "gtj", self.name, "--output=json"))
        return found

    @property
    def status(self) -> Json:
        return self.job.get("status") or {}

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))

    @property
    def fire(self) -> Json | None:
        return fire_of(self.job)

    @property
    def pods(self) -> list[Json]:
        """Its pods, by their names."""
        pods = self.namespace.items("pods")
        return [pod for pod in pods if pod["metadata"]["name"].startswith(f"{self.name}-")]

    @property
    def pod(self) -> Json:
        """The pod of rank 0."""
        found: Json = json.loads(self.namespace.kubectl("get", "pod", self.pod_name, "--output=json"))
        return found

    @property
    def pod_name(self) -> str:
        return f"{self.name}-master-0"

    @property
    def guard_container(self) -> str:
        """The name of the container that starts before the trainer and stays beside it."""
        return next(
            c["name"] for c in self.pod["spec"]["initContainers"] if c.get("restartPolicy") == "Always"
        )

    def log(self, container: str = TRAINER) -> str:
        return self.namespace.kubectl("logs", self.pod_name, f"--container={container}")


def fire_of(job: Json) -> Json | None:
    """`status.guard.fire`: the latch."""
    fire: Json | None = ((job.get("status") or {}).get("guard") or {}).get("fire")
    return fire


def container_status(pod: Json, container: str) -> Json:
    status = pod["status"]
    every = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    return next(one for one in every if one["name"] == container)


def _run(command: list[str], seconds: float, give: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=give, capture_output=True, text=True, timeout=seconds, check=False)


def _output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, (
        f"{' '.join(done.args)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout
