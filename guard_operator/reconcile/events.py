"""Events: which ones a change of the conditions is worth, and the thread that writes them.

Only transitions are told, never a state that lasts. A message to people holds up no stop: one that cannot be
written is logged and forgotten.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from guard_operator.api import names
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import ConditionStatus
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import EVENTS, Client, Json
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 3.0

_WARNINGS = {
    ConditionType.FIRED,
    ConditionType.HALTED,
    ConditionType.GUARD_SILENT,
    ConditionType.WAITING,
    ConditionType.FAILED,
    ConditionType.DISRUPTED,
}
_NOT_STOPPED = {Reason.STOP_BLOCKED, Reason.TARGET_RECREATED}
_WORTH_A_WARNING = {Reason.CHECKPOINTS_LEFT, Reason.NOT_JUDGED, Reason.CLAIM_OWNED}


@dataclass(frozen=True, slots=True)
class Transition:
    """One Event to write. `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


def transitions(
    before: Iterable[ConditionStatus], after: Iterable[ConditionStatus]
) -> tuple[Transition, ...]:
    """The Events for going from the conditions `before` to the conditions `after`, each told once.

    A guard that is silent makes two conditions True for one reason: GuardSilent, and Halted by its policy.
    """
    old = {condition.type: condition for condition in before}
    return tuple(dict.fromkeys(event for new in after for event in _event(old.get(new.type), new)))


def _event(old: ConditionStatus | None, new: ConditionStatus) -> Iterator[Transition]:
    was = old.status if old else None
    if new.type == ConditionType.GUARDED and new.status == "False":
        pending = new.reason == Reason.WORKLOAD_PENDING
        if not pending and (old is None or (old.status, old.reason) != (new.status, new.reason)):
            yield Transition("Warning", new.reason, new.message)
    elif new.type == ConditionType.ISOLATED:
        if new.status == "False" and (old is None or (was, old.reason) != ("False", new.reason)):
            yield Transition("Warning", new.reason, new.message)
    elif new.status == "True":
        if was != "True":
            worth_a_warning = new.type in _WARNINGS or new.reason in _WORTH_A_WARNING
            yield Transition("Warning" if worth_a_warning else "Normal", new.reason, new.message)
    elif new.type == ConditionType.STOPPED and new.reason in _NOT_STOPPED:
        if old is None or old.reason != new.reason:
            yield Transition("Warning", new.reason, new.message)
    elif (new.type, new.status, was) == (ConditionType.STOPPED, "False", None):
        yield Transition("Normal", new.reason, new.message)  # the teardown begins
    elif new.type == ConditionType.GUARD_SILENT and was == "True":
        yield Transition("Normal", new.reason, new.message)  # the guard is back, or its pod is gone


class EventRecorder:
    """See the module."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._todo: queue.Queue[Json] = queue.Queue()
        threading.Thread(target=self._work, name="events", daemon=True).start()

    def record(self, job: Job, transition: Transition, now: datetime) -> None:
        """Have the Event written soon, after those that were recorded before."""
        self._todo.put(_body(job, transition, now))

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


def _body(job: Job, transition: Transition, now: datetime) -> Json:
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
