"""The volume in which rank 0 of a workload saves its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlguard.operator.adapters import TemplateError, WorkloadAdapter, dotted
from rlguard.operator.reconcile.templates import rank0_of

#: Volumes that can be written and go with their pod, and those that nobody can write.
_TEMPORARY = ("emptyDir", "ephemeral")
_READ_ONLY = ("configMap", "secret", "projected", "downwardAPI", "image")


@dataclass(frozen=True, slots=True)
class Rank0:
    """Where rank 0 runs, and the volume of its checkpoints, in words.

    `error`: why no checkpoint can be kept in it. `warnings`: of the volume, and of a guard beside rank 0.
    """

    place: str
    volume: str
    error: str
    warnings: tuple[str, ...]


def find_rank0(
    adapter: WorkloadAdapter,
    spec: Mapping[str, Any],
    guard: Mapping[str, Any],
) -> Rank0 | None:
    """Look at rank 0 of a workload; None: its template has not the shape, as the operator says itself.

    Args:
        adapter: of the workload's kind.
        spec: of the workload.
        guard: `spec.guard`.
    """
    volume = guard["checkpoints"]["volume"]
    try:
        template, pod = rank0_of(adapter, spec)
    except TemplateError:
        return None
    owner, limit, volumes = template.path[:-1], template.limit, pod.get("volumes", [])
    found: Mapping[str, Any] = next((one for one in volumes if one.get("name") == volume), {})
    error = _unusable(found) if found else "the pod of rank 0 has no volume of this name"
    present = ", ".join(f"{one.get('name')} ({_describe(one)})" for one in volumes) or "no volumes"
    warnings = []
    if _kind(found) in _TEMPORARY:
        warnings.append(f"the volume {volume} is temporary ({_kind(found)}): its checkpoints go with the pod")
    if limit and guard.get("placement") != "Pod":
        warnings.append(
            f"{dotted(limit)} counts restarts of every container, the guard's too: a guard that runs out of "
            "memory may fail a healthy run (docs/reference/kinds.md)"
        )
    pods = f"the pods of {dotted(owner)}" if owner else "its pods"
    return Rank0(
        f"{pods}, beside the container {template.container}",
        _describe(found),
        f"{error}; it has {present}" if error else "",
        tuple(warnings),
    )


def _unusable(volume: Mapping[str, Any]) -> str:
    """Why no checkpoint can be kept in a volume; "" if one can."""
    kind = _kind(volume)
    if not kind or kind in _READ_ONLY:
        return f"no trainer can save in a volume of {f'the kind {kind}' if kind else 'no kind'}"
    source = volume[kind]
    read_only = isinstance(source, Mapping) and source.get("readOnly") is True
    return "it is read-only" if read_only else ""


def _kind(volume: Mapping[str, Any]) -> str:
    return next((str(key) for key, value in volume.items() if key != "name" and value is not None), "")


def _describe(volume: Mapping[str, Any]) -> str:
    kind = _kind(volume)
    if kind == "persistentVolumeClaim":
        return f"claim {volume[kind].get('claimName')}"
    return kind or "of no kind"
