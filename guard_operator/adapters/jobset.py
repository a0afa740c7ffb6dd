"""JobSet (jobset.x-k8s.io/v1alpha2, seen with v0.11.1): several Jobs that are one run.

- Rank 0 is the first pod of the first Job of one replicatedJob: the coordinator's, else the only one, else
  the one named `trainer`. The container that trains is as in a Job.
- Pods are a Job's, which the JobSet controls.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
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
from guard_operator.adapters.job import CONTAINER, INDEX_LABEL, JobAdapter, rank0_template
from guard_operator.runtime.client import BATCH_JOBS, Json, Resource

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
NAME_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_LABEL = "jobset.sigs.k8s.io/job-index"
JOB_FIELD = f"metadata.labels['{JOB_LABEL}']"
_FIRST = "the guard sits beside the first pod of a first Job"
_RESTARTS = ("template", "spec", "template", "spec", "restartPolicy")
_JOB = JobAdapter()


class JobSetAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = JOB_SETS
    conditions = {"Failed": WorkloadState.FAILED, "Completed": WorkloadState.SUCCEEDED}  # noqa: RUF012
    manager = "jobset.sigs.k8s.io/jobset-controller"
    selector = "jobset.sigs.k8s.io/jobset-uid={uid}"
    between = (BATCH_JOBS,)
    refused = {  # noqa: RUF012
        ("volumeClaimPolicies",): "JobSet adds volumes after the check",
        ("coordinator", "jobIndex"): _FIRST,
        ("coordinator", "podIndex"): _FIRST,
    }

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """That of every replicatedJob; guarded is the one with rank 0."""
        self.check(spec)
        name = _name_of_rank0(spec)
        found = tuple(_template(number, job, job["name"] == name) for number, job in enumerate(_jobs(spec)))
        if not any(one.guarded for one in found):
            raise TemplateError(
                "coordinator",
                f"must name the replicatedJob with rank 0, or one of them must be named {CONTAINER}",
            )
        return found

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The first pod of the first Job of its replicatedJob."""
        return {NAME_LABEL: str(_name_of_rank0(spec)), JOB_LABEL: "0", INDEX_LABEL: "0"}

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By its Jobs."""
        return any(at(job, "ready") for job in at(workload, "status", "replicatedJobsStatus") or [])

    def prepared(self, spec: Json) -> Json:
        """Defaults made explicit that would hurt."""
        prepared = copy.deepcopy(spec)
        for job in _jobs(prepared):
            own = job["template"]["spec"]
            own.setdefault("completionMode", "Indexed")
            # With it JobSet refuses the names that are too long for a pod; the Job controller cuts them.
            own.setdefault("completions", count(own.get("parallelism")))
            if job["name"] == _name_of_rank0(spec):
                # By default a new rank 0 starts while the old one still ends,
                own.setdefault("podReplacementPolicy", "Failed")
                # and a restart of the guard counts as a failure of the Job.
                if isinstance(pod := at(own, "template", "spec"), dict):
                    pod.setdefault("restartPolicy", "Never")
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


def _jobs(spec: Mapping[str, Any]) -> list[Json]:
    """The replicatedJobs.

    Raises:
        TemplateError: there is none, or one has not the shape that is relied on.
    """
    jobs = spec.get("replicatedJobs")
    if not isinstance(jobs, list) or not jobs:
        raise TemplateError("replicatedJobs", "must have a replicatedJob")
    for number, job in enumerate(jobs):
        place = ("replicatedJobs", number)
        if not isinstance(at(job, "name"), str) or not isinstance(at(job, "template", "spec"), dict):
            raise TemplateError(dotted(place), "must have a name and a template with a spec")
        _JOB.check_manager(job["template"]["spec"], *place, "template", "spec")
    return jobs


def _name_of_rank0(spec: Mapping[str, Any]) -> Any:
    """What the replicatedJob with rank 0 is called, if there is one."""
    jobs, coordinator = spec.get("replicatedJobs"), spec.get("coordinator")
    if coordinator is not None:
        return at(coordinator, "replicatedJob")
    return at(jobs, 0, "name") if isinstance(jobs, list) and len(jobs) == 1 else CONTAINER


def _template(number: int, job: Json, guarded: bool) -> PodTemplate:
    place = ("replicatedJobs", number, "template")
    replicas, at_once = count(job.get("replicas")), count(at(job, "template", "spec", "parallelism"))
    # One that waits for others comes later.
    pods = 0 if job.get("dependsOn") else replicas * at_once
    if not guarded:
        return PodTemplate((*place, "spec", "template"), "", False, between=(place,), pods=pods)
    spec = {"completionMode": "Indexed"} | job["template"]["spec"]
    found = replace(rank0_template(spec, *place, "spec"), between=(place,), pods=pods)
    if replicas <= 1:
        return found
    if at_once > 1:
        raise TemplateError(
            f"replicatedJobs[{number}].replicas",
            "must be 1 where each Job has several pods: no field tells a guard whether it is beside rank 0. "
            "Give rank 0 a replicatedJob of its own, and name it in coordinator",
        )
    return replace(found, index_field=JOB_FIELD)
