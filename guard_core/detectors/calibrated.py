"""The calibrated detector: the parts of `parts.py` under one latch and one false-stop rate.

alpha is split over the parts that run, in proportion to `alpha_shares`, so that by the union bound the
probability of a false stop is at most the sum of what each part holds. What each part holds is said in its
docstring: `guaranteed`, `peak` and `disagreement` by a theorem, `fast` by simulation of the baseline, `gap`
by a theorem where the held-out gains with the proxy.

*No evaluation stops a run alone.* A part at its threshold raises an alarm, and the next evaluation decides:
a fresh pass of the same checkpoint where there is a guard, the next checkpoint in a replay. The run stops if
the part is at its threshold with that one too. In doubt as well is an evaluation that lies OUTLIER standard
errors and more than the accepted decline below the level of those before it, or JUMP above that level and
above the newest of them. If the next one is nearer to those before than to it, it was no evaluation at all (a
server that failed or that says 1, items without a completion): every part goes back to where it was before,
and the next one takes its place. One that is too high by mistake would be the level that all others fall
from.

No guarantee is lost by that. Where nobody alarms, an outlier below is taken back only if it also lies below
the start, so that evidence of a decline can only become less; otherwise parts go back only after an alarm,
which in a run that does not decline comes with probability alpha at most. One above is taken back in a run
that stays where it is with a probability below that of JUMP standard errors, 4 in a million. And a run whose
broken evaluation was taken back is a run without it, for which the same holds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

import numpy as np

from guard_core.detectors import fast
from guard_core.detectors.baseline import Array, Baseline, Outcomes, Pay, Strata, check_items
from guard_core.detectors.disagreement import Disagreement, references
from guard_core.detectors.eprocess import Reference
from guard_core.detectors.gap import Gap
from guard_core.detectors.parts import Fast, Guaranteed, Observed, Part, Peak
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, DetectorReading, Finding, Level

#: 11: whether the baseline tells where the grader was fooled, and the first rewards. A guard folds its events
#: again on another version.
STATE_VERSION = 11

#: The parts that run wherever there is a baseline.
PARTS = ("guaranteed", "fast", "peak", "gap")

#: The part that runs beside them where the baseline has outcomes of the training grader.
DISAGREEMENT = "disagreement"

#: Standard errors below the level before it from which on an evaluation is in doubt.
OUTLIER = 3.0

#: The same above it, and above the newest. A policy that learns does rise: a fresh pass is asked for seldom.
JUMP = 4.5

#: A run can be judged once a drop of this size, or of half of a smaller start, would have been seen.
DROP_TO_SEE = 0.10

#: Simulated runs behind `evaluations_to_detect`.
QUICK_RUNS = 400


@dataclass(frozen=True, slots=True)
class DetectorStatus:
    """The judgement after one evaluation.

    `rule`: the code of the part that fired first, None while none has; `reason`: its sentence, else that of
    the most severe reading; `needs_confirmation`: a fresh evaluation of the same checkpoint would decide an
    alarm, or whether this evaluation counts, now; `in_doubt`: a sentence if that is asked without an alarm,
    of a low one; `not_counted`: evaluations so far that were none.
    """

    fire: bool
    level: Level
    step: int
    rule: str | None
    reason: str
    readings: tuple[DetectorReading, ...]
    needs_confirmation: bool = False
    in_doubt: str = ""
    not_counted: int = 0


@dataclass(frozen=True, slots=True)
class Folded:
    """The parts after `count` evaluations, and the means of the newest: they give level and movement."""

    parts: tuple[Part, ...]
    means: tuple[float, ...] = ()
    count: int = 0

    def add(self, seen: Observed, design: fast.Design) -> tuple[Folded, tuple[DetectorReading, ...]]:
        """After one more evaluation, and what each part says of it; this value stays what it is."""
        means = (*self.means, seen.outcomes.mean)[-design.kept :]
        seen = replace(seen, dispersion=float(fast.dispersion(design, np.array([[means]]))[0, 0]))
        parts = tuple(copy.copy(part) for part in self.parts)
        readings = tuple(part.update(seen) for part in parts)
        return Folded(parts, means, self.count + 1), readings

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return {
            "parts": {part.name: part.to_state() for part in self.parts},
            "means": list(self.means),
            "count": self.count,
        }

    def restored(self, state: Mapping[str, Any]) -> Folded:
        """The same parts with a state made by `to_state`."""
        parts = tuple(copy.copy(part) for part in self.parts)
        for part in parts:
            part.restore(state["parts"][part.name])
        return Folded(parts, tuple(state["means"]), state["count"])


@dataclass(frozen=True, slots=True)
class Doubt:
    """An evaluation that the next one decides about.

    `before`: what was folded before it; `alarmed`: parts at their threshold with it; `halfway`: a mean from
    here on says that it was none, None if it is no outlier; `above`: it lies above those before it;
    `in_loop_reward`, `in_loop_error`: what came with it.
    """

    before: Folded
    alarmed: tuple[str, ...]
    halfway: float | None
    above: bool
    in_loop_reward: float | None
    in_loop_error: float | None

    def contradicted_by(self, mean: float) -> bool:
        """Whether an evaluation with this mean says that the one in doubt was none."""
        if self.halfway is None:
            return False
        return mean <= self.halfway if self.above else mean >= self.halfway

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return {
            "before": self.before.to_state(),
            "alarmed": list(self.alarmed),
            "halfway": self.halfway,
            "above": self.above,
            "in_loop_reward": self.in_loop_reward,
            "in_loop_error": self.in_loop_error,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], fresh: Folded) -> Self:
        """Rebuild from `to_state`; `fresh` has the parts with nothing folded."""
        alarmed = tuple(state["alarmed"])
        rewards = state["in_loop_reward"], state["in_loop_error"]
        return cls(fresh.restored(state["before"]), alarmed, state["halfway"], state["above"], *rewards)


class CalibratedDetector:
    """Sequential tests of the held-out items against the baseline. One `update` is one evaluation; it
    latches.

    Args:
        config: `Policy.calibrated`.
        baseline: R passes of the starting policy.
        parts: which parts run, each with alpha in proportion to its share among them; None: all that can.

    Raises:
        ValueError: an unknown part, or none, or `disagreement` without outcomes of the training grader.
    """

    def __init__(
        self, config: CalibratedPolicy, baseline: Baseline, parts: Sequence[str] | None = None
    ) -> None:
        if parts is None:
            parts = (*PARTS, DISAGREEMENT) if baseline.graded else PARTS
        alphas = split_alpha(config, parts)
        reference = Reference.of(baseline, min(alphas.values()))
        thresholds = fast.thresholds(reference.strata, config, alphas["fast"]) if "fast" in alphas else None
        agreements = references(baseline, alphas[DISAGREEMENT]) if DISAGREEMENT in alphas else ()
        told = baseline.tells_fooled
        self._assemble(config, tuple(parts), reference, thresholds, baseline.greedy, agreements, told=told)

    def _assemble(
        self,
        config: CalibratedPolicy,
        parts: tuple[str, ...],
        reference: Reference,
        thresholds: tuple[float, float] | None,
        greedy: bool,
        agreements: tuple[Reference, ...],
        *,
        told: bool,
    ) -> None:
        self.config, self.part_names = config, parts
        self._reference, self._fast_thresholds, self._greedy = reference, thresholds, greedy
        self._agreements, self._told = agreements, told
        self._design = fast.Design.of(reference.strata, config)
        alphas = split_alpha(config, parts)
        self._fresh = Folded(
            tuple(
                _build(name, config, reference, alphas[name], thresholds, agreements, told=told)
                for name in parts
            )
        )
        self._folded = self._fresh
        self._doubt: Doubt | None = None
        self._seen_from: dict[float, bool] = {}  # level -> whether a drop from it would be seen
        self._not_counted = 0
        self._rule: str | None = None
        self._reason = ""
        self._last: DetectorStatus | None = None

    @property
    def last_status(self) -> DetectorStatus | None:
        """The status of the last `update`, or None before the first."""
        return self._last

    @property
    def items(self) -> int:
        """How many held-out items the baseline has."""
        return len(self._reference.strata.groups)

    @property
    def score(self) -> float:
        """Mean score of the baseline."""
        return self._reference.strata.score

    @property
    def newest(self) -> float | None:
        """Mean of the newest evaluation that counts, or None before the first."""
        return self._folded.means[-1] if self._folded.means else None

    @property
    def evaluations(self) -> int:
        """How many evaluations count."""
        return self._folded.count

    @property
    def not_counted(self) -> int:
        """How many evaluations turned out to be none."""
        return self._not_counted

    @property
    def jumped(self) -> bool:
        """Whether the newest evaluation is in doubt because it lies above those before."""
        return self._doubt is not None and self._doubt.above

    @property
    def alarmed(self) -> bool:
        """Whether an alarm waits to be decided."""
        return self._doubt is not None and bool(self._doubt.alarmed)

    @property
    def greedy(self) -> bool:
        """Whether the passes of the baseline were identical."""
        return self._greedy

    @property
    def drop_to_see(self) -> float:
        """The drop that a run has to be watched for before it can be judged: DROP_TO_SEE, or half a start."""
        return drop_to_see(self.score)

    @cached_property
    def needed(self) -> int | None:
        """Evaluations that show `drop_to_see` from the start on; None if the horizon is too short."""
        if self._fast_thresholds is None:
            return 0
        return fast.seen_after(self._design, self._fast_thresholds, self.drop_to_see)

    def lacks(self) -> str:
        """What is missing before the run can be judged, and what would help; "" if nothing is.

        A run is also judged once it stands on a level that can fall by more than what is accepted.
        """
        count, standing = self._folded.count, evaluations_to_stand(self.config)
        if (self.needed is not None and count >= self.needed) or self._stands_on_a_level():
            return ""
        passes = self._reference.strata.precision / self.config.samples
        have = f"evaluations: {count}, of {self.items} items, against a baseline worth {passes:.3g} passes"
        return "; ".join(filter(None, (have, self._lacks_from_the_start(), self._lacks_on_a_level(standing))))

    def _lacks_from_the_start(self) -> str:
        points = 100 * self.drop_to_see
        if not has_room(self.score, self.config):
            return (
                f"a drop of {points:.3g} points from a start of {self.score:.4f} is too little to be seen "
                f"beside the {100 * self.config.max_decline:.3g} that are accepted"
            )
        more = "more items, or more passes of the starting policy" if self.needed is None else self.needed
        return f"to see a drop of {points:.3g} points takes {more}"

    def _lacks_on_a_level(self, standing: int) -> str:
        """What a level that the run has risen to lacks; "" where the start shows a drop as soon."""
        newest = self.score if self.newest is None else self.newest
        if self.needed is not None and self.needed <= standing:
            return ""
        if not self._sees_from(newest):
            if has_room(self.score, self.config):
                return ""
            more = ", or more items" if has_room(newest, self.config) else ""
            return f"to see one from the newest score, {newest:.4f}, takes a higher score{more}"
        if self._folded.count < standing:
            return f"one from a level like the newest score, {newest:.4f}, is judged after {standing}"
        return (
            f"one from a level like the newest score, {newest:.4f}, is judged once the mean of the newest "
            f"{standing - 1}, {self._level():.4f}, has come near it"
        )

    def _level(self) -> float:
        """Mean of the newest evaluations that a level takes."""
        means = self._folded.means[-2 * self.config.lag :]
        return math.fsum(means) / len(means)

    def _stands_on_a_level(self) -> bool:
        """Whether a drop from the mean of the newest evaluations would be seen, with items this noisy."""
        return self._folded.count >= evaluations_to_stand(self.config) and self._sees_from(self._level())

    def _sees_from(self, level: float) -> bool:
        """Whether a drop from this level would be seen by a run that stands on it."""
        level = round(level, 2)
        if level <= 2 * self.config.max_decline or self._fast_thresholds is None:
            return False
        if level not in self._seen_from:
            self._seen_from[level] = _seen_standing(self._design, self._fast_thresholds, level, self.config)
        return self._seen_from[level]

    def update(
        self,
        step: int,
        items: Sequence[float] | Array,
        in_loop_reward: float | None = None,
        kl: float | None = None,
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
            kl: KL to the reference, nats/token. It gates nothing: learning costs KL too (Gao et al. 2022).
            proxy_items: what the training grader gives the same completions, as `items`; None: not known.
            in_loop_error: standard error of `in_loop_reward`, reward units; None: not known.
            fooled_items: as `Pay.fooled`; None: not known.

        Raises:
            ValueError: items of another number or outside [0, 1], or a value that is not finite; nothing is
                changed then.
        """
        outcomes = Outcomes.of(check_items(items, self.items))
        paid = Pay.of(self.items, proxy_items, fooled_items)
        for name, value in (("in_loop_reward", in_loop_reward), ("in_loop_error", in_loop_error), ("kl", kl)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}")
        seen, doubt = Observed(outcomes, in_loop_reward, in_loop_error, paid), self._doubt
        if doubt is not None and doubt.contradicted_by(outcomes.mean):
            if in_loop_reward is None:
                seen = replace(seen, in_loop_reward=doubt.in_loop_reward, in_loop_error=doubt.in_loop_error)
            self._folded, doubt = doubt.before, None
            self._not_counted += 1
        before, alarmed = self._folded, () if doubt is None else doubt.alarmed
        upheld = doubt is not None and doubt.halfway is not None
        self._folded, readings = before.add(seen, self._design)
        readings = tuple(_by_policy(reading, self.config) for reading in readings)
        self._doubt = self._in_doubt(before, seen, readings, upheld)
        readings = tuple(r if r.name in alarmed else _unconfirmed(r) for r in readings)
        fired = next((r for r in readings if r.level is Level.FIRED), None)
        if fired is not None and self._rule is None:
            self._rule, self._reason = fired.code.value, fired.message
        self._last = self._judge(step, readings)
        return self._last

    def _in_doubt(
        self, before: Folded, seen: Observed, readings: tuple[DetectorReading, ...], upheld: bool
    ) -> Doubt | None:
        """What the next evaluation has to decide about this one; it is no outlier if it upheld the last."""
        strata, mean = self._reference.strata, seen.outcomes.mean
        alarmed = tuple(r.name for r in readings if r.level is Level.FIRED)
        passes = max(strata.precision / self.config.samples, 1.0)
        level, error = level_before(
            before.means[-2 * self.config.lag :], 2 * self.config.lag, strata.score, passes
        )
        noise = error * math.sqrt(level * (1 - level) / (self.items * self.config.samples))
        highest = max((level, *before.means[-1:]))
        above = mean > highest + self.config.max_decline + JUMP * noise
        below = mean < level - self.config.max_decline - OUTLIER * noise
        outlier = not upheld and (above or (below and (mean < strata.score or bool(alarmed))))
        if not outlier and not alarmed:
            return None
        halfway = ((highest if above else level) + mean) / 2 if outlier else None
        return Doubt(before, alarmed, halfway, above, seen.in_loop_reward, seen.in_loop_error)

    def _judge(self, step: int, readings: tuple[DetectorReading, ...]) -> DetectorStatus:
        if self._rule is not None:
            return DetectorStatus(
                True, Level.FIRED, step, self._rule, self._reason, readings, False, "", self._not_counted
            )
        # A part that cannot judge says so in its reading; the whole is unknown only if none can.
        known = [r for r in readings if r.level is not Level.UNKNOWN] or list(readings)
        worst = max(known, key=lambda r: r.level.severity)
        level, reason, in_doubt = worst.level, worst.message, ""
        if self._doubt is not None and not self._doubt.alarmed and not self._doubt.above:
            in_doubt = (
                f"the newest evaluation ({self._folded.means[-1]:.4f}) lies far below those before it: a "
                "fresh one decides whether it counts"
            )
            level, reason = Level.WARNING, in_doubt
        fresh = self._doubt is not None and not self._greedy
        return DetectorStatus(False, level, step, None, reason, readings, fresh, in_doubt, self._not_counted)

    def begin_again(self) -> None:
        """Forget every evaluation: those to come are of a policy that starts at the baseline again.

        A latch stays closed. What comes after has a false-stop rate of its own: alpha for each start.
        """
        parts = tuple(copy.copy(part) for part in self._fresh.parts)
        for part, former in zip(parts, self._folded.parts, strict=True):
            if isinstance(part, Gap) and isinstance(former, Gap):
                part.begin_after(former)
        self._folded, self._doubt, self._last = Folded(parts), None, None
        self._not_counted = 0

    def to_state(self) -> dict[str, Any]:
        """The whole detector as plain JSON; `from_state` gives back an equal one, floats exactly."""
        return {
            "version": STATE_VERSION,
            "config": self.config.model_dump(mode="json"),
            "reference": self._reference.to_state(),
            "fast_thresholds": _dump_levels(self._fast_thresholds),
            "greedy": self._greedy,
            "agreements": [reference.to_state() for reference in self._agreements],
            "told": self._told,
            "folded": self._folded.to_state(),
            "doubt": None if self._doubt is None else self._doubt.to_state(),
            "not_counted": self._not_counted,
            "rule": self._rule,
            "reason": self._reason,
            "last": None if self._last is None else _dump_status(self._last),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild a detector from `to_state`.

        Raises:
            ValueError: the state is of another version.
            KeyError: a key is missing.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"CalibratedDetector state has version {state.get('version')!r}; "
                f"this program reads {STATE_VERSION}"
            )
        detector = cls.__new__(cls)
        detector._assemble(
            CalibratedPolicy.model_validate(state["config"]),
            tuple(state["folded"]["parts"]),
            Reference.from_state(state["reference"]),
            _load_levels(state["fast_thresholds"]),
            state["greedy"],
            tuple(Reference.from_state(reference) for reference in state["agreements"]),
            told=state["told"],
        )
        doubt = state["doubt"]
        detector._folded = detector._fresh.restored(state["folded"])
        detector._doubt = None if doubt is None else Doubt.from_state(doubt, detector._fresh)
        detector._not_counted = state["not_counted"]
        detector._rule, detector._reason = state["rule"], state["reason"]
        detector._last = None if state["last"] is None else _load_status(state["last"])
        return detector


