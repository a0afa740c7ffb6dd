"""Whether the guard works: probes without a token, and metrics."""

from __future__ import annotations

from fastapi import FastAPI, Security
from starlette.responses import Response

from guard_service.api.models import Health
from guard_service.api.openapi import auth_problems, problem
from guard_service.auth import Bearer, Role, Tokens
from guard_service.engine import Engine
from guard_service.errors import Problem, ProblemType
from guard_service.metrics import CONTENT_TYPE


def add_probes(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """Add the routes of probes and metrics."""

    @app.get("/healthz", tags=["probes"])
    async def get_healthz() -> Health:
        """The process responds. It says nothing about the run."""
        return Health(status="ok")

    @app.get(
        "/readyz",
        responses={503: problem("The store does not work, or the held-out split is not checked yet.")},
        tags=["probes"],
    )
    async def get_readyz() -> Health:
        """The store works and held-out evaluation is ready."""
        if (cause := engine.not_ready) is not None:
            raise Problem(ProblemType.NOT_READY, cause.reason, headers={"Retry-After": "1"})
        return Health(status="ready")

    @app.get(
        "/metrics",
        dependencies=[Security(Bearer("readToken", tokens, Role.READ))],
        response_class=Response,
        responses={
            **auth_problems(),
            200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "Metrics."},
        },
        tags=["reading"],
    )
    async def get_metrics() -> Response:
        """Prometheus metrics."""
        return Response(engine.metrics.render(), media_type=CONTENT_TYPE)
