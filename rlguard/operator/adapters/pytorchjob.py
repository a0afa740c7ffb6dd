"""PyTorchJob of the Kubeflow training-operator v1 (kubeflow.org/v1, seen with v1.8.1).

- Rank 0 is the Master; without a Master it is Worker 0.
- Its webhook refuses every patch while the training-operator is down; a delete still passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlguard.operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    count,
)
from rlguard.operator.runtime.client import Resource

#: The controller reads the exit code of this container only.
CONTAINER = "pytorch"
INDEX_LABEL, TYPE_LABEL = "training.kubeflow.org/replica-index", "training.kubeflow.org/replica-type"
REPLICAS, LIMIT = "pytorchReplicaSpecs", ("runPolicy", "backoffLimit")


class PyTorchJobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
    manager = "kubeflow.org/training-operator"
    conditions = {
        "Failed": WorkloadState.FAILED,
        "Succeeded": WorkloadState.SUCCEEDED,
        "Suspended": WorkloadState.SUSPENDED,
        "Running": WorkloadState.RUNNING,
    }
    policy = ("runPolicy",)
    selector = "training.kubeflow.org/job-name={name}"
    # By default, workers go on running behind a finished Master.
    defaults = {("runPolicy", "cleanPodPolicy"): "Running"}

    def find_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Master and Worker; the guarded one is the Master, or the Worker where there is no Master."""
        replicas = spec.get(REPLICAS)
        if not isinstance(replicas, dict) or not replicas:
            raise TemplateError(REPLICAS, "must have a Master or a Worker")
        if unknown := replicas.keys() - {"Master", "Worker"}:
            raise TemplateError(f"{REPLICAS}.{min(unknown)}", "must be Master or Worker")
        return tuple(_template(spec, role) for role in ("Master", "Worker") if role in replicas)

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Index 0 of the Master, or of the Worker where there is no Master."""
        return {TYPE_LABEL: _rank0(spec).lower(), INDEX_LABEL: "0"}


def _rank0(spec: Mapping[str, Any]) -> str:
    alone = at(spec, REPLICAS, "Worker") is not None and at(spec, REPLICAS, "Master") is None
    return "Worker" if alone else "Master"


def _template(spec: Mapping[str, Any], role: str) -> PodTemplate:
    rank0, replica = _rank0(spec), at(spec, REPLICAS, role)
    # Unless a replica says Never, its containers are started again in their pods, and that is counted.
    counts = at(spec, *LIMIT) is not None and at(replica, "restartPolicy") != "Never"
    return PodTemplate(
        path=(REPLICAS, role, "template"),
        container=CONTAINER,
        guarded=role == rank0,
        index_field=f"metadata.labels['{INDEX_LABEL}']" if role == rank0 == "Worker" else None,
        limit=LIMIT if counts else (),
        elastic=("elasticPolicy",) if spec.get("elasticPolicy") is not None else (),
        pods=count(at(replica, "replicas")),
    )
