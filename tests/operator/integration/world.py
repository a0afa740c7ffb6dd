"""Given / when / then for the operator's tests, which play kubelet and training-operator.

The operator is a real process with the generated RBAC and nothing more. Pods are API objects made from the
workload's own template, so the API server's validation of a pod applies to what was injected.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rlguard.operator.api import names
from rlguard.operator.api.names import GROUP, KIND, PLURAL, VERSION
from rlguard.operator.runtime.client import (
    APPLY,
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    MERGE,
    PODS,
    SECRETS,
    STATEFUL_SETS,
    Client,
    Resource,
)

from .controlplane import ControlPlane
from .guards import Guard, next_address
from .waiting import WITHIN_SECONDS, eventually

JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
Json = dict[str, Any]
RIGHTS = Path(__file__).parents[3] / "charts" / "rlguard" / "files" / "rbac.yaml"
OPERATOR_ROLE = "rlguard-operator"

W = TypeVar("W", bound="World")

#: The status of a pod that runs with its guard.
RUNNING = {
    "phase": "Running",
    "initContainerStatuses": [
        {
            **{"name": "rlguard-guard", "image": "guard:1", "imageID": "", "ready": True, "restartCount": 0},
            "started": True,
            "state": {"running": {"startedAt": "2025-01-01T00:00:00Z"}},
        }
    ],
}

#: `spec.guard.port` where a job does not set it.
GUARD_PORT = 8470
BEAT = "2026-01-01T00:00:00Z"
START_SECONDS = 60.0
END_SECONDS = 30.0


def token_for(client: Client, namespace: str, account: str) -> str:
    """A real token of a service account."""
    path = SERVICE_ACCOUNTS.path(namespace, account, "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = client.request("POST", path, body=body)["status"]["token"]
    return token


@dataclass
class OperatorProcess:
    """A running operator."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def port(self) -> int:
        found = re.search(r"probes and metrics on port (\d+)", self.log.read_text())
        assert found, self.log.read_text()
        return int(found[1])

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self.process.kill()
        self.process.wait(END_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)


