"""How long each guard has been silent, as this process saw it, and whether that is one guard or all of them.

No clocks of two machines are compared: a heartbeat is as old as the time since this process saw it change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: A guard reports every 15 s, so what is longer than this is a gap, seconds.
GAP_SECONDS = 25.0
#: Guards that one fault silences were last heard within this time of one another, seconds.
AT_ONCE_SECONDS = 20.0
#: Fewer guards than this are no majority that says anything.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was heard of one guard: its heartbeat, since when it is this one, and its last gap (from, to)."""

    beat: object
    since: float
    gap: tuple[float, float] | None = None


class HeartbeatClock:
    """See the module. Safe for any number of threads; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def age(self, job_uid: str, beat: object) -> float:
        """Seconds since `beat` was first seen for this job."""
        now = self._clock()
        with self._lock:
            known = self._heard.get(job_uid)
            if known is None:
                self._heard[job_uid] = _Heard(beat, now)
            elif known.beat != beat:
                gap = (known.since, now) if now - known.since > GAP_SECONDS else known.gap
                self._heard[job_uid] = _Heard(beat, now, gap)
            return now - self._heard[job_uid].since

    def with_most(self, job_uid: str, seconds: float) -> bool:
        """Whether most guards fell silent when this one did, and still are or were within these `seconds`.

        Then the fault is not the guard's: it lies between the guards and the API server, or here.
        """
        now = self._clock()
        with self._lock:
            began = self._heard[job_uid].since
            fell = sum(_fell_silent(one, began, now - seconds) for one in self._heard.values())
            return fell >= FEWEST and 2 * fell > len(self._heard)

    def forget(self, job_uid: str) -> None:
        """Drop a job that is gone, or whose guard is not to report: its silence counts anew."""
        with self._lock:
            self._heard.pop(job_uid, None)


def _fell_silent(one: _Heard, began: float, back_after: float) -> bool:
    """Whether this guard fell silent around `began`, and has not been back since before `back_after`."""
    if abs(one.since - began) <= AT_ONCE_SECONDS:
        return True
    return one.gap is not None and abs(one.gap[0] - began) <= AT_ONCE_SECONDS and one.gap[1] >= back_after
