"""The server of the guard: its socket, its signals, and the file that says where it listens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from guard_service.errors import GuardError, SettingsError

log = logging.getLogger("rlguard.guard")


class GuardServer(uvicorn.Server):
    """Tells where it listens, once it does, and ends when the engine must not go on."""

    def __init__(
        self, config: uvicorn.Config, endpoint: Path, url: str, listening: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._endpoint, self._url, self._listening = endpoint, url, listening
        self.failure: GuardError | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on a signal; unlike uvicorn's own, do not raise it again: the store is yet to be closed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell where it listens, once it does."""
        await super().startup(sockets)
        write_endpoint(self._endpoint, self._url)
        log.info("listening at %s", self._url)
        self._listening(self._url)

    def fail(self, error: GuardError) -> None:
        """End the process with this error."""
        self.failure = error
        self.should_exit = True


def write_endpoint(path: Path, url: str) -> None:
    """Write where the guard listens, all at once. If it cannot be written, that is reported."""
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.error("%s cannot be written: %s", path, error.strerror or error)


def listen(of: str, host: str, port: int) -> socket.socket:
    """A bound socket. The settings are RLGUARD_GUARD_<of>HOST and RLGUARD_GUARD_<of>PORT."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
    except OSError as error:
        raise SettingsError(
            f"cannot listen on RLGUARD_GUARD_{of}HOST={host!r}, RLGUARD_GUARD_{of}PORT={port}: "
            f"{error.strerror or error}; choose a free port, or 0 for any"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