@lru_cache(maxsize=256)
def evaluations_to_detect(
    score: float, items: int, passes: int, drop: float, config: CalibratedPolicy
) -> int | None:
    """Evaluations after a sudden drop, from the start, until the detector would stop the run on average.

    For items that are alike, which is the noisiest case; a third of a second for new arguments.

    Args:
        score: of the starting policy, in [0, 1].
        items: held-out items, n.
        passes: of the starting policy, R; under greedy decoding 1.
        drop: of the held-out mean, fraction of 1.
        config: `Policy.calibrated`.

    Returns:
        None if it takes more than `config.horizon`, or if the drop is accepted.
    """
    return fast.seen_after(*_charts(score, items, passes, config), drop)


@lru_cache(maxsize=256)
def evaluations_once_risen(score: float, items: int, passes: int, config: CalibratedPolicy) -> int | None:
    """Evaluations until a run can be judged that has risen from `score` to one half, the noisiest level.

    Arguments as of `evaluations_to_detect`; None: a drop from there would not be seen.
    """
    seen = _seen_standing(*_charts(score, items, passes, config), 0.5, config)
    return evaluations_to_stand(config) if seen else None


def evaluations_to_stand(config: CalibratedPolicy) -> int:
    """Evaluations until there is one after a level that `fast` compares with."""
    return 2 * config.lag + 1


