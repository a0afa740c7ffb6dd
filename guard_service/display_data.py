"""What a trainer gives for people to see: rollouts and further figures, in files beside the log.

They are no evidence, and no verdict depends on them. They are taken at once and written now and then; what
cannot be read or written costs what it would have shown, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from guard_core.display import Points, RolloutSteps, kept_figures, kept_rollouts
from guard_core.wire import FiguresReport, PostedStep, RolloutsReport, Verdict

log = logging.getLogger("rlguard.guard")

FIGURES_SECONDS = 10.0  # between two writes of a file that may have some 100 KiB
#: More than what is kept can take; what is larger was not written by a guard.
MAX_FILE_BYTES = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class ShownFile(Generic[T]):
    """One of these files: its name in `state_dir`, what it holds, for a sentence, and how that is written."""

    name: str
    holds: str
    nothing: T
    adapter: TypeAdapter[T]

    def read(self, state_dir: Path) -> T:
        """What a guard has kept there; nothing if there is none, or it cannot be read, which the log says."""
        path = state_dir / self.name
        try:
            if not path.exists():
                return self.nothing
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
            return self.adapter.validate_json(path.read_bytes())
        except ValidationError:
            reason = "it is damaged"
        except (OSError, ValueError) as error:
            reason = str(error)
        log.warning("%s is not read, so earlier %s are not shown: %s", path, self.holds, reason)
        return self.nothing

    def write(self, state_dir: Path, value: T) -> None:
        """Keep this in place of what was kept before.

        Raises:
            OSError: it cannot be written; what was kept before still is.
        """
        path = state_dir / self.name
        draft = path.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(self.adapter.dump_json(value))
        draft.replace(path)


ROLLOUTS: ShownFile[RolloutSteps] = ShownFile(
    "rollouts.json", "rollouts", (), TypeAdapter(tuple[RolloutsReport, ...])
)
FIGURES: ShownFile[Points] = ShownFile("figures.json", "figures", (), TypeAdapter(tuple[FiguresReport, ...]))


class KeptFile(Generic[T]):
    """What is shown of one kind, and its file in `state_dir`.

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


class DisplayData:
    """The rollouts and figures of one run."""

    def __init__(self, state_dir: Path) -> None:
        self._rollouts = KeptFile(ROLLOUTS, state_dir)
        self._figures = KeptFile(FIGURES, state_dir, FIGURES_SECONDS)

    @property
    def rollouts(self) -> RolloutSteps:
        """The rollouts that are kept, in the order of (attempt, step)."""
        return self._rollouts.value

    @property
    def figures(self) -> Points:
        """Further figures of the training, of as many steps as a plot has room for."""
        return self._figures.value

    async def load(self) -> None:
        """Read what an earlier guard of this run has kept."""
        await self._rollouts.load()
        await self._figures.load()

    async def save(self, *, now: bool = False) -> None:
        """Write what has changed and is due, or `now`."""
        await self._rollouts.save(now=now)
        await self._figures.save(now=now)

    def take(self, steps: Sequence[PostedStep], verdict: Verdict) -> None:
        """Take what of these steps is for people; `verdict`: the newest."""
        figures = [
            FiguresReport(attempt=one.attempt, step=one.step, figures=one.figures)
            for one in steps
            if one.figures
        ]
        if figures:
            self._figures.value = kept_figures((*self._figures.value, *figures))
        for one in steps:
            if one.rollouts:
                report = RolloutsReport(attempt=one.attempt, step=one.step, rollouts=one.rollouts)
                self._rollouts.value = kept_rollouts((*self._rollouts.value, report), verdict)
