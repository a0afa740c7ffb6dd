"""When: what happens to a run. Nothing here waits for what comes of it; that is for then.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlguard.operator.runtime.client import PODS

from . import faults, then, timeouts
from .kube import GUARD_CONTAINER, RELEASE, SYSTEM, Cluster, Job


def the_trainer_is_told(job: Job, *orders: str) -> None:
    """Give a scripted trainer further orders; see scripted_trainer.py."""
    lines = "\n".join(orders)
    job.exec(job.trainer_container, "sh", "-c", 'echo "$0" >> /scratch/orders', lines)


def the_trainer_fires(job: Job) -> None:
    """A scripted trainer reports a KL far beyond the KL stop; the guard latches."""
    the_trainer_is_told(job, "fire")


def a_container_is_killed(job: Job, name: str) -> str:
    """SIGKILL to a container's first process, from the node. The ID of the container that died.

    A guard may have heard a trainer before the kubelet has told the API server that it runs.
    """
    then.a_container_runs(job, name)
    return job.namespace.cluster.signal(job.pod, name, "SIGKILL")


def the_guard_is_killed(job: Job) -> str:
    """Kill the guard's container; its ID."""
    return a_container_is_killed(job, GUARD_CONTAINER)


def the_trainer_is_killed(job: Job) -> str:
    """Kill the trainer's container (exit code 137); its ID."""
    return a_container_is_killed(job, job.trainer_container)


def the_pod_is_deleted(job: Job) -> str:
    """`kubectl delete pod` of rank 0; the UID of the pod that goes."""
    uid = str(job.pod["metadata"]["uid"])
    job.namespace.kubectl("delete", "pod", job.pod_name, "--wait=false")
    return uid


@contextmanager
def the_pod_is_evicted(job: Job) -> Iterator[None]:
    """What `kubectl drain` asks for: the eviction of the pod of rank 0, which is there until the `with` ends.

    A finalizer keeps it: of one that is gone before it was seen to fail training-operator makes another, and
    the run goes on.
    """
    pod, namespace = job.pod_name, job.namespace
    metadata = {"name": pod, "namespace": namespace.name}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    finalizers = ("patch", "pod", pod, "--type=merge", "--patch")
    namespace.kubectl(*finalizers, '{"metadata": {"finalizers": ["rlguard.dev/test"]}}')
    try:
        job.client.request("POST", PODS.path(namespace.name, pod, "eviction"), body=body)
        yield
    finally:
        namespace.kubectl(*finalizers, '{"metadata": {"finalizers": null}}')


@contextmanager
def the_operator_is_away(cluster: Cluster) -> Iterator[None]:
    """No operator runs inside the `with`; afterwards there are as many as before, and ready."""
    faults.nobody_else_is_there()
    deployment = ("--namespace", SYSTEM, f"deployment/{RELEASE}")
    replicas = cluster.kubectl("get", *deployment, "--output=jsonpath={.spec.replicas}")
    pods = ("pods", "--namespace", SYSTEM, f"--selector=app.kubernetes.io/instance={RELEASE}")
    cluster.kubectl("scale", *deployment, "--replicas=0")
    cluster.kubectl("wait", "--for=delete", *pods, f"--timeout={timeouts.COMMAND}s")
    try:
        yield
    finally:
        cluster.kubectl("scale", *deployment, f"--replicas={replicas}")
        ready = ("rollout", "status", *deployment, f"--timeout={timeouts.INSTALL}s")
        cluster.kubectl(*ready, within=timeouts.INSTALL + timeouts.COMMAND)
