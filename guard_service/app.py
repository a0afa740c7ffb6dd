"""The HTTP side of the guard: routes, tokens, the one shape of errors, OpenAPI. It decides nothing.

`create_app` neither starts nor closes the engine; `guard_service.__main__` does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, Query, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from guard_core._version import __version__
from guard_core.policy import Policy
from guard_core.wire import (
    MAX_FIGURES_PER_POST,
    MAX_STEPS_PER_POST,
    CheckpointReport,
    CheckpointResponse,
    EndReport,
    EndResponse,
    FiguresReport,
    MomentRollouts,
    RolloutsReport,
    ShownResponse,
    StepReport,
    StepsResponse,
    Verdict,
)
from guard_core.wording import must_be
from guard_service import dashboard
from guard_service.auth import Role, Tokens
from guard_service.engine import Engine
from guard_service.errors import MEDIA_TYPE, FieldError, Problem, ProblemDetails, ProblemType, invalid
from guard_service.metrics import CONTENT_TYPE
from guard_service.refusals import Kind
from guard_service.requests import (
    parse_checkpoint,
    parse_end,
    parse_figures,
    parse_rollouts,
    parse_steps,
    read_body,
)

log = logging.getLogger("rlguard.guard")

JSON = "application/json"
NDJSON = "application/x-ndjson"
STEPS_PATH = "/v1/steps"
MAX_POINTS = 10_000
HISTORY_CHUNK = 65_536  # bytes that are gathered before they are sent

RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]


class HistoryStep(BaseModel):
    """One step of a thinned history."""

    attempt: int = Field(description="Start of the trainer, 0 for the first.")
    step: int = Field(description="Optimizer step.")
    reward: float = Field(description="Mean in-loop reward of the step, reward units.")
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
    proxy_score: float | None = Field(
        None, description="Mean score of the same completions by the training grader."
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


class Health(BaseModel):
    """The process responds."""

    status: str = Field(description="`ok` or `ready`.")


class _DirectRoute(APIRoute):
    """A route whose endpoint takes the request alone and returns a `Response`.

    FastAPI would read a body with `json.loads` and go through its dependencies; ingest does not.
    """

    def get_route_handler(self) -> RouteHandler:
        endpoint: RouteHandler = self.endpoint
        return endpoint


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
        except Problem as problem:
            response = _respond(request, problem)
        except Exception as error:
            response = _failed(request, error)
        await response(scope, receive, send)


class _Bearer(HTTPBearer):
    """A token scheme of the OpenAPI document that also checks the token."""

    def __init__(self, name: str, tokens: Tokens, *roles: Role) -> None:
        super().__init__(scheme_name=name, auto_error=False)
        self._tokens, self._roles = tokens, roles

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        authorize(request, self._tokens, *self._roles)


def authorize(request: Request, tokens: Tokens, *roles: Role) -> None:
    """Admit the request if it carries the token of one of the roles; raises `Problem` 401 or 403."""
    tokens.check(_authorization(request), *roles)


def _authorization(request: Request) -> bytes | None:
    return next((v for name, v in request.scope["headers"] if name == b"authorization"), None)


def create_app(engine: Engine, tokens: Tokens, name: str = "") -> FastAPI:
    """The app that serves one engine; `name` is the run's, for people."""
    app = FastAPI(
        title="RLGuard guard",
        version=__version__,
        description="Takes steps and checkpoints of one training run, and says whether it may go on.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={500: _problem("The guard failed; the log says why.")},
    )
    post_steps = _add_ingest(app, engine, tokens)
    _add_reading(app, engine, tokens, name)
    _add_probes(app, engine, tokens)
    app.include_router(dashboard.router())
    _add_problem_handlers(app)
    _add_openapi(app)
    app.middleware_stack = _StepsFirst(app.build_middleware_stack(), post_steps)
    return app


# -- routes ------------------------------------------------------------------------------------------------


