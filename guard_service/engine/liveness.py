"""Signs of life of the trainer: what the store does not hold, and a restart forgets."""

from __future__ import annotations

from collections.abc import Callable

from guard_core.policy import Policy
from guard_service.refusals import Refusals


class Liveness:
    """How long the trainer has been silent, whether it said that it has finished, what of it was refused."""

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._silent_since = clock()
        self.refusals = Refusals(policy.refused)
        self.ended = False

    @property
    def silent_for(self) -> float:
        """Seconds since the last sign of life."""
        return self._clock() - self._silent_since

    def start_anew(self) -> None:
        """Count the silence from now on."""
        self._silent_since = self._clock()
