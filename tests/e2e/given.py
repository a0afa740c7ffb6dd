"""Given: what is there before something happens. Each function returns when it is true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from . import jobs, then, timeouts, when
from .kube import Job, Json, Namespace


def objects(namespace: Namespace, manifests: Sequence[Json]) -> None:
    """`kubectl apply` of these manifests."""
    namespace.kubectl("apply", "-f", "-", give=yaml.safe_dump_all(manifests))


def a_submitted_run(namespace: Namespace, *orders: str, name: str = "run", **options: Any) -> Job:
    """A scripted run that was applied, and no more. `options` are those of `jobs.scripted`."""
    objects(namespace, jobs.scripted(name, namespace.cluster.images["trainer"], orders, **options))
    return namespace.job(name)


def a_scripted_run(namespace: Namespace, *orders: str, name: str = "run", **options: Any) -> Job:
    """A scripted run of which the guard has reported a step: trainer, guard and status all work."""
    job = a_submitted_run(namespace, *(orders or ("steps 8",)), name=name, **options)
    then.the_guard_has_counted(job, 1, within=timeouts.START)
    return job


def a_run_with_one_round(namespace: Namespace, **options: Any) -> Job:
    """A scripted run of eight steps whose checkpoint the guard has loaded and scored."""
    job = a_scripted_run(namespace, **options)
    when.the_trainer_is_told(job, "checkpoint")
    then.the_guard_has_evaluated(job)
    return job


def a_grpo_run_that_fires(namespace: Namespace, nodes: int = 1, name: str = "run") -> Job:
    """A tiny GRPO run with a KL stop that any learning reaches; its pods are there."""
    objects(namespace, jobs.grpo_that_fires(name, namespace.cluster.images["trainer"], nodes))
    job = namespace.job(name)
    then.eventually(lambda: len(job.pods) == nodes, f"a pod for each of {nodes} nodes", timeouts.DECISION)
    return job


def the_demo_with(namespace: Namespace, *arguments: str, **env: str) -> Job:
    """The demo's sample with other arguments of the trainer, such as --grader=strict, and environment."""
    rendered = namespace.kubectl("kustomize", str(jobs.DEMO))
    objects(namespace, jobs.demo_with(list(yaml.safe_load_all(rendered)), arguments, env))
    return namespace.job(jobs.DEMO_NAME)


def a_claim(namespace: Namespace, name: str) -> Json:
    """A claim on the default StorageClass, as the source of a volume."""
    objects(namespace, [jobs.claim(name)])
    return {"persistentVolumeClaim": {"claimName": name}}


@contextmanager
def a_claim_for_two_nodes(namespace: Namespace, name: str) -> Iterator[list[Json]]:
    """The manifests of a claim and its volume: the default storage of kind has no ReadWriteMany."""
    cluster, volume = namespace.cluster, f"{namespace.name}-shared"
    (node,) = cluster.kubectl("get", "nodes", "-o", "name").split()
    cluster.on_node(node.removeprefix("node/"), "rm", "-rf", f"/var/{volume}")  # of a test that was killed
    cluster.on_node(node.removeprefix("node/"), "mkdir", "-p", "-m", "0777", f"/var/{volume}")
    claim = jobs.claim(name)
    claim["spec"] |= {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": f"/var/{volume}"},
        "claimRef": {"namespace": namespace.name, "name": name},
    }
    yield [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec},
        claim,
    ]
    cluster.kubectl("delete", "persistentvolume", volume, "--wait=false")
    cluster.on_node(node.removeprefix("node/"), "rm", "-rf", f"/var/{volume}")


def a_claim_with_the_heldout_split(namespace: Namespace, name: str = "heldout") -> Json:
    """A claim that holds the split, as `spec.guard.heldout.volume`."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-files"}}
    secret |= {"stringData": {"heldout.jsonl": jobs.heldout_split()}}
    pod = jobs.loader(f"{name}-loader", namespace.cluster.images["trainer"], name, f"{name}-files")
    objects(namespace, [jobs.claim(name), secret, pod])
    done = ("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}-loader")
    namespace.kubectl(*done, f"--timeout={timeouts.START}s", within=timeouts.START + timeouts.COMMAND)
    namespace.kubectl("delete", f"pod/{name}-loader", f"secret/{name}-files")
    return {"claimName": name}
