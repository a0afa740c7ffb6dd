"""Every failure of a request as a problem, whoever notices it: a route, the framework, or nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guard_service.errors import MEDIA_TYPE, FieldError, Problem, ProblemType
from rlguard.core.wording import excerpt, message, quoted

MAX_ERRORS = 20  # fields named in one response


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
    return Problem(ProblemType.of(error.status_code), detail, headers=error.headers or {})


def _of_the_query(_: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    fields = [
        FieldError(
            field=".".join(str(part) for part in one["loc"][1:]),
            message=f"{message(one)}, got {quoted(one['input'])}",
        )
        for one in error.errors()
    ]
    return Problem(ProblemType.INVALID_CONTENT, f"refused: {', '.join(f.field for f in fields)}", fields)


def wrong_body(error: ValidationError) -> Problem:
    """400 if the body is not JSON, 422 naming the fields that are wrong."""
    errors = error.errors(include_url=False)
    if errors[0]["type"] == "json_invalid":
        why = errors[0]["msg"].removeprefix("Invalid JSON: ")
        return Problem(ProblemType.BAD_REQUEST, f"the body is not JSON: {why}")
    fields = [_field_error(e) for e in errors[:MAX_ERRORS]]
    more = "" if len(errors) <= MAX_ERRORS else f" and {len(errors) - MAX_ERRORS} more"
    names = ", ".join(f.field for f in fields)
    return Problem(ProblemType.INVALID_CONTENT, f"refused: {names}{more}; nothing was kept", fields)


def _field_error(error: Any) -> FieldError:
    field = ".".join(excerpt(str(part)) for part in error["loc"]) or "body"
    if error["type"] in ("missing", "extra_forbidden", "value_error", "too_long") or field == "body":
        return FieldError(field=field, message=message(error))
    return FieldError(field=field, message=f"{message(error)}, got {quoted(error['input'])}")


def _of_the_guard(_: Request, __: Exception) -> Problem:
    """The server logs the error."""
    return Problem(ProblemType.INTERNAL_SERVER_ERROR, "the guard failed on this request; its log says why")
