"""The fast detector: a risk-adjusted Bernoulli CUSUM whose threshold comes from the baseline itself.

Items are pooled into risk groups g with reference means r_g (baseline.py). For an alternative r'_g the
evaluation adds the log-likelihood ratio (nats)
    l_t = k · sum_g [ S_tg log(r'_g / r_g) + (n_g - S_tg) log((1 - r'_g) / (1 - r_g)) ],
with S_tg the summed outcomes of the group and k samples an item (a quasi-likelihood for outcomes that are not
binary), and each chart is W_t = min(max(0, W_{t-1}) + l_t, h) (Page 1954; risk adjustment: Steiner, Cook,
Farewell & Treasure 2000; optimal for known means: Lorden 1971, Moustakides 1986). Two charts share one h:
- *start*: the reference is the baseline, joined by every evaluation once it is START_LAGS·lag old. While
  nothing changes, the error of the baseline so averages out. Its first value is h·HEAD_START (fast initial
  response, Lucas & Crosier 1982): a run may hack from its first step, when the reference is least certain.
- *plateau*: the reference follows the run with a lag of `lag` and a memory of PLATEAU_MEMORY evaluations, so
  that a decline from a level reached mid-run is seen. It starts at the baseline.
The alternative of each is a common odds ratio (Steiner's) that lowers the mean by `design_drop` and by
`plateau_drop`.

h: the null run is simulated `runs` times over the horizon with group means drawn from their posterior given
the baseline (Beta, so the error of R passes is in it), the same update and the same confirmation; h is the
level that a fraction alpha of the runs confirm. This is a calibration, not a theorem: P(false stop in the
horizon) = alpha up to the prior's fit and a Monte-Carlo error of about sqrt(alpha/runs), for runs whose items
keep their means. Samples within an item must be independent; greedy decoding has none, so its passes count as
one (baseline.py).

An alarm (W >= h) latches only if the next evaluation, with fresh randomness, of the same checkpoint or of the
next, itself speaks for the alternative on that chart (l > 0: its mean is below the reference by more than
about half of the drop). One broken evaluation, or items that traded places at a flat mean, are so not enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from guard_core.detectors.baseline import Array, Strata
from guard_core.policy import CalibratedPolicy

Flags = npt.NDArray[np.bool_]

#: First value of the start chart, as a share of h.
HEAD_START = 0.5

#: Reference means stay this far from 0 and 1: one odd outcome must not be infinite evidence.
EDGE = 0.005

#: An evaluation joins the reference of the start chart when it is this many times `lag` evaluations old.
START_LAGS = 3

#: Evaluations that the reference of the plateau chart remembers.
PLATEAU_MEMORY = 10.0


@dataclass(frozen=True)
class Chart:
    """One chart: `log_odds` of its alternative, nats; `lag`; how many evaluations its reference is worth at
    first (`memory`) and at most (`limit`).
    """

    log_odds: float | Array
    lag: int
    memory: float
    limit: float


@dataclass(frozen=True)
class Design:
    """What the charts need besides their state.

    `sizes`, `centres`: (G,), items in each risk group and their reference means; `samples`: k; `charts`:
    start and plateau.
    """

    sizes: Array
    centres: Array
    samples: int
    charts: tuple[Chart, Chart]

    @classmethod
    def of(cls, strata: Strata, config: CalibratedPolicy) -> Self:
        """The charts for this baseline."""
        centres = np.clip(strata.centres, EDGE, 1 - EDGE)
        share = strata.sizes / strata.sizes.sum()
        passes = max(strata.precision / config.samples, 1.0)
        start = log_odds_of(centres, share, config.design_drop)
        plateau = log_odds_of(centres, share, config.plateau_drop)
        charts = (
            Chart(start, START_LAGS * config.lag, passes, math.inf),
            Chart(plateau, config.lag, PLATEAU_MEMORY, PLATEAU_MEMORY),
        )
        return cls(strata.sizes, centres, config.samples, charts)


def log_odds_of(means: Array, share: Array, drop: float) -> float:
    """The common log odds ratio, nats, that lowers the mean by `drop`, or by half of it if that is less."""
    mean = float(share @ means)
    wanted = mean - min(drop, mean / 2)
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(share @ lowered(means, middle)) > wanted else (low, middle)
    return high


def lowered(means: Array, log_odds: float | Array) -> Array:
    """Means after their odds fell by the factor exp(-log_odds), any shape."""
    fallen = means * np.exp(-log_odds)
    return fallen / (1 - means + fallen)


def log_ratio(design: Design, chart: Chart, means: Array, sums: Array) -> Array:
    """l_t of one evaluation, nats: reference means (..., G), summed outcomes (..., G) -> (...,)."""
    worse = lowered(means, chart.log_odds)
    hit, miss = np.log(worse / means), np.log((1 - worse) / (1 - means))
    return np.asarray(design.samples * (hit * sums + miss * (design.sizes - sums)).sum(axis=-1))


@dataclass(frozen=True)
class Follower:
    """The reference of one chart: `means` (..., G), how many evaluations have `joined`, and those still too
    young, oldest first, as summed outcomes of
    the groups.
    """

    means: Array
    recent: tuple[Array, ...] = ()
    joined: int = 0

    def advance(self, design: Design, chart: Chart, sums: Array) -> Follower:
        """Fold one evaluation: the one that is now `lag` evaluations old joins the reference."""
        recent = (*self.recent, sums)
        if len(recent) <= chart.lag:
            return replace(self, recent=recent)
        memory = min(chart.memory + self.joined + 1, chart.limit)
        means = self.means + (np.clip(recent[0] / design.sizes, EDGE, 1 - EDGE) - self.means) / memory
        return Follower(means, recent[1:], self.joined + 1)


def fold(value: Array, ratio: Array, h: float | Array) -> Array:
    """One step of a CUSUM: W <- min(max(0, W) + l, h).

    Above h there is only the alarm; one broken evaluation must not leave evidence that lasts.
    """
    return np.asarray(np.minimum(np.maximum(value, 0.0) + ratio, h))


def confirms(alarm: Flags, ratio: Array) -> Flags:
    """Whether an evaluation confirms the alarm that the one before it raised on the same chart."""
    return np.asarray(alarm & (ratio > 0.0))


def threshold(strata: Strata, config: CalibratedPolicy, alpha: float) -> float:
    """h, nats: the level that a fraction `alpha` of the simulated null runs confirms (a second of work)."""
    ratios = null_runs(
        strata,
        Design.of(strata, config),
        horizon=config.horizon,
        runs=config.bootstrap_runs,
        seed=config.seed,
    )
    low, high = 0.0, 4.0
    while float(confirmed(ratios, high).mean()) > alpha:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        often = float(confirmed(ratios, middle).mean()) > alpha
        low, high = (middle, high) if often else (low, middle)
    return high


def null_runs(strata: Strata, design: Design, *, horizon: int, runs: int, seed: int) -> Array:
    """Simulated null runs: l_t of (start, plateau), shape (T, 2, runs).

    The mean of a group of m items that share a Beta(a, b) posterior has the posterior's mean and 1/m of its
    variance: a Beta with a + b = m(a + b + 1) - 1. Given that mean, the sum is binomial but for the
    differences between its items, which take 1/(a + b + 1) of its variance away. The prior's mean is an
    estimate too: it shifts all groups together by their shrinkage, with the variance that makes the variance
    of the overall mean that of R·k samples of each of n items.
    """
    rng = np.random.default_rng(seed)
    weight = sum(strata.prior)
    shrinkage = weight / (weight + strata.precision)
    error = math.sqrt(shrinkage * strata.variance / (len(strata.groups) * strata.precision))
    centres = np.clip(strata.centres + rng.normal(0.0, error, size=(runs, 1)), EDGE, 1 - EDGE)
    sharp = strata.sizes * (weight + strata.precision + 1) - 1
    means = rng.beta(centres * sharp, (1 - centres) * sharp)
    trials = (strata.sizes * design.samples).astype(np.int64)
    narrower = math.sqrt(1 - 1 / (weight + strata.precision + 1))
    followers = [Follower(np.broadcast_to(design.centres, means.shape)) for _ in design.charts]
    ratios = np.empty((horizon, 2, runs))
    for t in range(horizon):
        expected = trials * means
        sums = (expected + narrower * (rng.binomial(trials, means) - expected)) / design.samples
        for c, chart in enumerate(design.charts):
            ratios[t, c] = log_ratio(design, chart, followers[c].means, sums)
            followers[c] = followers[c].advance(design, chart, sums)
    return ratios


def confirmed(ratios: Array, h: float) -> Flags:
    """Whether each simulated run alarms at `h` and is confirmed by its next evaluation; shape (B,)."""
    value = np.zeros_like(ratios[0])
    value[0] = h * HEAD_START
    alarm: Flags = np.zeros(value.shape, dtype=np.bool_)
    latched: Flags = alarm[0]
    for ratio in ratios:
        latched = latched | confirms(alarm, ratio).any(axis=0)
        value = fold(value, ratio, h)
        alarm = value >= h
    return latched
