"""The guard's container, its volumes, and what lets a trainer report to it, in whatever pod it runs. Pure.

No other container of a pod mounts any of these volumes: held-out split, state, private key and tokens.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator

from rlguard.core.evaluation import Scoring
from rlguard.operator.adapters import PodTemplate
from rlguard.operator.api import names
from rlguard.operator.api.guard import EvaluatorSpec, GuardPod, GuardSpec, Heldout
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile import layout
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.runtime.client import Json

#: Asks the guard for a page and knows it by its certificate, so another process at its port gets it restarted
#: and nothing else.
PROBE = """\
import http.client, ssl, sys
port, page, certificate = sys.argv[1:]
context = ssl.create_default_context(cafile=certificate)
guard = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=3, context=context)
try:
    guard.request("GET", "/" + page)
    response = guard.getresponse()
    sys.exit(response.read(600).decode("utf-8", "replace") if response.status != 200 else 0)
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"no guard responds: {error}")
"""
#: Annotations of a pod, each a list of ports with commas, by which Istio and Linkerd leave a port alone.
EXCLUDED_PORTS = (
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
    "config.linkerd.io/skip-inbound-ports",
    "config.linkerd.io/skip-outbound-ports",
)


def guard_container(
    job: Job, checkpoints: Json, config: OperatorConfig, index_field: str | None = None
) -> Json:
    """Build the container; it is the same in a trainer's pod and in one of its own.

    Args:
        job: the job.
        checkpoints: how the trainer mounts the checkpoint volume.
        config: of the operator.
        index_field: downward-API field with the index of the pod, if one template makes several with a guard.
    """
    guard = job.spec.guard
    resources = guard.resources.model_dump(mode="json", exclude_defaults=True)
    return {
        "name": names.GUARD_CONTAINER,
        **image_of(guard, config),
        "resources": resources or copy.deepcopy(config.guard_resources),
        "env": list(_environment(job, checkpoints, index_field)),
        "terminationMessagePath": layout.TERMINATION_MESSAGE,
        # Its last lines say why it ended, unless it left its verdict there.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(_mounts(job, checkpoints, index_field)),
        "securityContext": restricted(layout.GUARD_UID),
        # The trainer starts only when the guard is adopted and has checked the held-out split, which takes
        # minutes against millions of training prompts.
        "startupProbe": _probe(
            guard.port, "readyz", periodSeconds=2, failureThreshold=_startup_looks(guard.own_pod)
        ),
        "livenessProbe": _probe(guard.port, "healthz", periodSeconds=20, failureThreshold=6),
        "readinessProbe": _probe(guard.port, "readyz", periodSeconds=15, failureThreshold=2),
    }


def image_of(guard: GuardSpec, config: OperatorConfig) -> Json:
    """The guard's image, and its pull policy if anybody said one."""
    policy = guard.image_pull_policy or config.guard_pull_policy
    return {"image": guard.image or config.guard_image} | ({"imagePullPolicy": policy} if policy else {})


def restricted(user: int) -> Json:
    """Build the securityContext of a container of ours, which PodSecurity `restricted` admits."""
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _startup_looks(own: GuardPod | None) -> int:
    """How often readiness is asked for, every 2 s: half an hour, or as long as its trainer waits."""
    return max(900, math.ceil((own.ready_seconds if own is not None else 0) / 2))


def _probe(port: int, page: str, **timing: int) -> Json:
    certificate = f"{layout.SECRET_DIR}/{names.CERTIFICATE_KEY}"
    command = ["python", "-I", "-c", PROBE, str(port), page, certificate]
    return {"exec": {"command": command}, "timeoutSeconds": 5, **timing}


def _environment(job: Job, checkpoints: Json, index_field: str | None) -> Iterator[Json]:
    guard = job.spec.guard
    values = {
        "RLGUARD_GUARD_RUN_NAME": job.name,
        "RLGUARD_GUARD_HOST": "::",  # IPv6 and IPv4
        "RLGUARD_GUARD_PORT": str(guard.port),
        "RLGUARD_GUARD_TLS_CERTIFICATE": f"{layout.SECRET_DIR}/{names.CERTIFICATE_KEY}",
        "RLGUARD_GUARD_TLS_KEY": f"{layout.SECRET_DIR}/{names.PRIVATE_KEY_KEY}",
        "RLGUARD_GUARD_INGEST_TOKEN_FILE": f"{layout.SECRET_DIR}/{names.INGEST_TOKEN_KEY}",
        "RLGUARD_GUARD_READ_TOKEN_FILE": f"{layout.SECRET_DIR}/{names.READ_TOKEN_KEY}",
        "RLGUARD_GUARD_SUPERVISOR_TOKEN_FILE": f"{layout.SECRET_DIR}/{names.SUPERVISOR_TOKEN_KEY}",
        "RLGUARD_GUARD_TERMINATION_MESSAGE": layout.TERMINATION_MESSAGE,
        "RLGUARD_GUARD_STATE_DIR": layout.STATE_DIR,
        "RLGUARD_GUARD_CHECKPOINT_ROOT": checkpoints["mountPath"],
        "RLGUARD_GUARD_POLICY_FILE": f"{layout.POLICY_DIR}/{layout.POLICY_KEY}",
        "RLGUARD_GUARD_HELDOUT": json.dumps(heldout_settings(guard.heldout), ensure_ascii=False),
        "HOME": layout.TMP_DIR,
    }
    if guard.state.keep_best:
        values["RLGUARD_GUARD_KEEP_BEST_CHECKPOINT"] = "true"
    if guard.metrics is not None:
        values["RLGUARD_GUARD_METRICS"] = guard.metrics.model_dump_json()
    yield from ({"name": name, "value": literal(value)} for name, value in values.items())
    if index_field is not None:
        yield {"name": layout.REPLICA_INDEX_ENV, "valueFrom": {"fieldRef": {"fieldPath": index_field}}}


