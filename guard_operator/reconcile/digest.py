"""What the operator added to a pod, as one digest, so that a live pod shows whether it was changed. Pure.

The digest covers what decides which code runs as the guard, on which data and under which policy: image,
command, environment, mounts, user and probes of its container, and the volumes that are the operator's. It
leaves out what a cluster itself fills in or changes: defaults of the API server, resources, pull policies,
and what identity webhooks and the Job controller add to every container.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from guard_operator.api.names import DIGEST_ANNOTATION, GUARD_CONTAINER, RESERVED_PREFIX

#: Goes up when the same pod would get another digest; what an older operator wrote is then not compared.
VERSION = "v1"
#: Where a slim pod keeps the digest of its guard; no pod of the API server has such a field.
FOUND = "guardDigest"

_PLAIN = (
    "image", "command", "args", "workingDir", "restartPolicy", "envFrom", "volumeDevices", "lifecycle",
    "terminationMessagePolicy",
)  # fmt: skip
_SECURITY = ("privileged", "runAsUser", "runAsGroup", "allowPrivilegeEscalation", "readOnlyRootFilesystem")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_MESSAGE_FILE = "/dev/termination-log"
_DEFAULTED = {"defaultMode": 420, "apiVersion": "v1"}
#: What others add to every container: variables that begin so (the identity webhooks of EKS; the Job
#: controller, in an Indexed Job; KubeRay), and where those webhooks mount their tokens.
ADDED_ENV = ("AWS_", "JOB_COMPLETION_INDEX", "FQ_RAY_IP", "RAY_IP")
ADDED_MOUNTS = (
    "/var/run/secrets/eks.amazonaws.com/serviceaccount",
    "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount",
)


def injected_digest(pod: Mapping[str, Any]) -> str | None:
    """Digest of the guard container and of the operator's volumes in a pod spec; None without a guard.

    The spec as it was built and the one that the API server gives back have the same digest.
    """
    sidecars, alone = (
        [c for c in pod.get(key) or [] if c.get("name") == GUARD_CONTAINER]
        for key in ("initContainers", "containers")
    )
    if len(sidecars) + len(alone) != 1:
        return None
    guard = (sidecars or alone)[0]
    volumes = [v for v in pod.get("volumes") or [] if str(v.get("name", "")).startswith(RESERVED_PREFIX)]
    # What is not there and what is empty are the same, as for the API server.
    content = {
        "container": {key: value for key, value in _container(guard) if value}
        | ({"alone": True} if alone else {}),
        "volumes": sorted((_undefaulted(volume) for volume in volumes), key=lambda v: str(v["name"])),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"


def is_as_injected(pod: Mapping[str, Any], noted: str | None = None) -> bool | None:
    """Whether the guard of a live pod is the one that the operator made.

    None: nothing is known, because there is no digest, or one of another version of this module.

    Args:
        pod: as it is in the cluster, or with what `slim` keeps of it.
        noted: the digest in the job's status. Without it that in the pod's annotation counts, which whoever
            edits the workload can write, too.
    """
    written = noted or annotated_digest(pod)
    if not isinstance(written, str) or not written.startswith(f"{VERSION}:"):
        return None
    found = pod[FOUND] if FOUND in pod else injected_digest(pod.get("spec") or {})
    return bool(found == written)


def annotated_digest(pod: Mapping[str, Any]) -> Any:
    """What the annotation of a live pod says."""
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(DIGEST_ANNOTATION)


def _container(container: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _PLAIN:
        yield key, container.get(key)
    security = container.get("securityContext") or {}
    yield "security", {key: security[key] for key in _SECURITY if security.get(key) is not None}
    yield "capabilities", (security.get("capabilities") or {}).get("add")
    message_file = container.get("terminationMessagePath")
    yield "messageFile", None if message_file == _MESSAGE_FILE else message_file
    for key in _PROBES:
        probe = container.get(key) or {}
        yield key, {handler: probe[handler] for handler in _HANDLERS if probe.get(handler)}
    variables = container.get("env") or []
    yield "env", [_undefaulted(v) for v in variables if not str(v.get("name", "")).startswith(ADDED_ENV)]
    mounts = container.get("volumeMounts") or []
    yield "mounts", [mount for mount in mounts if mount.get("mountPath") not in ADDED_MOUNTS]


def _undefaulted(value: Any) -> Any:
    """Without the fields that the API server fills in, and without empty ones."""
    if isinstance(value, dict):
        inner = {key: _undefaulted(v) for key, v in value.items() if _DEFAULTED.get(key, ...) != v}
        return {key: v for key, v in inner.items() if v not in (None, "", False)}
    return [_undefaulted(v) for v in value] if isinstance(value, list) else value
