"""The calibrated detector over a run: gathers the baseline from the first checkpoint, then judges the others.

The judge folds evaluations here when the policy asks for it. Pure; which evaluation to run next is said by
`wanted`, running it is the guard's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from pydantic import BaseModel, ConfigDict

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.codes import Code
from rlguard.core.detectors.baseline import Baseline, Outcomes, outlier_passes, pay_of_right_answers
from rlguard.core.detectors.calibrated import CalibratedDetector, DetectorState, DetectorStatus
from rlguard.core.detectors.conditions import DetectorFacts, conditions_of
from rlguard.core.detectors.questions import DECLINE, Evaluated
from rlguard.core.policy import GREEDY_PASSES, CalibratedPolicy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import Condition, DetectorReading

#: The newest evaluations that the next guard is given, and their significant digits: at most 150 bytes each.
MAX_EVALUATIONS, DIGITS = 1_000, 7

#: How often in a row a wanted pass is tried again that failed of what may pass.
MOST_RETRIES = 1

#: Share of the wanted passes of the starting policy that may turn out to be none; more are its noise.
FEW_OUTLIERS = 0.25

#: Share of its threshold from which on an alarm is near.
NEAR = 0.5

#: Fresh passes of the last checkpoint of a run that ends so near, beside those that decide an alarm.
LAST_PASSES = 2


@dataclass(frozen=True, slots=True)
class Pass:
    """One evaluation of one checkpoint; `index` 0 is the first, later ones use fresh randomness."""

    attempt: int
    step: int
    path: str
    index: int

    def same_checkpoint(self, other: Pass) -> bool:
        """Whether both evaluate the same checkpoint."""
        return CheckpointKey.of(self) == CheckpointKey.of(other)


class CompactDetector(BaseModel):
    """A run whose baseline is complete. Items of a baseline that is not never leave the guard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: DetectorState
    facts: DetectorFacts
    last: Pass


