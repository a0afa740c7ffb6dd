"""`/healthz`, `/readyz`, `/metrics` and `/debug/state` on one port. A probe always gets a response."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from guard_operator.runtime.serving import IDLE_SECONDS, PortServer


class HealthServer(PortServer):
    """Serves until closed.

    Args:
        address: host and port; port 0 takes a free one. The host `::` is every address, of IPv4 too.
        healthy, ready: what the probes report.
        registry: of the metrics.
        state: what `/debug/state` shows, as JSON.
    """

    def __init__(
        self,
        address: tuple[str, int],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        registry: CollectorRegistry,
        state: Callable[[], object] = dict,
    ) -> None:
        probes = {"/healthz": healthy, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_SECONDS

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._respond(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                elif self.path == "/debug/state":
                    self._respond(200, json.dumps(state(), indent=1).encode(), "application/json")
                elif (probe := probes.get(self.path)) is not None:
                    good = probe()
                    self._respond(200 if good else 503, b"ok\n" if good else b"not ok\n", "text/plain")
                else:
                    there = b"there are /healthz, /readyz, /metrics and /debug/state\n"
                    self._respond(404, there, "text/plain")

            def _respond(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line of log."""

        super().__init__(address, Handler, "health")
