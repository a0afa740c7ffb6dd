"""How long each guard has been silent, as this process saw it, and whether that is one guard or all of them.

No clocks of two machines are compared: a heartbeat is as old as the time since this process saw it change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

#: A guard reports every 15 s, so what is longer than this is a gap, seconds.
GAP_SECONDS = 25.0
#: Guards that one fault silences were last heard within this time of one another, seconds.
AT_ONCE_SECONDS = 20.0
#: Fewer guards than this are no majority that says anything.
FEWEST = 3
#: In the place of a heartbeat where none would count: rank 0 runs without its guard.
UNHEARD = object()


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was heard of one guard: its heartbeat, since when it is this one, and its last gap (from, to).

    `pod`: whose guard it is; in another pod its silence counts anew.
    """

    beat: object
    pod: str
    since: float
    gap: tuple[float, float] | None = None


class HeartbeatClock:
    """See the module. Safe for any number of threads; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def age(self, job_uid: str, beat: object, pod: str = "") -> float:
        """Seconds since `beat` was first seen of this job's guard in this pod."""
        now = self._clock()
        with self._lock:
            known = self._heard.get(job_uid)
            if known is None or (known.beat, known.pod) != (beat, pod):
                self._note(job_uid, beat, pod, now)
            return now - self._heard[job_uid].since

    def heard(self, job_uid: str, beat: datetime) -> None:
        """A report came in. It counts only for a guard that is to report, as `age` was told before."""
        now = self._clock()
        with self._lock:
            known = self._heard.get(job_uid)
            if known is not None and known.beat is not UNHEARD and known.beat != beat:
                self._note(job_uid, beat, known.pod, now)

    def _note(self, job_uid: str, beat: object, pod: str, now: float) -> None:
        known = self._heard.get(job_uid)
        gap = None if known is None else known.gap
        if known is not None and now - known.since > GAP_SECONDS:
            gap = (known.since, now)
        self._heard[job_uid] = _Heard(beat, pod, now, gap)

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
