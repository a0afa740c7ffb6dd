"""What the store does not hold, and a restart forgets: signs of life of trainer and follower, taken ports."""

from __future__ import annotations

from collections.abc import Callable

from guard_core.policy import Policy
from guard_service.feed import Standing
from guard_service.ports import TakenPorts
from guard_service.refusals import Refusals


class Liveness:
    """How long the trainer has been silent, whether it said that it has finished, what of it was refused.

    And, of the guard itself, which ports it cannot have, and whether it reads what the trainer writes.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._silent_since = clock()
        self.refusals = Refusals(policy.refused)
        self.ports = TakenPorts()
        self.following = Standing(clock)
        self.ended = False

    @property
    def silent_for(self) -> float:
        """Seconds since the last sign of life."""
        return self._clock() - self._silent_since

    def start_anew(self) -> None:
        """Count the silence from now on."""
        self._silent_since = self._clock()