def drop_to_see(score: float) -> float:
    """The drop that a run has to be watched for from this score: DROP_TO_SEE, or half of a smaller score."""
    return min(DROP_TO_SEE, score / 2)


def has_room(score: float, config: CalibratedPolicy) -> bool:
    """Whether items enough would show `drop_to_see` from a start at this score.

    The odds of a drop d grow only where more than d / 2 is lost beyond what is accepted (`fast.start_odds`).
    """
    return drop_to_see(score) - config.max_decline > min(config.design_drop, score / 4) / 2


def _charts(
    score: float, items: int, passes: int, config: CalibratedPolicy
) -> tuple[fast.Design, tuple[float, float]]:
    """Design and thresholds of `fast` for items that are alike."""
    strata = Strata.from_scores(np.zeros(items, dtype=np.intp), np.array([score]), passes * config.samples)
    quick = config.model_copy(update={"bootstrap_runs": min(config.bootstrap_runs, QUICK_RUNS)})
    return fast.Design.of(strata, config), fast.thresholds(strata, quick, split_alpha(config, PARTS)["fast"])


def _seen_standing(
    design: fast.Design, thresholds: tuple[float, float], level: float, config: CalibratedPolicy
) -> bool:
    """Whether a run that stands on this level would be seen to fall from it."""
    standing = design.standing_on(level, 2 * config.lag)
    return fast.seen_after(standing, thresholds, drop_to_see(level)) is not None


