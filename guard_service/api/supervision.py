"""What the supervisor of a run hands over from one guard to the next."""

from __future__ import annotations

from fastapi import FastAPI, Security
from pydantic import TypeAdapter

from guard_service.api.models import Adopted
from guard_service.api.openapi import JSON, auth_problems, problem, ref
from guard_service.auth import Bearer, Role, Tokens
from guard_service.engine import Engine, RunState
from guard_service.requests import Body, parse_body

_STATE = TypeAdapter(RunState)


class SupervisionRoutes:
    """The endpoints of the supervisor, for one engine."""

    def __init__(self, engine: Engine, tokens: Tokens) -> None:
        self._engine, self._tokens = engine, tokens

    def add_to(self, app: FastAPI) -> None:
        """Add their routes."""
        who = [Security(Bearer("supervisorToken", self._tokens, Role.SUPERVISOR))]
        unavailable = problem("Nothing is known yet, or the store is unavailable.", retry=True)
        app.add_api_route(
            "/v1/state",
            self.get_state,
            dependencies=who,
            response_model=RunState,
            responses={**auth_problems(), 503: unavailable},
            tags=["supervision"],
        )
        app.add_api_route(
            "/v1/evidence",
            self.get_evidence,
            dependencies=who,
            response_model=dict[str, str],
            responses={**auth_problems(), 503: unavailable},
            tags=["supervision"],
        )
        app.add_api_route(
            "/v1/state",
            self.put_state,
            methods=["PUT"],
            dependencies=who,
            response_model=Adopted,
            responses={
                **auth_problems(),
                400: problem("The body is not JSON."),
                413: problem("The body is larger than a request may be."),
                415: problem("The body is not `application/json`."),
                422: problem("It is no state, or of another policy; nothing was kept."),
                503: unavailable,
            },
            tags=["supervision"],
            openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": ref(RunState)}}}},
        )

    async def get_evidence(self) -> dict[str, str]:
        """What stays of the run when this guard is gone, as files by name. No outcome of an item is in it."""
        return await self._engine.evidence()

    async def get_state(self) -> RunState:
        """What another guard of this run would have to know. Keep it, and fetch it after every evaluation."""
        return self._engine.run_state()

    async def put_state(self, body: Body) -> Adopted:
        """Tell a guard whose store is empty what is known of its run: {} if it is a new one.

        Until then it is not ready. A guard that knows of a run already keeps what it has.
        """
        return Adopted(adopted=await self._engine.adopt(parse_body(_STATE, body)))
