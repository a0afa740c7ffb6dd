"""From a job to the workload that is created for it: the template with the guard in its rank-0 pod. Pure.

The guard is a native sidecar (an init container that keeps running), the last of the init containers: it
starts before the trainer, ends after it, and does not keep a finished job alive. What the trainer must not
reach (held-out data, state, service-account token) is mounted in the guard alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml

from guard_core.evaluation import Scoring
from guard_core.policy import Policy
from guard_operator.adapters import PodTemplate, WorkloadAdapter, at
from guard_operator.api import names
from guard_operator.api.types import EvaluatorSpec, GuardSpec, Heldout, Isolation
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.digest import injected_digest
from guard_operator.reconcile.leaks import leaks
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

TOKEN_SECONDS = 3600  # the kubelet renews the token after 80 % of this
PROBE = """\
import http.client, socket, sys
guard = http.client.HTTPConnection("guard")
guard.sock = socket.socket(socket.AF_UNIX)
guard.sock.settimeout(3)
try:
    guard.sock.connect(sys.argv[1])
    guard.request("GET", "/" + sys.argv[2])
    response = guard.getresponse()
    sys.exit(response.read().decode() if response.status != 200 else 0)
except OSError as error:
    sys.exit(f"no guard responds: {error}")
"""


# -- the workload ----------------------------------------------------------------------------------------


class LeakError(ValueError):
    """A container that is not the guard would have what is the guard's; the message has its name."""


