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
    count,
    dotted,
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
    pod_labels = (INDEX_LABEL,)

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The one template there is. Its pods must be one run: a single pod, or all ranks at once."""
        self.check_manager(spec)
        index = INDEX_FIELD if check_ranks(spec) else None
        return (PodTemplate(("template",), trainer_of(spec), True, index, limit=limit_of(spec)),)

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Index 0, or the only pod."""
        labels = (pod.get("metadata") or {}).get("labels") or {}
        return str(labels.get(INDEX_LABEL, "0")) == "0"

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By the number of pods that are."""
        return bool(at(workload, "status", "ready"))

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """All ranks at once."""
        return count(spec.get("parallelism"))

    def prepared(self, spec: Json) -> Json:
        """podReplacementPolicy explicit: by default, a new rank 0 starts while the old one still ends."""
        return {"podReplacementPolicy": "Failed"} | copy.deepcopy(spec)

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """The selector, unless its author chose it, the labels that go with it, and a default that hurts.

        A cluster writes `podReplacementPolicy` into every job: of one that has been in a cluster nobody can
        tell whether its author wanted TerminatingOrFailed, so `prepared` decides there.
        """
        spec, in_cluster = workload.get("spec") or {}, (workload.get("metadata") or {}).get("uid") is not None
        default = spec.get("podReplacementPolicy") == "TerminatingOrFailed" and in_cluster
        written: tuple[tuple[str, ...], ...] = (("spec", "podReplacementPolicy"),) if default else ()
        if spec.get("manualSelector") is True:
            return written
        places = (("metadata", "labels"), ("spec", "template", "metadata", "labels"))
        labels = ((*place, label) for place in places for label in _ASSIGNED_LABELS)
        return (*written, ("spec", "selector"), *labels)


def check_ranks(spec: Mapping[str, Any], *where: str | int) -> bool:
    """Whether the pods of a Job, whose spec stands at `where`, have indexes.

    Raises:
        TemplateError: they are not one run, a single pod or all ranks at once; it names the field.
    """
    indexed = spec.get("completionMode") == "Indexed"
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    parallelism = 1 if parallelism is None else parallelism
    if not isinstance(parallelism, int):
        raise TemplateError(dotted((*where, "parallelism")), "must be a whole number")
    if parallelism != 1 and not indexed:
        why = "must be 1 unless completionMode is Indexed: no pod is rank 0"
        raise TemplateError(dotted((*where, "parallelism")), why)
    if completions is not None and completions != parallelism:
        why = f"must be as many as parallelism ({parallelism}): the pods are one run"
        raise TemplateError(dotted((*where, "completions")), why)
    return indexed


def limit_of(spec: Mapping[str, Any], *where: str | int) -> tuple[str | int, ...]:
    """The limit of restarts of a Job, whose spec stands at `where`, if its pods make containers anew."""
    counts = at(spec, "template", "spec", "restartPolicy") == "OnFailure"
    return (*where, "backoffLimit") if counts else ()


def trainer_of(spec: Mapping[str, Any], *where: str | int) -> str:
    """The container that trains, of a Job whose spec stands at `where`.

    Raises:
        TemplateError: there is none that would be it.
    """
    path = ("template", "spec", "containers")
    containers = at(spec, *path)
    names = [
        str(c.get("name"))
        for c in (containers if isinstance(containers, list) else [])
        if isinstance(c, dict)
    ]
    if len(names) == 1:
        return names[0]
    if CONTAINER in names:
        return CONTAINER
    why = f"must have one container, or name the one that trains {CONTAINER}"
    raise TemplateError(dotted((*where, *path)), why)
