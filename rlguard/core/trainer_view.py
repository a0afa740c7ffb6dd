"""What of a verdict a trainer is told, and what `status.guard` says. Pure.

Who holds the ingest token may own the weights, and weights can be made to answer a question about a held-out
prompt: a completion that never ends if the prompt has a property is counted by `truncated` without noise. So
a trainer gets what it acts on and the released scores, at most one a minute and rounded to one percent, and
no other number that is made of items. Of 256 items one answer moves a score by 0.4 percent, which the
rounding hides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlguard.core.codes import Code
from rlguard.core.wire import EvaluationSummary, FailureKind, Verdict

#: Codes whose sentences are made of steps, counts and released scores. Others are told by their meaning.
_TOLD_IN_FULL = frozenset(
    {
        Code.KL_HARD_STOP,
        Code.HELDOUT_DECLINE,
        Code.HACKING_GAP,
        Code.SILENT,
        Code.STALE,
        Code.NO_STEPS,
        Code.NO_REWARD,
        Code.REPORTS_REFUSED,
        Code.KL_INERT,
        Code.KL_NOT_FINITE,
        Code.REFERENCE_NOT_START,
        Code.SAMPLING_UNKNOWN,
        Code.SAMPLING_CHANGED,
        Code.NOT_WAITING,
        Code.STORE_UNAVAILABLE,
        Code.OK,
    }
)

#: Codes whose sentences say scores.
_SAY_SCORES = frozenset({Code.HELDOUT_DECLINE, Code.HACKING_GAP, Code.OK})
#: A number with more digits than a trainer is told.
_EXACT = re.compile(r"(?<![\w.])\d+\.\d{3,}(?![\w.]*\d)")

#: Codes that are about the newest failure, of which a trainer is told the kind.
_OF_A_FAILURE = frozenset({Code.EVALUATION_FAILING, Code.CHECKPOINT_DOUBTFUL})

#: Failures of which `status.guard` has the kind alone: their words may be about an item, or are a library's,
#: which quotes what it has read.
TOLD_BY_KIND = frozenset({FailureKind.UNDERWAY, FailureKind.TOKENIZER, FailureKind.CHECKPOINT})

#: Of an evaluation, what is made of items beside its score.
_SHARES = ("truncated", "unanswered", "timed_out", "proxy_score")

#: Seconds from one released evaluation to the next.
RELEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Released:
    """What of the scores a trainer may know.

    Fields:
        newest: the evaluation that they end with, as the judge has it.
        at: when it was released, seconds, monotonic.
        scores: those fields of the verdict.
    """

    newest: EvaluationSummary | None
    at: float
    scores: Mapping[str, Any]


def release(verdict: Verdict, before: Released | None, now: float) -> Released:
    """Release the scores of this verdict, or those of before until their minute is over.

    A run that must stop is told the newest at once.

    Args:
        verdict: as the judge has it.
        before: what was released last; None: nothing.
        now: seconds, monotonic.
    """
    first = before is None or before.newest is None
    new = before is None or verdict.last_evaluation != before.newest
    if before is not None and new and not first and not verdict.stop and now - before.at < RELEASE_SECONDS:
        return before
    scores = {
        "heldout_ema": _rounded(verdict.heldout_ema),
        "proxy_real_gap": _rounded(verdict.proxy_real_gap),
        "last_evaluation": _score_alone(verdict.last_evaluation),
        "best_evaluation": _score_alone(verdict.best_evaluation),
    }
    return Released(verdict.last_evaluation, now if before is None or new else before.at, scores)


def for_trainer(verdict: Verdict, released: Released | None = None) -> Verdict:
    """The verdict without detectors, shares of completions, and how evaluations failed beyond the kind.

    Args:
        verdict: as the judge has it.
        released: the scores that the trainer may know; None: those of the verdict.
    """
    released = released or release(verdict, None, 0.0)
    early = released.newest != verdict.last_evaluation

    def said(code: Code, sentence: str) -> str:
        return code.meaning if early and code in _SAY_SCORES else _said(code, sentence, verdict.failure)

    conditions = (c.model_copy(update={"message": said(c.code, c.message)}) for c in verdict.conditions)
    return verdict.model_copy(
        update={
            "reason": said(verdict.code, verdict.reason),
            "conditions": tuple(conditions),
            "detectors": (),
            **released.scores,
        }
    )


def for_the_status(code: Code, sentence: str, failure: FailureKind | None) -> str:
    """A sentence for `status.guard`, which others than the split's owner may read.

    What can quote an item, or a file, is told by its kind; the guard's log and the read token have the words.

    Args:
        code: whose sentence it is.
        sentence: as the judge says it.
        failure: kind of the newest failure; None where it is not known of which the sentence was made.
    """
    may_quote = failure is None or failure in TOLD_BY_KIND
    return _said(code, sentence, failure) if code in _OF_A_FAILURE and may_quote else sentence


def status_view(verdict: Verdict) -> Verdict:
    """The verdict for a status, an event or a log that others than the split's owner may read.

    A latch keeps the sentence with which it closed, so the newest failure says nothing about it.
    """
    failure = None if verdict.stop else verdict.failure
    conditions = (
        one.model_copy(update={"message": for_the_status(one.code, one.message, failure)})
        for one in verdict.conditions
    )
    reason = for_the_status(verdict.code, verdict.reason, failure)
    return verdict.model_copy(update={"reason": reason, "conditions": tuple(conditions)})


def _said(code: Code, sentence: str, failure: FailureKind | None) -> str:
    if code in _SAY_SCORES:
        return _EXACT.sub(lambda found: f"{float(found.group()):.2f}", sentence)
    if code in _TOLD_IN_FULL:
        return sentence
    newest = f" The newest: {failure.words}." if failure and code in _OF_A_FAILURE else ""
    return code.meaning + newest


def _score_alone(evaluation: EvaluationSummary | None) -> EvaluationSummary | None:
    rounded = {"score": _rounded(evaluation.score)} if evaluation else {}
    return evaluation and evaluation.model_copy(update=dict.fromkeys(_SHARES) | rounded)


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 2)
