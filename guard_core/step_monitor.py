"""StepMonitor: KL to the reference at every step, so that a breach does not wait for the next evaluation.

TRL logs the k3 estimator without a clamp: one token with a log-ratio of 10 adds about 22,000 nats to one
step. A median over the last five steps drops such a spike before the EMA sees it; a true drift passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from guard_core.heldout_guard import HeldOutGuard

#: Steps under the median. Five survives two spikes side by side and delays a true drift by two steps.
MEDIAN_WINDOW = 5

#: A KL that is above this at each of the first five steps did not start near 0 (nats/token): the reference is
#: not the starting policy, or the two run in different precision. On-policy, the first step's KL is 0.
STARTS_NEAR_ZERO = 0.05


def starts_away(first: Sequence[float]) -> bool:
    """Whether a run whose first KLs to the reference are these, nats/token, did not start near 0."""
    return len(first) == MEDIAN_WINDOW and min(first) > STARTS_NEAR_ZERO


class StepStatus(NamedTuple):
    """The judgement after one step. KLs are in nats/token; `kl_ema` is None until five steps carried a KL."""

    fire: bool
    reason: str
    step: int
    kl_ema: float | None


class KlMemory(NamedTuple):
    """What a monitor remembers: its newest KLs, how many there were, where they began, their EMA.

    KLs are in nats/token; `fired_reason`: None while it has not latched.
    """

    window: tuple[float, ...] = ()
    seen: int = 0
    start: float = 0.0
    kl_ema: float | None = None
    fired_reason: str | None = None


@dataclass
class StepMonitor:
    """Latches when the EMA of the median-of-5 KL to the reference has risen by more than `kl_hard_stop`.

    The rise is counted from 0; from the median of the first five KLs if none of them was near 0.

    Fields:
        kl_hard_stop: nats/token, > 0; None never latches.
        ema_alpha: weight on the prior, in [0, 1).
        min_steps: steps with a KL before it may latch, >= 0; five are always needed.

    Raises:
        ValueError: naming the field that is out of range or not finite.
    """

    kl_hard_stop: float | None = 0.08
    ema_alpha: float = 0.9
    min_steps: int = 20

    #: Replaced as a whole, so a shallow copy of a monitor is an independent one.
    memory: KlMemory = field(default=KlMemory(), init=False, repr=False)

    def __post_init__(self) -> None:
        # One place says what a valid threshold is.
        limit = HeldOutGuard.kl_hard_stop if self.kl_hard_stop is None else self.kl_hard_stop
        HeldOutGuard(kl_hard_stop=limit, ema_alpha=self.ema_alpha)
        if self.min_steps < 0:
            raise ValueError(f"min_steps must be >= 0, got {self.min_steps!r}")

    @property
    def kl_ema(self) -> float | None:
        """EMA of the median KL, nats/token; None until five steps carried a KL."""
        return self.memory.kl_ema

    @property
    def start(self) -> float:
        """The KL that rises are counted from, nats/token: 0.0 unless the KL did not start near 0."""
        return self.memory.start

    @property
    def rise(self) -> float | None:
        """How far `kl_ema` is above `start`, nats/token; None until `min_steps` (and five) steps had a KL."""
        if self.memory.kl_ema is None or self.memory.seen < self.min_steps:
            return None
        return self.memory.kl_ema - self.memory.start

    @property
    def fired_reason(self) -> str | None:
        """Why the monitor latched, or None."""
        return self.memory.fired_reason

    def update(self, step: int, kl: float) -> StepStatus:
        """Fold the KL to the reference of one step.

        Args:
            step: the trainer's global step, repeated in the status.
            kl: token-mean KL to the reference, nats/token, >= 0.

        Raises:
            ValueError: `kl` is negative or not finite; the monitor is then unchanged.
        """
        if not 0.0 <= kl < math.inf:
            raise ValueError(f"kl must be finite and >= 0 nats/token, got {kl!r}")
        window, seen, start, kl_ema, fired_reason = self.memory
        window, seen = (*window[1 - MEDIAN_WINDOW :], kl), seen + 1
        if seen >= MEDIAN_WINDOW:
            middle = sorted(window)[MEDIAN_WINDOW // 2]
            if seen == MEDIAN_WINDOW and starts_away(window):
                start = middle
            prior = middle if kl_ema is None else kl_ema
            kl_ema = self.ema_alpha * prior + (1.0 - self.ema_alpha) * middle
        self.memory = KlMemory(window, seen, start, kl_ema, fired_reason)
        reason = "" if self.kl_hard_stop is None else self._judge(step, self.kl_hard_stop)
        return StepStatus(bool(reason), reason, step, kl_ema)

    def _judge(self, step: int, limit: float) -> str:
        if self.fired_reason is not None:
            return f"latched: {self.fired_reason}"
        if self.rise is None or self.rise <= limit:
            return ""
        reason = self.sentence(step, limit, "hard stop")
        self.memory = self.memory._replace(fired_reason=reason)
        return reason

    def sentence(self, step: int, limit: float, name: str) -> str:
        """That the KL is above a limit, with the numbers."""
        start = f" over its start at {self.start:.4g}" if self.start else ""
        return (
            f"KL to the reference at step {step} is {self.kl_ema:.4g} nats/token (EMA), above the {name} of "
            f"{limit:g}{start}"
        )
