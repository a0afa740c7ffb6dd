"""Where the guard listens: its sockets, TLS, signals, and the file that says where it is."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import errno
import json
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from guard_service.errors import GuardError, SettingsError

log = logging.getLogger("rlguard.guard")

BACKLOG = 1024
MAX_CONNECTIONS = 2048  # of one listener, and no more than a quarter of the descriptors
DESCRIPTORS = 8192  # that the guard asks for
#: Every address of the machine.
ANY, ANY_OF_IPV4 = "::", "0.0.0.0"  # noqa: S104 - whoever sets it needs tokens

# asyncio has a buffer of 256 KiB for each TLS connection: 0.5 GiB for all that there may be. A record has 16.
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024


class Listener(socket.socket):
    """A socket that keeps the newest connections: one more than it may have ends the oldest.

    The attack: a trainer opens thousands of connections, so that the guard has no descriptor left, its
    operator hears of no fire, and its evaluation process cannot be started. Clients of ours connect again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = min(MAX_CONNECTIONS, _descriptors() // 4)
        self._connections: list[socket.socket] = []
        self._ended_one = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection; after one was ended the event loop has to close it first."""
        if self._ended_one:
            self._ended_one = False
            raise BlockingIOError
        connection, address = super().accept()
        self._connections.append(connection)
        if len(self._connections) > self._most:
            self._connections = [one for one in self._connections if one.fileno() >= 0]
        if len(self._connections) > self._most:
            self._ended_one = True
            with contextlib.suppress(OSError):  # its client was faster
                self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        return connection, address


def _descriptors() -> int:
    """Raise the number of descriptors that this process may have, where it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        soft = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


class Protocol(H11Protocol):
    """uvicorn's, but for lines in the log: it would write a traceback for each request that is no HTTP where
    another response has begun, and so let a client fill the disk.
    """

    def send_400_response(self, msg: str) -> None:
        """Respond if nothing was sent yet, and hang up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.close()


class GuardServer(uvicorn.Server):
    """Ends when the engine must not go on, and on a signal: first `before_end`, while it still listens.

    A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, before_end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._before_end = before_end
        self._end: asyncio.Task[None] | None = None
        self.failure: GuardError | None = None

    def end_on_signals(self) -> None:
        """End on SIGTERM and SIGINT from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `end_on_signals`: uvicorn would raise them again before the store is closed."""
        yield

    def _on_signal(self, number: int) -> None:
        if self._end is not None:
            self.handle_exit(number, None)
        else:
            self._end = asyncio.create_task(self._end_in_time(number))

    async def _end_in_time(self, number: int) -> None:
        try:
            await self._before_end()
        finally:
            self.handle_exit(number, None)

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


def listen(host: str, port: int) -> Listener:
    """Listen on a port; on `::` for IPv6 and IPv4, or for IPv4 alone on a machine without IPv6.

    Raises:
        SettingsError: the port cannot be had.
    """
    try:
        try:
            return _listen(host, port)
        except OSError as error:
            if host != ANY or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
        return _listen(ANY_OF_IPV4, port)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on RLGUARD_GUARD_HOST={host!r}, RLGUARD_GUARD_PORT={port}: "
            f"{error.strerror or error}; choose a free port, or 0 for any"
        ) from None


def _listen(host: str, port: int) -> Listener:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = Listener(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == ANY:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)  # another could still bind, and take, what is only bound
    except OSError:
        listener.close()
        raise
    return listener


def inherited(descriptor: int) -> Listener:
    """The socket that whoever started this process listens on; what this process starts does not get it.

    Raises:
        SettingsError: it is no TCP socket that listens.
    """
    try:
        listener = Listener(fileno=descriptor)
        listener.set_inheritable(False)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        listens = 0
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise SettingsError(
            f"RLGUARD_GUARD_LISTEN_FD={descriptor} must be a TCP socket that listens, passed on by the "
            "process that starts the guard"
        )
    return listener


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


def url_here(listener: socket.socket, tls: bool) -> str:
    """Where a process on this machine reaches it."""
    url = url_of(listener, tls)
    for address in (f"[{ANY}]", ANY_OF_IPV4):
        url = url.replace(f"//{address}:", "//127.0.0.1:")
    return url


def url_of(listener: socket.socket, tls: bool = False) -> str:
    """Where a socket listens."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
