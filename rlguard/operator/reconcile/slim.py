"""What is cached of jobs, pods and workloads: what decisions read, and nothing else. Pure.

A decision over a slim object is the same as one over the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlguard.operator.adapters import ADAPTERS, WorkloadAdapter
from rlguard.operator.api import names
from rlguard.operator.reconcile.snapshot import finalizers_of
from rlguard.operator.runtime.client import Json

_LABELS = frozenset(
    {names.JOB_LABEL, names.UID_LABEL, *(label for adapter in ADAPTERS for label in adapter.rank0({}))}
)
_OF_A_POD = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion",
    "deletionGracePeriodSeconds",
)  # fmt: skip
_OF_A_WORKLOAD = (
    "name", "namespace", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp",
    "resourceVersion",
)  # fmt: skip
_OF_A_CONTAINER = ("name", "started", "ready", "state", "lastState", "restartCount")
_OF_A_CONDITION = ("type", "status", "reason", "message")
_NOT_OF_A_JOB = frozenset({"managedFields", "annotations"})


def slim_pod(raw: Json) -> Json:
    """The part of a pod that is cached."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    return {
        "metadata": _kept(metadata, _OF_A_POD)
        | {
            "labels": _kept(metadata.get("labels") or {}, _LABELS),
            "ownerReferences": [_kept(one, ("uid", "controller")) for one in owners if one.get("controller")],
            "finalizers": finalizers_of(metadata),
        },
        "spec": _kept(spec, ("terminationGracePeriodSeconds", "nodeName"))
        | {key: _each(spec, key, ("name",)) for key in ("initContainers", "containers")},
        "status": _kept(status, ("phase", "reason", "podIP"))
        | {key: _each(status, key, _OF_A_CONTAINER) for key in ("initContainerStatuses", "containerStatuses")}
        | {"conditions": _each(status, "conditions", _OF_A_CONDITION)},
    }


def slim_workload(adapter: WorkloadAdapter, raw: Json) -> Json:
    """The part of a workload that is cached: not its pod templates."""
    return {
        "metadata": _kept(raw["metadata"], _OF_A_WORKLOAD),
        "spec": _kept(raw.get("spec") or {}, adapter.state_fields),
        "status": raw.get("status") or {},
    }


def slim_between(raw: Json) -> Json:
    """The part that is cached of what stands between a workload and its pods: whose it is."""
    return {"metadata": _kept(raw["metadata"], _OF_A_WORKLOAD)}


def slim_job(raw: Json) -> Json:
    """The part of a job that is cached: all but what the cluster manages, and annotations."""
    metadata = {k: v for k, v in raw["metadata"].items() if k not in _NOT_OF_A_JOB}
    return {"metadata": metadata, "spec": raw["spec"], "status": raw.get("status") or {}}


def _kept(of: Mapping[str, Any], fields: Iterable[str]) -> Json:
    return {field: of[field] for field in fields if field in of}


def _each(of: Mapping[str, Any], key: str, fields: Iterable[str]) -> list[Json]:
    return [_kept(one, fields) for one in of.get(key) or []]
