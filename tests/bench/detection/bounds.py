"""What any detector could reach that does not know the level: rules that are told the answer in part.

Simulated in the normal limit of the mean outcome, in units of its standard error. A drop from the start: the
rule knows its size, its shape and that it comes at the first evaluation or never, so that only the level is
unknown, of which it has the baseline; its likelihood ratio is then the best sequential test there is. Later
drops: it knows size and shape and, for a plateau, since when the run stands on it; it does not know when the
drop comes. Its Shiryaev-Roberts statistic has a flat prior on level and date.
"""

from __future__ import annotations

import math

import numpy as np
from detection.truth import ALPHA, CLIMB, EVALUATIONS, Scenario

RUNS = 1000


def informed_delay(scenario: Scenario, means: np.ndarray, passes: int, seed: int = 5) -> float:
    """Mean delay, evaluations, of the informed rule at ALPHA false stops in EVALUATIONS."""
    rng = np.random.default_rng(seed)
    sigma = math.sqrt(float((means * (1 - means)).mean()) / len(means))
    begin = CLIMB if scenario.start == "plateau" else 0
    known = 0 if scenario.start == "plateau" else passes
    length, onset = EVALUATIONS - begin, scenario.onset - begin
    shape = np.array([scenario.lost(scenario.onset + t) for t in range(length)]) / sigma
    dates = [0] if scenario.start == "start" else list(range(length))
    baseline = rng.standard_normal(RUNS) / math.sqrt(max(known, 1))
    statistic = _statistic(rng.standard_normal((length, RUNS)), baseline, known, shape, dates)
    threshold = np.quantile(statistic.max(axis=0), 1 - ALPHA)
    seen = rng.standard_normal((length, RUNS))
    seen[onset:] -= shape[: length - onset, None]
    baseline = rng.standard_normal(RUNS) / math.sqrt(max(known, 1))
    over = _statistic(seen, baseline, known, shape, dates) >= threshold
    fires = np.where(over.any(axis=0), over.argmax(axis=0), length)
    return float(np.mean(fires[fires >= onset] - onset + 1))


def _statistic(
    seen: np.ndarray, baseline: np.ndarray, passes: int, shape: np.ndarray, dates: list[int]
) -> np.ndarray:
    """log of the summed likelihood ratios of a drop at each date, the level integrated out: (T, RUNS)."""
    weight = passes + np.arange(1, len(seen) + 1)[:, None]
    centred = (passes * baseline + np.cumsum(seen, axis=0)) / weight
    total = np.full(seen.shape, -np.inf)
    for date in dates:
        lost = np.concatenate([np.zeros(date), shape[: len(seen) - date]])[:, None]
        summed = np.cumsum(lost, axis=0)
        squares = np.cumsum(lost**2, axis=0) - summed**2 / weight
        log_ratio = summed * centred - np.cumsum(lost * seen, axis=0) - squares / 2
        total[date:] = np.logaddexp(total[date:], log_ratio[date:])
    return total
