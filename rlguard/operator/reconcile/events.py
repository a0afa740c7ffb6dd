"""Which Events a change of the conditions is worth. Pure.

Only transitions are told, never a state that lasts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from rlguard.operator.api import names
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import ConditionStatus
from rlguard.operator.runtime.client import EVENTS, Json

_WARNINGS = {
    ConditionType.FIRED,
    ConditionType.HALTED,
    ConditionType.GUARD_SILENT,
    ConditionType.WAITING,
    ConditionType.FAILED,
    ConditionType.DISRUPTED,
}
_NOT_STOPPED = {Reason.STOP_BLOCKED, Reason.TARGET_RECREATED}
_WORTH_A_WARNING = {
    Reason.CHECKPOINTS_LEFT,
    Reason.NOT_JUDGED,
    Reason.FINISHED_WITH_WARNING,
    Reason.CLAIM_OWNED,
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One Event to write. `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


def transitions(
    before: Iterable[ConditionStatus], after: Iterable[ConditionStatus]
) -> tuple[Transition, ...]:
    """The Events for going from the conditions `before` to the conditions `after`, each told once.

    A guard that is silent makes two conditions True for one reason: GuardSilent, and Halted by its policy.
    """
    old = {condition.type: condition for condition in before}
    return tuple(dict.fromkeys(event for new in after for event in _event(old.get(new.type), new)))


def _event(old: ConditionStatus | None, new: ConditionStatus) -> Iterator[Transition]:
    was = old.status if old else None
    if new.type == ConditionType.GUARDED and new.status == "False":
        pending = new.reason == Reason.WORKLOAD_PENDING
        if not pending and (old is None or (old.status, old.reason) != (new.status, new.reason)):
            yield Transition("Warning", new.reason, new.message)
    elif new.type == ConditionType.ISOLATED:
        if new.status == "False" and (old is None or (was, old.reason) != ("False", new.reason)):
            yield Transition("Warning", new.reason, new.message)
    elif new.status == "True":
        if was != "True":
            worth_a_warning = new.type in _WARNINGS or new.reason in _WORTH_A_WARNING
            yield Transition("Warning" if worth_a_warning else "Normal", new.reason, new.message)
    elif new.type == ConditionType.STOPPED and new.reason in _NOT_STOPPED:
        if old is None or old.reason != new.reason:
            yield Transition("Warning", new.reason, new.message)
    elif (new.type, new.status, was) == (ConditionType.STOPPED, "False", None):
        yield Transition("Normal", new.reason, new.message)  # the teardown begins
    elif new.type == ConditionType.GUARD_SILENT and was == "True":
        yield Transition("Normal", new.reason, new.message)  # the guard is back, or its pod is gone


def event_of(job: Json, transition: Transition, now: datetime) -> Json:
    """The Event of this transition; `job`: the metadata of its job."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{job['name']}.{secrets.token_hex(8)}", "namespace": job["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job["name"],
            "namespace": job["namespace"],
            "uid": job["uid"],
        },
        "type": transition.type,
        "reason": transition.reason,
        "message": transition.message[:1024],
        "source": {"component": names.OPERATOR_MANAGER},
        "reportingComponent": names.OPERATOR_MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
