"""What the store keeps, as frozen values, and how each looks in a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Evaluation, Latch
from guard_core.wire import CheckpointReport, EvaluationSampling, FailureKind, StepReport
from guard_core.wording import quoted
from guard_service.errors import FieldError

MANIFEST = "manifest"  # in the stored announcement of a checkpoint, beside what was reported


@dataclass(frozen=True, slots=True)
class Appended:
    """A list of steps that is on disk. `new`: the ones to fold, in order."""

    new: tuple[StepReport, ...]
    duplicates: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A report that contradicts one on disk. Nothing of the request was kept."""

    detail: str
    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class RefusedCheckpoint:
    """A checkpoint whose announcement was refused for what it said."""

    key: CheckpointKey


@dataclass(frozen=True, slots=True)
class Failure:
    """An evaluation that gave no outcome. `gone`: because its checkpoint was no longer on the disk."""

    attempt: int
    step: int
    pass_index: int
    message: str
    gone: bool = False
    kind: FailureKind = FailureKind.UNDERWAY


@dataclass(frozen=True, slots=True)
class Begun:
    """The evaluation that a guard has begun last, and how many guards have begun it."""

    key: CheckpointKey
    pass_index: int
    times: int


StoredEvent = StepReport | CheckpointReport | RefusedCheckpoint | Evaluation | Failure | Latch
"""One stored event, for a replay."""


def event(
    kind: str,
    attempt: int,
    step: int,
    pass_index: int,
    body: str,
    items: str | None,
    proxy_items: str | None,
) -> StoredEvent:
    """The event of a row, with the outcomes of its items."""
    match kind:
        case "step":
            return StepReport.model_validate_json(body)
        case "checkpoint":
            return announcement(body)
        case "evaluation":
            content = json.loads(body)
            outcomes = tuple(json.loads(items or ""))
            given, fooled = read_pay(proxy_items)
            return Evaluation(
                attempt,
                step,
                content["path"],
                outcomes,
                content["sha256"],
                pass_index,
                content["truncated"],
                None if given is None else tuple(given),
                sampling=_used(content.get("sampling")),
                unanswered=content.get("unanswered"),
                unscored=content.get("unscored"),
                timed_out=content.get("timed_out"),
                completions=content.get("completions"),
                seconds=content.get("seconds"),
                parts=content.get("parts", {}),
                fooled_items=None if fooled is None else tuple(fooled),
            )
        case "refused":
            return RefusedCheckpoint(CheckpointKey(attempt, step))
        case "failure":
            content = json.loads(body)
            return Failure(
                attempt, step, pass_index, content["message"], content["gone"], FailureKind(content["kind"])
            )
        case _:
            return Latch(**json.loads(body))


def dump_pay(evaluation: Evaluation) -> str | None:
    """What the training grader gave, for the column `proxy_items` of `outcomes`; None without one."""
    given, fooled = evaluation.proxy_items, evaluation.fooled_items
    if given is None or fooled is None:
        return None if given is None else json.dumps(given)
    return json.dumps({"given": given, "fooled": fooled})


def read_pay(column: str | None) -> tuple[list[float] | None, list[float] | None]:
    """`proxy_items` and `fooled_items` of an evaluation; None for what it does not have."""
    content = None if column is None else json.loads(column)
    return (content["given"], content["fooled"]) if isinstance(content, dict) else (content, None)


def announcement(body: str) -> CheckpointReport:
    """What was reported of a checkpoint."""
    content = json.loads(body)
    content.pop(MANIFEST, None)
    return CheckpointReport.model_validate(content)


def _used(sampling: dict[str, Any] | None) -> EvaluationSampling | None:
    return None if sampling is None else EvaluationSampling.model_validate(sampling)


def contradiction(
    known: StepReport | CheckpointReport, given: StepReport | CheckpointReport, prefix: str
) -> Conflict:
    """How a report contradicts the one on disk; `prefix` is where it stands in its request."""
    differing = [name for name in type(known).model_fields if getattr(known, name) != getattr(given, name)]
    what = "step" if isinstance(known, StepReport) else "checkpoint"
    errors = tuple(
        FieldError(
            field=prefix + name,
            message=f"{quoted(getattr(given, name))}, but on disk {quoted(getattr(known, name))}",
        )
        for name in differing
    )
    return Conflict(
        f"attempt {known.attempt}, {what} {known.step} was reported before with another "
        f"{', '.join(differing)}; nothing of this request was kept. A restarted trainer needs a new attempt",
        errors,
    )
