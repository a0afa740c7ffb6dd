"""What the OpenAPI document says where FastAPI cannot: bodies that it does not read, and problems.

Beside that the responses that only the guard has. What trainer and operator read is in `rlguard.core.wire`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from guard_service.errors import MEDIA_TYPE, ProblemDetails, ProblemType
from rlguard.core.policy import Policy
from rlguard.core.wire import (
    MAX_STEPS_PER_POST,
    CheckpointReport,
    EndReport,
    EvaluationReport,
    EvaluationSummary,
    PostedStep,
    StepReport,
)

JSON, NDJSON = "application/json", "application/x-ndjson"

_NAMED = (PostedStep, CheckpointReport, EvaluationReport, EndReport, ProblemDetails)

Responses = dict[int | str, dict[str, Any]]


class HistoryEvaluation(EvaluationSummary):
    """One evaluation of a thinned history, with what the held-out rule made of it."""

    seconds: float | None = Field(None, description="Wall time of all of it, seconds.")
    parts: dict[str, float] = Field(
        {},
        description="Wall time of its parts, seconds: stage (copy and hash), load, generate, score.",
    )
    unscored: float | None = Field(None, description="Share of completions that could not be scored.")
    completions: int | None = Field(None, description="How many completions were made.")
    kl: float | None = Field(None, description="Mean KL to the reference of this round, nats/token.")
    rounds: int = Field(description="Evaluation rounds folded so far.")
    in_loop_ema: float | None = Field(None, description="EMA of the in-loop reward after this round.")
    heldout_ema: float | None = Field(None, description="EMA of the held-out score after this round.")
    proxy_real_gap: float | None = Field(None, description="The Hacking Gap after this round, reward units.")
    kl_ema: float | None = Field(None, description="EMA of the KL to the reference, nats/token.")
    reward: float | None = Field(None, description="Mean in-loop reward of this round, reward units.")
    evidence: dict[str, tuple[float, float]] = Field(
        {}, description="Statistic and threshold of each calibrated detector after this round, nats."
    )


class History(BaseModel):
    """The history, thinned for a plot."""

    steps: list[StepReport] = Field(description="At most `max_points`, evenly spread, first and last kept.")
    evaluations: list[HistoryEvaluation] = Field(description="All of them, in the order they finished.")
    total_steps: int = Field(description="How many steps there are before thinning.")


class RunInfo(BaseModel):
    """Which run this is."""

    name: str = Field(description="Its name, for people.")
    version: str = Field(description="Version of the guard.")
    policy: Policy = Field(description="Every threshold that it is judged by.")


class Adopted(BaseModel):
    """Response to `PUT /v1/state`."""

    adopted: bool = Field(description="False if the guard knew of a run already: nothing was changed.")


class Health(BaseModel):
    """The process responds."""

    status: str = Field(description="`ok` or `ready`.")


def _ref(model: type[BaseModel]) -> dict[str, str]:
    """Where the document has this model."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def problem_responses(*kinds: ProblemType) -> Responses:
    """Responses of these kinds."""
    content = {MEDIA_TYPE: {"schema": _ref(ProblemDetails)}}
    return {kind.status: {"description": kind.meaning, "content": content} for kind in kinds}


def body_of(*schemas: type[BaseModel] | dict[str, Any]) -> dict[str, Any]:
    """A body that is one of these."""
    known = [schema if isinstance(schema, dict) else _ref(schema) for schema in schemas]
    schema = known[0] if len(known) == 1 else {"anyOf": known}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


STEPS_BODY = body_of(PostedStep, {"type": "array", "items": _ref(PostedStep), "maxItems": MAX_STEPS_PER_POST})
OF_READING = problem_responses(ProblemType.UNAUTHORIZED, ProblemType.FORBIDDEN)
OF_STORED = OF_READING | problem_responses(ProblemType.STORE_UNAVAILABLE)
OF_BODY = problem_responses(
    ProblemType.BAD_REQUEST,
    ProblemType.CONTENT_TOO_LARGE,
    ProblemType.UNSUPPORTED_MEDIA_TYPE,
    ProblemType.INVALID_CONTENT,
)
OF_INGEST = (
    OF_STORED
    | OF_BODY
    | problem_responses(ProblemType.CONFLICT, ProblemType.TOO_MANY_REQUESTS, ProblemType.INSUFFICIENT_STORAGE)
)
OF_VERDICT = OF_READING | problem_responses(ProblemType.INVALID_CONTENT)
OF_HISTORY: Responses = OF_STORED | problem_responses(ProblemType.INVALID_CONTENT)
OF_HISTORY[200] = {
    "content": {NDJSON: {"schema": {"type": "string"}}},
    "description": "With `max_points`: thinned, as JSON. Without: every step, one JSON object a line in the "
    "order of (attempt, step); a step whose checkpoint was evaluated has `heldout`.",
}


def document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the models that only `$ref` names, and none that nothing uses."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, models = models_json_schema(
            [(model, "validation") for model in _NAMED], ref_template="#/components/schemas/{model}"
        )
        schemas = made["components"]["schemas"]
        schemas |= models["$defs"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = made
    return app.openapi_schema
