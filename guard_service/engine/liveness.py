"""Signs of life of trainer and follower. The store does not hold them: a restart forgets them."""

from __future__ import annotations

import time

from guard_core.policy import Policy
from guard_service.feed import Standing
from guard_service.refusals import Refusals


class Liveness:
    """How long the trainer has been silent, what of it was refused, whether its log can be read."""

    def __init__(self, policy: Policy) -> None:
        #: Seconds since the last sign of life in which the guard could have heard one. One that was frozen,
        #: or starved, has heard nothing, and reads what came meanwhile before it counts on.
        self.silent_for = 0.0
        self.refusals = Refusals(policy.refused)
        self.following = Standing(time.monotonic)

    def start_anew(self) -> None:
        """Count the silence from now on."""
        self.silent_for = 0.0
