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
from dataclasses import dataclass
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


@dataclass(eq=False, slots=True)
class _Worker:
    """`stays`: also while nothing waits. `since`: when it took the key that it is on; None: it is on none."""

    stays: bool = False
    only_fires: bool = False
    since: float | None = None


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
        self._there: set[_Worker] = set()

    def start(self) -> None:
        """Have the first workers take keys, until the queue is closed."""
        for _ in range(self._workers):
            self._hire(_Worker(stays=True))

    def look(self) -> None:
        """Add what is needed now, as far as there are threads. It ends by itself once nothing waits."""
        waiting, urgent = self._queue.load()
        now = time.monotonic()
        with self._lock:
            since = [one.since for one in self._there if not one.only_fires]
            fires = for_fires(urgent, len(self._there) - len(since))
        ages = [0.0 if one is None else now - one for one in since]
        try:
            for _ in range(fires):
                self._hire(_Worker(only_fires=True))
            for _ in range(stand_ins(self._workers, ages, waiting)):
                self._hire(_Worker())
        except RuntimeError as error:  # the limit of threads of the container: those that are there go on
            log.error("no further worker: %s", error)

    def alive(self) -> bool:
        """Whether a worker is there."""
        with self._lock:
            return bool(self._there)

    def _hire(self, worker: _Worker) -> None:
        with self._lock:
            self._there.add(worker)
        try:
            self._thread(lambda: self._take(worker), "worker for fires" if worker.only_fires else "worker")
        except RuntimeError:
            self._leave(worker)
            raise

    def _leave(self, worker: _Worker) -> None:
        with self._lock:
            self._there.remove(worker)

    def _take(self, worker: _Worker) -> None:
        while (key := self._queue.take(wait=worker.stays, only_urgent=worker.only_fires)) is not None:
            worker.since = time.monotonic()
            self._do(key)
            worker.since = None
        self._leave(worker)
