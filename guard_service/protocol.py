"""HTTP/1.1 as the guard speaks it: bounded in all that a client may hold, and a problem for what is no HTTP.

A client takes one of few connections, and has so long for a request. So whoever reaches the guard, a hostile
trainer with its token too, can take neither its descriptors nor its memory.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guard_service.errors import MEDIA_TYPE, Problem, bad_request, head_too_large, too_many_connections

#: Of a request's line and headers. Browsers and clients of ours send less than 2 KiB.
MAX_HEAD_BYTES = 16 * 1024
#: On one port or socket. A trainer has one, a browser six.
MAX_CONNECTIONS = 64
#: In which a whole request must come, from when it could begin.
REQUEST_SECONDS = 30.0


class Protocol(HttpToolsProtocol):
    """One connection.

    httptools takes a head of any size, and keeps it in memory until it ends. uvicorn ends a connection that
    is idle after a response, but not one on which a request never begins or never ends.
    """

    _in_head = False
    _head_bytes = 0
    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, if it is one of few."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MAX_CONNECTIONS:
            self._hang_up(
                too_many_connections(f"the guard takes {MAX_CONNECTIONS} connections at once, and has them")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and bound what it has not made a callback of yet."""
        unfinished = self._in_head
        super().data_received(data)
        if unfinished and self._in_head and not self.transport.is_closing():
            # A header that never ends is in no callback yet.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._hang_up(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._await_request()
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        """A part of its path has come."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come."""
        self._count(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head has come; what follows is its body."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it has come."""
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next one may begin, if it has not come already."""
        if not self.pipeline:
            self._await_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """`msg` is uvicorn's; it is called for what a callback raised, too."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._hang_up(_TOO_LARGE)
        else:
            self._hang_up(bad_request(f"this is not HTTP/1.1 as the guard speaks it: {msg}"))

    def _await_request(self) -> None:
        self._stop_waiting()
        self._end = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._end is not None:
            self._end.cancel()

    def _count(self, *parts: bytes) -> None:
        self._head_bytes += sum(map(len, parts))
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # httptools stops; `send_400_response` is next

    def _hang_up(self, problem: Problem) -> None:
        """Answer and hang up: where the next request would begin is not known."""
        body, status = problem.body(""), HTTPStatus(problem.kind.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


_TOO_LARGE = head_too_large(f"the request's line and headers are larger than {MAX_HEAD_BYTES} bytes")
