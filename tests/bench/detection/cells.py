"""One cell of the simulation: n items of one difficulty, many baselines, several runs after each.

Every run's `Fast` has the thresholds that its own baseline gives it, as a live guard would. The rate of false
stops depends most on how lucky the baseline was, so baselines are drawn in strata of their score.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from detection.truth import ALPHA, EVALUATIONS, Scenario, item_means
from river.drift import PageHinkley

from guard_core.detectors import Baseline
from guard_core.detectors.eprocess import Reference
from guard_core.detectors.fast import thresholds
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import CalibratedPolicy
from tests.detection.batch import FastBatch, Grouping, GuaranteedBatch

PASSES = 16
STRATUM = 10  # baselines drawn for each that is kept
WINDOW = 5  # evaluations of the paired window
EMA = 0.7  # of the calibrated HeldOutGuard
NEVER = EVALUATIONS  # time of a fire that did not happen

#: Rivals whose threshold is set by simulation of the truth, which no user could do: they are flattered.
STATISTICS = ("HeldOutGuard, calibrated", "paired window", "mean CUSUM")
DETECTORS = ("fast", "guaranteed", *STATISTICS)


@dataclass
class Cell:
    """`n` items, `mixed` difficulty or homogeneous; `baselines` of `passes` passes each."""

    n: int
    mixed: bool
    baselines: int
    config: CalibratedPolicy
    passes: int = PASSES
    thresholds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.n, self.mixed])
        self.means = item_means(self.n, self.mixed)
        passes = stratified_passes(rng, self.means, self.baselines, self.passes)
        kept = [Baseline.from_passes(one) for one in passes]
        self.item_scores = passes.mean(axis=1)
        self.strata = [b.strata for b in kept]
        self.references = [Reference.of(b, ALPHA) for b in kept]
        self.fast_thresholds = [thresholds(s, self.config, ALPHA) for s in self.strata]
        calibration = self.simulate(Scenario(), runs=10, seed=1, detectors=False)[1]
        for name, series in calibration.items():
            self.thresholds[name] = float(np.quantile(series.max(axis=0), 1 - ALPHA))

    def fires(self, scenario: Scenario, runs: int, seed: int) -> dict[str, np.ndarray]:
        """When each detector fires, shape (baselines·runs,): index of an evaluation, or NEVER."""
        times, statistics = self.simulate(scenario, runs, seed)
        for name, series in statistics.items():
            over = series >= self.thresholds[name]
            times[name] = np.where(over.any(axis=0), over.argmax(axis=0), NEVER)
        return times

    def simulate(
        self, scenario: Scenario, runs: int, seed: int, detectors: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Fire times of our detectors, and the statistics of the rivals, shape (EVALUATIONS, runs)."""
        rng = np.random.default_rng([self.n, self.mixed, seed])
        shape = (self.baselines, runs, self.n)
        grouping = Grouping(self.strata, runs)
        guaranteed = GuaranteedBatch(self.config, self.references, ALPHA, runs)
        fast = FastBatch(self.config, self.strata, self.fast_thresholds, runs)
        times = {name: np.full(shape[:2], NEVER) for name in ("fast", "guaranteed")} if detectors else {}
        rivals = Rivals(self.item_scores, runs)
        for t, means in enumerate(scenario.path(self.means)):
            outcomes = rng.random(shape, dtype=np.float32) < means.astype(np.float32)
            rivals.update(outcomes, scenario.proxy(t, rng, self.baselines * runs))
            if not detectors:
                continue
            sums = grouping.sums(outcomes)
            fast.update(sums.sum(axis=-1) / self.n)
            guaranteed.update(sums, fast.dispersion)
            for name, batch in (("fast", fast), ("guaranteed", guaranteed)):
                times[name] = np.where(batch.fired & (times[name] == NEVER), t, times[name])
        return {name: t.ravel() for name, t in times.items()}, rivals.series()


