"""RayJob of KubeRay (ray.io/v1, seen with v1.5.1): a Ray cluster that is made for one program.

- Guarded is the head: Ray runs the program (the driver) there, unless it is given resources of its own.
- The container that trains is the first one, as KubeRay has it; what it starts inherits its environment.
- Pods are the RayCluster's, and the submitter's a Job's; the RayJob controls both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guard_operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    count,
    dotted,
)
from guard_operator.api.names import GROUP
from guard_operator.runtime.client import BATCH_JOBS, Json, Resource

RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
TYPE_LABEL = "ray.io/node-type"
#: By this label a pod of a Job is known as one that holds no rank.
SUBMITTER_LABEL = f"{GROUP}/submitter"
CLUSTER = "rayClusterSpec"
HEAD, WORKERS = (CLUSTER, "headGroupSpec"), (CLUSTER, "workerGroupSpecs")
#: With it Ray may run the driver on any node.
DRIVER_ANYWHERE = "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES"
#: A node of Ray that is asked to end waits so long, seconds, for what runs on it to end by itself, and does
#: not ask it to: by default 30, for the sake of Ray Serve. Ray gives a program that is asked to stop 3 s.
DRAIN, DRAIN_SECONDS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "3"

_NOT_ITS_OWN = "the run would be in a Ray cluster that is not its own: no stop deletes it"
_CLEAN_UP = "after the run KubeRay would start a pod like the head, guard and all, to clean Redis up"
_DRIVER = "Ray may then run the program on a worker, which no guard is beside. Leave it out"
_MODES = ("K8sJobMode", "HTTPMode")


class RayJobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = Resource("ray.io", "v1", "rayjobs", "RayJob")
    manager = "ray.io/kuberay-operator"
    between = (RAY_CLUSTERS,)
    makes = (RAY_CLUSTERS, BATCH_JOBS)
    max_name = 47  # of KubeRay, which fails a job with a longer one after it was made
    refused = {  # noqa: RUF012
        ("clusterSelector",): _NOT_ITS_OWN,
        (
            CLUSTER,
            "enableInTreeAutoscaling",
        ): "the autoscaler needs a service-account token in the pod of the "
        "head, with which the trainer could change pods. Give the worker groups their replicas",
        (CLUSTER, "gcsFaultToleranceOptions"): _CLEAN_UP,
        ("entrypointNumCpus",): _DRIVER,
        ("entrypointNumGpus",): _DRIVER,
        ("entrypointResources",): _DRIVER,
        ("submitterPodTemplate", "spec", "containers", 0, "command"): _DRIVER,
        ("submitterPodTemplate", "spec", "containers", 0, "args"): _DRIVER,
    }
    #: KubeRay gives the cluster the annotations of the RayJob; this one is `gcsFaultToleranceOptions` of old.
    refused_annotations = {"ray.io/ft-enabled": _CLEAN_UP}  # noqa: RUF012

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The head, which is guarded, the groups of workers, and the submitter if it has a template."""
        self.check(spec)
        self.check_manager(at(spec, CLUSTER) or {}, CLUSTER)
        if (spec.get("submissionMode") or _MODES[0]) not in _MODES:
            why = (
                "must be K8sJobMode or HTTPMode: in others somebody else starts the program, or a container "
            )
            raise TemplateError("submissionMode", f"{why}that nobody has checked is put beside the guard")
        templates = tuple(_template(spec, place) for place in _groups(spec))
        submitter = spec.get("submitterPodTemplate") is not None
        # It comes once the others are ready, and goes before they do.
        return (
            *templates,
            *((PodTemplate(("submitterPodTemplate",), "", False, pods=0),) if submitter else ()),
        )

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG002
        """The head."""
        return {TYPE_LABEL: "head"}

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """The cluster of this try, which is written down before it is made, and the submitter."""
        cluster = at(workload, "status", "rayClusterName")
        return (cluster if isinstance(cluster, str) else "", str(at(workload, "metadata", "name")))

    def trainer(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()) -> str:  # noqa: ARG002
        """The first container of the head. What a template may not have for the guard's sake is admitted."""
        if spec.get("clusterSelector"):
            raise TemplateError("clusterSelector", f"must not be set: {_NOT_ITS_OWN}. Name the RayCluster")
        self.check_manager(spec)
        self.check_manager(at(spec, CLUSTER) or {}, CLUSTER)
        return first_container(spec, *HEAD)

    def prepared(self, spec: Json) -> Json:
        """By default the cluster outlives the program, and the submitter's pod has no label of the job's.

        Where the driver may run is said in the head's own environment, which wins over `envFrom`. How long a
        node waits for its program is said in that of every node, unless its author says it there.
        """
        prepared = copy.deepcopy(spec)
        for place in _groups(prepared):
            ray = at(prepared, *place, "template", "spec", "containers", 0)
            own = [one for one in ray.get("env") or [] if place != HEAD or at(one, "name") != DRIVER_ANYWHERE]
            if all(at(one, "name") != DRAIN for one in own):
                own.append({"name": DRAIN, "value": DRAIN_SECONDS})
            driver = [{"name": DRIVER_ANYWHERE, "value": "0"}] if place == HEAD else []
            ray["env"] = [*own, *driver]
        if not prepared.get("deletionStrategy"):
            prepared.setdefault("shutdownAfterJobFinishes", True)
        if (prepared.get("submissionMode") or _MODES[0]) == "K8sJobMode":
            submitter = prepared["submitterPodTemplate"] = prepared.get("submitterPodTemplate") or _submitter(
                spec
            )
            metadata = submitter["metadata"] = dict(submitter.get("metadata") or {})
            metadata["labels"] = {**(metadata.get("labels") or {}), SUBMITTER_LABEL: "true"}
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


