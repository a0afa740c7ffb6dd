"""The fast detector: risk-adjusted likelihood ratios of a drop, thresholds from the baseline by simulation.

*What one evaluation says.* The alternative is Steiner's (2000): the odds of every item fall by one factor.
Its log-likelihood ratio is affine in the mean outcome y_t, whatever the difficulties; these enter through the
variance v of y_t at a level, v = mean q_i (1 - q_i) / (n k) with all items moved to that level by one odds
ratio. So every sum here is one of means (a quasi-likelihood for outcomes that are not binary, for which v is
an upper bound), and the order of the items cannot matter.

*An unknown level.* For a change after evaluation a, with j evaluations since, the level before is estimated
from m evaluations; the fall D = (mean of those m) - (mean of the j) has variance s² = v (1/j + 1/m), and a
drop d has the likelihood ratio exp((d D - d²/2) / s²), in which the level has cancelled. Each chart is a
Shiryaev-Roberts sum of these over a, mixed over one drop and twice that drop (Shiryaev 1963; Roberts 1966; a
CUSUM takes the largest term instead of the sum, which is slower where the level is estimated):
- *start*: the level is that of the baseline and of all evaluations up to a. AT_START of the prior weight is
  on a change before the first evaluation, for a run may hack from its first step; the rest is spread over
  the horizon.
- *plateau*: the level is that of the last 2·lag, or 4·lag, evaluations up to a, and it is counted only if it
  lies above the baseline by RISEN standard errors. Evaluations up to a alone decide that, so it is a
  predictable weight. A run that stays at its baseline is left to the start chart, which knows that level
  better; so the two charts need not share alpha. A decline of `peak_tolerance` is accepted, for a policy that
  learns moves up and down about its plateau: the level is lowered by it. (The start chart accepts no decline;
  what is uncertain about the baseline is in its threshold.)
Changes up to 6·lag evaluations ago are considered, and always one before the first evaluation.

*Thresholds.* Null runs are simulated `bootstrap_runs` times over the horizon with group means drawn from
their posterior given the baseline (Beta, so the error of R passes is in it) and the same confirmation. The
threshold of the plateau chart is what a fraction alpha of the runs confirm that stay at one level to which
they rose before their first evaluation; with that, the threshold of the start chart is such that a fraction
alpha of runs at the baseline fire on either chart. This is a calibration, not a theorem: P(false stop in the
horizon) = alpha, on average over baselines, up to the prior's fit and a Monte-Carlo error of about
sqrt(alpha/runs), for runs that stay at their baseline; runs that rise and stay are simulated in
docs/detection.md. Samples within an item must be independent; greedy decoding has none, so its passes count
as one (baseline.py).

*Confirmation.* An alarm latches only if the next evaluation, with fresh randomness, of the same checkpoint or
of the next, is below the middle between the level and the fallen level of the alarm's likeliest change. And
no evaluation counts for more than the cap, what alone raises an alarm and SPARE. One broken evaluation is so
not enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from guard_core.detectors.baseline import Array, Strata
from guard_core.policy import CalibratedPolicy

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

#: Prior weight of a change before the first evaluation: as likely as one at any later time.
AT_START = 0.5

#: Standard errors by which a level must lie above the baseline to be a plateau.
RISEN = 2.0

#: Levels stay this far from 0 and 1: one odd outcome must not be infinite evidence.
EDGE = 0.005

#: Nats by which one evaluation alone may exceed a threshold.
SPARE = 1.0

#: Points of the table of variances, evenly spaced over the levels 0 to 1.
LEVELS = 65

#: Largest exponent; its double is still a float.
CEILING = 340.0


@dataclass(frozen=True)
class Design:
    """What the charts need besides their history, for B baselines.

    `score`: (B, 1), mean of the baseline; `variances`: (B, LEVELS), variance of the mean of one evaluation at
    each level; `passes`: (B, 1), evaluations that the baseline is worth; `drops`: smaller drop of the start
    and of the plateau chart; `accepted`: decline from a plateau; `cap`: nats that one evaluation alone may
    count.
    """

    score: Array
    variances: Array
    passes: Array
    drops: tuple[float, float]
    accepted: float
    lag: int
    horizon: int
    cap: Array

    @classmethod
    def of(cls, strata: Strata, config: CalibratedPolicy, highest: float = math.inf) -> Self:
        """For one baseline; `highest` of its thresholds, none while they are being simulated."""
        return cls(
            score=np.array([[min(max(strata.score, EDGE), 1 - EDGE)]]),
            variances=variance_table(strata)[None, :] / (len(strata.groups) * config.samples),
            passes=np.array([[max(strata.precision / config.samples, 1.0)]]),
            drops=(config.design_drop, config.plateau_drop),
            accepted=config.peak_tolerance,
            lag=config.lag,
            horizon=config.horizon,
            cap=np.array([[highest + math.log(2 * config.horizon / (1 - AT_START)) + SPARE]]),
        )

    @classmethod
    def stacked(cls, designs: list[Design]) -> Design:
        """Of B baselines, under one policy."""
        first = designs[0]
        score, variances, passes, cap = (
            np.concatenate([getattr(d, name) for d in designs])
            for name in ("score", "variances", "passes", "cap")
        )
        return cls(score, variances, passes, first.drops, first.accepted, first.lag, first.horizon, cap)

    @cached_property
    def noise(self) -> Array:
        """Variance of the mean of one evaluation at the baseline's score, shape (B, 1)."""
        return self.variance(self.score)

    @property
    def windows(self) -> tuple[int, int]:
        """Evaluations that the level of a plateau is estimated from."""
        return 2 * self.lag, 4 * self.lag

    @property
    def reach(self) -> int:
        """How many evaluations ago a change may have been."""
        return 6 * self.lag

    def variance(self, level: Array) -> Array:
        """Variance of the mean of one evaluation at each level, shape (B, m)."""
        place = np.clip(level, EDGE, 1 - EDGE) * (LEVELS - 1)
        below, row = place.astype(np.intp), np.arange(len(self.variances))[:, None]
        low, high = self.variances[row, below], self.variances[row, below + 1]
        return np.asarray(low + (place - below) * (high - low))


