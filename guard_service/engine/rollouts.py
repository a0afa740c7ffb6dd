"""The rollouts of a run: taken at once, written now and then, lost without harm."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from guard_core.rollouts import Steps, kept, side_by_side
from guard_core.wire import MomentRollouts, RolloutsReport, Verdict
from guard_service.store.rollouts import read_rollouts, write_rollouts

log = logging.getLogger("rlguard.guard")


class RolloutBook:
    """A bounded number of steps with their rollouts, and their file in `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._steps: Steps = ()
        self._written: Steps = ()
        self._told = False

    async def load(self) -> None:
        """Read what an earlier guard of this run has kept."""
        self._steps = self._written = await asyncio.to_thread(read_rollouts, self._state_dir)

    def add(self, report: RolloutsReport, verdict: Verdict) -> None:
        """Take the rollouts of a step; those of a step that is known are passed over."""
        self._steps = kept((*self._steps, report), verdict)

    def side_by_side(self, verdict: Verdict) -> tuple[MomentRollouts, ...]:
        """What is shown of them; see `guard_core.rollouts`."""
        return side_by_side(self._steps, verdict)

    async def save(self) -> None:
        """Write them, if they have changed since they were written."""
        steps = self._steps
        if steps == self._written:
            return
        try:
            await asyncio.to_thread(write_rollouts, self._state_dir, steps)
        except OSError as error:
            if not self._told:
                log.warning("rollouts cannot be kept in %s: %s", self._state_dir, error)
            self._told = True
        else:
            self._written, self._told = steps, False
