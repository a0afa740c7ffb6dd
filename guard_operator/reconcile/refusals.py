"""What a template may not contain, because the guard's isolation would be gone (invariant 3). Pure.

`isolation` says for every field of a pod whether Strict allows it; here that is applied, and what depends on
a value is checked. Relaxed admits what is marked so, and each admission says what it costs. A template of the
wrong shape is refused too, with the field that is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from guard_core.wording import quoted
from guard_operator.adapters import PodTemplate, TemplateError, WorkloadAdapter, at, dotted
from guard_operator.api.names import OWN_LABELS, RESERVED_PREFIX
from guard_operator.api.types import ESCAPED, PLAIN, GuardSpec, Isolation
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import isolation
from guard_operator.reconcile.isolation import HOST_CAPABILITIES, Decisions, Says
from guard_operator.reconcile.layout import (
    GUARD_DIRECTORIES,
    GUARD_UID,
    TMP_DIR,
    TRAINER_ENV,
)

#: What one variable of the guard may hold, bytes: Linux takes 128 KiB with its name, and paths are added.
MAX_SETTING = 120_000
#: Names in the document of the guard's settings that the admission policy counts there.
_OF_THE_SETTINGS = frozenset({"split", "scorer", "evaluator", "kind"})
_EVALUATOR = ("heldout", "evaluator")
#: The fields of a container in which volumes come into it, as a directory or as a block device.
MOUNTS = ("volumeMounts", "volumeDevices")
#: How a source is named in a volume, in a projected one and in the environment: kind, and field of its name.
_VOLUME_SOURCES = {
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    "secret": ("Secret", "secretName"),
    "configMap": ("ConfigMap", "name"),
}
_PROJECTED_SOURCES = {"secret": ("Secret", "name"), "configMap": ("ConfigMap", "name")}
_ENV_SOURCES = {
    "secretKeyRef": ("Secret", "name"),
    "secretRef": ("Secret", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMapRef": ("ConfigMap", "name"),
}
#: The shape of a pod template, as far as it is read: objects, lists of objects, and text.
_NAMED = {"name": str}
_ENV = {"name": str, "valueFrom": {"secretKeyRef": _NAMED, "configMapKeyRef": _NAMED, "fileKeyRef": {}}}
_CONTAINER = {
    "name": str,
    "env": [_ENV],
    "envFrom": [{"secretRef": _NAMED, "configMapRef": _NAMED}],
    "volumeMounts": [_NAMED],
    "volumeDevices": [_NAMED],
    "ports": [_NAMED],
    "securityContext": {},
}
_VOLUME = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "secret": {"secretName": str},
    "configMap": _NAMED,
    "projected": {"sources": [{"secret": _NAMED, "configMap": _NAMED}]},
}
_POD = {"containers": [_CONTAINER], "initContainers": [_CONTAINER], "volumes": [_VOLUME]}
_METADATA: dict[str, Any] = {"labels": {}, "annotations": {}}
#: Before Kubernetes 1.30 a container's profile was an annotation of the pod. API servers still make the field
#: of it.
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
#: What a container without a profile costs.
_UNCONFINED = "more of the node's kernel can be reached from the container"
#: (kind, name) of something in the job's namespace.
SourceRef = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in the template. `cost` is set where it is admitted: what is no longer protected."""

    field: str
    message: str
    cost: str | None = None


