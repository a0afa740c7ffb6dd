"""What is for people alone: taken at once, written now and then, lost without harm."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Generic, TypeVar

from guard_service.store.shown import ShownFile

log = logging.getLogger("rlguard.guard")

T = TypeVar("T")


class ShownBook(Generic[T]):
    """What people are shown of one kind, and its file in `state_dir`.

    Args:
        file: where it is kept.
        state_dir: directory of that file.
        every: seconds between two writes, at least.
    """

    def __init__(self, file: ShownFile[T], state_dir: Path, every: float = 0.0) -> None:
        self._file, self._state_dir, self._every = file, state_dir, every
        #: All of it, immutable; replaced by who takes more.
        self.value = self._written = file.nothing
        self._due = 0.0
        self._told = False

    async def load(self) -> None:
        """Read what an earlier guard of this run has kept."""
        self.value = self._written = await asyncio.to_thread(self._file.read, self._state_dir)

    async def save(self, *, now: bool = False) -> None:
        """Write it, if it has changed since it was written and a write is due, or `now`."""
        value = self.value
        if value == self._written or (time.monotonic() < self._due and not now):
            return
        self._due = time.monotonic() + self._every
        try:
            await asyncio.to_thread(self._file.write, self._state_dir, value)
        except OSError as error:
            if not self._told:
                log.warning("%s cannot be kept in %s: %s", self._file.holds, self._state_dir, error)
            self._told = True
        else:
            self._written, self._told = value, False
