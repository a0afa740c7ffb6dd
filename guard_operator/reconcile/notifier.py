"""Tells people by webhooks that a run fired, halted or was stopped: beside the reconciles, in own threads.

Each event is told once, also over restarts: only what stands in the status is told, and what was delivered
or given up is noted there (`status.notified`), in a write of its own. An operator that dies between the two
tells it a second time. Nothing that goes wrong here is an error of the reconcile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from guard_core.notices import Event, Notice
from guard_operator.api import names
from guard_operator.api.reasons import ConditionType
from guard_operator.reconcile.evidence import evidence_name
from guard_operator.reconcile.parse import JOBS
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import ApiError, ClusterError
from guard_operator.runtime.webhook import Webhook, deliver, webhooks

log = logging.getLogger(__name__)

THREADS = 4
#: Pauses between the tries to note what was told, seconds.
NOTE_PAUSES = (1.0, 10.0, 60.0)
#: What is older is not told: else an operator that gets its first webhook tells of every run of the past.
TELL_WITHIN = timedelta(hours=1)

_CONDITIONS = {
    Event.FIRED: ConditionType.FIRED,
    Event.HALTED: ConditionType.HALTED,
    Event.STOPPED: ConditionType.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Notifications:
    """Which events are told. `directory` has a file with a URL for each shape, as a mounted Secret."""

    directory: Path
    events: frozenset[Event]

    def webhooks(self) -> tuple[Webhook, ...]:
        """As they are now.

        Raises:
            ValueError: they cannot be read or used.
        """
        try:
            files = [file for file in self.directory.iterdir() if not file.name.startswith(".")]
            urls = {file.name: file.read_text("utf-8") for file in files}
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--notify-dir {self.directory} cannot be read: {error}") from None
        if not urls:
            raise ValueError(f"--notify-dir {self.directory} has neither a file slack nor one alertmanager")
        return webhooks(urls, f"--notify-dir {self.directory}")


def due(job: Job, events: frozenset[Event], now: datetime) -> Iterator[Notice]:
    """What is to be told of this job, and is not noted as told. Pure."""
    true = {one.type: one for one in job.status.conditions if one.status == "True"}
    for event, kind in _CONDITIONS.items():
        one = true.get(kind)
        if one is None or event not in events or event in _noted(job):
            continue
        if now - one.last_transition_time > TELL_WITHIN:
            continue
        latch = true.get(ConditionType.FIRED) or true.get(ConditionType.HALTED)
        because = latch if event is Event.STOPPED and latch is not None else one
        sentence = one.message if because is one else f"{one.message}; {because.message}"
        yield Notice(
            event, job.namespace, job.name, because.reason, sentence, _command(job), one.last_transition_time
        )


def _command(job: Job) -> str:
    if job.status.evidence is None:
        return f"rlguard status {job.name} -n {job.namespace}"
    return f"kubectl -n {job.namespace} get configmap {evidence_name(job)} -o yaml"


def _noted(job: Job) -> frozenset[Event]:
    noted = job.status.notified
    return frozenset(event for event in Event if noted is not None and getattr(noted, event) is not None)


class Notifier:
    """See the module.

    Args:
        client: writes what was told.
        notifications: None: nobody is notified.
        counted: called with event, shape and whether it was delivered, for metrics.
        clock: the time in UTC.
    """

    def __init__(
        self,
        client: Client,
        notifications: Notifications | None,
        counted: Callable[[str, str, bool], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._notifications = notifications
        self._counted = counted
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: set[tuple[str, Event]] = set()  # by UID, until it is noted
        self._todo: queue.SimpleQueue[tuple[str, Notice]] = queue.SimpleQueue()
        for number in range(THREADS if notifications is not None else 0):
            threading.Thread(target=self._work, name=f"notices-{number}", daemon=True).start()

    def tell(self, job: Job, now: datetime) -> None:
        """Have everything told that is due and was not begun with. Nothing is waited for."""
        if self._notifications is None:
            return
        with self._lock:
            self._begun -= {(job.uid, event) for event in _noted(job)}
            for notice in due(job, self._notifications.events, now):
                if (key := (job.uid, notice.event)) not in self._begun:
                    self._begun.add(key)
                    self._todo.put((job.uid, notice))

    def _work(self) -> None:
        while True:
            uid, notice = self._todo.get()
            try:
                self._deliver(notice)
                self._note(uid, notice)
            except Exception:
                log.exception("%s %s, and its notice was not sent or not noted", notice.run, notice.event)

    def _deliver(self, notice: Notice) -> None:
        assert self._notifications is not None
        try:
            hooks = self._notifications.webhooks()
        except ValueError as error:
            log.error("%s %s, and nobody was notified: %s", notice.run, notice.event, error)
            return
        # Side by side: one that does not respond holds up no other.
        threads = [threading.Thread(target=self._one, args=(hook, notice), daemon=True) for hook in hooks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, webhook: Webhook, notice: Notice) -> None:
        trouble = deliver(webhook, notice)
        if trouble:
            log.error("%s %s, and %s was not notified: %s", notice.run, notice.event, webhook.shape, trouble)
        self._counted(notice.event, webhook.shape, not trouble)

    def _note(self, uid: str, notice: Notice) -> None:
        """Without it another process tells it again, and this one does not."""
        noted = {notice.event.value: self._clock().isoformat(timespec="microseconds").replace("+00:00", "Z")}
        patch = {"metadata": {"uid": uid}, "status": {"notified": noted}}
        for pause in (*NOTE_PAUSES, None):
            try:
                self._client.merge(
                    JOBS, notice.namespace, notice.name, patch, names.OPERATOR_MANAGER, sub="status"
                )
                return
            except ClusterError as error:
                gone = isinstance(error, ApiError) and error.status in {404, 409}
                if gone:
                    with self._lock:
                        self._begun.discard((uid, notice.event))
                if gone or pause is None:
                    log.warning("%s: not noted that the notice was sent: %s", notice.run, error)
                    return
                time.sleep(pause)
