"""A small HTTP proxy in front of the API server that injects faults; without one it only passes on.

The client speaks plain HTTP to it and it speaks TLS to the API server, so it can answer in its place.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .controlplane import ControlPlane
from .waiting import eventually


@dataclass(frozen=True)
class Answer:
    """Answer in the server's place."""

    status: int
    reason: str = "Injected"
    headers: dict[str, str] = field(default_factory=dict)


class Cut:
    """Close the connection without an answer."""


class Hang:
    """Take the request and never answer."""


Fault = Answer | Cut | Hang
#: (method, path with query) -> the fault for this request, None to pass it on.
Rule = Callable[[str, str], Fault | None]


class FaultProxy:
    """See the module. `requests` records (method, path with query) of everything that was asked."""

    def __init__(self, plane: ControlPlane) -> None:
        self.requests: list[tuple[str, str]] = []
        self._plane = plane
        self._rule: Rule = lambda _method, _path: None
        self._lock = threading.Lock()
        self._streams: set[socket.socket] = set()
        self._frozen = threading.Event()
        self._closed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._handle(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def inject(self, rule: Rule) -> None:
        """From now on, ask this rule about every request."""
        self._rule = rule

    def break_watch(self, rule: Rule) -> None:
        """Cut the open watch, and answer by this rule from now on."""
        eventually(lambda: self._streams, "there is a watch")
        self.inject(rule)
        self.cut_streams()

    def heal(self) -> None:
        """No faults from now on."""
        self._rule = lambda _method, _path: None
        self._frozen.clear()

    def cut_streams(self) -> int:
        """Cut every open watch; how many there were."""
        with self._lock:
            streams, self._streams = self._streams, set()
        for one in streams:
            with suppress(OSError):  # the client was quicker
                one.shutdown(socket.SHUT_RDWR)
        return len(streams)

    def freeze_streams(self) -> None:
        """Pass no data of open watches on, and leave them open."""
        self._frozen.set()

    def close(self) -> None:
        self._closed.set()
        self.cut_streams()
        self._server.shutdown()
        self._server.server_close()

    def count(self, text: str) -> int:
        """How many requests had `text` in method and path."""
        return sum(text in f"{method} {path}" for method, path in self.requests)

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append((handler.command, handler.path))
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        fault = self._rule(handler.command, handler.path)
        if isinstance(fault, Cut):
            handler.close_connection = True
            with suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(fault, Hang):
            self._closed.wait(60)
            handler.close_connection = True
        elif isinstance(fault, Answer):
            self._answer(handler, fault)
        else:
            self._pass_on(handler, body)

    def _answer(self, handler: BaseHTTPRequestHandler, fault: Answer) -> None:
        status = {"kind": "Status", "code": fault.status, "reason": fault.reason, "message": "injected"}
        data = json.dumps(status).encode()
        handler.send_response(fault.status)
        for name, value in {**fault.headers, "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        context = ssl.create_default_context(cafile=str(self._plane.ca_file))
        upstream = http.client.HTTPSConnection("127.0.0.1", self._plane.port, context=context, timeout=300)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in {"host", "accept-encoding"}}
        watch = "watch=true" in handler.path
        try:
            upstream.request(handler.command, handler.path, body or None, headers)
            answer = upstream.getresponse()
            handler.send_response(answer.status)
            handler.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            if not watch:
                data = answer.read()
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)
                return
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            self._pass_stream_on(handler, answer)
        except (OSError, http.client.HTTPException):  # the server was killed in the middle of an answer
            handler.close_connection = True
        finally:
            upstream.close()

    def _pass_stream_on(self, handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
        with self._lock:
            self._streams.add(handler.connection)
        try:
            while data := answer.read1(65536):
                while self._frozen.is_set():
                    self._closed.wait(0.05)
                with self._lock:
                    handler.connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.write(b"0\r\n\r\n")
        finally:
            with self._lock:
                self._streams.discard(handler.connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing is said of a client that was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def fault_proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy for the length of a test."""
    proxy = FaultProxy(plane)
    try:
        yield proxy
    finally:
        proxy.close()
