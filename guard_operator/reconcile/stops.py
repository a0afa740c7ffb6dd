"""How far the stop of each run is, as this process decided it: its time goes on whoever writes the job.

It stands in the status, for the operator that comes after this one. But whoever changes a job faster than a
cache follows keeps it from being written there, and whoever may write the status can change it or take it
away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from guard_operator.api.types import MadeRef, StopMethod, StopStatus
from guard_operator.reconcile.snapshot import Job

#: A run that is being stopped is looked at more often than this, seconds: what was not since is gone.
FORGET_SECONDS = 600.0
_HARDNESS = {
    StopMethod.STOP: 0,
    StopMethod.SUSPEND: 0,
    StopMethod.DELETE: 1,
    StopMethod.DELETE_PODS: 2,
}


class StopClock:
    """See the module. Safe for any number of threads; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[StopStatus, float]] = {}
        self._made: dict[str, tuple[MadeRef, ...]] = {}

    def asked(self, job: Job) -> StopStatus | None:
        """What was asked for to stop this run, by its status or by what was noted: whatever is further."""
        with self._lock:
            noted, _ = self._asked.get(job.uid, (None, 0.0))
        written = job.status.stop
        if noted is None or written is None:
            return noted or written
        return noted if _is_of_a_later_try(noted, written) else max(noted, written, key=_how_far)

    def made(self, job: Job) -> tuple[MadeRef, ...]:
        """What was to be noted of what its workload has made: that may be gone before it is written down."""
        with self._lock:
            return self._made.get(job.uid, ())

    def note(self, job_uid: str, stop: StopStatus | None, made: Iterable[MadeRef] = ()) -> None:
        """This was decided; None: no stop is under way. `made`: what its workload has made."""
        now = self._clock()
        with self._lock:
            self._asked.pop(job_uid, None)
            self._asked = {uid: one for uid, one in self._asked.items() if now - one[1] < FORGET_SECONDS}
            if stop is not None:
                self._asked[job_uid] = stop, now
                self._made[job_uid] = tuple(made)
            self._made = {uid: one for uid, one in self._made.items() if uid in self._asked}


def _how_far(stop: StopStatus) -> tuple[int, float]:
    """The harder way is further, and of one way that which was asked for earlier."""
    return _HARDNESS[stop.method], -stop.requested_at.timestamp()


def _is_of_a_later_try(noted: StopStatus, written: StopStatus) -> bool:
    """Whether the run that was called stopped, as it is written, was resumed, and this asked of it since."""
    ended = written.stopped_at
    as_hard = _HARDNESS[noted.method] >= _HARDNESS[written.method]
    return ended is not None and as_hard and noted.requested_at > ended
