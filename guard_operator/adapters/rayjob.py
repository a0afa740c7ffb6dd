"""RayJob of KubeRay (ray.io/v1, seen with v1.5.1): a Ray cluster that is made for one program.

- Guarded is the head: Ray runs the program (the driver) there, unless it is given resources of its own.
- The container that trains is the first one, as KubeRay has it; what it starts inherits its environment.
- Pods are the RayCluster's, and the submitter's a Job's; the RayJob controls both.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guard_operator.adapters.base import (
    OuterAdapter,
    PodTemplate,
    TemplateError,
    WorkloadState,
    at,
    dotted,
)
from guard_operator.api.names import GROUP
from guard_operator.runtime.client import BATCH_JOBS, Json, Resource

RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
TYPE_LABEL = "ray.io/node-type"
#: By this label a pod of a Job is known as one that holds no rank.
SUBMITTER_LABEL = f"{GROUP}/submitter"
SUBMITTER = "ray-job-submitter"
HEAD = ("rayClusterSpec", "headGroupSpec")
WORKERS = ("rayClusterSpec", "workerGroupSpecs")
#: With it Ray may run the driver on any node.
DRIVER_ANYWHERE = "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES"
#: A node of Ray that is asked to end waits so long, seconds, for what runs on it to end by itself, and does
#: not ask it to: by default 30, for the sake of Ray Serve. Ray gives a program that is asked to stop 3 s.
DRAIN, DRAIN_SECONDS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "3"

#: KubeRay gives the cluster the annotations of the RayJob; this one is `gcsFaultToleranceOptions` of old.
FAULT_TOLERANCE = "ray.io/ft-enabled"
_CLEAN_UP = "after the run KubeRay would start a pod like the head, guard and all, to clean Redis up"

SELECTOR = "clusterSelector"
#: Fields of a RayJob that leave no place for a guard, with the reason.
_REFUSED: dict[tuple[str, ...], str] = {
    (SELECTOR,): "the run would be in a Ray cluster that is not its own: no guard is in it, and no "
    "stop deletes it",
    (
        "rayClusterSpec",
        "enableInTreeAutoscaling",
    ): "the autoscaler needs a service-account token in the pod of "
    "the head, with which the trainer could change pods. Give the worker groups their replicas",
    ("rayClusterSpec", "gcsFaultToleranceOptions"): "its Redis credentials are read from any Secret into the "
    "container that trains, and " + _CLEAN_UP,
}
FIRST_CONTAINER = "must have a container with a name: the first one runs Ray"
_DRIVER = "Ray may then run the program on a worker, which no guard is beside. Leave it out"
_MODES = ("K8sJobMode", "HTTPMode")
_MODE = (
    "must be K8sJobMode or HTTPMode: SidecarMode puts a container that nobody has checked beside the guard, "
    "and in InteractiveMode somebody else starts the program"
)


class RayJobAdapter(OuterAdapter):
    """A row of the table."""

    resource = Resource("ray.io", "v1", "rayjobs", "RayJob")
    manager = "ray.io/kuberay-operator"
    pod_labels = (TYPE_LABEL,)
    between = (RAY_CLUSTERS,)
    max_name = 47  # of KubeRay, which fails a job with a longer one after it was made
    refused_annotations = {FAULT_TOLERANCE: _CLEAN_UP}  # noqa: RUF012
    makes = (RAY_CLUSTERS, BATCH_JOBS)

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The head, which is guarded, the groups of workers, and the submitter if it has a template."""
        for path, why in _REFUSED.items():
            if at(spec, *path):
                raise TemplateError(dotted(path), f"must not be set: {why}")
        for field in ("entrypointNumCpus", "entrypointNumGpus", "entrypointResources"):
            if spec.get(field):
                raise TemplateError(field, f"must not be set: {_DRIVER}")
        if (spec.get("submissionMode") or _MODES[0]) not in _MODES:
            raise TemplateError("submissionMode", _MODE)
        self.check_manager(spec)
        self.check_manager(at(spec, "rayClusterSpec") or {}, "rayClusterSpec")
        for field in ("command", "args"):
            own = ("submitterPodTemplate", "spec", "containers", 0, field)
            if at(spec, *own):
                raise TemplateError(
                    dotted(own), f"must not be set: it may give the program resources of its own. {_DRIVER}"
                )
        places = _groups(spec)
        for place in places:
            _check_labels(spec, place)
        templates = (
            PodTemplate((*place, "template"), _trainer(spec, place), place == HEAD) for place in places
        )
        submitter = (("submitterPodTemplate",),) if spec.get("submitterPodTemplate") is not None else ()
        return (*templates, *(PodTemplate(path, "", False) for path in submitter))

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """The cluster of this try, which is written down before it is made, and the submitter."""
        cluster = at(workload, "status", "rayClusterName")
        return (cluster if isinstance(cluster, str) else "", str(at(workload, "metadata", "name")))

    def may_make(self, kind: str, name: str, workload: str) -> bool:
        """A cluster has five more characters, before KubeRay v1.4 also a word; no release cuts a name."""
        if kind == BATCH_JOBS.kind:
            return name == workload
        fits = re.fullmatch(rf"{re.escape(workload)}-(raycluster-)?[a-z0-9]{{5}}", name)
        return fits is not None and len(name) <= 63  # the characters of a label, by which pods have it

    def attached(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> str:  # noqa: ARG002
        """In the head. What a template may not have for the sake of the guard in it is admitted."""
        if spec.get(SELECTOR):
            raise TemplateError(SELECTOR, f"must not be set: {_REFUSED[SELECTOR,]}. Name the RayCluster")
        self.check_manager(spec)
        self.check_manager(at(spec, "rayClusterSpec") or {}, "rayClusterSpec")
        return _first_container(spec, HEAD)

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """The head."""
        return bool(at(pod, "metadata", "labels", TYPE_LABEL) == "head")

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """Head and workers. The submitter comes when they are ready, and goes before they do.

        Where workers are scaled by need, nobody knows how many.
        """
        if at(spec, "rayClusterSpec", "enableInTreeAutoscaling"):
            return 1
        return 1 + sum(workers(group) for group in objects(at(spec, *WORKERS)))

    def prepared(self, spec: Json) -> Json:
        """By default the cluster outlives the program, and the submitter's pod has no label of the job's.

        Where the driver may run is said in the head's own environment, which wins over `envFrom`. How long a
        node waits for its program is said in that of every node, unless its author says it there.
        """
        prepared = copy.deepcopy(spec)
        head = at(prepared, *HEAD, "template", "spec", "containers", 0)
        env = [one for one in head.get("env") or [] if at(one, "name") != DRIVER_ANYWHERE]
        head["env"] = [*env, {"name": DRIVER_ANYWHERE, "value": "0"}]
        for place in _groups(prepared):
            _end_soon(at(prepared, *place, "template", "spec", "containers", 0))
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


def _groups(spec: Mapping[str, Any]) -> list[tuple[str | int, ...]]:
    """Where the head and the groups of workers are.

    Raises:
        TemplateError: the groups are no list.
    """
    groups = at(spec, *WORKERS)
    if not isinstance(groups, list | None):
        raise TemplateError(dotted(WORKERS), "must be a list of objects")
    return [HEAD, *((*WORKERS, number) for number in range(len(groups or [])))]


def _end_soon(ray: Json) -> None:
    """Have a container that runs Ray wait no longer for its program than Ray waits for one that it stops."""
    env = ray.get("env") or []
    if all(at(one, "name") != DRAIN for one in env):
        ray["env"] = [*env, {"name": DRAIN, "value": DRAIN_SECONDS}]


def _trainer(spec: Mapping[str, Any], place: tuple[str | int, ...]) -> str:
    """The first container of a group, which is the one that runs Ray."""
    path = (*place, "template", "spec", "containers")
    name = _first_container(spec, place)
    for variable in objects(at(spec, *path, 0, "env")):
        if variable.get("name") == DRIVER_ANYWHERE and variable.get("value") != "0":
            raise TemplateError(dotted((*path, 0, "env")), f"must not have {DRIVER_ANYWHERE}: {_DRIVER}")
    return name


def _first_container(spec: Mapping[str, Any], place: tuple[str | int, ...]) -> str:
    """Its name."""
    path = (*place, "template", "spec", "containers")
    name = at(spec, *path, 0, "name")
    if not isinstance(name, str):
        raise TemplateError(dotted(path), FIRST_CONTAINER)
    return name


def _check_labels(spec: Mapping[str, Any], place: tuple[str | int, ...]) -> None:
    """The labels of a group win over those of its template, so they must not be the operator's."""
    labels = at(spec, *place, "labels")
    if any(str(label).startswith(f"{GROUP}/") for label in (labels if isinstance(labels, dict) else ())):
        raise TemplateError(
            dotted((*place, "labels")),
            f"must not have labels of {GROUP}: by them the operator finds the pods that it must stop",
        )


def workers(group: Any) -> int:
    """Pods of a group of workers: as many as it wants, within its own limits."""
    if at(group, "suspend") is True:
        return 0
    least, wanted = _number(group, "minReplicas", 0), _number(group, "replicas", 0)
    wanted = min(max(least, wanted), _number(group, "maxReplicas", max(least, wanted)))
    return wanted * _number(group, "numOfHosts", 1)


def _number(group: Any, field: str, default: int) -> int:
    value = at(group, field)
    return value if isinstance(value, int) else default


def _submitter(spec: Mapping[str, Any]) -> Json:
    """What KubeRay makes where there is no template of it, as the user of the head."""
    pod = at(spec, *HEAD, "template", "spec")
    head = pod["containers"][0]
    container = {"name": SUBMITTER, "resources": {
        "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"},
    }}  # fmt: skip
    user = {key: copy.deepcopy(pod[key]) for key in ("securityContext", "imagePullSecrets") if key in pod}
    same = {key: copy.deepcopy(head[key]) for key in ("image", "securityContext") if key in head}
    return {"spec": {"restartPolicy": "Never", "containers": [container | same], **user}}


def objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Those items of a list that are objects."""
    yield from (one for one in (value if isinstance(value, list) else []) if isinstance(one, dict))
