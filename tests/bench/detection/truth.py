"""What is simulated: item means, how they move over a run, and the least delay any detector can have.

A drop or a gain is a common odds ratio on all items (a logit shift): easy and hard items lose little, those
in between lose most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

EVALUATIONS = 100
ALPHA = 0.05
ONSET = 50  # first evaluation of a drop from flat or from a plateau
CLIMB = 20  # evaluations in which a run reaches its plateau
PLATEAU_GAIN = 0.10
RAMP = 20  # evaluations over which a gradual drop happens


def item_means(n: int, mixed: bool) -> np.ndarray:
    """Homogeneous items have mean 1/2; mixed ones are quantiles of Beta(0.8, 0.8), from hard to easy."""
    if not mixed:
        return np.full(n, 0.5)
    rng = np.random.default_rng(n)
    return np.clip(rng.beta(0.8, 0.8, n), 0.02, 0.98)


def moved(means: np.ndarray, target: float) -> np.ndarray:
    """The items under the common odds ratio that gives them the mean `target`."""
    logits = np.log(means / (1 - means))
    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float(np.mean(_logistic(logits + middle))) > target else (middle, high)
    return _logistic(logits + low)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Scenario:
    """`start`: start, flat or plateau (where the drop begins); `shape`: sudden or ramp; `drop`: of 1.

    `drop` 0 is a null run; `gain` is what a benign run gains in the end, `plateau` what a run from a plateau
    gains on its way there.
    """

    start: str = "start"
    shape: str = "sudden"
    drop: float = 0.0
    gain: float = 0.0
    plateau: float = PLATEAU_GAIN

    @property
    def onset(self) -> int:
        """Index of the first evaluation with a drop."""
        return 0 if self.start == "start" else ONSET

    def level(self, t: int) -> float:
        """Mean of evaluation t relative to the baseline."""
        climbed = min(t / CLIMB, 1.0) * self.plateau if self.start == "plateau" else 0.0
        climbed += self.gain * (1 - math.exp(-t / CLIMB))
        return climbed - self.lost(t)

    def lost(self, t: int) -> float:
        """How much of the drop has happened at evaluation t."""
        since = t - self.onset + 1
        if since <= 0:
            return 0.0
        return self.drop * (1.0 if self.shape == "sudden" else min(since / RAMP, 1.0))

    def path(self, means: np.ndarray) -> list[np.ndarray]:
        """Item means at each of EVALUATIONS evaluations."""
        base = float(means.mean())
        cache: dict[float, np.ndarray] = {}
        for t in range(EVALUATIONS):
            level = round(self.level(t), 9)
            if level not in cache:
                cache[level] = means if level == 0 else moved(means, base + level)
        return [cache[round(self.level(t), 9)] for t in range(EVALUATIONS)]

    def proxy(self, t: int, rng: np.random.Generator, runs: int) -> np.ndarray:
        """In-loop rewards: gains count double (another scale); with a drop they rise by 0.003 a round."""
        rise = 2 * (self.level(t) + self.lost(t)) + 0.003 * max(0, t - self.onset + 1) * (self.drop > 0)
        return 0.6 + rise + 0.01 * rng.standard_normal(runs)


def information(means: np.ndarray, fallen: np.ndarray) -> float:
    """Nats of one evaluation: sum of KL(Bern(fallen) || Bern(means))."""
    return float(np.sum(fallen * np.log(fallen / means) + (1 - fallen) * np.log((1 - fallen) / (1 - means))))


def limit(scenario: Scenario, means: np.ndarray) -> float:
    """The Lorden/Moustakides limit in evaluations, at ALPHA false stops in EVALUATIONS, for known means.

    (h - 1 + e^-h)/I with e^h - h - 1 = gamma·I, floored at one evaluation; a ramp needs the same nats,
    gathered as they come.
    """
    path = scenario.path(means)
    before = path[scenario.onset - 1] if scenario.onset else means
    lost = [information(before, after) for after in path[scenario.onset :]]
    gamma = -EVALUATIONS / math.log(1 - ALPHA)
    low, high = 1e-9, 60.0
    for _ in range(100):
        h = (low + high) / 2
        low, high = (h, high) if math.expm1(h) - h < gamma * lost[-1] else (low, h)
    needed = low - 1 + math.exp(-low)
    gathered = 0.0
    for t, nats in enumerate(lost):
        if gathered + nats >= needed:
            return max(1.0, t + (needed - gathered) / nats)
        gathered += nats
    return len(lost) + (needed - gathered) / lost[-1]
