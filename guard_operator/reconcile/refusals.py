"""What is wrong with a template besides isolation: its shape, its checkpoints, its names. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from guard_core.wording import quoted
from guard_operator.adapters import PodTemplate, TemplateError, WorkloadAdapter, at, dotted
from guard_operator.api.names import OWN_LABELS
from guard_operator.api.types import GuardSpec
from guard_operator.reconcile.isolation import GuardObjects, Violation, broken_rows
from guard_operator.reconcile.layout import GUARD_DIRECTORIES, TMP_DIR
from guard_operator.reconcile.pod_fields import misspelt

#: What one variable of the guard may hold, bytes: Linux takes 128 KiB with its name, and paths are added.
MAX_SETTING = 120_000
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


def find_violations(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec
) -> tuple[Violation, ...]:
    """Find what is refused in `spec.template.spec` under any isolation."""
    try:
        pods = [(template, pod_spec(spec, template)) for template in adapter.pod_templates(spec)]
    except TemplateError as error:
        field, _, why = f"spec.template.spec.{error}".partition(": ")
        return (Violation(field, why),)
    return (
        *evaluator_findings(guard),
        *(one for template, _ in pods for one in _elastic_findings(template, guard)),
        *(
            replace(one, place=field_of(template))
            for template, pod in pods
            for one in (*_pod_findings(template, pod, guard), *_label_findings(template, spec))
        ),
    )


def isolation_findings(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec, own: GuardObjects
) -> tuple[Violation, ...]:
    """Find the rows of the isolation table that the templates break; none in those of the wrong shape."""
    try:
        pods = [(template, pod_spec(spec, template)) for template in adapter.pod_templates(spec)]
    except TemplateError:
        return ()
    return tuple(
        replace(one, place=field_of(template))
        for template, pod in pods
        for one in broken_rows(pod, own, beside=template.guarded and guard.own_pod is None, template=True)
    )


def template_claims(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The claims that the pods of a template mount, each once, with the field that names it."""
    seen = set()
    for template in adapter.pod_templates(spec):
        for index, volume in enumerate(pod_spec(spec, template).get("volumes", [])):
            claim = _object(volume.get("persistentVolumeClaim")).get("claimName")
            if isinstance(claim, str) and claim not in seen:
                seen.add(claim)
                yield f"{field_of(template)}.volumes[{index}].persistentVolumeClaim", claim


def is_copy(claim: Mapping[str, Any], own: GuardObjects) -> bool:
    """Whether this PersistentVolumeClaim was made as a copy of one that only the guard may have."""
    spec = _object(claim.get("spec"))
    sources = (_object(spec.get(field)) for field in ("dataSource", "dataSourceRef"))
    return any(
        one.get("kind") == "PersistentVolumeClaim" and one.get("name") in own.claims for one in sources
    )


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


def evaluator_findings(guard: GuardSpec) -> Iterator[Violation]:
    """Find what is refused of how and where the policy is asked."""
    said = json.dumps(guard.heldout.model_dump(mode="json"), ensure_ascii=False).encode()
    if len(said) > MAX_SETTING:
        why = f"has {len(said)} bytes; the guard takes at most {MAX_SETTING}: shorten its systemPrompt"
        yield Violation("spec.guard.heldout", why)


def _elastic_findings(template: PodTemplate, guard: GuardSpec) -> Iterator[Violation]:
    if template.guarded and template.elastic and guard.own_pod is None:
        why = "needs guard.placement: Pod: no pod of an elastic job is always rank 0"
        yield Violation(dotted(("spec.template.spec", *template.elastic)), why)


def _pod_findings(template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    for field, meant in misspelt(pod):
        yield Violation(field, f"is no field of a pod: did you mean {meant}?")
    if template.guarded:
        if guard.own_pod is None:
            yield from _port_findings(pod, guard)
        yield from _checkpoint_findings(template, pod, guard)


def _label_findings(template: PodTemplate, spec: Mapping[str, Any]) -> Iterator[Violation]:
    for name in _object(_object(at(spec, *template.path, "metadata")).get("labels")):
        if str(name).startswith(OWN_LABELS):
            why = f"must not be set: by labels of {OWN_LABELS} the operator knows whose pod it is"
            yield Violation(f"metadata.labels[{str(name)[:120]!r}]", why)


def _port_findings(pod: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    """Containers of a pod share its ports."""
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(key) or []):
            for place, port in enumerate(container.get("ports") or []):
                if port.get("containerPort") == guard.port:
                    why = f"must not be {guard.port}: the guard listens there (spec.guard.port)"
                    yield Violation(f"{key}[{index}].ports[{place}].containerPort", why)


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


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