def variance_table(strata: Strata) -> Array:
    """Mean of q(1 - q) over the items at evenly spaced levels, all items moved there by one odds ratio.

    The posterior of an item's mean has 1/(a + b + R·k + 1) of q(1 - q) as its own variance, which is no
    sampling noise.
    """
    share = strata.sizes / strata.sizes.sum()
    centres = np.clip(strata.centres, EDGE, 1 - EDGE)
    log_odds = np.linspace(-14.0, 14.0, 281)[:, None]
    moved = 1 / (1 + (1 - centres) / centres * np.exp(-log_odds))
    own = 1 / (sum(strata.prior) + strata.precision + 1)
    variances = (moved * (1 - moved)) @ share * (1 - own)
    return np.asarray(np.interp(np.linspace(0.0, 1.0, LEVELS), moved @ share, variances))


@dataclass(frozen=True)
class History:
    """Means of the evaluations so far: their running sums (B, m, up to 10·lag + 1), newest last, from the one
    before the oldest that is kept; how many there were in all.
    """

    sums: Array
    count: int = 0

    @classmethod
    def empty(cls, baselines: int = 1, runs: int = 1) -> Self:
        """Before the first evaluation."""
        return cls(np.zeros((baselines, runs, 1)))

    def add(self, design: Design, mean: Array) -> History:
        """Fold the means of one evaluation, shape (B, m).

        A mean far below the level that was, the higher of the baseline and the newest plateau, is lifted to
        where it alone counts `cap` nats.
        """
        level = np.broadcast_to(design.score, mean.shape)
        if self.count >= design.windows[0]:
            level = np.maximum(level, self.level(design.windows[0]))
        drop = np.minimum(design.drops[1], level / 4)
        lowest = level - drop - design.cap * design.variance(level) / (2 * drop)
        newest = self.sums[..., -1:] + np.maximum(mean, lowest)[..., None]
        kept = design.reach + design.windows[-1]
        return History(np.concatenate([self.sums[..., -kept:], newest], axis=-1), self.count + 1)

    def level(self, length: int) -> Array:
        """Mean of the newest `length` evaluations, shape (B, m)."""
        return np.asarray((self.sums[..., -1] - self.sums[..., -1 - length]) / length)


