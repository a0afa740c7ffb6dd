"""Bearer tokens: for the trainer that reports, for who reads, for who evaluates outside of the guard, and for
the supervisor, which also hands a run over from one guard to the next and may do all that a reader may.

Comparison takes the same time wherever two tokens differ. Without a token reporting and reading are open;
`GuardSettings` admits that only on a loopback address and with an explicit flag. The other roles are never
open: a trainer that could report its own outcomes would judge itself.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

from fastapi.security import HTTPBearer
from starlette.requests import Request

from guard_service.errors import Problem, forbidden, unauthorized


class Role(StrEnum):
    """What a token is for."""

    INGEST = "ingest"
    READ = "read"
    EVALUATIONS = "evaluations"
    SUPERVISOR = "supervisor"


#: Roles that nobody has without a token.
_NEVER_OPEN = frozenset({Role.EVALUATIONS, Role.SUPERVISOR})


class Tokens:
    """The configured tokens. None: the role is open; of the last two: nobody has it."""

    def __init__(
        self,
        ingest: str | None,
        read: str | None,
        evaluations: str | None = None,
        supervisor: str | None = None,
    ) -> None:
        given = {
            Role.INGEST: ingest,
            Role.READ: read,
            Role.EVALUATIONS: evaluations,
            Role.SUPERVISOR: supervisor,
        }
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

        Raises:
            Problem: 401 without a token of ours, 403 with the token of another role.
        """
        if any(self._digests[role] is None and role not in _NEVER_OPEN for role in allowed):
            return
        if all(self._digests[role] is None for role in allowed):
            raise forbidden(f"nobody may do this: set {allowed[0].value}_token to allow it")
        need = " or ".join(f"the {role.value} token" for role in allowed)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized(f"this route needs {need}: send 'Authorization: Bearer …'")
        given = _digest(token.strip().encode("latin-1"))
        # Every comparison is made, so that time does not tell which one matched.
        matches = {
            role for role, known in self._digests.items() if known and hmac.compare_digest(known, given)
        }
        if Role.SUPERVISOR in matches:
            matches.add(Role.READ)
        if not matches:
            raise unauthorized(f"the bearer token is not one of this guard's; this route needs {need}")
        if not matches.intersection(allowed):
            raise forbidden(f"this route needs {need}, not the {max(matches).value} token")


class Bearer(HTTPBearer):
    """A dependency of a route that admits by `Tokens.check`; `name` is its scheme in the OpenAPI document."""

    def __init__(self, name: str, tokens: Tokens, *roles: Role) -> None:
        super().__init__(scheme_name=name, auto_error=False)
        self._tokens, self._roles = tokens, roles

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Admit the request; raises `Problem` 401 or 403."""
        self._tokens.check(request, *self._roles)


def _digest(token: bytes) -> bytes:
    """Equal lengths for `compare_digest`, so that it does not tell the length of a token either."""
    return hashlib.sha256(token).digest()
