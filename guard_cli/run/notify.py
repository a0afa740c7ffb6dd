"""Tells people by webhooks how a local run goes, beside the run: no stop waits, and the end not for long.

The URLs are secrets, so they come from the environment alone, and neither trainer nor guard inherits them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from guard_cli.errors import CliError
from guard_core.notices import Event, Notice, Shape
from guard_core.wire import Verdict
from guard_operator.runtime.webhook import Webhook, deliver, webhooks

PREFIX = "RLGUARD_NOTIFY_"
#: Pauses between the tries, and how long the end of a run waits for the last of them, seconds.
PAUSES = (1.0, 5.0)
FINISH_SECONDS = 10.0


def from_environment() -> tuple[Webhook, ...]:
    """The webhooks of RLGUARD_NOTIFY_SLACK_URL and RLGUARD_NOTIFY_ALERTMANAGER_URL.

    Raises:
        CliError: one cannot be used.
    """
    found = {shape.value: os.environ.get(f"{PREFIX}{shape.name}_URL", "") for shape in Shape}
    try:
        return webhooks({shape: url for shape, url in found.items() if url}, f"{PREFIX}…_URL")
    except ValueError as error:
        raise CliError(str(error)) from None


class RunNotifier:
    """Tells each event of one run once. `note` is called with what the user should know."""

    def __init__(self, to: tuple[Webhook, ...], run: str, folder: Path, note: Callable[[str], None]) -> None:
        self._to, self._run, self._folder, self._note = to, run, folder, note
        self._told: set[Event] = set()
        self._threads: list[threading.Thread] = []
        self._troubles: list[str] = []

    def latched(self, verdict: Verdict | None) -> None:
        """Tell of a fire or a halt, if this verdict has one."""
        if verdict is not None and verdict.fire:
            self._tell(Event.FIRED, verdict.code.value, verdict.reason)
        elif verdict is not None and verdict.halt:
            self._tell(Event.HALTED, verdict.code.value, verdict.reason)

    def stopped(self, why: str) -> None:
        """Tell that the trainer was stopped."""
        self._tell(Event.STOPPED, why[:63], f"the trainer was stopped: {why}")

    def finish(self) -> None:
        """Wait for what is under way, for a bounded time, and say what was not delivered."""
        end = time.monotonic() + FINISH_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        late = sum(thread.is_alive() for thread in self._threads)
        for trouble in [*self._troubles, *(["a webhook has not responded yet"] * bool(late))]:
            self._note(f"nobody was told: {trouble}")

    def _tell(self, event: Event, reason: str, sentence: str) -> None:
        if event in self._told:
            return
        self._told.add(event)
        command = f"rlguard status {self._folder}"
        notice = Notice(event, "", self._run, reason, sentence, command, datetime.now(UTC))
        for webhook in self._to:
            thread = threading.Thread(target=self._deliver, args=(webhook, notice), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _deliver(self, webhook: Webhook, notice: Notice) -> None:
        if trouble := deliver(webhook, notice, PAUSES):
            self._troubles.append(f"{webhook.shape}, of {notice.event}: {trouble}")
