"""Job of Kubernetes itself (batch/v1), for a run that needs no training-operator.

- Guarded are one pod, or the pods of an Indexed job that all run at once; then rank 0 is index 0.
- The container that trains is the only one, or the one named `trainer`.
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
    dotted,
    objects,
)
from guard_operator.runtime.client import BATCH_JOBS, Json

CONTAINER = "trainer"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
INDEX_FIELD = f"metadata.labels['{INDEX_LABEL}']"
#: What the API server writes into the pod template of a Job, and refuses in a new one of another UID.
_ASSIGNED_LABELS = (
    "controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name",
)  # fmt: skip


class JobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = BATCH_JOBS
    conditions = {"Failed": WorkloadState.FAILED, "Complete": WorkloadState.SUCCEEDED}  # noqa: RUF012
    manager = "kubernetes.io/job-controller"
    selector = "batch.kubernetes.io/controller-uid={uid}"  # unless its author chose its selector

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The one template there is."""
        self.check(spec)
        return (rank0_template(spec),)

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG002
        """Index 0, or the only pod."""
        return {INDEX_LABEL: "0"}

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By the number of pods that are."""
        return bool(at(workload, "status", "ready"))

    def prepared(self, spec: Json) -> Json:
        """podReplacementPolicy explicit: by default, a new rank 0 starts while the old one still ends."""
        return {"podReplacementPolicy": "Failed"} | copy.deepcopy(spec)

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """The selector, unless its author chose it, the labels that go with it, and a default that hurts.

        A cluster writes `podReplacementPolicy` into every job: of one that has been in a cluster nobody can
        tell whether its author wanted TerminatingOrFailed, so `prepared` decides there.
        """
        spec, in_cluster = workload.get("spec") or {}, at(workload, "metadata", "uid") is not None
        default = in_cluster and spec.get("podReplacementPolicy") == "TerminatingOrFailed"
        written: tuple[tuple[str, ...], ...] = (("spec", "podReplacementPolicy"),) if default else ()
        if spec.get("manualSelector") is True:
            return written
        places = (("metadata", "labels"), ("spec", "template", "metadata", "labels"))
        labels = ((*place, label) for place in places for label in _ASSIGNED_LABELS)
        return (*written, ("spec", "selector"), *labels)


def rank0_template(spec: Mapping[str, Any], *where: str | int) -> PodTemplate:
    """The guarded template of a Job whose spec stands at `where`.

    Raises:
        TemplateError: its pods are not one run, a single pod or all ranks at once, or none trains.
    """
    indexed, ranks = spec.get("completionMode") == "Indexed", spec.get("parallelism")
    ranks = 1 if ranks is None else ranks
    if not isinstance(ranks, int):
        raise TemplateError(dotted((*where, "parallelism")), "must be a whole number")
    if ranks != 1 and not indexed:
        why = "must be 1 unless completionMode is Indexed: no pod is rank 0"
        raise TemplateError(dotted((*where, "parallelism")), why)
    if spec.get("completions") not in (None, ranks):
        why = f"must be as many as parallelism ({ranks}): the pods are one run"
        raise TemplateError(dotted((*where, "completions")), why)
    path = (*where, "template")
    names = [str(one.get("name")) for one in objects(at(spec, "template", "spec", "containers"))]
    if len(names) != 1 and CONTAINER not in names:
        why = f"must have one container, or name the one that trains {CONTAINER}"
        raise TemplateError(dotted((*path, "spec", "containers")), why)
    counts_restarts = at(spec, "template", "spec", "restartPolicy") == "OnFailure"
    return PodTemplate(
        path,
        container=names[0] if len(names) == 1 else CONTAINER,
        guarded=True,
        index_field=INDEX_FIELD if indexed else None,
        limit=(*where, "backoffLimit") if counts_restarts else (),
        pods=ranks,
    )
