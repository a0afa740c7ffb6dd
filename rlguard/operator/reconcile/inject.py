"""Build the workload of a job: its template, with a guard in rank 0's pod or the address of one. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rlguard.operator.adapters import PodTemplate, WorkloadAdapter, at
from rlguard.operator.api import names
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile import guard_pod, layout, sidecar
from rlguard.operator.reconcile.guard_container import exclude_port, literal
from rlguard.operator.reconcile.owned import job_labels, owner_reference
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.support import support_objects
from rlguard.operator.reconcile.templates import pods_of
from rlguard.operator.runtime.client import Json, Resource


def build_workload(job: Job, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    """Build the workload, ready for server-side apply. The template has passed `review`."""
    template = job.spec.made_from
    for_kueue = {key: value for key, value in job.labels.items() if key.startswith(names.QUEUE_PREFIX)}
    labels = dict(template.metadata.labels) | job_labels(job) | for_kueue
    spec = adapter.prepared(template.spec)
    for pod_template, pod in pods_of(adapter, spec):
        _prepare_pod(job, pod_template, spec, pod, config)
    return {
        "apiVersion": template.api_version,
        "kind": template.kind,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": dict(template.metadata.annotations),
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def made_for_the_guard(
    job: Job, adapter: WorkloadAdapter, config: OperatorConfig
) -> Iterator[tuple[Resource, Json]]:
    """What will be made for the guard, for a dry run: the credentials are missing."""
    yield from support_objects(job, {})
    if (own := job.spec.guard.own_pod) is not None:
        yield from guard_pod.guard_objects(job, own, adapter, config)


def _prepare_pod(job: Job, template: PodTemplate, spec: Json, pod: Json, config: OperatorConfig) -> None:
    exclude_port(_label(job, at(spec, *template.path)), job.spec.guard.port)
    for place in template.between:
        _label(job, at(spec, *place))
    pod["automountServiceAccountToken"] = False
    # On all ranks, so that a run that fails says in which of them and with which words, and each loads the
    # weights from which it starts. Where it is not known which container trains ("") each is told.
    for container in pod.get("containers", []):
        if template.container in ("", container.get("name")):
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
            _set_start(job, container)
    if template.guarded:
        add = sidecar.add_guard if job.spec.guard.own_pod is None else guard_pod.wait_for_guard
        add(job, template, pod, config)


def _label(job: Job, template: Json) -> Json:
    """Give a template the job's labels; its metadata."""
    metadata: Json = dict(template.get("metadata") or {})
    metadata["labels"] = dict(metadata.get("labels") or {}) | job_labels(job)
    template["metadata"] = metadata
    return metadata


def _set_start(job: Job, container: Json) -> None:
    """Say where it starts, if it resumes a run. What a template says of that is of an earlier run."""
    if (origin := job.spec.resumed_from) is None:
        return
    run = names.support_name(job.name, job.uid)
    values = {layout.RESUME_ENV: literal(origin.checkpoint), layout.RUN_ENV: run}
    own = [one for one in container.get("env") or [] if one.get("name") not in values]
    # In front, for what is made of them by `$(RLGUARD_RUN)`.
    container["env"] = [*({"name": name, "value": value} for name, value in values.items()), *own]
