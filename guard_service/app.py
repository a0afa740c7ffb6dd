"""The HTTP side of the guard: who may call which route, and with what body. It decides nothing.

`create_app` neither starts nor closes the engine; `guard_service.__main__` does.

FastAPI would read a body of any size, and before it looks at the token: so each route checks the token first,
and then reads a bounded body. Validating its bytes also settles what `json.loads` would let pass, NaN and
Infinity.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Security
from fastapi.security import HTTPBearer
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from guard_service import dashboard, openapi
from guard_service.engine import Engine
from guard_service.errors import Problem, ProblemType
from guard_service.handover import RunState
from guard_service.openapi import JSON, NDJSON, Adopted, Health, History, RunInfo
from guard_service.problems import add_problem_handlers, wrong_body
from guard_service.run import Kind
from rlguard.core._version import __version__
from rlguard.core.wire import (
    MAX_STEPS_PER_POST,
    CheckpointReport,
    CheckpointResponse,
    EndReport,
    EndResponse,
    EvaluationReport,
    EvaluationResponse,
    FiguresReport,
    MomentRollouts,
    PostedStep,
    StepsResponse,
    Verdict,
)
from rlguard.core.wording import quoted

MAX_BODY_BYTES = 1024 * 1024
MAX_POINTS = 10_000
MAX_WAIT_SECONDS = 60.0
HISTORY_CHUNK = 65_536  # bytes that are gathered before they are sent

T = TypeVar("T")


class Role(StrEnum):
    """What a token is for."""

    INGEST = "ingest"
    READ = "read"
    EVALUATIONS = "evaluations"
    SUPERVISOR = "supervisor"


#: Roles that nobody has without a token: a trainer that could report its own outcomes would judge itself.
_NEVER_OPEN = frozenset({Role.EVALUATIONS, Role.SUPERVISOR})


class Tokens:
    """The configured tokens: for the trainer that reports, for who reads, for who evaluates outside of the
    guard, and for the supervisor, who hands a run over from one guard to the next, and may read.

    None: the role is open; of the last two: nobody has it. `GuardSettings` admits open roles only on a
    loopback address and with an explicit flag.
    """

    def __init__(
        self,
        ingest: str | None,
        read: str | None,
        evaluations: str | None = None,
        supervisor: str | None = None,
    ) -> None:
        given = dict(zip(Role, (ingest, read, evaluations, supervisor), strict=True))
        self._digests = {role: token and _digest(token.encode()) for role, token in given.items()}

    def admit(self, request: Request, *allowed: Role) -> bool:
        """Whether `check` admits the request."""
        try:
            self.check(request, *allowed)
        except Problem:
            return False
        return True

    def check(self, request: Request, *allowed: Role) -> None:
        """Admit a request whose `Authorization` header carries the token of one of the `allowed` roles.

        Comparison takes the same time wherever two tokens differ.

        Raises:
            Problem: 401 without a token of ours, 403 with the token of another role.
        """
        if any(self._digests[role] is None and role not in _NEVER_OPEN for role in allowed):
            return
        if all(self._digests[role] is None for role in allowed):
            why = f"nobody may do this: set {allowed[0].value}_token_file to allow it"
            raise Problem(ProblemType.FORBIDDEN, why)
        need = " or ".join(f"the {role.value} token" for role in allowed)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            why = f"this route needs {need}: send 'Authorization: Bearer …'"
            raise Problem(ProblemType.UNAUTHORIZED, why)
        given = _digest(token.strip().encode("latin-1"))
        # Every comparison is made, so that time does not tell which one matched.
        matches = {
            role for role, known in self._digests.items() if known and hmac.compare_digest(known, given)
        }
        if Role.SUPERVISOR in matches:
            matches.add(Role.READ)
        if not matches:
            why = f"the bearer token is not one of this guard's; this route needs {need}"
            raise Problem(ProblemType.UNAUTHORIZED, why)
        if not matches.intersection(allowed):
            why = f"this route needs {need}, not the {max(matches).value} token"
            raise Problem(ProblemType.FORBIDDEN, why)

    def need(self, *roles: Role) -> list[Any]:
        """The dependencies of a route that only these roles may call."""
        return [Security(_Bearer(f"{role.value}Token", self, *roles)) for role in roles]


class _Bearer(HTTPBearer):
    """A dependency that admits by `Tokens.check`; `name` is its scheme in the OpenAPI document."""

    def __init__(self, name: str, tokens: Tokens, *roles: Role) -> None:
        super().__init__(scheme_name=name, auto_error=False)
        self._tokens, self._roles = tokens, roles

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Admit the request; raises `Problem` 401 or 403."""
        self._tokens.check(request, *self._roles)


