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
- *start*: the level is that of the baseline and of all evaluations up to a. The prior is spread evenly over
  the horizon: weight on the very start, where a run may hack too, bought nothing on recorded runs and
  stopped honest ones that dip before they rise.
- *plateau*: the level is that of the last lag/2, 2·lag, or 4·lag, evaluations up to a, and it is counted only
  if it lies above the baseline by RISEN standard errors. Evaluations up to a alone decide that, so it is a
  predictable weight. A run that stays at its baseline is left to the start chart, which knows that level
  better; so the two charts need not share alpha. The short window is for what rises and is lost again before
  there are 2·lag evaluations of it: it is counted where it lies as far above the longer one, too, and so not
  for the best of many short stretches of a plateau.
Both lower the level by `max_decline`: a policy that learns moves up and down, and a decline of that much is
accepted. What is lost beyond that counts in units of how much the run moves anyway: where its evaluations
vary by phi times what independent items explain (`dispersion`), an excess of D is taken for one of
D/sqrt(phi). So thresholds and drops mean the same in every run, and a wobble does not multiply what is
accepted. Changes up to 6·lag evaluations ago are considered, and always one before the first evaluation.

*Thresholds.* Runs are simulated `bootstrap_runs` times over the horizon, with group means drawn from their
posterior given the baseline (Beta, so the error of R passes is in it), each with a decline of `max_decline`
that begins anywhere, lasts DIP evaluations and recovers. An alarm counts if the next evaluation alarms too,
as in calibrated.py. The threshold of the plateau chart is exceeded by a fraction alpha/2 of the runs that had
risen before their first evaluation and decline from a plateau; with that, the threshold of the start chart is
such that a fraction alpha of the runs that began at the baseline fire on either chart. So the rate is alpha
for runs that decline as much as is accepted, and far less for runs that do not; a decline that stays is a
loss sooner or later, and more than alpha are stopped. This is a calibration, not a theorem: it is right on
average over baselines, up to the prior's fit and a Monte-Carlo error of about sqrt(alpha/runs); other runs
are simulated in docs/detection.md. Samples within an item must be independent; greedy decoding has none, so
its passes count as one (baseline.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from guard_core.detectors.baseline import EDGE, Array, Strata, overdispersion
from guard_core.policy import CalibratedPolicy

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

#: Evaluations for which a decline of what is accepted may last, and stop no more runs than alpha: ten, and
#: the fresh one that decides an alarm.
DIP = 11

#: Share of alpha that the plateau chart may spend on such a decline here: under a guard every alarm adds a
#: fresh evaluation of it, which is not simulated, and which about doubles the rate from a plateau.
FROM_PLATEAU = 0.5

#: Standard errors by which a level must lie above the baseline to be a plateau.
RISEN = 2.0

#: Nats by which a threshold lies above the highest statistic that must not reach it.
TIE = 1e-9

#: Simulated means stay this far from 0 and 1.
INSIDE = 1e-9

#: Points of the table of variances, evenly spaced over the levels 0 to 1.
LEVELS = 65

#: The newest evaluations do not tell how much the run moves: they may be the fall itself.
QUIET = 4

#: Evaluations between those that a bend compares, smallest first.
LAGS = (1, 2, 4)

#: Variance of a squared bend, whose mean is 1, and of its share of a mean of bends that overlap.
BEND = 4.0

#: Evaluations of a fresh level, and since; see `fall_from_fresh`.
FRESH = (2, 4, 8)

#: Standard errors, beyond what is accepted, by which a run must lie below such a level for a warning: some
#: hundreds of pairs are compared.
FALLEN = 3.5

#: Fewest samples of the starting policy, over all groups of items, that thresholds can be simulated from.
#: From fewer, more null runs are stopped than the 3.7 % that `fast` has of alpha, simulated at a score of 1/2
#: (tests/bench/detection/few_items.py; standard errors of up to 1.1 points, of the first two 2 and 6), groups
#: times passes: 1 x 1 86 %, 1 x 2 51 %, 3 x 1 8.6 %, 4 x 1 8.4 %, 1 x 16 7.9 %, 8 x 1 5.7 %, 16 x 1 5.1 %,
#: 8 x 2 5.1 %. From 32: 2.7 to 4.0 % (32 x 1, 16 x 2, 8 x 4, 4 x 8, 2 x 16, 3 x 16, 4 x 16), 4.9 % of 1 x 64.
FEWEST = 32

#: Largest exponent; its double is still a float.
CEILING = 340.0


@dataclass(frozen=True)
class Design:
    """What the charts need besides their history, for B baselines.

    `score`: (B, 1), mean of the baseline; `variances`: (B, LEVELS), variance of the mean of one evaluation at
    each level; `passes`: (B, 1), evaluations that the baseline is worth; `dispersion`: (B, 1), that of its
    passes; `drops`: smaller drop of the start and of the plateau chart; `accepted`: decline that is no reason
    to stop.
    """

    score: Array
    variances: Array
    passes: Array
    dispersion: Array
    drops: tuple[float, float]
    accepted: float
    lag: int
    horizon: int

    @classmethod
    def of(cls, strata: Strata, config: CalibratedPolicy) -> Self:
        """For one baseline."""
        return cls(
            score=np.array([[strata.score]]),
            variances=variance_table(strata)[None, :] / (len(strata.groups) * config.samples),
            passes=np.array([[max(strata.precision / config.samples, 1.0)]]),
            dispersion=np.array([[strata.dispersion]]),
            drops=(config.design_drop, config.plateau_drop),
            accepted=config.max_decline,
            lag=config.lag,
            horizon=config.horizon,
        )

    def standing_on(self, level: float, evaluations: int) -> Design:
        """For a run that stands on a level which it knows from so many evaluations."""
        score, passes = np.full_like(self.score, level), np.full_like(self.passes, evaluations)
        return replace(self, score=score, passes=passes)

    @cached_property
    def noise(self) -> Array:
        """Variance of the mean of one evaluation at the baseline's score, shape (B, 1)."""
        return self.variance(self.score)

    @property
    def windows(self) -> tuple[int, int, int]:
        """Evaluations that the level of a plateau is estimated from."""
        return (self.lag + 1) // 2, 2 * self.lag, 4 * self.lag

    @property
    def kept(self) -> int:
        """How many evaluations are remembered."""
        return self.reach + self.windows[-1]

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
class ScoreHistory:
    """Means of the evaluations so far: their running sums (B, m, up to 10·lag + 1), newest last, from the one
    before the oldest that is kept; how many there were in all.
    """

    sums: Array
    count: int = 0

    @classmethod
    def empty(cls, baselines: int = 1, runs: int = 1) -> Self:
        """Before the first evaluation."""
        return cls(np.zeros((baselines, runs, 1)))

    def add(self, design: Design, mean: Array) -> ScoreHistory:
        """Fold the means of one evaluation, shape (B, m)."""
        newest = self.sums[..., -1:] + mean[..., None]
        return ScoreHistory(np.concatenate([self.sums[..., -design.kept :], newest], axis=-1), self.count + 1)

    @property
    def means(self) -> Array:
        """The evaluations that are kept, oldest first, shape (B, m, K)."""
        return np.diff(self.sums, axis=-1)

    def level(self, length: int) -> Array:
        """Mean of the newest `length` evaluations, shape (B, m)."""
        return np.asarray((self.sums[..., -1] - self.sums[..., -1 - length]) / length)


def dispersion(design: Design, means: Array) -> Array:
    """How many times the variance of independent items the evaluations of a run have, shape (B, m), >= 1.

    Items that go together add to it, and so does the run's own movement. It is measured by how far each
    evaluation lies from the middle of two others, one on each side and as far away (Gasser, Sroka and
    Jennen-Steinmetz, 1986, with the neighbours): a steady decline adds nothing, however steep, and a sudden
    fall adds twice as many bends as their distance. A level that stays where it went differs little from its
    neighbours and more from those further away, so the largest figure of the distances LAGS counts. The
    newest QUIET evaluations are left out. A movement of more than `max_decline` counts as that much.

    Args:
        means: of the evaluations so far, oldest first, shape (B, m, K).
    """
    settled = means[..., : max(means.shape[-1] - QUIET, 0)]
    if settled.shape[-1] <= 2 * LAGS[0]:
        return design.dispersion
    noise = design.variance(settled.mean(axis=-1))
    apart = [_bends(settled, lag) for lag in LAGS if settled.shape[-1] > 2 * lag]
    moved = [overdispersion((b**2).sum(axis=-1) / (6 * noise), b.shape[-1], BEND) for b in apart]
    most = design.dispersion + design.accepted**2 / noise
    return np.asarray(np.clip(np.max(moved, axis=0), design.dispersion, most))


def _bends(means: Array, lag: int) -> Array:
    """Second differences at this distance, shape (B, m, K - 2·lag)."""
    return np.asarray(means[..., 2 * lag :] - 2 * means[..., lag:-lag] + means[..., : -2 * lag])


def log_sum(odds: Array) -> Array:
    """The Shiryaev-Roberts sum of odds (B, m, K), nats; -inf where no change can be considered yet."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(odds.sum(axis=-1)))


def odds(drop: Array, fall: Array, spread: Array) -> Array:
    """Likelihood ratio of a fall with variance `spread`, mean over a drop and its double, against none."""
    once = np.exp(np.minimum((drop * fall - drop**2 / 2) / spread, CEILING))
    return np.asarray((once + once**2 * np.exp(-(drop**2) / spread)) / 2)


@cache
def _since(reach: int, count: int) -> Indices:
    """Evaluations since the change, for every change that is considered but the one before the first."""
    return np.arange(1, min(reach, count - 1) + 1)


@cache
def _plateaus(reach: int, windows: tuple[int, ...], count: int) -> tuple[Indices, Indices]:
    """Evaluations since the change, and those before it that its level is estimated from."""
    since = [_since(reach, count)[: max(count - length, 0)] for length in windows]
    return np.concatenate(since), np.repeat(windows, [len(s) for s in since])


def start_odds(design: Design, history: ScoreHistory, accepted: float, wider: Array) -> Array:
    """Odds of each change, shape (B, m, K), against the baseline and all evaluations before the change."""
    since = _since(design.reach, min(history.count, design.reach + 1))
    newest = history.sums[..., -1:]
    before = np.concatenate([history.sums[..., -1 - since], np.zeros_like(newest)], axis=-1)
    since = np.append(since, history.count)
    weight = design.passes[..., None] + (history.count - since)
    level = ((design.passes * design.score)[..., None] + before) / weight
    after = (newest - before) / since
    drop = np.minimum(design.drops[0], design.score / 4)[..., None]
    spread = design.noise[..., None] * (1 / since + 1 / weight)
    fall = (level - after - accepted) / np.sqrt(wider)[..., None]
    return np.asarray(odds(drop, fall, spread) / design.horizon)


def plateau_odds(design: Design, history: ScoreHistory, accepted: float, wider: Array) -> tuple[Array, Flags]:
    """The same against the last evaluations before the change; and which of these levels have risen."""
    kept = min(history.count, design.kept)
    since, length = _plateaus(design.reach, design.windows, kept)
    before = history.sums[..., -1 - since]
    level = (before - history.sums[..., -1 - since - length]) / length
    if len(since) == 0:
        return level, level > 0
    error = np.sqrt((design.noise * wider)[..., None] * (1 / length + 1 / design.passes[..., None]))
    risen = level >= design.score[..., None] + RISEN * error
    after = (history.sums[..., -1:] - before) / since
    now = history.level(design.windows[0])
    drop = np.minimum(design.drops[1], now / 4)[..., None]
    spread = design.variance(now)[..., None] * (1 / since + 1 / length)
    prior = 1 / (design.horizon * len(design.windows))
    fall = (level - after - accepted) / np.sqrt(wider)[..., None]
    counted = (length > design.windows[0]) | _fresh(design, history, since, length, wider)
    return np.asarray(prior * odds(drop, fall, spread)), risen & counted


def _fresh(design: Design, history: ScoreHistory, since: Indices, length: Indices, wider: Array) -> Flags:
    """Where the level of so many evaluations lies above that of 2·lag, shape (B, m, K).

    The baseline stands for evaluations that there were not yet. The longer level has the shorter one in it,
    so the variances of the two are subtracted (Hausman, 1978).
    """
    kept = min(history.count, design.kept)
    longer = np.minimum(design.windows[1], kept - since)
    weight = longer + np.minimum(design.passes[..., None], design.windows[1] - longer)
    before = history.sums[..., -1 - since]
    level = (before - history.sums[..., -1 - since - length]) / length
    of_longer = before - history.sums[..., -1 - since - longer] + (weight - longer) * design.score[..., None]
    error = np.sqrt((design.noise * wider)[..., None] * np.maximum(1 / length - 1 / weight, 0.0))
    return np.asarray(level >= of_longer / weight + RISEN * error)


def readings(design: Design, history: ScoreHistory, accepted: float) -> tuple[Array, Array]:
    """Log odds of the start chart and of the plateau chart, nats, (B, m), after at least one evaluation."""
    wider = dispersion(design, history.means)
    odds_of_change, risen = plateau_odds(design, history, accepted, wider)
    return log_sum(start_odds(design, history, accepted, wider)), log_sum(odds_of_change * risen)


class Fall(NamedTuple):
    """From the mean score of a few evaluations, `before`, to that of the newest ones, `now`; so many."""

    before: float
    now: float
    evaluations: int


def fall_from_fresh(design: Design, history: ScoreHistory) -> Fall | None:
    """How far the newest evaluations of one run lie below the best earlier ones, if that is no noise.

    The plateau chart asks for a level of lag/2 evaluations, and for more evidence than this. It is told, and
    stops nothing, for the best of many short levels is a biased one, which FALLEN allows for roughly.
    """
    means = history.means[0, 0]
    wider = float(dispersion(design, history.means)[0, 0])
    for then, since in product(FRESH, FRESH):
        if then + since > len(means):
            continue
        levels = np.convolve(means[:-since], np.full(then, 1 / then), mode="valid")
        before, now = float(levels.max()), float(means[-since:].mean())
        noise = wider * float(design.variance(np.array([[(before + now) / 2]]))[0, 0])
        if before - now - design.accepted >= FALLEN * math.sqrt(noise * (1 / then + 1 / since)):
            return Fall(before, now, since)
    return None


def seen_after(design: Design, levels: tuple[float, float], drop: float) -> int | None:
    """Evaluations after a sudden drop from the start until a chart alarms, if none of them had noise.

    None if not within the horizon. With noise about half of the runs take longer.
    """
    history = ScoreHistory.empty()
    for t in range(1, design.horizon + 1):
        history = history.add(design, design.score - drop)
        found = readings(design, history, design.accepted)
        if any(float(nats[0, 0]) >= level for nats, level in zip(found, levels, strict=True)):
            return t
    return None


def lacks(strata: Strata) -> str:
    """What the baseline lacks for thresholds, in a sentence; "" if nothing."""
    items, samples = len(strata.groups), len(strata.groups) * strata.precision
    if samples >= FEWEST:
        return ""
    return (
        f"{items} items (those of one group are one) with {strata.precision} samples each of the starting "
        f"policy are too few to say how often it would stop a run in which nothing changes: items times "
        f"samples must be at least {FEWEST}, and are {samples}"
    )


def thresholds(strata: Strata, config: CalibratedPolicy, alpha: float) -> tuple[float, float]:
    """Thresholds of the start and the plateau chart, nats, for `alpha` false stops (a second of work).

    Infinite for a baseline of fewer than FEWEST samples: no chart judges what they cannot be simulated from.
    """
    if lacks(strata):
        return math.inf, math.inf
    design, history = Design.of(strata, config), ScoreHistory.empty(1, config.bootstrap_runs)
    start, plateau, always = (np.empty((config.horizon, config.bootstrap_runs)) for _ in range(3))
    means, onset = dipping_runs(strata, config)
    for t in range(config.horizon):
        history = history.add(design, means[None, t])
        wider = dispersion(design, history.means)
        found, risen = plateau_odds(design, history, design.accepted, wider)
        start[t] = log_sum(start_odds(design, history, design.accepted, wider))[0]
        plateau[t], always[t] = log_sum(found * risen)[0], log_sum(found)[0]
    # A decline before there can be a plateau says nothing of those from one.
    from_plateau = always[:, onset >= design.windows[0]]
    few = math.floor(FROM_PLATEAU * alpha * from_plateau.shape[1])
    of_plateau = exceeded_by(confirmed(from_plateau), few, alpha)
    stopped = math.floor(alpha * config.bootstrap_runs)
    either = np.where(plateau >= of_plateau, np.inf, start)
    return exceeded_by(confirmed(either), stopped, alpha), of_plateau


def confirmed(nats: Array) -> Array:
    """The highest level that each run reaches in two evaluations in a row: (T, runs) -> (runs,)."""
    if len(nats) < 2:
        return np.full(nats.shape[1], -np.inf)
    return np.asarray(np.minimum(nats[:-1], nats[1:]).max(axis=0))


def exceeded_by(highest: Array, runs: int, alpha: float) -> float:
    """The level that the highest statistic of at most so many runs exceeds.

    Without such a level, because the horizon or the simulation is too short, log(1/alpha): the sum of the
    prior weights over the horizon is at most 1, so this is what Ville's inequality asks for.
    """
    falling = np.sort(highest)[::-1]
    known = runs > 0 and math.isfinite(falling[runs])
    # Near 0 and 1 many runs tie: what they all reach must alarm none of them.
    return float(falling[runs]) + TIE if known else math.log(1 / alpha)


def null_runs(strata: Strata, config: CalibratedPolicy) -> Array:
    """Means of the evaluations of simulated runs in which nothing changes, shape (T, runs).

    The mean of a group of m items that share a Beta(a, b) posterior has the posterior's mean and 1/m of its
    variance: a Beta with a + b = m(a + b + 1) - 1. Given that mean, the sum is binomial but for the
    differences between its items, which take 1/(a + b + 1) of its variance away. The prior's mean is an
    estimate too: it shifts all groups together by their shrinkage, with the variance that makes the variance
    of the overall mean that of R·k samples of each of n items.
    """
    rng = np.random.default_rng(config.seed)
    weight = sum(strata.prior)
    centres = drawn_centres(rng, strata, config.bootstrap_runs)
    sharp = np.maximum(strata.sizes * (weight + strata.precision + 1) / strata.dispersion - 1, INSIDE)
    means = rng.beta(centres * sharp, (1 - centres) * sharp)
    trials = (strata.sizes * config.samples).astype(np.int64)
    narrower = math.sqrt(1 - 1 / (weight + strata.precision + 1))
    expected = trials * means
    total = expected.sum(axis=-1)
    drawn = np.stack([rng.binomial(trials, means).sum(axis=-1) for _ in range(config.horizon)])
    return np.asarray((total + math.sqrt(strata.dispersion) * narrower * (drawn - total)) / trials.sum())


def dipping_runs(strata: Strata, config: CalibratedPolicy) -> tuple[Array, Indices]:
    """The same runs, but that each is `max_decline` lower for DIP evaluations, from anywhere: (T, runs); and
    the first of these evaluations.
    """
    means = null_runs(strata, config)
    onset = np.random.default_rng([config.seed, 1]).integers(0, config.horizon, config.bootstrap_runs)
    since = np.arange(config.horizon)[:, None] - onset
    return np.asarray(means - config.max_decline * ((since >= 0) & (since < DIP))), onset


def drawn_centres(rng: np.random.Generator, strata: Strata, runs: int) -> Array:
    """Centres of the groups with the error of the prior's mean m, which all items share, shape (runs, G).

    That error has a Beta law with mean m and the variance of `prior_error`: near 0 and 1 it is as skewed as
    the posterior of a rare event.
    """
    mean = strata.prior[0] / sum(strata.prior)
    weight = mean * (1 - mean) / prior_error(strata) ** 2 - 1
    shift = rng.beta(weight * mean, weight * (1 - mean), size=(runs, 1)) - mean
    return np.clip(strata.centres + shift, INSIDE, 1 - INSIDE)


def prior_error(strata: Strata) -> float:
    """Standard error of what the estimated mean of the prior adds to every item's mean."""
    weight = sum(strata.prior)
    shrinkage = weight / (weight + strata.precision)
    return math.sqrt(
        shrinkage * strata.dispersion * strata.variance / (len(strata.groups) * strata.precision)
    )
