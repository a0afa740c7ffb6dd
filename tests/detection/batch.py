"""`Guaranteed` and `Fast` for many simulated runs at once, for the tests and the benchmark of detection.

Every formula is that of the live detector (`eprocess.py`, `fast.py`) on arrays with leading axes (B, m): m
runs for each of B baselines. Outcomes are binary here. A fire needs two evaluations in a row that alarm, as
in `calibrated.py`, but no evaluation is taken back here. A test holds that both give the same fires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from guard_core.detectors import eprocess, fast
from guard_core.detectors.baseline import Array, Codes, Strata
from guard_core.policy import CalibratedPolicy


class Grouping:
    """Sums the outcomes of B·m runs in the risk groups of their baselines, padded to the largest number of
    groups.

    Args:
        strata: of each of the B baselines, all over n items; runs: m.
    """

    def __init__(self, strata: Sequence[Strata], runs: int) -> None:
        self.count = max(s.count for s in strata)
        self.shape = (len(strata), runs, self.count)
        groups: Codes = np.stack([s.groups for s in strata])
        run = np.arange(len(strata) * runs).reshape(len(strata), runs, 1)
        self._cell = run * self.count + groups[:, None, :]

    def sums(self, outcomes: npt.NDArray[np.bool_]) -> Array:
        """Summed outcomes of each group: (B, m, n) -> (B, m, G)."""
        flat = np.bincount(self._cell[outcomes], minlength=math.prod(self.shape))
        return flat.reshape(self.shape).astype(np.float64)

    def padded(self, rows: Sequence[Array], fill: float) -> Array:
        """Rows of length G_b, one for each baseline, as (B, G)."""
        table = np.full((len(rows), self.count), fill)
        for b, row in enumerate(rows):
            table[b, : len(row)] = row
        return table


def stacked(designs: Sequence[fast.Design]) -> fast.Design:
    """The designs of B baselines, under one policy, as one."""
    arrays = {
        name: np.concatenate([getattr(one, name) for one in designs])
        for name in ("score", "variances", "passes", "dispersion")
    }
    return replace(designs[0], **arrays)


class GuaranteedBatch:
    """`parts.Guaranteed` for B·m runs; `fired` (B, m) latches."""

    def __init__(
        self, config: CalibratedPolicy, references: Sequence[eprocess.Reference], alpha: float, runs: int
    ) -> None:
        self._config, self._threshold = config, math.log(1 / alpha)
        grouping = Grouping([r.strata for r in references], runs)
        targets = [r.targets(config.max_decline) for r in references]
        padded = np.full((len(references), eprocess.GRID, grouping.count), 0.5)
        for b, target in enumerate(targets):
            padded[b, :, : target.shape[1]] = target
        self._sizes = grouping.padded([r.strata.sizes for r in references], 0.0)[:, None, :]
        self._factors = eprocess.log_factors(padded, np.array([0.0, 1.0]), eprocess.BETS)
        self._log_n = np.stack([r.log_n for r in references])[:, None, :]
        self._log_s = np.full((len(references), runs, len(eprocess.BETS), eprocess.GRID), -np.inf)
        self._count = 0
        self._alarm = np.zeros((len(references), runs), dtype=np.bool_)
        self.fired = self._alarm.copy()

    def update(self, sums: Array, dispersion: Array | float = 1.0) -> None:
        """Fold one evaluation of every run: summed outcomes (B, m, G).

        `dispersion`: what `FastBatch` says of it, (B, m); 1 where items are independent and nothing moves.
        """
        self._count += 1
        table = np.stack([self._sizes - sums, sums], axis=-1).reshape(*sums.shape[:2], -1)
        grown = (self._factors @ table.transpose(0, 2, 1)).transpose(0, 2, 1)
        weight = eprocess.log_restart_weight(self._count, self._config.horizon)
        grown = grown.reshape(self._log_s.shape) / np.asarray(dispersion)[..., None, None]
        self._log_s = eprocess.step(self._log_s, weight, grown)
        alarm = eprocess.log_evidence(self._log_s, self._log_n) >= self._threshold
        self.fired |= self._alarm & alarm
        self._alarm = alarm


class FastBatch:
    """`parts.Fast` for B·m runs; `fired` (B, m) latches, `dispersion` is that of the newest evaluation."""

    def __init__(
        self,
        config: CalibratedPolicy,
        strata: Sequence[Strata],
        thresholds: Sequence[tuple[float, float]],
        runs: int,
    ) -> None:
        self._design = stacked([fast.Design.of(one, config) for one in strata])
        self._thresholds = np.asarray(thresholds).T[..., None]
        self._history = fast.ScoreHistory.empty(len(strata), runs)
        self._alarm = np.zeros((len(strata), runs), dtype=np.bool_)
        self.fired = self._alarm.copy()

    def update(self, means: Array) -> None:
        """Fold one evaluation of every run: mean outcomes (B, m)."""
        self._history = self._history.add(self._design, means)
        self.dispersion = fast.dispersion(self._design, self._history.means)
        charts = fast.readings(self._design, self._history, self._design.accepted)
        alarm = (charts[0] >= self._thresholds[0]) | (charts[1] >= self._thresholds[1])
        self.fired |= self._alarm & alarm
        self._alarm = alarm
