"""What is read of a run: its verdict, its history, and what its trainer gave for people to see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Query, Security
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from guard_core._version import __version__
from guard_core.wire import FiguresReport, MomentRollouts, Verdict
from guard_service.api.models import History, RunInfo
from guard_service.api.openapi import JSON, Responses, auth_problems, problem
from guard_service.auth import Bearer, Role, Tokens
from guard_service.engine import Engine

NDJSON = "application/x-ndjson"
MAX_POINTS = 10_000
MAX_WAIT_SECONDS = 60.0
HISTORY_CHUNK = 65_536  # bytes that are gathered before they are sent

_OF_VERDICT: Responses = {**auth_problems(), 422: problem("`since` or `wait` is out of range.")}
_OF_HISTORY: Responses = {
    **auth_problems(),
    200: {
        "content": {NDJSON: {"schema": {"type": "string"}}},
        "description": "With `max_points`: thinned, as JSON. Without: every step, one JSON object a "
        "line in the order of (attempt, step); a step whose checkpoint was evaluated has `heldout`.",
    },
    422: problem("`max_points` is out of range."),
    503: problem("The store is unavailable.", retry=True),
}


class ReadingRoutes:
    """The endpoints of who reads, for one engine; `name` is the run's."""

    def __init__(self, engine: Engine, tokens: Tokens, name: str) -> None:
        self._engine, self._tokens, self._name = engine, tokens, name

    def add_to(self, app: FastAPI) -> None:
        """Add their routes."""
        either = [
            Security(Bearer("ingestToken", self._tokens, Role.INGEST, Role.READ)),
            Security(Bearer("readToken", self._tokens, Role.INGEST, Role.READ)),
        ]
        read = [Security(Bearer("readToken", self._tokens, Role.READ))]
        for path, endpoint, who, response, responses in (
            ("/v1/verdict", self.get_verdict, either, Verdict, _OF_VERDICT),
            ("/v1/run", self.get_run, read, RunInfo, auth_problems()),
            ("/v1/history", self.get_history, read, History, _OF_HISTORY),
            ("/v1/rollouts", self.get_rollouts, read, list[MomentRollouts], auth_problems()),
            ("/v1/figures", self.get_figures, read, list[FiguresReport], auth_problems()),
        ):
            app.add_api_route(
                path,
                endpoint,
                dependencies=who,
                response_model=response,
                responses=responses,
                tags=["reading"],
            )

    async def get_verdict(
        self,
        request: Request,
        since: Annotated[str, Query(max_length=64, description="The `ETag` of the last response.")] = "",
        wait: Annotated[
            float,
            Query(
                ge=0, le=MAX_WAIT_SECONDS, description="How long to wait for a verdict that differs, seconds."
            ),
        ] = 0.0,
    ) -> Response:
        """The verdict now. Takes the ingest token, or as all reading does the read or supervisor token.

        The revision is in `ETag`. Steps alone do not change it; a latch, another condition and whatever
        becomes of a checkpoint do. With `since`, the response comes once the revision is another, and after
        `wait` seconds at the latest. A guard that is told to end answers at once.

        With the ingest token, and in the responses to a POST, it is what a trainer may know: no `detectors`,
        no `truncated`, `unanswered`, `timed_out` or `proxy_score`; of what an evaluation found, or why it
        failed, the code's meaning.
        """
        published = self._engine.published
        await published.wait(since.strip('"'), wait)
        reads = self._tokens.admit(request, Role.READ)
        content = published.reader_json if reads else published.trainer_json
        return Response(content, media_type=JSON, headers={"ETag": f'"{published.revision}"'})

    async def get_run(self) -> RunInfo:
        """Which run this is. It never changes while the guard runs."""
        return RunInfo(name=self._name, version=__version__, policy=self._engine.policy)

    async def get_history(
        self,
        max_points: Annotated[
            int | None, Query(ge=2, le=MAX_POINTS, description="Thin the steps to at most this many.")
        ] = None,
    ) -> Response:
        """What was reported and evaluated, without per-item outcomes."""
        if max_points is not None:
            history = await self._engine.thinned_history(max_points)
            return Response(json.dumps(history).encode(), media_type=JSON)
        lines = self._engine.history()
        first = await anext(lines, None)  # a store that fails does so before the response begins
        return StreamingResponse(_ndjson(first, lines), media_type=NDJSON)

    async def get_rollouts(self) -> list[MomentRollouts]:
        """Rollouts of the training: of its start, the last good checkpoint, and the latch or else the newest.

        At most three steps; one that is two of them is there once. Where the moment's own step has none, they
        are of the step before it that has.
        """
        return list(self._engine.rollouts())

    async def get_figures(self) -> list[FiguresReport]:
        """Further figures of the training, as the trainer reports them, of at most 500 steps of the run."""
        return list(self._engine.figures())


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
