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
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from guard_core.guard_log import symptoms_of_history
from guard_core.symptoms import LARGEST, TITLES, Examined, Symptom, Unseen
from guard_core.thinning import MAX_KEPT_STEPS, evenly, fewer_lines
from guard_core.wire import MAX_FIGURES, FiguresReport, KlKind, StepReport

#: As many as a plot on a page has room for, and half as many of its small charts.
MOST_STEPS, MOST_OF_FIGURES = 200, 100
#: Characters of a symptom's sentence. The longest that `symptoms` makes has some 500 without its names.
MAX_SENTENCE = 800
#: What is more was written by no guard.
MOST_TOTAL = 2**53
_MEASURED = ("reward", "kl", "entropy", "reward_std")


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
    names = sorted({name for report in figures for name in report.figures})
    head: dict[str, Any] = {"total": total, "names": names}
    if (seen := symptoms_of_history(lines, figures)) is not None:
        found = [
            (one.name, one.sentence[:MAX_SENTENCE], one.first_step, one.last_step) for one in seen.symptoms
        ]
        head |= {"symptoms": found, "unseen": [asdict(one) for one in seen.unseen]}
    told = [
        {"attempt": one.attempt, "step": one.step, "figures": [_short(one.figures.get(n)) for n in names]}
        for one in (figures[i] for i in evenly(len(figures), MOST_OF_FIGURES))
    ]
    steps = [_step(lines[i]) for i in evenly(len(lines), MOST_STEPS)]
    text = "\n".join(
        json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in (head, *told, *steps)
    )
    return fewer_lines(text, MAX_KEPT_STEPS)


def _step(line: Mapping[str, Any]) -> dict[str, Any]:
    """A step, without what is not known, nor the kind of KL that most are."""
    known = {name: _short(line[name]) for name in _MEASURED if line.get(name) is not None}
    kind = line.get("kl_kind", KlKind.ABSENT)
    other = {} if kind == (KlKind.REF_TOKEN_MEAN if "kl" in known else KlKind.ABSENT) else {"kl_kind": kind}
    return {"attempt": line["attempt"], "step": line["step"]} | known | other


def _short(value: float | None) -> float | None:
    """Four significant digits: a plot shows no more."""
    return None if value is None else float(f"{value:.4g}")


def read_steps(text: str) -> KeptSteps | None:
    """What was kept, as far as it can be read; None if that is no step.

    Another release may have written it, and a file may hold anything.
    """
    head, *lines = (_object(line) for line in text.split("\n"))
    steps = tuple(step for line in lines if (step := _read_step(line)) is not None)
    if not steps:
        return None
    total = head.get("total")
    names = [name for name in _list(head.get("names"))[:MAX_FIGURES] if isinstance(name, str)]
    return KeptSteps(
        total=total if isinstance(total, int) and len(steps) <= total < MOST_TOTAL else len(steps),
        steps=tuple(sorted(steps, key=lambda one: (one.attempt, one.step))),
        figures=tuple(told for line in lines if (told := _read_figures(line, names)) is not None),
        symptoms=_read_symptoms(head) if "symptoms" in head else None,
    )


def _read_step(line: Mapping[str, Any]) -> StepReport | None:
    known = {name: value for name, value in line.items() if name in StepReport.model_fields}
    known = {name: value for name, value in known.items() if name not in _MEASURED or _is_number(value)}
    if "kl" in known:
        known.setdefault("kl_kind", KlKind.REF_TOKEN_MEAN)
    with suppress(ValidationError):
        return StepReport.model_validate(known)
    return None


def _read_figures(line: Mapping[str, Any], names: Sequence[str]) -> FiguresReport | None:
    values = zip(names, _list(line.get("figures")), strict=False)
    figures = {name: value for name, value in values if _is_number(value)}
    with suppress(ValidationError):
        return FiguresReport.model_validate(
            {"attempt": line.get("attempt"), "step": line.get("step"), "figures": figures}
        )
    return None


def _read_symptoms(head: Mapping[str, Any]) -> Examined:
    return Examined(tuple(_symptoms(head)), tuple(_unseen(head)))


def _symptoms(head: Mapping[str, Any]) -> Iterator[Symptom]:
    for one in _list(head["symptoms"]):
        match one:
            case [str(name), str(sentence), int(first), int(last)] if name in TITLES:
                yield Symptom(name, sentence[:MAX_SENTENCE], first, last, ())


def _unseen(head: Mapping[str, Any]) -> Iterator[Unseen]:
    for one in _list(head.get("unseen")):
        match one:
            case {"name": str(name), "why": str(why)} if name in TITLES:
                yield Unseen(name, why[:MAX_SENTENCE])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
