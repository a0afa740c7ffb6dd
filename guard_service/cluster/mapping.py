"""From a verdict to `status.guard`, and from `status.guard` to what a new guard begins with. Pure: no I/O.

What travels of a judge is its compact state. Invariant 8: no per-item outcome is in it; a baseline that is
not complete would need them, so the guard that comes back begins another. Invariant 9: the steps since the
last round do not travel either. Their trainer has died with its pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.compact import CompactState
from guard_core.job_api import ENDS, GUARD_JUDGES
from guard_core.judge import Judge, Latch
from guard_core.policy import Policy
from guard_core.thinning import rounds_that_stay
from guard_core.trainer_view import TOLD_BY_KIND, for_the_status
from guard_core.wire import EvaluationSummary, FailureKind, MomentRollouts, Verdict
from guard_service.heldout.identity import as_one

# Bounds of the API's schema.
MAX_TEXT = 4_096
MAX_STATE = 262_144
MAX_PROMPT, MAX_COMPLETION = 300, 1_000
#: Characters of a latch's reason in the guard's last word; a kubelet keeps 4 KiB of it.
MAX_LAST_REASON = 300

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
CUT = "\n[…]\n"
UNUSABLE = (
    "the guard came back without its store, and the status of this run {why}: how it was judged until then "
    "is not known"
)

#: Of what a status counts, what there is only of a run that has begun.
_COUNTS = ("steps", "announced", "evaluated", "failed", "skipped", "refused")

#: What an operator needs to stop a run, in the API since its first release.
_ESSENTIAL = frozenset({"heartbeat", "level", "code", "reason", "fire", "halt"})

#: Fields that do not by themselves make a report worth writing before the next heartbeat.
_INCIDENTAL = frozenset(
    {"heartbeat", "reason", "adviceReason", "detectorState", "historyTail", "rollouts", "keptSteps"}
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What a guard knows of its run at one moment.

    `state` is `Judge.compact()`, None while the log has never been read; `rounds` are the evaluation
    rounds that are kept of its store, in the API's form, unless `has_its_history`; `ended`: the trainer has
    said that it finished.
    `latched_at`: when the fire (True) and the halt (False) latched, where that is known. `rollouts`: as
    people are shown them, of the training; they travel with a latch. `kept_steps`: see the module of that
    name; only where `wants_steps` says so. `pins`: the files that every checkpoint must have, by name.
    `over`: see `wants_steps`.
    """

    verdict: Verdict
    latches: tuple[Latch, ...] = ()
    state: CompactState | None = None
    rounds: Sequence[Json] = ()
    ended: bool = False
    latched_at: Mapping[bool, datetime] = field(default_factory=dict)
    rollouts: Sequence[MomentRollouts] = ()
    kept_steps: str | None = None
    pins: Mapping[str, str] | None = None
    over: bool = False


def guard_status(known: Known, former: Json, now: datetime) -> Json:
    """`status.guard` for what is known now. What is not known is absent, never 0.

    Args:
        known: what the guard knows.
        former: `status.guard` as it was read or last written; {} if there was none. A latch in it is
            repeated word for word: the API server refuses a fire that is left out or differs.
        now: the time of this report, with its time zone.
    """
    time, verdict = timestamp(now), known.verdict
    reason = for_the_status(verdict.code, verdict.reason, verdict.failure)
    summary = {"level": verdict.level.value, "code": verdict.code.value, "reason": _text(reason)}
    closed = {latch.kind: _latched(latch, known.latched_at.get(latch.fire) or now) for latch in known.latches}
    if known.state is None:  # nothing else is known of the run: what was reported stands, but for the level
        return closed | former | summary | {"heartbeat": time}
    status: Json = {
        **summary,
        **_advice(verdict),
        "heartbeat": time,
        "attempt": verdict.attempt,
        "step": verdict.step,
        "steps": verdict.steps,
        "rounds": verdict.rounds,
        "announced": verdict.announced,
        "evaluated": verdict.evaluated,
        "failed": verdict.failed,
        "skipped": verdict.skipped,
        "refused": verdict.refused,
        "waiting": verdict.waiting,
        "stepsSinceEvaluation": verdict.steps_since_evaluation,
        "longestRound": verdict.longest_round,
        "inLoopEma": _shown(verdict.in_loop_ema),
        "heldoutEma": _shown(verdict.heldout_ema),
        "klEma": _shown(verdict.kl_ema),
        "proxyRealGap": _shown(verdict.proxy_real_gap),
        "lastEvaluation": _evaluation(verdict.last_evaluation),
        "lastEvaluationTime": _evaluated_at(verdict.last_evaluation, former, time),
        "bestCheckpoint": _evaluation(verdict.best_evaluation),
        "detectorState": detector_state(known.state, known.pins),
    }
    place = _newest(verdict)
    if (known.ended and verdict.step is not None) or former.get("ended") == place:
        status["ended"] = place
    status |= closed | {key: former[key] for key in ("fire", "halt") if key in former}
    status["historyTail"] = _history(known.rounds, former, verdict.best_evaluation)
    if "fire" in status or "halt" in status:
        status["rollouts"] = [_rollout(one) for one in known.rollouts] or former.get("rollouts")
    status["keptSteps"] = (
        former["keptSteps"] if _has_its_steps(former, verdict, known.over) else known.kept_steps
    )
    return {key: value for key, value in status.items() if value is not None}


