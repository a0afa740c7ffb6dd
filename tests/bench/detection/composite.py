"""The whole calibrated detector, run as it is live: null runs, declines, over-optimisation curves.

Gao, Schulman & Hilton 2022 (arXiv 2210.10760): under RL the gold reward is R(d) = d (a - b log d) with d the
square root of the KL to the starting policy, and the proxy keeps rising. Here R is held-out accuracy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from detection.cells import NEVER, PASSES
from detection.truth import EVALUATIONS, Scenario, item_means, moved

from guard_core.detectors import PARTS, Baseline, CalibratedDetector
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Level

#: Runs behind the cost of an update.
REPEATS = 7


@dataclass
class Composite:
    """Detectors over several baselines of one truth; copies are made through their state."""

    n: int
    mixed: bool
    config: CalibratedPolicy
    baselines: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.n, self.mixed, 77])
        self.means = item_means(self.n, self.mixed)
        self.states = []
        for _ in range(self.baselines):
            passes = (rng.random((PASSES, self.n)) < self.means).astype(float)
            self.states.append(CalibratedDetector(self.config, Baseline.from_passes(passes)).to_state())

    def fires(self, path: list[np.ndarray], proxies: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Fire times over len(proxies) runs: the whole, each part, HeldOutGuard at its defaults."""
        rng = np.random.default_rng([self.n, self.mixed, seed])
        names = ("calibrated", *PARTS, "HeldOutGuard")
        times = {name: np.full(len(proxies), NEVER) for name in names}
        for r, proxy in enumerate(proxies):
            detector = CalibratedDetector.from_state(self.states[r % self.baselines])
            guard = HeldOutGuard()
            for t, means in enumerate(path):
                items = (rng.random(self.n) < means).astype(float)
                status = detector.update(t, items, float(proxy[t]))
                guard.update(t, float(proxy[t]), float(items.mean()))
                fired = {reading.name for reading in status.readings if reading.level is Level.FIRED}
                fired |= {"calibrated"} if status.fire else set()
                fired |= {"HeldOutGuard"} if guard.fired else set()
                for name in fired:
                    times[name][r] = min(times[name][r], t)
        return times

    def scenario(self, scenario: Scenario, runs: int, seed: int) -> dict[str, np.ndarray]:
        """Fire times over `runs` runs of a scenario."""
        rng = np.random.default_rng([self.n, seed])
        proxies = np.stack([scenario.proxy(t, rng, runs) for t in range(EVALUATIONS)], axis=1)
        return self.fires(scenario.path(self.means), proxies, seed)


@dataclass(frozen=True)
class Curve:
    """R(d) = d (a - b log d) up to d = `reach`, scaled so that its best is `gain`."""

    name: str
    ratio: float  # a/b: the peak is at d = exp(a/b - 1)
    reach: float
    gain: float

    def gold(self) -> np.ndarray:
        """Held-out gain at each of EVALUATIONS evaluations, d growing evenly."""
        d = np.linspace(0.0, self.reach, EVALUATIONS + 1)[1:]
        reward = d * (self.ratio - np.log(d))
        return self.gain * reward / np.exp(self.ratio - 1)


CURVES = (
    Curve("early peak", 1.0, 4.0, 0.06),
    Curve("late peak", 2.0, 8.0, 0.12),
    Curve("benign: no peak yet", 2.5, 4.5, 0.15),
)


def over_optimisation(composite: Composite, curve: Curve, runs: int) -> dict[str, tuple[float, float, float]]:
    """For each detector: gold lost against the best stop in hindsight, points; share stopped; median stop."""
    gold = curve.gold()
    base = float(composite.means.mean())
    path = [moved(composite.means, min(max(base + g, 0.03), 0.97)) for g in gold]
    rng = np.random.default_rng(13)
    rise = 0.3 * np.linspace(0, 1, EVALUATIONS) ** 0.7
    proxies = 0.6 + rise + 0.01 * rng.standard_normal((runs, EVALUATIONS))
    times = composite.fires(path, proxies, seed=int(curve.reach * 10))
    times = {**times, "no guard": np.full(runs, NEVER)}
    found = {}
    for name, stops in times.items():
        at_stop = gold[np.minimum(stops, EVALUATIONS - 1)]
        lost = 100 * float(np.mean(gold.max() - at_stop))
        found[name] = (lost, float(np.mean(stops < NEVER)), float(np.median(stops)))
    return found


def cost_of_an_update(config: CalibratedPolicy, n: int = 1024, updates: int = 160) -> dict[str, float]:
    """Milliseconds of CPU of one update at n items, without a `proxy_scorer`: median, mean, worst.

    Of each update the least of several runs is taken: what else the machine does is no cost of ours.
    """
    rng = np.random.default_rng(3)
    means = item_means(n, True)
    draw = [(rng.random(n) < means).astype(float) for _ in range(PASSES + updates)]
    fresh = CalibratedDetector(config, Baseline.from_passes(draw[:PASSES])).to_state()
    spent = np.full((REPEATS, updates), np.inf)
    for run in spent:
        detector = CalibratedDetector.from_state(fresh)
        for t, items in enumerate(draw[PASSES:]):
            began = time.perf_counter()
            detector.update(t, items, 0.6 + 0.01 * float(rng.standard_normal()))
            run[t] = 1000 * (time.perf_counter() - began)
    kept = spent.min(axis=0)[64:]  # as many live blocks as there will be from here on
    return {"median": float(np.median(kept)), "mean": float(np.mean(kept)), "worst": float(kept.max())}
