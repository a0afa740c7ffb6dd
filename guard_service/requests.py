"""Reading a request: its size, its JSON, its fields. Every mistake becomes a `Problem` that names the field.

Bodies are validated straight from bytes, which also settles what `json.loads` would let pass: repeated keys,
and NaN or Infinity in place of a number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from starlette.types import Receive, Scope

from guard_core.wire import (
    MAX_FIGURES_PER_POST,
    MAX_STEPS_PER_POST,
    CheckpointReport,
    EndReport,
    FiguresReport,
    RolloutsReport,
    StepReport,
)
from guard_core.wording import excerpt, message, quoted
from guard_service.errors import (
    FieldError,
    Problem,
    bad_request,
    invalid,
    too_large,
    unsupported_media_type,
)

MAX_BODY_BYTES = 1024 * 1024
MAX_ERRORS = 20  # fields named in one response

_STEP = TypeAdapter(StepReport)
_STEPS = TypeAdapter(Annotated[list[StepReport], Field(max_length=MAX_STEPS_PER_POST)])
_CHECKPOINT = TypeAdapter(CheckpointReport)
_END = TypeAdapter(EndReport)
_ROLLOUTS = TypeAdapter(RolloutsReport)
_FIGURES = TypeAdapter(Annotated[list[FiguresReport], Field(max_length=MAX_FIGURES_PER_POST)])

T = TypeVar("T")


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        Problem: 413 above `MAX_BODY_BYTES`, told or found while reading; 415 if it is not JSON; 400 if the
            client went away.
    """
    _check_headers(scope["headers"])
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the connection ended before the body did")
        chunk = message.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_headers(headers: Sequence[tuple[bytes, bytes]]) -> None:
    kind = length = encoding = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
        elif name == b"content-encoding":
            encoding = value
    media_type = kind.partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise unsupported_media_type(
            f"the body must be application/json, not {quoted(media_type.decode('latin-1'))}: set Content-Type"
        )
    if encoding.lower() not in (b"", b"identity"):
        raise unsupported_media_type("the body must not be compressed: leave Content-Encoding out")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()


def parse_steps(body: bytes) -> list[StepReport]:
    """One step or a list of at most `MAX_STEPS_PER_POST`.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    is_list = body.lstrip()[:1] == b"["
    reports = _validate(_STEPS, body) if is_list else [_validate(_STEP, body)]
    # Once a body is valid, its only colons follow keys: more colons than fields are repeated keys.
    if body.count(b":") != sum(len(report.model_fields_set) for report in reports):
        _refuse_repeated_keys(body)
    return reports


def parse_checkpoint(body: bytes) -> CheckpointReport:
    """One checkpoint.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    return _parse_one(_CHECKPOINT, body)


def parse_end(body: bytes) -> EndReport:
    """The end of an attempt.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    return _parse_one(_END, body)


def parse_rollouts(body: bytes) -> RolloutsReport:
    """The rollouts of one step.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    return _parse_one(_ROLLOUTS, body)


def parse_figures(body: bytes) -> list[FiguresReport]:
    """A list of at most `MAX_FIGURES_PER_POST` steps with their further figures.

    Raises:
        Problem: 400 if it is not JSON, 422 naming every field that is wrong.
    """
    return _parse_one(_FIGURES, body)


def _parse_one(adapter: TypeAdapter[T], body: bytes) -> T:
    report = _validate(adapter, body)
    _refuse_repeated_keys(body)
    return report


def _validate(adapter: TypeAdapter[T], body: bytes) -> T:
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    if errors[0]["type"] == "json_invalid":
        raise bad_request(f"the body is not JSON: {errors[0]['msg'].removeprefix('Invalid JSON: ')}")
    fields = [_field_error(e) for e in errors[:MAX_ERRORS]]
    more = "" if len(errors) <= MAX_ERRORS else f" and {len(errors) - MAX_ERRORS} more"
    raise invalid(f"refused: {', '.join(f.field for f in fields)}{more}; nothing was kept", fields)


def _field_error(error: Any) -> FieldError:
    # The one rule over several fields of a step asks for `kl_kind`.
    loc = (*error["loc"], "kl_kind") if error["type"] == "value_error" else error["loc"]
    field = ".".join(excerpt(str(part)) for part in loc) or "body"
    said = message(error)
    if error["type"] in ("missing", "extra_forbidden", "value_error", "too_long") or field == "body":
        return FieldError(field=field, message=said)
    return FieldError(field=field, message=f"{said}, got {quoted(error['input'])}")


def _refuse_repeated_keys(body: bytes) -> None:
    def members(pairs: Sequence[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _repeated(excerpt(key))
            seen.add(key)

    # Numbers stay text: Python refuses to read an integer of thousands of digits.
    json.loads(body, object_pairs_hook=members, parse_int=str)


def _repeated(key: str) -> Problem:
    return invalid(
        f"refused: {key}; nothing was kept",
        [FieldError(field=key, message="the key is given more than once in one object")],
    )


def _too_large() -> Problem:
    return too_large(f"a request may carry {MAX_BODY_BYTES} bytes: send fewer steps at once")