def stratified_passes(rng: np.random.Generator, means: np.ndarray, baselines: int, passes: int) -> np.ndarray:
    """Passes of `baselines` baselines, shape (baselines, passes, n), one from each stratum of the score.

    STRATUM times as many are drawn and sorted by their score; of each STRATUM neighbours one is kept.
    """
    drawn = rng.random((baselines * STRATUM, passes, len(means)), dtype=np.float32) < means.astype(np.float32)
    order = np.argsort(drawn.mean(axis=(1, 2)), kind="stable").reshape(baselines, STRATUM)
    kept = order[np.arange(baselines), rng.integers(STRATUM, size=baselines)]
    return drawn[kept].astype(float)


class Rivals:
    """The other rules, vectorised over runs; each gives a statistic that fires when it is large."""

    def __init__(self, item_scores: np.ndarray, runs: int) -> None:
        self._items = item_scores[:, None, :]
        self._score = np.repeat(item_scores.mean(axis=1), runs)
        self._window: list[np.ndarray] = []
        self._cusum = np.zeros(len(self._score))
        self._emas: tuple[np.ndarray, np.ndarray] | None = None
        self._series: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}

    def update(self, outcomes: np.ndarray, proxy: np.ndarray) -> None:
        """Fold one evaluation, shape (baselines, runs, n), and the in-loop rewards."""
        score = outcomes.mean(axis=-1).ravel()
        self._series["HeldOutGuard, calibrated"].append(self._gap(proxy, score))
        self._cusum = np.maximum(0.0, self._cusum + self._score - score - 0.055 / 2)
        self._series["mean CUSUM"].append(self._cusum)
        self._series["paired window"].append(self._paired(outcomes))

    def _gap(self, proxy: np.ndarray, score: np.ndarray) -> np.ndarray:
        """The Hacking Gap of HeldOutGuard(ema_alpha=EMA)."""
        if self._emas is None:
            self._emas, self._first = (proxy, score), (proxy, score)
        else:
            self._emas = tuple(
                EMA * e + (1 - EMA) * x for e, x in zip(self._emas, (proxy, score), strict=True)
            )
        return (self._emas[0] - self._first[0]) - (self._emas[1] - self._first[1])

    def _paired(self, outcomes: np.ndarray) -> np.ndarray:
        """Mean fall per item over the window in bootstrap standard errors.

        The percentile bootstrap of a mean over items, in its normal limit: at n >= 64 they agree.
        """
        self._window = [*self._window, outcomes][-WINDOW:]
        recent = np.mean(self._window, axis=0, dtype=np.float32)
        fall = self._items - recent
        return (fall.mean(axis=-1) / (fall.std(axis=-1) / np.sqrt(fall.shape[-1]))).ravel()

    def series(self) -> dict[str, np.ndarray]:
        """Each statistic, shape (EVALUATIONS, runs)."""
        return {name: np.stack(rows) for name, rows in self._series.items()}


def rules_at_defaults(cell: Cell, scenario: Scenario, runs: int, seed: int) -> dict[str, float]:
    """Share of `runs` runs that HeldOutGuard and river's PageHinkley, both at their defaults, stop."""
    rng = np.random.default_rng([cell.n, cell.mixed, seed])
    stopped = {"HeldOutGuard": 0, "PageHinkley": 0}
    path = scenario.path(cell.means)
    proxies = np.stack([scenario.proxy(t, rng, runs) for t in range(EVALUATIONS)])
    for r in range(runs):
        guard, drift, seen = HeldOutGuard(), PageHinkley(), False
        for t in range(EVALUATIONS):
            score = float((rng.random(cell.n) < path[t]).mean())
            guard.update(t, float(proxies[t, r]), score)
            drift.update(score)
            seen = seen or drift.drift_detected
        stopped["HeldOutGuard"] += guard.fired
        stopped["PageHinkley"] += seen
    return {name: count / runs for name, count in stopped.items()}
