"""Job of Kubernetes itself (batch/v1), for a run that needs no training-operator.

- Guarded are one pod, or the pods of an Indexed job that all run at once; then rank 0 is index 0.
- The container that trains is the only one, or the one named `trainer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlguard.operator.adapters.base import PodTemplate, WorkloadAdapter, WorkloadState, at
from rlguard.operator.adapters.batch import INDEX_LABEL, rank0_template
from rlguard.operator.runtime.client import BATCH_JOBS

#: What the API server writes into the pod template of a Job, and refuses in a new one of another UID.
_ASSIGNED_LABELS = (
    "controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name",
)  # fmt: skip


class JobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = BATCH_JOBS
    conditions = {"Failed": WorkloadState.FAILED, "Complete": WorkloadState.SUCCEEDED}
    manager = "kubernetes.io/job-controller"
    selector = "batch.kubernetes.io/controller-uid={uid}"  # unless its author chose its selector
    # By default, a new rank 0 starts while the old one still ends.
    defaults = {("podReplacementPolicy",): "Failed"}

    def find_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The one template there is."""
        return (rank0_template(spec),)

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Index 0, or the only pod."""
        return {INDEX_LABEL: "0"}

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By the number of pods that are."""
        return bool(at(workload, "status", "ready"))

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """The selector, unless its author chose it, its labels, and a default that nobody may have wanted."""
        spec, in_cluster = workload.get("spec") or {}, at(workload, "metadata", "uid") is not None
        default = in_cluster and spec.get("podReplacementPolicy") == "TerminatingOrFailed"
        written: tuple[tuple[str, ...], ...] = (("spec", "podReplacementPolicy"),) if default else ()
        if spec.get("manualSelector") is True:
            return written
        places = (("metadata", "labels"), ("spec", "template", "metadata", "labels"))
        labels = ((*place, label) for place in places for label in _ASSIGNED_LABELS)
        return (*written, ("spec", "selector"), *labels)
