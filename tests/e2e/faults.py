"""Faults of the cluster itself: each takes something away, and puts it back whatever happens meanwhile.

All of them are real: processes are killed or stopped, pods are deleted, the API server's process is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlguard.operator.runtime.client import LEASES

from . import then, timeouts
from .kube import (
    RELEASE,
    SYSTEM,
    TRAINING,
    Cluster,
    Json,
    container_id,
    container_statuses,
)

API_SERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"
ASIDE = "/etc/kubernetes/kube-apiserver.yaml"
#: What must lead again when the API server was away: without it nothing is cleaned up or scheduled.
LEADERS = (("kube-system", "kube-controller-manager"), ("kube-system", "kube-scheduler"), (SYSTEM, RELEASE))


def nobody_else_is_there() -> None:
    """Refuses to take away from a test beside this one what it needs."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "mark this test `alone`: others run beside it"


# -- containers, from the node ---------------------------------------------------------------------------


def tell_from_the_node(cluster: Cluster, pod: Json, order: str) -> None:
    """Give a scripted trainer an order without the API server: through its emptyDir on the node."""
    file = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/scratch/orders"
    cluster.on_node(pod["spec"]["nodeName"], "sh", "-c", 'echo "$0" >> "$1"', order, file)


def running_on_the_node(cluster: Cluster, pod: Json) -> list[str]:
    """The containers of the pod that run, as the node knows it: no API server is asked."""
    names = {container_id(one): name for name, one in container_statuses(pod).items() if "containerID" in one}
    found = (line.split() for line in cluster.tasks(pod, "list").splitlines())
    return [names[words[0]] for words in found if words[0] in names and words[-1] == "RUNNING"]


@contextmanager
def the_kubelet_is_away(cluster: Cluster, node: str) -> Iterator[None]:
    """Nobody ends a container of the node, or says how it is; afterwards it is back and says so."""
    nobody_else_is_there()
    cluster.on_node(node, "systemctl", "stop", "kubelet")
    try:
        yield
    finally:
        cluster.on_node(node, "systemctl", "start", "kubelet")
        ready = ("wait", f"node/{node}", "--for=condition=Ready", f"--timeout={timeouts.API_SERVER}s")
        cluster.kubectl(*ready, within=timeouts.API_SERVER + timeouts.COMMAND)


# -- operators -------------------------------------------------------------------------------------------


@contextmanager
def the_training_operator_is_away(cluster: Cluster) -> Iterator[None]:
    """The training-operator and its webhook are gone; afterwards they are back and answer."""
    nobody_else_is_there()
    where = ("--namespace", TRAINING)
    deployment = (*where, "deployment/training-operator")
    cluster.kubectl("scale", *deployment, "--replicas=0")
    try:
        gone = ("pods", *where, "--all", f"--timeout={timeouts.COMMAND}s")
        cluster.kubectl("wait", "--for=delete", *gone, within=2 * timeouts.COMMAND)
        yield
    finally:
        cluster.kubectl("scale", *deployment, "--replicas=1")
        available(cluster, TRAINING, "training-operator")


# -- the API server --------------------------------------------------------------------------------------


@contextmanager
def the_api_server_is_away(cluster: Cluster) -> Iterator[None]:
    """Its process ends; afterwards it is back, and so is everything that lost its Lease meanwhile."""
    nobody_else_is_there()
    node = cluster.kubectl(
        "get",
        "nodes",
        "--selector=node-role.kubernetes.io/control-plane",
        "--output=jsonpath={.items[0].metadata.name}",
    )
    cluster.on_node(node, "mv", API_SERVER, ASIDE)
    try:
        then.eventually(lambda: not answers(cluster), "the API server is gone", timeouts.API_SERVER)
        yield
    finally:
        cluster.on_node(node, "mv", ASIDE, API_SERVER)
        then.eventually(lambda: answers(cluster), "the API server is back", timeouts.API_SERVER)
        everything_is_back(cluster)


def answers(cluster: Cluster) -> bool:
    """Whether the API server answers and is ready."""
    return cluster.try_kubectl("get", "--raw=/readyz", "--request-timeout=3s").returncode == 0


def everything_is_back(cluster: Cluster) -> None:
    """Who leads renews its Lease again, and both operators are available."""

    def renewals() -> dict[str, Any]:
        found = {name: cluster.client.get(LEASES, namespace, name) or {} for namespace, name in LEADERS}
        return {name: (lease.get("spec") or {}).get("renewTime") for name, lease in found.items()}

    before: Json = {}
    then.eventually(
        lambda: before.update(renewals()) or before, "the Leases can be read", timeouts.API_SERVER
    )
    for name in before:
        then.eventually(
            lambda name=name: renewals()[name] != before[name], f"{name} leads", timeouts.LEADERS_BACK
        )
    available(cluster, TRAINING, "training-operator")
    available(cluster, SYSTEM, RELEASE)


def available(cluster: Cluster, namespace: str, deployment: str) -> None:
    """Wait until every replica is."""
    seconds = timeouts.LEADERS_BACK
    status = (
        "rollout",
        "status",
        f"deployment/{deployment}",
        "--namespace",
        namespace,
        f"--timeout={seconds}s",
    )
    cluster.kubectl(*status, within=seconds + timeouts.COMMAND)
