"""TrainJob of Kubeflow Trainer v2 (trainer.kubeflow.org/v1alpha1, seen with v2.2.0). Only one that exists.

Its pods are made of a (Cluster)TrainingRuntime, which somebody else owns, so no guard can be put into them.
They are those of the JobSet of its name, in which `node` has all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlguard.operator.adapters.base import TemplateError, WorkloadAdapter, WorkloadState, at
from rlguard.operator.adapters.batch import INDEX_LABEL
from rlguard.operator.adapters.jobset import JOB_LABEL, JOB_SETS, NAME_LABEL
from rlguard.operator.runtime.client import Resource

#: The replicatedJob with rank 0, and its container.
NODE = "node"


class TrainJobAdapter(WorkloadAdapter):
    """A row of the table."""

    resource = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
    conditions = {"Failed": WorkloadState.FAILED, "Complete": WorkloadState.SUCCEEDED}
    manager = "trainer.kubeflow.org/trainjob-controller"
    makes = (JOB_SETS,)
    only_attached = True

    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The first pod of `node`."""
        return {NAME_LABEL: NODE, JOB_LABEL: "0", INDEX_LABEL: "0"}

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By its Jobs."""
        jobs = at(workload, "status", "jobsStatus") or []
        return any(at(job, "name") == NODE and at(job, "ready") for job in jobs)

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """A JobSet of the same name."""
        return (str(at(workload, "metadata", "name")),)

    def trainer(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()) -> str:
        """In `node`, if the JobSet has one."""
        for jobs in (at(one, "spec", "replicatedJobs") for one in made):
            if all(at(job, "name") != NODE for job in (jobs if isinstance(jobs, list) else [])):
                raise TemplateError(
                    "runtimeRef", f"its JobSet has no replicatedJob {NODE}: nothing tells which pod is rank 0"
                )
        return NODE