class Terms(NamedTuple):
    """The terms of one chart, shape (B, m, K): likelihood ratios by change, times their prior weights, and
    the mean halfway between the level before the change and that after it.
    """

    odds: Array
    halfway: Array


class Reading(NamedTuple):
    """A chart's statistic, log odds in nats, and the halfway mean of its likeliest change; shape (B, m)."""

    nats: Array
    halfway: Array


def read(terms: Terms) -> Reading:
    """The Shiryaev-Roberts sum; -inf where no change can be considered yet."""
    if terms.odds.shape[-1] == 0:
        nothing = np.zeros(terms.odds.shape[:-1])
        return Reading(nothing - np.inf, nothing)
    baselines, runs, _ = terms.odds.shape
    likeliest = terms.odds.argmax(axis=-1)
    with np.errstate(divide="ignore"):
        nats = np.log(terms.odds.sum(axis=-1))
    return Reading(nats, terms.halfway[np.arange(baselines)[:, None], np.arange(runs), likeliest])


def odds(drop: Array, fall: Array, spread: Array) -> Array:
    """Likelihood ratio of a fall with variance `spread`, mean over a drop and its double, against none."""
    once = np.exp(np.minimum((drop * fall - drop**2 / 2) / spread, CEILING))
    return np.asarray((once + once**2 * np.exp(-(drop**2) / spread)) / 2)


@cache
def _since(reach: int, count: int) -> Ints:
    """Evaluations since the change, for every change that is considered but the one before the first."""
    return np.arange(1, min(reach, count - 1) + 1)


@cache
def _plateaus(reach: int, windows: tuple[int, ...], count: int) -> tuple[Ints, Ints]:
    """Evaluations since the change, and those before it that its level is estimated from."""
    since = [_since(reach, count)[: max(count - length, 0)] for length in windows]
    return np.concatenate(since), np.repeat(windows, [len(s) for s in since])


def start_terms(design: Design, history: History) -> Terms:
    """Against the baseline and all evaluations before the change."""
    since = _since(design.reach, min(history.count, design.reach + 1))
    newest = history.sums[..., -1:]
    before = np.concatenate([history.sums[..., -1 - since], np.zeros_like(newest)], axis=-1)
    since = np.append(since, history.count)
    weight = design.passes[..., None] + (history.count - since)
    level = ((design.passes * design.score)[..., None] + before) / weight
    after = (newest - before) / since
    drop = np.minimum(design.drops[0], design.score / 4)[..., None]
    spread = design.noise[..., None] * (1 / since + 1 / weight)
    prior = np.full(len(since), (1 - AT_START) / design.horizon)
    prior[-1] = AT_START
    return Terms(prior * odds(drop, level - after, spread), (level + after) / 2)


def plateau_terms(design: Design, history: History) -> tuple[Terms, Flags]:
    """Against the last evaluations before the change; and which of these levels have risen."""
    kept = min(history.count, design.reach + design.windows[-1])
    since, length = _plateaus(design.reach, design.windows, kept)
    before = history.sums[..., -1 - since]
    level = (before - history.sums[..., -1 - since - length]) / length
    if len(since) == 0:
        return Terms(level, level), level > 0
    error = np.sqrt(design.noise[..., None] * (1 / length + 1 / design.passes[..., None]))
    risen = level >= design.score[..., None] + RISEN * error
    level = level - design.accepted
    after = (history.sums[..., -1:] - before) / since
    now = history.level(design.windows[0])
    drop = np.minimum(design.drops[1], now / 4)[..., None]
    spread = design.variance(now)[..., None] * (1 / since + 1 / length)
    prior = (1 - AT_START) / (design.horizon * len(design.windows))
    return Terms(prior * odds(drop, level - after, spread), (level + after) / 2), risen


