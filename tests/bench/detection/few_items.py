"""How often `fast` stops a run in which nothing changes, by items and passes: where its thresholds hold.

    python tests/bench/detection/few_items.py 1,1,0.5 32,1,0.5    # items, passes, score; half a minute each

Every evaluation is drawn anew from one policy, so a fresh pass is like the next evaluation. Each baseline has
the thresholds that it gives itself, also those that the detector refuses for being of too few samples.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from guard_core.detectors import PARTS, Baseline, fast
from guard_core.detectors.calibrated import split_alpha
from guard_core.policy import CalibratedPolicy

CONFIG = CalibratedPolicy(bootstrap_runs=400)
EVALUATIONS, BASELINES, RUNS = 100, 24, 60


def measure(items: int, passes: int, score: float) -> tuple[float, float]:
    """Share of the runs stopped, and its standard error with baselines as clusters."""
    rng = np.random.default_rng([1, items, passes, int(1000 * score)])
    alpha, rates = split_alpha(CONFIG, PARTS)["fast"], []
    for _ in range(BASELINES):
        strata = Baseline.from_passes((rng.random((passes, items)) < score).astype(float)).strata
        with mock.patch.object(fast, "FEWEST", 1):
            limits = fast.thresholds(strata, CONFIG, alpha)
        rates.append(stopped(fast.Design.of(strata, CONFIG), limits, items, score, rng))
    return float(np.mean(rates)), float(np.std(rates)) / math.sqrt(BASELINES)


def stopped(
    design: fast.Design, limits: tuple[float, float], items: int, score: float, rng: np.random.Generator
) -> float:
    """Share of RUNS runs in which a chart is at its threshold in two evaluations in a row."""
    history = fast.ScoreHistory.empty(1, RUNS)
    before, ended = np.zeros(RUNS, dtype=bool), np.zeros(RUNS, dtype=bool)
    for _ in range(EVALUATIONS):
        history = history.add(design, rng.binomial(items, score, size=(1, RUNS)) / items)
        charts = fast.readings(design, history, design.accepted)
        alarms = (charts[0][0] >= limits[0]) | (charts[1][0] >= limits[1])
        ended |= before & alarms
        before = alarms
    return float(ended.mean())


if __name__ == "__main__":
    for cell in sys.argv[1:]:
        items, passes, score = cell.split(",")
        rate, error = measure(int(items), int(passes), float(score))
        print(f"{cell}: {rate:.1%} ± {error:.1%}", flush=True)