def literal(value: str) -> str:
    """Escape a variable's value: the kubelet makes `$` of `$$`, and replaces what looks like `$(NAME)`."""
    return re.sub(r"\$(?=[$(])", "$$", value)


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
    if evaluator.vllm is not None:
        return {"kind": "vllm"} | evaluator.vllm.model_dump(mode="json")
    assert evaluator.hf is not None
    return {"kind": "hf"} | evaluator.hf.model_dump(mode="json")


def _mounts(job: Job, checkpoints: Json, index_field: str | None) -> Iterator[Json]:
    kept = {key: checkpoints[key] for key in ("name", "mountPath", "subPath") if key in checkpoints}
    yield kept | {"readOnly": True}
    yield {"name": layout.STATE_VOLUME, "mountPath": layout.STATE_DIR, **_own_folder(job, index_field)}
    yield {"name": "rlguard-tmp", "mountPath": layout.TMP_DIR}
    yield {"name": "rlguard-shm", "mountPath": layout.SHARED_MEMORY_DIR}
    for name, path in (
        ("rlguard-heldout", layout.HELDOUT_DIR),
        ("rlguard-policy", layout.POLICY_DIR),
        ("rlguard-secrets", layout.SECRET_DIR),
    ):
        yield {"name": name, "mountPath": path, "readOnly": True}


def _own_folder(job: Job, index_field: str | None) -> Json:
    """The folder of this guard in a claim that other jobs may use, too, and other replicas of this one."""
    if job.spec.guard.state.claim_name is None:
        return {}
    if index_field is None:
        return {"subPath": job.uid}
    return {"subPathExpr": f"{job.uid}/$({layout.REPLICA_INDEX_ENV})"}


def guard_volumes(guard: GuardSpec, support: str) -> list[Json]:
    """Its volumes but for that of the checkpoints; `support`: name of the job's Secret and ConfigMap."""
    return [
        {"name": "rlguard-heldout", **_heldout_source(guard)},
        {"name": layout.STATE_VOLUME, **_state_source(guard)},
        {"name": "rlguard-tmp", "emptyDir": {}},
        # A container's own has 64 MiB; the processes of an engine on several GPUs exchange more through it.
        {"name": "rlguard-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "rlguard-policy", "configMap": {"name": support}},
        {"name": "rlguard-secrets", "secret": {"secretName": support}},
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


def let_report(job: Job, template: PodTemplate, pod: Json, host: str, *, drains: bool) -> None:
    """Give the container that trains what it reports with, unless its log is followed.

    Args:
        job: the job.
        template: of rank 0.
        pod: its pod spec. What it says about waiting stays.
        host: where the guard is.
        drains: whether the guard ends with its trainer, which then waits for the last evaluations.
    """
    if job.spec.guard.metrics is not None:
        return
    waits = _patience(job) | ({layout.DRAIN_ENV: layout.DRAIN_SECONDS} if drains else {})
    for container in pod["containers"]:
        if container.get("name") == template.container:
            given = container.get("env") or []
            own = {one.get("name") for one in given}
            token = _from_secret(job, layout.TOKEN_ENV, names.INGEST_TOKEN_KEY)
            rest = ({"name": name, "value": value} for name, value in waits.items() if name not in own)
            container["env"] = [*given, *guard_address(job, host), token, *rest]


def guard_address(job: Job, host: str) -> list[Json]:
    """Build the variables that name the guard's address and its certificate."""
    url = {"name": layout.URL_ENV, "value": f"https://{host}:{job.spec.guard.port}"}
    return [url, _from_secret(job, layout.CA_ENV, names.CERTIFICATE_KEY)]


def _from_secret(job: Job, name: str, key: str) -> Json:
    reference = {"name": names.support_name(job.name, job.uid), "key": key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _patience(job: Job) -> dict[str, str]:
    """How long a trainer waits for its guard, and that `onSilence` decides when that is gone."""
    waits, silence, lag = dict[str, str](), job.spec.on_silence, job.spec.guard.max_lag
    if lag is not None:
        waits[layout.MAX_LAG_ENV] = str(lag)
    if silence.action == "Warn":
        waits[layout.ON_UNREACHABLE_ENV] = "continue"
    elif silence.after_seconds > layout.UNREACHABLE_SECONDS:
        waits[layout.UNREACHABLE_ENV] = str(silence.after_seconds)
    return waits


def exclude_port(metadata: Json, port: int) -> None:
    """Keep the guard's port out of a service mesh: its peers check the certificate themselves."""
    annotations = dict(metadata.get("annotations") or {})
    for name in EXCLUDED_PORTS:
        given = str(annotations.get(name) or "")
        annotations[name] = ",".join(filter(None, (given, str(port))))
    metadata["annotations"] = annotations
