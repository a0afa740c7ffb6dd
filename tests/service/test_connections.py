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
UNFINISHED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"

Connect = Callable[[bytes], socket.socket]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request, and answers at `/slow` later than a request may come."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connections to a server of this protocol, which send something at once."""
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", SECONDS)
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 2)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = uvicorn.Server(uvicorn.Config(app, http=protocol.Protocol, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))

        def end() -> None:
            server.should_exit = server.force_exit = True
            thread.join(LATE)

        thread.start()
        stack.callback(end)

        def to(sent: bytes) -> socket.socket:
            connection = socket.create_connection(listener.getsockname(), timeout=LATE)
            stack.callback(connection.close)
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


def test_more_than_a_few_are_told_so_and_a_place_is_free_again(connect: Connect) -> None:
    first, second = connect(GET), connect(GET)
    answers(first)
    answers(second)
    third = connect(b"")
    head, _, body = third.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    problem = json.loads(body)
    assert problem["type"] == "urn:rlguard:problem:too-many-connections"
    assert "2 connections" in problem["detail"]
    assert is_cut(third)
    second.close()
    until = time.monotonic() + LATE
    while not connect(GET).recv(65536).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < until
