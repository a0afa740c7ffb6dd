"""A bounded HTTP server, of both families of addresses.

Whoever reaches a port may open connections and leave them. So each has a time-out (`IDLE_SECONDS`, which the
handlers name), there is a limit to them, and at the limit the oldest makes room.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

log = logging.getLogger(__name__)

#: How long a connection may send or take nothing, seconds.
IDLE_SECONDS = 5.0
MOST_CONNECTIONS = 32
#: All addresses of the machine, of both families.
EVERYWHERE = "::"


class BoundedServer(ThreadingHTTPServer):
    """See the module; it listens on both families where it is to listen everywhere."""

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


class PortServer:
    """Serves a port, in threads, from its making until it is closed.

    Args:
        address: host and port; port 0 takes a free one. The host `::` is every address, of IPv4 too.
        handler: of its requests.
        name: of its thread.
    """

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], name: str) -> None:
        self._server = BoundedServer(address, handler)
        threading.Thread(target=self._server.serve_forever, name=name, daemon=True).start()

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
