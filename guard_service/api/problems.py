"""Every failure of a request as a problem, whoever notices it: a route, the framework, or nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guard_core.wording import excerpt, message, quoted
from guard_service.errors import MEDIA_TYPE, FieldError, Problem, ProblemType, invalid


def add_problem_handlers(app: FastAPI) -> None:
    """Respond with a problem to whatever is raised."""
    kinds: dict[type[Exception], Callable[[Request, Exception], Problem]] = {
        Problem: _itself,
        HTTPException: _of_the_framework,
        RequestValidationError: _of_the_query,
        Exception: _of_the_guard,
    }
    for kind, made in kinds.items():
        app.add_exception_handler(kind, _handler(made))


def _handler(
    made: Callable[[Request, Exception], Problem],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def respond(request: Request, error: Exception) -> Response:
        problem = made(request, error)
        body = problem.body(request.scope["path"])
        return Response(body, problem.status, problem.headers, MEDIA_TYPE)

    return respond


def _itself(_: Request, error: Exception) -> Problem:
    assert isinstance(error, Problem)
    return error


def _of_the_framework(request: Request, error: Exception) -> Problem:
    assert isinstance(error, HTTPException)
    details = {
        404: f"there is nothing at {excerpt(request.scope['path'])}",
        405: f"{request.method} is not allowed at {request.scope['path']}",
    }
    detail = details.get(error.status_code, str(error.detail))
    return Problem(ProblemType.of(error.status_code), detail, headers=error.headers)


def _of_the_query(_: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    fields = [
        FieldError(
            field=".".join(str(part) for part in one["loc"][1:]),
            message=f"{message(one)}, got {quoted(one['input'])}",
        )
        for one in error.errors()
    ]
    return invalid(f"refused: {', '.join(f.field for f in fields)}", fields)


def _of_the_guard(_: Request, __: Exception) -> Problem:
    """The server logs the error."""
    return Problem(ProblemType.INTERNAL_SERVER_ERROR, "the guard failed on this request; its log says why")
