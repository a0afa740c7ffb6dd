"""Every error that the guard service can meet, in one tree, and the one shape in which a client sees it.

    GuardError
    ├── SettingsError          the guard refuses to start: the message says which setting, and what to do
    │   └── ChangedRunError    the state directory belongs to a run with another policy or split
    ├── StoreError             the store cannot be read or written now; nothing was acknowledged
    │   ├── StoreCorruptError  its content is not what this program wrote
    │   └── ResumeError        it is empty, and what the cluster knows of the run cannot be read
    └── Problem                an answer to a client that is not a success: RFC 9457 problem+json

Held-out evaluation has its own tree in `guard_service.heldout.errors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"


class GuardError(Exception):
    """Base of the errors of the guard service. `str(error)` is one message for people."""


class SettingsError(GuardError):
    """The guard cannot start with these settings."""


class ChangedRunError(SettingsError):
    """The state directory was written under another policy or held-out split."""


class StoreError(GuardError):
    """The store cannot be read or written. What was not acknowledged must be sent again."""


class StoreCorruptError(StoreError):
    """The store's content is not what this program wrote."""


class ResumeError(StoreError):
    """The store is empty and the job's status cannot be read, so nothing is known of the run."""


class FieldError(BaseModel):
    """One field of a request that was refused."""

    model_config = ConfigDict(frozen=True)

    field: str = Field(description="Where: a dotted path; a list index comes first in a list POST.")
    message: str = Field(description="What is wrong with it.")


class ProblemDetails(BaseModel):
    """RFC 9457 problem details: the shape of every answer that is not a success."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(
        description="A URN that names the kind of problem; it does not change between releases."
    )
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What was wrong this time, and what to do.")
    instance: str | None = Field(None, description="The path that was asked for.")
    errors: list[FieldError] | None = Field(None, description="The fields that were refused (422 and 409).")
    verdict: dict[str, Any] | None = Field(
        None, description="The verdict, where the store is unavailable (503): a known fire stays in force."
    )


class Problem(GuardError):
    """An answer that is not a success."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        slug: str | None = None,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        verdict: bytes | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.title = HTTPStatus(status).phrase
        self.slug = slug or self.title.lower().replace(" ", "-")
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self._verdict = verdict

    def body(self, instance: str) -> bytes:
        """The problem as JSON; `instance` is the path that was asked for."""
        content: dict[str, Any] = {
            "type": f"urn:rlguard:problem:{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
        }
        if self.errors:
            content["errors"] = [e.model_dump() for e in self.errors]
        if self._verdict is not None:
            content["verdict"] = json.loads(self._verdict)
        return json.dumps(content).encode()


def bad_request(detail: str) -> Problem:
    """400: the body is not what HTTP or JSON allow."""
    return Problem(400, detail)


def unauthorized(detail: str) -> Problem:
    """401: no token, or not one of ours."""
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="rlguard"'})


def forbidden(detail: str) -> Problem:
    """403: a token of ours that is not for this route."""
    return Problem(403, detail)


def conflict(detail: str, errors: Sequence[FieldError]) -> Problem:
    """409: it contradicts what is on disk."""
    return Problem(409, detail, errors=errors)


def too_large(detail: str) -> Problem:
    """413: more than one request may carry."""
    return Problem(413, detail, slug="content-too-large", headers={"Connection": "close"})


def unsupported_media_type(detail: str) -> Problem:
    """415: not JSON."""
    return Problem(415, detail)


def invalid(detail: str, errors: Sequence[FieldError]) -> Problem:
    """422: well-formed JSON that says something we cannot take."""
    return Problem(422, detail, slug="invalid-content", errors=errors)


def store_unavailable(reason: str, verdict: bytes) -> Problem:
    """503: nothing of the request is on disk; send it again."""
    return Problem(
        503,
        f"the guard's store is unavailable, so nothing of this request was kept; send it again. {reason}",
        slug="store-unavailable",
        headers={"Retry-After": "1"},
        verdict=verdict,
    )
