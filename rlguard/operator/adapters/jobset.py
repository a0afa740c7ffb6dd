"""JobSet (jobset.x-k8s.io/v1alpha2, seen with v0.11.1): several Jobs that are one run.

- Rank 0 is the first pod of the first Job of one replicatedJob: the coordinator's, else the only one, else
  the one named `trainer`. The container that trains is as in a Job.
- Pods are a Job's, which the JobSet controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlguard.operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    count,
    dotted,
)
from rlguard.operator.adapters.batch import CONTAINER, INDEX_LABEL, rank0_template
from rlguard.operator.adapters.job import JobAdapter
from rlguard.operator.runtime.client import BATCH_JOBS, Json, Resource

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
NAME_LABEL, JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"
_FIRST = "the guard sits beside the first pod of a first Job"
_POD = ("template", "spec", "template", "spec")


class JobSetAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = JOB_SETS
    conditions = {"Failed": WorkloadState.FAILED, "Completed": WorkloadState.SUCCEEDED}
    manager = "jobset.sigs.k8s.io/jobset-controller"
    selector = "jobset.sigs.k8s.io/jobset-name={name}"
    between = (BATCH_JOBS,)
    refused = {
        ("volumeClaimPolicies",): "JobSet adds volumes after the check",
        ("coordinator", "jobIndex"): _FIRST,
        ("coordinator", "podIndex"): _FIRST,
    }

    def find_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """That of every replicatedJob; guarded is the one with rank 0."""
        jobs, name = spec.get("replicatedJobs"), _name_of_rank0(spec)
        if not isinstance(jobs, list) or not jobs:
            raise TemplateError("replicatedJobs", "must have a replicatedJob")
        found = tuple(_template(number, job, at(job, "name") == name) for number, job in enumerate(jobs))
        if not any(one.guarded for one in found):
            why = f"must name the replicatedJob with rank 0, or one of them must be named {CONTAINER}"
            raise TemplateError("coordinator", why)
        return found

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The first pod of the first Job of its replicatedJob."""
        return {NAME_LABEL: str(_name_of_rank0(spec)), JOB_LABEL: "0", INDEX_LABEL: "0"}

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By its Jobs."""
        return any(at(job, "ready") for job in at(workload, "status", "replicatedJobsStatus") or [])

    def prepared(self, spec: Json) -> Json:
        """Defaults made explicit that would hurt."""
        prepared = super().prepared(spec)
        for job in prepared["replicatedJobs"]:
            own = job["template"]["spec"]
            own.setdefault("completionMode", "Indexed")
            # With it JobSet refuses the names that are too long for a pod; the Job controller cuts them.
            own.setdefault("completions", count(own.get("parallelism")))
            if job["name"] == _name_of_rank0(spec):
                # By default a new rank 0 starts while the old one still ends,
                own.setdefault("podReplacementPolicy", "Failed")
                # and a restart of the guard counts as a failure of the Job.
                if isinstance(pod := at(job, *_POD), dict):
                    pod.setdefault("restartPolicy", "Never")
        return prepared

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Rank 0's `restartPolicy: OnFailure`, which its webhook writes: nobody may have wanted it."""
        if at(workload, "metadata", "uid") is None:
            return ()
        jobs, rank0 = at(workload, "spec", "replicatedJobs"), _name_of_rank0(workload.get("spec") or {})
        return tuple(
            ("spec", "replicatedJobs", str(number), *_POD, "restartPolicy")
            for number, job in enumerate(jobs if isinstance(jobs, list) else [])
            if at(job, "name") == rank0 and at(job, *_POD, "restartPolicy") == "OnFailure"
        )


def _name_of_rank0(spec: Mapping[str, Any]) -> Any:
    """What the replicatedJob with rank 0 is called, if there is one."""
    jobs, coordinator = spec.get("replicatedJobs"), spec.get("coordinator")
    if coordinator is not None:
        return at(coordinator, "replicatedJob")
    return at(jobs, 0, "name") if isinstance(jobs, list) and len(jobs) == 1 else CONTAINER


def _template(number: int, job: Any, guarded: bool) -> PodTemplate:
    """That of a replicatedJob.

    Raises:
        TemplateError: it has not the shape that is relied on.
    """
    place = ("replicatedJobs", number, "template")
    spec = at(job, "template", "spec")
    if not isinstance(at(job, "name"), str) or not isinstance(spec, dict):
        raise TemplateError(dotted(place[:2]), "must have a name and a template with a spec")
    JobAdapter().check_manager(spec, *place, "spec")
    replicas, at_once = count(job.get("replicas")), count(spec.get("parallelism"))
    pods = 0 if job.get("dependsOn") else replicas * at_once  # one that waits for others comes later
    if not guarded:
        return PodTemplate((*place, "spec", "template"), "", False, between=(place,), pods=pods)
    found = rank0_template({"completionMode": "Indexed"} | spec, *place, "spec")
    if replicas > 1 and at_once > 1:
        raise TemplateError(
            f"replicatedJobs[{number}].replicas",
            "must be 1 where each Job has several pods: no field tells a guard whether it is beside rank 0. "
            "Give rank 0 a replicatedJob of its own, and name it in coordinator",
        )
    index = f"metadata.labels['{JOB_LABEL}']" if replicas > 1 else found.index_field
    return replace(found, between=(place,), pods=pods, index_field=index)
