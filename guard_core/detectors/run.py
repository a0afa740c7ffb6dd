"""The calibrated detector over a run: gathers the baseline from the first checkpoint, then judges the others.

The judge folds evaluations here when the policy asks for it. Pure; which evaluation to run next is said by
`wanted`, running it is the guard's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from pydantic import BaseModel, ConfigDict

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.detectors.baseline import Baseline, Outcomes, outlier_passes, pay_of_right_answers
from guard_core.detectors.calibrated import CalibratedDetector, DetectorState, DetectorStatus, action
from guard_core.detectors.planning import cannot_fall, drop_to_see, evaluations_to_detect
from guard_core.detectors.questions import DECLINE, DISAGREEMENT, Evaluated, points
from guard_core.policy import GREEDY_PASSES, CalibratedPolicy
from guard_core.rounds import Evaluation
from guard_core.wire import Condition, DetectorReading

#: Share of evaluations that may turn out to be none before a run can no longer be said to be judged.
FEW_NOT_COUNTED = 0.1

#: The newest evaluations that the next guard is given, and their significant digits: at most 150 bytes each.
MAX_EVALUATIONS, DIGITS = 1_000, 7

#: How often in a row a wanted pass is tried again that failed of what may pass.
MOST_RETRIES = 1

#: Share of the wanted passes of the starting policy that may turn out to be none; more are its noise.
FEW_OUTLIERS = 0.25

#: Share of its threshold from which on the next checkpoint is wanted sooner.
NEAR = 0.5

#: Fresh passes of the last checkpoint of a run that ends so near, beside those that decide an alarm.
LAST_PASSES = 2

#: What is said of passes of greedy decoding: where the temperature is known, and where it is not.
_COPIES = "passes of the starting policy are copies of each other at temperature 0"
_AGREE = "two passes of the starting policy agree in every item (temperature 0?)"

#: A starting score within this of 0 or 1 leaves the held-out score little room to move.
UNINFORMATIVE = 0.02


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


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was counted beside the baseline and its detector.

    Fields:
        sampled: whether the newest pass of the baseline was sampled, as in `Baseline`.
        afforded: passes of the baseline, where the budget had room for no more.
        outliers: passes of the baseline that were left out.
        has_grader: whether there is a training grader.
        odd_pay: what it pays for right answers, where that is odd.
        made, ungraded: evaluations after the baseline, and those of them on which the grader failed.
        graded: whether the newest one is none of those.
    """

    sampled: bool | None = None
    afforded: int | None = None
    outliers: int = 0
    has_grader: bool = False
    odd_pay: str = ""
    made: int = 0
    ungraded: int = 0
    graded: bool = True


