"""When training waits for its guard, and for how long at most. Decisions over values; no clock, no I/O.

A fire that comes after the policy is ruined has stopped nothing. So the baseline comes before the first step,
a bounded number of checkpoints is unscored, and nobody trains on while an alarm waits for its confirmation.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from guard_client.client import VerdictView

log = logging.getLogger(__name__)

#: Seconds that one wait lasts without progress. The limit of a collective is 600 s by default.
STALL_SECONDS = 480.0
#: Seconds that all waits of a run may take together, or this share of the run, whichever is more.
TOTAL_SECONDS, TOTAL_SHARE = 1800.0, 0.25


def reason_to_wait(verdict: VerdictView | None, unsent: int, max_lag: int | None) -> str | None:
    """What training waits for, in a few words; None: it goes on.

    Args:
        verdict: the guard's newest; None before its first response.
        unsent: checkpoints that are on their way to the guard.
        max_lag: checkpoints that may be unscored; None: nothing is waited for.
    """
    if max_lag is None or (verdict is None and not unsent):
        return None
    unscored = unsent + (0 if verdict is None else verdict.waiting)
    if verdict is None or verdict.last_evaluation is None:
        return "the score of the starting policy" if unscored else None
    if verdict.next_pass == "baseline":
        return f"the baseline: {verdict.baseline_passes} of {verdict.baseline_planned} passes are made"
    if verdict.next_pass == "confirmation":
        return "a second look at the newest checkpoint"
    return f"{unscored} unscored checkpoints (at most {max_lag})" if unscored > max_lag else None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What the guard has finished; it differs after every evaluation and every pass."""

    evaluated: int = 0
    failed: int = 0
    skipped: int = 0
    passes: int = 0
    next_pass: str | None = None  # a second look is over when it changes

    @classmethod
    def of(cls, verdict: VerdictView | None) -> WorkDone:
        """As the verdict counts it; nothing before the first response."""
        if verdict is None:
            return cls()
        done = (verdict.evaluated, verdict.failed, verdict.skipped, verdict.baseline_passes)
        return cls(*done, verdict.next_pass)


class WaitLimit:
    """Bounds the waits of one run.

    A wait without progress for `STALL_SECONDS` ends, and training does not wait again until the guard has
    finished something. All waits together end at `TOTAL_SECONDS` or `TOTAL_SHARE` of the run.

    Args:
        now: seconds, monotonic, at which the run begins.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._waited = 0.0  # seconds of the waits that are over
        self._since: float | None = None  # when the wait under way began
        self._progress_at = now
        self._progress = WorkDone.of(None)
        self._off = False  # until the guard has finished something
        self._said_total = False

    def allows(self, reason: str | None, progress: WorkDone, now: float) -> bool:
        """Whether training waits now. Call it at every look.

        Args:
            reason: as of `reason_to_wait`.
            progress: what the guard has finished by now.
            now: seconds, monotonic.
        """
        if progress != self._progress:
            self._progress, self._progress_at, self._off = progress, now, False
        if reason is None or self._off:
            self._end(now)
            return False
        if self._since is None:
            self._since = self._progress_at = now
        if now - self._progress_at >= STALL_SECONDS:
            self._off = True
            log.warning(
                "training goes on unjudged: it waited %.0f s for %s, and the guard finished nothing; see its "
                "log. It waits again once the guard has finished something",
                now - self._progress_at,
                reason,
            )
        elif self.total(now) >= max(TOTAL_SECONDS, TOTAL_SHARE * (now - self._began)):
            if not self._said_total:
                log.warning(
                    "training has waited %.0f min for its guard, the most that it may: it goes on, and a "
                    "fire may come late. Save less often, or score fewer items",
                    self.total(now) / 60,
                )
            self._said_total = True
        else:
            return True
        self._end(now)
        return False

    def total(self, now: float) -> float:
        """Seconds that training has waited by now."""
        return self._waited + (0.0 if self._since is None else now - self._since)

    def _end(self, now: float) -> None:
        self._waited, self._since = self.total(now), None
