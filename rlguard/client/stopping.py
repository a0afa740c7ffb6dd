"""Why training stops. Values and decisions; no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlguard.client.client import VerdictView
from rlguard.client.errors import GuardHaltError, GuardLostError
from rlguard.core import CollapseStopError, TripwireStatus


@dataclass(frozen=True, slots=True)
class Stop:
    """Why training stops: a fire (`status`), a halt, or a guard that does not work (`lost`)."""

    reason: str
    status: TripwireStatus | None = None
    lost: bool = False

    @classmethod
    def of(cls, verdict: VerdictView) -> Stop:
        """The stop that this verdict asks for."""
        return cls(f"{verdict.code}: {verdict.reason}", _status_of(verdict) if verdict.fire else None)

    def error(self) -> RuntimeError:
        """The exception that says it."""
        if self.status is not None:
            return CollapseStopError(self.status)
        return GuardLostError(self.reason) if self.lost else GuardHaltError(self.reason)


def _status_of(verdict: VerdictView) -> TripwireStatus:
    """The verdict as the status that `CollapseStopError` carries; numbers that are missing are NaN, not 0."""

    def known(value: float | None) -> float:
        return math.nan if value is None else value

    return TripwireStatus(
        fire=True,
        reason=verdict.reason,
        step=next(step for step in (verdict.latch_step, verdict.step, -1) if step is not None),
        proxy_real_gap=known(verdict.proxy_real_gap),
        in_loop_ema=known(verdict.in_loop_ema),
        heldout_ema=known(verdict.heldout_ema),
        kl_ema=verdict.kl_ema,
    )
