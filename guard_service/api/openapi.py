"""The OpenAPI document where FastAPI cannot write it: bodies that it does not read, and problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from guard_core.wire import CheckpointReport, EndReport, EvaluationReport, FiguresReport, PostedStep
from guard_service.errors import MEDIA_TYPE, ProblemDetails

JSON = "application/json"

_NAMED = (PostedStep, CheckpointReport, EvaluationReport, EndReport, FiguresReport, ProblemDetails)

Responses = dict[int | str, dict[str, Any]]


def problem(description: str, retry: bool = False) -> dict[str, Any]:
    """One response of the OpenAPI document that is not a success."""
    entry: dict[str, Any] = {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": ref(ProblemDetails)}},
    }
    if retry:
        entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return entry


def auth_problems() -> Responses:
    """The responses of a route that needs a token."""
    return {
        401: problem("No token, or not one of this guard's."),
        403: problem("A token of this guard's that is not for this route."),
    }


def ref(model: type[BaseModel]) -> dict[str, str]:
    """Where the document has this model."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def add_openapi(app: FastAPI) -> None:
    """Add the models that only `ref` names, and write security and problems as they are."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, models = models_json_schema(
        [(model, "validation") for model in _NAMED], ref_template="#/components/schemas/{model}"
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(models["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document