def wants_steps(verdict: Verdict, over: bool, former: Json) -> bool:
    """Whether the next report is a last word, which has the steps, and they are not in the status yet.

    A run that goes on does not carry them: etcd writes the whole object with every heartbeat.

    Args:
        verdict, former: see `guard_status`.
        over: a latch has closed, the trainer has ended, or this guard is being ended.
    """
    return over and not _has_its_steps(former, verdict, over)


def _has_its_steps(status: Json, verdict: Verdict, over: bool) -> bool:
    """Whether this status holds the steps of a latch, or of an end after which none came: they stay."""
    newest = _newest(verdict)
    same = over and {key: status.get(key) for key in newest} == newest
    stay = "fire" in status or "halt" in status or status.get("ended") == newest or same
    return "keptSteps" in status and stay


def trainer_has_ended(status: Json) -> bool:
    """Whether the operator says so in the status of the job, as of one that is followed, and tells nobody."""
    conditions = status.get("conditions")
    said = [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []
    ends = [one for one in said if one.get("type") in ENDS]
    return any(one.get("status") == "True" or one.get("reason") == GUARD_JUDGES for one in ends)


def without_steps(status: Json) -> Json:
    """The status for an API server that may refuse it for its newest field."""
    return {key: value for key, value in status.items() if key != "keptSteps"}


def _newest(verdict: Verdict) -> Json:
    return {"attempt": verdict.attempt, "step": verdict.step}


def has_its_history(status: Json) -> bool:
    """Whether this status holds the rounds with which a latch closed: they stay as they are."""
    return "historyTail" in status and ("fire" in status or "halt" in status)


def essential(status: Json) -> Json:
    """The part that stops a run, for an API server that refuses the rest, such as one with an older CRD."""
    return {key: value for key, value in status.items() if key in _ESSENTIAL}


def last_word(status: Json) -> str:
    """The latches of a status as JSON, for the operator to find in the pod if no API server takes them."""
    latched = {key: status[key] for key in ("fire", "halt") if key in status}
    return json.dumps({key: it | {"reason": it["reason"][:MAX_LAST_REASON]} for key, it in latched.items()})


def differs(status: Json, written: Json) -> bool:
    """Whether `status` says something that `written` does not, beyond the heartbeat and turns of phrase."""
    return any(status.get(key) != written.get(key) for key in (status.keys() | written.keys()) - _INCIDENTAL)


class _DetectorState(BaseModel):
    """What `detectorState` holds.

    `pins`: the files that every checkpoint must have, as one digest: a trainer that has its pod made again
    must not be free to choose another tokenizer, nor by how many files it has what else is known of its run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: CompactState
    pins: dict[str, str] | None = None


def detector_state(state: CompactState, pins: Mapping[str, str] | None = None) -> str | None:
    """What may leave the guard of the judge's compact state, as JSON; None if it is too long."""
    last_failure = _failure(state.failure, state.last_failure)
    content = _DetectorState(
        state=state.model_copy(update={"last_failure": last_failure}),
        pins=None if pins is None else as_one(pins),
    )
    text = content.model_dump_json()
    return text if len(text) <= MAX_STATE else None


def _failure(kind: FailureKind | None, words: str) -> str:
    """The newest failure, in full unless its words may quote something; "" once an evaluation succeeded."""
    if kind is None:
        return ""
    return kind.words if kind in TOLD_BY_KIND else _text(words)


def resumed(policy: Policy, status: Json) -> CompactState | None:
    """The state that `status.guard` tells of; None if it tells of no run.

    Of a run that it tells of without a state that can be used the past is unknown.
    """
    why = "has no state to resume from"
    if text := status.get("detectorState"):
        try:
            state = _DetectorState.model_validate_json(text).state
            Judge(policy).fold_adopted(state)
        except (ValueError, TypeError) as error:
            why = f"has a state that cannot be used ({_words(error)})"
        else:
            return state
    if latches(status) or _has_begun(status):
        return CompactState.unknown(policy, UNUSABLE.format(why=why))
    return None


def _has_begun(status: Json) -> bool:
    """Whether a status tells of more than a guard that waits for a run. Of one that was cut to what stops a
    run (`essential`) only the level does; of a state without all counts nobody knows.
    """
    counts = [status.get(count) for count in _COUNTS]
    judged = any(counts) or status.get("level") not in (None, Level.UNKNOWN.value)
    return judged or ("detectorState" in status and None in counts)


def pins_in(status: Json) -> dict[str, str] | None:
    """What every checkpoint must have, as `status.guard` tells it, by name or `as_one`; None: it does not."""
    try:
        return _DetectorState.model_validate_json(status["detectorState"]).pins
    except (ValueError, KeyError):
        return None


def latches(status: Json) -> tuple[Latch, ...]:
    """The latches that a status holds. One that this program does not understand is a latch all the same."""
    found = []
    for key, fire in (("fire", True), ("halt", False)):
        entry = status.get(key)
        if entry is None:
            continue
        code, reason = str(entry.get("code")), str(entry.get("reason"))
        if code not in list(Code):  # of another release: it keeps its meaning in the message
            code, reason = Code.HELDOUT_DECLINE.value, f"{code}: {reason}"
        attempt, step = (max(0, int(entry.get(place) or 0)) for place in ("attempt", "step"))
        found.append(Latch(fire, code, reason, attempt, step))
    return tuple(found)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _latched(latch: Latch, at: datetime) -> Json:
    return {
        "code": latch.code,
        "reason": _text(for_the_status(Code(latch.code), latch.message, None)),
        "attempt": latch.attempt,
        "step": latch.step,
        "at": timestamp(at),
    }


def _evaluation(summary: EvaluationSummary | None) -> Json | None:
    if summary is None:
        return None
    return _camel(summary.model_dump(mode="json", exclude_none=True))


def _camel(fields: Mapping[str, Any]) -> Json:
    """The fields by the names of the API, inner ones too."""
    return {
        to_camel(n): _camel(value) if isinstance(value, Mapping) else value for n, value in fields.items()
    }


def _evaluated_at(summary: EvaluationSummary | None, former: Json, time: str) -> str | None:
    """When the newest evaluation finished: now, if the former report had another one; else as it said."""
    if summary is None or not former:
        return None
    before = former.get("lastEvaluation") or {}
    if (before.get("attempt"), before.get("step")) == (summary.attempt, summary.step):
        return former.get("lastEvaluationTime")
    return time


def _history(rounds: Sequence[Json], former: Json, best: EvaluationSummary | None) -> Sequence[Json] | None:
    """The rounds that are kept: after those of a guard that lost its store come its own."""
    told = former.get("historyTail") or []
    if has_its_history(former):
        return told
    own, lost = ({_place(one): one for one in these} for these in (rounds, told))
    if own:  # its store has whatever came since
        lost = {place: one for place, one in lost.items() if place < min(own)}
    every = lost | own
    stay = rounds_that_stay(list(every), None if best is None else CheckpointKey.of(best))
    return [list(every.values())[i] for i in stay] or None


def _place(one: Json) -> CheckpointKey:
    return CheckpointKey(one["attempt"], one["step"])


def _rollout(moment: MomentRollouts) -> Json:
    """The best-rewarded rollout of a moment, cut to what the API takes.

    A policy or a trainer wrote it: what is no character of a text could have an API server refuse the report.
    """
    best = moment.rollouts[0]
    return {
        "moments": [one.value for one in moment.moments],
        "attempt": moment.attempt,
        "step": moment.step,
        "prompt": _written(best.prompt, MAX_PROMPT),
        "completion": _written(best.completion, MAX_COMPLETION),
        "reward": best.reward,
    }


def _written(text: str, limit: int) -> str:
    """The text without control characters; of a longer one its beginning and its end."""
    plain = _CONTROLS.sub("\ufffd", text)
    half = (limit - len(CUT)) // 2
    return plain if len(plain) <= limit else f"{plain[:half]}{CUT}{plain[-half:]}"


def _shown(value: float | None) -> float | None:
    """Four significant digits, for the columns of `kubectl get`; the detector's state has all of them."""
    return None if value is None else float(f"{value:.4g}")


def _advice(verdict: Verdict) -> Json:
    """Its codes, and a sentence for each condition."""
    said = sorted({(c.code, c.message) for c in verdict.conditions if c.advice})
    if not said:
        return {}
    words = (for_the_status(code, message, verdict.failure) for code, message in said)
    return {"advice": sorted({code.value for code, _ in said}), "adviceReason": _text("; ".join(words))}


def _text(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _words(error: Exception) -> str:
    """What is wrong, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()[:200]
    return str(error)[:200]