def _digest(token: bytes) -> bytes:
    """Equal lengths for `compare_digest`, so that it does not tell the length of a token either."""
    return hashlib.sha256(token).digest()


async def read_body(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        Problem: 415 if it is not JSON by its headers, 413 above `MAX_BODY_BYTES`, 400 if the client left.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        why = f"the body must be {JSON}, not {quoted(media_type)}: set Content-Type"
        raise Problem(ProblemType.UNSUPPORTED_MEDIA_TYPE, why)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                why = f"a request may carry {MAX_BODY_BYTES} bytes: send less at once"
                raise Problem(ProblemType.CONTENT_TOO_LARGE, why)
    except ClientDisconnect:
        why = "the connection ended before the body did"
        raise Problem(ProblemType.BAD_REQUEST, why) from None
    return bytes(body)


#: The body of a report: a parameter of its route.
Body = Annotated[bytes, Depends(read_body)]


def parse_body(adapter: TypeAdapter[T], body: bytes) -> T:
    """Validate a body.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise wrong_body(error) from None


def create_app(engine: Engine, tokens: Tokens, name: str = "") -> FastAPI:
    """The app that serves one engine; `name` is the run's, for people."""
    app = FastAPI(
        title="RLGuard guard",
        version=__version__,
        description="Takes steps and checkpoints of one training run, and says whether it may go on.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=openapi.problem_responses(ProblemType.INTERNAL_SERVER_ERROR),
    )
    _add_steps(app, engine, tokens)
    _add_checkpoints(app, engine, tokens)
    _add_evaluations(app, engine, tokens)
    _add_supervision(app, engine, tokens)
    _add_verdict(app, engine, tokens)
    _add_reading(app, engine, tokens, name)
    _add_probes(app, engine)
    app.include_router(dashboard.router())
    add_problem_handlers(app)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


def _ingest(who: list[Any]) -> dict[str, Any]:
    """What routes have in common that take reports."""
    return {"dependencies": who, "responses": openapi.OF_INGEST, "tags": ["ingest"]}


def _add_steps(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """The steps that a trainer reports."""
    run, one_step = engine.run, TypeAdapter(PostedStep)
    many_steps = TypeAdapter(Annotated[list[PostedStep], Field(max_length=MAX_STEPS_PER_POST)])

    @app.post(
        "/v1/steps",
        response_model=StepsResponse,
        openapi_extra=openapi.STEPS_BODY,
        **_ingest(tokens.need(Role.INGEST)),
    )
    async def post_steps(body: Body) -> Response:
        """Report one step, or a list of at most 1,000.

        What is acknowledged is on disk and in the verdict. A step that was reported before with the same
        values is counted as a duplicate and not folded again. A list is kept whole or not at all: an item
        that contradicts what is on disk (409) or does not validate (422) refuses all of it.

        `figures` and `rollouts` are for people: nothing is judged by them. A bounded number is kept, and is
        on disk some seconds later; if the guard is killed before that, they alone are lost.
        """
        with run.refusing(Kind.STEPS):
            many = body.lstrip()[:1] == b"["
            steps = parse_body(many_steps, body) if many else [parse_body(one_step, body)]
        added = await run.add_steps([step.evidence() for step in steps])
        if shown := [step for step in steps if step.figures or step.rollouts]:
            engine.display.take(shown, run.verdict)
        return Response(
            b'{"accepted":%d,"duplicates":%d,"verdict":%b}'
            % (len(added.new), added.duplicates, run.trainer_json),
            media_type=JSON,
        )


def _add_checkpoints(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """The checkpoints that a trainer announces, and its end."""
    run, checkpoint, end = engine.run, TypeAdapter(CheckpointReport), TypeAdapter(EndReport)
    shared = _ingest(tokens.need(Role.INGEST))

    @app.post(
        "/v1/checkpoints",
        response_model=CheckpointResponse,
        openapi_extra=openapi.body_of(CheckpointReport),
        **shared,
    )
    async def post_checkpoint(body: Body) -> Response:
        """Announce a checkpoint that is complete on disk; it is queued for held-out evaluation."""
        with run.refusing(Kind.CHECKPOINTS):
            report = parse_body(checkpoint, body)
        queued = b"true" if await engine.add_checkpoint(report) else b"false"
        return Response(b'{"queued":%b,"verdict":%b}' % (queued, run.trainer_json), media_type=JSON)

    @app.post("/v1/end", response_model=EndResponse, openapi_extra=openapi.body_of(EndReport), **shared)
    async def post_end(body: Body) -> Response:
        """Say that the training loop has finished by itself: the job's status then says how the run ended.

        A report of the trainer that comes later takes that back, but not the `step`: steps up to there which
        nobody reported or judged count as steps after the last judged checkpoint.
        """
        await engine.note_end(parse_body(end, body))
        return Response(b'{"verdict":%b}' % run.trainer_json, media_type=JSON)


def _add_evaluations(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """What is reported by whoever evaluates checkpoints outside of the guard."""
    evaluation = TypeAdapter(EvaluationReport)

    @app.post(
        "/v1/evaluations",
        response_model=EvaluationResponse,
        openapi_extra=openapi.body_of(EvaluationReport),
        **_ingest(tokens.need(Role.EVALUATIONS)),
    )
    async def post_evaluation(body: Body) -> Response:
        """Report the held-out outcomes of a checkpoint that was evaluated outside of the guard.

        The first evaluation should be of the starting policy: the others are compared with it. Its items are
        those of the run. An evaluation that was reported before with the same values is not folded again.
        The verdict in the response is whole, as with the read token.
        """
        accepted, wanted = await engine.add_evaluation(parse_body(evaluation, body))
        head = json.dumps({"accepted": accepted, "wanted_pass": wanted})[:-1].encode()
        return Response(b'%b, "verdict": %b}' % (head, engine.run.published.reader_json), media_type=JSON)


def _add_supervision(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """What the supervisor of a run hands over from one guard to the next."""
    state = TypeAdapter(RunState)
    who: dict[str, Any] = {"dependencies": tokens.need(Role.SUPERVISOR), "tags": ["supervision"]}

    @app.get("/v1/state", responses=openapi.OF_STORED, **who)
    async def get_state() -> RunState:
        """What another guard of this run would have to know. Keep it, and fetch it after every evaluation."""
        return engine.run_state()

    @app.get("/v1/evidence", responses=openapi.OF_STORED, **who)
    async def get_evidence() -> dict[str, str]:
        """What stays of the run when this guard is gone, as files by name. No outcome of an item is in it."""
        return await engine.evidence()

    @app.put(
        "/v1/state",
        openapi_extra=openapi.body_of(RunState),
        responses=openapi.OF_STORED | openapi.OF_BODY,
        **who,
    )
    async def put_state(body: Body) -> Adopted:
        """Tell a guard whose store is empty what is known of its run: {} if it is a new one.

        Until then it is not ready. A guard that knows of a run already keeps what it has.
        """
        return Adopted(adopted=await engine.adopt(parse_body(state, body)))


def _add_verdict(app: FastAPI, engine: Engine, tokens: Tokens) -> None:
    """The verdict, which everybody may read who reports or reads."""
    published = engine.run.published

    @app.get(
        "/v1/verdict",
        response_model=Verdict,
        dependencies=tokens.need(Role.INGEST, Role.READ),
        responses=openapi.OF_VERDICT,
        tags=["reading"],
    )
    async def get_verdict(
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
        await published.wait(since.strip('"'), wait)
        reads = tokens.admit(request, Role.READ)
        content = published.reader_json if reads else published.trainer_json
        return Response(content, media_type=JSON, headers={"ETag": f'"{published.revision}"'})


def _add_reading(app: FastAPI, engine: Engine, tokens: Tokens, name: str) -> None:
    """What is read of a run: its history, and what its trainer gave for people to see."""
    who: dict[str, Any] = {"dependencies": tokens.need(Role.READ), "tags": ["reading"]}

    @app.get("/v1/run", responses=openapi.OF_READING, **who)
    async def get_run() -> RunInfo:
        """Which run this is. It never changes while the guard runs."""
        return RunInfo(name=name, version=__version__, policy=engine.run.policy)

    @app.get("/v1/history", response_model=History, responses=openapi.OF_HISTORY, **who)
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

    @app.get("/v1/rollouts", responses=openapi.OF_READING, **who)
    async def get_rollouts() -> list[MomentRollouts]:
        """Rollouts of the training: of its start, the last good checkpoint, and the latch or else the newest.

        At most three steps; one that is two of them is there once. Where the moment's own step has none, they
        are of the step before it that has.
        """
        return list(engine.rollouts())

    @app.get("/v1/figures", responses=openapi.OF_READING, **who)
    async def get_figures() -> list[FiguresReport]:
        """Further figures of the training, as the trainer reports them, of at most 500 steps of the run."""
        return list(engine.display.data.figures)


def _add_probes(app: FastAPI, engine: Engine) -> None:
    """Whether the guard works, which everybody may ask."""

    @app.get("/healthz", tags=["probes"])
    async def get_healthz() -> Health:
        """The process responds. It says nothing about the run."""
        return Health(status="ok")

    @app.get("/readyz", responses=openapi.problem_responses(ProblemType.NOT_READY), tags=["probes"])
    async def get_readyz() -> Health:
        """The store works and held-out evaluation is ready."""
        if (cause := engine.not_ready) is not None:
            raise Problem(ProblemType.NOT_READY, cause.reason)
        return Health(status="ready")


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
