"""Which Events a change of the conditions is worth. Pure; only transitions, never a state that lasts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import ConditionStatus

_WARNINGS = {
    ConditionType.FIRED,
    ConditionType.HALTED,
    ConditionType.GUARD_SILENT,
    ConditionType.WAITING,
    ConditionType.FAILED,
    ConditionType.DISRUPTED,
}
_UNJUDGED = {Reason.CHECKPOINTS_LEFT, Reason.NOT_JUDGED}


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
            worth_a_warning = new.type in _WARNINGS or new.reason in _UNJUDGED
            yield Transition("Warning" if worth_a_warning else "Normal", new.reason, new.message)
    elif (new.type, new.status, was) == (ConditionType.STOPPED, "False", None):
        yield Transition("Normal", new.reason, new.message)  # the teardown begins
    elif new.type == ConditionType.STOPPED and new.reason == Reason.PODS_OVERDUE:
        if old is None or old.reason != new.reason:
            yield Transition("Warning", new.reason, new.message)
    elif new.type == ConditionType.GUARD_SILENT and was == "True":
        yield Transition("Normal", new.reason, new.message)  # the guard is back, or its pod is gone
