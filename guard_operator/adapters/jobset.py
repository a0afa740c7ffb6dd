"""JobSet (jobset.x-k8s.io/v1alpha2, seen with v0.11.1): several Jobs that are one run.

- Rank 0 is the first pod of the first Job of one replicatedJob: the coordinator's, else the only one, else
  the one named `trainer`. The container that trains is as in a Job.
- Pods are a Job's, which the JobSet controls.
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
from guard_operator.adapters.job import (
    CONTAINER,
    INDEX_FIELD,
    INDEX_LABEL,
    JobAdapter,
    check_ranks,
    limit_of,
    trainer_of,
)
from guard_operator.runtime.client import BATCH_JOBS, Json, Resource

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
NAME_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_LABEL = "jobset.sigs.k8s.io/job-index"
JOB_FIELD = f"metadata.labels['{JOB_LABEL}']"
_RESTARTS = ("template", "spec", "template", "spec", "restartPolicy")
_JOB = JobAdapter()


class JobSetAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = JOB_SETS
    conditions = {"Failed": WorkloadState.FAILED, "Completed": WorkloadState.SUCCEEDED}  # noqa: RUF012
    manager = "jobset.sigs.k8s.io/jobset-controller"
    selector = "jobset.sigs.k8s.io/jobset-uid={uid}"
    pod_labels = (NAME_LABEL, JOB_LABEL, INDEX_LABEL)
    between = (BATCH_JOBS,)

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """That of every replicatedJob; guarded is the one with rank 0."""
        self.check_manager(spec)
        if spec.get("volumeClaimPolicies"):
            raise TemplateError("volumeClaimPolicies", "must not be set: JobSet adds volumes after the check")
        rank0 = _rank0(spec)
        return tuple(_template(number, job, job == rank0) for number, job in enumerate(replicated_jobs(spec)))

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        """The first pod of the first Job of its replicatedJob."""
        labels = at(pod, "metadata", "labels") or {}
        first = all(str(labels.get(label, "0")) == "0" for label in (JOB_LABEL, INDEX_LABEL))
        return first and labels.get(NAME_LABEL, "") == _name_of_rank0(spec)

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By its Jobs."""
        return any(at(job, "ready") for job in at(workload, "status", "replicatedJobsStatus") or [])

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """All ranks at once. Jobs that wait for others come later, so only what need not wait is counted."""
        jobs = at(spec, "replicatedJobs")
        return sum(
            count(at(job, "replicas")) * count(at(job, "template", "spec", "parallelism"))
            for job in (jobs if isinstance(jobs, list) else [])
            if not at(job, "dependsOn")
        )

    def prepared(self, spec: Json) -> Json:
        """Defaults made explicit that would hurt."""
        prepared = copy.deepcopy(spec)
        for job in replicated_jobs(prepared):
            own = job["template"]["spec"]
            own.setdefault("completionMode", "Indexed")
            # With it JobSet refuses the names that are too long for a pod; the Job controller cuts them.
            own.setdefault("completions", count(own.get("parallelism")))
        spell_out(_rank0(prepared))
        return prepared

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """A default that hurts: JobSet's webhook writes `restartPolicy: OnFailure` where a pod says nothing.

        Of one that has been in a cluster nobody can tell whether its author wanted it, so `prepared` decides.
        """
        if at(workload, "metadata", "uid") is None:
            return ()
        jobs, rank0 = at(workload, "spec", "replicatedJobs"), _name_of_rank0(workload.get("spec") or {})
        return tuple(
            ("spec", "replicatedJobs", str(number), *_RESTARTS)
            for number, job in enumerate(jobs if isinstance(jobs, list) else [])
            if at(job, "name") == rank0 and at(job, *_RESTARTS) == "OnFailure"
        )


def replicated_jobs(spec: Mapping[str, Any], *where: str) -> list[Json]:
    """The replicatedJobs of a JobSet, whose spec stands at `where`.

    Raises:
        TemplateError: there is none, or one has not the shape that is relied on.
    """
    path = (*where, "replicatedJobs")
    jobs = at(spec, *path)
    if not isinstance(jobs, list) or not jobs:
        raise TemplateError(dotted(path), "must have a replicatedJob")
    for number, job in enumerate(jobs):
        if not isinstance(at(job, "name"), str) or not isinstance(at(job, "template", "spec"), dict):
            raise TemplateError(dotted((*path, number)), "must have a name and a template with a spec")
        _JOB.check_manager(job["template"]["spec"], *path, number, "template", "spec")
    return jobs


def spell_out(rank0: Json) -> None:
    """Write down what would hurt by default in the replicatedJob with rank 0."""
    spec = rank0["template"]["spec"]
    # A new rank 0 starts while the old one still ends,
    spec.setdefault("podReplacementPolicy", "Failed")
    # and a restart of the guard counts as a failure of the Job.
    if isinstance(pod := at(spec, "template", "spec"), dict):
        pod.setdefault("restartPolicy", "Never")


def _name_of_rank0(spec: Mapping[str, Any]) -> Any:
    """What the replicatedJob with rank 0 is called, if there is one."""
    jobs, coordinator = at(spec, "replicatedJobs"), at(spec, "coordinator")
    if coordinator is not None:
        return at(coordinator, "replicatedJob")
    return at(jobs, 0, "name") if isinstance(jobs, list) and len(jobs) == 1 else CONTAINER


def _rank0(spec: Mapping[str, Any]) -> Json:
    """The replicatedJob with rank 0.

    Raises:
        TemplateError: nothing tells which it is, or it is not the first pod of a first Job.
    """
    jobs, coordinator = replicated_jobs(spec), at(spec, "coordinator")
    if at(coordinator, "jobIndex") or at(coordinator, "podIndex"):
        raise TemplateError("coordinator", "must be the first pod of a first Job: the guard sits beside it")
    name = _name_of_rank0(spec)
    for job in jobs:
        if job["name"] == name:
            return job
    raise TemplateError(
        "coordinator", f"must name the replicatedJob with rank 0, or one of them must be named {CONTAINER}"
    )


def _template(number: int, job: Json, guarded: bool) -> PodTemplate:
    place = ("replicatedJobs", number, "template")
    where = (*place, "spec")
    if not guarded:
        return PodTemplate((*where, "template"), "", False, between=(place,))
    spec = {"completionMode": "Indexed"} | job["template"]["spec"]
    indexed, several = check_ranks(spec, *where), count(job.get("replicas")) > 1
    if several and count(spec.get("parallelism")) > 1:
        raise TemplateError(
            f"replicatedJobs[{number}].replicas",
            "must be 1 where each Job has several pods: no field tells a guard whether it is beside rank 0. "
            "Give rank 0 a replicatedJob of its own, and name it in coordinator",
        )
    index = JOB_FIELD if several else INDEX_FIELD if indexed else None
    trainer, limit = trainer_of(spec, *where), limit_of(spec, *where)
    return PodTemplate((*where, "template"), trainer, True, index, (place,), limit)
