"""The pod templates of a workload, known to have the shape that the operator relies on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlguard.operator.adapters import PodTemplate, TemplateError, WorkloadAdapter, at, dotted
from rlguard.operator.reconcile.pod_fields import METADATA, POD, wrong_types


def pods_of(
    adapter: WorkloadAdapter, spec: Mapping[str, Any]
) -> tuple[tuple[PodTemplate, dict[str, Any]], ...]:
    """Every pod template of a workload's spec, with its pod spec.

    Raises:
        TemplateError: one has not the shape; names the field.
    """
    return tuple((template, pod_spec(spec, template)) for template in adapter.pod_templates(spec))


def rank0_of(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> tuple[PodTemplate, dict[str, Any]]:
    """The template of rank 0, and its pod spec.

    Raises:
        TemplateError: as in `pods_of`.
    """
    return next(one for one in pods_of(adapter, spec) if one[0].guarded)


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
    pod: dict[str, Any] = at(spec, *path)
    metadata = [(*place, "metadata") for place in (template.path, *template.between)]
    typed = [(place, METADATA) for place in metadata] + [(path, POD)]
    for place, model in typed:
        for field, why in wrong_types(at(spec, *place), model, dotted(place)):
            raise TemplateError(field, why)
    if template.guarded and trainer(pod, template) is None:
        raise TemplateError(
            dotted((*path, "containers")), f"must have a container named {template.container}"
        )
    return pod


def trainer(pod: Mapping[str, Any], template: PodTemplate) -> dict[str, Any] | None:
    """The container that trains."""
    return next((c for c in pod.get("containers", []) if c.get("name") == template.container), None)


def checkpoint_mount(
    pod: Mapping[str, Any], template: PodTemplate, volume: str | None
) -> dict[str, Any] | None:
    """The mount of the checkpoint volume in the container that trains."""
    return next(iter(checkpoint_mounts(pod, template, volume)), None)


def checkpoint_mounts(
    pod: Mapping[str, Any], template: PodTemplate, volume: str | None
) -> list[dict[str, Any]]:
    """Every mount of that volume there."""
    mounts = (trainer(pod, template) or {}).get("volumeMounts") or []
    return [dict(mount) for mount in mounts if mount.get("name") == volume]
