"""The metrics page on a port of its own, without a token: what Prometheus reads on a cluster.

`GET /metrics` is all there is. Whoever reaches the port may read it, so what that costs the guard is bounded:
few connections, each one short and with a small head, and a page that is made at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from guard_service.metrics import CONTENT_TYPE, GuardMetrics

log = logging.getLogger("rlguard.guard")

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


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the guard's own server."""
        yield


@asynccontextmanager
async def scraped(metrics: GuardMetrics, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve these metrics, if there is a bound socket for them, for as long as the guard serves."""
    if listener is None:
        yield
        return
    config = uvicorn.Config(
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
    server = _Server(config)
    listener.listen()  # from now on: the task below takes a moment
    task = asyncio.create_task(server.serve(sockets=[listener]))
    task.add_done_callback(_say_failure)
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task])


def metrics_app(metrics: GuardMetrics) -> Starlette:
    """The app of this port."""
    page, made_at = b"", -math.inf

    async def get_metrics(_: Request) -> Response:
        nonlocal page, made_at
        if (now := time.monotonic()) - made_at >= PAGE_SECONDS:
            page, made_at = metrics.render(), now
        return Response(page, media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", get_metrics)])


def _say_failure(task: asyncio.Task[None]) -> None:
    """A guard without metrics goes on guarding."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("metrics are no longer served: %s", error)
