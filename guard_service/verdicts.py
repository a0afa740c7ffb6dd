"""What is said beside the judge's own verdict: refused reports, silence, a store that fails. Pure."""

from __future__ import annotations

from typing import Any

from guard_service.errors import Problem
from rlguard.core.codes import Code
from rlguard.core.judge import Judge, Latch
from rlguard.core.wire import Condition, Verdict

MAX_SHOWN = 300  # characters of a refusal that a verdict repeats; it quotes what a trainer sent


def halted(judge: Judge, silent_for: float, refused: Condition | None) -> Latch | None:
    """The halt that silence or refused reports close now; None if there is none."""
    verdict = judge.verdict(silent_for)
    conditions = verdict.conditions if refused is None else (*verdict.conditions, refused)
    why = next((one for one in conditions if one.action == "stop"), None)
    if verdict.stop or why is None:
        return None
    return Latch(False, why.code.value, why.message, verdict.attempt or 0, verdict.step or 0)


def without_store(verdict: Verdict, reason: str) -> Verdict:
    """The last verdict, while the store is unavailable: `unknown`, unless a fire was known."""
    condition = Condition.of(Code.STORE_UNAVAILABLE, reason)
    others = tuple(c for c in verdict.conditions if c.code is not Code.STORE_UNAVAILABLE)
    if verdict.fire:
        return verdict.model_copy(update={"conditions": (*others, condition)})
    return verdict.model_copy(update=_headline(condition) | {"conditions": (condition, *others)})


def beside(verdict: Verdict, condition: Condition) -> Verdict:
    """The verdict with one more condition; it speaks for it unless it is advice, or a worse one does."""
    if any(known.code is condition.code for known in verdict.conditions):
        return verdict
    conditions = sorted((condition, *verdict.conditions), key=lambda c: (c.advice, -c.level.severity))
    speaks = not condition.advice and condition.level.severity >= verdict.level.severity
    return verdict.model_copy(
        update=(_headline(condition) if speaks else {}) | {"conditions": tuple(conditions)}
    )


def _headline(condition: Condition) -> dict[str, Any]:
    return {"level": condition.level, "code": condition.code, "reason": condition.message}


def refusal_in_one_line(problem: Problem) -> str:
    """The refusal in one printable line of bounded length, with the first field that was wrong."""
    first = next((e for e in problem.errors if e.message not in problem.detail), None)
    text = problem.detail if first is None else f"{problem.detail} ({first.field}: {first.message})"
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
