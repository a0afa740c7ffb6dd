"""The server of the guard: its socket, its signals, and the file that says where it listens."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from guard_service.errors import GuardError, SettingsError

log = logging.getLogger("rlguard.guard")


class GuardServer(uvicorn.Server):
    """Tells where it listens, once it does, and ends when the engine must not go on.

    `before_end` is awaited after the first signal, while it still listens; a second signal ends it at once.
    """

    def __init__(
        self, config: uvicorn.Config, endpoint: Path, url: str, listening: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._endpoint, self._url, self._listening = endpoint, url, listening
        self.failure: GuardError | None = None
        self.before_end: Callable[[], Awaitable[None]] | None = None
        self._end: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on a signal; unlike uvicorn's own, do not raise it again: the store is yet to be closed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        yield

    def _on_signal(self, number: int) -> None:
        if self.before_end is None or self._end is not None:
            self.handle_exit(number, None)
        else:
            self._end = asyncio.create_task(self._end_after(self.before_end, number))

    async def _end_after(self, first: Callable[[], Awaitable[None]], number: int) -> None:
        try:
            await first()
        finally:
            self.handle_exit(number, None)

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
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address[4])
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"cannot listen on RLGUARD_GUARD_{of}HOST={host!r}, RLGUARD_GUARD_{of}PORT={port}: "
            f"{error.strerror or error}; choose a free port, or 0 for any"
        ) from None
    return listener


def inherited(descriptor: int) -> socket.socket:
    """The socket that whoever started this process listens on; what this process starts does not get it.

    Raises:
        SettingsError: it is no TCP socket that listens.
    """
    setting = f"RLGUARD_GUARD_LISTEN_FD={descriptor}"
    try:
        listener = socket.socket(fileno=descriptor)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        listener.set_inheritable(False)
    except OSError as error:
        raise SettingsError(
            f"{setting} cannot be used: {error.strerror or error}; it must be passed on by the process that "
            "starts the guard"
        ) from None
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise SettingsError(
            f"{setting} must be a TCP socket that listens; call listen() before it is passed on"
        )
    return listener


def listen_at(path: Path) -> socket.socket:
    """A Unix socket bound to this path, for every user; what was left there by an earlier guard is replaced.

    Whoever may write the directory can put another one there: it must be the guard's alone.
    """
    setting = f"RLGUARD_GUARD_SOCKET={str(path)!r}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead(path)
        listener.bind(str(path))
        path.chmod(0o666)  # connecting is writing; the tokens say who may do what
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {setting}: {error.strerror or error}") from None
    return listener


def _remove_dead(path: Path) -> None:
    """Remove a socket at which nobody listens.

    Raises:
        OSError: what is there is in use, or no socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is something else than a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another guard listens there")


def tls_options(certificate: Path | None, key: Path | None) -> dict[str, Any]:
    """What uvicorn is told to speak TLS with this certificate; nothing without one.

    Raises:
        SettingsError: the files cannot be used.
    """
    if certificate is None or key is None:
        return {}
    try:
        # With a password: for a key that has one OpenSSL would ask at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise SettingsError(
            f"RLGUARD_GUARD_TLS_CERTIFICATE={str(certificate)!r}, RLGUARD_GUARD_TLS_KEY={str(key)!r} cannot "
            f"be used: {error.strerror or error}; they must be a certificate and its private key, PEM, "
            "without a password"
        ) from None
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def url_of(listener: socket.socket, tls: bool = False) -> str:
    """Where a socket listens."""
    if listener.family == socket.AF_UNIX:
        return f"unix://{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
