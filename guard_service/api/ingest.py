"""What a trainer reports: a body is taken as it comes, and acknowledged when what it says is kept."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from guard_core.wire import (
    MAX_FIGURES_PER_POST,
    MAX_STEPS_PER_POST,
    CheckpointReport,
    CheckpointResponse,
    EndReport,
    EndResponse,
    FiguresReport,
    RolloutsReport,
    ShownResponse,
    StepReport,
    StepsResponse,
)
from guard_service.api.access import authorize
from guard_service.api.openapi import JSON, Responses, auth_problems, problem, ref
from guard_service.auth import Role, Tokens
from guard_service.engine import Engine
from guard_service.refusals import Kind
from guard_service.requests import (
    parse_checkpoint,
    parse_end,
    parse_figures,
    parse_rollouts,
    parse_steps,
    read_body,
)

STEPS_PATH = "/v1/steps"

RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]

_UNFIT: Responses = {
    **auth_problems(),
    400: problem("The body is not JSON."),
    413: problem("The body is larger than a request may be."),
    415: problem("The body is not `application/json`."),
    422: problem("A field is missing, unknown or out of range; nothing was kept."),
}
_PROBLEMS: Responses = {
    **_UNFIT,
    409: problem("It contradicts what is on disk; nothing was kept."),
    429: problem("More steps than any training makes; nothing was kept.", retry=True),
    503: problem("The store is unavailable; nothing was kept. Send it again.", retry=True),
    507: problem("The run has filled its share of the store; nothing was kept.", retry=True),
}
_STEPS = {
    "anyOf": [
        ref(StepReport),
        {"type": "array", "items": ref(StepReport), "maxItems": MAX_STEPS_PER_POST},
    ]
}
_FIGURES = {"type": "array", "items": ref(FiguresReport), "maxItems": MAX_FIGURES_PER_POST}


class _DirectRoute(APIRoute):
    """A route whose endpoint takes the request alone and returns a `Response`.

    FastAPI would read a body with `json.loads` and go through its dependencies; ingest does not.
    """

    def get_route_handler(self) -> RouteHandler:
        endpoint: RouteHandler = self.endpoint
        return endpoint


class IngestRoutes:
    """The endpoints of the trainer, for one engine."""

    def __init__(self, engine: Engine, tokens: Tokens) -> None:
        self._engine, self._tokens = engine, tokens

    def add_to(self, app: FastAPI) -> None:
        """Add their routes."""
        for path, endpoint, response, refusals, body in (
            (STEPS_PATH, self.post_steps, StepsResponse, _PROBLEMS, _STEPS),
            ("/v1/checkpoints", self.post_checkpoint, CheckpointResponse, _PROBLEMS, ref(CheckpointReport)),
            ("/v1/end", self.post_end, EndResponse, _PROBLEMS, ref(EndReport)),
            ("/v1/rollouts", self.post_rollouts, ShownResponse, _UNFIT, ref(RolloutsReport)),
            ("/v1/figures", self.post_figures, ShownResponse, _UNFIT, _FIGURES),
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
                    "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
                },
            )

    async def post_steps(self, request: Request) -> Response:
        """Report one step, or a list of at most 1,000.

        What is acknowledged is on disk and in the verdict. A step that was reported before with the same
        values is counted as a duplicate and not folded again. A list is kept whole or not at all: an item
        that contradicts what is on disk (409) or does not validate (422) refuses all of it.
        """
        body = await self._body(request)
        with self._engine.refusing(Kind.STEPS):
            steps = parse_steps(body)
        added = await self._engine.add_steps(steps)
        return Response(
            b'{"accepted":%d,"duplicates":%d,"verdict":%b}'
            % (len(added.new), added.duplicates, self._engine.trainer_json),
            media_type=JSON,
        )

    async def post_checkpoint(self, request: Request) -> Response:
        """Announce a checkpoint that is complete on disk; it is queued for held-out evaluation."""
        body = await self._body(request)
        with self._engine.refusing(Kind.CHECKPOINTS):
            checkpoint = parse_checkpoint(body)
        queued = await self._engine.add_checkpoint(checkpoint)
        return Response(
            b'{"queued":%b,"verdict":%b}' % (b"true" if queued else b"false", self._engine.trainer_json),
            media_type=JSON,
        )

    async def post_end(self, request: Request) -> Response:
        """Say that the training loop has finished by itself: the job's status then says how the run ended.

        A report of the trainer that comes later takes that back, but not the `step`: steps up to there which
        nobody reported or judged count as steps after the last judged checkpoint.
        """
        body = await self._body(request)
        await self._engine.note_end(parse_end(body))
        return Response(b'{"verdict":%b}' % self._engine.trainer_json, media_type=JSON)

    async def post_rollouts(self, request: Request) -> Response:
        """Give a few rollouts of one step, on training prompts, for people to read.

        Nothing is judged by them. Of many steps those are kept that `GET /v1/rollouts` may show. They are on
        disk about a second later; if the guard is killed before that, they alone are lost.
        """
        self._engine.add_rollouts(parse_rollouts(await self._body(request)))
        return Response(b'{"verdict":%b}' % self._engine.trainer_json, media_type=JSON)

    async def post_figures(self, request: Request) -> Response:
        """Give further figures of at most 100 steps, for plots: reward components, lengths of completions.

        Nothing is judged by them. Of a run at most 16 names and 500 steps are kept, evenly spread; of one
        step what was given first. They are on disk some 10 seconds later; if the guard is killed before that,
        they alone are lost.
        """
        self._engine.add_figures(parse_figures(await self._body(request)))
        return Response(b'{"verdict":%b}' % self._engine.trainer_json, media_type=JSON)

    async def _body(self, request: Request) -> bytes:
        """The body of a request that may report."""
        authorize(request, self._tokens, Role.INGEST)
        return await read_body(request.scope, request.receive)
