"""Why training stops, and when a wait for the guard is in vain. Values and decisions; no clock."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from guard_client.client import VerdictView
from guard_client.errors import GuardHaltError, GuardLostError
from guard_core import CollapseStopError, TripwireStatus

log = logging.getLogger(__name__)


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


class Stall:
    """Whether the guard gets no further while training waits for it; no wait is without an end.

    Args:
        limit: seconds of one wait in which no checkpoint was scored, nor a pass of the starting policy made.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._lag, self._passes, self._since = 0, 0, 0.0
        #: What says that waiting is in vain; None again at a wait that begins with a lower lag.
        self.reason: str | None = None

    def begin(self, lag: int, now: float) -> None:
        """A wait may begin with this lag, checkpoints, at `now`, seconds."""
        if lag < self._lag:
            self.reason = None
        self._lag, self._since = lag, now

    def look(self, lag: int, passes: int, now: float) -> None:
        """Training has waited until `now`, and the guard made so many passes of the starting policy."""
        if lag < self._lag or passes != self._passes:
            self._lag, self._passes, self._since = min(lag, self._lag), passes, now
        elif self.reason is None and now - self._since >= self.limit:
            self.reason = (
                f"training has waited {self.limit:g} s for the guard, and none of {lag} checkpoints was "
                "scored: does it have a held-out evaluator? Its log says; a slow one needs a higher "
                "unreachable_seconds, or no max_lag"
            )
            log.warning("%s", self.reason)


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
