"""How long each guard has been silent, as this process saw it, and whether that is one guard or all of them.

No clocks of two machines are compared: a heartbeat is as old as the time since this process saw it change.
News may come late, and that of one guard later than that of another. So for "at once" it also counts when a
guard said something by its own clock, which is brought to this one's by the quickest of its last reports.
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
#: So many of a guard's last reports bring its clock to this one: one that was set soon counts as it is.
REPORTS_COMPARED = 8
#: In the place of a heartbeat where none would count: rank 0 runs without its guard.
UNHEARD = object()


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was heard of one guard: its heartbeat, since when it is this one, and its last gap (from, to).

    `pod`: whose guard it is; in another pod its silence counts anew. `said`: when it said this, which is
    `since` without the delay of news; `pause`: its last gap by it. `behind`: this clock, as each of its last
    reports came in, less the time that the report had; seconds. `found`: this process has not seen it report
    yet, so it may have been silent for longer than since then.
    """

    beat: object
    pod: str
    since: float
    said: float
    gap: tuple[float, float] | None = None
    pause: tuple[float, float] | None = None
    behind: tuple[float, ...] = ()
    found: bool = True


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
        behind = () if known is None or known.pod != pod else known.behind
        said = now
        if isinstance(beat, datetime):
            behind = (*behind, now - beat.timestamp())[-REPORTS_COMPARED:]
            said = beat.timestamp() + min(behind)
        gap = pause = None
        if known is not None:
            gap = (known.since, now) if known.found or now - known.since > GAP_SECONDS else known.gap
            pause = (known.said, now) if said - known.said > GAP_SECONDS else known.pause
        self._heard[job_uid] = _Heard(beat, pod, now, said, gap, pause, behind, found=known is None)

    def with_most(self, job_uid: str, seconds: float) -> bool:
        """Whether most guards fell silent when this one did, and still are or were within these `seconds`.

        Then the fault is not the guard's: it lies between the guards and the API server, or here.
        """
        now = self._clock()
        with self._lock:
            this = self._heard[job_uid]
            fell = sum(_fell_silent(one, this, now - seconds) for one in self._heard.values())
            return fell >= FEWEST and 2 * fell > len(self._heard)

    def forget(self, job_uid: str) -> None:
        """Drop a job that is gone, or whose guard is not to report: its silence counts anew."""
        with self._lock:
            self._heard.pop(job_uid, None)


def _fell_silent(one: _Heard, this: _Heard, back_after: float) -> bool:
    """Whether `one` fell silent when `this` did, and has not been back since before `back_after`."""
    if abs(one.since - this.since) <= AT_ONCE_SECONDS:
        return True
    # What it said last came in since then, and was said by then: nobody knows that it has said more.
    if one.since > this.since and one.said <= this.said + AT_ONCE_SECONDS:
        return True
    gaps = (one.gap, this.since), (one.pause, this.said)
    return any(gap and abs(gap[0] - began) <= AT_ONCE_SECONDS and gap[1] >= back_after for gap, began in gaps)
