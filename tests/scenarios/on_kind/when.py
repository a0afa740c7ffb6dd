"""When: what happens to a run, or to the cluster. What is taken away comes back at the end of the `with`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .kube import (
    CHART,
    COMMAND,
    INSTALL,
    KIND_VALUES,
    RELEASE,
    SYSTEM,
    TRAINER,
    Cluster,
    Run,
    container_status,
)

#: Steps far beyond the limit on the KL.
FIRE = "steps 10 0.9 1000"
DEPLOYMENT = ("--namespace", SYSTEM, f"deployment/{RELEASE}")
OPERATORS = ("pods", "--namespace", SYSTEM, f"--selector=app.kubernetes.io/instance={RELEASE}")


def the_trainer_is_told(run: Run, *orders: str) -> None:
    """Give the trainer further orders; see trainer.py."""
    write = ("sh", "-c", 'echo "$0" >> /scratch/orders', "\n".join(orders))
    run.namespace.kubectl("exec", run.pod_name, f"--container={TRAINER}", "--", *write)


def the_run_fires(run: Run) -> None:
    """The trainer reports steps for which the guard fires."""
    the_trainer_is_told(run, FIRE)


def the_pod_is_evicted(run: Run) -> str:
    """What `kubectl drain` asks for, for the pod of rank 0; its UID."""
    metadata = {"name": run.pod_name, "namespace": run.namespace.name}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{run.namespace.name}/pods/{run.pod_name}/eviction"
    uid = str(run.pod["metadata"]["uid"])
    run.namespace.cluster.kubectl("create", f"--raw={path}", "-f", "-", give=json.dumps(body))
    return uid


def the_guard_is_paused(run: Run) -> None:
    """The guard neither answers nor ends. Said again, it holds for a guard that was started anew."""
    _signal_guard(run, "SIGSTOP")


def _signal_guard(run: Run, signal: str) -> None:
    pod = run.pod
    task = container_status(pod, run.guard_container)["containerID"].removeprefix("containerd://")
    kill = ("ctr", "--namespace", "k8s.io", "task", "kill", "--signal", signal, task)
    run.namespace.cluster.on_node(pod["spec"]["nodeName"], *kill)


@contextmanager
def no_guard_can_be_reached(runs: Sequence[Run]) -> Iterator[None]:
    """The network drops what passes between these pods and anybody but their kubelet."""
    _nobody_else_is_there()
    pods = [run.pod for run in runs]
    rules = []
    for pod in pods:
        ip = pod["status"]["podIP"]
        rules += [
            ("INPUT", "-s", ip, "-p", "tcp", "--dport", "6443"),
            ("FORWARD", "-s", ip),
            ("FORWARD", "-d", ip),
        ]
    cluster, node = runs[0].namespace.cluster, pods[0]["spec"]["nodeName"]
    for chain, *rule in rules:
        cluster.on_node(node, "iptables", "-I", chain, *rule, "-j", "DROP")
    try:
        yield
    finally:
        for chain, *rule in rules:
            cluster.on_node(node, "iptables", "-D", chain, *rule, "-j", "DROP")


@contextmanager
def the_operator_is_away(cluster: Cluster) -> Iterator[None]:
    """No operator runs; afterwards as many as before, and ready."""
    _nobody_else_is_there()
    replicas = cluster.kubectl("get", *DEPLOYMENT, "--output=jsonpath={.spec.replicas}")
    cluster.kubectl("scale", *DEPLOYMENT, "--replicas=0")
    cluster.kubectl("wait", "--for=delete", *OPERATORS, f"--timeout={COMMAND}s", within=2 * COMMAND)
    try:
        yield
    finally:
        cluster.kubectl("scale", *DEPLOYMENT, f"--replicas={replicas}")
        _operators_are_ready(cluster)


def the_operators_are_killed(cluster: Cluster) -> None:
    """Every operator ends without a goodbye, the leader with them."""
    _nobody_else_is_there()
    cluster.kubectl("delete", *OPERATORS, "--grace-period=0", "--force", "--wait=false")


def the_operators_are_rolled(cluster: Cluster) -> None:
    """`kubectl rollout restart`, to its end."""
    _nobody_else_is_there()
    cluster.kubectl("rollout", "restart", *DEPLOYMENT)
    _operators_are_ready(cluster)


def _operators_are_ready(cluster: Cluster) -> None:
    cluster.kubectl("rollout", "status", *DEPLOYMENT, f"--timeout={INSTALL}s", within=INSTALL + COMMAND)


@contextmanager
def a_second_operator_leads_too(cluster: Cluster, watched: str) -> Iterator[None]:
    """The chart once more beside it, with a Lease of its own, for one namespace only."""
    name = "second"
    values = f"watchNamespaces={{{watched}}},replicas=1,crds.install=false,rbac.aggregateToUsers=false"
    where = ("--namespace", SYSTEM)
    install = ("--values", str(KIND_VALUES), "--set", values, "--set", "podDisruptionBudget.enabled=false")
    try:
        wait = ("--wait", f"--timeout={INSTALL}s")
        cluster.helm("install", name, str(CHART), *where, *install, *wait)
        yield
    finally:
        cluster.helm("uninstall", name, *where, "--ignore-not-found", "--wait")


def _nobody_else_is_there() -> None:
    """Refuse to take away from a scenario beside this one what it needs."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "mark this scenario `alone`: others run beside it"
