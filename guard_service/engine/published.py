"""The verdict as it is given out: encoded once per change, with a revision that clients can wait for."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

from guard_core.trainer_view import for_trainer
from guard_core.wire import Verdict

#: What most steps change, and sentences. The rest is worth waking a client for.
_CHANGES_WITH_STEPS = {
    *("step", "steps", "steps_since_evaluation", "longest_round", "latched_at"),
    *("kl_ema", "in_loop_ema", "proxy_real_gap", "reason", "conditions"),
}


class Published:
    """The newest verdict, for whoever asks and whoever waits."""

    def __init__(self, verdict: Verdict) -> None:
        self._changed = asyncio.Event()
        self._closed = False
        self.revision = ""
        self.put(verdict)

    def put(self, verdict: Verdict) -> None:
        """Give out this verdict from now on, and wake who waits if its revision is another."""
        self.verdict, self._reader_json = verdict, b""
        told = for_trainer(verdict)
        #: What a trainer is told of it.
        self.trainer_json = told.model_dump_json().encode()
        if (revision := _revision(told)) != self.revision:
            self.revision = revision
            self._wake()

    @property
    def reader_json(self) -> bytes:
        """All of it."""
        if not self._reader_json:
            self._reader_json = self.verdict.model_dump_json().encode()
        return self._reader_json

    async def wait(self, since: str, seconds: float) -> None:
        """Return once the revision differs from `since`, or after so many seconds.

        How many wait is bounded by the connections that the guard takes.
        """
        if self.revision != since or self._closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _revision(told: Verdict) -> str:
    """Digest what a trainer is told: a digest of more would confirm what it guesses.

    It is the same after a restart of the guard.
    """
    conditions = [(one.code, one.action) for one in told.conditions]
    lasting = told.model_dump_json(exclude=_CHANGES_WITH_STEPS)
    return hashlib.sha256(f"{lasting}{conditions}".encode()).hexdigest()[:16]
