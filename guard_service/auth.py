"""Bearer tokens: one for the trainer that reports, one for people and Prometheus who read.

Comparison takes the same time wherever two tokens differ. A role without a token is open; `GuardSettings`
admits that only on a loopback address and with an explicit flag.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

from guard_service.errors import Problem, forbidden, unauthorized


class Role(StrEnum):
    """What a token is for."""

    INGEST = "ingest"
    READ = "read"


class Tokens:
    """The configured tokens. None means that the role is open."""

    def __init__(self, ingest: str | None, read: str | None) -> None:
        self._digests = {
            role: None if token is None else _digest(token.encode())
            for role, token in ((Role.INGEST, ingest), (Role.READ, read))
        }

    def admit(self, authorization: bytes | None, *allowed: Role) -> bool:
        """Whether `check` admits the request."""
        try:
            self.check(authorization, *allowed)
        except Problem:
            return False
        return True

    def check(self, authorization: bytes | None, *allowed: Role) -> None:
        """Admit a request whose `Authorization` header carries the token of one of the `allowed` roles.

        Raises:
            Problem: 401 without a token of ours, 403 with the token of another role.
        """
        if any(self._digests[role] is None for role in allowed):
            return
        need = " or ".join(f"the {role.value} token" for role in allowed)
        if authorization is None:
            raise unauthorized(f"this route needs {need}: send 'Authorization: Bearer …'")
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise unauthorized("the Authorization header is not of the form 'Bearer …'")
        given = _digest(token.strip())
        # Every comparison is made, so that time does not tell which one matched.
        matches = {
            role for role, known in self._digests.items() if known and hmac.compare_digest(known, given)
        }
        if not matches:
            raise unauthorized(f"the bearer token is not one of this guard's; this route needs {need}")
        if not matches.intersection(allowed):
            raise forbidden(f"this route needs {need}, not the {matches.pop().value} token")


def _digest(token: bytes) -> bytes:
    """Equal lengths for `compare_digest`, so that it does not tell the length of a token either."""
    return hashlib.sha256(token).digest()
