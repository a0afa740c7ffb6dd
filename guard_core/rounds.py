"""What a round is: the steps since the last evaluated checkpoint, and what is made of them. Pure.

This is the only place that says it. The judge hands the `Round` out, the store keeps it with its evaluation,
and history, status and replay read it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Self

from guard_core.wire import KlKind

#: Steps kept for the next evaluation round. A round's window is rarely 100 steps; the bound is for runs that
#: never announce a checkpoint.
MAX_PENDING = 10_000

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


@dataclass(slots=True)
class KlGate:
    """Which KL may be held against a limit: a token mean to the reference, and 0 only if it can move.

    With beta = 0 the KL is exactly 0 at every step, which says nothing. When it moves, a 0 before it counts
    after all: the run did start at the reference. `moved`: another value than 0 was seen; `was_zero`: 0 was.
    """

    moved: bool = False
    was_zero: bool = False

    def admit(self, kl: float | None, kind: KlKind) -> tuple[float, ...]:
        """The KLs that count from now on, oldest first, nats/token: none, this one, or a 0 and this one."""
        if kl is None or kind != KlKind.REF_TOKEN_MEAN:
            return ()
        if kl and self.moved:  # as of nearly all steps of a run
            return (kl,)
        first = kl != 0.0 and not self.moved
        self.moved = self.moved or kl != 0.0
        before = (0.0,) if first and self.was_zero else ()
        self.was_zero = self.was_zero or kl == 0.0
        return (*before, kl) if self.moved else ()


class StepWindow:
    """Gathers steps until their checkpoint is evaluated."""

    def __init__(self) -> None:
        # (attempt, step, reward, KL that counts) of the steps after the last evaluated checkpoint.
        self._pending: deque[tuple[int, int, float | None, float | None]] = deque(maxlen=MAX_PENDING)
        #: What is known of the KLs so far.
        self.gate = KlGate()

    def __copy__(self) -> Self:
        twin = type(self)()
        twin._pending, twin.gate = self._pending.copy(), replace(self.gate)
        return twin

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def kl_moved(self) -> bool:
        """Whether a KL to the reference other than exactly 0 has been seen."""
        return self.gate.moved

    def add(
        self, attempt: int, step: int, reward: float | None, kl: float | None, kind: KlKind
    ) -> tuple[float, ...]:
        """Keep one step.

        Returns:
            The KLs that may be held against a limit from now on; see `KlGate.admit`.
        """
        counts = self.gate.admit(kl, kind)
        self._pending.append((attempt, step, reward, counts[-1] if counts else None))
        return counts

    def close(self, attempt: int, step: int) -> Window:
        """Take out the steps of `attempt` up to `step`, which was evaluated; earlier ones are dropped."""
        window = [p for p in self._pending if p[0] == attempt and p[1] <= step]
        later = [p for p in self._pending if (p[0], p[1]) > (attempt, step)]
        self._pending = deque(later, maxlen=MAX_PENDING)
        kls = [kl for _, _, _, kl in window if kl is not None]
        rewards = [reward for _, _, reward, _ in window if reward is not None]
        return Window(
            fmean(rewards) if rewards else None,
            median(kls) if kls else None,
            standard_error(rewards),
            len(window),
        )


def standard_error(rewards: Sequence[float]) -> float | None:
    """Standard error of the mean of successive rewards, whatever slow trend there is; None for fewer than 4.

    Half the mean squared successive difference is the variance of one (von Neumann, 1941).
    """
    if len(rewards) < MIN_STEPS:
        return None
    squares = math.fsum((after - before) ** 2 for before, after in pairwise(rewards))
    return math.sqrt(squares / (2 * (len(rewards) - 1) * len(rewards)))
