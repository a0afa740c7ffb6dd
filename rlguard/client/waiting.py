"""When training waits for its guard, and for how long at most. The one rule for everybody; pure.

A fire that comes after the policy is ruined has stopped nothing. So the baseline comes before the first step,
a bounded number of checkpoints is unscored, and nobody trains on while an alarm waits for its confirmation.

`Guard` and `GuardCallback` hold training by it. A follower cannot hold its trainer, and says what it would
have waited for. `max_lag` is `RLGUARD_MAX_LAG`, however it is set: by a script, `rlguard run` or a job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlguard.client.client import VerdictView
from rlguard.core.wording import count

#: Seconds that one wait lasts without progress. The limit of a collective is 600 s by default.
STALL_SECONDS = 480.0
#: Seconds that all waits of a run may take together, or this share of the run, whichever is more.
TOTAL_SECONDS, TOTAL_SHARE = 1800.0, 0.25


def reason_to_wait(verdict: VerdictView | None, unsent: int, max_lag: int | None) -> str | None:
    """What training should wait for, in a few words; None: nothing.

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
    return f"{count(unscored, 'unscored checkpoint')} (at most {max_lag})" if unscored > max_lag else None


def lag_that_rotation_leaves(max_lag: int | None, kept: int | None) -> int | None:
    """`max_lag`, or less where rotation would delete a checkpoint before its turn.

    Args:
        max_lag: checkpoints that may be unscored; None: nothing is waited for.
        kept: checkpoints that rotation leaves to wait; None: it deletes none.
    """
    return max_lag if max_lag is None or kept is None else min(max_lag, max(0, kept - 1))


def progress_of(verdict: VerdictView | None) -> tuple[object, ...]:
    """What the guard has finished; it differs after every evaluation, every pass and every second look."""
    if verdict is None:
        return ()
    done = (verdict.evaluated, verdict.failed, verdict.skipped, verdict.baseline_passes)
    return (*done, verdict.next_pass)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one run so far; times are seconds, monotonic.

    Fields:
        began: when the run began.
        finished: seconds of the waits that are over.
        since: when the wait under way began; None: there is none.
        progress_at: when the guard finished something last, or the wait began.
        progress: what it had finished then.
        off: whether training does not wait until the guard has finished something.
        reason: what training waits for; None: it goes on.
        warning: what the user should read now, once; "" if nothing.
        used_up: whether all waits together have reached their limit.
    """

    began: float
    finished: float = 0.0
    since: float | None = None
    progress_at: float = 0.0
    progress: tuple[object, ...] = ()
    off: bool = False
    reason: str | None = None
    warning: str = ""
    used_up: bool = False

    def total(self, now: float) -> float:
        """Seconds that training has waited by now."""
        return self.finished + (0.0 if self.since is None else now - self.since)


def look(waits: Waits, reason: str | None, progress: tuple[object, ...], now: float) -> Waits:
    """Decide at one look whether training waits (`Waits.reason`).

    A wait without progress for `STALL_SECONDS` ends, and training does not wait again until the guard has
    finished something. All waits together end at `TOTAL_SECONDS` or `TOTAL_SHARE` of the run.

    Args:
        waits: as of the look before.
        reason: as of `reason_to_wait`; None also where the guard is lost or says stop.
        progress: what the guard has finished by now.
        now: seconds, monotonic.
    """
    if progress != waits.progress:
        waits = replace(waits, progress=progress, progress_at=now, off=False)
    if reason is None or waits.off:
        return _go_on(waits, now)
    if waits.since is None:
        waits = replace(waits, since=now, progress_at=now)
    if now - waits.progress_at >= STALL_SECONDS:
        return _go_on(
            replace(waits, off=True),
            now,
            f"training goes on unjudged: it waited {now - waits.progress_at:.0f} s for {reason}, and the "
            "guard finished nothing; see its log. It waits again once the guard has finished something",
        )
    if waits.total(now) >= max(TOTAL_SECONDS, TOTAL_SHARE * (now - waits.began)):
        used_up = (
            f"training has waited {waits.total(now) / 60:.0f} min for its guard, the most that it may: it "
            "goes on, and a fire may come late. Save less often, or score fewer items"
        )
        return _go_on(replace(waits, used_up=True), now, "" if waits.used_up else used_up)
    return replace(waits, reason=reason, warning="")


def _go_on(waits: Waits, now: float, warning: str = "") -> Waits:
    return replace(waits, finished=waits.total(now), since=None, reason=None, warning=warning)
