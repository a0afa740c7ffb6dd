"""The guard's container and the volumes that are its alone, in whatever pod it runs. Pure.

A held-out split, the state, a token that may write one status: nobody else in a pod may mount any of it.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from guard_core.evaluation import Scoring
from guard_operator.api import names
from guard_operator.api.types import EvaluatorSpec, GuardPod, GuardSpec, Heldout
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import Json

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


def guard_container(
    job: Job,
    checkpoints: Json,
    config: OperatorConfig,
    index_field: str | None = None,
    environment: Mapping[str, Json] | None = None,
) -> Json:
    """The container.

    Args:
        job: the job.
        checkpoints: how the trainer mounts the checkpoint volume.
        config: of the operator.
        index_field: downward-API field with the index of the pod, if the guard has fellows in other pods.
        environment: further variables, or others of these names: what beside `name` stands in each.
    """
    guard = job.spec.guard
    resources = guard.resources.model_dump(mode="json", exclude_defaults=True)
    variables = _environment(job, checkpoints, index_field) | dict(environment or {})
    container: Json = {
        "name": names.GUARD_CONTAINER,
        "image": guard.image or config.guard_image,
        "resources": resources or copy.deepcopy(config.guard_resources),
        "env": [{"name": name, **source} for name, source in variables.items()],
        "ports": [{"name": layout.METRICS_PORT_NAME, "containerPort": guard.metrics_port}],
        # Its last lines say why it ended, unless it left a latch there.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(_mounts(job, checkpoints, index_field)),
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
        "startupProbe": _probe("readyz", periodSeconds=2, failureThreshold=_looks(guard.own_pod)),
        "livenessProbe": _probe("healthz", periodSeconds=20, failureThreshold=6),
        "readinessProbe": _probe("readyz", periodSeconds=15, failureThreshold=2),
    }
    if pull_policy := guard.image_pull_policy or config.guard_pull_policy:
        container["imagePullPolicy"] = pull_policy
    return container


def _looks(own: GuardPod | None) -> int:
    """How often it is asked whether it is ready, every 2 s: half an hour, or as long as its trainer waits."""
    return max(900, math.ceil((own.ready_seconds if own is not None else 0) / 2))


def _probe(page: str, **timing: int) -> Json:
    return {
        "exec": {"command": ["python", "-I", "-c", PROBE, layout.SOCKET, page]},
        "timeoutSeconds": 5,
        **timing,
    }


def _environment(job: Job, checkpoints: Json, index_field: str | None) -> dict[str, Json]:
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
    if guard.state.keep_best:
        values["RLGUARD_GUARD_KEEP_BEST_CHECKPOINT"] = "true"
    if guard.metrics is not None:
        values["RLGUARD_GUARD_METRICS"] = guard.metrics.model_dump_json()
    variables: dict[str, Json] = {name: {"value": literal(value)} for name, value in values.items()}
    variables["RLGUARD_GUARD_METRICS_HOST"] = own_address()  # what Prometheus asks
    if index_field is not None:
        variables[layout.REPLICA_INDEX_ENV] = {"valueFrom": {"fieldRef": {"fieldPath": index_field}}}
    return variables


def literal(value: str) -> str:
    """As the value of a variable: the kubelet makes `$` of `$$`, and replaces what looks like `$(NAME)`."""
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
    yield {"name": layout.SOCKET_VOLUME, "mountPath": layout.SOCKET_DIR}
    yield {"name": "rlguard-tmp", "mountPath": layout.TMP_DIR}
    yield {"name": "rlguard-shm", "mountPath": layout.SHARED_MEMORY_DIR}
    for name, path in (
        ("rlguard-heldout", layout.HELDOUT_DIR),
        ("rlguard-policy", layout.POLICY_DIR),
        ("rlguard-secrets", layout.SECRET_DIR),
        ("rlguard-token", layout.TOKEN_DIR),
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
        # A container's own has 64 MiB; the processes of an engine on several GPUs exchange more through it.
        {"name": "rlguard-shm", "emptyDir": {"medium": "Memory"}},
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


def own_address() -> Json:
    """The value of a variable that holds the pod's own address: right for IPv4 and IPv6."""
    return {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def from_secret(secret: str, key: str) -> Json:
    """The value of a variable that a Secret has."""
    return {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def patience(job: Job, given: Sequence[Json]) -> Sequence[Json]:
    """How long a trainer waits for its guard: what the job says, unless its template has it already.

    `given`: the environment of its template.
    """
    lag = job.spec.guard.max_lag
    waits = () if lag is None else unless_said(given, layout.MAX_LAG_ENV, str(lag))
    return (*waits, *_until_silence(job, given))


def _until_silence(job: Job, given: Sequence[Json]) -> Sequence[Json]:
    """What keeps it from ending for want of a guard that `onSilence` still waits for."""
    if job.spec.on_silence.action == "Warn":
        return unless_said(given, layout.ON_UNREACHABLE_ENV, "continue")
    seconds = job.spec.on_silence.after_seconds
    if seconds <= layout.UNREACHABLE_SECONDS:
        return ()
    return unless_said(given, layout.UNREACHABLE_ENV, str(seconds))


def unless_said(given: Sequence[Json], name: str, value: str) -> Sequence[Json]:
    """This variable, unless the environment of a template has it."""
    return () if any(one.get("name") == name for one in given) else ({"name": name, "value": value},)
