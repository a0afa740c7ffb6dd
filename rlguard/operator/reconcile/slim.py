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
_OF_THE_GUARD = ("name", "started", "ready", "state", "lastState", "restartCount")
_OF_WHO_WAITS = ("name", "state", "lastState")
_OF_A_CONDITION = ("type", "status", "reason", "message")
_NOT_OF_A_JOB = frozenset({"managedFields", "annotations"})


def slim_pod(raw: Json) -> Json:
    """The part of a pod that is cached."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
    sidecars, alone = (_guards(spec, key) for key in ("initContainers", "containers"))
    return {
        "metadata": _kept(metadata, _OF_A_POD)
        | {
            "labels": _kept(labels, _LABELS),
            "ownerReferences": [_kept(one, ("uid", "controller")) for one in owners if one.get("controller")],
            **({"finalizers": held} if (held := finalizers_of(metadata)) else {}),
        },
        "spec": _kept(spec, ("terminationGracePeriodSeconds", "nodeName"))
        | {"initContainers": sidecars, **({"containers": alone} if alone else {})},
        "status": _kept(status, ("phase", "reason", "podIP"))
        | {
            "conditions": [
                _kept(one, _OF_A_CONDITION) for one in status.get("conditions") or [] if _tells(one)
            ],
            "initContainerStatuses": _containers(status.get("initContainerStatuses") or []),
            "containerStatuses": _containers(status.get("containerStatuses") or []),
        },
    }


def _guards(spec: Mapping[str, Any], key: str) -> list[Json]:
    return [{"name": one["name"]} for one in spec.get(key) or [] if one.get("name") == names.GUARD_CONTAINER]


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


def _tells(condition: Mapping[str, Any]) -> bool:
    """Whether it says something that not every pod says."""
    if condition.get("type") == "DisruptionTarget":
        return True
    return condition.get("type") in {"PodScheduled", "Ready"} and condition.get("status") != "True"


def _containers(statuses: Iterable[Mapping[str, Any]]) -> list[Json]:
    """All of the guard's; of the others what keeps them from running, or how they ended.

    Of who waits for a guard also how it ended before: it is started again.
    """
    kept = []
    for one in statuses:
        state = _kept(one.get("state") or {}, ("waiting", "terminated"))
        if one.get("name") == names.GUARD_CONTAINER:
            kept.append(_kept(one, _OF_THE_GUARD))
        elif one.get("name") == names.WAITING_CONTAINER:
            kept.append(_kept(one, _OF_WHO_WAITS))
        elif state:
            kept.append({"name": one["name"], "state": state})
    return kept
