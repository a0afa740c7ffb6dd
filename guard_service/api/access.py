"""Who may call a route: by the bearer token of the request."""

from __future__ import annotations

from fastapi.security import HTTPBearer
from starlette.requests import Request

from guard_service.auth import Role, Tokens


class Bearer(HTTPBearer):
    """A token scheme of the OpenAPI document that also checks the token."""

    def __init__(self, name: str, tokens: Tokens, *roles: Role) -> None:
        super().__init__(scheme_name=name, auto_error=False)
        self._tokens, self._roles = tokens, roles

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Admit the request; raises `Problem` 401 or 403."""
        authorize(request, self._tokens, *self._roles)


def authorize(request: Request, tokens: Tokens, *roles: Role) -> None:
    """Admit the request if it carries the token of one of the roles; raises `Problem` 401 or 403."""
    tokens.check(authorization(request), *roles)


def authorization(request: Request) -> bytes | None:
    """The request's `Authorization` header."""
    return next((v for name, v in request.scope["headers"] if name == b"authorization"), None)
