"""The calibrated detector: the questions of `questions.py` over a run, under one latch.

Its state is the list of evaluations. *No evaluation stops a run alone*: a question at its threshold raises an
alarm, and the next evaluation decides: a fresh pass of the same checkpoint where there is a guard, the next
checkpoint in a replay. The run stops if the question is at its threshold with that one too.

In doubt as well is an evaluation that lies OUTLIER standard errors and more than the accepted decline below
the level of those before it, or JUMP above that level and above the newest of them. If the next one is nearer
to those before than to it, it does not count (a server that failed or that says 1). One that is too high by
mistake would be the level that all others fall from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

from rlguard.core.codes import Code, Level
from rlguard.core.detectors.baseline import Baseline, Outcomes
from rlguard.core.detectors.planning import lacks
from rlguard.core.detectors.questions import DECLINE, Evaluated, Series, judge
from rlguard.core.detectors.rewards import WINDOW
from rlguard.core.detectors.statistic import WINDOWS, Array, Start
from rlguard.core.means import LEAST_VARIANCE
from rlguard.core.policy import CalibratedPolicy
from rlguard.core.wire import DetectorReading

#: Standard errors below the level before it from which on an evaluation is in doubt.
OUTLIER = 3.0

#: The same above it, and above the newest. A policy that learns does rise: a fresh pass is asked for seldom.
JUMP = 4.5

#: The setting that says what each question does.
ACTIONS = {
    Code.FELL_BELOW_START: "on_decline",
    Code.FELL_BELOW_REACHED: "on_decline",
    Code.GRADERS_DISAGREE: "on_disagreement",
    Code.REWARD_WITHOUT_GAIN: "on_gap",
}


@dataclass(frozen=True, slots=True)
class DetectorStatus:
    """The judgement after one evaluation.

    `rule`: the code that fired first, None while none has; `reason`: its sentence; `needs_confirmation`: a
    fresh evaluation of the same checkpoint would decide an alarm, or whether this evaluation counts;
    `in_doubt`: a sentence if that is asked of a low one without an alarm.
    """

    readings: tuple[DetectorReading, ...]
    rule: str | None = None
    reason: str = ""
    needs_confirmation: bool = False
    in_doubt: str = ""

    @property
    def fire(self) -> bool:
        """Whether a question has fired, now or earlier."""
        return self.rule is not None


class Doubt(NamedTuple):
    """The newest evaluation, about which the next one decides.

    `alarmed`: questions at their threshold with it; `halfway`: a mean from here on says that it does not
    count, None if it is no outlier; `above`: it lies above those before it.
    """

    alarmed: tuple[str, ...]
    halfway: float | None
    above: bool

    def is_contradicted_by(self, mean: float) -> bool:
        """Whether an evaluation with this mean says that the one in doubt does not count."""
        if self.halfway is None:
            return False
        return mean <= self.halfway if self.above else mean >= self.halfway


@dataclass(frozen=True, slots=True)
class DetectorState:
    """All that a detector knows of a run. No item's outcome is in it, so the next guard may have it.

    Fields:
        items, samples, greedy: of the baseline, as its properties.
        series: what is judged.
        doubt: about the newest evaluation.
        not_counted: evaluations that turned out not to count.
        rule, reason: the code that fired first, and its sentence.
    """

    items: int
    samples: int
    greedy: bool
    series: Series
    doubt: Doubt | None = None
    not_counted: int = 0
    rule: str | None = None
    reason: str = ""

    @classmethod
    def of(cls, baseline: Baseline, alpha: float) -> Self:
        """Of a run of which nothing but the start is known."""
        series = Series(alpha, baseline.starts)
        return cls(baseline.items, baseline.samples, baseline.greedy, series)


class CalibratedDetector:
    """Sequential tests of the held-out items against the baseline. One `update` is one evaluation; it
    latches. Its state is one immutable value, so a shallow copy of a detector is an independent one.
    """

    def __init__(self, config: CalibratedPolicy, start: Baseline | DetectorState) -> None:
        self.config = config
        self.state = start if isinstance(start, DetectorState) else DetectorState.of(start, config.alpha)
        #: The status after the newest evaluation, or None before the first.
        self.last_status = self._status(self._readings()) if self.state.series.evaluations else None

    @property
    def start(self) -> Start:
        """Where the held-out score starts."""
        return self.state.series.starts["score"]

    @property
    def newest(self) -> float | None:
        """Mean of the newest evaluation that counts, or None before the first."""
        evaluations = self.state.series.evaluations
        return evaluations[-1].score if evaluations else None

    @property
    def evaluations(self) -> int:
        """How many evaluations count."""
        return len(self.state.series.evaluations)

    @property
    def jumped(self) -> bool:
        """Whether the newest evaluation is in doubt because it lies above those before."""
        return self.state.doubt is not None and self.state.doubt.above

    @property
    def alarmed(self) -> bool:
        """Whether an alarm waits to be decided."""
        return self.state.doubt is not None and bool(self.state.doubt.alarmed)

    def lacks(self) -> str:
        """What is missing before the run can be judged, and what would help; "" if nothing is."""
        series = self.state.series
        scores = tuple(one.score for one in series.evaluations)
        limit = series.limit(DECLINE, "score", self.config.max_decline)
        return lacks(scores, self.start, limit, self.config)

    def update(
        self,
        step: int,
        items: Sequence[float] | Array,
        in_loop_reward: float | None = None,
        proxy_items: Sequence[float] | Array | None = None,
        in_loop_error: float | None = None,
        fooled_items: Sequence[float] | Array | None = None,
    ) -> DetectorStatus:
        """Fold one evaluation and judge it.

        Args:
            step: optimizer step; it is repeated in the status and gates nothing.
            items: outcomes in [0, 1], shape (n,), in the order of the baseline.
            in_loop_reward: mean in-loop reward since the last evaluation, reward units; None: not known, or
                this is a second evaluation of the same checkpoint.
            proxy_items: what the training grader gives the same completions, as `items`; None: not known.
            in_loop_error: standard error of `in_loop_reward`, reward units; None: not known.
            fooled_items: as `Outcomes.fooled`; None: not known.

        Raises:
            ValueError: items of another number or outside [0, 1], or a value that is not finite; nothing is
                changed then.
        """
        state = self.state
        outcomes = Outcomes.of(items, proxy_items, fooled_items, state.items)
        for name, value in (("in_loop_reward", in_loop_reward), ("in_loop_error", in_loop_error)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}")
        quantities = outcomes.quantities()
        seen = Evaluated.of(step, quantities, in_loop_reward, in_loop_error)
        before, doubt, not_counted = state.series.evaluations, state.doubt, state.not_counted
        if doubt is not None and doubt.is_contradicted_by(seen.score):
            if seen.reward is None:  # another evaluation of the same checkpoint
                seen = seen._replace(reward=before[-1].reward, reward_error=before[-1].reward_error)
            before, doubt, not_counted = before[:-1], None, not_counted + 1
        series = replace(state.series, evaluations=(*before, seen))
        self.state = replace(state, series=series, not_counted=not_counted)
        readings = self._readings()
        upheld = doubt is not None and doubt.halfway is not None
        in_doubt = self._in_doubt(before, seen, _alarmed(readings), upheld=upheld)
        self.state = replace(self.state, doubt=in_doubt)
        confirmed = () if doubt is None else doubt.alarmed
        fired = next((r for r in readings if r.level is Level.FIRED and r.name in confirmed), None)
        if fired is not None and state.rule is None:
            self.state = replace(self.state, rule=fired.code.value, reason=fired.message)
        self.last_status = self._status(readings)
        return self.last_status

    def _readings(self) -> tuple[DetectorReading, ...]:
        """What each question comes to, where the policy lets it stop a run."""
        found = judge(self.state.series, self.config.max_decline)
        return tuple(_by_policy(reading, self.config) for reading in found)

    def _in_doubt(
        self, before: Sequence[Evaluated], seen: Evaluated, alarmed: tuple[str, ...], *, upheld: bool
    ) -> Doubt | None:
        """What the next evaluation has to decide about this one; it is no outlier if it upheld the last."""
        level, error = level_before([one.score for one in before], self.start)
        outcomes = self.state.items * self.state.samples
        noise = error * math.sqrt(max(level * (1 - level), LEAST_VARIANCE) / outcomes)
        highest = max((level, *(one.score for one in before[-1:])))
        above = seen.score > highest + self.config.max_decline + JUMP * noise
        below = seen.score < level - self.config.max_decline - OUTLIER * noise
        outlier = not upheld and (above or (below and (seen.score < self.start.level or bool(alarmed))))
        if not outlier and not alarmed:
            return None
        halfway = ((highest if above else level) + seen.score) / 2 if outlier else None
        return Doubt(alarmed, halfway, above)

    def _status(self, readings: tuple[DetectorReading, ...]) -> DetectorStatus:
        state = self.state
        if state.rule is not None:
            return DetectorStatus(readings, state.rule, state.reason)
        in_doubt = ""
        if state.doubt is not None and not state.doubt.alarmed and not state.doubt.above:
            in_doubt = (
                f"the newest evaluation ({self.newest:.4f}) lies far below those before it: a fresh one "
                "decides whether it counts"
            )
        fresh = state.doubt is not None and not state.greedy
        readings = tuple(map(_unconfirmed, readings))
        return DetectorStatus(readings, needs_confirmation=fresh, in_doubt=in_doubt)

    def begin_again(self) -> None:
        """Forget every evaluation: those to come are of a policy that starts at the baseline again.

        A latch stays closed. The first rewards stay: they are the starting policy's.
        """
        rewards = self.state.series.rewards
        earlier = tuple(zip(rewards.values, rewards.errors, strict=True))[:WINDOW]
        series = replace(self.state.series, evaluations=(), earlier=earlier)
        self.state = replace(self.state, series=series, doubt=None, not_counted=0)
        self.last_status = None


def level_before(scores: Sequence[float], start: Start) -> tuple[float, float]:
    """The level that an evaluation is expected at, and the error of the difference in standard errors of one.

    The mean of the newest evaluations; the baseline stands for those still missing.
    """
    newest = scores[-WINDOWS[-1] :]
    weight = min(start.passes, WINDOWS[-1] - len(newest))
    count = len(newest) + weight
    return (math.fsum(newest) + weight * start.level) / count, math.sqrt(1 + 1 / count)


def action(code: Code, config: CalibratedPolicy) -> Literal["warn", "stop"]:
    """What a question that is answered with this code does, by the policy."""
    found: Literal["warn", "stop"] = getattr(config, ACTIONS[code])
    return found


def _by_policy(reading: DetectorReading, config: CalibratedPolicy) -> DetectorReading:
    """A question at its threshold that only warns by the policy."""
    if reading.level is not Level.FIRED or action(reading.code, config) == "stop":
        return reading
    message = f"{reading.message.removesuffix('.')}; the policy's {ACTIONS[reading.code]} is warn"
    return reading.model_copy(update={"level": Level.WARNING, "message": message})


def _unconfirmed(reading: DetectorReading) -> DetectorReading:
    """A question at its threshold that no further evaluation has upheld: it only alarms."""
    if reading.level is not Level.FIRED:
        return reading
    message = f"{reading.message.removesuffix('.')}; a fresh evaluation has to confirm it"
    return reading.model_copy(update={"level": Level.WARNING, "message": message})


def _alarmed(readings: Sequence[DetectorReading]) -> tuple[str, ...]:
    return tuple(r.name for r in readings if r.level is Level.FIRED)
