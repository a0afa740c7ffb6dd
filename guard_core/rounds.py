"""What a round is: the steps since the last evaluated checkpoint, and what is made of them. Pure.

This is the only place that says it. The judge hands the `Round` out, the store keeps it with its evaluation,
and history, status and replay read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Steps of a round from which on they tell the noise of its mean reward.
MIN_STEPS = 4


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that belong to one evaluation: `reward` is their mean, reward units; `kl` the median of their
    KL to the reference, nats/token (one k3 spike would own a mean). None where no step had any.
    `reward_error`: see `standard_error`. `steps`: how many they are.
    """

    reward: float | None
    kl: float | None
    reward_error: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class Round:
    """One evaluation as the judge folded it: its window, and what HeldOutGuard's averages were after it.

    `reward`, `kl`: see `Window`; `rounds`: rounds so far; the EMAs and the gap are in reward units, `kl_ema`
    in nats/token. None where nothing was known. `evidence`: statistic and threshold of each calibrated
    detector after it, nats, where it could judge.
    """

    reward: float | None
    kl: float | None
    rounds: int
    in_loop_ema: float | None
    heldout_ema: float | None
    proxy_real_gap: float | None
    kl_ema: float | None
    evidence: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def standard_error(rewards: Sequence[float]) -> float | None:
    """Standard error of the mean of successive rewards, whatever slow trend there is; None for fewer than 4.

    Half the mean squared successive difference is the variance of one (von Neumann, 1941).
    """
    if len(rewards) < MIN_STEPS:
        return None
    squares = math.fsum((after - before) ** 2 for before, after in pairwise(rewards))
    return math.sqrt(squares / (2 * (len(rewards) - 1) * len(rewards)))
