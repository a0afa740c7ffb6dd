"""TCP ports beside the guard's Unix socket: for people and Prometheus, and not needed to judge a run.

Containers of a pod share their ports, so another process may take one while no guard runs. The guard then
runs without it, says so (`port_taken`), and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import uvicorn

from guard_core.wire import Code, Condition, Level
from guard_service.errors import SettingsError
from guard_service.server import listen, url_of

log = logging.getLogger("rlguard.guard")

RETRY_SECONDS = 5.0


@dataclass(slots=True)
class TakenPorts:
    """The ports on which the guard should listen, and cannot now."""

    _numbers: set[int] = field(default_factory=set)

    def note(self, port: int, taken: bool) -> None:
        """Whether this port is taken now."""
        (self._numbers.add if taken else self._numbers.discard)(port)

    def condition(self) -> Condition | None:
        """`port_taken`, if it holds. It is advice: the run is judged all the same."""
        if not self._numbers:
            return None
        ports = " and ".join(f"port {number}" for number in sorted(self._numbers))
        return Condition(
            code=Code.PORT_TAKEN,
            level=Level.WARNING,
            message=f"the guard cannot listen on {ports}, so what listens there is not the guard: give it no "
            "token. The trainer reports through a socket, and the run is judged all the same",
            advice=True,
        )


class SidePort:
    """A TCP port of the guard's.

    Args:
        of: its settings are RLGUARD_GUARD_<of>HOST and RLGUARD_GUARD_<of>PORT.
        shown: what the log says of it, with {} for its URL.
        taken: where it is noted that it cannot be had.
        tls: whether it speaks TLS.
    """

    def __init__(
        self, of: str, host: str, port: int, shown: str, taken: TakenPorts, tls: bool = False
    ) -> None:
        self._of, self._host, self._port, self._shown, self._taken = of, host, port, shown, taken
        self._tls = tls
        self._listener: socket.socket | None = None
        self._said = False

    def open(self) -> None:
        """Listen.

        Raises:
            SettingsError: it cannot be had.
        """
        listener = listen(self._of, self._host, self._port)
        try:
            listener.listen()  # from now on: another could still do so on an address that is only bound
        except OSError as error:
            listener.close()
            raise SettingsError(f"cannot listen on port {self._port}: {error.strerror or error}") from None
        self._listener = listener
        log.info("%s", self._shown.format(url_of(listener, self._tls)))

    def try_open(self) -> None:
        """Listen, or note that it cannot be had now."""
        try:
            self.open()
        except SettingsError as error:
            if not self._said:
                log.error("%s. The guard runs without it, and tries again", error)
                self._said = True
        self._taken.note(self._port, self._listener is None)

    async def listener(self) -> socket.socket:
        """The socket, once the port could be had."""
        while self._listener is None:
            await asyncio.sleep(RETRY_SECONDS)
            self.try_open()
        return self._listener

    @asynccontextmanager
    async def serving(self, config: uvicorn.Config) -> AsyncIterator[None]:
        """Serve there, from when it can be had, for as long as the guard serves."""
        server = _Server(config)
        task = asyncio.create_task(self._serve(server))
        task.add_done_callback(self._say_failure)
        try:
            yield
        finally:
            server.should_exit = True
            if self._listener is None:
                task.cancel()
            await asyncio.wait([task])

    async def _serve(self, server: uvicorn.Server) -> None:
        await server.serve(sockets=[await self.listener()])

    def _say_failure(self, task: asyncio.Task[None]) -> None:
        """A guard without this port goes on guarding."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("port %d is no longer served: %s", self._port, error)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the guard's own server."""
        yield
