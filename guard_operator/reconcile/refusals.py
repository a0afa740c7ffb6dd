"""What a template may not contain, because the guard's isolation would be gone (invariant 3). Pure.

Strict refuses everything listed here. Relaxed admits host networking and configured host paths, and each
admission says what it costs. A template of the wrong shape is refused too, with the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from guard_operator.adapters import Adapter, PodTemplate, TemplateError
from guard_operator.api.names import RESERVED_PREFIX
from guard_operator.api.types import GuardSpec, HeldoutVolume, Isolation
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.layout import (
    GUARD_DIRECTORIES,
    GUARD_UID,
    METRICS_PORT_NAME,
    TMP_DIR,
    TRAINER_ENV,
)

#: Capabilities with which a container can leave its own file system and processes.
HOST_CAPABILITIES = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"}
)
_HOST_NETWORK_COST = (
    "hostNetwork: every process on the node can reach the guard's port; only its tokens protect it"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the template. `cost` is set where it is admitted: what is no longer protected."""

    field: str
    message: str
    cost: str | None = None


def inspect(
    adapter: Adapter, spec: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> tuple[Finding, ...]:
    """Every finding in `spec.template.spec`, refused ones and admitted ones."""
    try:
        templates = adapter.pod_templates(spec)
        pods = [(template, pod_spec(spec, template)) for template in templates]
    except TemplateError as error:
        return (Finding(f"spec.template.spec.{error.field}", str(error).split(": ", 1)[1]),)
    return tuple(
        replace(finding, field=f"{field_of(template)}.{finding.field}".rstrip("."))
        for template, pod in pods
        for finding in _pod_findings(template, pod, guard, config)
    )


def field_of(template: PodTemplate) -> str:
    """Path of the pod spec of a template from the root of the object."""
    return ".".join(("spec.template.spec", *template.path, "spec"))


def pod_spec(spec: Mapping[str, Any], template: PodTemplate) -> dict[str, Any]:
    """The pod spec of a template, known to have the shape that the injection relies on.

    Raises:
        TemplateError: it has not; names the field.
    """
    node: Any = spec
    walked: list[str] = []
    for key in (*template.path, "spec"):
        walked.append(key)
        node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise TemplateError(".".join(walked), "must be an object")
    for key in ("containers", "initContainers", "volumes"):
        items = node.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise TemplateError(".".join((*walked, key)), "must be a list of objects")
    for key in ("containers", "initContainers"):
        for index, container in enumerate(node.get(key, [])):
            for inner in ("env", "envFrom", "volumeMounts", "ports"):
                if not isinstance(container.get(inner, []), list):
                    raise TemplateError(".".join((*walked, f"{key}[{index}]", inner)), "must be a list")
    pod: dict[str, Any] = node
    if template.guarded and trainer(pod, template) is None:
        raise TemplateError(
            ".".join((*walked, "containers")), f"must have a container named {template.container}"
        )
    return pod


def trainer(pod: Mapping[str, Any], template: PodTemplate) -> dict[str, Any] | None:
    """The container that trains."""
    return next((c for c in pod.get("containers", []) if c.get("name") == template.container), None)


def checkpoint_mount(pod: Mapping[str, Any], template: PodTemplate, volume: str) -> dict[str, Any] | None:
    """The mount of the checkpoint volume in the container that trains."""
    mounts = (trainer(pod, template) or {}).get("volumeMounts", [])
    return next((dict(m) for m in _objects(mounts) if m.get("name") == volume), None)


def _pod_findings(
    template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> Iterator[Finding]:
    for name in ("shareProcessNamespace", "hostPID", "hostIPC"):
        if pod.get(name):
            yield Finding(name, "must not be set: the trainer would see the guard's processes or memory")
    if pod.get("hostNetwork"):
        relaxed = guard.isolation is Isolation.RELAXED
        yield Finding(
            "hostNetwork",
            "must not be set under isolation Strict: the guard's port would be the node's",
            _HOST_NETWORK_COST if relaxed else None,
        )
    for index, volume in enumerate(pod.get("volumes", [])):
        for finding in _volume_findings(volume, guard, config):
            yield replace(finding, field=f"volumes[{index}].{finding.field}")
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(key, [])):
            for finding in _container_findings(template, pod, container, guard):
                yield replace(finding, field=f"{key}[{index}].{finding.field}")
    if template.guarded:
        yield from _checkpoint_findings(template, pod, guard)


def _volume_findings(
    volume: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> Iterator[Finding]:
    if str(volume.get("name", "")).startswith(RESERVED_PREFIX):
        yield Finding("name", f"must not start with {RESERVED_PREFIX}: such volumes are the operator's")
    if _holds(volume, guard.heldout.volume):
        yield Finding("", "must not be the held-out volume: the trainer could read the split")
    claim = _object(volume.get("persistentVolumeClaim")).get("claimName")
    if claim is not None and claim == guard.state.claim_name:
        yield Finding(
            "", "must not be the claim of the guard's state: the trainer could rewrite what it knows"
        )
    if (host := volume.get("hostPath")) is not None:
        path = str(_object(host).get("path", ""))
        allowed = guard.isolation is Isolation.RELAXED and _under(path, config.relaxed_host_paths)
        yield Finding(
            "hostPath",
            f"must not be used ({path}): only isolation Relaxed admits host paths, and only those that the "
            f"operator's configuration lists ({', '.join(config.relaxed_host_paths) or 'none'})",
            f"hostPath {path}: the trainer shares these files with the node" if allowed else None,
        )
    for index, source in enumerate(_objects(_object(volume.get("projected")).get("sources"))):
        where = f"projected.sources[{index}]"
        if "serviceAccountToken" in source:
            yield Finding(
                f"{where}.serviceAccountToken",
                "must not be used: with the pod's token the trainer could write the guard's status",
            )
        if _holds(source, guard.heldout.volume):
            yield Finding(where, "must not be the held-out volume: the trainer could read the split")


def _holds(source: Mapping[str, Any], heldout: HeldoutVolume) -> bool:
    """Whether a volume (or one source of a projected volume) is the held-out one."""
    claim = _object(source.get("persistentVolumeClaim")).get("claimName")
    secret = _object(source.get("secret"))
    config_map = _object(source.get("configMap")).get("name")
    return (
        (heldout.claim_name is not None and claim == heldout.claim_name)
        or (
            heldout.secret_name is not None
            and heldout.secret_name in {secret.get("secretName"), secret.get("name")}
        )
        or (heldout.config_map_name is not None and config_map == heldout.config_map_name)
    )


def _container_findings(
    template: PodTemplate, pod: Mapping[str, Any], container: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Finding]:
    if str(container.get("name", "")).startswith(RESERVED_PREFIX):
        yield Finding("name", f"must not start with {RESERVED_PREFIX}: such containers are the operator's")
    security = _object(container.get("securityContext"))
    if security.get("privileged"):
        yield Finding("securityContext.privileged", "must not be set: the trainer could read every volume")
    added = _object(security.get("capabilities")).get("add") or []
    if refused := sorted(HOST_CAPABILITIES & {str(name).upper().removeprefix("CAP_") for name in added}):
        yield Finding(
            "securityContext.capabilities.add", f"must not have {', '.join(refused)}: it opens the host"
        )
    user = security.get("runAsUser", _object(pod.get("securityContext")).get("runAsUser"))
    if user == GUARD_UID:
        yield Finding("securityContext.runAsUser", f"must not be {GUARD_UID}: that is the guard's user")
    yield from _env_findings(template, container, guard.heldout.volume)
    if template.guarded:
        yield from _port_findings(container, guard)


def _port_findings(container: Mapping[str, Any], guard: GuardSpec) -> Iterator[Finding]:
    """Containers of a pod share its ports."""
    for index, port in enumerate(_objects(container.get("ports"))):
        if port.get("name") == METRICS_PORT_NAME:
            yield Finding(f"ports[{index}].name", f"must not be {METRICS_PORT_NAME}: that is the guard's")
        for field, number in (("port", guard.port), ("metricsPort", guard.metrics_port)):
            if port.get("containerPort") == number:
                yield Finding(
                    f"ports[{index}].containerPort",
                    f"must not be {number}: the guard listens there (spec.guard.{field})",
                )


def _env_findings(
    template: PodTemplate, container: Mapping[str, Any], heldout: HeldoutVolume
) -> Iterator[Finding]:
    is_trainer = template.guarded and container.get("name") == template.container
    leak = "must not refer to the held-out data: the trainer could read the split"
    for index, variable in enumerate(_objects(container.get("env"))):
        if is_trainer and variable.get("name") in TRAINER_ENV:
            yield Finding(f"env[{index}].name", f"must not be {variable['name']}: the operator sets it")
        source = _object(variable.get("valueFrom"))
        if _named(source.get("secretKeyRef"), heldout.secret_name) or _named(
            source.get("configMapKeyRef"), heldout.config_map_name
        ):
            yield Finding(f"env[{index}].valueFrom", leak)
    for index, source in enumerate(_objects(container.get("envFrom"))):
        if _named(source.get("secretRef"), heldout.secret_name) or _named(
            source.get("configMapRef"), heldout.config_map_name
        ):
            yield Finding(f"envFrom[{index}]", leak)


def _checkpoint_findings(
    template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Finding]:
    name = guard.checkpoints.volume
    if not any(volume.get("name") == name for volume in pod.get("volumes", [])):
        yield Finding("volumes", f"must have the volume {name}, which guard.checkpoints.volume names")
        return
    mount = checkpoint_mount(pod, template, name)
    if mount is None:
        yield Finding("containers", f"the container {template.container} must mount the volume {name}")
        return
    path = PurePosixPath(str(mount.get("mountPath", "")))
    # The guard mounts the volume at the same path, where it must not cover one of its own directories.
    if any(PurePosixPath(own).is_relative_to(path) for own in GUARD_DIRECTORIES) or any(
        path.is_relative_to(own) for own in GUARD_DIRECTORIES if own != TMP_DIR
    ):
        yield Finding(
            "containers",
            f"the volume {name} must not be mounted at {path}: the guard uses {', '.join(GUARD_DIRECTORIES)}",
        )


def _under(path: str, directories: Sequence[str]) -> bool:
    parts = PurePosixPath(path)
    return ".." not in parts.parts and any(parts.is_relative_to(directory) for directory in directories)


def _named(reference: Any, name: str | None) -> bool:
    return name is not None and _object(reference).get("name") == name


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
