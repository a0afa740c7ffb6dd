"""Take reports of the trainer and of whoever evaluates its checkpoints; acknowledge what is kept."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import FastAPI, Security
from pydantic import Field, TypeAdapter
from starlette.responses import Response

from guard_core.wire import (
    MAX_STEPS_PER_POST,
    CheckpointReport,
    CheckpointResponse,
    EndReport,
    EndResponse,
    EvaluationReport,
    EvaluationResponse,
    PostedStep,
    StepsResponse,
)
from guard_service.api.openapi import JSON, Responses, auth_problems, problem, ref
from guard_service.auth import Bearer, Role, Tokens
from guard_service.engine import Engine
from guard_service.refusals import Kind
from guard_service.requests import Body, parse_body

_STEP = TypeAdapter(PostedStep)
_STEPS = TypeAdapter(Annotated[list[PostedStep], Field(max_length=MAX_STEPS_PER_POST)])
_CHECKPOINT = TypeAdapter(CheckpointReport)
_END = TypeAdapter(EndReport)
_EVALUATION = TypeAdapter(EvaluationReport)

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
_STEPS_SCHEMA = {
    "anyOf": [
        ref(PostedStep),
        {"type": "array", "items": ref(PostedStep), "maxItems": MAX_STEPS_PER_POST},
    ]
}


class IngestRoutes:
    """The endpoints of who reports, for one engine."""

    def __init__(self, engine: Engine, tokens: Tokens) -> None:
        self._engine, self._tokens = engine, tokens

    def add_to(self, app: FastAPI) -> None:
        """Add their routes."""
        trainer = Bearer("ingestToken", self._tokens, Role.INGEST)
        outside = Bearer("evaluationsToken", self._tokens, Role.EVALUATIONS)
        checkpoint, evaluation = ref(CheckpointReport), ref(EvaluationReport)
        for path, endpoint, who, response, refusals, schema in (
            ("/v1/steps", self.post_steps, trainer, StepsResponse, _PROBLEMS, _STEPS_SCHEMA),
            ("/v1/checkpoints", self.post_checkpoint, trainer, CheckpointResponse, _PROBLEMS, checkpoint),
            ("/v1/evaluations", self.post_evaluation, outside, EvaluationResponse, _PROBLEMS, evaluation),
            ("/v1/end", self.post_end, trainer, EndResponse, _PROBLEMS, ref(EndReport)),
        ):
            app.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                dependencies=[Security(who)],
                response_model=response,
                responses=refusals,
                tags=["ingest"],
                openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}},
            )

    async def post_steps(self, body: Body) -> Response:
        """Report one step, or a list of at most 1,000.

        What is acknowledged is on disk and in the verdict. A step that was reported before with the same
        values is counted as a duplicate and not folded again. A list is kept whole or not at all: an item
        that contradicts what is on disk (409) or does not validate (422) refuses all of it.

        `figures` and `rollouts` are for people: nothing is judged by them. A bounded number is kept, and is
        on disk some seconds later; if the guard is killed before that, they alone are lost.
        """
        with self._engine.refusing(Kind.STEPS):
            many = body.lstrip()[:1] == b"["
            steps = parse_body(_STEPS, body) if many else [parse_body(_STEP, body)]
        added = await self._engine.add_steps([step.evidence() for step in steps])
        self._engine.show(steps)
        return Response(
            b'{"accepted":%d,"duplicates":%d,"verdict":%b}'
            % (len(added.new), added.duplicates, self._engine.trainer_json),
            media_type=JSON,
        )

    async def post_checkpoint(self, body: Body) -> Response:
        """Announce a checkpoint that is complete on disk; it is queued for held-out evaluation."""
        with self._engine.refusing(Kind.CHECKPOINTS):
            checkpoint = parse_body(_CHECKPOINT, body)
        queued = await self._engine.add_checkpoint(checkpoint)
        return Response(
            b'{"queued":%b,"verdict":%b}' % (b"true" if queued else b"false", self._engine.trainer_json),
            media_type=JSON,
        )

    async def post_evaluation(self, body: Body) -> Response:
        """Report the held-out outcomes of a checkpoint that was evaluated outside of the guard.

        The first evaluation should be of the starting policy: the others are compared with it. Its items are
        those of the run. An evaluation that was reported before with the same values is not folded again.
        The verdict in the response is whole, as with the read token.
        """
        accepted, wanted = await self._engine.add_evaluation(parse_body(_EVALUATION, body))
        head = json.dumps({"accepted": accepted, "wanted_pass": wanted})[:-1].encode()
        return Response(b'%b, "verdict": %b}' % (head, self._engine.published.reader_json), media_type=JSON)

    async def post_end(self, body: Body) -> Response:
        """Say that the training loop has finished by itself: the job's status then says how the run ended.

        A report of the trainer that comes later takes that back, but not the `step`: steps up to there which
        nobody reported or judged count as steps after the last judged checkpoint.
        """
        await self._engine.note_end(parse_body(_END, body))
        return Response(b'{"verdict":%b}' % self._engine.trainer_json, media_type=JSON)
