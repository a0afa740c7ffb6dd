"""Runs that are simulated from a baseline: nothing changes, or held-out falls while the reward rises. Pure.

A parametric bootstrap: each run draws the true mean of every item from its posterior given the baseline, and
with it the error of the prior's mean, which all items share. So the error of few passes is in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from guard_cli.logs.table import Floats
from guard_core.detectors.baseline import Baseline, Strata
from guard_core.detectors.fast import drawn_centres

#: Evaluations before the fall.
BEFORE = 10

#: Evaluations over which the in-loop reward rises by as much as the held-out score falls.
RISE = 10


@dataclass(frozen=True, slots=True)
class World:
    """What a run is drawn from. `reward_noise`: standard error of a round's mean reward, reward units."""

    strata: Strata
    samples: int
    reward_noise: float
    seed: int

    @classmethod
    def of(cls, baseline: Baseline, reward_noise: float | None, seed: int) -> World:
        """Without a known noise, a round of training is taken to be as noisy as an evaluation."""
        strata = baseline.strata
        noise = math.sqrt(strata.variance / (baseline.items * baseline.samples))
        return cls(strata, baseline.samples, noise if reward_noise is None else reward_noise, seed)

    @property
    def items(self) -> int:
        """n."""
        return len(self.strata.groups)

    def item_means(self, rng: np.random.Generator, runs: int) -> Floats:
        """True item means of `runs` runs, shape (runs, n)."""
        strata = self.strata
        weight = sum(strata.prior) + strata.precision
        centres = drawn_centres(rng, strata, runs)[:, strata.groups]
        return rng.beta(weight * centres, weight * (1 - centres))

    def rewards(self, rng: np.random.Generator, rounds: int, runs: int, drop: float) -> Floats:
        """Mean in-loop reward of each round minus its start, shape (rounds, runs)."""
        rise = np.clip((np.arange(rounds) - BEFORE + 1) / RISE, 0.0, 1.0) * drop
        return rise[:, None] + rng.normal(0.0, self.reward_noise, size=(rounds, runs))


def null_scores(world: World, rounds: int, runs: int) -> tuple[Floats, Floats]:
    """(rewards, held-out scores) of runs in which nothing changes; each of shape (rounds, runs)."""
    rng = np.random.default_rng(world.seed)
    return world.rewards(rng, rounds, runs, 0.0), _scores(world, rng, world.item_means(rng, runs), rounds)


def hack_scores(world: World, rounds: int, runs: int, drop: float) -> tuple[Floats, Floats]:
    """(rewards, held-out scores) of runs whose held-out mean falls by `drop` after `BEFORE` rounds."""
    rng = np.random.default_rng([world.seed, round(drop * 1e6)])
    means = world.item_means(rng, runs)
    before = _scores(world, rng, means, BEFORE)
    after = _scores(world, rng, fallen(means, drop), rounds - BEFORE)
    return world.rewards(rng, rounds, runs, drop), np.concatenate([before, after])


def _scores(world: World, rng: np.random.Generator, means: Floats, rounds: int) -> Floats:
    """Means over the items of binomial outcomes, shape (rounds, runs).

    By the normal limit of a sum of n independent outcomes, with the exact mean and variance: n is at least
    dozens, and drawing every outcome would cost a hundred times as much.
    """
    n = means.shape[1]
    centre = means.mean(axis=1)
    spread = np.sqrt((means * (1 - means)).mean(axis=1) / (n * world.samples))
    return np.clip(rng.normal(centre, spread, size=(rounds, len(means))), 0.0, 1.0)


def fallen(means: Floats, drop: float) -> Floats:
    """Item means of each run after their odds fell by one common factor that lowers the mean by `drop`.

    Args:
        means: shape (runs, n).
        drop: fraction of 1; a run whose mean is below it falls to (nearly) nothing.
    """
    low, high = np.zeros((len(means), 1)), np.full((len(means), 1), 20.0)
    target = means.mean(axis=1, keepdims=True) - drop
    for _ in range(40):
        middle = (low + high) / 2
        enough = _lowered(means, middle).mean(axis=1, keepdims=True) <= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return _lowered(means, high)


def _lowered(means: Floats, log_odds: Floats) -> Floats:
    scaled = means * np.exp(-log_odds)
    return np.asarray(scaled / (1 - means + scaled))


def information(strata: Strata, samples: int, drop: float, items: int) -> float:
    """Nats that one evaluation of `items` items like these gives of a drop.

    The sum over the items of KL(Bern(q') || Bern(q)), q' by one common odds ratio.
    """
    means = np.clip(strata.centres, 1e-3, 1 - 1e-3)[None, :]
    share = strata.sizes / strata.sizes.sum()
    low, high = 0.0, 20.0
    target = float(share @ means[0]) - drop
    for _ in range(40):
        middle = (low + high) / 2
        enough = float(share @ _lowered(means, np.array([[middle]]))[0]) <= target
        low, high = (low, middle) if enough else (middle, high)
    q, worse = means[0], _lowered(means, np.array([[high]]))[0]
    divergence = worse * np.log(worse / q) + (1 - worse) * np.log((1 - worse) / (1 - q))
    return float(share @ divergence) * items * samples


def least_delay(nats: float, rate: float, horizon: int) -> float:
    """Evaluations that even the best test needs on average after a sudden change (Lorden; Moustakides).

    Brownian form: delay = (h - 1 + e^-h) / I with e^h - h - 1 = gamma I, at least one evaluation; gamma is
    the mean time to a false alarm, horizon / -log(1 - rate).
    """
    if nats <= 0.0:
        return math.inf
    wanted = horizon / -math.log1p(-rate) * nats
    low, high = 0.0, 100.0
    for _ in range(80):
        h = (low + high) / 2
        low, high = (h, high) if math.expm1(h) - h < wanted else (low, h)
    return max(1.0, (high - 1 + math.exp(-high)) / nats)
