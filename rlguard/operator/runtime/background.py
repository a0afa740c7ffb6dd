"""Calls that nobody waits for, in daemon threads: the end of the process does not wait for them either."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from rlguard.operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)


class Background:
    """Makes the calls that are added, in their order. One that fails is logged and forgotten.

    Args:
        name: of the threads.
        threads: how many calls are made at once.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._todo: queue.Queue[tuple[str, Callable[[], object]]] = queue.Queue()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def add(self, what: str, call: Callable[[], object]) -> None:
        """Have this called soon; `what` it writes, for the log."""
        self._todo.put((what, call))

    def flush(self, seconds: float) -> None:
        """Wait until all calls are made, for at most this long."""
        end = time.monotonic() + seconds
        while self._todo.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.05)

    def _work(self) -> None:
        while True:
            what, call = self._todo.get()
            try:
                call()
            except ClusterError as error:
                log.warning("%s: not written: %s", what, error)
            except Exception:
                log.exception("%s: not written", what)
            finally:
                self._todo.task_done()
