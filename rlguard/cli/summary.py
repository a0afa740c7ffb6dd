"""The numbers of a run, from its verdict: the same for status, report and the end of a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rlguard.core.codes import Code, Level
from rlguard.core.detectors.questions import points
from rlguard.core.terminal import plain
from rlguard.core.wire import Condition, Verdict

#: What became of the checkpoints.
COUNTS = ("announced", "evaluated", "failed", "skipped", "refused", "waiting")
_CAPITAL = re.compile("[A-Z]")
_MAX_DEPTH = 16


def summary(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Names and texts of what a verdict says of a run; what is not known is left out."""
    code = "" if verdict.code is Code.OK else f" ({verdict.code.value})"
    yield "Verdict", f"{verdict.level.value}{code}: {verdict.reason}"
    if verdict.step is not None:
        attempt = f" of attempt {verdict.attempt}" if verdict.attempt else ""
        yield "Step", f"{verdict.step:,}{attempt}"
    if scores := heldout_scores(verdict):
        yield "Held-out score", scores
    if verdict.in_loop_ema is not None:
        yield "Reward", f"{verdict.in_loop_ema:.4g} (mean of the newest evaluation rounds)"
    if verdict.kl_ema is not None:
        yield "KL", f"{verdict.kl_ema:.4g} nats/token"
    yield "Checkpoints", checkpoints(verdict)
    if (best := verdict.best_evaluation) is not None:
        yield "Last good checkpoint", f"step {best.step:,}, {best.path}"
    for one in verdict.conditions:
        if one.advice:
            yield "Advice", f"{one.message} ({one.code.value})"


def heldout_scores(verdict: Verdict) -> str:
    """The newest held-out score beside the best one; "" before the first."""
    best, newest = verdict.best_evaluation, verdict.last_evaluation
    if newest is None:
        return "" if best is None else f"{points(best.score)} at its best (step {best.step:,})"
    now = f"{points(newest.score)} at step {newest.step:,}"
    if best is None or (best.attempt, best.step) == (newest.attempt, newest.step):
        return now
    return f"{now}, {points(best.score)} at its best (step {best.step:,})"


def checkpoints(verdict: Verdict) -> str:
    """How many were judged, and what became of the others."""
    counts = {name: getattr(verdict, name) for name in COUNTS}
    others = [f"{count} {name}" for name, count in list(counts.items())[2:] if count]
    return ", ".join([f"{verdict.evaluated} of {verdict.announced} judged", *others])


def summary_lines(verdict: Verdict) -> Iterator[str]:
    """The summary for a terminal."""
    for name, text in summary(verdict):
        yield plain(text if name == "Verdict" else f"{name.lower()}: {text}", 2_000)


def read_verdict(given: Mapping[str, Any]) -> Verdict | None:
    """A verdict as a guard or a job's status has it; what cannot be read is left out. None without a code."""
    status = _snake(given)
    fire, halt = (one if isinstance(one := status.get(name), dict) else {} for name in ("fire", "halt"))
    fired, halted = (bool(status.get(name)) for name in ("fire", "halt"))
    latch = fire or halt
    code = latch.get("code") or status.get("code")
    if code not in list(Code):
        return None
    reason = latch.get("reason") or status.get("reason")
    known = {"conditions": _advice(status), **_known(status)} | {
        "level": Level.FIRED if fired else status.get("level"),
        "code": code,
        "reason": reason if isinstance(reason, str) else "",
        "fire": fired,
        "halt": halted and not fired,
        "stop": fired or halted,
        "latch_attempt": latch.get("attempt", status.get("latch_attempt")),
        "latch_step": latch.get("step", status.get("latch_step")),
        "latched_at": latch.get("at", status.get("latched_at")),
        "best_evaluation": status.get("best_checkpoint") or status.get("best_evaluation"),
        "ended": bool(status.get("ended", "ended" in status)),
    }
    while True:
        try:
            return Verdict.model_validate(known)
        except ValidationError as error:
            del known[str(error.errors()[0]["loc"][0])]
            known.setdefault("level", Level.UNKNOWN)


def _known(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: status[name] for name in Verdict.model_fields.keys() & status.keys()}


def _advice(status: Mapping[str, Any]) -> list[Condition]:
    """The advice of a job's status, which has all of it in one sentence."""
    codes, words = status.get("advice"), status.get("advice_reason")
    if not isinstance(codes, list) or not isinstance(words, str):
        return []
    return [Condition.of(Code(code), words, advice=True) for code in codes[:1] if code in list(Code)]


def _snake(value: Any, depth: int = 0) -> Any:
    """The names of the API as those of the wire, inner ones too; nothing of a verdict is nested deeper."""
    if not isinstance(value, Mapping):
        return value
    if depth == _MAX_DEPTH:
        return None
    # Not pydantic's `to_snake`, which makes sha_256 of sha256.
    return {_CAPITAL.sub(r"_\g<0>", str(k)).lower(): _snake(v, depth + 1) for k, v in value.items()}
