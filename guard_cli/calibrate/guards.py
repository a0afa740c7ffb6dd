"""`HeldOutGuard` over many simulated runs at once, and the thresholds that keep them quiet. Pure.

The arithmetic is that of `guard_core.HeldOutGuard`, operation for operation, so that a test can demand
equality to the last bit. The KL rule is left out: a simulation of outcomes knows no KL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from guard_cli.logs.table import Floats
from guard_cli.replay.attempts import Ints
from guard_core.policy import HeldOutGuardPolicy

#: The minimal rise_eps of a run is searched up to here: no EMA of scores in [0, 1] moves more.
LARGEST_EPS = 1.0
BISECTIONS = 26


@dataclass(frozen=True, slots=True)
class Series:
    """B runs of T rounds: rewards and held-out scores as EMAs, and the gap; each of shape (T, B)."""

    in_loop: Floats
    heldout: Floats
    gap: Floats

    @classmethod
    def of(cls, rewards: Floats, scores: Floats, ema_alpha: float) -> Series:
        """From the mean reward and the held-out score of each round, shape (T, B)."""
        in_loop, heldout = _ema(rewards, ema_alpha), _ema(scores, ema_alpha)
        return cls(in_loop, heldout, (in_loop - in_loop[0]) - (heldout - heldout[0]))


def _ema(values: Floats, alpha: float) -> Floats:
    out = np.empty_like(values)
    out[0] = values[0]
    for t in range(1, len(values)):
        out[t] = alpha * out[t - 1] + (1.0 - alpha) * values[t]
    return out


def streaks(series: Series, rise_eps: float | Floats, always_rising: bool = False) -> Ints:
    """The decline streak after each round, shape (T, B).

    Args:
        series: the runs.
        rise_eps: one for all, or shape (B,).
        always_rising: take the in-loop reward to rise in every round, whatever it does: the worst case.
    """
    streak = np.zeros(series.gap.shape, dtype=np.int64)
    for t in range(1, len(streak)):
        declined = ~(series.heldout[t - 1] - series.heldout[t] <= rise_eps)
        rose = True if always_rising else series.in_loop[t] - series.in_loop[t - 1] > rise_eps
        streak[t] = np.where(declined, streak[t - 1] + (declined & rose), 0)
    return streak


def first_fire(series: Series, policy: HeldOutGuardPolicy) -> Ints:
    """The round, from 1 on, at which each run fires; 0 if it never does. Shape (B,)."""
    fires = (streaks(series, policy.rise_eps) >= policy.decline_patience) | (
        series.gap > policy.max_proxy_real_gap
    )
    fires[: max(policy.min_steps - 1, 0)] = False
    return np.where(fires.any(axis=0), fires.argmax(axis=0) + 1, 0)


def quiet_eps(series: Series, patience: int, min_steps: int, always_rising: bool) -> Floats:
    """For each run the smallest rise_eps (to 1e-8) at which the decline rule stays quiet, shape (B,).

    A larger rise_eps never lengthens a streak, so bisection finds it.
    """
    low, high = np.zeros(series.gap.shape[1]), np.full(series.gap.shape[1], LARGEST_EPS)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        streak = streaks(series, middle, always_rising)[max(min_steps - 1, 0) :]
        fires = (streak >= patience).any(axis=0)
        low, high = np.where(fires, middle, low), np.where(fires, high, middle)
    return high


def largest_gap(series: Series, min_steps: int) -> Floats:
    """For each run the largest gap from `min_steps` on, shape (B,)."""
    return np.asarray(series.gap[max(min_steps - 1, 0) :].max(axis=0))


def joint_thresholds(statistics: Floats, rate: float) -> Floats:
    """Thresholds that at most `rate` of the runs exceed in any rule, the rules being equally strict.

    Args:
        statistics: the largest value of each rule's statistic in each run, shape (B, rules).
        rate: wanted share of runs that exceed any threshold, in (0, 1).

    Returns:
        Shape (rules,): every rule's quantile at one common level, as low as the rate allows.
    """
    low, high = 1.0 - rate, 1.0
    for _ in range(20):
        level = (low + high) / 2
        limits = np.quantile(statistics, level, axis=0, method="higher")
        often = float((statistics > limits).any(axis=1).mean()) > rate
        low, high = (level, high) if often else (low, level)
    return np.asarray(np.quantile(statistics, high, axis=0, method="higher"))


def order_statistics(statistics: Floats, rate: float) -> tuple[Floats, float]:
    """Thresholds from few real runs, and what they support without any assumption but exchangeability.

    A new run exceeds the k-th smallest of m with probability (m + 1 - k) / (m + 1) at most (Wilks 1941); over
    the rules these add up.

    Args:
        statistics: shape (m runs, rules).
        rate: wanted probability that a new good run is stopped.

    Returns:
        The thresholds, shape (rules,), and the probability that they do support: at least `rate` if there
        are too few runs, for then the largest value seen is all there is.
    """
    runs, rules = statistics.shape
    k = min(math.ceil((runs + 1) * (1 - rate / rules) - 1e-9), runs)
    return np.sort(statistics, axis=0)[k - 1], min(1.0, rules * (runs + 1 - k) / (runs + 1))


def runs_needed(rate: float, rules: int) -> int:
    """How many good runs `order_statistics` needs to support `rate`."""
    return math.ceil(rules / rate - 1e-9) - 1
