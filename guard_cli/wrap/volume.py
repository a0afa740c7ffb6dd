"""The volume in which rank 0 of a workload saves its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guard_operator.adapters import TemplateError, WorkloadAdapter, dotted
from guard_operator.reconcile.refusals import pod_spec

#: Volumes that can be written and go with their pod, and those that nobody can write.
_TEMPORARY = ("emptyDir", "ephemeral")
_READ_ONLY = ("configMap", "secret", "projected", "downwardAPI", "image")


@dataclass(frozen=True, slots=True)
class Rank0:
    """The pods and the container of rank 0, and the volume of its checkpoints, in words.

    `error`: why no checkpoint can be kept in it; `warnings`: what is to be known of a guard beside it.
    """

    pods: str
    container: str
    volume: str = ""
    error: str = ""
    warning: str = ""
    counted_restarts: str = ""


def find_rank0(spec: Mapping[str, Any], adapter: WorkloadAdapter, volume: str) -> Rank0 | None:
    """Look at rank 0 of a workload with this spec; None: its template has not the shape, as the operator says."""
    try:
        template = next(one for one in adapter.pod_templates(spec) if one.guarded)
        volumes = pod_spec(spec, template).get("volumes", [])
    except TemplateError:
        return None
    owner = template.path[:-1]
    pods = f"the pods of {dotted(owner)}" if owner else "its pods"
    present = ", ".join(f"{one.get('name')} ({_describe(one)})" for one in volumes) or "no volumes"
    found = next((one for one in volumes if one.get("name") == volume), None)
    if found is None:
        error = f"the pod of rank 0 has no volume of this name; it has {present}"
        return Rank0(pods, template.container, error=error)
    words, error, warning, restarts = _describe(found), _unusable(found), "", ""
    if _kind(found) in _TEMPORARY:
        warning = (
            f"the volume {volume} is no persistent claim ({words}): the last good checkpoint goes with the pod; "
            f"it has {present}"
        )
    if template.limit:
        restarts = (
            f"{dotted(template.limit)} counts restarts of every container, the guard's too: a guard that runs "
            "out of memory may fail a healthy run (docs/operator.md)"
        )
    error = f"{error}; it has {present}" if error else ""
    return Rank0(pods, template.container, words, error, warning, restarts)


def _unusable(volume: Mapping[str, Any]) -> str:
    """Why no checkpoint can be kept in a volume; "" if one can."""
    kind = _kind(volume)
    if not kind or kind in _READ_ONLY:
        return f"no trainer can save in a volume {f'of the kind {kind}' if kind else 'of no kind'}"
    if _read_only(volume):
        return "the trainer cannot write there"
    if kind == "persistentVolumeClaim" and not volume[kind].get("claimName"):
        return "its claimName is not set"
    return ""


def _kind(volume: Mapping[str, Any]) -> str:
    return next((str(key) for key, value in volume.items() if key != "name" and value is not None), "")


def _read_only(volume: Mapping[str, Any]) -> bool:
    source = volume.get(_kind(volume))
    return isinstance(source, Mapping) and source.get("readOnly") is True


def _describe(volume: Mapping[str, Any]) -> str:
    words = kind = _kind(volume) or "of no kind"
    if kind == "persistentVolumeClaim":
        words = f"claim {volume[kind].get('claimName') or 'without a name'}"
    return words + (", read-only" if _read_only(volume) else "")
