"""HTTP/1.1 as the guard speaks it: bounded in all that a client may hold, and a problem for what is no HTTP.

A client takes one of few connections. It has so long for a whole request, and so long to take more of a
response. So whoever reaches the guard, a hostile trainer with its token too, can take neither its descriptors
nor its memory.
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
#: Requests that may wait for the responses before them. No client of ours sends one before it has these.
MAX_PIPELINED = 4
#: In which a whole request must come, from when it could begin, or some of a response be taken.
PATIENCE_SECONDS = 30.0


class Protocol(HttpToolsProtocol):
    """One connection.

    httptools takes a head, a trailer and a chunk's extension of any size, and keeps them in memory until
    they end. uvicorn takes any number of requests at once, and ends a connection that is idle after a
    response, but not one on which a request never begins or never ends, or whose client does not read.
    """

    _head_bytes = 0
    _unheard_bytes = 0  # of reads in a row of which httptools has told nothing
    _heard = False  # whether it has told something of this read
    _refusal: Problem | None = None  # why the parser was stopped
    _end: asyncio.TimerHandle | None = None
    _blocked = False  # whether responses wait for the client to read
    _unsent = 0  # bytes of responses that wait to be taken, when patience began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it; where there are many, the one that has kept the guard waiting longest makes room."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = {
                one: one._end.when()
                for one in self.connections
                if isinstance(one, Protocol) and one._end is not None  # as this one's is yet
            }
            if waiting:
                min(waiting, key=waiting.__getitem__).transport.abort()
            else:
                about = f"the guard takes {MAX_CONNECTIONS} connections at once, and has them"
                self._hang_up(too_many_connections(about))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and bound what it has not made a callback of yet."""
        self._heard = False
        super().data_received(data)
        self._unheard_bytes = 0 if self._heard else self._unheard_bytes + len(data)
        if self._unheard_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._hang_up(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._heard, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        """A part of its path has come."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come, or a trailer."""
        self._count(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head has come; what follows is its body."""
        self._heard = True
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(bad_request(f"{MAX_PIPELINED} requests wait for their responses: read these first"))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body has come."""
        self._heard = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it has come; it may have been answered before."""
        self._heard = True
        super().on_message_complete()
        self._watch()

    def on_response_complete(self) -> None:
        """The next one may begin, if it has not come already."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client takes a response more slowly than it is made."""
        super().pause_writing()
        self._blocked = True
        self._watch()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._blocked = False
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """`msg` is uvicorn's; it is called for what a callback raised, too."""
        self._hang_up(self._refusal or bad_request(f"this is not HTTP/1.1 as the guard speaks it: {msg}"))

    def _watch(self) -> None:
        """Be patient from now on, unless it is the guard for whom the client waits."""
        cycle = self.cycle
        guards_turn = cycle is not None and not cycle.more_body and not cycle.response_complete
        if guards_turn and not self._blocked:
            self._stop_waiting()
        else:
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._unsent = self.transport.get_write_buffer_size()
        self._end = self.loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _lose_patience(self) -> None:
        """End it, unless its client has taken some of a response meanwhile, and not all of it."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._wait()
        else:
            self.transport.abort()

    def _count(self, *parts: bytes) -> None:
        self._heard = True
        self._head_bytes += sum(map(len, parts))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop(_TOO_LARGE)

    def _stop(self, refusal: Problem) -> None:
        self._refusal = refusal
        raise ValueError(refusal.detail)  # httptools stops; `send_400_response` is next

    def _hang_up(self, problem: Problem) -> None:
        """Respond and hang up: where the next request would begin is not known."""
        body, status = problem.body(""), HTTPStatus(problem.kind.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


_TOO_LARGE = head_too_large(f"the request's line and headers are larger than {MAX_HEAD_BYTES} bytes")
