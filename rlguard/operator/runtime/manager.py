"""Runs the parts of a controller together: what watches always, work only while this process leads.

Start: watchers run; once there is something to work on (`workable`) the Lease is acquired, and work starts:
a process that cannot work does not lead. Stop (SIGTERM): no new work, the work under way is finished within a
grace period, and then the Lease, which is renewed until then, is released. A lost Lease or a thread that died
ends the process with an error, at once: the next process starts from a clean state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from rlguard.operator.runtime.errors import ApiError, ClusterError
from rlguard.operator.runtime.lease import LeaderElector
from rlguard.operator.runtime.metrics import CONTROLLER, OperatorMetrics
from rlguard.operator.runtime.queue import WorkQueue
from rlguard.operator.runtime.reflector import Key

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
#: How long a stop waits for the work under way.
GRACE_SECONDS = 20.0
#: How often is looked after watches that show nothing.
SWEEP_SECONDS = 60.0
#: A conflict that lasts so long is no matter of a cache that is behind, seconds until the next try.
STILL_BEHIND_SECONDS = 1.0

#: Reconciles one key; returns in how many seconds to look again.
Reconcile = Callable[[Key], float | None]


class Watcher(Protocol):
    """What runs in a thread of its own for as long as the process does; a `Reflector` is one."""

    def run(self) -> None:
        """Until `stop`."""

    def stop(self) -> None:
        """End it; safe from any thread."""


class Manager:
    """See the module. `run` blocks; `stop` may be called from a signal handler."""

    def __init__(
        self,
        watchers: Sequence[Watcher],
        queue: WorkQueue[Key],
        reconcile: Reconcile,
        elector: LeaderElector,
        metrics: OperatorMetrics,
        workable: Callable[[], bool],
        sweep: Callable[[], None],
    ) -> None:
        self._watchers = watchers
        self._queue = queue
        self._reconcile = reconcile
        self._elector = elector
        self._metrics = metrics
        self._workable = workable
        self._sweep = sweep
        self._stop = threading.Event()
        self._failed = threading.Event()

    def stop(self) -> None:
        """Ask for a graceful end."""
        self._stop.set()

    def healthy(self) -> bool:
        """Whether no thread has died."""
        return not self._failed.is_set()

    def run(self) -> int:
        """Run until stopped; the exit code: 0 after `stop`, 1 if the Lease was lost or a thread died."""
        for watcher in self._watchers:
            self._thread(watcher.run, type(watcher).__name__)
        self._thread(self._look_after_watches, "sweep")
        lease = self._thread(self._lead, "lease")
        while lease.is_alive() and not self._failed.is_set() and not self._stop.is_set():
            self._stop.wait(POLL_SECONDS * 4)
        for watcher in self._watchers:
            watcher.stop()
        if not self._stop.is_set():
            return 1
        self._end(lease)
        return 1 if self._failed.is_set() else 0

    def _look_after_watches(self) -> None:
        while not self._stop.wait(SWEEP_SECONDS):
            self._sweep()

    def _lead(self) -> None:
        """Wait for the caches, then for the Lease; work while leading."""
        while not self._workable():
            if self._stop.wait(POLL_SECONDS):
                return
        if not self._elector.acquire():
            return
        status = self._metrics.leading.labels(CONTROLLER)
        status.set(1)
        self._thread(self._hand_out, "queue")
        kept = self._elector.hold()
        status.set(0)
        if not kept:
            self._failed.set()

    def _hand_out(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                self._thread(partial(self._work, key), "worker")
            except RuntimeError as error:  # the limit of threads of the container
                log.error("%s/%s: again in %.2f s: %s", *key, self._queue.retry(key), error)
                self._queue.done(key)

    def _work(self, key: Key) -> None:
        try:
            result = self._one(key)
        finally:
            self._queue.done(key)
        self._metrics.reconciles.labels(CONTROLLER, result).inc()

    def _one(self, key: Key) -> str:
        """Reconcile a key and say when it comes again; the result as controller-runtime calls it."""
        try:
            again = self._reconcile(key)
        except ClusterError as error:
            delay = self._queue.retry(key, getattr(error, "retry_after", None))
            behind = isinstance(error, ApiError) and error.status == 409  # the cache was
            if not behind or delay >= STILL_BEHIND_SECONDS:
                log.warning("%s/%s: again in %.2f s: %s", *key, delay, error)
            if behind:
                return "requeue"
        except Exception:
            # A bug with one job must not take the others' kill switch away.
            log.exception("%s/%s: again in %.2f s", *key, self._queue.retry(key))
        else:
            self._queue.forget(key)
            if again is None:
                return "success"
            self._queue.add_after(key, again)
            return "requeue_after"
        self._metrics.errors.inc()
        return "error"

    def _end(self, lease: threading.Thread) -> None:
        """Finish what is under way, then let another process lead.

        The Lease is renewed until then: whoever got it earlier would work beside this process.
        """
        self._queue.close()
        deadline = time.monotonic() + GRACE_SECONDS
        while self._queue.working_for() and not self._failed.is_set() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._elector.stop()
        lease.join(max(POLL_SECONDS, deadline - time.monotonic()))
        if self._queue.working_for() or lease.is_alive():
            log.warning("work is still under way: the Lease is left to expire")
            return
        self._elector.release()

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread whose unexpected end is the end of the process."""

        def guarded() -> None:
            try:
                target()
            except BaseException:
                log.critical("thread %s died", name, exc_info=True)
                self._failed.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread
