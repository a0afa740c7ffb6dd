"""Where the guard listens."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from guard_service.errors import SettingsError
from guard_service.server import inherited, listen


@pytest.fixture
def thief() -> Iterator[socket.socket]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def number(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_port_is_the_guards_from_when_it_is_open() -> None:
    """An address that is only bound can still be taken by another who has bound it, too."""
    with listen("127.0.0.1", 0) as listener, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(listener.getsockname())


def test_a_port_that_is_needed_is_an_error(thief: socket.socket) -> None:
    with pytest.raises(SettingsError, match=f"RLGUARD_GUARD_PORT={number(thief)}: Address already in use"):
        listen("127.0.0.1", number(thief))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_what_was_passed_on_must_listen(kind: socket.SocketKind) -> None:
    with socket.socket(type=kind) as given:
        given.bind(("127.0.0.1", 0))
        with pytest.raises(SettingsError, match=r"LISTEN_FD=\d+ must be a TCP socket that listens"):
            inherited(os.dup(given.fileno()))


#: A machine without IPv6 says no to the address, or to the family.
WITHOUT_IPV6 = """
import errno, socket, guard_service.server as server
def bind(self, address):
    if self.family == socket.AF_INET6:
        raise OSError(errno.{error}, "no IPv6 here")
    socket.socket.bind(self, address)
server.Listener.bind = bind
"""
with_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


def answers(host: str, port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://{host}:{port}/healthz", trust_env=False, timeout=20).is_success
    return False


@with_ipv6
def test_every_address_is_of_ipv6_and_ipv4(new_guard: Callable[..., Any]) -> None:
    guard = new_guard(HOST="::").start()
    port = urlsplit(guard.url).port
    assert answers("127.0.0.1", port) and answers("[::1]", port)
    guard = new_guard("other", HOST="::1").start()
    port = urlsplit(guard.url).port
    assert not answers("127.0.0.1", port) and answers("[::1]", port)


@pytest.mark.parametrize("error", ["EADDRNOTAVAIL", "EAFNOSUPPORT"])
def test_without_ipv6_every_address_is_of_ipv4(new_guard: Callable[..., Any], error: str) -> None:
    guard = new_guard(HOST="::", before=WITHOUT_IPV6.format(error=error)).start()
    assert answers("127.0.0.1", urlsplit(guard.url).port)


@with_ipv6
def test_a_taken_port_is_not_had_over_ipv4_alone(new_guard: Callable[..., Any]) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(("::", 0))
        taken.listen()
        guard = new_guard(HOST="::", PORT=str(number(taken)))
        guard.launch()
        assert guard.wait() == 2 and "in use" in guard.log
