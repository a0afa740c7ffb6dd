"""Read the body of a report: its size, its JSON, its fields. Every mistake is a `Problem` that names it.

FastAPI would read a body of any size, and before it looks at the token. Validating the bytes also settles
what `json.loads` would let pass: NaN or Infinity in place of a number.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Depends
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from guard_core.wording import excerpt, message, quoted
from guard_service.errors import FieldError, bad_request, invalid, too_large, unsupported_media_type

MAX_BODY_BYTES = 1024 * 1024
MAX_ERRORS = 20  # fields named in one response

T = TypeVar("T")


async def read_body(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        Problem: 415 if it is not JSON by its headers, 413 above `MAX_BODY_BYTES`, 400 if the client left.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise unsupported_media_type(
            f"the body must be application/json, not {quoted(media_type)}: set Content-Type"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise unsupported_media_type("the body must not be compressed: leave Content-Encoding out")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise too_large(f"a request may carry {MAX_BODY_BYTES} bytes: send less at once")
    except ClientDisconnect:
        raise bad_request("the connection ended before the body did") from None
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
        errors = error.errors(include_url=False)
    if errors[0]["type"] == "json_invalid":
        raise bad_request(f"the body is not JSON: {errors[0]['msg'].removeprefix('Invalid JSON: ')}")
    fields = [_field_error(e) for e in errors[:MAX_ERRORS]]
    more = "" if len(errors) <= MAX_ERRORS else f" and {len(errors) - MAX_ERRORS} more"
    raise invalid(f"refused: {', '.join(f.field for f in fields)}{more}; nothing was kept", fields)


def _field_error(error: Any) -> FieldError:
    field = ".".join(excerpt(str(part)) for part in error["loc"]) or "body"
    if error["type"] in ("missing", "extra_forbidden", "value_error", "too_long") or field == "body":
        return FieldError(field=field, message=message(error))
    return FieldError(field=field, message=f"{message(error)}, got {quoted(error['input'])}")
