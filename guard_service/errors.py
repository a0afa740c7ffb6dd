"""Every error that the guard service can meet, in one tree, and the one shape in which a client sees it.

    GuardError
    ├── SettingsError          the guard refuses to start: the message says which setting, and what to do
    │   └── ChangedRunError    the state directory belongs to a run with another policy, split or evaluation
    ├── StoreError             the store cannot be read or written now; nothing was acknowledged
    │   ├── StoreCorruptError  its content is not what this program wrote
    │   └── NotAdoptedError    it is empty, and the supervisor has not said yet what is known of the run
    └── Problem                a response to a client that is not a success: RFC 9457 problem+json

Held-out evaluation has its own tree in `guard_service.heldout.errors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

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


class NotAdoptedError(StoreError):
    """The store is empty and the supervisor has not said yet what is known of the run."""


class FieldError(BaseModel):
    """One field of a request that was refused."""

    model_config = ConfigDict(frozen=True)

    field: str = Field(description="Where: a dotted path; a list index comes first in a list POST.")
    message: str = Field(description="What is wrong with it.")


class ProblemDetails(BaseModel):
    """RFC 9457 problem details: the shape of every response that is not a success."""

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


class ProblemType(Enum):
    """The kinds of problem. A name does not change between releases; `docs/reference/codes.md` lists them.

    Each is the HTTP status, what it means, what to do, and the headers that go with it.
    """

    BAD_REQUEST = (400, "Its body is not JSON, or the connection ended before it did.", "fix the request")
    UNAUTHORIZED = (
        401,
        "No token, or not one of this guard's.",
        "send the token of this guard: a trainer has it in RLGUARD_TOKEN, a reader finds it beside the "
        "dashboard's address",
        {"WWW-Authenticate": 'Bearer realm="rlguard"'},
    )
    FORBIDDEN = (
        403,
        "A token of this guard's that is not for this route.",
        "report with the ingest token, read with the read token",
    )
    NOT_FOUND = (404, "There is nothing at this path.", "see the routes")
    METHOD_NOT_ALLOWED = (405, "The path is right, the method is not.", "see the routes")
    CONFLICT = (
        409,
        "The report contradicts what is on disk, and nothing of it was kept.",
        "report each step once; a trainer that was started again needs a new attempt number, which "
        "the client asks for",
    )
    CONTENT_TOO_LARGE = (
        413,
        "The body is larger than a request may be.",
        "send fewer steps at once",
        {"Connection": "close"},
    )
    UNSUPPORTED_MEDIA_TYPE = (
        415,
        "The body is not JSON by its headers.",
        "send Content-Type: application/json",
    )
    INVALID_CONTENT = (
        422,
        "A field is missing, unknown or out of range, or a checkpoint can never be scored; nothing was kept.",
        "fix what `errors` names",
    )
    TOO_MANY_REQUESTS = (
        429,
        "The trainer sends more steps than any training makes; nothing of the request was kept.",
        "send it again after the seconds of Retry-After",
        {"Retry-After": "1"},
    )
    INTERNAL_SERVER_ERROR = (500, "The guard failed on this request.", "see the guard's log, and report it")
    NOT_READY = (
        503,
        "The store does not work, or the held-out split is not checked yet.",
        "wait; `detail` says for what",
        {"Retry-After": "1"},
    )
    STORE_UNAVAILABLE = (
        503,
        "The store cannot be written or read, so nothing of the request was kept. A fire that is known stays "
        "in force: it is in `verdict`.",
        "send it again; give the guard's state directory room and write permission",
        {"Retry-After": "1"},
    )
    INSUFFICIENT_STORAGE = (
        507,
        "The run has filled its share of the store, and nothing of the request was kept. What was "
        "acknowledged is, evaluations go on, and a fire that is known stays in force.",
        "start a new run; or raise RLGUARD_GUARD_MAX_STORE_MIB and start the guard again",
        {"Retry-After": "60"},
    )

    def __init__(
        self, status: int, meaning: str, remedy: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.status, self.meaning, self.remedy, self.headers = status, meaning, remedy, headers

    @property
    def urn(self) -> str:
        """The `type` of a problem of this kind."""
        return f"urn:rlguard:problem:{self.name.lower().replace('_', '-')}"

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ").title()

    @classmethod
    def of(cls, status: int) -> Self:
        """The kind of a response that the web framework gives by itself."""
        general = cls.BAD_REQUEST if status < cls.INTERNAL_SERVER_ERROR.status else cls.INTERNAL_SERVER_ERROR
        return next((kind for kind in cls if kind.status == status), general)


class Problem(GuardError):
    """A response that is not a success.

    Args:
        kind: its status, and what it means.
        detail: what was wrong this time.
        errors: the fields that were refused.
        headers: beside those of its kind.
        verdict: the verdict as JSON, where a known fire must be told all the same.
    """

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        errors: Sequence[FieldError] = (),
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        verdict: bytes | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.errors = kind, detail, tuple(errors)
        self.headers = {**kind.headers, **headers}
        self._verdict = verdict

    @classmethod
    def of_field(cls, kind: ProblemType, field: str, message: str, detail: str = "") -> Self:
        """A problem of one field; `detail` is the message where it says no more."""
        return cls(kind, detail or message, [FieldError(field=field, message=message)])

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    @property
    def is_refusal(self) -> bool:
        """Whether sending it again will not help: what nobody keeps, nobody judges."""
        full = self.kind is ProblemType.INSUFFICIENT_STORAGE
        later = self.kind is ProblemType.TOO_MANY_REQUESTS
        return full or (self.status < ProblemType.INTERNAL_SERVER_ERROR.status and not later)

    def body(self, instance: str) -> bytes:
        """The problem as JSON; `instance` is the path that was asked for."""
        content = ProblemDetails(
            type=self.kind.urn,
            title=self.kind.title,
            status=self.status,
            detail=self.detail,
            instance=instance,
            errors=list(self.errors) or None,
        ).model_dump(exclude_none=True)
        if self._verdict is not None:
            content["verdict"] = json.loads(self._verdict)
        return json.dumps(content).encode()


def damaged(path: Path, reason: str) -> StoreCorruptError:
    """One sentence for every damage: what, how it shows, and what to do."""
    one_line = " ".join(reason.split())
    return StoreCorruptError(f"{path} is damaged ({one_line}): restore it, or start a new run")
