"""Every failure of a request as a problem, whoever notices it: a route, the framework, or nobody."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guard_core.wording import message
from guard_service.errors import MEDIA_TYPE, FieldError, Problem, ProblemType, invalid

log = logging.getLogger("rlguard.guard")


def add_problem_handlers(app: FastAPI) -> None:
    """Respond with a problem to whatever is raised."""

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return respond(request, error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        details = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not allowed at {request.url.path}",
        }
        detail = details.get(error.status_code, str(error.detail))
        return respond(request, Problem(ProblemType.of(error.status_code), detail, headers=error.headers))

    async def on_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [
            FieldError(
                field=".".join(str(p) for p in e["loc"][1:]), message=f"{message(e)}, got {e['input']!r}"
            )
            for e in error.errors()
        ]
        return respond(request, invalid(f"refused: {', '.join(f.field for f in fields)}", fields))

    async def on_failure(request: Request, error: Exception) -> Response:
        return failed(request, error)

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        Problem: on_problem,
        HTTPException: on_http,
        RequestValidationError: on_query,
        Exception: on_failure,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def failed(request: Request, error: Exception) -> Response:
    """The response to a failure of the guard's own, which is logged."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(
        request,
        Problem(ProblemType.INTERNAL_SERVER_ERROR, "the guard failed on this request; its log says why"),
    )


def respond(request: Request, problem: Problem) -> Response:
    """A problem as the response to this request."""
    return Response(problem.body(request.url.path), problem.status, problem.headers, MEDIA_TYPE)