def _add_ingest(app: FastAPI, engine: Engine, tokens: Tokens) -> RouteHandler:
    """The routes of the trainer; returns the endpoint of `STEPS_PATH`."""

    async def post_steps(request: Request) -> Response:
        """Report one step, or a list of at most 1,000.

        What is acknowledged is on disk and in the verdict. A step that was reported before with the same
        values is counted as a duplicate and not folded again. A list is kept whole or not at all: an item
        that contradicts what is on disk (409) or does not validate (422) refuses all of it.
        """
        authorize(request, tokens, Role.INGEST)
        body = await read_body(request.scope, request.receive)
        with engine.refusing(Kind.STEPS):
            steps = parse_steps(body)
        added = await engine.add_steps(steps)
        return Response(
            b'{"accepted":%d,"duplicates":%d,"verdict":%b}'
            % (len(added.new), added.duplicates, engine.trainer_json),
            media_type=JSON,
        )

    async def post_checkpoint(request: Request) -> Response:
        """Announce a checkpoint that is complete on disk; it is queued for held-out evaluation."""
        authorize(request, tokens, Role.INGEST)
        body = await read_body(request.scope, request.receive)
        with engine.refusing(Kind.CHECKPOINTS):
            checkpoint = parse_checkpoint(body)
        queued = await engine.add_checkpoint(checkpoint)
        return Response(
            b'{"queued":%b,"verdict":%b}' % (b"true" if queued else b"false", engine.trainer_json),
            media_type=JSON,
        )

    async def post_end(request: Request) -> Response:
        """Say that the training loop has finished by itself: the job's status then says how the run ended.

        A report of the trainer that comes later takes that back, but not the `step`: steps up to there which
        nobody reported or judged count as steps after the last judged checkpoint.
        """
        authorize(request, tokens, Role.INGEST)
        body = await read_body(request.scope, request.receive)
        await engine.note_end(parse_end(body))
        return Response(b'{"verdict":%b}' % engine.trainer_json, media_type=JSON)

    async def post_rollouts(request: Request) -> Response:
        """Give a few rollouts of one step, on training prompts, for people to read.

        Nothing is judged by them. Of many steps those are kept that `GET /v1/rollouts` may show. They are on
        disk about a second later; if the guard is killed before that, they alone are lost.
        """
        authorize(request, tokens, Role.INGEST)
        engine.add_rollouts(parse_rollouts(await read_body(request.scope, request.receive)))
        return Response(b'{"verdict":%b}' % engine.trainer_json, media_type=JSON)

    async def post_figures(request: Request) -> Response:
        """Give further figures of at most 100 steps, for plots: reward components, lengths of completions.

        Nothing is judged by them. Of a run at most 16 names and 500 steps are kept, evenly spread; of one
        step what was given first. They are on disk some 10 seconds later; if the guard is killed before that,
        they alone are lost.
        """
        authorize(request, tokens, Role.INGEST)
        engine.add_figures(parse_figures(await read_body(request.scope, request.receive)))
        return Response(b'{"verdict":%b}' % engine.trainer_json, media_type=JSON)

    unfit = {
        **_auth_problems(),
        400: _problem("The body is not JSON."),
        413: _problem("The body is larger than a request may be."),
        415: _problem("The body is not `application/json`."),
        422: _problem("A field is missing, unknown or out of range; nothing was kept."),
    }
    problems = {
        **unfit,
        409: _problem("It contradicts what is on disk; nothing was kept."),
        429: _problem("More steps than any training makes; nothing was kept.", retry=True),
        503: _problem("The store is unavailable; nothing was kept. Send it again.", retry=True),
        507: _problem("The run has filled its share of the store; nothing was kept.", retry=True),
    }
    step = _ref(StepReport)
    for path, endpoint, response, refusals, schema in (
        (
            STEPS_PATH,
            post_steps,
            StepsResponse,
            problems,
            {"anyOf": [step, {"type": "array", "items": step, "maxItems": MAX_STEPS_PER_POST}]},
        ),
        ("/v1/checkpoints", post_checkpoint, CheckpointResponse, problems, _ref(CheckpointReport)),
        ("/v1/end", post_end, EndResponse, problems, _ref(EndReport)),
        ("/v1/rollouts", post_rollouts, ShownResponse, unfit, _ref(RolloutsReport)),
        (
            "/v1/figures",
            post_figures,
            ShownResponse,
            unfit,
            {"type": "array", "items": _ref(FiguresReport), "maxItems": MAX_FIGURES_PER_POST},
        ),
    ):
        app.router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=response,
            responses=refusals,
            tags=["ingest"],
            route_class_override=_DirectRoute,
            openapi_extra={
                "security": [{"ingestToken": []}],
                "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
            },
        )
    return post_steps


