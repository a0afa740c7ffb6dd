"""RayCluster of KubeRay (ray.io/v1, seen with v1.5.1), to which jobs are submitted. Only one that exists.

- The program may run on any node of it; its head is what counts as rank 0: without it nothing runs.
- It has no end: when its jobs have ended it stays.
- Its jobs are not asked to stop through Ray's own API: that would have the operator send requests to an
  address that anybody chooses who may make a Service there, and the pods go all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from guard_operator.adapters.base import PodTemplate, TemplateError, WorkloadState, at
from guard_operator.adapters.rayjob import FIRST_CONTAINER, RAY_CLUSTERS, TYPE_LABEL, objects, workers
from guard_operator.runtime.client import Json, Resource

HEAD = ("headGroupSpec", "template")
WORKERS = "workerGroupSpecs"


class RayClusterAdapter:
    """See `guard_operator.adapters.base.WorkloadAdapter` for the contract of each method."""

    resource = RAY_CLUSTERS
    state_fields: tuple[str, ...] = ("suspend",)
    pod_labels: tuple[str, ...] = (TYPE_LABEL,)
    between: tuple[Resource, ...] = ()
    max_name = 53
    refused_annotations: Mapping[str, str] = {}
    only_attached = True
    selects_by_uid = False

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Head and groups of workers."""
        if spec.get("managedBy") not in (None, "ray.io/kuberay-operator"):
            raise TemplateError(
                "managedBy", "must be ray.io/kuberay-operator: pods elsewhere are not stopped"
            )
        name = at(spec, *HEAD, "spec", "containers", 0, "name")
        if not isinstance(name, str):
            raise TemplateError("headGroupSpec.template.spec.containers", FIRST_CONTAINER)
        groups = range(len(list(objects(spec.get(WORKERS)))))
        others = (PodTemplate((WORKERS, number, "template"), "", False) for number in groups)
        return (PodTemplate(HEAD, name, True), *others)

    def pod_selector(self, name: str, uid: str) -> str:  # noqa: ARG002
        """Pods have the name of their cluster."""
        return f"ray.io/cluster={name}"

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """The head."""
        return bool(at(pod, "metadata", "labels", TYPE_LABEL) == "head")

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """Head and workers; where they are scaled by need, nobody knows how many."""
        if spec.get("enableInTreeAutoscaling"):
            return 1
        return 1 + sum(workers(group) for group in objects(spec.get(WORKERS)))

    def prepared(self, spec: Json) -> Json:
        """As it is."""
        return copy.deepcopy(spec)

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002
        """Nothing."""
        return ()

    def state(self, workload: Mapping[str, Any]) -> tuple[WorkloadState, str]:
        """It runs when it is ready, also while no job is submitted, and never ends by itself."""
        if at(workload, "spec", "suspend") is True:
            return WorkloadState.SUSPENDED, ""
        ready = at(workload, "status", "state") == "ready"
        return (WorkloadState.RUNNING if ready else WorkloadState.PENDING), ""
