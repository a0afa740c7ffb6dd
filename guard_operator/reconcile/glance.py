"""What the object of a job says at a glance, before anything of it is parsed. Pure; any shape is read.

Caches ask this of every event, so it must cost little. Whoever acts parses the job and looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_operator.api.reasons import ConditionType
from guard_operator.api.types import OnFire, Phase
from guard_operator.reconcile.snapshot import OVER
from guard_operator.runtime.client import Json

#: What a running job says when nothing is wrong with its guard.
_WELL = {ConditionType.FIRED: "False", ConditionType.GUARD_SILENT: "False"}


def is_latched(raw: Json) -> bool:
    """Whether this job must stop: its guard has latched, or it is written down that it fired or halted."""
    guard, spec = _guard(raw), raw.get("spec") or {}
    halted = bool(guard.get("halt")) or _holds(raw, ConditionType.HALTED)
    fired = bool(guard.get("fire")) or _holds(raw, ConditionType.FIRED)
    return halted or (fired and spec.get("onFire") != OnFire.REPORT)


def has_begun(raw: Json) -> bool:
    """Whether a workload was made for this job, or it was attached to one."""
    return bool(_status(raw).get("workloadRef"))


def is_under_way(raw: Json) -> bool:
    """Whether its run has begun, and has not ended."""
    return has_begun(raw) and not any(_holds(raw, kind) for kind in OVER)


def is_over(raw: Json) -> bool:
    """Whether the run has ended and what is left of it stands in its status, so that it is only shown.

    A run that must stop is over once it is stopped; a pod that comes back is an event of its own.
    """
    if not _status(raw).get("evidence"):
        return False
    if is_latched(raw):
        return _holds(raw, ConditionType.STOPPED)
    return any(_holds(raw, kind) for kind in OVER)


def is_only_a_report(old: Json | None, new: Json | None) -> bool:
    """Whether nothing has changed but what was read of the guard of a run that goes on well.

    No decision reads it, so nobody need look at the job.
    """
    if old is None or new is None or not (_goes_on_well(old) and _goes_on_well(new)):
        return False
    return _without_report(old) == _without_report(new)


def _goes_on_well(raw: Json) -> bool:
    """Whether it runs, with a guard that reports, and it is written down that nothing is wrong."""
    status, guard = _status(raw), _guard(raw)
    said = {one.get("type"): one.get("status") for one in status.get("conditions") or []}
    return (
        status.get("phase") == Phase.RUNNING
        and not (is_latched(raw) or guard.get("fire"))
        and all(said.get(kind) == value for kind, value in _WELL.items())
        and guard.get("step") is not None
    )


def _without_report(raw: Json) -> tuple[Json, Any, Json]:
    metadata = {key: value for key, value in raw["metadata"].items() if key != "resourceVersion"}
    return metadata, raw.get("spec"), {**_status(raw), "guard": None}


def _holds(raw: Json, kind: ConditionType) -> bool:
    conditions = _status(raw).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _status(raw: Json) -> Mapping[str, Any]:
    return raw.get("status") or {}


def _guard(raw: Json) -> Mapping[str, Any]:
    return _status(raw).get("guard") or {}
