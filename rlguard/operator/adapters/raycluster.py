"""RayCluster of KubeRay (ray.io/v1, seen with v1.5.1), to which jobs are submitted. Only one that exists.

The program may run on any node of it. A RayCluster has no end: when its jobs have ended it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlguard.operator.adapters.base import WorkloadAdapter, at
from rlguard.operator.adapters.ray import HEAD, HEAD_LABELS, MANAGER, RAY_CLUSTERS, first_container


class RayClusterAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = RAY_CLUSTERS
    manager = MANAGER
    selector = "ray.io/cluster={name}"
    only_attached = True

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The head."""
        return HEAD_LABELS

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """As KubeRay says; also while no job is submitted."""
        return bool(at(workload, "status", "state") == "ready")

    def trainer(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()) -> str:
        """The container of the head that runs Ray."""
        return first_container(spec, HEAD)