def level_before(means: Sequence[float], window: int, score: float, passes: float) -> tuple[float, float]:
    """The level that an evaluation is expected at, and the error of the difference in standard errors of one.

    Args:
        means: of the newest evaluations before it, `window` at most.
        window: evaluations that the level is known from; the baseline stands for those still missing.
        score: of the baseline, which is worth `passes` evaluations.
    """
    weight = min(passes, window - len(means))
    count = len(means) + weight
    return (math.fsum(means) + weight * score) / count, math.sqrt(1 + 1 / count)


def action(code: Code, config: CalibratedPolicy) -> Literal["warn", "stop"]:
    """What a part that fires with this code does, by the policy; where it only warns, it gives advice."""
    return config.on_decline if code.finding is Finding.DECLINE else config.on_disagreement


def _by_policy(reading: DetectorReading, config: CalibratedPolicy) -> DetectorReading:
    """A part at its threshold whose finding only warns by the policy."""
    if reading.level is not Level.FIRED or action(reading.code, config) == "stop":
        return reading
    setting = "on_decline" if reading.code.finding is Finding.DECLINE else "on_disagreement"
    message = f"{reading.message}; the policy's {setting} is warn"
    return reading.model_copy(update={"level": Level.WARNING, "message": message})


def _unconfirmed(reading: DetectorReading) -> DetectorReading:
    """What a part says that did not alarm at the evaluation before: at its threshold it only alarms."""
    if reading.level is not Level.FIRED:
        return reading
    message = f"{reading.message}; a fresh evaluation has to confirm it"
    return reading.model_copy(update={"level": Level.WARNING, "message": message})


