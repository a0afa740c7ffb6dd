"""Writes Events beside the reconciles, one after the other: a message to people holds up no stop.

One that cannot be written is logged and forgotten.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from datetime import datetime

from guard_operator.api import names
from guard_operator.reconcile.events import Transition
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import EVENTS, Client, Json
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 3.0


class EventRecorder:
    """See the module."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._todo: queue.Queue[Json] = queue.Queue()
        threading.Thread(target=self._work, name="events", daemon=True).start()

    def record(self, job: Job, transition: Transition, now: datetime) -> None:
        """Have the Event written soon, after those that were recorded before."""
        self._todo.put(_event(job, transition, now))

    def flush(self) -> None:
        """Wait until all are written, for at most `FLUSH_SECONDS`."""
        end = time.monotonic() + FLUSH_SECONDS
        while self._todo.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.05)

    def _work(self) -> None:
        while True:
            event = self._todo.get()
            try:
                self._client.create(EVENTS, event["metadata"]["namespace"], event, names.OPERATOR_MANAGER)
            except ClusterError as error:
                log.warning("%s: not written: %s", event["metadata"]["name"], error)
            except Exception:
                log.exception("%s: not written", event["metadata"]["name"])
            finally:
                self._todo.task_done()


def _event(job: Job, transition: Transition, now: datetime) -> Json:
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{job.name}.{secrets.token_hex(8)}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": transition.type,
        "reason": transition.reason,
        "message": transition.message[:1024],
        "source": {"component": names.OPERATOR_MANAGER},
        "reportingComponent": names.OPERATOR_MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
