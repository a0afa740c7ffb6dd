"""RayCluster of KubeRay (ray.io/v1, seen with v1.5.1), to which jobs are submitted. Only one that exists.

- The program may run on any node of it; its head is what counts as rank 0: without it nothing runs.
- It has no end: when its jobs have ended it stays.
- Its jobs are not asked to stop through Ray's own API: that would have the operator send requests to an
  address that anybody chooses who may make a Service there, and the pods go all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_operator.adapters.base import PodTemplate, TemplateError, WorkloadAdapter, at
from guard_operator.adapters.rayjob import FIRST_CONTAINER, RAY_CLUSTERS, TYPE_LABEL, objects, workers

HEAD = ("headGroupSpec", "template")
WORKERS = "workerGroupSpecs"


class RayClusterAdapter(WorkloadAdapter):
    """A row of the table. It runs when it is ready, also while no job is submitted, and has no end."""

    resource = RAY_CLUSTERS
    manager = "ray.io/kuberay-operator"
    selector = "ray.io/cluster={name}"
    pod_labels = (TYPE_LABEL,)
    max_name = 53
    only_attached = True

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Head and groups of workers."""
        self.check_manager(spec)
        name = at(spec, *HEAD, "spec", "containers", 0, "name")
        if not isinstance(name, str):
            raise TemplateError("headGroupSpec.template.spec.containers", FIRST_CONTAINER)
        groups = range(len(list(objects(spec.get(WORKERS)))))
        others = (PodTemplate((WORKERS, number, "template"), "", False) for number in groups)
        return (PodTemplate(HEAD, name, True), *others)

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """The head."""
        return bool(at(pod, "metadata", "labels", TYPE_LABEL) == "head")

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """Head and workers; where they are scaled by need, nobody knows how many."""
        if spec.get("enableInTreeAutoscaling"):
            return 1
        return 1 + sum(workers(group) for group in objects(spec.get(WORKERS)))

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """As KubeRay says."""
        return bool(at(workload, "status", "state") == "ready")
