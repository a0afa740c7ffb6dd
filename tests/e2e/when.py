"""When: what happens to a run. Nothing here waits for what comes of it; that is for then.py."""

from __future__ import annotations

from .kube import GUARD_CONTAINER, TRAINER_CONTAINER, Job


def the_trainer_is_told(job: Job, *orders: str) -> None:
    """Give a scripted trainer further orders; see scripted_trainer.py."""
    lines = "\n".join(orders)
    job.exec(TRAINER_CONTAINER, "sh", "-c", 'echo "$0" >> /scratch/orders', lines)


def the_trainer_fires(job: Job) -> None:
    """A scripted trainer reports a KL far beyond the KL stop; the guard latches."""
    the_trainer_is_told(job, "fire")


def a_container_is_killed(job: Job, name: str) -> str:
    """SIGKILL to a container's first process, from the node. The ID of the container that died."""
    container = job.container(name)["containerID"].removeprefix("containerd://")
    node = job.pod["spec"]["nodeName"]
    cluster = job.namespace.cluster
    cluster.on_node(node, "ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", container)
    return str(container)


def the_guard_is_killed(job: Job) -> str:
    """Kill the guard's container; its ID."""
    return a_container_is_killed(job, GUARD_CONTAINER)


def the_trainer_is_killed(job: Job) -> str:
    """Kill the trainer's container (exit code 137); its ID."""
    return a_container_is_killed(job, TRAINER_CONTAINER)


def the_pod_is_deleted(job: Job) -> str:
    """`kubectl delete pod` of rank 0; the UID of the pod that goes."""
    uid = str(job.pod["metadata"]["uid"])
    job.namespace.kubectl("delete", "pod", f"{job.name}-master-0", "--wait=false")
    return uid
