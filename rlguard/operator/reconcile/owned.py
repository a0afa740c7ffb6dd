"""Owner reference, labels and host name of what the operator makes for a job. Pure."""

from __future__ import annotations

from typing import Any

from rlguard.operator.api import names
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.runtime.client import Json, Resource


def host_of(job: Job) -> str:
    """The DNS name in the certificate of the job's guard, and of the Service of a guard's own pod."""
    return f"{names.guard_name(job.name, job.uid)}.{job.namespace}.svc"


def owner_reference(job: Job) -> Json:
    """The job as the controlling owner. It blocks no deletion."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def job_labels(job: Job) -> dict[str, str]:
    """The labels by which what belongs to a job is found."""
    placement = {} if job.spec.guard.own_pod is None else {names.PLACEMENT_LABEL: names.IN_A_POD}
    return {names.JOB_LABEL: job.name, names.UID_LABEL: job.uid, **placement}


def owned(job: Job, resource: Resource, name: str, **content: Any) -> Json:
    """An object of the job's."""
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": job_labels(job),
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
