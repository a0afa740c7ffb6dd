"""How much a trainer may write into the store: so many steps a second, and so many bytes in all. Pure.

The guard's own writes (evaluations, latches) are not bounded by it: the rest of the room is theirs, so that a
run whose trainer has filled its share can still be judged and still fires.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from guard_service.errors import Problem, store_full, too_many_requests

#: What a store may have without a setting.
MAX_BYTES = 1 << 30
#: Steps a second in the long run.
RATE = 1_000
#: Steps at once: a trainer that was cut off sends what waits, and a log that is followed anew is read from
#: its beginning. They take some 20 MB; what is longer takes a second for each thousand more.
BURST = 100_000
#: Of the bytes that a store may have: for steps, then for announcements of checkpoints.
STEPS_SHARE = 0.8
ANNOUNCED_SHARE = 0.9


@dataclass(slots=True)
class Allowance:
    """What is left of it. `max_bytes` is of the whole store."""

    max_bytes: int
    _steps: float = math.inf
    _at: float = 0.0

    def is_full(self, size: int) -> bool:
        """Whether a store of this size takes no further steps."""
        return size >= STEPS_SHARE * self.max_bytes

    def refuses_steps(self, count: int, size: int, now: float) -> Problem | None:
        """Why these steps are not taken into a store of this size, if they are not; else they are counted."""
        if self.is_full(size):
            return store_full("steps", self.max_bytes)
        self._steps, self._at = min(BURST, self._steps + RATE * (now - self._at)), now
        if count > self._steps:
            return too_many_requests(RATE, math.ceil((count - self._steps) / RATE))
        self._steps -= count
        return None

    def refuses_announcement(self, size: int) -> Problem | None:
        """The same of a checkpoint; files of checkpoints are no part of the store."""
        if size >= ANNOUNCED_SHARE * self.max_bytes:
            return store_full("checkpoints", self.max_bytes)
        return None