class CompactDetector(BaseModel):
    """A run whose baseline is complete. Items of a baseline that is not never leave the guard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: DetectorState
    facts: RunFacts
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
        self._facts = RunFacts()
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
            yield from self._about_the_baseline(self._detector)
            yield from self._about_evaluations(self._detector)
            yield from self._about_the_grader(self._detector)
        for reading in self.readings:
            if reading.level is Level.WARNING:
                yield Condition.of(
                    reading.code,
                    reading.message,
                    level=Level.WARNING,
                    advice=action(reading.code, self._config) == "warn",
                )

    def _about_the_baseline(self, detector: CalibratedDetector) -> Iterator[Condition]:
        if self._facts.afforded is not None:
            said = fewer_passes(
                self._facts.afforded, detector.start.level, detector.state.items, self._config
            )
            yield Condition.of(Code.NO_BASELINE, f"baseline_minutes had room for {said}", advice=True)
        if self._facts.outliers:
            passes = "pass" if self._facts.outliers == 1 else "passes"
            yield Condition.of(
                Code.EVALUATION_FAILING,
                f"{self._facts.outliers} further {passes} of the starting policy did not count: far from "
                "the others (did the scorer or the server fail?)",
                advice=True,
            )
        score = detector.start.level
        if uninformative := uninformative_baseline(score, detector.newest):
            yield uninformative
        elif low := cannot_fall_from(score, self._config, has_grader=detector.state.series.has_grader):
            yield Condition.of(Code.UNINFORMATIVE_BASELINE, low, advice=True)
        if detector.state.greedy:
            yield Condition.of(
                Code.UNINFORMATIVE_BASELINE,
                f"{_COPIES if self._facts.sampled is False else _AGREE}: they say nothing about noise and "
                f"count as one. Sampled with a temperature above 0, {self._config.baseline_passes} passes "
                "would be worth as many, and a fresh evaluation of one checkpoint could confirm an alarm",
                advice=True,
            )

    def _about_evaluations(self, detector: CalibratedDetector) -> Iterator[Condition]:
        status = detector.last_status
        if status is None:
            return
        if lacks := detector.lacks():
            yield Condition.of(Code.WARMING_UP, lacks)
        yield from _cannot_judge_yet(status.readings)
        if status.in_doubt:
            yield Condition.of(Code.FELL_BELOW_START, status.in_doubt, level=Level.WARNING)
        if detector.state.not_counted:
            made = detector.evaluations + detector.state.not_counted
            yield Condition.of(
                Code.EVALUATION_FAILING,
                f"{detector.state.not_counted} of {made} evaluations "
                "are not counted: far from those before, and contradicted by the next (did the scorer or "
                "the server fail?)",
                level=Level.WARNING,
                advice=detector.state.not_counted <= max(1, FEW_NOT_COUNTED * made),
            )

    def _about_the_grader(self, detector: CalibratedDetector) -> Iterator[Condition]:
        """What the training grader has not scored, `disagreement` has not judged: that is never healthy.

        One that failed now and then has failed now and then, as long as it scored the newest evaluation.
        """
        facts = self._facts
        if facts.odd_pay:
            yield Condition.of(
                Code.UNINFORMATIVE_BASELINE,
                f"the training grader (`proxy_scorer`) pays {facts.odd_pay} for every answer of the "
                f"starting policy that the scorer calls right, so `{DISAGREEMENT}` cannot be trusted: is 1 "
                "its full pay, and does it read the answer where the scorer does?",
                advice=True,
            )
        if facts.has_grader and not detector.state.series.has_grader:
            yield Condition.of(
                Code.EVALUATION_FAILING,
                "the training grader (`proxy_scorer`) scored no pass of the starting policy, so "
                f"`{DISAGREEMENT}` cannot judge this run: see in the guard's log what the grader failed of, "
                "and start the run again",
            )
        elif facts.ungraded:
            few = facts.graded and facts.ungraded <= max(1, FEW_NOT_COUNTED * facts.made)
            yield Condition.of(
                Code.EVALUATION_FAILING,
                f"the training grader (`proxy_scorer`) failed on {facts.ungraded} of {facts.made} "
                f"evaluations{'' if facts.graded else ', the newest too'}, which `{DISAGREEMENT}` could not "
                "judge",
                level=Level.WARNING if few else Level.UNKNOWN,
                advice=few,
            )

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


def _cannot_judge_yet(readings: Sequence[DetectorReading]) -> Iterator[Condition]:
    """Which questions have too little to go by. What `disagreement` lacks is told with the grader."""
    for reading in readings:
        if reading.level is Level.UNKNOWN and reading.name != DISAGREEMENT:
            message = f"`{reading.name}` cannot judge yet: {reading.message}"
            yield Condition.of(Code.WARMING_UP, message)


def fewer_passes(passes: int, score: float, items: int, config: CalibratedPolicy) -> str:
    """What a baseline of so many passes costs, beside one of `baseline_passes`.

    Args:
        passes: that are made.
        score: of the starting policy, in [0, 1].
        items: held-out items.
        config: `Policy.calibrated`, with all passes that are wanted.
    """
    drop = drop_to_see(score)
    seen = [
        evaluations_to_detect(score, items, made, drop, config) for made in (passes, config.baseline_passes)
    ]
    later, sooner = ("no number of" if n is None else str(n) for n in seen)
    other = "as with all passes" if later == sooner else f"with all passes after {sooner}"
    return (
        f"{passes} of {config.baseline_passes} passes of the starting policy. False stops stay within alpha "
        f"({config.alpha:.0%}); a sudden fall of {100 * drop:.2g} points from a start of {score:.2f} shows "
        f"after {later} evaluations, {other}"
    )


def cannot_fall_from(score: float, config: CalibratedPolicy, *, has_grader: bool) -> str:
    """That a fall cannot stop a run that starts so low, and what can; "" if something does."""
    if not cannot_fall(score, config) or has_grader or config.on_gap == "stop":
        return ""
    return (
        f"the run starts at {points(score)}, below twice the accepted decline ({2 * config.max_decline:g}), "
        "so a fall from there cannot stop it: give the guard the training grader (`proxy_scorer`), or set "
        "`calibrated.on_gap: stop` in the policy"
    )


def uninformative_baseline(score: float, newest: float | None) -> Condition | None:
    """What a starting score near 0 or 1 means for a run whose newest evaluation has the mean `newest`.

    Near 0 nothing can fall: while the score stays there, no decline has been looked for. Near 1 there is
    nothing left to learn.
    """
    if UNINFORMATIVE <= score <= 1 - UNINFORMATIVE:
        return None
    low = score < UNINFORMATIVE
    stuck = low and (newest is None or newest < UNINFORMATIVE)
    where = (
        f"below {UNINFORMATIVE:.0%}: it cannot fall, so only a rise can show anything. Take items that the "
        "model solves now and then, or a scorer that gives part of the credit"
        if low
        else f"above {1 - UNINFORMATIVE:.0%}: there is nothing left to gain. Take harder items"
    )
    return Condition.of(
        Code.UNINFORMATIVE_BASELINE,
        f"the starting policy's held-out score is {score:.4f}, {where}",
        level=Level.UNKNOWN if stuck else Level.WARNING,
        advice=not stuck,
    )
