"""Write the table of thresholds of the detectors: `python tools/thresholds.py`, five minutes on one core.

Runs stand still, or have risen by ten points, and lose exactly what is accepted for eleven evaluations at a
random time. An alarm needs two evaluations in a row, as a fresh pass confirms it. For each ratio of accepted
loss to noise the table has the evidence that a share alpha of these runs reaches in HORIZON evaluations. The
number of baseline passes makes no difference: for 1, 4 and 16 it is the same within 0.1 nats.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from rlguard.core.detectors.statistic import HORIZON, Start, evidence

TABLE = Path(__file__).parents[1] / "rlguard" / "core" / "detectors" / "thresholds.py"
RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
ALPHAS = (0.1, 0.05, 0.02, 0.01, 0.005)
PASSES, RUNS, DIP, RISE, NOISE = 4, 2500, 11, 0.1, 0.03

TEXT = '''"""Thresholds of the statistic, nats, made by `tools/thresholds.py`."""

#: Accepted loss over the noise of one evaluation: the rows.
RATIOS = {ratios}

#: Probability that a run without such a fall reaches it in 100 evaluations: the columns.
ALPHAS = {alphas}

THRESHOLDS = (
{rows}
)
'''


def simulated(ratio: float, passes: int, runs: int, seed: int = 0) -> np.ndarray:
    """Highest evidence of each run that two evaluations in a row reach, nats: shape (runs,)."""
    draw, time = np.random.default_rng(seed), np.arange(HORIZON)
    accepted, start = ratio * NOISE, Start(0.5, NOISE**2, passes, 0.25)
    dips = draw.integers(0, HORIZON, (runs, 1))
    rises = RISE * (np.arange(runs) % 2)[:, None] * np.minimum(time / 20, 1)
    scores = 0.5 + rises - accepted * ((time >= dips) & (time < dips + DIP))
    scores = scores + draw.normal(0, NOISE, scores.shape)
    scores = scores + draw.normal(0, NOISE / math.sqrt(passes), (runs, 1))
    highest, before = np.zeros(runs), np.zeros(runs)
    for t in range(1, HORIZON + 1):
        newest = evidence(scores[:, :t], start, accepted)
        highest, before = np.maximum(highest, np.minimum(before, newest)), newest
    return highest


def main() -> None:
    """Simulate and write the table."""
    rows = []
    for ratio in RATIOS:
        found = np.quantile(simulated(ratio, PASSES, RUNS), [1 - alpha for alpha in ALPHAS])
        rows.append(tuple(round(float(one), 2) for one in found))
        print(ratio, rows[-1], flush=True)
    lines = "\n".join(f"    {row}," for row in rows)
    TABLE.write_text(TEXT.format(ratios=RATIOS, alphas=ALPHAS, rows=lines))


if __name__ == "__main__":
    main()
