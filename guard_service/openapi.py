"""What the OpenAPI document says where FastAPI cannot: bodies that it does not read, and problems.

Beside that the responses that only the guard has. What trainer and operator read is in `guard_core.wire`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from guard_core.policy import Policy
from guard_core.wire import (
    MAX_STEPS_PER_POST,
    CheckpointReport,
    EndReport,
    EvaluationReport,
    FiguresReport,
    PostedStep,
)
from guard_service.errors import MEDIA_TYPE, ProblemDetails
from guard_service.metrics import CONTENT_TYPE

JSON, NDJSON = "application/json", "application/x-ndjson"

_NAMED = (PostedStep, CheckpointReport, EvaluationReport, EndReport, FiguresReport, ProblemDetails)

Responses = dict[int | str, dict[str, Any]]


class HistoryStep(BaseModel):
    """One step of a thinned history."""

    attempt: int = Field(description="Start of the trainer, 0 for the first.")
    step: int = Field(description="Optimizer step.")
    reward: float | None = Field(
        description="Mean in-loop reward of the step, reward units; null where it is NaN or infinite."
    )
    kl: float | None = Field(None, description="KL, nats; `kl_kind` says which KL it is.")
    kl_kind: str = Field(description="What `kl` is; see `KlKind`.")
    entropy: float | None = Field(None, description="Mean policy entropy, nats/token.")
    reward_std: float | None = Field(None, description="Std of the reward, reward units.")


class HistoryEvaluation(BaseModel):
    """One evaluation of a thinned history, with what the held-out rule made of it."""

    attempt: int = Field(description="Start of the trainer that wrote the checkpoint.")
    step: int = Field(description="Optimizer step of the checkpoint.")
    score: float = Field(description="Mean score over the held-out split, in [0, 1].")
    items: int = Field(description="How many held-out items were scored.")
    truncated: float | None = Field(None, description="Share of completions that were cut off.")
    unanswered: float | None = Field(
        None, description="Share without an answer, of the completions whose answer begins after a mark."
    )
    timed_out: float | None = Field(
        None, description="Share that counts as wrong because its scorer reached its limit."
    )
    proxy_score: float | None = Field(
        None, description="Mean score of the same completions by the training grader."
    )
    seconds: float | None = Field(None, description="Wall time of all of it, seconds.")
    parts: dict[str, float] = Field(
        {},
        description="Wall time of its parts, seconds: stage (copy and hash), load, generate, score.",
    )
    path: str = Field(description="The checkpoint directory that was scored.")
    sha256: str | None = Field(None, description="Digest of the scored weights.")
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

    steps: list[HistoryStep] = Field(description="At most `max_points`, evenly spread, first and last kept.")
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


def problem(description: str, retry: bool = False) -> dict[str, Any]:
    """One response of the OpenAPI document that is not a success."""
    entry: dict[str, Any] = {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": _ref(ProblemDetails)}},
    }
    if retry:
        entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return entry


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The body of a route."""
    return _body(_ref(model))


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


STEPS_BODY = _body(
    {
        "anyOf": [
            _ref(PostedStep),
            {"type": "array", "items": _ref(PostedStep), "maxItems": MAX_STEPS_PER_POST},
        ]
    }
)
UNAUTHORIZED: Responses = {
    401: problem("No token, or not one of this guard's."),
    403: problem("A token of this guard's that is not for this route."),
}
OF_A_BODY: Responses = {
    400: problem("The body is not JSON."),
    413: problem("The body is larger than a request may be."),
    415: problem("The body is not `application/json`."),
    422: problem("A field is missing, unknown or out of range; nothing was kept."),
}
OF_INGEST: Responses = {
    **UNAUTHORIZED,
    **OF_A_BODY,
    409: problem("It contradicts what is on disk; nothing was kept."),
    429: problem("More steps than any training makes; nothing was kept.", retry=True),
    503: problem("The store is unavailable; nothing was kept. Send it again.", retry=True),
    507: problem("The run has filled its share of the store; nothing was kept.", retry=True),
}
OF_SUPERVISION: Responses = {
    **UNAUTHORIZED,
    503: problem("Nothing is known yet, or the store is unavailable.", retry=True),
}
OF_VERDICT: Responses = {**UNAUTHORIZED, 422: problem("`since` or `wait` is out of range.")}
OF_HISTORY: Responses = {
    **UNAUTHORIZED,
    200: {
        "content": {NDJSON: {"schema": {"type": "string"}}},
        "description": "With `max_points`: thinned, as JSON. Without: every step, one JSON object a "
        "line in the order of (attempt, step); a step whose checkpoint was evaluated has `heldout`.",
    },
    422: problem("`max_points` is out of range."),
    503: problem("The store is unavailable.", retry=True),
}
OF_METRICS: Responses = {
    **UNAUTHORIZED,
    200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "Metrics."},
}
OF_READYZ: Responses = {503: problem("The store does not work, or the held-out split is not checked yet.")}


def complete(app: FastAPI) -> None:
    """Let the document also have the models that only `$ref` names, and none that nothing uses."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


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
