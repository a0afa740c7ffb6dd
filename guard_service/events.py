"""The events of a log, as frozen values, and how each looks in a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from guard_service.errors import FieldError
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.codes import Code
from rlguard.core.compact import CompactState
from rlguard.core.judge import Latch, StepTuple
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.wire import CheckpointReport, EndReport, EvaluationSampling, FailureKind, StepReport
from rlguard.core.wording import quoted

#: The outcomes of an evaluation's items.
_OUTCOMES = ("items", "proxy_items", "fooled_items")
#: What else a log has of an evaluation, beside its columns, as JSON has it.
_KNOWN = tuple(
    one.name
    for one in fields(Evaluation)
    if one.name not in {"attempt", "step", "pass_index", "mean_only", "sampling", *_OUTCOMES}
)


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
class StepRun:
    """Steps that follow each other in a log, as far as a judge reads them. A kind of KL is its text."""

    rows: tuple[StepTuple, ...]


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


NO_CHECKPOINT = CheckpointKey(0, 0)


class NoteKind(StrEnum):
    """What a guard remembers beside the events that are folded; of each kind, and key, the newest counts."""

    POLICY = "policy"  # of the run
    MEASURE = "measure"  # how it is evaluated: the split's digest, and what else decides a score
    PINS = "pins"  # the files that every checkpoint must have, by name
    MANIFEST = "manifest"  # what the files of a checkpoint were when it was last announced
    ITEMS = "items"  # of an evaluation that is reported: the ids of its items, or how many a mean is worth
    BEGUN = "begun"  # the evaluation that begins, in case this guard does not survive it


@dataclass(frozen=True, slots=True)
class Note:
    """Something to remember; `content` is JSON. `key`: the checkpoint that it is about, if any."""

    kind: NoteKind
    content: Any
    key: CheckpointKey = NO_CHECKPOINT


StoredEvent = (
    StepReport
    | StepRun
    | CheckpointReport
    | RefusedCheckpoint
    | Evaluation
    | Failure
    | EndReport
    | Latch
    | CompactState
    | Note
)
"""One event of a log. A step is appended as a `StepReport` and read in a `StepRun`."""


class EventRow(NamedTuple):
    """The columns of an event that is no step."""

    kind: str
    attempt: int
    step: int
    pass_index: int | None
    body: str
    items: str | None = None

    @classmethod
    def of(cls, event: StoredEvent, round_: Round | None, now: datetime) -> Self:  # noqa: PLR0911 - one a kind
        """The row of an event; `round_`: what the judge made of an evaluation, `now`: when a latch closed."""
        match event:
            case CheckpointReport():
                return cls("checkpoint", event.attempt, event.step, 0, event.model_dump_json())
            case RefusedCheckpoint():
                return cls("refused", *event.key, None, "{}")
            case Evaluation():
                return cls._of_evaluation(event, round_)
            case Failure():
                body = json.dumps({"message": event.message, "gone": event.gone, "kind": event.kind.value})
                return cls("failure", event.attempt, event.step, event.pass_index, body)
            case EndReport():
                return cls("end", event.attempt, event.step or 0, None, event.model_dump_json())
            case Latch():
                body = json.dumps(asdict(event) | {"at": now.astimezone(UTC).isoformat()})
                return cls(event.kind, event.attempt, event.step, 0, body)
            case CompactState():
                return cls("adopted", 0, 0, 0, event.model_dump_json())
            case Note():
                return cls(event.kind.value, *event.key, None, json.dumps(event.content, sort_keys=True))
            case _:
                raise TypeError(f"a {type(event).__name__} has columns of its own")

    @classmethod
    def _of_evaluation(cls, evaluation: Evaluation, round_: Round | None) -> Self:
        body = evaluation.summary().model_dump(mode="json")
        body |= {name: getattr(evaluation, name) for name in _KNOWN} | (asdict(round_) if round_ else {})
        known = {name: getattr(evaluation, name) for name in _OUTCOMES}
        outcomes = json.dumps({name: given for name, given in known.items() if given is not None})
        place = evaluation.attempt, evaluation.step, evaluation.pass_index
        return cls("evaluation", *place, json.dumps(body), outcomes)

    def event(self) -> StoredEvent:  # noqa: PLR0911 - one a kind
        """The event of this row."""
        match self.kind:
            case "checkpoint":
                return CheckpointReport.model_validate_json(self.body)
            case "refused":
                return RefusedCheckpoint(CheckpointKey(self.attempt, self.step))
            case "evaluation":
                return self._evaluation(json.loads(self.body), json.loads(self.items or ""))
            case "failure":
                content = json.loads(self.body)
                place = self.attempt, self.step, self.pass_index or 0
                return Failure(*place, content["message"], content["gone"], FailureKind(content["kind"]))
            case "end":
                return EndReport.model_validate_json(self.body)
            case "fire" | "halt":
                content = json.loads(self.body)
                del content["at"]
                return Latch(**content | {"code": Code(content["code"]).value})
            case "adopted":
                return CompactState.model_validate_json(self.body)
            case _:
                key = CheckpointKey(self.attempt, self.step)
                return Note(NoteKind(self.kind), json.loads(self.body), key)

    def _evaluation(self, content: Mapping[str, Any], outcomes: Mapping[str, list[float]]) -> Evaluation:
        sampling = content["sampling"]
        return Evaluation(
            attempt=self.attempt,
            step=self.step,
            pass_index=self.pass_index or 0,
            items=tuple(outcomes["items"]),
            proxy_items=_known(outcomes.get("proxy_items")),
            fooled_items=_known(outcomes.get("fooled_items")),
            sampling=None if sampling is None else EvaluationSampling.model_validate(sampling),
            **{name: content[name] for name in _KNOWN},
        )


def _known(outcomes: list[float] | None) -> tuple[float, ...] | None:
    return None if outcomes is None else tuple(outcomes)


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