def _add_reading(app: FastAPI, engine: Engine, tokens: Tokens, name: str) -> None:
    either = [
        Security(_Bearer("ingestToken", tokens, Role.INGEST, Role.READ)),
        Security(_Bearer("readToken", tokens, Role.INGEST, Role.READ)),
    ]
    read = [Security(_Bearer("readToken", tokens, Role.READ))]

    @app.get(
        "/v1/verdict",
        dependencies=either,
        response_model=Verdict,
        responses=_auth_problems(),
        tags=["reading"],
    )
    async def get_verdict(request: Request) -> Response:
        """The verdict now. Takes the ingest token or the read token.

        With the ingest token, and in the responses to a POST, it is what a trainer may know: no `detectors`,
        no `truncated`, `unanswered` or `proxy_score`; of what an evaluation found, or why it failed, the
        code's
        meaning.
        """
        if tokens.admit(_authorization(request), Role.READ):
            return Response(engine.verdict.model_dump_json(), media_type=JSON)
        return Response(engine.trainer_json, media_type=JSON)

    @app.get("/v1/run", dependencies=read, responses=_auth_problems(), tags=["reading"])
    async def get_run() -> RunInfo:
        """Which run this is. It never changes while the guard runs."""
        return RunInfo(name=name, version=__version__, policy=engine.policy)

    @app.get(
        "/v1/history",
        dependencies=read,
        response_model=History,
        responses={
            **_auth_problems(),
            200: {
                "content": {NDJSON: {"schema": {"type": "string"}}},
                "description": "With `max_points`: thinned, as JSON. Without: every step, one JSON object a "
                "line in the order of (attempt, step); a step whose checkpoint was evaluated has `heldout`.",
            },
            422: _problem("`max_points` is out of range."),
            503: _problem("The store is unavailable.", retry=True),
        },
        tags=["reading"],
    )
    async def get_history(
        max_points: Annotated[
            int | None, Query(ge=2, le=MAX_POINTS, description="Thin the steps to at most this many.")
        ] = None,
    ) -> Response:
        """What was reported and evaluated, without per-item outcomes."""
        if max_points is not None:
            history = await engine.thinned_history(max_points)
            return Response(json.dumps(history).encode(), media_type=JSON)
        lines = engine.history()
        first = await anext(lines, None)  # a store that fails does so before the response begins
        return StreamingResponse(_ndjson(first, lines), media_type=NDJSON)

    @app.get(
        "/v1/rollouts",
        dependencies=read,
        responses=_auth_problems(),
        tags=["reading"],
    )
    async def get_rollouts() -> list[MomentRollouts]:
        """Rollouts of the training: of its start, the last good checkpoint, and the latch or else the newest.

        At most three steps; one that is two of them is there once. Where the moment's own step has none, they
        are of the step before it that has.
        """
        return list(engine.rollouts())

    @app.get(
        "/v1/figures",
        dependencies=read,
        responses=_auth_problems(),
        tags=["reading"],
    )
    async def get_figures() -> list[FiguresReport]:
        """Further figures of the training, as the trainer reports them, of at most 500 steps of the run."""
        return list(engine.figures())


def _add_probes(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    @app.get("/healthz", tags=["probes"])
    async def get_healthz() -> Health:
        """The process responds. It says nothing about the run."""
        return Health(status="ok")

    @app.get(
        "/readyz",
        responses={503: _problem("The store does not work, or the held-out split is not checked yet.")},
        tags=["probes"],
    )
    async def get_readyz() -> Health:
        """The store works and held-out evaluation is ready."""
        if (cause := engine.not_ready) is not None:
            raise Problem(ProblemType.NOT_READY, cause.reason, headers={"Retry-After": "1"})
        return Health(status="ready")

    @app.get(
        "/metrics",
        dependencies=[Security(_Bearer("readToken", tokens, Role.READ))],
        response_class=Response,
        responses={
            **_auth_problems(),
            200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "Metrics."},
        },
        tags=["reading"],
    )
    async def get_metrics() -> Response:
        """Prometheus metrics."""
        return Response(engine.metrics.render(), media_type=CONTENT_TYPE)


async def _ndjson(first: dict[str, Any] | None, rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    if first is None:
        return
    chunk = bytearray(json.dumps(first).encode() + b"\n")
    async for line in rest:
        chunk += json.dumps(line).encode() + b"\n"
        if len(chunk) >= HISTORY_CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


# -- errors ------------------------------------------------------------------------------------------------


def _add_problem_handlers(app: FastAPI) -> None:
    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return _respond(request, error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        details = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not allowed at {request.url.path}",
        }
        detail = details.get(error.status_code, str(error.detail))
        return _respond(request, Problem(ProblemType.of(error.status_code), detail, headers=error.headers))

    async def on_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [
            FieldError(
                field=".".join(str(p) for p in e["loc"][1:]), message=f"{must_be(e)}, got {e['input']!r}"
            )
            for e in error.errors()
        ]
        return _respond(request, invalid(f"refused: {', '.join(f.field for f in fields)}", fields))

    async def on_failure(request: Request, error: Exception) -> Response:
        return _failed(request, error)

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        Problem: on_problem,
        HTTPException: on_http,
        RequestValidationError: on_query,
        Exception: on_failure,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _failed(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _respond(
        request,
        Problem(ProblemType.INTERNAL_SERVER_ERROR, "the guard failed on this request; its log says why"),
    )


def _respond(request: Request, problem: Problem) -> Response:
    return Response(problem.body(request.url.path), problem.status, problem.headers, MEDIA_TYPE)


def _problem(description: str, retry: bool = False) -> dict[str, Any]:
    """One response of the OpenAPI document that is not a success."""
    entry: dict[str, Any] = {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": _ref(ProblemDetails)}},
    }
    if retry:
        entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return entry


def _auth_problems() -> dict[int | str, dict[str, Any]]:
    return {
        401: _problem("No token, or not one of this guard's."),
        403: _problem("A token of this guard's that is not for this route."),
    }


# -- OpenAPI -----------------------------------------------------------------------------------------------


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _add_openapi(app: FastAPI) -> None:
    """Add the models that only `_ref` names, and write security and problems as they are."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, models = models_json_schema(
                [
                    (model, "validation")
                    for model in (
                        StepReport,
                        CheckpointReport,
                        EndReport,
                        RolloutsReport,
                        FiguresReport,
                        ProblemDetails,
                    )
                ],
                ref_template="#/components/schemas/{model}",
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(models["$defs"])
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