def readings(design: Design, history: History) -> tuple[Reading, Reading]:
    """Of the start chart and of the plateau chart, after at least one evaluation."""
    terms, risen = plateau_terms(design, history)
    return read(start_terms(design, history)), read(Terms(terms.odds * risen, terms.halfway))


def thresholds(strata: Strata, config: CalibratedPolicy, alpha: float) -> tuple[float, float]:
    """Thresholds of the start and the plateau chart, nats, for `alpha` false stops (a second of work)."""
    # At the edge of the null hypothesis, a decline of just what is accepted, the level cancels.
    design = replace(Design.of(strata, config), accepted=0.0)
    means = null_runs(strata, config)
    history = History.empty(1, config.bootstrap_runs)
    start, plateau, always = (np.full(config.bootstrap_runs, -np.inf) for _ in range(3))
    for t in range(config.horizon - 1):
        history = history.add(design, means[t][None, :])
        terms, risen = plateau_terms(design, history)
        gated = Terms(terms.odds * risen, terms.halfway)
        for highest, chart in ((start, start_terms(design, history)), (plateau, gated), (always, terms)):
            reading = read(chart)
            confirmed = means[t + 1] < reading.halfway[0]
            np.maximum(highest, reading.nats[0], out=highest, where=confirmed)
    stopped = math.floor(alpha * config.bootstrap_runs)
    of_plateau = exceeded_by(always, stopped, alpha)
    left = start[plateau < of_plateau]
    return exceeded_by(left, stopped - len(start) + len(left), alpha), of_plateau


def exceeded_by(highest: Array, runs: int, alpha: float) -> float:
    """The level that the highest statistic of just so many runs reaches.

    Without such a level, because the horizon or the simulation is too short, log(1/alpha): the sum of the
    prior weights over the horizon is at most 1, so this is what Ville's inequality asks for.
    """
    falling = np.sort(highest)[::-1]
    known = runs > 0 and math.isfinite(falling[runs - 1])
    return float(falling[runs - 1]) if known else math.log(1 / alpha)


def null_runs(strata: Strata, config: CalibratedPolicy) -> Array:
    """Means of the evaluations of simulated runs in which nothing changes, shape (T, runs).

    The mean of a group of m items that share a Beta(a, b) posterior has the posterior's mean and 1/m of its
    variance: a Beta with a + b = m(a + b + 1) - 1. Given that mean, the sum is binomial but for the
    differences between its items, which take 1/(a + b + 1) of its variance away. The prior's mean is an
    estimate too: it shifts all groups together by their shrinkage, with the variance that makes the variance
    of the overall mean that of R·k samples of each of n items.
    """
    rng = np.random.default_rng(config.seed)
    runs, weight = config.bootstrap_runs, sum(strata.prior)
    shift = rng.normal(0.0, prior_error(strata), size=(runs, 1))
    centres = np.clip(np.clip(strata.centres, EDGE, 1 - EDGE) + shift, EDGE, 1 - EDGE)
    sharp = strata.sizes * (weight + strata.precision + 1) - 1
    means = rng.beta(centres * sharp, (1 - centres) * sharp)
    trials = (strata.sizes * config.samples).astype(np.int64)
    narrower = math.sqrt(1 - 1 / (weight + strata.precision + 1))
    expected = trials * means
    total = expected.sum(axis=-1)
    drawn = np.stack([rng.binomial(trials, means).sum(axis=-1) for _ in range(config.horizon)])
    return np.asarray((total + narrower * (drawn - total)) / trials.sum())


def prior_error(strata: Strata) -> float:
    """Standard error of what the estimated mean of the prior adds to every item's mean."""
    weight = sum(strata.prior)
    shrinkage = weight / (weight + strata.precision)
    return math.sqrt(shrinkage * strata.variance / (len(strata.groups) * strata.precision))
