"""Whether the reward has risen, on its own scale: offset and unit do not matter. Pure.

The reward has *risen* when the rewards after some round lie RISEN standard errors above those before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

#: Standard errors by which the reward must have gained, wherever in 100 rounds that is looked for.
RISEN = 4.5

#: And by which a gain is said to be one.
LIKELY = 3.5

#: Fewest rewards on either side of a rise, once there are twice as many.
WINDOW = 5

#: Rewards with a standard error from which on their noise is known.
KNOWN = 4

#: Degrees of freedom of a standard error, which comes from four steps or more.
_PER_ERROR = 4.0


@dataclass(frozen=True, slots=True)
class Rewards:
    """Mean reward of each round, oldest first, and its standard error where that is known."""

    values: tuple[float, ...]
    errors: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Rise:
    """The reward rose from `low` to `high` at the round with index `at`; `z`: by so many standard errors,
    None while the noise is not known.
    """

    low: float
    high: float
    at: int
    z: float | None

    @property
    def gain(self) -> float:
        """Reward units."""
        return self.high - self.low


def largest_rise(rewards: Rewards) -> Rise | None:
    """The rise at the round where it stands out most; of one that has gone by half, what is left.

    None: too few rewards.
    """
    count = len(rewards.values)
    window = max(1, min(WINDOW, count // 2))
    before = np.arange(window, count - window + 1)
    if count < 2 or not len(before):
        return None
    values = np.asarray(rewards.values)
    sums, after = values.cumsum()[before - 1], count - before
    low, high = sums / before, (values.sum() - sums) / after
    best = int(np.argmax((high - low) / np.sqrt(1 / before + 1 / after)))
    lower, level, newer, newest = (
        float(low[best]),
        float(high[best]),
        int(after[best]),
        float(values[-window:].mean()),
    )
    if newest < (lower + level) / 2:
        level, newer = newest, window
    scale = math.sqrt(1 / int(before[best]) + 1 / newer)
    return Rise(lower, level, int(before[best]), _deviate((level - lower) / scale, rewards))


def noise(rewards: Rewards, enough: int = 2 * WINDOW) -> tuple[float, float] | None:
    """Variance of one reward, and the degrees of freedom that it is known with; None while it is not.

    It is the mean square of the standard errors, which the steps behind each reward give, or that of
    successive rewards (von Neumann, 1941) once there are `enough`; the larger of the two, because steps may
    go together.
    """
    found = []
    known = [error**2 for error in rewards.errors if error is not None]
    if len(known) >= KNOWN:
        found.append((math.fsum(known) / len(known), _PER_ERROR * len(known)))
    if len(rewards.values) >= enough:
        steps = np.diff(rewards.values)
        found.append((float((steps**2).mean()) / 2, 2 * len(steps) / 3))
    variance, freedom = map(max, zip(*found, strict=True)) if found else (0.0, 0.0)
    return (variance, freedom) if variance else None


def _deviate(difference: float, rewards: Rewards) -> float | None:
    """`difference` in units of the noise of one reward; None while that is not known."""
    known = noise(rewards)
    return None if known is None else as_normal(difference / math.sqrt(known[0]), known[1])


def as_normal(t: float, freedom: float) -> float:
    """The normal deviate that is about as rare as Student's t (Wallace, 1959)."""
    wide = math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(wide * (8 * freedom + 1) / (8 * freedom + 3), t)
