"""The HTTP side of the guard, put together of the routes in `guard_service.api`. It decides nothing.

`create_app` neither starts nor closes the engine; `guard_service.__main__` does.
"""

from __future__ import annotations

from fastapi import FastAPI

from guard_core._version import __version__
from guard_service import dashboard
from guard_service.api.ingest import IngestRoutes
from guard_service.api.openapi import add_openapi, problem
from guard_service.api.probes import add_probes
from guard_service.api.problems import add_problem_handlers
from guard_service.api.reading import ReadingRoutes
from guard_service.api.supervision import SupervisionRoutes
from guard_service.auth import Tokens
from guard_service.engine import Engine


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
    IngestRoutes(engine, tokens).add_to(app)
    SupervisionRoutes(engine, tokens).add_to(app)
    ReadingRoutes(engine, tokens, name).add_to(app)
    add_probes(app, engine, tokens)
    app.include_router(dashboard.router())
    add_problem_handlers(app)
    add_openapi(app)
    return app