class CalibratedRun:
    """The baseline is the first checkpoint that was evaluated: it should be the starting policy.

    It is complete after `baseline_passes` evaluations of it, after two of greedy decoding (a third would be
    another copy), when `baseline_minutes` have no room for another, or when
    another checkpoint's evaluation arrives before (fewer passes: a wider baseline error, so a slower
    detector, not a less honest one). A pass that lies far from the others was none: everything after it would
    be compared with what a server or a scorer did. It is left out, and another is made.
    """

    def __init__(self, config: CalibratedPolicy) -> None:
        self._config = config
        self._passes: tuple[Outcomes, ...] = ()
        self._seconds: float | None = 0.0  # that these passes took; None: not known
        self._again: float | None = None  # seconds that another one takes
        self._facts = DetectorFacts()
        self._last: Pass | None = None
        self._lost = 0  # wanted passes in a row that failed
        self._gave_up = False
        self._unusable = ""
        self._detector: CalibratedDetector | None = None
        #: Whether the newest fold said that the first evaluation of its checkpoint was none.
        self.contradicted = False

    def fold(
        self, evaluation: Evaluation, in_loop_reward: float | None = None, in_loop_error: float | None = None
    ) -> DetectorStatus | None:
        """Fold one evaluation; None while the baseline is gathered or if the items are unusable.

        Where its sampling is not known, an outcome has as many samples as the policy says.

        Args:
            evaluation: of a checkpoint, or a further pass of one.
            in_loop_reward, in_loop_error: mean and standard error of the reward of its steps.
        """
        first, facts = self._last, self._facts
        last = Pass(evaluation.attempt, evaluation.step, evaluation.path, evaluation.pass_index)
        self._last, self._lost, self._gave_up, self.contradicted = last, 0, False, False
        paid = evaluation.proxy_items or None
        try:
            outcomes = Outcomes.of(evaluation.items, paid, evaluation.fooled_items, self._items)
        except ValueError as error:
            self._unusable = f"the evaluation at step {evaluation.step} cannot be judged: {error}"
            return None
        self._unusable = ""
        has_grader = facts.has_grader or evaluation.proxy_items is not None
        self._facts = replace(facts, has_grader=has_grader)
        # An evaluation that was unusable has begun no baseline.
        again = first is not None and last.same_checkpoint(first)
        if self._detector is None and (again or not self._passes):
            self._gather(evaluation, outcomes)
            return None
        if self._detector is None:
            self._leave_out_outliers()
        detector = self._detector or self._close_baseline()
        graded = paid is not None or not has_grader
        made, ungraded = self._facts.made + 1, self._facts.ungraded + (not graded)
        self._facts = replace(self._facts, graded=graded, made=made, ungraded=ungraded)
        counted_out = detector.state.not_counted
        status = detector.update(
            evaluation.step, evaluation.items, in_loop_reward, paid, in_loop_error, evaluation.fooled_items
        )
        self.contradicted = again and (self.contradicted or detector.state.not_counted > counted_out)
        return status

    def _gather(self, evaluation: Evaluation, outcomes: Outcomes) -> None:
        """Fold a pass of the baseline."""
        self._passes, self._again = (*self._passes, outcomes), evaluation.seconds_again
        before, seconds = self._seconds, evaluation.seconds
        self._seconds = None if before is None or seconds is None else before + seconds
        sampling = evaluation.sampling
        self._facts = replace(self._facts, sampled=None if sampling is None else sampling.temperature > 0)
        if sampling is not None:  # what was done counts, and not what somebody meant to do
            self._config = self._config.model_copy(update={"samples": sampling.samples})
        if self._is_gathered():
            self._close_baseline()

    @property
    def alarmed(self) -> bool:
        """Whether an alarm waits to be decided, by a fresh pass or by the next checkpoint."""
        return self._detector is not None and self._detector.alarmed

    @property
    def evaluations(self) -> int:
        """Evaluations since the baseline that count."""
        return 0 if self._detector is None else self._detector.evaluations

    def begin_again(self) -> None:
        """Forget the evaluations since the baseline; see `CalibratedDetector.begin_again`."""
        if self._detector is not None:
            self._detector.begin_again()

    def lose(self, *, may_pass: bool) -> bool:
        """An evaluation that `wanted` asked for has failed.

        Args:
            may_pass: whether another try may do better. It is made, with a number of its own.

        Returns:
            Whether it is given up: the run goes on with what there is.
        """
        self._lost += 1
        self._gave_up = not may_pass or self._lost > MOST_RETRIES
        return self._gave_up

    def wanted(self, *, over: bool = False) -> Pass | None:
        """The evaluation that should come before any other checkpoint's, or None.

        `over`: the trainer has ended and all of its checkpoints were evaluated. No later one would raise the
        alarm of a fall that began with the last, so that one is looked at again where an alarm is near.
        """
        last = self._last
        if last is None or self._gave_up or self._unusable:
            return None
        if self._detector is not None:
            status = self._detector.last_status
            again = over and self.is_near and not self._detector.state.greedy and last.index < LAST_PASSES
            if status is None or status.fire or not (status.needs_confirmation or again):
                return None
        return Pass(last.attempt, last.step, last.path, last.index + 1 + self._lost)

    def _is_gathered(self) -> bool:
        """Whether no further pass is wanted, once those that were none are left out."""
        wanted = self._config.baseline_passes
        if len(self._passes) > 1 and self._baseline.greedy:
            wanted = min(GREEDY_PASSES, wanted)
        if len(self._passes) < wanted and self._has_room:
            return False
        if len(self._passes) == 2 and self._outlying and self._has_room:
            return False  # a third says which of them it is
        self._leave_out_outliers()
        if len(self._passes) >= wanted:
            return True
        if not self._has_room:
            self._facts = replace(self._facts, afforded=len(self._passes))
        return self._facts.afforded is not None

    @property
    def _outlying(self) -> tuple[int, ...]:
        """Which of the passes lie far from the others."""
        return outlier_passes(self._passes, self._config.max_decline, self._config.samples)

    def _leave_out_outliers(self) -> None:
        """Take out the passes that were none, unless they are so many that they are noise of this policy."""
        found = self._outlying if len(self._passes) > 2 else ()
        outliers = self._facts.outliers
        if outliers + len(found) > max(1, FEW_OUTLIERS * self._config.baseline_passes):
            return
        self.contradicted = not outliers and 0 in found
        self._facts = replace(self._facts, outliers=outliers + len(found))
        self._passes = tuple(one for index, one in enumerate(self._passes) if index not in found)

    @property
    def _has_room(self) -> bool:
        """Whether the budget has room for another pass."""
        return self._config.has_room(self._seconds, self._again)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether an alarm waits for a fresh pass of the newest checkpoint."""
        return self.waits_for_a_pass(over=False)

    def waits_for_a_pass(self, *, over: bool) -> bool:
        """Whether a fresh pass of the newest checkpoint has something to decide; `over`: as in `wanted`."""
        return self._detector is not None and self.wanted(over=over) is not None

    @property
    def jumped(self) -> bool:
        """Whether the newest evaluation lies so far above those before that a fresh pass has to uphold it."""
        return self.awaits_confirmation and self._detector is not None and self._detector.jumped

    @property
    def is_near(self) -> bool:
        """Whether `decline` has come to the share NEAR of the threshold at which it stops.

        A trainer is told this, so it is made of mean scores alone. Not all of them are told it otherwise:
        neither the fresh pass of an alarm nor the passes of the start beyond the first.
        """
        near = next((r for r in self.readings if r.name == DECLINE), None)
        if near is None or near.statistic is None or near.threshold is None:
            return False
        return self._config.on_decline == "stop" and near.statistic >= NEAR * near.threshold

    @property
    def passes_made(self) -> int:
        """Passes of the baseline so far, while it is gathered."""
        return len(self._passes)

    @property
    def passes_planned(self) -> int:
        """Passes that the baseline will have, as far as the costs of those that were made tell."""
        made, seconds, again = len(self._passes), self._seconds, self._again
        greedy = made > 1 and self._baseline.greedy
        planned = min(GREEDY_PASSES, self._config.baseline_passes) if greedy else self._config.baseline_passes
        if not made or seconds is None or not again:
            return planned
        passes = made
        while passes < planned and self._config.has_room(seconds, again):
            passes, seconds = passes + 1, seconds + again
        return passes

    @property
    def gathers_baseline(self) -> bool:
        """Whether the baseline is not complete yet."""
        return self._detector is None

    @property
    def readings(self) -> tuple[DetectorReading, ...]:
        """What each question comes to after the newest evaluation."""
        status = self._detector.last_status if self._detector else None
        return status.readings if status else ()

    def conditions(self) -> Iterator[Condition]:
        """What holds now, except a fire, which the judge latches."""
        if self._unusable:
            yield Condition.of(Code.NO_BASELINE, self._unusable)
        elif not self.readings:
            message = (
                f"{self.passes_made} of {self.passes_planned} passes of the starting policy are done"
                if self._detector is None
                else "no checkpoint after the baseline has been evaluated"
            )
            yield Condition.of(Code.NO_BASELINE, message)
        if self._detector is not None:
            yield from conditions_of(self._detector, self._facts)

    @property
    def _items(self) -> int | None:
        if self._detector is not None:
            return self._detector.state.items
        return len(self._passes[0].truth) if self._passes else None

    @property
    def _baseline(self) -> Baseline:
        """Of the passes so far."""
        return Baseline(self._passes, self._config.samples, self._facts.sampled)

    def _close_baseline(self) -> CalibratedDetector:
        self._detector = CalibratedDetector(self._config, self._baseline)
        self._facts = replace(self._facts, odd_pay=pay_of_right_answers(self._passes))
        self._passes = ()
        return self._detector

    # -- what another guard goes on from -------------------------------------------------------------------

    def __copy__(self) -> Self:
        twin = type(self)(self._config)
        vars(twin).update(vars(self), _detector=copy.copy(self._detector))
        return twin

    def compact(self) -> CompactDetector | None:
        """The run without any item's outcome; None while its baseline is gathered."""
        if self._detector is None or self._last is None:
            return None
        state = self._detector.state
        newest = tuple(map(rounded, state.series.evaluations[-MAX_EVALUATIONS:]))
        state = replace(state, series=replace(state.series, evaluations=newest))
        return CompactDetector(state=state, facts=self._facts, last=self._last)

    def adopt(self, known: CompactDetector) -> None:
        """Go on from what `compact` gave."""
        self._config = self._config.model_copy(update={"samples": known.state.samples})
        self._detector = CalibratedDetector(self._config, known.state)
        self._facts, self._last = known.facts, known.last

    def adopt_nothing(self, why: str) -> None:
        """Note that evaluations were made which cannot be had; the next one begins a new baseline."""
        self._unusable = why


def rounded(one: Evaluated) -> Evaluated:
    """The same with DIGITS significant digits."""

    def few(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.{DIGITS}g}")

    means, spreads = (tuple(float(f"{v:.{DIGITS}g}") for v in values) for values in (one.means, one.spreads))
    return Evaluated(one.step, means, spreads, few(one.reward), few(one.reward_error))