def build_workload(job: Job, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    """The workload, ready for server-side apply. The template has passed `refusals.find_violations`.

    Raises:
        LeakError: it did not, or let something through. Nothing may be created then.
    """
    template = job.spec.template
    labels = dict(template.metadata.labels) | _job_labels(job)
    if names.QUEUE_LABEL in job.labels:
        labels[names.QUEUE_LABEL] = job.labels[names.QUEUE_LABEL]
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


def _job_labels(job: Job) -> dict[str, str]:
    return {names.JOB_LABEL: job.name, names.UID_LABEL: job.uid}


def _prepare_pod(job: Job, template: PodTemplate, spec: Json, config: OperatorConfig) -> None:
    pod = pod_spec(spec, template)
    metadata = _labelled(job, at(spec, *template.path))
    if template.between is not None:
        _labelled(job, at(spec, *template.between))
    pod["automountServiceAccountToken"] = False
    if job.spec.guard.isolation is Isolation.STRICT:
        _confine(pod)
    if (origin := job.spec.resumed_from) is not None:
        run = names.support_name(job.name, job.uid)
        _say_where_it_starts(pod, template.container, origin.checkpoint, run)
    if template.guarded:
        _inject(job, template, pod, config)
        digest = {names.DIGEST_ANNOTATION: injected_digest(pod)}
        metadata["annotations"] = dict(metadata.get("annotations") or {}) | digest
    if found := leaks(pod, _own(job)):
        raise LeakError("; ".join(found))


def _labelled(job: Job, template: Json) -> Json:
    """Give what is made of a template the job's labels; the template's metadata."""
    metadata: Json = dict(template.get("metadata") or {})
    metadata["labels"] = dict(metadata.get("labels") or {}) | _job_labels(job)
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


def _say_where_it_starts(pod: Json, container: str, checkpoint: str, run: str) -> None:
    """On all ranks: each of them loads the weights. What a template says of it is of an earlier run.

    Where it is not known which container trains ("") each is told.
    """
    # The kubelet would replace what looks like a variable.
    values = {layout.RESUME_ENV: checkpoint.replace("$", "$$"), layout.RUN_ENV: run}
    for trainer in pod.get("containers", []):
        if container in ("", trainer.get("name")):
            own = [variable for variable in trainer.get("env") or [] if variable.get("name") not in values]
            # In front, for what is made of them by `$(RLGUARD_RUN)`.
            trainer["env"] = [*({"name": name, "value": value} for name, value in values.items()), *own]


def _own(job: Job) -> frozenset[SourceRef]:
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
    pod["volumes"] = pod.get("volumes", []) + _volumes(guard, support)
    container = _guard_container(job, template, mount, config)
    pod["initContainers"] = [*pod.get("initContainers", []), container]
    for trainer in pod["containers"]:
        if trainer.get("name") == template.container:
            if guard.metrics is None:
                _let_it_report(trainer, support)
            # So that a run that fails says with which words.
            trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _let_it_report(trainer: Json, support: str) -> None:
    """Give the trainer the guard's socket, and the token with which it reports there."""
    url = {"name": layout.URL_ENV, "value": f"unix://{layout.SOCKET}"}
    token = _from_secret(layout.TOKEN_ENV, support, layout.INGEST_TOKEN_KEY)
    own = trainer.get("env", [])
    drain = {"name": layout.DRAIN_ENV, "value": layout.DRAIN_SECONDS}
    wait = [] if any(variable.get("name") == layout.DRAIN_ENV for variable in own) else [drain]
    trainer["env"] = [*own, url, token, *wait]
    socket = {"name": layout.SOCKET_VOLUME, "mountPath": layout.SOCKET_DIR, "readOnly": True}
    trainer["volumeMounts"] = [*trainer["volumeMounts"], socket]


def _guard_container(job: Job, template: PodTemplate, checkpoints: Json, config: OperatorConfig) -> Json:
    guard = job.spec.guard
    resources = guard.resources.model_dump(mode="json", exclude_defaults=True)
    container: Json = {
        "name": names.GUARD_CONTAINER,
        "image": guard.image or config.guard_image,
        "restartPolicy": "Always",  # what makes an init container a sidecar
        "resources": resources or copy.deepcopy(config.guard_resources),
        "env": list(_environment(job, template, checkpoints)),
        "ports": [{"name": layout.METRICS_PORT_NAME, "containerPort": guard.metrics_port}],
        # Its last lines say why it ended, unless it left a latch there.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(_mounts(job, template, checkpoints)),
        "securityContext": {
            "runAsUser": layout.GUARD_UID,
            "runAsGroup": layout.GUARD_UID,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Through the guard's own socket: at a port another container may listen. The trainer starts only when
        # the guard has checked the held-out split, which takes minutes against millions of training prompts.
        "startupProbe": _probe("readyz", periodSeconds=2, failureThreshold=900),
        "livenessProbe": _probe("healthz", periodSeconds=20, failureThreshold=6),
        "readinessProbe": _probe("readyz", periodSeconds=15, failureThreshold=2),
    }
    if pull_policy := guard.image_pull_policy or config.guard_pull_policy:
        container["imagePullPolicy"] = pull_policy
    return container


def _probe(page: str, **timing: int) -> Json:
    return {
        "exec": {"command": ["python", "-I", "-c", PROBE, layout.SOCKET, page]},
        "timeoutSeconds": 5,
        **timing,
    }


def _environment(job: Job, template: PodTemplate, checkpoints: Json) -> Iterator[Json]:
    guard = job.spec.guard
    values = {
        "RLGUARD_GUARD_SOCKET": layout.SOCKET,
        "RLGUARD_GUARD_HOST": "127.0.0.1",
        "RLGUARD_GUARD_PORT": str(guard.port),
        "RLGUARD_GUARD_METRICS_PORT": str(guard.metrics_port),
        "RLGUARD_GUARD_STATE_DIR": layout.STATE_DIR,
        "RLGUARD_GUARD_CHECKPOINT_ROOT": checkpoints["mountPath"],
        "RLGUARD_GUARD_POLICY_FILE": f"{layout.POLICY_DIR}/{layout.POLICY_KEY}",
        "RLGUARD_GUARD_INGEST_TOKEN_FILE": f"{layout.SECRET_DIR}/{layout.INGEST_TOKEN_KEY}",
        "RLGUARD_GUARD_READ_TOKEN_FILE": f"{layout.SECRET_DIR}/{layout.READ_TOKEN_KEY}",
        "RLGUARD_GUARD_HELDOUT": json.dumps(heldout_settings(guard.heldout), ensure_ascii=False),
        "RLGUARD_GUARD_CLUSTER__NAMESPACE": job.namespace,
        "RLGUARD_GUARD_CLUSTER__NAME": job.name,
        "RLGUARD_GUARD_CLUSTER__UID": job.uid,
        "HOME": layout.TMP_DIR,
    }
    if guard.metrics is not None:
        values["RLGUARD_GUARD_METRICS"] = guard.metrics.model_dump_json()
    yield from ({"name": name, "value": value} for name, value in values.items())
    # The pod's own address: right for IPv4 and IPv6, and what Prometheus asks.
    yield {"name": "RLGUARD_GUARD_METRICS_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    if template.index_field is not None:
        source = {"fieldRef": {"fieldPath": template.index_field}}
        yield {"name": layout.REPLICA_INDEX_ENV, "valueFrom": source}
    evaluator = guard.heldout.evaluator.openai
    if evaluator is not None and evaluator.api_key_secret_name is not None:
        yield _from_secret(layout.API_KEY_ENV, evaluator.api_key_secret_name, layout.API_KEY_KEY)


def heldout_settings(heldout: Heldout) -> Json:
    """`guard_service.heldout.config.HeldoutSettings` as JSON, with the paths of the guard container."""
    settings: Json = heldout.model_dump(mode="json", include=set(Scoring.model_fields)) | {
        "split": f"{layout.HELDOUT_DIR}/{heldout.split}",
        "evaluator": _evaluator_settings(heldout.evaluator),
    }
    if heldout.train_prompts is not None:
        settings["train_prompts"] = f"{layout.HELDOUT_DIR}/{heldout.train_prompts}"
    return settings


def _evaluator_settings(evaluator: EvaluatorSpec) -> Json:
    if (openai := evaluator.openai) is not None:
        key = {} if openai.api_key_secret_name is None else {"api_key_env": layout.API_KEY_ENV}
        return {"kind": "openai"} | openai.model_dump(mode="json", exclude={"api_key_secret_name"}) | key
    if evaluator.vllm is not None:
        return {"kind": "vllm"} | evaluator.vllm.model_dump(mode="json")
    assert evaluator.checkpoint is not None
    return {"kind": "checkpoint"} | evaluator.checkpoint.model_dump(mode="json")


def _mounts(job: Job, template: PodTemplate, checkpoints: Json) -> Iterator[Json]:
    kept = {key: checkpoints[key] for key in ("name", "mountPath", "subPath") if key in checkpoints}
    yield kept | {"readOnly": True}
    yield {"name": layout.STATE_VOLUME, "mountPath": layout.STATE_DIR, **_own_folder(job, template)}
    yield {"name": layout.SOCKET_VOLUME, "mountPath": layout.SOCKET_DIR}
    yield {"name": "rlguard-tmp", "mountPath": layout.TMP_DIR}
    for name, path in (
        ("rlguard-heldout", layout.HELDOUT_DIR),
        ("rlguard-policy", layout.POLICY_DIR),
        ("rlguard-secrets", layout.SECRET_DIR),
        ("rlguard-token", layout.TOKEN_DIR),
    ):
        yield {"name": name, "mountPath": path, "readOnly": True}


def _own_folder(job: Job, template: PodTemplate) -> Json:
    """The folder of this guard in a claim that other jobs may use, too, and other replicas of this one."""
    if job.spec.guard.state.claim_name is None:
        return {}
    if template.index_field is None:
        return {"subPath": job.uid}
    return {"subPathExpr": f"{job.uid}/$({layout.REPLICA_INDEX_ENV})"}


def _volumes(guard: GuardSpec, support: str) -> list[Json]:
    token = {"path": "token", "expirationSeconds": TOKEN_SECONDS}
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    namespace = {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}
    sources = [{"serviceAccountToken": token}, {"configMap": authority}, {"downwardAPI": namespace}]
    return [
        {"name": "rlguard-heldout", **_heldout_source(guard)},
        {"name": layout.STATE_VOLUME, **_state_source(guard)},
        # In memory: it needs no disk, and a sandbox makes such a volume inside the pod's own kernel.
        {"name": layout.SOCKET_VOLUME, "emptyDir": {"medium": "Memory"}},
        {"name": "rlguard-tmp", "emptyDir": {}},
        {"name": "rlguard-policy", "configMap": {"name": support}},
        {"name": "rlguard-secrets", "secret": {"secretName": support}},
        {"name": "rlguard-token", "projected": {"sources": sources}},
    ]


def _heldout_source(guard: GuardSpec) -> Json:
    volume = guard.heldout.volume
    if volume.claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim_name, "readOnly": True}}
    if volume.secret_name is not None:
        return {"secret": {"secretName": volume.secret_name}}
    return {"configMap": {"name": volume.config_map_name}}


def _state_source(guard: GuardSpec) -> Json:
    claim = guard.state.claim_name
    return {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}


def _from_secret(variable: str, secret: str, key: str) -> Json:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


# -- what the guard needs beside the workload ------------------------------------------------------------


def support_objects(
    job: Job, service_account: str, tokens: tuple[str, str]
) -> Iterator[tuple[Resource, Json]]:
    """Policy, tokens, and the permission to write exactly this job's status; all owned by the job.

    Args:
        job: the job.
        service_account: of the guarded pods; the job's own one is made, another one only gets the Role.
        tokens: fresh (ingest, read) tokens. They count only if the Secret does not exist yet.
    """
    name = names.support_name(job.name, job.uid)
    if service_account == name:
        yield SERVICE_ACCOUNTS, _object(job, SERVICE_ACCOUNTS, automountServiceAccountToken=False)
    mine = {"apiGroups": [names.GROUP], "resourceNames": [job.name]}
    rules = [
        {**mine, "resources": [names.PLURAL], "verbs": ["get"]},
        {**mine, "resources": [f"{names.PLURAL}/status"], "verbs": ["get", "patch"]},
    ]
    yield ROLES, _object(job, ROLES, rules=rules)
    subject = {"kind": "ServiceAccount", "name": service_account, "namespace": job.namespace}
    role = {"apiGroup": ROLES.group, "kind": "Role", "name": name}
    yield ROLE_BINDINGS, _object(job, ROLE_BINDINGS, roleRef=role, subjects=[subject])
    data = dict(zip((layout.INGEST_TOKEN_KEY, layout.READ_TOKEN_KEY), tokens, strict=True))
    yield SECRETS, _object(job, SECRETS, immutable=True, type="Opaque", stringData=data)
    policy = {layout.POLICY_KEY: policy_file(job.spec.guard.policy)}
    yield CONFIG_MAPS, _object(job, CONFIG_MAPS, immutable=True, data=policy)


def guard_service_account(job: Job, adapter: WorkloadAdapter) -> str:
    """The service account of the guarded pods: the template's own, else the one made for the job."""
    spec = job.spec.template.spec
    for template in adapter.pod_templates(spec):
        pod = pod_spec(spec, template)
        if template.guarded and (own := pod.get("serviceAccountName") or pod.get("serviceAccount")):
            return str(own)
    return names.support_name(job.name, job.uid)


def policy_file(policy: Policy) -> str:
    """The policy as the guard reads it: YAML with the names of `guard_core.policy`."""
    return yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False)


def _object(job: Job, resource: Resource, **content: Any) -> Json:
    metadata = {
        "name": names.support_name(job.name, job.uid),
        "namespace": job.namespace,
        "labels": _job_labels(job),
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