class World:
    """One namespace, one job called `run`, and who acts on it. `another` is the same with another job."""

    workloads = PYTORCHJOBS
    name = "run"
    #: The operator's own namespace, with its Lease and what it keeps; "": that of the job.
    system = ""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str, directory: Path) -> None:
        self.plane, self.client, self.namespace, self.directory = plane, client, namespace, directory
        self._stack = ExitStack()
        self.operators = list[OperatorProcess]()
        self.guards = dict[str, Guard]()  # by name of the job
        self._grant()

    def close(self) -> None:
        self._stack.close()

    @property
    def workload_name(self) -> str:
        return self.name

    def another(self: W, name: str) -> W:
        """The same world, with the job of this name."""
        other = copy.copy(self)
        other.name = name
        return other

    # -- given -------------------------------------------------------------------------------------------

    def _grant(self) -> None:
        """What a namespace-scoped installation grants: the chart's roles, bound in this namespace."""
        self.put(SERVICE_ACCOUNTS, {"metadata": {"name": "operator"}})
        generated = yaml.safe_load(RIGHTS.read_text())
        rules = generated["rules"] + [rule for kind in generated["kinds"].values() for rule in kind]
        apply = {"fieldManager": "test", "force": "true"}
        role = {"apiVersion": CLUSTER_ROLES.api_version, "kind": CLUSTER_ROLES.kind, "rules": rules}
        role["metadata"] = {"name": OPERATOR_ROLE}
        path = CLUSTER_ROLES.path(None, OPERATOR_ROLE)
        self.client.request("PATCH", path, query=apply, body=role, content_type=APPLY)
        self.put(ROLES, {"metadata": {"name": "own"}, "rules": generated["ownNamespaceRules"]})
        self.bind("Role", "own", self.namespace)
        self.bind("ClusterRole", OPERATOR_ROLE, self.namespace)
        self.token = token_for(self.client, self.namespace, "operator")

    def bind(self, kind: str, role: str, namespace: str) -> None:
        """Give the operator's service account this role in a namespace."""
        body = {
            "apiVersion": ROLE_BINDINGS.api_version,
            "kind": ROLE_BINDINGS.kind,
            "metadata": {"name": f"operator-{kind.lower()}"},
            "roleRef": {"apiGroup": ROLES.group, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": self.namespace}],
        }
        self.client.create(ROLE_BINDINGS, namespace, body, "test")

    def put(self, resource: Resource, body: Json) -> Json:
        typed = {**body, "apiVersion": resource.api_version, "kind": resource.kind}
        return self.client.create(resource, self.namespace, typed, "test")

    def claim(self, name: str = "heldout", mode: str = "ReadOnlyMany") -> None:
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        self.put(CLAIMS, {"metadata": {"name": name}, "spec": spec})

    def operator(
        self,
        *flags: str,
        server: str | None = None,
        lease_seconds: float = 12.0,
        environment: Mapping[str, str] | None = None,
    ) -> OperatorProcess:
        """Start an operator for this namespace; it ends with the test."""
        number = len(self.operators) + 1
        log = self.directory / f"operator-{number}.log"
        kubeconfig = self.plane.kubeconfig(self.directory / f"kubeconfig-{number}", server, self.token)
        command = [
            sys.executable, "-m", "rlguard.operator", f"--kubeconfig={kubeconfig}", "--guard-image=guard:1",
            f"--namespace={self.namespace}", f"--lease-namespace={self.system or self.namespace}",
            f"--lease-seconds={lease_seconds}", "--bind=127.0.0.1", "--port=0", *flags,
        ]  # fmt: skip
        out = self._stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        self._stack.callback(process.wait, END_SECONDS)
        self._stack.callback(process.kill)
        self.operators.append(OperatorProcess(process, log))
        return self.operators[-1]

    # -- when --------------------------------------------------------------------------------------------

    def submit(self, job: Json) -> None:
        self.client.create(JOBS, self.namespace, job, "test")

    def start_pod(self, role: str = "Master", node: str = "node", *, guarded: bool = True) -> Json:
        """What the training-operator and a kubelet do: the pod of the template, running on a node."""
        workload = self.workload()
        template = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
        name = f"{self.name}-{role.lower()}-0"
        labels = template["metadata"]["labels"] | {
            "training.kubeflow.org/replica-index": "0",
            "training.kubeflow.org/replica-type": role.lower(),
        }
        owner = {
            "apiVersion": PYTORCHJOBS.api_version,
            "kind": PYTORCHJOBS.kind,
            "name": self.name,
            "uid": workload["metadata"]["uid"],
            "controller": True,
        }
        annotations = template["metadata"].get("annotations") or {}
        meta = {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]}
        pod = self.put(PODS, {"metadata": meta, "spec": {**template["spec"], "nodeName": node}})
        alone: Json = {"phase": "Running"}
        self.pod_status(self.with_guard(RUNNING) if guarded and role == "Master" else alone, name)
        self.workload_condition("Running")
        return pod

    def start_pod_without_guard(self) -> Json:
        """A pod that cannot start, because a volume of it is not there."""
        pod = self.start_pod(guarded=False)
        waiting = {"reason": "ContainerCreating"}
        status = {
            "name": "rlguard-guard",
            "image": "guard:1",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        self.pod_status(
            {"phase": "Pending", "initContainerStatuses": [{**status, "state": {"waiting": waiting}}]}
        )
        return pod

    def with_guard(self, status: Json) -> Json:
        """The status of a pod in which a guard listens from now on."""
        address = next_address()
        self.guard(address)
        return {**status, "podIP": address, "podIPs": [{"ip": address}]}

    def guard(self, address: str) -> Guard:
        """A guard of the job at this address; the one before it is gone."""
        job = self.job()
        secret_name = names.support_name(self.name, job["metadata"]["uid"])
        secret = self.client.get(SECRETS, self.namespace, secret_name)
        assert secret is not None
        if (before := self.guards.get(self.name)) is not None:
            before.end()
        port = int(job["spec"]["guard"].get("port", GUARD_PORT))
        self.guards[self.name] = Guard(address, port, secret["data"])
        self._stack.callback(self.guards[self.name].end)
        return self.guards[self.name]

    def guards_set(self) -> Json | None:
        """The StatefulSet of a guard in a pod of its own, unless it is on its way out."""
        items = self.client.list(STATEFUL_SETS, self.namespace, {}).get("items") or []
        return next((raw for raw in items if not is_going(raw)), None)

    def start_guard(self) -> Json:
        """What the StatefulSet controller and a kubelet do for a guard in a pod of its own; the pod."""
        made = eventually(self.guards_set, "the guard's StatefulSet is there", 120)
        name, template = f"{made['metadata']['name']}-0", made["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        meta = template["metadata"] | {"name": name, "ownerReferences": [owner]}
        pod = self.put(PODS, {"metadata": meta, "spec": {**template["spec"], "nodeName": "other"}})
        (status,) = RUNNING["initContainerStatuses"]
        self.pod_status(self.with_guard({"phase": "Running", "containerStatuses": [status]}), name)
        self.guard_says(step=1)
        return pod

    def guard_goes(self) -> None:
        """Wait until the operator has ended the guard; what the garbage collector does then."""
        eventually(lambda: self.guards_set() is None, "the StatefulSet is deleted", 60)
        for pod in self.pods():
            if pod["metadata"]["labels"].get(names.PART_LABEL) == names.GUARD_PART:
                self.kubelet_ends(pod)

    def start(self, **pod: str) -> None:
        """The workload's pod runs, and its guard was heard."""
        self.expect("Guarded", "True", "WorkloadCreated")
        self.start_pod(**pod)
        self.guard_says(step=1)
        self.expect("Fired", "False", "NotFired")

    def pod_status(self, status: Json, name: str | None = None) -> None:
        path = PODS.path(self.namespace, name or f"{self.name}-master-0", "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def workload_condition(self, kind: str) -> None:
        condition = {"type": kind, "status": "True", "message": f"PyTorchJob {kind}"}
        path = PYTORCHJOBS.path(self.namespace, self.name, "status")
        self.client.request("PATCH", path, body={"status": {"conditions": [condition]}}, content_type=MERGE)

    def guard_says(self, **guard: Any) -> None:
        """What the guard says from now on, by the names of `status.guard`."""
        self.guards[self.name].says(**guard)

    def noted(self, **guard: Any) -> None:
        """What an operator has written of the guard before it ended."""
        patch = {"status": {"guard": guard}}
        self.client.merge(JOBS, self.namespace, self.name, patch, names.OPERATOR_MANAGER, sub="status")

    def fire(self) -> str:
        """The guard latches a fire now; the time of it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        fire = {"code": "hacking_gap", "reason": "gap 0.3 > 0.1", "attempt": 0, "step": 40, "at": at}
        checkpoint = {"attempt": 0, "step": 20, "score": 0.6, "items": 128, "path": "/ckpt/20"}
        self.guard_says(step=40, fire=fire, bestCheckpoint=checkpoint)
        return at

    def hangs(self) -> None:
        """The guard answers nobody any more, and the kubelet calls it not ready."""
        self.guards[self.name].end()
        status = copy.deepcopy(RUNNING)
        status["initContainerStatuses"][0]["ready"] = False  # type: ignore[index]
        self.pod_status(status)

    def kubelet_ends_pods(self) -> None:
        """Finish every pod that is on its way out."""
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self.kubelet_ends(pod)

    def kubelet_ends(self, pod: Json) -> None:
        """Finish this pod."""
        path = PODS.path(self.namespace, pod["metadata"]["name"])
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.client.request("DELETE", path, body=options)

    def delete_pods(self) -> None:
        """What a controller does that cleans up: ask for the end of every pod."""
        for pod in self.pods():
            self.delete(pod)

    def delete(self, pod: Json) -> None:
        """Ask for the end of this pod."""
        self.client.request("DELETE", PODS.path(self.namespace, pod["metadata"]["name"]))

    def collect_garbage(self) -> None:
        """What garbage collector and kubelet do of a foreground delete: the pods go, then the workload."""
        workload = self.client.get(self.workloads, self.namespace, self.workload_name)
        if is_going(workload):
            for pod in self.pods():
                if any(
                    one["uid"] == uid_of(workload) for one in pod["metadata"].get("ownerReferences") or []
                ):
                    self.delete(pod)
        self.kubelet_ends_pods()
        if workload is not None and is_going(workload):
            others = [one for one in workload["metadata"]["finalizers"] if one != "foregroundDeletion"]
            self.keep_by(*others)

    def keep_by(self, *finalizers: str) -> None:
        """Set the finalizers of the workload."""
        patch = {"metadata": {"finalizers": list(finalizers)}}
        self.client.merge(self.workloads, self.namespace, self.workload_name, patch, "test")

    def ends(self) -> None:
        """The cluster ends what is deleted, until the run is called stopped."""

        def stopped() -> bool:
            self.collect_garbage()
            return self.conditions().get("Stopped", ("",))[:2] == ("True", "NoPodsLeft")

        eventually(stopped, "it is stopped", 60.0)

    # -- then --------------------------------------------------------------------------------------------

    def job(self) -> Json:
        raw = self.client.get(JOBS, self.namespace, self.name)
        assert raw is not None
        return raw

    def workload(self) -> Json:
        return eventually(
            lambda: self.client.get(self.workloads, self.namespace, self.name), "the workload exists"
        )

    def pods(self) -> list[Json]:
        items: list[Json] = self.client.list(PODS, self.namespace, {}).get("items") or []
        return items

    def conditions(self) -> dict[str, tuple[str, str, str]]:
        """type -> (status, reason, message)."""
        found = (self.job().get("status") or {}).get("conditions") or []
        return {c["type"]: (c["status"], c["reason"], c["message"]) for c in found}

    def expect(self, kind: str, status: str, reason: str, within: float = WITHIN_SECONDS) -> str:
        """Wait for a condition; its message."""

        def there() -> tuple[str, str, str] | None:
            found = self.conditions().get(kind)
            return found if found is not None and found[:2] == (status, reason) else None

        try:
            return eventually(there, f"{kind}={status} ({reason})", within)[2]
        except AssertionError as error:
            raise AssertionError(f"{error}; conditions: {self.conditions()}{self._ended()}") from None

    def expect_workload(
        self, probe: Callable[[Json], Any], what: str, within: float = WITHIN_SECONDS
    ) -> None:
        def there() -> Any:
            return probe(self.client.get(self.workloads, self.namespace, self.name) or {})

        try:
            eventually(there, what, within)
        except AssertionError as error:
            raise AssertionError(f"{error}; conditions: {self.conditions()}{self._ended()}") from None

    def _ended(self) -> str:
        """Which operators have ended, with their last words: one that loses its Lease does."""
        ended = [one for one in self.operators if one.process.poll() is not None]
        return "".join(
            f"; {one.log.name}: exit code {one.process.returncode}: {one.log.read_text()[-500:]}"
            for one in ended
        )

    def phase(self) -> str:
        return str((self.job().get("status") or {}).get("phase"))

    def events(self) -> list[str]:
        """Reasons of the Events about the job, in order of time."""
        items = self.client.list(EVENTS, self.namespace, {}).get("items") or []
        return [
            event["reason"] for event in sorted(items, key=lambda e: int(e["metadata"]["resourceVersion"]))
        ]

    def expect_events(self, *reasons: str) -> None:
        """Wait until these Events are there: they are written after the status, one by one."""
        eventually(lambda: set(reasons) <= set(self.events()), f"Events {reasons}")

    def evidence(self) -> Json:
        """The evidence, once the status names it."""

        def named() -> str | None:
            return (self.job().get("status") or {}).get("evidence")

        found = self.client.get(CONFIG_MAPS, self.namespace, eventually(named, "evidence is named"))
        assert found is not None
        data: Json = found["data"]
        return data

    def leader(self) -> str:
        lease = self.client.get(LEASES, self.namespace, "rlguard-operator")
        return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def uid_of(raw: Json | None) -> str:
    """Its UID; "" of nothing."""
    return "" if raw is None else str(raw["metadata"]["uid"])


def is_going(raw: Json | None) -> bool:
    """Whether an object is there and on its way out."""
    return bool(raw) and "deletionTimestamp" in (raw or {})["metadata"]


def is_deleted(raw: Json | None) -> bool:
    """Whether an object is on its way out, or gone."""
    return not raw or is_going(raw)


@contextmanager
def world(
    plane: ControlPlane, client: Client, namespace: str, directory: Path, of: type[W] = World
) -> Iterator[W]:
    """A world for the length of a test."""
    made = of(plane, client, namespace, directory)
    try:
        yield made
    finally:
        made.close()