def first_container(spec: Mapping[str, Any], *group: str | int) -> str:
    """The name of the container of a group that runs Ray.

    Raises:
        TemplateError: there is none.
    """
    path = (*group, "template", "spec", "containers")
    name = at(spec, *path, 0, "name")
    if not isinstance(name, str):
        raise TemplateError(dotted(path), "must have a container with a name: the first one runs Ray")
    return name


def _groups(spec: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Where the head and the groups of workers are.

    Raises:
        TemplateError: the groups are no list.
    """
    groups = at(spec, *WORKERS)
    if not isinstance(groups, list | None):
        raise TemplateError(dotted(WORKERS), "must be a list of objects")
    yield HEAD
    yield from ((*WORKERS, number) for number in range(len(groups or [])))


def _template(spec: Mapping[str, Any], group: tuple[str | int, ...]) -> PodTemplate:
    """That of a group, whose own labels win over those of its template."""
    labels = at(spec, *group, "labels")
    if any(str(label).startswith(f"{GROUP}/") for label in (labels if isinstance(labels, dict) else ())):
        why = f"must not have labels of {GROUP}: by them the operator finds the pods that it must stop"
        raise TemplateError(dotted((*group, "labels")), why)
    place, container = (*group, "template"), first_container(spec, *group)
    if group == HEAD:
        return PodTemplate(place, container, guarded=True)
    pods = count(at(spec, *group, "replicas") or 0) * count(at(spec, *group, "numOfHosts"))
    return PodTemplate(place, container, guarded=False, pods=pods)


def _submitter(spec: Mapping[str, Any]) -> Json:
    """What KubeRay makes where there is no template of it, as the user of the head."""
    pod = at(spec, *HEAD, "template", "spec")
    head = pod["containers"][0]
    container = {"name": "ray-job-submitter", "resources": {
        "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"},
    }}  # fmt: skip
    user = {key: copy.deepcopy(pod[key]) for key in ("securityContext", "imagePullSecrets") if key in pod}
    same = {key: copy.deepcopy(head[key]) for key in ("image", "securityContext") if key in head}
    return {"spec": {"restartPolicy": "Never", "containers": [container | same], **user}}