def find_violations(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> tuple[Violation, ...]:
    """Every finding in `spec.template.spec`, refused ones and admitted ones."""
    try:
        templates = adapter.pod_templates(spec)
        pods = [(template, pod_spec(spec, template)) for template in templates]
    except TemplateError as error:
        return (Violation(f"spec.template.spec.{error.field}", str(error).split(": ", 1)[1]),)
    return (
        *evaluator_findings(guard),
        *(
            finding
            for template, pod in pods
            for finding in (
                *_in(field_of(template), _pod_findings(template, pod, guard, config)),
                *_in(field_of(template).removesuffix(".spec"), _metadata_findings(template, spec, guard)),
            )
        ),
    )


def guarded_sources(guard: GuardSpec) -> dict[SourceRef, str]:
    """What only the guard may have of what a user names, each with what a trainer could do with it."""
    volume = guard.heldout.volume
    split = "must not be the held-out data: the trainer could read the split"
    state = "must not be the claim of the guard's state: the trainer could rewrite what it knows"
    named = [
        ("PersistentVolumeClaim", volume.claim_name, split),
        ("Secret", volume.secret_name, split),
        ("ConfigMap", volume.config_map_name, split),
        ("PersistentVolumeClaim", guard.state.claim_name, state),
    ]
    return {(kind, name): why for kind, name, why in named if name is not None}


def template_claims(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The claims that the pods of a template mount, each once, with the field that names it."""
    seen = set()
    for template in adapter.pod_templates(spec):
        for index, volume in enumerate(pod_spec(spec, template).get("volumes", [])):
            claim = _object(volume.get("persistentVolumeClaim")).get("claimName")
            if isinstance(claim, str) and claim not in seen:
                seen.add(claim)
                yield f"{field_of(template)}.volumes[{index}].persistentVolumeClaim", claim


def copies(claim: Mapping[str, Any], guard: GuardSpec) -> bool:
    """Whether this PersistentVolumeClaim was made as a copy of one that only the guard may have."""
    spec = _object(claim.get("spec"))
    for field in ("dataSource", "dataSourceRef"):
        source = _object(spec.get(field))
        if (source.get("kind"), source.get("name")) in guarded_sources(guard):
            return True
    return False


def field_of(template: PodTemplate) -> str:
    """Path of the pod spec of a template from the root of the object."""
    return dotted(("spec.template.spec", *template.path, "spec"))


def pod_spec(spec: Mapping[str, Any], template: PodTemplate) -> dict[str, Any]:
    """The pod spec of a template, known to have the shape that the injection relies on.

    Raises:
        TemplateError: it has not; names the field.
    """
    path = (*template.path, "spec")
    for end in range(1, len(path) + 1):
        inner = path[end] if end < len(path) else ""
        if not isinstance(at(spec, *path[:end]), list if isinstance(inner, int) else dict):
            raise TemplateError(dotted(path[:end]), "must be an object")
    for place in (template.path, *template.between):
        metadata = (*place, "metadata")
        _check_shape(at(spec, *metadata), _METADATA, dotted(metadata))
    pod: dict[str, Any] = at(spec, *path)
    _check_shape(pod, _POD, dotted(path))
    if template.guarded and trainer(pod, template) is None:
        raise TemplateError(
            dotted((*path, "containers")), f"must have a container named {template.container}"
        )
    return pod


def _check_shape(value: Any, shape: Any, where: str) -> None:
    """Refuse what has not the shape of a pod, as far as it is read here.

    Raises:
        TemplateError: it has not; names the field.
    """
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise TemplateError(where, "must be a list of objects")
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise TemplateError(f"{where}[{index}]", "must be an object")
            _check_shape(item, shape[0], f"{where}[{index}]")
    elif value is None:
        return
    elif shape is str:
        if not isinstance(value, str):
            raise TemplateError(where, "must be a string")
    elif not isinstance(value, dict):
        raise TemplateError(where, "must be an object")
    else:
        for key in shape.keys() & value.keys():
            _check_shape(value[key], shape[key], f"{where}.{key}")


def trainer(pod: Mapping[str, Any], template: PodTemplate) -> dict[str, Any] | None:
    """The container that trains."""
    return next((c for c in pod.get("containers", []) if c.get("name") == template.container), None)


def checkpoint_mount(
    pod: Mapping[str, Any], template: PodTemplate, volume: str | None
) -> dict[str, Any] | None:
    """The mount of the checkpoint volume in the container that trains."""
    return next(iter(_checkpoint_mounts(pod, template, volume)), None)


def _checkpoint_mounts(
    pod: Mapping[str, Any], template: PodTemplate, volume: str | None
) -> list[dict[str, Any]]:
    mounts = (trainer(pod, template) or {}).get("volumeMounts")
    return [dict(mount) for mount in _objects(mounts) if mount.get("name") == volume]


def _in(path: str, findings: Iterator[Violation]) -> Iterator[Violation]:
    """Findings with the path of the object in which they were found."""
    for finding in findings:
        yield replace(finding, field=f"{path}.{finding.field}".rstrip("."))


def evaluator_findings(guard: GuardSpec) -> Iterator[Violation]:
    """What is refused, or admitted at a cost, of how and where the policy is asked."""
    said = json.dumps(guard.heldout.model_dump(mode="json"), ensure_ascii=False).encode()
    if len(said) > MAX_SETTING:
        why = f"has {len(said)} bytes; the guard takes at most {MAX_SETTING}: shorten its systemPrompt"
        yield Violation("spec.guard.heldout", why)
    yield from _unreadable_findings(guard)


def _unreadable_findings(guard: GuardSpec) -> Iterator[Violation]:
    """What the admission policy would not find in the guard's variables, so that it refuses every pod."""
    said = guard.model_dump(by_alias=True, exclude_none=True)
    follow, checkpoints = ("metrics", "follow", "path"), ("metrics", "checkpoints", "path")
    config = ("metrics", "follow", "runConfig")
    for path in (follow, config, checkpoints):
        if re.search(f"[{ESCAPED}]", str(at(said, *path) or "")):
            yield Violation(f"spec.guard.{'.'.join(path)}", PLAIN)
    for kind in ("hf", "vllm"):
        variables = (*_EVALUATOR, kind, "chatTemplateKwargs")
        for name in sorted(_keys(at(said, *variables)) & _OF_THE_SETTINGS):
            why = f"must not have {name!r}, a name of the guard's own settings: rename it in the template"
            yield Violation(f"spec.guard.{'.'.join(variables)}", why)


def _keys(value: Any) -> set[str]:
    """Every key in it, however deep."""
    if isinstance(value, Mapping):
        return {str(key) for key in value}.union(*map(_keys, value.values()))
    return set[str]().union(*map(_keys, value)) if isinstance(value, list) else set()


def _relaxable(field: str, message: str, cost: str, guard: GuardSpec) -> Violation:
    """What Strict refuses and Relaxed admits."""
    if guard.isolation is Isolation.RELAXED:
        return Violation(field, message, f"{field}: {cost}")
    return Violation(field, f"{message} under isolation Strict: {cost}. Only isolation: Relaxed admits it")


def _root_cost(guard: GuardSpec) -> str:
    return isolation.ROOT_COST if guard.own_pod is None else isolation.ROOT_COST_APART


def _decided(value: Mapping[str, Any], decisions: Decisions, guard: GuardSpec) -> Iterator[Violation]:
    """What the tables say to the fields of an object."""
    for field, content in value.items():
        if content is None or content is False:
            continue
        decision = decisions.get(field, isolation.UNKNOWN)
        if guard.own_pod is not None:
            decision = decision.apart or decision
        if decision.says is Says.REFUSED:
            yield Violation(field, f"must not be set: {decision.reason}")
        elif decision.says is Says.RELAXED:
            yield _relaxable(field, "must not be set", decision.reason, guard)


def _pod_findings(
    template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> Iterator[Violation]:
    yield from _decided(pod, isolation.POD, guard)
    if pod.get("hostNetwork") and config.no_host_network and guard.isolation is Isolation.RELAXED:
        why = "must not be set: the operator's configuration (relaxed.hostNetwork of the chart) forbids it"
        yield Violation("hostNetwork", why)
    security = _object(pod.get("securityContext"))
    yield from _in("securityContext", _decided(security, isolation.POD_SECURITY, guard))
    yield from _in("securityContext", _profile_findings(security, guard))
    for index, volume in enumerate(pod.get("volumes", [])):
        yield from _in(f"volumes[{index}]", _volume_findings(volume, guard, config))
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(key, [])):
            yield from _in(f"{key}[{index}]", _container_findings(template, pod, container, guard))
    if template.guarded:
        yield from _checkpoint_findings(template, pod, guard)


def _volume_findings(
    volume: Mapping[str, Any], guard: GuardSpec, config: OperatorConfig
) -> Iterator[Violation]:
    if is_reserved(volume):
        yield Violation("name", f"must not start with {RESERVED_PREFIX}: such volumes are the operator's")
    yield from _decided({k: v for k, v in volume.items() if k != "name"}, isolation.VOLUMES, guard)
    yield from _source_findings(volume, _VOLUME_SOURCES, guard)
    if (host := volume.get("hostPath")) is not None:
        yield _host_path_finding(str(_object(host).get("path", "")), guard, config)
    for index, source in enumerate(_objects(_object(volume.get("projected")).get("sources"))):
        where = f"projected.sources[{index}]"
        yield from _in(where, _decided(source, isolation.PROJECTED, guard))
        yield from _in(where, _source_findings(source, _PROJECTED_SOURCES, guard))
    if (ephemeral := volume.get("ephemeral")) is not None:
        claim = _object(_object(_object(ephemeral).get("volumeClaimTemplate")).get("spec"))
        where = "ephemeral.volumeClaimTemplate.spec"
        yield from _in(where, _decided(claim, isolation.EPHEMERAL_CLAIM, guard))


def _host_path_finding(path: str, guard: GuardSpec, config: OperatorConfig) -> Violation:
    """Which paths are listed may not be known: then one is admitted, and told as one that must be."""
    listed = config.relaxed_host_paths
    known = "relaxed.hostPaths" if listed is None else ", ".join(listed) or "none"
    cost = f"hostPath {path}: the trainer shares these files with the node"
    if listed is None:
        cost += ". The operator refuses them unless its relaxed.hostPaths lists them, which was not read"
    allowed = guard.isolation is Isolation.RELAXED and _under(path, ("/",) if listed is None else listed)
    return Violation(
        "hostPath",
        f"must not be used ({path}): only isolation Relaxed admits host paths, and only those that the "
        f"operator's configuration lists ({known})",
        cost if allowed else None,
    )


def _source_findings(
    value: Mapping[str, Any], sources: Mapping[str, tuple[str, str]], guard: GuardSpec
) -> Iterator[Violation]:
    """References to what only the guard may have."""
    for field, (kind, key) in sources.items():
        why = guarded_sources(guard).get((kind, str(_object(value.get(field)).get(key))))
        if why is not None:
            yield Violation(field, why)


def _container_findings(
    template: PodTemplate, pod: Mapping[str, Any], container: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    if is_reserved(container):
        yield Violation("name", f"must not start with {RESERVED_PREFIX}: such containers are the operator's")
    yield from _decided(container, isolation.CONTAINER, guard)
    for key in MOUNTS:
        for index, mount in enumerate(_objects(container.get(key))):
            yield from _in(f"{key}[{index}]", _decided(mount, isolation.MOUNT, guard))
            if is_reserved(mount):
                yield Violation(f"{key}[{index}].name", "must not be a volume of the guard's")
    yield from _in("securityContext", _security_findings(pod, container, guard))
    yield from _env_findings(template, container, guard)
    for index, port in enumerate(_objects(container.get("ports"))):
        yield from _in(f"ports[{index}]", _decided(port, isolation.PORT, guard))
    if template.guarded:
        yield from _port_findings(container, guard)


def _security_findings(
    pod: Mapping[str, Any], container: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    security, outer = _object(container.get("securityContext")), _object(pod.get("securityContext"))
    yield from _decided(security, isolation.SECURITY, guard)
    yield from _profile_findings(security, guard)
    if security.get("allowPrivilegeEscalation"):
        yield _relaxable("allowPrivilegeEscalation", "must not be true", _root_cost(guard), guard)
    if security.get("procMount") not in (None, "Default"):
        cost = "the container can write what the node's kernel is told under /proc"
        yield _relaxable("procMount", "must be Default", cost, guard)
    yield from _capability_findings(_object(security.get("capabilities")).get("add") or [], guard)
    user, non_root = (
        outer.get(key) if security.get(key) is None else security[key]
        for key in ("runAsUser", "runAsNonRoot")
    )
    if user is not None and (isinstance(user, bool) or not isinstance(user, int)):
        yield Violation("runAsUser", f"must be a whole number, not {str(user)[:80]!r}")
    elif user == GUARD_UID and guard.own_pod is None:
        yield Violation("runAsUser", f"must not be {GUARD_UID}: that is the guard's user")
    elif user == 0 or (user is None and non_root is not True):
        yield _relaxable(
            "runAsUser",
            "must be a number other than 0, or runAsNonRoot true, here or in the pod's securityContext,",
            _root_cost(guard),
            guard,
        )


def _profile_findings(security: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    for field in ("appArmorProfile", "seccompProfile"):
        if _object(security.get(field)).get("type") == "Unconfined":
            yield _relaxable(f"{field}.type", "must not be Unconfined", _UNCONFINED, guard)


def _metadata_findings(
    template: PodTemplate, spec: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    metadata = _object(at(spec, *template.path, "metadata"))
    for name in _object(metadata.get("labels")):
        if str(name).startswith(OWN_LABELS):
            why = f"must not be set: by labels of {OWN_LABELS} operator and policies know whose pod it is"
            yield Violation(f"metadata.labels[{str(name)[:120]!r}]", why)
    for name, value in _object(metadata.get("annotations")).items():
        if name.startswith(_APPARMOR) and value == "unconfined":
            field = f"metadata.annotations[{name[:120]!r}]"
            yield _relaxable(field, "must not be unconfined", _UNCONFINED, guard)


def _capability_findings(added: Any, guard: GuardSpec) -> Iterator[Violation]:
    names = {
        str(name).upper().removeprefix("CAP_") for name in (added if isinstance(added, list) else [added])
    }
    if refused := sorted(HOST_CAPABILITIES & names):
        yield Violation("capabilities.add", f"must not have {', '.join(refused)}: it opens the host")
    elif names:
        message = f"must not have {', '.join(sorted(names))}"
        yield _relaxable("capabilities.add", message, _root_cost(guard), guard)


def _port_findings(container: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    """Containers of a pod share its ports."""
    for index, port in enumerate(_objects(container.get("ports"))):
        if guard.own_pod is None and port.get("containerPort") == guard.port:
            yield Violation(
                f"ports[{index}].containerPort",
                f"must not be {guard.port}: the guard listens there (spec.guard.port)",
            )


def _env_findings(
    template: PodTemplate, container: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    is_trainer = template.guarded and container.get("name") == template.container
    for index, variable in enumerate(_objects(container.get("env"))):
        if is_trainer and variable.get("name") in TRAINER_ENV:
            yield Violation(f"env[{index}].name", f"must not be {variable['name']}: the operator sets it")
        source, where = _object(variable.get("valueFrom")), f"env[{index}].valueFrom"
        yield from _in(where, _decided(source, isolation.ENV_SOURCES, guard))
        yield from _in(where, _source_findings(source, _ENV_SOURCES, guard))
        if str(_object(source.get("fileKeyRef")).get("volumeName", "")).startswith(RESERVED_PREFIX):
            yield Violation(f"{where}.fileKeyRef.volumeName", "must not be a volume of the guard's")
    for index, source in enumerate(_objects(container.get("envFrom"))):
        yield from _in(f"envFrom[{index}]", _decided(source, isolation.ENV_FROM, guard))
        yield from _in(f"envFrom[{index}]", _source_findings(source, _ENV_SOURCES, guard))


#: Of where the checkpoint volume is mounted: who makes the mount would resolve any other path first.
PLAIN_PATH = r"(/|(/(?!\.\.?(/|$))[^/]+)+/?)"


def _checkpoint_findings(
    template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    name = guard.checkpoints.volume
    if not any(volume.get("name") == name for volume in pod.get("volumes", [])):
        yield Violation("volumes", f"must have the volume {name}, which guard.checkpoints.volume names")
        return
    mount = checkpoint_mount(pod, template, name)
    if mount is None:
        yield Violation("containers", f"the container {template.container} must mount the volume {name}")
        return
    if len(_checkpoint_mounts(pod, template, name)) > 1:
        yield Violation(
            "containers",
            f"the container {template.container} must mount the volume {name} once, where the checkpoints "
            "are: give its other directories a volume of another name, which may be of the same claim",
        )
    if mount.get("subPathExpr"):
        yield Violation(
            "containers",
            f"the volume {name} must be mounted with subPath, not with subPathExpr: the guard has not the "
            "trainer's environment, and would look elsewhere",
        )
    given = str(mount.get("mountPath", ""))
    if re.fullmatch(PLAIN_PATH, given) is None:
        yield Violation(
            "containers",
            f"the volume {name} must be mounted at an absolute path without empty parts, . and .., "
            f"not at {quoted(given)}",
        )
        return
    path = PurePosixPath(given)
    # The guard mounts the volume at the same path, where it must not cover one of its own directories.
    if any(PurePosixPath(own).is_relative_to(path) for own in GUARD_DIRECTORIES) or any(
        path.is_relative_to(own) for own in GUARD_DIRECTORIES if own != TMP_DIR
    ):
        yield Violation(
            "containers",
            f"the volume {name} must not be mounted at {path}: the guard uses {', '.join(GUARD_DIRECTORIES)}",
        )


def is_reserved(named: Mapping[str, Any]) -> bool:
    """Whether a container, a volume or a mount has a name that only the operator gives."""
    return str(named.get("name", "")).startswith(RESERVED_PREFIX)


def _under(path: str, directories: Sequence[str]) -> bool:
    parts = PurePosixPath(path)
    return ".." not in parts.parts and any(parts.is_relative_to(directory) for directory in directories)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
