"""Completions that nobody could score, and what they mean for the scores of a run. Pure.

A completion that was cut off, or that lacks the mark after which answers begin, counts as wrong without a
scorer being asked. That is right for one completion. Of most of them it says that the limit or the mark was
measured, and not the policy; and where the trainer lets completions go on for longer than the evaluator
does, a policy that thinks longer scores less without being worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rlguard.core.codes import Code, Level
from rlguard.core.wire import Condition, EvaluationSummary, Sampling

#: Shares of completions of the first evaluation above which its score says too little: that were cut off,
#: have no answer after its mark, or on which a scorer reached its limit.
MAX_TRUNCATED = MAX_UNANSWERED = MAX_TIMED_OUT = 0.2

#: Share of unscored completions from which on a score says nothing of the policy.
MOST_UNSCORED = 0.9

#: By how much more than at the start is cut off before that may be what a score fell by.
MORE_CUT_OFF = 0.05


@dataclass(slots=True)
class Unscored:
    """What is remembered of it in a run.

    Conditions tell of the first evaluation, and once of the whole run: a trainer that saw in each evaluation
    whether a share is above a limit could have its weights answer questions about a held-out prompt.
    """

    #: The first evaluation, and its share of unscored completions.
    first: EvaluationSummary | None = None
    at_first: float | None = None
    #: Whether scores say anything of the policy. Where nearly everything is unscored from the start, a reward
    #: that rises beside a score that does not is no evidence of hacking. Once an evaluation has measured the
    #: policy, one in which nearly everything is unscored is what became of the policy.
    measured: bool = False
    #: A sentence, once one was too much cut off to be compared.
    cut_short: str = ""
    #: A sentence, once scorers were late on as much as the score fell by.
    late: str = ""

    def fold(
        self,
        evaluation: EvaluationSummary,
        unscored: float | None,
        best: EvaluationSummary | None,
        trainer: Sampling | None,
    ) -> bool:
        """Fold a checkpoint's first evaluation.

        Args:
            evaluation: it.
            unscored: share of its completions that no scorer was asked about; None where that is not known.
            best: the best evaluation before it of this start; None: there is none.
            trainer: how the trainer samples, as far as it says.

        Returns:
            Whether its score may be compared with others. The baseline is taken as it is.
        """
        self.measured = self.measured or unscored is None or unscored < MOST_UNSCORED
        if self.first is None:
            self.first, self.at_first = evaluation, unscored
            return True
        if best is None:  # an attempt that started from scratch: it has not fallen from anywhere
            return self.measured
        self._note_late(evaluation, best)
        return self.measured and not self._is_cut_short(evaluation, unscored, best, trainer)

    def _is_cut_short(
        self,
        evaluation: EvaluationSummary,
        unscored: float | None,
        best: EvaluationSummary,
        trainer: Sampling | None,
    ) -> bool:
        """Whether the score has fallen, and all of it may be completions that the trainer would let go on.

        Rise and fall must be more than noise. A score that has not fallen is compared, whatever was cut off:
        a reward that rises beside it is what the rules are for.
        """
        first, used, limit = self.first, evaluation.sampling, _longest(trainer)
        if first is None or used is None or limit is None or used.max_new_tokens >= limit:
            return False
        more = min(_rise(first.truncated, evaluation.truncated), _rise(self.at_first, unscored))
        if not _may_be_all(more, unscored, evaluation, best):
            return False
        self.cut_short = self.cut_short or (
            f"{evaluation.truncated:.0%} of the completions at step {evaluation.step} were cut off at "
            f"{used.max_new_tokens} tokens, {first.truncated:.0%} at step {first.step}, where the trainer "
            f"gives them {limit}: what is cut off counts as wrong, so this score and later ones like it are "
            "not compared with those before. Raise the evaluator's max_new_tokens_ceiling (or "
            "max_new_tokens), and start a new run from the last good checkpoint"
        )
        return True

    def _note_late(self, evaluation: EvaluationSummary, best: EvaluationSummary) -> None:
        """Note where all of a fall may be scorers that reached their limit. It is compared all the same.

        A policy whose answers run for ever is worse; a machine that others use makes scorers late on every
        policy, also in the pass that is to confirm. Nobody can tell them apart here.
        """
        first = self.first
        if first is None:
            return
        more = _rise(first.timed_out, evaluation.timed_out)
        if not _may_be_all(more, evaluation.timed_out, evaluation, best):
            return
        self.late = self.late or (
            f"scorers reached their limit on {evaluation.timed_out:.0%} of the completions at step "
            f"{evaluation.step}, and on {first.timed_out:.0%} at step {first.step}, which count as wrong: "
            "all of the fall may be that. See that the guard's machine is not busy, and that a right answer "
            "is far from scorer_timeout_seconds"
        )

    def conditions(self, trainer: Sampling | None) -> Iterator[Condition]:
        """What holds for the run."""
        if self.cut_short:
            yield Condition.of(Code.CUT_SHORT, self.cut_short)
        if self.late:
            yield Condition.of(Code.EVALUATION_FAILING, self.late, advice=True)
        if self.first is None:
            return
        if self.measured:
            yield from _about_the_first(self.first, self.at_first, trainer)
            return
        yield Condition.of(
            Code.UNINFORMATIVE_BASELINE,
            f"{self.at_first or 0.0:.0%} of the completions at step {self.first.step} were cut off "
            "or have no answer, and no evaluation since had many fewer: its score says nothing of the "
            "policy, and no reward is compared with it. Give completions room (max_new_tokens), see that "
            "the policy writes what answer_after says, or, where completions have no end of their own, set "
            "score_truncated",
            level=Level.UNKNOWN,
        )


def _longest(trainer: Sampling | None) -> int | None:
    return None if trainer is None else trainer.max_new_tokens


def _may_be_all(
    more: float, share: float | None, evaluation: EvaluationSummary, best: EvaluationSummary
) -> bool:
    """Whether a share of the completions that has risen by `more` may be all that the score fell by.

    Rise and fall must be more than noise.
    """
    fall = best.score - evaluation.score
    small = more < MORE_CUT_OFF + 2 * _noise(share or 0.0, evaluation.items)
    return not small and _noise(best.score, best.items) < fall <= more


def _rise(before: float | None, now: float | None) -> float:
    """How much a share has risen; 0 where that is not known."""
    return 0.0 if before is None or now is None else now - before


def _noise(share: float, items: int) -> float:
    """Standard error of the difference of two shares near this one, each of so many items."""
    return math.sqrt(2 * share * (1 - share) / items)


def scores_what_is_cut_off(truncated: float | None, unscored: float | None) -> bool:
    """Whether completions that were cut off had a score of their own; no, where a share is not known."""
    return truncated is not None and unscored is not None and unscored < truncated


def _about_the_first(
    first: EvaluationSummary, unscored: float | None, trainer: Sampling | None
) -> Iterator[Condition]:
    """That too many completions of the first evaluation say nothing: of each kind, and what to do.

    Where the trainer lets go on for longer what was cut off, what it trains is not what is scored, so no
    verdict can be had. All else is advice: nobody can tell a policy that has yet to learn where answers begin
    from one of another format.
    """
    used, own = first.sampling, _longest(trainer)
    shorter = used is not None and own is not None and used.max_new_tokens < own
    longer = f", where the trainer gives them {own}" if shorter else ""
    counted = (
        "They are scored as they are (score_truncated)"
        if scores_what_is_cut_off(first.truncated, unscored)
        else "They count as wrong; where completions have no end of their own, set score_truncated"
    )
    kinds = (
        (
            first.truncated,
            f"of the completions at step {first.step} were cut off at the length limit{longer}",
            "so how they end is not known: raise the evaluator's max_new_tokens to what the trainer "
            f"generates with (or its ceiling, max_new_tokens_ceiling). {counted}",
            shorter,
        ),
        (
            first.unanswered,
            f"of the completions at step {first.step} have no answer, and count as wrong",
            "see that the policy writes what answer_after says, and has the room to (max_new_tokens)",
            False,
        ),
        (
            first.timed_out,
            f"of the completions at step {first.step} timed out in a scorer, and count as wrong",
            "see that a right answer is far from scorer_timeout_seconds, also while the machine is busy",
            False,
        ),
    )
    for share, what, remedy, incomparable in kinds:
        if share is not None and share > MAX_TRUNCATED:
            yield Condition.of(
                Code.UNINFORMATIVE_BASELINE,
                f"{share:.0%} {what} (advised: at most {MAX_TRUNCATED:.0%}): {remedy}",
                level=Level.UNKNOWN if incomparable else Level.WARNING,
                advice=not incomparable,
            )
