"""The four parts of the calibrated detector. Each folds evaluations and gives a reading; none latches.

A part sees an `Observed`: the compressed outcomes and the in-loop reward. Its statistic is in nats and it
fires at its threshold. The latch, the split of alpha and the JSON envelope are in `calibrated.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from guard_core.detectors import eprocess, fast
from guard_core.detectors.baseline import Array, Baseline, Outcomes, Strata
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, DetectorReading, Level


@dataclass(frozen=True, slots=True)
class Observed:
    """One evaluation. `in_loop_reward`: mean since the last evaluation, reward units; None if not known."""

    outcomes: Outcomes
    in_loop_reward: float | None


class Part(Protocol):
    """A part of the calibrated detector."""

    name: ClassVar[str]

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON; constants of the baseline are not repeated."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""


class EProcess:
    """A live e-process (eprocess.py) against one reference, no evaluation folded yet: `log_s` (L, J)."""

    def __init__(self, reference: eprocess.Reference, tolerance: float) -> None:
        self.reference = reference
        self.log_s = np.full((len(eprocess.BETS), eprocess.GRID), -np.inf)
        self._targets = reference.targets(tolerance)
        # Evaluations nearly always have the same few outcomes, so the table of the last one is kept.
        self._levels, self._factors = np.empty(0), np.empty(0)

    def update(self, outcomes: Outcomes, log_weight: float) -> None:
        """Fold one evaluation; `log_weight` is that of the process that starts before it."""
        if not np.array_equal(outcomes.levels, self._levels):
            self._levels = outcomes.levels
            self._factors = eprocess.log_factors(self._targets, outcomes.levels, eprocess.BETS)
        table = outcomes.table(self.reference.strata.groups, self.reference.strata.count)
        self.log_s = eprocess.step(self.log_s, log_weight, eprocess.growth(self._factors, table))

    @property
    def log_evidence(self) -> float:
        """log E_t, nats."""
        return float(eprocess.log_evidence(self.log_s, self.reference.log_n))


class Guaranteed:
    """The e-process against the baseline: P(ever fires) <= alpha while the mean stays above it - tolerance.

    The theorem and its assumptions are in `eprocess.py`. alpha is the part's own share.
    """

    name: ClassVar[str] = "guaranteed"

    def __init__(self, config: CalibratedPolicy, reference: eprocess.Reference, alpha: float) -> None:
        self._process = EProcess(reference, config.tolerance)
        self._tolerance, self._horizon = config.tolerance, config.horizon
        self._threshold = math.log(1 / alpha)
        self._count = 0

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        self._count += 1
        self._process.update(seen.outcomes, eprocess.log_restart_weight(self._count, self._horizon))
        evidence = self._process.log_evidence
        return _reading(
            self.name,
            Code.GUARANTEED_DECLINE,
            evidence,
            self._threshold,
            f"evidence {evidence:.2f} of {self._threshold:.2f} nats that the held-out mean is more than "
            f"{self._tolerance:g} below its baseline {self._process.reference.strata.score:.4f} "
            f"(this evaluation {seen.outcomes.mean:.4f})",
        )

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {"count": self._count, "log_s": _dump(self._process.log_s)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        self._count, self._process.log_s = state["count"], _load(state["log_s"])


class Fast:
    """The two charts of `fast.py`, confirmed by the next evaluation.

    `thresholds`: of the start and of the plateau chart, log odds. The reading shows the chart that is nearer
    to its own, moved so that both alarm at log(1/alpha), as the other parts do.
    """

    name: ClassVar[str] = "fast"

    def __init__(
        self, config: CalibratedPolicy, strata: Strata, thresholds: tuple[float, float], alpha: float
    ) -> None:
        self._design, self._thresholds = fast.Design.of(strata, config, max(thresholds)), thresholds
        self._threshold = math.log(1 / alpha)
        self._history = fast.History.empty()
        self._halfway: tuple[float | None, float | None] = (None, None)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether the next evaluation decides about an alarm."""
        return any(halfway is not None for halfway in self._halfway)

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        mean = seen.outcomes.mean
        fired = any(halfway is not None and mean < halfway for halfway in self._halfway)
        self._history = self._history.add(self._design, np.array([[mean]]))
        charts = fast.readings(self._design, self._history)
        excess = [float(c.nats[0, 0]) - h for c, h in zip(charts, self._thresholds, strict=True)]
        alarms = [float(c.halfway[0, 0]) if e >= 0 else None for c, e in zip(charts, excess, strict=True)]
        self._halfway = (alarms[0], alarms[1])
        statistic = max(excess) + self._threshold
        sentence = (
            f"evidence {statistic:.2f} of {self._threshold:.2f} nats that the held-out mean fell below the "
            f"{'baseline' if excess[0] >= excess[1] else 'level reached since'} "
            f"(this evaluation {mean:.4f})"
        )
        level = Level.FIRED if fired else Level.WARNING if self.awaits_confirmation else Level.HEALTHY
        if level is Level.WARNING:
            sentence += "; a fresh evaluation has to confirm it"
        return _reading(self.name, Code.FAST_DECLINE, statistic, self._threshold, sentence, level)

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {
            "sums": self._history.sums[0, 0].tolist(),
            "count": self._history.count,
            "halfway": list(self._halfway),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        sums = np.asarray(state["sums"], dtype=np.float64)[None, None, :]
        self._history = fast.History(sums, state["count"])
        start, plateau = state["halfway"]
        self._halfway = (start, plateau)


class Peak:
    """Decline from a level reached mid-run: e-processes against blocks of 2·lag consecutive evaluations.

    Each finished block becomes the reference of its own e-process, as the baseline is of `Guaranteed` (whose
    theorem covers references whose passes come from different policies: q is then their mean). The newest
    LIVE blocks are kept, and the evidence is the sum over blocks with weights that sum to 1, so P(ever fires)
    <= alpha while the mean never falls more than `peak_tolerance` below the mean of such a block. No maximum
    is taken over noisy scores: a running maximum is biased upward, a block fixed beforehand is not.
    """

    name: ClassVar[str] = "peak"

    #: Blocks that later evaluations are compared with.
    LIVE = 3

    def __init__(self, config: CalibratedPolicy, alpha: float) -> None:
        self._length, self._tolerance = 2 * config.lag, config.peak_tolerance
        self._samples, self._alpha = config.samples, alpha
        self._blocks = max(1, math.ceil(config.horizon / self._length))
        self._span = self.LIVE * self._length
        self._pending: list[Outcomes] = []
        self._gathered: eprocess.Gathered | None = None
        self._done = 0
        self._live: list[tuple[int, EProcess]] = []

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        for _, process in self._live:
            process.update(seen.outcomes, -math.log(self._span))
        threshold = math.log(1 / self._alpha)
        evidence: float | None = None
        sentence = f"the first block of {self._length} evaluations is not complete"
        if self._live:
            weighed = [self._log_weight(block) + process.log_evidence for block, process in self._live]
            evidence = float(np.logaddexp.reduce(np.sort(weighed)))
            best = self._live[int(np.argmax(weighed))][1].reference.strata.score
            sentence = (
                f"evidence {evidence:.2f} of {threshold:.2f} nats that the held-out mean is more than "
                f"{self._tolerance:g} below an earlier level (block mean {best:.4f}, "
                f"this evaluation {seen.outcomes.mean:.4f})"
            )
        self._gather(seen.outcomes)
        if len(self._pending) == self._length:
            self._close_block()
        return _reading(self.name, Code.PEAK_DECLINE, evidence, threshold, sentence)

    def _log_weight(self, block: int) -> float:
        return eprocess.log_restart_weight(block, self._blocks)

    def _gather(self, outcomes: Outcomes) -> None:
        gathered = self._gathered or eprocess.Gathered.empty(len(outcomes.codes))
        self._pending.append(outcomes)
        self._gathered = gathered.add(outcomes)

    def _close_block(self) -> None:
        assert self._gathered is not None
        baseline, gathered = Baseline(tuple(self._pending), self._samples), self._gathered
        self._pending, self._gathered, self._done = [], None, self._done + 1
        alpha = self._alpha * math.exp(self._log_weight(self._done))
        reference = eprocess.Reference.close(gathered, baseline, alpha)
        process = EProcess(reference, self._tolerance)
        self._live = [*self._live[-(self.LIVE - 1) :], (self._done, process)]

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {
            "pending": [outcomes.to_state() for outcomes in self._pending],
            "done": self._done,
            "live": [
                {"block": block, "reference": p.reference.to_state(), "log_s": _dump(p.log_s)}
                for block, p in self._live
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        self._pending, self._gathered = [], None
        for outcomes in state["pending"]:
            self._gather(Outcomes.from_state(outcomes))
        self._done = state["done"]
        self._live = []
        for live in state["live"]:
            process = EProcess(eprocess.Reference.from_state(live["reference"]), self._tolerance)
            process.log_s = _load(live["log_s"])
            self._live.append((live["block"], process))


@dataclass(frozen=True)
class Proxy:
    """The in-loop reward's rise on its own scale: every field is invariant to an offset of the reward.

    `origin`: the first reward; `first`, `last`: up to WINDOW rewards minus it; `squares`: sum of squared
    successive differences, `count` rewards so far.
    """

    origin: float = 0.0
    first: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    squares: float = 0.0
    count: int = 0

    WINDOW: ClassVar[int] = 5

    def fold(self, reward: float) -> Proxy:
        """Fold the mean reward since the last evaluation."""
        origin = self.origin if self.count else reward
        value = reward - origin
        step = value - self.last[-1] if self.last else 0.0
        return Proxy(
            origin,
            (*self.first, value)[: self.WINDOW],
            (*self.last, value)[-self.WINDOW :],
            self.squares + step * step,
            self.count + 1,
        )

    @property
    def gain(self) -> float:
        """Mean of the last window minus mean of the first, reward units."""
        return math.fsum(self.last) / len(self.last) - math.fsum(self.first) / len(self.first)

    @property
    def z(self) -> float | None:
        """`gain` in units of its noise; None until both windows are full and apart.

        The noise is von Neumann's (1941): half the mean squared successive difference is the variance,
        whatever slow trend there is.
        """
        if self.count < 2 * self.WINDOW or self.squares == 0.0:
            return None
        variance = self.squares / (2 * (self.count - 1))
        return self.gain / math.sqrt(2 * variance / self.WINDOW)


class Gap:
    """Proxy gain against held-out gain, each on its own scale.

    HeldOutGuard subtracts the two gains, which means something only if both are on one scale. Here the proxy
    has *risen* when its gain is RISEN times its own noise, whatever its units; from then on an e-process
    tests whether the held-out mean is at least `gap_gain` above its baseline (or half of what was left to
    gain). It fires when that is refuted: the proxy rose and the held-out provably did not. While the proxy
    has risen and neither a held-out rise nor its absence is shown, the level is warning.

    P(ever fires) <= alpha over runs whose held-out mean has gained `gap_gain` whenever their proxy has risen.
    A run in which nothing changes is protected by RISEN only.
    """

    name: ClassVar[str] = "gap"

    #: Standard errors by which the proxy must have gained.
    RISEN = 6.0

    def __init__(self, config: CalibratedPolicy, reference: eprocess.Reference, alpha: float) -> None:
        self._process = EProcess(reference, -config.gap_gain)
        self._gain, self._horizon = config.gap_gain, config.horizon
        self._threshold = math.log(1 / alpha)
        self._proxy = Proxy()
        self._count = 0
        self._recent: tuple[float, ...] = ()

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        self._count += 1
        self._recent = (*self._recent, seen.outcomes.mean)[-Proxy.WINDOW :]
        if seen.in_loop_reward is not None:
            self._proxy = self._proxy.fold(seen.in_loop_reward)
        z = self._proxy.z
        if z is None:
            sentence = f"{self._proxy.count} in-loop rewards are too few to know their noise"
            return _reading(self.name, Code.CALIBRATED_GAP, None, self._threshold, sentence)
        risen = z >= self.RISEN
        if risen:
            self._process.update(seen.outcomes, eprocess.log_restart_weight(self._count, self._horizon))
        evidence = self._process.log_evidence
        strata, runs = self._process.reference.strata, len(self._recent)
        gained = math.fsum(self._recent) / runs - strata.score
        error = math.sqrt(strata.variance / len(strata.groups) * (1 / runs + 1 / strata.precision))
        sentence = (
            f"in-loop reward gained {self._proxy.gain:+.4f} ({z:.1f} standard errors), held-out "
            f"{gained:+.4f} ± {2 * error:.4f}; evidence {evidence:.2f} of {self._threshold:.2f} nats that "
            f"the held-out gained less than {self._gain:g}"
        )
        level = None
        if evidence < self._threshold:
            level = Level.WARNING if risen and gained <= 2 * error else Level.HEALTHY
        elif not risen:
            level = Level.WARNING
        return _reading(self.name, Code.CALIBRATED_GAP, evidence, self._threshold, sentence, level)

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        p = self._proxy
        proxy = {"origin": p.origin, "first": p.first, "last": p.last, "squares": p.squares, "count": p.count}
        return {
            "count": self._count,
            "recent": list(self._recent),
            "proxy": {k: list(v) if isinstance(v, tuple) else v for k, v in proxy.items()},
            "log_s": _dump(self._process.log_s),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        proxy = dict(state["proxy"])
        self._proxy = replace(Proxy(**proxy), first=tuple(proxy["first"]), last=tuple(proxy["last"]))
        self._count, self._recent = state["count"], tuple(state["recent"])
        self._process.log_s = _load(state["log_s"])


def _reading(
    name: str,
    code: Code,
    statistic: float | None,
    threshold: float,
    message: str,
    level: Level | None = None,
) -> DetectorReading:
    """A reading; without `level` it fires at the threshold, and is unknown without a statistic."""
    if level is None:
        level = Level.UNKNOWN if statistic is None else Level.HEALTHY
        if statistic is not None and statistic >= threshold:
            level = Level.FIRED
    return DetectorReading(
        name=name, level=level, code=code, statistic=statistic, threshold=threshold, message=message
    )


def _dump(log_s: Array) -> list[list[float | None]]:
    """A matrix of logs as JSON, which has no -inf."""
    return [[None if value == -math.inf else value for value in row] for row in log_s.tolist()]


def _load(rows: list[list[float | None]]) -> Array:
    return np.array([[-math.inf if value is None else value for value in row] for row in rows])
