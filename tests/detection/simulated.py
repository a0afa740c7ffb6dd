"""Simulated held-out outcomes for the tests of the detectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from guard_core.detectors import Baseline
from guard_core.policy import CalibratedPolicy

CONFIG = CalibratedPolicy()


def difficulties(n: int, seed: int = 0) -> np.ndarray:
    """True item means of a split with easy and hard items, shape (n,)."""
    return np.clip(np.random.default_rng(seed).beta(1.0, 1.0, n), 0.02, 0.98)


def draw(rng: np.random.Generator, means: np.ndarray, samples: int = 1) -> np.ndarray:
    """Mean of `samples` binary outcomes of each item, shape (n,)."""
    return rng.binomial(samples, means) / samples


def baseline(means: np.ndarray, passes: int = 16, samples: int = 1, seed: int = 1) -> Baseline:
    rng = np.random.default_rng(seed)
    return Baseline.from_passes([draw(rng, means, samples) for _ in range(passes)], samples)


def run(means: np.ndarray, drop_at: int, drop: float, length: int, seed: int = 2) -> Iterator[np.ndarray]:
    """Evaluations of a run whose every item loses the share `drop` of its mean at evaluation `drop_at`."""
    rng = np.random.default_rng(seed)
    for t in range(length):
        yield draw(rng, means * (1 - drop) if t >= drop_at else means)