def split_alpha(config: CalibratedPolicy, parts: Sequence[str]) -> dict[str, float]:
    """alpha of each part: one part alone gets all of it, several share it as `alpha_shares` says.

    Raises:
        ValueError: an unknown part, or none.
    """
    known = (*PARTS, DISAGREEMENT)
    unknown = sorted(set(parts) - set(known))
    if unknown or not parts:
        raise ValueError(f"parts must be some of {', '.join(known)}; got {list(parts)}")
    shares = {name: float(getattr(config.alpha_shares, name)) for name in parts}
    total = sum(shares.values())
    return {name: config.alpha * share / total for name, share in shares.items()}


def _build(
    name: str,
    config: CalibratedPolicy,
    reference: Reference,
    alpha: float,
    thresholds: tuple[float, float] | None,
    agreements: tuple[Reference, ...],
    *,
    told: bool,
) -> Part:
    if name == "guaranteed":
        return Guaranteed(config, reference, alpha)
    if name == "peak":
        return Peak(config, alpha)
    if name == "gap":
        return Gap(config, reference, alpha)
    if name == DISAGREEMENT:
        return Disagreement(config, agreements, alpha, told=told)
    assert thresholds is not None
    return Fast(config, reference.strata, thresholds, alpha)


def _dump_levels(levels: tuple[float, float] | None) -> list[float | None] | None:
    """Thresholds of `fast` as JSON, which has no infinity."""
    return None if levels is None else [level if math.isfinite(level) else None for level in levels]


def _load_levels(state: Sequence[float | None] | None) -> tuple[float, float] | None:
    if state is None:
        return None
    start, plateau = (math.inf if level is None else level for level in state)
    return start, plateau


def _dump_status(status: DetectorStatus) -> dict[str, Any]:
    return asdict(replace(status, readings=())) | {
        "level": status.level.value,
        "readings": [reading.model_dump(mode="json") for reading in status.readings],
    }


def _load_status(state: Mapping[str, Any]) -> DetectorStatus:
    readings = tuple(DetectorReading.model_validate(r) for r in state["readings"])
    return DetectorStatus(**{**state, "level": Level(state["level"]), "readings": readings})
