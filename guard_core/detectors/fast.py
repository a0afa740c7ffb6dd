"""The fast detector: a risk-adjusted Bernoulli CUSUM whose threshold comes from the baseline itself.

Items are pooled into risk groups g with reference means r_g (baseline.py). For an alternative r'_g the
evaluation adds the log-likelihood ratio (nats)
    l_t = k · sum_g [ S_tg log(r'_g / r_g) + (n_g - S_tg) log((1 - r'_g) / (1 - r_g)) ],
with S_tg the summed outcomes of the group and k samples an item (a quasi-likelihood for outcomes that are not
binary), and each chart is W_t = max(0, W_{t-1}) + l_t (Page 1954; risk adjustment: Steiner, Cook, Farewell &
Treasure 2000; optimal for known means: Lorden 1971, Moustakides 1986). Two charts share one threshold h:
- *start*: r_g are the shrunken baseline means. Its first value is h·HEAD_START (fast initial response, Lucas
  & Crosier 1982): a run may hack from its first step, and the baseline is least certain there.
- *lagged*: r_g follow the run with a lag of `lag` evaluations and a memory of about the baseline's precision,
  so a decline from a plateau is seen, and the error of the baseline averages out while nothing changes.
The alternative is a common odds ratio (Steiner's) that lowers the mean by `design_drop`.

h: the null run is simulated `runs` times over the horizon with group means drawn from their posterior given
the baseline (Beta, so the error of R passes is in it), the same update and the same confirmation; h is the
level that a fraction alpha of the runs confirm. This is a calibration, not a theorem: P(false stop in the
horizon) = alpha up to the prior's fit and a Monte-Carlo error of about sqrt(alpha/runs), for runs whose items
keep their means. Samples within an item must be independent; greedy decoding has none, so its passes count as
one (baseline.py).

An alarm (W >= h) latches only if the next evaluation, with fresh randomness, of the same checkpoint or of the
next, leaves W >= h and lies below the reference mean: otherwise items may only have traded places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from guard_core.detectors.baseline import Array, Strata

Flags = npt.NDArray[np.bool_]

#: First value of the start chart, as a share of h.
HEAD_START = 0.5

#: Reference means stay this far from 0 and 1: one odd outcome must not be infinite evidence.
EDGE = 0.005

#: The lagged chart remembers at least this many evaluations.
MIN_MEMORY = 8.0


@dataclass(frozen=True)
class Design:
    """What the charts need besides their state.

    `sizes`, `centres`: (G,), items in each risk group and their reference means; `samples`: k;
    `log_odds`: the alternative's common log odds ratio, nats; `memory`, `lag`: of the lagged chart,
    evaluations.
    """

    sizes: Array
    centres: Array
    samples: int
    log_odds: float
    memory: float
    lag: int

    @classmethod
    def of(cls, strata: Strata, samples: int, drop: float, lag: int) -> Self:
        """Solve for the log odds ratio that lowers the mean by `drop` (at most by half of the mean)."""
        centres = np.clip(strata.centres, EDGE, 1 - EDGE)
        share = strata.sizes / strata.sizes.sum()
        mean = float(share @ centres)
        wanted = mean - min(drop, mean / 2)
        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if float(share @ lowered(centres, middle)) > wanted else (low, middle)
        memory = max(strata.precision / samples, MIN_MEMORY)
        return cls(strata.sizes, centres, samples, high, memory, lag)


def lowered(means: Array, log_odds: float) -> Array:
    """Means after their odds fell by the factor exp(-log_odds), any shape."""
    fallen = means * math.exp(-log_odds)
    return fallen / (1 - means + fallen)


def log_ratio(design: Design, means: Array, sums: Array) -> Array:
    """l_t of one evaluation, nats: reference means (..., G), summed outcomes (..., G) -> (...,)."""
    worse = lowered(means, design.log_odds)
    hit, miss = np.log(worse / means), np.log((1 - worse) / (1 - means))
    return np.asarray(design.samples * (hit * sums + miss * (design.sizes - sums)).sum(axis=-1))


@dataclass(frozen=True)
class Follower:
    """The lagged reference: `means` (..., G) and the last `lag` evaluations' group means, oldest first."""

    means: Array
    recent: tuple[Array, ...] = ()

    def advance(self, design: Design, sums: Array) -> Follower:
        """Fold one evaluation: the one that is now `lag` evaluations old enters the reference."""
        recent = (*self.recent, sums / design.sizes)
        if len(recent) <= design.lag:
            return replace(self, recent=recent)
        means = self.means + (np.clip(recent[0], EDGE, 1 - EDGE) - self.means) / design.memory
        return Follower(means, recent[1:])


def fold(value: Array, ratio: Array) -> Array:
    """One step of a CUSUM that may rest below 0 for one evaluation: W <- max(0, W) + l."""
    return np.asarray(np.maximum(value, 0.0) + ratio)


def threshold(strata: Strata, design: Design, *, alpha: float, horizon: int, runs: int, seed: int) -> float:
    """h, nats: the level that a fraction `alpha` of simulated null runs of `horizon` evaluations confirms."""
    ratios, below = null_runs(strata, design, horizon=horizon, runs=runs, seed=seed)
    low, high = 0.0, 400.0
    for _ in range(24):
        middle = (low + high) / 2
        often = float(confirmed(ratios, below, middle).mean()) > alpha
        low, high = (middle, high) if often else (low, middle)
    return high


def null_runs(strata: Strata, design: Design, *, horizon: int, runs: int, seed: int) -> tuple[Array, Flags]:
    """Simulated null runs: l_t of (start, lagged), and whether the mean is below their references; (T, 2, B).

    The mean of a group of m items that share a Beta(a, b) posterior has the posterior's mean and 1/m of its
    variance: a Beta with a + b = m(a + b + 1) - 1. Its sum is drawn as binomial, which is a little too wide.
    """
    rng = np.random.default_rng(seed)
    sharp = strata.sizes * (sum(strata.prior) + strata.precision + 1) - 1
    means = rng.beta(strata.centres * sharp, (1 - strata.centres) * sharp, size=(runs, strata.count))
    trials = (strata.sizes * design.samples).astype(np.int64)
    follower = Follower(np.broadcast_to(design.centres, means.shape))
    ratios, below = np.empty((horizon, 2, runs)), np.empty((horizon, 2, runs), dtype=np.bool_)
    for t in range(horizon):
        sums = rng.binomial(trials, means) / design.samples
        for chart, reference in enumerate((design.centres, follower.means)):
            ratios[t, chart] = log_ratio(design, reference, sums)
            below[t, chart] = sums.sum(axis=-1) < reference @ design.sizes
        follower = follower.advance(design, sums)
    return ratios, below


def confirmed(ratios: Array, below: Flags, h: float) -> Flags:
    """Whether each simulated run alarms at `h` and is confirmed by its next evaluation; shape (B,)."""
    value = np.zeros_like(ratios[0])
    value[0] = h * HEAD_START
    alarm: Flags = np.zeros_like(below[0])
    latched: Flags = alarm[0]
    for ratio, under in zip(ratios, below, strict=True):
        value = fold(value, ratio)
        over = value >= h
        latched = latched | (alarm & over & under).any(axis=0)
        alarm = over
    return latched
