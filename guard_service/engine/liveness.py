"""What the store does not hold, and a restart forgets: signs of life of trainer and follower, taken ports."""

from __future__ import annotations

import time
from collections.abc import Collection

from guard_core.codes import Code
from guard_core.policy import Policy
from guard_core.wire import Condition
from guard_service.feed import Standing
from guard_service.refusals import Refusals


class Liveness:
    """How long the trainer has been silent, whether it said that it has finished, what of it was refused.

    And, of the guard itself, which ports it cannot have, and whether it reads what the trainer writes.
    """

    def __init__(self, policy: Policy) -> None:
        #: Seconds since the last sign of life in which the guard could have heard one. One that was frozen,
        #: or starved, has heard nothing, and reads what came meanwhile before it counts on.
        self.silent_for = 0.0
        self.refusals = Refusals(policy.refused)
        self.taken_ports: set[int] = set()
        self.following = Standing(time.monotonic)
        self.ended = False

    def start_anew(self) -> None:
        """Count the silence from now on."""
        self.silent_for = 0.0


def port_taken(numbers: Collection[int]) -> Condition | None:
    """`port_taken`, if there are such ports. It is advice: the run is judged all the same."""
    if not numbers:
        return None
    ports = " and ".join(f"port {number}" for number in sorted(numbers))
    return Condition.of(
        Code.PORT_TAKEN,
        f"the guard cannot listen on {ports}, so what listens there is not the guard: give it no "
        "token. The trainer reports through a socket, and the run is judged all the same",
        advice=True,
    )
