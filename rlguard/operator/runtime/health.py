"""`/healthz`, `/readyz` and `/metrics` on one port. A probe always gets a response.

Whoever reaches the port may open connections and leave them. So each has a time-out, there is a limit to
them, and at the limit the oldest makes room.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
#: All addresses of the machine, of both families.
EVERYWHERE = "::"


class _BoundedServer(ThreadingHTTPServer):
    """See the module. It listens on both families where it is to listen everywhere."""

    daemon_threads = True
    #: Connections that wait to be accepted: those above wait for a second and more.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Any] = OrderedDict()  # connections by id, the oldest first
        host, port = address
        if host == EVERYWHERE and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"  # noqa: S104 - what was asked for, on a machine without IPv6
        family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__(found[:2], handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """On IPv4 too, if it is everywhere; without a look at the DNS for a name that nobody needs."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own; at the limit the oldest connection ends."""
        with self._lock:
            oldest = self._open.popitem(last=False)[1] if len(self._open) >= MOST_CONNECTIONS else None
            self._open[id(request)] = request
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It has ended."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that goes away is no error of ours."""
        log.debug("a connection ended with an error", exc_info=True)


class HealthServer:
    """Serves until closed.

    Args:
        address: host and port; port 0 takes a free one. The host `::` is every address, of IPv4 too.
        healthy, ready: what the probes report.
        registry: of the metrics.
        idle_seconds: how long a connection may send or take nothing.
    """

    def __init__(
        self,
        address: tuple[str, int],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        registry: CollectorRegistry,
        idle_seconds: float = 5.0,
    ) -> None:
        probes = {"/healthz": healthy, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            timeout = idle_seconds

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._respond(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif (probe := probes.get(self.path)) is not None:
                    good = probe()
                    self._respond(200 if good else 503, b"ok\n" if good else b"not ok\n", "text/plain")
                else:
                    there = b"there are /healthz, /readyz and /metrics\n"
                    self._respond(404, there, "text/plain")

            def _respond(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line of log."""

        self._server = _BoundedServer(address, Handler)
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection had ended already")
