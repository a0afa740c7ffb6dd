"""A deduplicating queue of keys, after controller-runtime's work queue.

A key that waits is there once, however often it is added. A key that is being worked on is given to nobody
else; if it is added meanwhile, it comes again when it is done. Failed keys come back with exponential backoff
of their own, so one broken job does not hold up the others. What is urgent goes before all that is not,
however it comes: as news, at its time, or after a failure.

A request without an answer takes ten seconds, and one look at a job may make several. So a key that has been
worked on for long is not counted, up to a limit, and what is urgent waits for no other key.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from rlguard.operator.runtime.backoff import Backoff
from rlguard.operator.runtime.metrics import OperatorMetrics

K = TypeVar("K", bound=Hashable)

BASE_SECONDS = 0.05
CAP_SECONDS = 60.0
#: A key that was taken longer ago than this hangs: a look takes far less, on a slow machine, too.
HANGS_SECONDS = 2.0
#: So many keys that are not urgent are worked on at most, with those that hang: what hangs behind one webhook
#: must not take the API server's time from everything else.
MOST_KEYS = 32
#: The same of all keys.
MOST_URGENT = 160
#: How often is looked whether a key hangs, while others wait.
TICK_SECONDS = 0.1


class WorkQueue(Generic[K]):
    """See the module. Safe for any number of threads. `workers` keys are worked on that do not hang."""

    def __init__(
        self, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic, workers: int = 4
    ) -> None:
        self._active = metrics.active_workers
        self._clock = clock
        self._workers = workers
        self._changed = threading.Condition()
        self._waiting: OrderedDict[K, None] = OrderedDict()
        self._urgent: OrderedDict[K, None] = OrderedDict()  # a key is in one of them
        self._working: dict[K, float] = {}  # key -> since when
        self._again: set[K] = set()  # added while being worked on
        self._go_first: set[K] = set()  # whatever adds them
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # earliest time of each key in _later; other entries are void
        self._order = 0
        self._backoff: dict[K, Backoff] = {}
        self._closed = False

    def add(self, key: K, urgent: bool | None = None) -> None:
        """Have the key worked on as soon as possible.

        `urgent`: before all that is not, now and whenever it comes again, until it is said to be no more;
        None: as it was said last.
        """
        with self._changed:
            if urgent is not None:
                (self._go_first.add if urgent else self._go_first.discard)(key)
            self._add(key)
            self._changed.notify()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key worked on in `seconds`; an earlier appointment stays."""
        with self._changed:
            self._at(key, self._clock() + seconds)
            self._changed.notify()

    def retry(self, key: K, at_least: float | None = None) -> float:
        """Have the key worked on again after its backoff; the delay in seconds."""
        with self._changed:
            delay = self._backoff.setdefault(key, Backoff(BASE_SECONDS, CAP_SECONDS)).next(at_least)
            self._at(key, self._clock() + delay)
            self._changed.notify()
            return delay

    def forget(self, key: K) -> None:
        """The key was worked on with success: its backoff starts again."""
        with self._changed:
            self._backoff.pop(key, None)

    def take(self) -> K | None:
        """The next key, as soon as one may be worked on; None once the queue is closed.

        Call `done` with it.
        """
        with self._changed:
            while not self._closed:
                self._collect_due()
                now = self._clock()
                if first := self._first(now):
                    key, _ = first.popitem(last=False)
                    self._working[key] = now
                    self._active.inc()
                    return key
                self._changed.wait(self._until_next())
            return None

    def done(self, key: K) -> None:
        """The worker is finished with this key."""
        with self._changed:
            del self._working[key]
            self._active.dec()
            if key in self._again:
                self._again.discard(key)
                self._add(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Give out nothing more; every `take` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depth(self) -> int:
        """How many keys wait to be worked on now."""
        with self._changed:
            return len(self._waiting) + len(self._urgent)

    def working_for(self) -> list[float]:
        """How long each key under work has been, seconds."""
        with self._changed:
            now = self._clock()
            return [now - since for since in self._working.values()]

    def _add(self, key: K) -> None:
        self._due.pop(key, None)
        urgent = key in self._go_first
        if key in self._working:
            self._again.add(key)
        elif key in self._waiting:
            if urgent:
                self._urgent[key] = self._waiting.pop(key)
        elif key not in self._urgent:
            (self._urgent if urgent else self._waiting)[key] = None

    def _at(self, key: K, due: float) -> None:
        if self._due.get(key, due) < due:
            return
        self._due[key] = due
        self._order += 1
        heapq.heappush(self._later, (due, self._order, key))

    def _collect_due(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                self._add(key)

    def _first(self, now: float) -> OrderedDict[K, None] | None:
        """Those of which one may be worked on now; None: none may."""
        if self._urgent:
            return self._urgent if len(self._working) < MOST_URGENT else None
        busy = sum(now - since < HANGS_SECONDS for since in self._working.values())
        room = busy < self._workers and len(self._working) < max(self._workers, MOST_KEYS)
        return self._waiting if room else None

    def _until_next(self) -> float | None:
        due = max(0.0, self._later[0][0] - self._clock()) if self._later else None
        if not self._waiting:
            return due
        return TICK_SECONDS if due is None else min(due, TICK_SECONDS)
