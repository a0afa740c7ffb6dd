"""JSON as it comes from the API server, whose objects nest as deeply as their authors like. Pure.

Go reads 10,000 levels, and where a schema keeps unknown fields an object may have them. Python's reader ends
with a RecursionError near 1,000, so one object could keep every operator from reading all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

#: How deeply an answer is read. Pydantic's reader takes 200 levels, its writer 255.
MAX_DEPTH = 190

#: A whole text, so that no bracket in one counts, or a bracket. One that does not end is looked through once.
_TEXT_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)


def decoded(data: bytes) -> Any:
    """The value of a JSON text; what nests deeper than MAX_DEPTH is None in it.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return from_json(data)
    except ValueError:  # nested too deeply, or a character that only the other reader takes
        return json.loads(_cut(data))


def depth_of(value: Any, at_most: int) -> int:
    """How many objects and lists are in one another, counted to `at_most` + 1."""
    depth, level = 0, [value]
    while depth <= at_most and (level := [one for one in level if isinstance(one, dict | list)]):
        depth += 1
        level = [inner for one in level for inner in _inside(one)]
    return depth


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _cut(data: bytes) -> bytes:
    """`null` in the place of each object or list that is below MAX_DEPTH others."""
    kept, done, depth = [], 0, 0
    for found in _TEXT_OR_BRACKET.finditer(data):
        if found[0] in (b"{", b"["):
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept.append(data[done : found.start()])
                done = found.start()
        elif found[0] in (b"}", b"]"):
            if depth == MAX_DEPTH + 1:
                kept.append(b"null")
                done = found.end()
            depth -= 1
    return b"".join((*kept, data[done:]))
