"""The steps of a run that outlive its pods: few of them, and what was seen in all. Pure.

A guard on a cluster writes them with its last word, the operator keeps them, and `rlguard report` draws them.
They are lines of JSON. The first says what holds of all: how many steps there were, what the figures are
called, and the symptoms, which few steps would not show. Then come figures, a step a line, and then reward
and KL, a step a line. So who has less room leaves out lines, without knowing what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.guard_log import symptoms_of_history
from rlguard.core.symptoms import LARGEST, TITLES, Examined
from rlguard.core.thinning import evenly, fewer_lines
from rlguard.core.wire import MAX_FIGURES, MAX_STEP, Attempt, FiguresReport, KlKind, Step, StepReport

#: As many as a plot on a page has room for, and half as many of its small charts.
MOST_STEPS, MOST_OF_FIGURES = 200, 100
#: Bytes of all of it, in the evidence of a run.
MAX_KEPT_STEPS = 40 * 1024
#: Characters of a symptom's sentence. The longest that `symptoms` makes has some 500 without its names.
MAX_SENTENCE = 800
_MEASURED = ("reward", "kl", "entropy", "reward_std")

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class KeptSteps:
    """What is left of a run's steps.

    Fields:
        total: how many steps there were.
        steps: some of them, in the order of (attempt, step).
        figures: what else was measured, at some steps.
        symptoms: what was seen in all steps, or in many of them; None where that is not known.
    """

    total: int
    steps: tuple[StepReport, ...]
    figures: tuple[FiguresReport, ...] = ()
    symptoms: Examined | None = None


class _Head(BaseModel):
    """The first line."""

    total: int = Field(ge=0, le=MAX_STEP)
    names: tuple[str, ...] = Field(max_length=MAX_FIGURES)
    symptoms: Examined | None = None


class _Figures(BaseModel):
    """Figures of one step, in the order of the names."""

    attempt: Attempt
    step: Step
    figures: tuple[float | None, ...]


def written_steps(
    lines: Sequence[Mapping[str, Any]], figures: Sequence[FiguresReport], total: int
) -> str | None:
    """What is kept of a run, of at most `MAX_KEPT_STEPS` bytes; None if there is nothing to keep.

    Args:
        lines: of the history, one for each step, in order: all of them, or so many that no symptom is lost.
        figures: as they are kept for plots.
        total: how many steps there were.
    """
    if not lines:
        return None
    names = tuple(sorted({name for report in figures for name in report.figures}))
    seen = symptoms_of_history(lines, figures)
    if seen is not None:
        short = (replace(one, sentence=one.sentence[:MAX_SENTENCE], numbers=()) for one in seen.symptoms)
        seen = replace(seen, symptoms=tuple(short))
    head = _Head(total=total, names=names, symptoms=seen).model_dump_json()
    told = (
        {"attempt": one.attempt, "step": one.step, "figures": [_short(one.figures.get(n)) for n in names]}
        for one in (figures[i] for i in evenly(len(figures), MOST_OF_FIGURES))
    )
    steps = (_step(lines[i]) for i in evenly(len(lines), MOST_STEPS))
    rest = (json.dumps(one, separators=(",", ":")) for one in (*told, *steps))
    return fewer_lines("\n".join((head, *rest)), MAX_KEPT_STEPS)


def _step(line: Mapping[str, Any]) -> dict[str, Any]:
    """A step, without what is not known."""
    known = {name: short for name in _MEASURED if (short := _short(line.get(name))) is not None}
    kind = line.get("kl_kind", KlKind.ABSENT)
    return {name: line[name] for name in ("attempt", "step")} | (
        known if kind == KlKind.ABSENT else known | {"kl_kind": kind}
    )


def _short(value: float | None) -> float | None:
    """Four significant digits: a plot shows no more, and nothing so large that it cannot be drawn."""
    return None if value is None or abs(value) > LARGEST else float(f"{value:.4g}")


def read_steps(text: str) -> KeptSteps | None:
    """What was kept; None if that is no step. A line that cannot be read is left out."""
    first, *lines = text.split("\n")
    head = next(_read([first], _Head), None)
    if head is None:
        return None
    steps = sorted(_read(lines, StepReport), key=CheckpointKey.of)
    if not steps:
        return None
    symptoms = head.symptoms
    if symptoms is not None:
        symptoms = Examined(
            tuple(one for one in symptoms.symptoms if one.name in TITLES),
            tuple(one for one in symptoms.unseen if one.name in TITLES),
        )
    return KeptSteps(max(head.total, len(steps)), tuple(steps), tuple(_figures(lines, head.names)), symptoms)


def _figures(lines: Sequence[str], names: Sequence[str]) -> Iterator[FiguresReport]:
    for one in _read(lines, _Figures):
        values = zip(names, one.figures, strict=False)
        known = {name: value for name, value in values if value is not None}
        with suppress(ValidationError):
            yield FiguresReport(attempt=one.attempt, step=one.step, figures=known)


def _read(lines: Sequence[str] | Iterator[str], model: type[M]) -> Iterator[M]:
    for line in lines:
        with suppress(ValidationError):
            yield model.model_validate_json(line)
