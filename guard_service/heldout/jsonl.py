"""JSONL files of prompts: read, numbered, validated. No message quotes anything of a line (invariant 8)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from guard_core.wording import message, nearest
from guard_service.heldout.errors import SplitError

_Model = TypeVar("_Model", bound=BaseModel)

#: Bad lines that a refusal names.
MAX_REPORTED = 3
_SHOWABLE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")


def read_file(path: Path) -> bytes:
    """All of a file; raises SplitError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> SplitError:
    """What to raise for a file that cannot be read."""
    return SplitError(f"{path}: {error.strerror}: check the path and who may read it")


def lines(raw: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number the lines from 1 and leave out blank ones. Lines end at a newline byte and nowhere else."""
    return ((number, line) for number, line in enumerate(raw, 1) if line.strip())


def parse(line: bytes, model: type[_Model]) -> _Model:
    """One line as `model`; raises ValueError, in words that quote nothing of it."""
    return validate(parse_object(line), model)


def parse_object(line: bytes) -> dict[str, Any]:
    """One JSON object.

    Raises:
        ValueError: it is none; the message quotes nothing of the line.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno} ({error.msg}): one object a line") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object: one object a line")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key occurs twice in an object: keep one")
    return row


def validate(row: Mapping[str, Any], model: type[_Model]) -> _Model:
    """A row as `model`; raises ValueError, in words that quote nothing of it."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        told = {_told(one, list(model.model_fields)): None for one in error.errors(include_url=False)}
        raise ValueError("; ".join(told)) from None


def _told(error: ErrorDetails, known: Sequence[str]) -> str:
    """Where and what; never the value that is there."""
    loc, kind = error["loc"], error["type"]
    top = str(loc[0]) if loc else "line"
    name = top if is_showable(top) else "<unnameable>"
    if kind == "extra_forbidden" and len(loc) == 1:
        near = nearest(name, known)
        hint = f"did you mean {near}? An" if near else "an"
        return f"unknown key {name}: {hint} item has {', '.join(known)}; put anything else under meta"
    if kind == "missing" and len(loc) == 1:
        return f"{name} is missing"
    if name == "prompt":
        return "prompt must be a text, or a list of messages with role (system, user, assistant) and content"
    if name == "answer":
        return "answer must be a text, a number, or a list of them"
    if name == "id":
        return "id must be 1 to 128 visible ASCII characters without spaces"
    return f"{name}: {message(error)}"


def is_showable(name: str) -> bool:
    """Whether a key looks like a column's name; anything else may be a prompt in a wrong place."""
    return _SHOWABLE_KEY.fullmatch(name) is not None


def _counted(problems: int) -> str:
    return "1 bad line" if problems == 1 else f"{problems} bad lines"


def refuse(path: Path, problems: list[str]) -> None:
    """Raise SplitError, in one line, if there are problems; it names the first MAX_REPORTED."""
    if problems:
        more = len(problems) - MAX_REPORTED
        listed = "; ".join(problems[:MAX_REPORTED]) + (f"; and {more} more" if more > 0 else "")
        raise SplitError(f"{path}: {_counted(len(problems))}: {listed}")
