"""What a client may hold of the guard's: few connections, each for a whole request that comes in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from guard_service import protocol

SECONDS = 0.5  # for a request; here
LATE = 10.0  # when a test gives up
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nX: "
SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
MEGABYTES = 8
SMALL = 1 << 16  # of what the kernel keeps: what a client does not read is felt at once
UNFINISHED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"

Connect = Callable[[bytes], socket.socket]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request, but not at `/at-once`, and answers at `/slow` later than a request may come."""
    while scope["path"] != "/at-once" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * SECONDS)
    body = b"x" * (MEGABYTES << 20) if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connections to a server of this protocol, which send something at once."""
    monkeypatch.setattr(protocol, "PATIENCE_SECONDS", SECONDS)
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 2)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        server = uvicorn.Server(uvicorn.Config(app, http=protocol.Protocol, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))

        def end() -> None:
            server.should_exit = server.force_exit = True
            thread.join(LATE)

        thread.start()
        stack.callback(end)

        def to(sent: bytes) -> socket.socket:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            connection.settimeout(LATE)
            connection.connect(listener.getsockname())
            connection.sendall(sent)
            return connection

        yield to


def answers(connection: socket.socket, count: int = 1) -> bytes:
    """What came, once so many responses have."""
    got = b""
    while got.count(b"\r\n\r\nok") < count:
        more = connection.recv(65536)
        assert more, got
        got += more
    return got


def is_cut(connection: socket.socket, trickled: bytes = b"") -> bool:
    """Whether the guard ends it, also if a little more is sent again and again."""
    until = time.monotonic() + LATE
    connection.settimeout(SECONDS / 5)
    while time.monotonic() < until:
        try:
            if not connection.recv(65536):
                return True
            connection.sendall(trickled)
        except TimeoutError:
            with contextlib.suppress(OSError):  # the next read says it
                connection.sendall(trickled)
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("sent", [b"", b"\r\n", HALF, UNFINISHED])
@pytest.mark.parametrize("trickles", [False, True])
def test_one_on_which_no_whole_request_comes_is_ended(connect: Connect, sent: bytes, trickles: bool) -> None:
    more = b"1" if sent in (HALF, UNFINISHED) else b"\r\n"
    assert is_cut(connect(sent), more if trickles else b"")


def test_nor_does_an_answer_buy_time_for_what_is_no_request(connect: Connect) -> None:
    connection = connect(GET)
    answers(connection)
    assert is_cut(connection, b"\r\n")


def test_nor_one_whose_response_came_before_its_body(connect: Connect) -> None:
    connection = connect(b"POST /at-once HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
    answers(connection)
    connection.sendall(b"}")
    assert is_cut(connection)


@pytest.mark.parametrize("more", [b"", GET])
def test_one_whose_client_does_not_read_is_ended(connect: Connect, more: bytes) -> None:
    """Nor does another request keep it."""
    connection = connect(LARGE)
    time.sleep(SECONDS / 2)
    connection.sendall(more)
    time.sleep(4 * SECONDS)
    got, _ = taken(connection)
    assert got < MEGABYTES << 20


def test_one_whose_client_reads_slowly_is_not(connect: Connect) -> None:
    connection = connect(LARGE)
    got, began = 0, time.monotonic()
    while time.monotonic() < began + 4 * SECONDS:
        got += len(connection.recv(1 << 16))
        time.sleep(SECONDS / 10)
    rest, _ = taken(connection, (MEGABYTES << 20) - got)
    assert got + rest >= MEGABYTES << 20


def taken(connection: socket.socket, enough: int | None = None) -> tuple[int, bytes]:
    """How much still comes, until the end or until it is enough."""
    got, last = 0, b""
    with contextlib.suppress(ConnectionError):
        while (enough is None or got < enough) and (more := connection.recv(1 << 20)):
            got, last = got + len(more), more
    return got, last


def test_few_requests_wait_for_their_responses(connect: Connect) -> None:
    connection = connect(SLOW + GET * 1000)
    got = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            got += more
    assert got.count(b"HTTP/1.1 400 ") == 1 and b"requests wait for their responses" in got
    assert got.count(b"\r\n\r\nok") <= 1


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"1;x="])
def test_what_no_header_is_has_an_end(connect: Connect, begun: bytes) -> None:
    """A trailer, and what a chunk may say of itself."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = connect(head + begun)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 1 << 20:
            connection.sendall(b"a" * 4096)
            sent += 4096
            time.sleep(0.001)
    assert sent < 1 << 20


@pytest.mark.parametrize("second", [HALF, UNFINISHED])
def test_nor_does_a_whole_one_for_another_that_follows_it(connect: Connect, second: bytes) -> None:
    connection = connect(SLOW + second)
    assert is_cut(connection)


def test_a_response_may_take_its_time(connect: Connect) -> None:
    connection = connect(SLOW + SLOW)
    answers(connection, 2)
    connection.sendall(SLOW)
    answers(connection)


def test_one_that_is_used_stays(connect: Connect) -> None:
    connection = connect(b"")
    until = time.monotonic() + 3 * SECONDS
    while time.monotonic() < until:
        connection.sendall(GET)
        answers(connection)
        time.sleep(SECONDS / 10)


def test_of_many_one_that_keeps_the_guard_waiting_makes_room(connect: Connect) -> None:
    busy = connect(SLOW)
    time.sleep(SECONDS / 2)  # its request has come
    idle, newest = connect(b""), connect(GET)
    answers(newest)
    assert is_cut(idle)
    answers(busy)


def test_and_of_these_the_one_that_does_so_longest(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE_SECONDS", 10 * LATE)  # none is ended for its own sake
    first = connect(b"")
    time.sleep(SECONDS / 5)  # a loop's clock may count milliseconds
    second, newest = connect(b""), connect(GET)
    answers(newest)
    assert is_cut(first)
    second.sendall(GET)
    answers(second)


def test_more_than_a_few_that_wait_for_the_guard_are_told_so(connect: Connect) -> None:
    first, second = connect(SLOW), connect(SLOW)
    time.sleep(SECONDS / 2)  # both have come
    third = connect(b"")
    head, _, body = third.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    problem = json.loads(body)
    assert problem["type"] == "urn:rlguard:problem:too-many-connections"
    assert "2 connections" in problem["detail"]
    assert is_cut(third)
    answers(first)
    answers(second)
    until = time.monotonic() + LATE
    while not connect(GET).recv(65536).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < until
