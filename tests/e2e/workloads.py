"""Runs that are not a PyTorchJob with its guard in it: how each is written, and where its pods are.

`as_…` makes of a GuardedTrainingJob of jobs.py the same run as another kind; the classes are what a cluster
makes of it.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from typing import Any

from rlguard.operator.api.names import guard_name
from rlguard.operator.runtime.client import BATCH_JOBS, PODS, Resource

from . import jobs, then, timeouts
from .kube import JOB_SETS, PYTORCHJOBS, RAY_CLUSTERS, RAY_JOBS, ROOT, TRAIN_JOBS, Job, Json

_RAY = (ROOT / "tests/e2e/cluster/ray/requirements.in").read_text()
RAY_VERSION = _RAY.rpartition("==")[2].strip()
#: What trains in a TrainJob: its replicatedJob, and that one's container.
NODE = "node"
#: Ray's smallest object store, bytes.
_OBJECT_STORE = "80000000"


class PodRun(Job):
    """A run whose guard has a pod of its own."""

    @property
    def set_name(self) -> str:
        return guard_name(self.name, self.uid)

    @property
    def guard_pod(self) -> Json | None:
        return self.client.get(PODS, self.namespace.name, f"{self.set_name}-0")

    def loses_its_guard(self) -> None:
        """`kubectl delete pod` of the guard, until another one is there."""
        pod = self.guard_pod
        assert pod is not None
        lost = pod["metadata"]["uid"]
        self.namespace.kubectl("delete", "pod", f"{self.set_name}-0", "--wait=false")
        then.eventually(
            lambda: (self.guard_pod or pod)["metadata"]["uid"] != lost,
            "another pod of the guard",
            timeouts.REPLACE,
        )


class OtherRun(Job):
    """A run whose workload is not a PyTorchJob."""

    resource: Resource
    #: The label by which the pod of rank 0 is known, with its value; None: the run has no other pod.
    rank0: tuple[str, str] | None = None
    #: The name of the workload where it is somebody's, which the job names and does not own.
    target: str | None = None

    @property
    def workload(self) -> Json | None:
        return self.client.get(self.resource, self.namespace.name, self.target or self.name)

    @property
    def pod_name(self) -> str:
        found = [pod for pod in self.pods if self.rank0 is None or self.rank0 in labels(pod)]
        assert len(found) == 1, [pod["metadata"]["name"] for pod in self.pods]
        return str(found[0]["metadata"]["name"])

    @property
    def everything(self) -> list[Json]:
        """Every pod of the namespace, whoever made it."""
        items: list[Json] = self.client.list(PODS, self.namespace.name, {}).get("items") or []
        return items


class BatchRun(OtherRun):
    """Its workload is a Job."""

    resource = BATCH_JOBS


class JobSetRun(OtherRun):
    """Its workload is a JobSet."""

    resource = JOB_SETS
    rank0 = ("jobset.sigs.k8s.io/replicatedjob-name", "trainer")


class RayRun(OtherRun):
    """Its workload is a RayJob; rank 0 is the head."""

    resource = RAY_JOBS
    rank0 = ("ray.io/node-type", "head")

    @property
    def trainer_container(self) -> str:
        return "ray-head"


class AttachedRun(OtherRun):
    """A run that is somebody's workload, which its job names and does not own."""

    target = "theirs"

    @property
    def pods(self) -> list[Json]:
        """Every pod of its namespace but the guard's, which has one of its own."""
        own = f"{guard_name(self.name, self.uid)}-0"
        return [pod for pod in self.everything if pod["metadata"]["name"] != own]


class AttachedPyTorchRun(AttachedRun):
    """A PyTorchJob."""

    resource = PYTORCHJOBS


class AttachedBatchRun(AttachedRun, BatchRun):
    """A Job."""


class AttachedTrainRun(AttachedRun):
    """A TrainJob."""

    resource = TRAIN_JOBS

    @property
    def trainer_container(self) -> str:
        return NODE


class AttachedRayJobRun(AttachedRun, RayRun):
    """A RayJob."""


class AttachedRayClusterRun(AttachedRun, RayRun):
    """A RayCluster."""

    resource = RAY_CLUSTERS


def labels(pod: Json) -> set[tuple[str, str]]:
    """Those of a pod."""
    return set((pod["metadata"].get("labels") or {}).items())


