"""Build the workload of a job: its template, with a guard in rank 0's pod or the address of one. Pure.

A guard with placement Sidecar is the last of the init containers, and keeps running (a native sidecar): it
starts before the trainer, ends after it, and does not keep a finished job alive.
"""

from __future__ import annotations

from collections.abc import Iterator

from guard_operator.adapters import PodTemplate, WorkloadAdapter, at
from guard_operator.api import names
from guard_operator.api.types import Isolation
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.guard_container import (
    guard_container,
    guard_volumes,
    literal,
    reporting_environment,
    unless_set,
)
from guard_operator.reconcile.guard_pod import guard_objects, report_to_guard_pod
from guard_operator.reconcile.isolation import broken_rows, guard_objects_of
from guard_operator.reconcile.mesh import exclude_port
from guard_operator.reconcile.owned import job_labels, owner_reference
from guard_operator.reconcile.refusals import checkpoint_mount, pod_spec
from guard_operator.reconcile.snapshot import Job
from guard_operator.reconcile.support import support_objects
from guard_operator.runtime.client import Json, Resource


class LeakError(ValueError):
    """A container that is not the guard would have what is the guard's; the message has its name."""


def build_workload(job: Job, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    """Build the workload, ready for server-side apply. The template has passed `refusals.find_violations`.

    Raises:
        LeakError: it did not, or let something through. Nothing may be created then.
    """
    template = job.spec.made_from
    for_kueue = {key: value for key, value in job.labels.items() if key.startswith(names.QUEUE_PREFIX)}
    labels = dict(template.metadata.labels) | job_labels(job) | for_kueue
    spec = adapter.prepared(template.spec)
    for pod_template in adapter.pod_templates(spec):
        _prepare_pod(job, pod_template, spec, config)
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
    yield from support_objects(job, job.spec.guard.policy, {})
    if (own := job.spec.guard.own_pod) is not None:
        yield from guard_objects(job, own, adapter, config)


def _prepare_pod(job: Job, template: PodTemplate, spec: Json, config: OperatorConfig) -> None:
    pod = pod_spec(spec, template)
    exclude_port(_label(job, at(spec, *template.path)), job.spec.guard.port)
    for place in template.between:
        _label(job, at(spec, *place))
    pod["automountServiceAccountToken"] = False
    _keep_last_words(pod, template.container)
    if (origin := job.spec.resumed_from) is not None:
        run = names.support_name(job.name, job.uid)
        _set_start(pod, template.container, origin.checkpoint, run)
    own = job.spec.guard.own_pod
    if template.guarded and own is not None:
        report_to_guard_pod(job, own, template, pod, config)
    elif template.guarded:
        _add_sidecar(job, template, pod, config)
    if job.spec.guard.isolation is Isolation.STRICT:
        mine = guard_objects_of(job.name, job.uid, job.spec.guard, config)
        if found := broken_rows(pod, mine, beside=template.guarded and own is None):
            raise LeakError("; ".join(f"{one.field} {one.message}" for one in found))


def _label(job: Job, template: Json) -> Json:
    """Give a template the job's labels; its metadata."""
    metadata: Json = dict(template.get("metadata") or {})
    metadata["labels"] = dict(metadata.get("labels") or {}) | job_labels(job)
    template["metadata"] = metadata
    return metadata


def _keep_last_words(pod: Json, container: str) -> None:
    """On all ranks, so that a run that fails says in which of them and with which words."""
    for trainer in pod.get("containers", []):
        if container in ("", trainer.get("name")):
            trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _set_start(pod: Json, container: str, checkpoint: str, run: str) -> None:
    """On all ranks: each of them loads the weights. What a template says of it is of an earlier run.

    Where it is not known which container trains ("") each is told.
    """
    values = {layout.RESUME_ENV: literal(checkpoint), layout.RUN_ENV: run}
    for trainer in pod.get("containers", []):
        if container in ("", trainer.get("name")):
            own = [variable for variable in trainer.get("env") or [] if variable.get("name") not in values]
            # In front, for what is made of them by `$(RLGUARD_RUN)`.
            trainer["env"] = [*({"name": name, "value": value} for name, value in values.items()), *own]


def _add_sidecar(job: Job, template: PodTemplate, pod: Json, config: OperatorConfig) -> None:
    guard = job.spec.guard
    pod["enableServiceLinks"] = False  # those of a Service `rlguard-guard` read as settings
    mount = checkpoint_mount(pod, template, guard.checkpoints.volume)
    assert mount is not None, "find_violations has passed"
    support = names.support_name(job.name, job.uid)
    pod["volumes"] = pod.get("volumes", []) + guard_volumes(guard, support)
    container = guard_container(job, mount, config, template.index_field)
    container["restartPolicy"] = "Always"  # what makes an init container a sidecar
    pod["initContainers"] = [*pod.get("initContainers", []), container]
    for trainer in pod["containers"]:
        if trainer.get("name") == template.container and guard.metrics is None:
            given = trainer.get("env", [])
            waits = unless_set(given, layout.DRAIN_ENV, layout.DRAIN_SECONDS)
            trainer["env"] = [*given, *reporting_environment(job, "127.0.0.1", given), *waits]
