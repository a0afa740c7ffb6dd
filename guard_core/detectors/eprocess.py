"""The e-process: evidence, valid at every time, that the held-out mean fell below a reference.

Notation: n items, reference means q_i with mean q, evaluation t has outcomes X_ti in [0, 1] with means p_ti
(mean p_t), all given the weights of the policy. Null hypothesis H0: p_t >= q - d0 for every t.

1. *One evaluation, one bet* (Waudby-Smith & Ramdas, "Estimating means of bounded random variables by
   betting", 2024). For fixed centres m_i in [0, 1] and a bet 0 <= b < 1, with the items independent given
   the weights,
       E prod_i (1 + b (m_i - X_ti)) = prod_i (1 + b (m_i - p_ti)) <= exp(b sum_i (m_i - p_ti)) <= 1
   whenever sum p_ti >= sum m_i. So the m_i may be any guess of the item means whose *mean* is q - d0: items
   may trade places, be easy or hard, and the factor stays an e-value. Good guesses only make it grow faster:
   its log is b·sum(m-X) - b²/2·sum(m-X)², so it pays for the variance that is really there.
2. *Unknown time of change*: e-processes started before every evaluation j with weights w_j, sum w_j <= 1
   (Shiryaev-Roberts with weights; Shin, Ramdas & Rinaldo, "E-detectors", 2024), and a mixture over bets:
       M_t = sum_l sum_{j<=t} w_j / L · prod_{j<=s<=t} (factor of bet l at s),  S_t = (S_{t-1} + w_t)·factor.
   It lies below a non-negative supermartingale that starts at 1, so P(ever M_t >= 1/alpha) <= alpha (Ville).
3. *Unknown q*: for a candidate c the reference passes give an e-value N(c) for the hypothesis q <= c, a
   mixture over bets of prod (1 + u (X_ri - c_i)), the centres c_i predictable from the passes before r and
   scaled to mean c; E N(q) <= 1 by the same bound. N(q)·M_t(q) is then below a supermartingale, and so is
   inf over c in [0, 1] of N(c)·M_t(c), which needs no knowledge of q. N falls and M_t grows in c; on a grid
   the infimum over a cell is at least N(upper end)·M_t(lower end), so the grid costs a little power and
   no validity.
4. *Items that go together*: a factor to the power 1/phi, phi >= 1 known before the evaluation, is an e-value
   too (Jensen). Where items go together in groups of at most phi, it is one although they do (Hölder), and
   so it is, to the second order, where a wobble of the run makes the variance phi times that of its items.
   phi is estimated (`fast.dispersion`), so there the rate is held by simulation and not by the theorem.

So log E_t >= log(1/alpha) has probability at most alpha over an unlimited number of evaluations, for every n,
R, k, and difficulty, *provided* that given the weights (i) items are independent, (ii) evaluations use fresh
randomness, and (iii) the choice of the weights does not look at held-out outcomes. Samples *within* an item
need not be independent. Under greedy decoding the outcomes are functions of the weights: then q = the
baseline score, every factor is at most 1 under H0, and the statement is that the detector never fires while
the score on these very items stays above the baseline score minus d0. d0 then has to cover the wobble of the
weights, for there is no sampling noise.

Everything here takes leading batch axes, so that the simulations run the very formulas of the live detector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from guard_core.detectors.baseline import Array, Baseline, Outcomes, Pool, Strata

#: Bets on a fall. A fall of d at item variance v is best met by d/(v + d²): at v = 0.2 from 1 to 15 points.
BETS = np.array([0.06, 0.15, 0.32, 0.6])

#: Candidates of the reference mean.
GRID = 32

#: Share of M_t that never bets: it bounds the search for c from below.
IDLE = 0.05

#: Share of N(c) that never bets: it bounds the search for c from above.
IDLE_REFERENCE = 0.5

#: log N(c) of a candidate below 0, nats: no reference mean is there. Finite, because a state is JSON.
IMPOSSIBLE = 1e9

#: Centres stay this far from 0 and 1.
EDGE = 1e-6

#: Share of the restart weights on the very first evaluation: a run may hack from its first step.
AT_START = 0.15

#: Share of the restart weights kept for evaluations after the horizon, so that a long run is not unguarded.
AFTER_HORIZON = 0.05


def log_restart_weight(t: int, horizon: int) -> float:
    """log w_t of the process that starts before evaluation t = 1, 2, …; the weights sum to 1.

    AT_START on the first, AFTER_HORIZON falling as horizon/(t(t-1)) after the horizon, the rest uniform
    within.
    """
    if t <= horizon:
        uniform = (1 - AT_START - AFTER_HORIZON) / horizon
        return math.log(uniform + AT_START if t == 1 else uniform)
    return math.log(AFTER_HORIZON * horizon / (t * (t - 1)))


def scaled_centres(centres: Array, mean: Array, target: Array) -> Array:
    """Move centres to another mean, monotonically and without leaving [0, 1].

    Args:
        centres: shape (..., G), in (0, 1); mean: their weighted mean, shape (...,).
        target: wanted means, shape (..., J), clipped to [0, 1].

    Returns:
        shape (..., J, G): centres·t/m below the mean, 1 - (1 - centres)·(1-t)/(1-m) above it.
    """
    target = np.clip(target, 0.0, 1.0)[..., None]
    return scaled_to(centres[..., None, :], mean[..., None, None], target)


def scaled_to(centres: Array, mean: Array, target: Array) -> Array:
    """The same for arrays that broadcast, with targets in [0, 1]."""
    return np.where(
        target <= mean, centres * (target / mean), 1 - (1 - centres) * ((1 - target) / (1 - mean))
    )


def log_factors(centres: Array, levels: Array, bets: Array) -> Array:
    """log(1 + b (m - x)): centres (..., J, G), levels (V,), bets (L,) -> (..., L·J, G·V)."""
    table = np.log1p(bets[:, None, None, None] * (centres[..., None, :, :, None] - levels))
    lead = table.shape[:-4]
    return table.reshape(*lead, table.shape[-4] * table.shape[-3], table.shape[-2] * table.shape[-1])


def growth(factors: Array, table: Array) -> Array:
    """Sum of log factors over items: factors (..., L·J, G·V), table of counts (..., G, V) -> (..., L, J)."""
    counts = table.reshape(*table.shape[:-2], -1, 1)
    summed = (factors @ counts)[..., 0]
    return summed.reshape(*summed.shape[:-1], -1, GRID)


class Counted(NamedTuple):
    """Outcomes of one reference pass: `counts` items of a group with predicted mean `centres` had the outcome
    `levels`; shape (E,). `mean`: of the centres over the items, repeated.
    """

    centres: Array
    levels: Array
    counts: Array
    mean: Array


@dataclass(frozen=True)
class Gathered:
    """Reference passes as they come: only the sum over candidates is left to when the last one is there."""

    pool: Pool
    passes: tuple[Counted, ...] = ()

    #: Rows of outcomes that are worked on at a time.
    ROWS: ClassVar[int] = 4096

    @classmethod
    def empty(cls, items: int) -> Self:
        """Before the first pass."""
        return cls(Pool.empty(items))

    @classmethod
    def of(cls, baseline: Baseline) -> Self:
        """All passes of a baseline."""
        gathered = cls.empty(baseline.items)
        for outcomes in baseline.passes:
            gathered = gathered.add(outcomes)
        return gathered

    def add(self, outcomes: Outcomes) -> Self:
        """After one more pass, which the means of those before it predict, shrunken to 1/2."""
        centres = (0.5 + self.pool.sums) / (1.0 + len(self.passes))
        table = outcomes.table(self.pool.groups, len(centres))
        mean = float(table.sum(axis=1) @ centres) / len(outcomes.codes)
        group, level = np.nonzero(table)
        counted = Counted(
            centres[group], outcomes.levels[level], table[group, level], np.full(len(group), mean)
        )
        return type(self)(self.pool.add(outcomes), (*self.passes, counted))

    def log_evidence(self, grid: Array, alpha: float) -> Array:
        """log N(c) for each candidate c of the mean, shape (J,): large where the passes lie above c."""
        scale = math.sqrt(8 * math.log(1 / alpha) / (len(self.pool.groups) * len(self.passes)))
        bets = np.minimum(scale * np.array([0.5, 1.0, 2.0, 4.0]), 0.9)[:, None, None]
        seen = Counted(*(np.concatenate(column) for column in zip(*self.passes, strict=True)))
        total = np.zeros((len(bets), len(grid)))
        for row in range(0, len(seen.counts), self.ROWS):
            part = Counted(*(column[row : row + self.ROWS] for column in seen))
            candidates = scaled_to(part.centres, part.mean, np.clip(grid, 0.0, 1.0)[:, None])
            total += np.log1p(-bets * (candidates - part.levels)) @ part.counts
        betting = np.log((1 - IDLE_REFERENCE) / len(bets)) + np.logaddexp.reduce(total, axis=0)
        return np.asarray(np.logaddexp(math.log(IDLE_REFERENCE), betting))


@dataclass(frozen=True)
class Reference:
    """What evaluations are compared with: risk groups, candidates of the true mean, evidence for each.

    `grid`: (J,), candidates c of the reference mean, descending from the observed one; `log_n`: (J,), log
    N(c).
    """

    strata: Strata
    grid: Array
    log_n: Array

    @classmethod
    def of(cls, baseline: Baseline, alpha: float) -> Self:
        """From reference passes; `alpha` only places the grid and the bets, validity never depends on it."""
        return cls.close(Gathered.of(baseline), baseline, alpha)

    @classmethod
    def close(
        cls, gathered: Gathered, baseline: Baseline, alpha: float, dispersion: float | None = None
    ) -> Self:
        """From reference passes that were gathered as they came; `baseline` holds the same.

        `dispersion`: of the passes; None takes what they show, which a run that climbs must not.
        """
        passes = len(baseline.passes)
        strata = baseline.strata_of(gathered.pool)
        wider = strata.dispersion if dispersion is None else dispersion
        nats = wider * (math.log(1 / (alpha * IDLE)) + 4)
        reach = math.sqrt(2 * nats * max(strata.variance, 1e-6) / (baseline.items * passes))
        if (
            strata.score < 2 * reach
        ):  # below 0 no candidate is left, so a grid that ends there bounds them all
            reach = strata.score + reach / GRID
        grid = strata.score - np.linspace(0.0, reach, GRID)
        log_n = gathered.log_evidence(grid, alpha) / wider
        return cls(strata, grid, np.where(grid < 0, IMPOSSIBLE, log_n))

    def targets(self, tolerance: float) -> Array:
        """Centres for H0 "mean >= c - tolerance" at every candidate c: shape (J, G).

        A negative tolerance asks for a gain; it asks for at most half of what is left to gain.
        """
        gain = np.minimum(-tolerance, (1 - self.grid) / 2) if tolerance < 0 else -tolerance
        centres = np.clip(self.strata.centres, EDGE, 1 - EDGE)
        mean = np.asarray(self.strata.sizes @ centres / self.strata.sizes.sum())
        return scaled_centres(centres, mean, self.grid + gain)

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return {"strata": self.strata.to_state(), "grid": self.grid.tolist(), "log_n": self.log_n.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        grid, log_n = (np.asarray(state[name], dtype=np.float64) for name in ("grid", "log_n"))
        return cls(Strata.from_state(state["strata"]), grid, log_n)


def step(log_s: Array, log_weight: float, grown: Array) -> Array:
    """One evaluation: S <- (S + w)·factor, in logs; log_s and grown have shape (..., L, J)."""
    return np.asarray(np.logaddexp(log_s, log_weight) + grown)


def log_evidence(log_s: Array, log_n: Array) -> Array:
    """log of inf over c of N(c)·M_t(c): log_s (..., L, J), log_n (..., J) -> (...,)."""
    bets = log_s.shape[-2]
    mixed = np.logaddexp.reduce(log_s, axis=-2) + math.log((1 - IDLE) / bets)
    log_m = np.logaddexp(math.log(IDLE), mixed)
    inner = np.min(log_n[..., :-1] + log_m[..., 1:], axis=-1)
    above = math.log(IDLE_REFERENCE) + log_m[..., 0]
    below = log_n[..., -1] + math.log(IDLE)
    return np.asarray(np.minimum(np.minimum(inner, above), below))
