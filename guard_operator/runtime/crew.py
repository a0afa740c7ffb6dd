"""The workers: a few that take any key, one more in the place of each that hangs, and some for fires alone.

A request without an answer takes ten seconds, and one look at a job may make several. So a worker that has
been on one key for long is not counted, and a fire that no worker has taken gets one that takes nothing else.
Both up to a limit: what hangs behind one webhook must not take the API server's time from everything else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Generic, TypeVar

from guard_operator.runtime.queue import WorkQueue

K = TypeVar("K")
log = logging.getLogger(__name__)

#: A worker that has been on one key for longer than this hangs, seconds: a look takes far less, on a slow
#: machine, too.
HANGS_SECONDS = 2.0
#: So many workers there are at most, with those that hang.
MOST_WORKERS = 32
#: A fire that no worker has taken for so long gets one of its own, seconds; so many of them at most.
URGENT_SECONDS = 0.5
MOST_FOR_FIRES = 128
#: How often is looked.
TICK_SECONDS = 0.1


def stand_ins(workers: int, ages: Sequence[float], waiting: int) -> int:
    """How many more workers are needed, so that `workers` of them do not hang. Pure.

    Args:
        workers: how many there are while none hangs.
        ages: for how long each that there is has been on its key, seconds; 0 for one that has none.
        waiting: how many keys wait.
    """
    free = sum(age < HANGS_SECONDS for age in ages)
    return max(0, min(workers - free, waiting, max(workers, MOST_WORKERS) - len(ages)))


def for_fires(waits: Sequence[float], there: int) -> int:
    """How many workers are needed for fires that have waited so long (seconds), beside `there`. Pure."""
    late = sum(wait >= URGENT_SECONDS for wait in waits)
    return max(0, min(late, MOST_FOR_FIRES - there))


class Crew(Generic[K]):
    """See the module. `work` does one key; `thread` starts a thread of this name."""

    def __init__(
        self,
        workers: int,
        queue: WorkQueue[K],
        work: Callable[[K], None],
        thread: Callable[[Callable[[], None], str], threading.Thread],
    ) -> None:
        self._workers = workers
        self._queue = queue
        self._do = work
        self._thread = thread
        self._lock = threading.Lock()
        self._names = count()
        self._any: dict[int, float | None] = {}  # each worker that takes any key -> since when it is on one
        self._for_fires = 0

    def start(self) -> None:
        """Have the first workers take keys, until the queue is closed."""
        for _ in range(self._workers):
            self._hire(stays=True)

    def look(self) -> None:
        """Add what is needed now, as far as there are threads. It ends by itself once nothing waits."""
        waiting, urgent = self._queue.load()
        now = time.monotonic()
        with self._lock:
            ages = [0.0 if since is None else now - since for since in self._any.values()]
            fires = for_fires(urgent, self._for_fires)
        try:
            for _ in range(fires):
                self._hire_for_fires()
            for _ in range(stand_ins(self._workers, ages, waiting)):
                self._hire(stays=False)
        except RuntimeError as error:  # the limit of threads of the container: those that are there go on
            log.error("no further worker: %s", error)

    def alive(self) -> bool:
        """Whether a worker is there."""
        with self._lock:
            return bool(self._any) or self._for_fires > 0

    def _hire(self, stays: bool) -> None:
        name = next(self._names)
        with self._lock:
            self._any[name] = None
        try:
            self._thread(lambda: self._take_any(name, stays), "worker")
        except RuntimeError:
            with self._lock:
                del self._any[name]
            raise

    def _hire_for_fires(self) -> None:
        with self._lock:
            self._for_fires += 1
        try:
            self._thread(self._take_fires, "worker for fires")
        except RuntimeError:
            with self._lock:
                self._for_fires -= 1
            raise

    def _take_any(self, name: int, stays: bool) -> None:
        while (key := self._queue.take(wait=stays)) is not None:
            self._note(name, time.monotonic())
            self._do(key)
            self._note(name, None)
        with self._lock:
            del self._any[name]

    def _note(self, name: int, since: float | None) -> None:
        with self._lock:
            self._any[name] = since

    def _take_fires(self) -> None:
        while (key := self._queue.take(wait=False, only_urgent=True)) is not None:
            self._do(key)
        with self._lock:
            self._for_fires -= 1
