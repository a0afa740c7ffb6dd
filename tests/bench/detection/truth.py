"""What is simulated: item means, and how they move over a run.

A drop or a gain is a common odds ratio on all items (a logit shift): easy and hard items lose little, those
in between lose most.
"""

from __future__ import annotations

import numpy as np

EVALUATIONS = 100
CLIMB = 20  # evaluations in which a run reaches its plateau
PLATEAU_GAIN = 0.10


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
