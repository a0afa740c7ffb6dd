"""What a trainer gives for people to see: rollouts and further figures, in one file beside the log.

They are no evidence, and no verdict depends on them. They are taken at once and written now and then; what
cannot be read or written costs what it would have shown, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rlguard.core.display import kept_figures, kept_rollouts
from rlguard.core.wire import FiguresReport, PostedStep, RolloutsReport, Verdict

log = logging.getLogger("rlguard.guard")

FILE_NAME = "display.json"
WRITE_SECONDS = 10.0  # between two writes of a file that may have some 100 KiB
#: More than what is kept can take; what is larger was not written by a guard.
MAX_FILE_BYTES = 12 << 20


class DisplayData(BaseModel):
    """The rollouts and figures of one run; of each as many as a page has room for."""

    model_config = ConfigDict(frozen=True)

    rollouts: tuple[RolloutsReport, ...] = ()
    figures: tuple[FiguresReport, ...] = ()

    @classmethod
    def read(cls, state_dir: Path) -> DisplayData:
        """What a guard has kept there; nothing if there is none, or it cannot be read, which the log says."""
        path = state_dir / FILE_NAME
        try:
            if not path.exists():
                return cls()
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
            return cls.model_validate_json(path.read_bytes())
        except ValidationError:
            reason = "it is damaged"
        except (OSError, ValueError) as error:
            reason = str(error)
        log.warning("%s is not read, so earlier rollouts and figures are not shown: %s", path, reason)
        return cls()

    def write(self, state_dir: Path) -> None:
        """Keep this in place of what was kept before.

        Raises:
            OSError: it cannot be written; what was kept before still is.
        """
        path = state_dir / FILE_NAME
        draft = path.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(self.model_dump_json().encode())
        draft.replace(path)

    def after(self, steps: Sequence[PostedStep], verdict: Verdict) -> DisplayData:
        """This with what of these steps is for people; `verdict`: the newest."""
        figures = [
            FiguresReport(attempt=one.attempt, step=one.step, figures=one.figures)
            for one in steps
            if one.figures
        ]
        rollouts = self.rollouts
        for one in steps:
            if one.rollouts:
                report = RolloutsReport(attempt=one.attempt, step=one.step, rollouts=one.rollouts)
                rollouts = kept_rollouts((*rollouts, report), verdict)
        kept = kept_figures((*self.figures, *figures)) if figures else self.figures
        return DisplayData(rollouts=rollouts, figures=kept)


class DisplayStore:
    """The newest `DisplayData` of one run, and its file in `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self.data = self._written = DisplayData()
        self._due = 0.0
        self._failed = False

    def take(self, steps: Sequence[PostedStep], verdict: Verdict) -> None:
        """Take what of these steps is for people; `verdict`: the newest."""
        self.data = self.data.after(steps, verdict)

    async def load(self) -> None:
        """Read what an earlier guard of this run has kept."""
        self.data = self._written = await asyncio.to_thread(DisplayData.read, self._state_dir)

    async def save(self, *, now: bool = False) -> None:
        """Write what has changed, if a write is due, or `now`."""
        data = self.data
        if data == self._written or (time.monotonic() < self._due and not now):
            return
        self._due = time.monotonic() + WRITE_SECONDS
        try:
            await asyncio.to_thread(data.write, self._state_dir)
        except OSError as error:
            if not self._failed:
                log.warning("rollouts and figures cannot be kept in %s: %s", self._state_dir, error)
            self._failed = True
        else:
            self._written, self._failed = data, False
