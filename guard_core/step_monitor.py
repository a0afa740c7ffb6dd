"""StepMonitor: KL to the reference at every step, so that a breach does not wait for the next evaluation.

TRL logs the k3 estimator without a clamp: one token with a log-ratio of 10 adds about 22,000 nats to one
step. A median over the last five steps drops such a spike before the EMA sees it; a true drift passes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from guard_core.heldout_guard import HeldOutGuard

STATE_VERSION = 2

#: Steps under the median. Five survives two spikes side by side and delays a true drift by two steps.
MEDIAN_WINDOW = 5

#: A KL that is above this at each of the first five steps did not start near 0 (nats/token): the reference is
#: not the starting policy, or the two run in different precision. On-policy, the first step's KL is 0.
STARTS_NEAR_ZERO = 0.05


def median_of_last(values: Sequence[float]) -> float:
    """Median of the last `MEDIAN_WINDOW` values; of an even number the lower middle, never a single spike.

    Raises:
        ValueError: there is no value.
    """
    window = sorted(values[-MEDIAN_WINDOW:])
    if not window:
        raise ValueError("a median needs at least one value")
    return window[(len(window) - 1) // 2]


def starts_away(first: Sequence[float]) -> bool:
    """Whether a run whose first KLs to the reference are these, nats/token, did not start near 0."""
    return len(first) == MEDIAN_WINDOW and min(first) > STARTS_NEAR_ZERO


class StepStatus(NamedTuple):
    """The judgement after one step. KLs are in nats/token; `kl_ema` is None until five steps carried a KL."""

    fire: bool
    reason: str
    step: int
    kl_ema: float | None


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

    _window: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_WINDOW), init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)
    _start: float = field(default=0.0, init=False, repr=False)
    _kl_ema: float | None = field(default=None, init=False, repr=False)
    _fired_reason: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        # One place says what a valid threshold is.
        limit = HeldOutGuard.kl_hard_stop if self.kl_hard_stop is None else self.kl_hard_stop
        HeldOutGuard(kl_hard_stop=limit, ema_alpha=self.ema_alpha)
        if self.min_steps < 0:
            raise ValueError(f"min_steps must be >= 0, got {self.min_steps!r}")

    @property
    def kl_ema(self) -> float | None:
        """EMA of the median KL, nats/token; None until five steps carried a KL."""
        return self._kl_ema

    @property
    def start(self) -> float:
        """The KL that rises are counted from, nats/token: 0.0 unless the KL did not start near 0."""
        return self._start

    @property
    def rise(self) -> float | None:
        """How far `kl_ema` is above `start`, nats/token; None until `min_steps` (and five) steps had a KL."""
        if self._kl_ema is None or self._count < self.min_steps:
            return None
        return self._kl_ema - self._start

    @property
    def fired_reason(self) -> str | None:
        """Why the monitor latched, or None."""
        return self._fired_reason

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
        self._window.append(kl)
        self._count += 1
        if len(self._window) == MEDIAN_WINDOW:
            middle = median_of_last(tuple(self._window))
            if self._count == MEDIAN_WINDOW and starts_away(tuple(self._window)):
                self._start = middle
            prior = middle if self._kl_ema is None else self._kl_ema
            self._kl_ema = self.ema_alpha * prior + (1.0 - self.ema_alpha) * middle
        reason = self._judge(step)
        return StepStatus(bool(reason), reason, step, self._kl_ema)

    def _judge(self, step: int) -> str:
        if self._fired_reason is not None:
            return f"latched: {self._fired_reason}"
        if self.kl_hard_stop is None or self.rise is None or self.rise <= self.kl_hard_stop:
            return ""
        self._fired_reason = self.sentence(step, self.kl_hard_stop, "hard stop")
        return self._fired_reason

    def sentence(self, step: int, limit: float, name: str) -> str:
        """That the KL is above a limit, with the numbers."""
        start = f" over its start at {self._start:.4g}" if self._start else ""
        return (
            f"KL to the reference at step {step} is {self._kl_ema:.4g} nats/token (EMA), above the {name} of "
            f"{limit:g}{start}"
        )

    def to_state(self) -> dict[str, Any]:
        """The whole monitor as plain JSON; floats round-trip exactly."""
        return {
            "version": STATE_VERSION,
            "kl_hard_stop": self.kl_hard_stop,
            "ema_alpha": self.ema_alpha,
            "min_steps": self.min_steps,
            "window": list(self._window),
            "count": self._count,
            "start": self._start,
            "kl_ema": self._kl_ema,
            "fired_reason": self._fired_reason,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild a monitor from `to_state`.

        Raises:
            ValueError: the state is of another version.
            KeyError: a key is missing.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"StepMonitor state has version {state.get('version')!r}; expected {STATE_VERSION}"
            )
        monitor = cls(
            kl_hard_stop=state["kl_hard_stop"], ema_alpha=state["ema_alpha"], min_steps=state["min_steps"]
        )
        monitor._window.extend(state["window"])
        monitor._count, monitor._start = state["count"], state["start"]
        monitor._kl_ema = state["kl_ema"]
        monitor._fired_reason = state["fired_reason"]
        return monitor
