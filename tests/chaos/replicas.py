"""The two operators of a round, each behind a proxy and with a clock of its own; what ends is restarted."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.operator.integration.faults import FaultProxy
from tests.operator.integration.world import OperatorProcess, World

from .clock import Clock
from .schedule import Round

#: After how long an operator is started again that ended by itself, as one does that lost the Lease.
AGAIN_SECONDS = 1.0


class Replica:
    """An operator process that is kept up, unless it is down on purpose."""

    def __init__(self, world: World, number: int, planned: Round, library: Path | None) -> None:
        self._world, self._lease_seconds = world, planned.lease_seconds
        self._flags = [f"--lease-name=lease-{number}"] if planned.two_leaders else []
        self.proxy = FaultProxy(world.plane)
        self.clock = None if library is None else Clock(library, world.directory / f"operator-{number}.clock")
        self._logs = list[Path]()
        self._up_again = 0.0
        self.process = self._start()

    def _start(self) -> OperatorProcess:
        environment = {} if self.clock is None else self.clock.environment
        process = self._world.operator(
            *self._flags, server=self.proxy.url, lease_seconds=self._lease_seconds, environment=environment
        )
        self._logs.append(process.log)
        return process

    def knows(self, identity: str) -> bool:
        """Whether one of its processes leads, or led, under this name."""
        return bool(identity) and any(f"leading as {identity}" in log.read_text() for log in self._logs)

    def kill(self, seconds: float) -> None:
        """SIGKILL; it is not started again for so long."""
        self.process.kill()
        self._up_again = time.monotonic() + seconds

    def pause(self) -> None:
        """SIGSTOP: what it was about to do it does after `resume`."""
        self.process.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.process.send_signal(signal.SIGCONT)

    def keep_up(self) -> None:
        """Start it again if it ended and its time has come."""
        if self.process.process.poll() is None:
            self._up_again = 0.0
        elif not self._up_again:
            self._up_again = time.monotonic() + AGAIN_SECONDS
        elif time.monotonic() >= self._up_again:
            self._up_again = 0.0
            self.process = self._start()

    def close(self) -> None:
        """Its process is ended by its world."""
        self.proxy.close()
