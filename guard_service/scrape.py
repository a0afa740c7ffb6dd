"""The metrics page on a port of its own, without a token: what Prometheus reads on a cluster.

`GET /metrics` is all there is. Whoever reaches the port may read it, so what that costs the guard is bounded:
few connections, each one short and with a small head, and a page that is made at most once a second.
"""

from __future__ import annotations

import asyncio
import math
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from guard_service.metrics import CONTENT_TYPE, GuardMetrics

MAX_CONNECTIONS = 16
CONNECTION_SECONDS = 10.0
PAGE_SECONDS = 1.0


class _Connection(H11Protocol):
    """One of at most `MAX_CONNECTIONS`, each cut off in the end; h11 bounds the head of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        seconds = CONNECTION_SECONDS if len(self.connections) <= MAX_CONNECTIONS else 0.0
        self._end = self.loop.call_later(seconds, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)


def scrape_config(metrics: GuardMetrics) -> uvicorn.Config:
    """How these metrics are served."""
    return uvicorn.Config(
        metrics_app(metrics),
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[("Connection", "close")],  # one response, and the place is free for another scraper
        timeout_graceful_shutdown=1,
    )


def metrics_app(metrics: GuardMetrics) -> Starlette:
    """The app of this port."""
    page, made_at = b"", -math.inf

    async def get_metrics(_: Request) -> Response:
        nonlocal page, made_at
        if (now := time.monotonic()) - made_at >= PAGE_SECONDS:
            page, made_at = metrics.render_open(), now
        return Response(page, media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", get_metrics)])
