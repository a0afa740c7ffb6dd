"""The port of probes and metrics: what it answers, and what it withstands."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.error import HTTPError

import pytest

from guard_operator.runtime import health
from guard_operator.runtime.health import MOST_CONNECTIONS, HealthServer
from guard_operator.runtime.metrics import OperatorMetrics

Serve = Callable[..., HealthServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server; keyword arguments replace what it is given."""
    with ExitStack() as stack:

        def start(host: str = "127.0.0.1", ready: bool = True) -> HealthServer:
            server = HealthServer((host, 0), lambda: True, lambda: ready, OperatorMetrics().registry)
            stack.callback(server.close)
            return server

        yield start


def page(server: HealthServer, path: str, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{server.port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def connected(stack: ExitStack, server: HealthServer, times: int) -> list[socket.socket]:
    address = ("127.0.0.1", server.port)
    return [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(times)]


def test_what_it_answers(serve: Serve) -> None:
    server = serve(ready=False)
    assert page(server, "/healthz") == "ok\n"
    assert "rlguard_fires" in page(server, "/metrics")
    with pytest.raises(HTTPError, match="503"):
        page(server, "/readyz")
    with pytest.raises(HTTPError, match="404"):
        page(server, "/../etc/passwd")


def test_it_listens_on_both_families(serve: Serve) -> None:
    server = serve("::")
    assert page(server, "/healthz") == "ok\n"
    if socket.has_dualstack_ipv6():
        assert page(server, "/healthz", "[::1]") == "ok\n"


def test_connections_that_are_left_open_hold_up_no_probe(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "IDLE_SECONDS", 600.0)  # what ends, ends to make room
    server = serve()
    with ExitStack() as stack:
        idle = connected(stack, server, 400)
        assert page(server, "/healthz") == "ok\n"
        for one in idle[:-MOST_CONNECTIONS]:
            assert one.recv(1) == b"", "the oldest made room"


def test_an_idle_connection_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "IDLE_SECONDS", 0.2)
    server = serve()
    with ExitStack() as stack:
        (idle,) = connected(stack, server, 1)
        assert idle.recv(1) == b""
        (halfway,) = connected(stack, server, 1)
        halfway.sendall(b"GET /healthz HTT")
        assert halfway.recv(1) == b""
