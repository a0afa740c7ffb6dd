"""What was read of a guard, and `status.guard` made of it. Pure.

Whatever a guard says may quote a trainer or a checkpoint: text is cut and cleaned. What is not known is
absent, never 0, and a latch that stands in the status is repeated word for word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from rlguard.core.codes import Code, Level
from rlguard.core.trainer_view import status_view
from rlguard.core.wire import EvaluationSummary, Verdict
from rlguard.operator.runtime.client import Json

MAX_TEXT = 4_096
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_COUNTS = (
    "attempt", "step", "steps", "rounds", "announced", "evaluated", "failed", "skipped", "refused", "waiting",
    "steps_since_evaluation", "longest_round",
)  # fmt: skip
_MEANS = ("in_loop_ema", "heldout_ema", "kl_ema", "proxy_real_gap")
#: What stands for a latch that this release cannot read in full.
_LATCH = {"level", "code", "reason", "fire", "halt", "stop", "latch_attempt", "latch_step", "latched_at"}
#: What is written as soon as it changes; the rest waits for a few seconds.
_AT_ONCE = ("level", "code", "advice", "fire", "halt", "ended")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one operator knows of the guard in one pod.

    Fields:
        pod: UID of the pod.
        target: where it is asked, for messages; "" while that is not known.
        verdict: what it said last; None: it has never answered.
        heard_at: when that was, UTC.
        unreached_since: since when it cannot be reached, monotonic seconds; None while it can.
        error: why it cannot.
        lost: why nobody knows how the run was judged before this guard; "" if somebody does.
    """

    pod: str
    target: str = ""
    verdict: Verdict | None = None
    heard_at: datetime | None = None
    unreached_since: float | None = None
    error: str = ""
    lost: str = ""


def last_word(message: str) -> Verdict | None:
    """The verdict that a guard left when it ended; None: it left something else, such as its log."""
    try:
        content = json.loads(message)
        int(content.pop("sequence"))  # only a guard with a log leaves one
        return understood(content)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def error_of(message: str) -> str:
    """Why a guard ended: what it left beside its verdict when it ended, or the end of its log."""
    try:
        return str(json.loads(message).get("error", ""))
    except (ValueError, AttributeError):
        return message


def understood(content: Json) -> Verdict:
    """The verdict of a guard of this release, or of another one: a latch of an unknown code is a latch.

    Raises:
        ValueError: it is no verdict.
    """
    known = {name: content[name] for name in Verdict.model_fields.keys() & content.keys()}
    try:
        return Verdict.model_validate_json(json.dumps(known))
    except ValidationError:
        if not (known.get("fire") or known.get("halt")):
            raise
    said = f"{content.get('code')}: {content.get('reason')}"
    known |= {"level": Level.FIRED, "code": Code.HELDOUT_DECLINE, "reason": said, "stop": True}
    latch = {name: known[name] for name in _LATCH & known.keys()}
    counts = {name: known[name] for name in known.keys() & {*_COUNTS, *_MEANS, "ended"}}
    try:
        return Verdict.model_validate_json(json.dumps(counts | latch))
    except ValidationError:
        return Verdict.model_validate_json(json.dumps(latch))


def guard_status(verdict: Verdict, former: Mapping[str, Any], now: datetime) -> Json:
    """`status.guard` for this verdict.

    Args:
        verdict: what the guard says.
        former: `status.guard` as it stands; {} if there is none.
        now: the time of the reading, UTC.
    """
    time, said = timestamp(now), status_view(verdict)
    status: Json = {
        "readAt": time,
        "level": verdict.level.value,
        "code": verdict.code.value,
        "reason": clean_text(said.reason),
        **_advice(said),
        **{to_camel(name): getattr(verdict, name) for name in _COUNTS},
        **{to_camel(name): _shown(getattr(verdict, name)) for name in _MEANS},
        "lastEvaluation": _evaluation(verdict.last_evaluation) or former.get("lastEvaluation"),
        "lastEvaluationTime": _evaluated_at(verdict.last_evaluation, former, time),
        "bestCheckpoint": _evaluation(verdict.best_evaluation) or former.get("bestCheckpoint"),
    }
    if verdict.ended and verdict.step is not None:
        status["ended"] = {"attempt": verdict.attempt or 0, "step": verdict.step}
    if verdict.stop:
        status["fire" if verdict.fire else "halt"] = _latched(said, now)
    status |= {name: former[name] for name in ("fire", "halt") if former.get(name) is not None}
    return {name: value for name, value in status.items() if value is not None}


def differs(status: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Whether it says something else, beside when it was read."""
    return any(status.get(name) != former.get(name) for name in {*status, *former} - {"readAt"})


def differs_at_once(status: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Whether what differs is to be written at once."""
    return any(status.get(name) != former.get(name) for name in _AT_ONCE)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def clean_text(words: str) -> str:
    """These words without control characters, and not too long."""
    plain = _CONTROLS.sub("\ufffd", words)
    return plain if len(plain) <= MAX_TEXT else plain[: MAX_TEXT - 1] + "…"


def _latched(verdict: Verdict, now: datetime) -> Json:
    return {
        "code": verdict.code.value,
        "reason": clean_text(verdict.reason),
        "attempt": verdict.latch_attempt or 0,
        "step": verdict.latch_step or 0,
        "at": timestamp(verdict.latched_at or now),
    }


def _advice(verdict: Verdict) -> Json:
    told = sorted({(one.code, one.message) for one in verdict.conditions if one.advice})
    if not told:
        return {}
    words = "; ".join(message for _, message in told)
    return {"advice": sorted({code.value for code, _ in told}), "adviceReason": clean_text(words)}


def _shown(value: float | None) -> float | None:
    """Four significant digits, for the columns of `kubectl get`."""
    return None if value is None else float(f"{value:.4g}")


def _evaluation(summary: EvaluationSummary | None) -> Json | None:
    return None if summary is None else _camel(summary.model_dump(mode="json", exclude_none=True))


def _camel(fields: Mapping[str, Any]) -> Json:
    """The fields by the names of the API, inner ones too."""
    return {
        to_camel(name): _camel(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
    }


def _evaluated_at(summary: EvaluationSummary | None, former: Mapping[str, Any], time: str) -> str | None:
    """When the newest evaluation finished: now, if the status had another one; else as it said."""
    before = former.get("lastEvaluation") or {}
    same = summary is None or (before.get("attempt"), before.get("step")) == (summary.attempt, summary.step)
    return former.get("lastEvaluationTime") if same else time
