"""RayJob of KubeRay (ray.io/v1, seen with v1.5.1): a Ray cluster that is made for one program.

- Guarded is the head: Ray runs the program (the driver) there, unless it is given resources of its own.
- The container that trains is the first one, as KubeRay has it; what it starts inherits its environment.
- Pods are the RayCluster's, and the submitter's a Job's; the RayJob controls both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rlguard.operator.adapters.base import PodTemplate, TemplateError, WorkloadAdapter, WorkloadState, at
from rlguard.operator.adapters.ray import (
    HEAD,
    HEAD_LABELS,
    MANAGER,
    RAY_CLUSTERS,
    first_container,
    group_template,
    groups,
)
from rlguard.operator.api.names import GROUP
from rlguard.operator.runtime.client import BATCH_JOBS, Json, Resource

#: By this label a pod of a Job is known as one that holds no rank.
SUBMITTER_LABEL = f"{GROUP}/submitter"
CLUSTER = "rayClusterSpec"
#: Variables of every node, which win over `envFrom`. The driver stays in the head. And a node that is told to
#: end waits for what runs on it, by default 30 s, for the sake of Ray Serve; Ray gives a program 3 s to stop.
DRIVER = {"name": "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES", "value": "0"}
DRAIN = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "3"}

_NOT_ITS_OWN = "the run would be in a Ray cluster that is not its own: no stop deletes it"
_CLEAN_UP = "after the run KubeRay would start a pod like the head, guard and all, to clean Redis up"
_ON_A_WORKER = "Ray may then run the program on a worker, which no guard is beside. Leave it out"
_TOKEN = (
    "the autoscaler needs a service-account token in the pod of the head, with which the trainer could "
    "change pods. Give the worker groups their replicas"
)
_MODES = ("K8sJobMode", "HTTPMode")


class RayJobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = Resource("ray.io", "v1", "rayjobs", "RayJob")
    manager = MANAGER
    between = (RAY_CLUSTERS,)
    makes = (RAY_CLUSTERS, BATCH_JOBS)
    refused = {
        ("clusterSelector",): _NOT_ITS_OWN,
        (CLUSTER, "enableInTreeAutoscaling"): _TOKEN,
        (CLUSTER, "gcsFaultToleranceOptions"): _CLEAN_UP,
        ("entrypointNumCpus",): _ON_A_WORKER,
        ("entrypointNumGpus",): _ON_A_WORKER,
        ("entrypointResources",): _ON_A_WORKER,
        ("submitterPodTemplate", "spec", "containers", 0, "command"): _ON_A_WORKER,
        ("submitterPodTemplate", "spec", "containers", 0, "args"): _ON_A_WORKER,
    }
    #: KubeRay gives the cluster the annotations of the RayJob; this one is `gcsFaultToleranceOptions` of old.
    refused_annotations = {"ray.io/ft-enabled": _CLEAN_UP}

    def find_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The head, which is guarded, the groups of workers, and the submitter if it has a template."""
        self.check_manager(at(spec, CLUSTER) or {}, CLUSTER)
        if (spec.get("submissionMode") or _MODES[0]) not in _MODES:
            why = (
                "must be K8sJobMode or HTTPMode: in others somebody else starts the program, or a container "
            )
            raise TemplateError("submissionMode", f"{why}that nobody has checked is put beside the guard")
        found = [group_template(spec, group) for group in groups(spec, CLUSTER)]
        if spec.get("submitterPodTemplate") is not None:  # it goes before the others do
            found.append(PodTemplate(("submitterPodTemplate",), "", False, pods=0))
        return tuple(found)

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The head."""
        return HEAD_LABELS

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """The cluster of this try, which is written down before it is made, and the submitter."""
        cluster = at(workload, "status", "rayClusterName")
        return (cluster if isinstance(cluster, str) else "", str(at(workload, "metadata", "name")))

    def trainer(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()) -> str:
        """The first container of the head. What a template may not have for the guard's sake is admitted."""
        if spec.get("clusterSelector"):
            raise TemplateError("clusterSelector", f"must not be set: {_NOT_ITS_OWN}. Name the RayCluster")
        self.check_manager(at(spec, CLUSTER) or {}, CLUSTER)
        return first_container(spec, CLUSTER, HEAD)

    def prepared(self, spec: Json) -> Json:
        """By default the cluster outlives the program, and the submitter's pod has no label of the job's."""
        prepared = super().prepared(spec)
        for group in groups(prepared, CLUSTER):
            ray = at(prepared, *group, "template", "spec", "containers", 0)
            own = [one for one in ray.get("env") or [] if at(one, "name") != DRIVER["name"]]
            drains = any(at(one, "name") == DRAIN["name"] for one in own)
            ray["env"] = [*own, DRIVER, *([] if drains else [DRAIN])]
        if not prepared.get("deletionStrategy"):
            prepared.setdefault("shutdownAfterJobFinishes", True)
        if (prepared.get("submissionMode") or _MODES[0]) == "K8sJobMode":
            given = prepared.get("submitterPodTemplate") or _submitter(spec)
            metadata = given["metadata"] = dict(given.get("metadata") or {})
            metadata["labels"] = {**(metadata.get("labels") or {}), SUBMITTER_LABEL: "true"}
            prepared["submitterPodTemplate"] = given
        return prepared

    def state(self, workload: Mapping[str, Any]) -> tuple[WorkloadState, str]:
        """From the deployment status. One that was found invalid while its cluster is there still runs."""
        status = workload.get("status") or {}
        deployment, made = status.get("jobDeploymentStatus") or "", status.get("rayClusterName")
        if deployment == "Complete" and status.get("jobStatus") == "SUCCEEDED":
            return WorkloadState.SUCCEEDED, str(status.get("message") or "")
        if deployment in {"Complete", "Failed"} or (deployment == "ValidationFailed" and not made):
            reason = status.get("reason") or status.get("jobStatus")
            return WorkloadState.FAILED, ": ".join(map(str, filter(None, (reason, status.get("message")))))
        if deployment in {"", "Suspended"} and at(workload, "spec", "suspend") is True:
            return WorkloadState.SUSPENDED, ""
        runs = deployment in {"Running", "Suspending", "ValidationFailed"}
        return (WorkloadState.RUNNING if runs else WorkloadState.PENDING), ""


def _submitter(spec: Mapping[str, Any]) -> Json:
    """What KubeRay makes where there is no template of it, as the user of the head."""
    pod = at(spec, CLUSTER, HEAD, "template", "spec")
    head = pod["containers"][0]
    container = {"name": "ray-job-submitter", "resources": {
        "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"},
    }}  # fmt: skip
    user = {key: copy.deepcopy(pod[key]) for key in ("securityContext", "imagePullSecrets") if key in pod}
    same = {key: copy.deepcopy(head[key]) for key in ("image", "securityContext") if key in head}
    return {"spec": {"restartPolicy": "Never", "containers": [container | same], **user}}
