"""The HTTP side of the guard, put together of the routes in `guard_service.api`. It decides nothing.

`create_app` neither starts nor closes the engine; `guard_service.__main__` does.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from guard_core._version import __version__
from guard_service import dashboard
from guard_service.api.ingest import STEPS_PATH, IngestRoutes, RouteHandler
from guard_service.api.openapi import add_openapi, problem
from guard_service.api.probes import add_probes
from guard_service.api.problems import add_problem_handlers, failed, respond
from guard_service.api.reading import ReadingRoutes
from guard_service.auth import Tokens
from guard_service.engine import Engine
from guard_service.errors import Problem


def create_app(engine: Engine, tokens: Tokens, name: str = "") -> FastAPI:
    """The app that serves one engine; `name` is the run's, for people."""
    app = FastAPI(
        title="RLGuard guard",
        version=__version__,
        description="Takes steps and checkpoints of one training run, and says whether it may go on.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={500: problem("The guard failed; the log says why.")},
    )
    ingest = IngestRoutes(engine, tokens)
    ingest.add_to(app)
    ReadingRoutes(engine, tokens, name).add_to(app)
    add_probes(app, engine, tokens)
    app.include_router(dashboard.router())
    add_problem_handlers(app)
    add_openapi(app)
    app.middleware_stack = _StepsFirst(app.build_middleware_stack(), ingest.post_steps)
    return app


class _StepsFirst:
    """Takes `POST /v1/steps` past the framework, which would cost more than to store and fold a step."""

    def __init__(self, app: ASGIApp, endpoint: RouteHandler) -> None:
        self._app, self._endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != STEPS_PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._endpoint(request)
        except Problem as refusal:
            response = respond(request, refusal)
        except Exception as error:
            response = failed(request, error)
        await response(scope, receive, send)
