"""From a job to the workload that is created for it: the template with the guard in its rank-0 pod. Pure.

The guard is a native sidecar (an init container that keeps running), the last of the init containers: it
starts before the trainer, ends after it, and does not keep a finished job alive. What the trainer must not
reach (held-out data, state, service-account token) is mounted in the guard alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from guard_core.policy import Policy
from guard_operator.adapters import ComposedAdapter, PodTemplate, WorkloadAdapter, at
from guard_operator.api import names
from guard_operator.api.types import Isolation
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.digest import injected_digest
from guard_operator.reconcile.guard_container import (
    from_secret,
    guard_container,
    guard_volumes,
    literal,
    patience,
    unless_said,
)
from guard_operator.reconcile.guard_pod import guard_objects, guard_pod, let_report, own_service_account
from guard_operator.reconcile.leaks import leaks
from guard_operator.reconcile.owned import job_labels, owned, owner_reference
from guard_operator.reconcile.refusals import SourceRef, checkpoint_mount, guarded_sources, pod_spec
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import (
    CONFIG_MAPS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Json,
    Resource,
)

# -- the workload ----------------------------------------------------------------------------------------


class LeakError(ValueError):
    """A container that is not the guard would have what is the guard's; the message has its name."""


def build_workload(job: Job, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    """The workload, ready for server-side apply. The template has passed `refusals.find_violations`.

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


def guard_digest(job: Job, adapter: WorkloadAdapter, config: OperatorConfig) -> str | None:
    """Digest of the guard that is made for the job: in its workload, or in a pod of its own.

    Raises:
        TemplateError: what the workload is made of cannot be read, so nobody knows.
    """
    if (own := job.spec.guard.own_pod) is not None:
        return injected_digest(guard_pod(job, own, adapter, config))
    spec = build_workload(job, adapter, config)["spec"]
    guarded = next(one for one in adapter.pod_templates(spec) if one.guarded)
    return injected_digest(pod_spec(spec, guarded))


def created_for(
    job: Job, adapter: WorkloadAdapter, workload: Json, dry_run: bool = False
) -> tuple[tuple[Resource, Json], ...]:
    """A built workload as it is created, with what it is made of before it.

    With `dry_run` nothing is there yet, so that it names what its author named.
    """
    if not isinstance(adapter, ComposedAdapter):
        return ((adapter.resource, workload),)
    name, composed = names.support_name(job.name, job.uid), workload["spec"]
    spec, copied = adapter.split(composed, name)
    copy_ = owned(job, adapter.copied, name, spec=copied)
    spec = adapter.as_given(job.spec.made_from.spec) if dry_run else spec
    return (adapter.copied, copy_), (adapter.resource, workload | {"spec": spec})


def _prepare_pod(job: Job, template: PodTemplate, spec: Json, config: OperatorConfig) -> None:
    pod = pod_spec(spec, template)
    metadata = _labelled(job, at(spec, *template.path))
    for place in template.between:
        _labelled(job, at(spec, *place))
    pod["automountServiceAccountToken"] = False
    if job.spec.guard.isolation is Isolation.STRICT:
        _confine(pod)
    _let_it_end_with_words(pod, template.container)
    if (origin := job.spec.resumed_from) is not None:
        run = names.support_name(job.name, job.uid)
        _say_where_it_starts(pod, template.container, origin.checkpoint, run)
    own = job.spec.guard.own_pod
    if template.guarded and own is not None:
        let_report(job, own, template, pod, config)
    elif template.guarded:
        _inject(job, template, pod, config)
        digest = {names.DIGEST_ANNOTATION: injected_digest(pod)}
        metadata["annotations"] = dict(metadata.get("annotations") or {}) | digest
    if found := leaks(pod, own_sources(job)):
        raise LeakError("; ".join(found))


def _labelled(job: Job, template: Json) -> Json:
    """Give what is made of a template the job's labels; the template's metadata."""
    metadata: Json = dict(template.get("metadata") or {})
    metadata["labels"] = dict(metadata.get("labels") or {}) | job_labels(job)
    template["metadata"] = metadata
    return metadata


def _confine(pod: Json) -> None:
    """No container of the template keeps or gains a capability, also by a program that is setuid."""
    for key in ("initContainers", "containers"):
        for container in pod.get(key, []):
            container["securityContext"] = (container.get("securityContext") or {}) | {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def _let_it_end_with_words(pod: Json, container: str) -> None:
    """On all ranks, so that a run that fails says in which of them and with which words."""
    for trainer in pod.get("containers", []):
        if container in ("", trainer.get("name")):
            trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _say_where_it_starts(pod: Json, container: str, checkpoint: str, run: str) -> None:
    """On all ranks: each of them loads the weights. What a template says of it is of an earlier run.

    Where it is not known which container trains ("") each is told.
    """
    values = {layout.RESUME_ENV: literal(checkpoint), layout.RUN_ENV: run}
    for trainer in pod.get("containers", []):
        if container in ("", trainer.get("name")):
            own = [variable for variable in trainer.get("env") or [] if variable.get("name") not in values]
            # In front, for what is made of them by `$(RLGUARD_RUN)`.
            trainer["env"] = [*({"name": name, "value": value} for name, value in values.items()), *own]


def own_sources(job: Job) -> frozenset[SourceRef]:
    """What only the guard may have: what the job names, and what is made for it."""
    support = names.support_name(job.name, job.uid)
    return frozenset(guarded_sources(job.spec.guard)) | {("Secret", support), ("ConfigMap", support)}


def _inject(job: Job, template: PodTemplate, pod: Json, config: OperatorConfig) -> None:
    guard = job.spec.guard
    support = names.support_name(job.name, job.uid)
    mount = checkpoint_mount(pod, template, guard.checkpoints.volume)
    assert mount is not None
    if not pod.get("serviceAccountName") and not pod.get("serviceAccount"):
        pod["serviceAccountName"] = support
    pod["volumes"] = pod.get("volumes", []) + guard_volumes(guard, support)
    container = guard_container(job, mount, config, template.index_field)
    container["restartPolicy"] = "Always"  # what makes an init container a sidecar
    pod["initContainers"] = [*pod.get("initContainers", []), container]
    for trainer in pod["containers"]:
        if trainer.get("name") == template.container and guard.metrics is None:
            _let_it_report(job, trainer)


def _let_it_report(job: Job, trainer: Json) -> None:
    """Give the trainer the guard's socket, and the token with which it reports there."""
    support = names.support_name(job.name, job.uid)
    url = {"name": layout.URL_ENV, "value": f"unix://{layout.SOCKET}"}
    token = {"name": layout.TOKEN_ENV, **from_secret(support, layout.INGEST_TOKEN_KEY)}
    own = trainer.get("env", [])
    wait = unless_said(own, layout.DRAIN_ENV, layout.DRAIN_SECONDS)
    trainer["env"] = [*own, url, token, *wait, *patience(job, own)]
    socket = {"name": layout.SOCKET_VOLUME, "mountPath": layout.SOCKET_DIR, "readOnly": True}
    trainer["volumeMounts"] = [*trainer["volumeMounts"], socket]


# -- what the guard needs beside the workload ------------------------------------------------------------


def support_objects(
    job: Job,
    policy: Policy,
    service_account: str,
    tokens: tuple[str, str],
    certificate: tuple[str, str] | None = None,
) -> Iterator[tuple[Resource, Json]]:
    """Policy, tokens, and the permission to write exactly this job's status; all owned by the job.

    Args:
        job: the job.
        policy: the job's, which the spec of a run lacks (`parse.parse_job`).
        service_account: of the guarded pods; the job's own one is made, another one only gets the Role.
        tokens: fresh (ingest, read) tokens. They count only if the Secret does not exist yet.
        certificate: the same of a guard in a pod of its own: certificate and private key, PEM.
    """
    name = names.support_name(job.name, job.uid)
    if service_account == name:
        yield SERVICE_ACCOUNTS, owned(job, SERVICE_ACCOUNTS, name, automountServiceAccountToken=False)
    mine = {"apiGroups": [names.GROUP], "resourceNames": [job.name]}
    rules = [
        {**mine, "resources": [names.PLURAL], "verbs": ["get"]},
        {**mine, "resources": [f"{names.PLURAL}/status"], "verbs": ["get", "patch"]},
    ]
    yield ROLES, owned(job, ROLES, name, rules=rules)
    subject = {"kind": "ServiceAccount", "name": service_account, "namespace": job.namespace}
    role = {"apiGroup": ROLES.group, "kind": "Role", "name": name}
    yield ROLE_BINDINGS, owned(job, ROLE_BINDINGS, name, roleRef=role, subjects=[subject])
    data = dict(zip((layout.INGEST_TOKEN_KEY, layout.READ_TOKEN_KEY), tokens, strict=True))
    if certificate is not None:
        data |= dict(zip((layout.CERTIFICATE_KEY, layout.PRIVATE_KEY_KEY), certificate, strict=True))
    yield SECRETS, owned(job, SECRETS, name, immutable=True, type="Opaque", stringData=data)
    data = {layout.POLICY_KEY: policy_file(policy)}
    yield CONFIG_MAPS, owned(job, CONFIG_MAPS, name, immutable=True, data=data)


def made_for_the_guard(
    job: Job, adapter: WorkloadAdapter, config: OperatorConfig
) -> Iterator[tuple[Resource, Json]]:
    """What will be made for the guard, for a dry run: tokens and certificate are not real.

    The RoleBinding is not among it. Who may bind is decided by the Role, which no dry run leaves.
    """
    own = job.spec.guard.own_pod
    account, unreal = guard_service_account(job, adapter), ("", "")
    support = support_objects(job, job.spec.guard.policy, account, unreal, None if own is None else unreal)
    yield from (made for made in support if made[0] is not ROLE_BINDINGS)
    if own is not None:
        yield from guard_objects(job, own, adapter, config, config.scrapers)


def guard_service_account(job: Job, adapter: WorkloadAdapter) -> str:
    """The service account of the guard's pods: their own, else the one made for the job."""
    if (own := job.spec.guard.own_pod) is not None:
        return own_service_account(job, own)
    spec = job.spec.made_from.spec
    for template in adapter.pod_templates(spec):
        pod = pod_spec(spec, template)
        if template.guarded and (own := pod.get("serviceAccountName") or pod.get("serviceAccount")):
            return str(own)
    return names.support_name(job.name, job.uid)


def policy_file(policy: Policy) -> str:
    """The policy as the guard reads it: YAML with the names of `guard_core.policy`."""
    return yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False)