def as_batch_job(job: Json, **spec: Any) -> Json:
    """As a Job of Kubernetes itself."""
    pod = jobs.pod_spec_of(job) | {"restartPolicy": "Never"}
    return _with(job, BATCH_JOBS, {"backoffLimit": 3, "template": {"spec": pod}} | spec)


def as_jobset(job: Json) -> Json:
    """As a JobSet that would be restarted, with one worker that does nothing beside its trainer."""
    pod = jobs.pod_spec_of(job) | {"restartPolicy": "Never"}
    idle = copy.deepcopy(pod)
    idle["containers"][0]["command"] = ["sh", "-c", "trap exit TERM; sleep 100000 & wait"]
    parts = [("trainer", pod), ("workers", idle)]
    made = [
        {"name": name, "replicas": 1, "template": {"spec": {"backoffLimit": 0, "template": {"spec": one}}}}
        for name, one in parts
    ]
    spec = {"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": made}
    return _with(job, JOB_SETS, spec)


def as_trainjob(job: Json) -> tuple[Json, Json]:
    """As a TrainJob that says what is run, and the runtime that has the rest of its pod."""
    pod = copy.deepcopy(jobs.pod_spec_of(job)) | {"restartPolicy": "Never"}
    (trainer,) = pod["containers"]
    says = {key: trainer.pop(key) for key in ("image", "command", "args") if key in trainer}
    trainer |= {"name": NODE, "image": says["image"]}
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": pod}},
    }
    jobset = {"replicatedJobs": [{"name": NODE, "template": template}]}
    name = job["metadata"]["name"]
    api_version, kind = TRAIN_JOBS.api_version, "TrainingRuntime"
    runtime = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
    runtime |= {"spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": jobset}}}
    spec = {"runtimeRef": {"kind": kind, "name": name}, "trainer": says}
    return runtime, _with(job, TRAIN_JOBS, spec)


def as_rayjob(job: Json, image: str, entrypoint: Sequence[str] | None = None) -> Json:
    """As a RayJob with a head on which no actor runs, and one worker.

    Args:
        job: the run.
        image: with Ray and what the run imports.
        entrypoint: the program, which is the trainer's command if absent. It runs in the head.
    """
    pod = copy.deepcopy(jobs.pod_spec_of(job))
    (trainer,) = pod["containers"]
    program = [*trainer.pop("command"), *trainer.pop("args", [])]
    trainer["image"] = image
    trainer["env"] = [*trainer.get("env", []), {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    trainer["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    worker = copy.deepcopy(pod)
    trainer["name"], worker["containers"][0]["name"] = "ray-head", "ray-worker"
    store = {"object-store-memory": _OBJECT_STORE}
    head = {"rayStartParams": {"num-cpus": "0", **store}, "template": {"spec": pod}}
    group = {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    group |= {"rayStartParams": {"num-cpus": "1", **store}, "template": {"spec": worker}}
    cluster = {"rayVersion": RAY_VERSION, "headGroupSpec": head, "workerGroupSpecs": [group]}
    spec = {"entrypoint": shlex.join(entrypoint or program), "rayClusterSpec": cluster}
    return _with(job, RAY_JOBS, spec)


def as_raycluster(job: Json, image: str) -> Json:
    """As a RayCluster, which no job makes: with a head and one worker."""
    spec = as_rayjob(job, image)["spec"]["template"]["spec"]["rayClusterSpec"]
    return _with(job, RAY_CLUSTERS, spec)


def workload_of(job: Json, name: str) -> Json:
    """The workload of a job with a template, as somebody makes it who knows of no guard."""
    return copy.deepcopy(job["spec"]["template"]) | {"metadata": {"name": name}}


def attached(job: Json, kind: Resource, name: str, log: str) -> Json:
    """The job for a workload that exists.

    Its guard reads `log` in the claim `checkpoints`, and has a claim `state`.
    """
    made = copy.deepcopy(job)
    spec, guard = made["spec"], made["spec"]["guard"]
    spec.pop("template")
    spec["targetRef"] = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name}
    guard |= {
        "placement": "Pod",
        "isolation": "Relaxed",  # its pods have a token of their account
        "checkpoints": {"claimName": "checkpoints"},
        "state": {"claimName": "state"},
    }
    guard["metrics"] = {"follow": {"path": log, "format": "rlguard"}, "checkpoints": {"layout": "trl"}}
    return made


def _with(job: Json, resource: Resource, spec: Json) -> Json:
    made = copy.deepcopy(job)
    made["spec"]["template"] = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
    return made
