"""What the object of a job says at a glance, before anything of it is parsed. Pure; any shape is read.

Caches ask this of every event, so it must cost little. Whoever acts parses the job and looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_operator.api.reasons import ConditionType
from guard_operator.api.types import OnFire
from guard_operator.reconcile.snapshot import OVER
from guard_operator.runtime.client import Json


def is_latched(raw: Json) -> bool:
    """Whether this job must stop: its guard has latched, or it is written down that it fired or halted."""
    guard, spec = _guard(raw), raw.get("spec") or {}
    halted = bool(guard.get("halt")) or _holds(raw, ConditionType.HALTED)
    fired = bool(guard.get("fire")) or _holds(raw, ConditionType.FIRED)
    return halted or (fired and spec.get("onFire") != OnFire.REPORT)


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
    """Whether nothing has changed but figures of the guard, by which nobody decides anything."""
    return old is not None and new is not None and _without_report(old) == _without_report(new)


def _without_report(raw: Json) -> tuple[Any, ...]:
    metadata = {key: value for key, value in raw["metadata"].items() if key != "resourceVersion"}
    latches = _guard(raw).get("fire"), _guard(raw).get("halt")
    return metadata, raw.get("spec"), {**_status(raw), "guard": None}, latches


def _holds(raw: Json, kind: ConditionType) -> bool:
    conditions = _status(raw).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _status(raw: Json) -> Mapping[str, Any]:
    return raw.get("status") or {}


def _guard(raw: Json) -> Mapping[str, Any]:
    return _status(raw).get("guard") or {}
