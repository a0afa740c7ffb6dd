"""PyTorchJob of the Kubeflow training-operator v1 (kubeflow.org/v1, seen with v1.8.1).

- Rank 0 is the Master; without a Master it is Worker 0.
- Its webhook refuses every patch while the training-operator is down; a delete still passes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from guard_operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    count,
)
from guard_operator.runtime.client import Json, Resource

#: The controller reads the exit code of this container only.
CONTAINER = "pytorch"
INDEX_LABEL = "training.kubeflow.org/replica-index"
TYPE_LABEL = "training.kubeflow.org/replica-type"
INDEX_FIELD = f"metadata.labels['{INDEX_LABEL}']"
_LIMIT = ("runPolicy", "backoffLimit")


class PyTorchJobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
    manager = "kubeflow.org/training-operator"
    conditions = {  # noqa: RUF012
        "Failed": WorkloadState.FAILED,
        "Succeeded": WorkloadState.SUCCEEDED,
        "Suspended": WorkloadState.SUSPENDED,
        "Running": WorkloadState.RUNNING,
    }
    policy = ("runPolicy",)
    selector = "training.kubeflow.org/job-name={name}"

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Master and Worker; the guarded one is the Master, or the Worker where there is no Master."""
        self.check(spec)
        replicas = spec.get("pytorchReplicaSpecs")
        if not isinstance(replicas, dict) or not replicas:
            raise TemplateError("pytorchReplicaSpecs", "must have a Master or a Worker")
        if unknown := replicas.keys() - {"Master", "Worker"}:
            raise TemplateError(f"pytorchReplicaSpecs.{min(unknown)}", "must be Master or Worker")
        rank0 = "Master" if "Master" in replicas else "Worker"
        return tuple(
            PodTemplate(
                path=("pytorchReplicaSpecs", role, "template"),
                container=CONTAINER,
                guarded=role == rank0,
                index_field=INDEX_FIELD if role == rank0 == "Worker" else None,
                limit=_LIMIT if _counts_restarts(spec, role) else (),
                elastic=("elasticPolicy",) if spec.get("elasticPolicy") is not None else (),
                pods=count(at(replicas[role], "replicas")),
            )
            for role in ("Master", "Worker")
            if role in replicas
        )

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Index 0 of the Master, or of the Worker where there is no Master."""
        replicas = _replicas(spec)
        rank0 = "worker" if "Worker" in replicas and "Master" not in replicas else "master"
        return {TYPE_LABEL: rank0, INDEX_LABEL: "0"}

    def prepared(self, spec: Json) -> Json:
        """cleanPodPolicy explicit: by default, workers go on running behind a finished Master."""
        prepared = copy.deepcopy(spec)
        if isinstance(policy := prepared.setdefault("runPolicy", {}), dict):
            policy.setdefault("cleanPodPolicy", "Running")
        return prepared


def _counts_restarts(spec: Mapping[str, Any], role: str) -> bool:
    """Whether restarts of this replica's containers count: by default they are made anew (OnFailure)."""
    limited = at(spec, *_LIMIT) is not None
    return limited and at(spec, "pytorchReplicaSpecs", role, "restartPolicy") != "Never"


def _replicas(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Master and Worker, as far as there are any: a template may have any shape until it is refused."""
    replicas = spec.get("pytorchReplicaSpecs")
    return replicas if isinstance(replicas, dict) else {}
