"""What an installed CRD lacks of what this version notes in a status. Pure.

An API server drops a field that its CRD does not have without a word, and refuses a choice that it does not
know. The spec is not compared: what the CRD does not have there, nobody can ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from guard_operator.api.schema import root_schema

#: So many are named.
NAMED = 5


def lacking(served: Mapping[str, Any]) -> tuple[str, ...]:
    """What the served schema of a job lacks: fields as `status.stop`, choices as `status.phase=Judging`.

    Of a field that is missing, nothing that is in it. What a schema leaves open has every field or choice.
    """
    return tuple(sorted(_missing(_status(), served["properties"].get("status", {}), "status")))


def in_words(lacks: Sequence[str]) -> str:
    """The first of them."""
    more = len(lacks) - NAMED
    return ", ".join(lacks[:NAMED]) + (f" and {more} more" if more > 0 else "")


@cache
def _status() -> Mapping[str, Any]:
    """Of this version: making its schema takes a tenth of a second."""
    status: Mapping[str, Any] = root_schema()["properties"]["status"]
    return status


def _missing(wanted: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    if "enum" in served:
        yield from (f"{path}={choice}" for choice in wanted.get("enum", ()) if choice not in served["enum"])
    has = served.get("properties", {})
    for name, inner in wanted.get("properties", {}).items():
        where = f"{path}.{name}"
        if name in has:
            yield from _missing(inner, has[name], where)
        elif not served.get("x-kubernetes-preserve-unknown-fields"):
            yield where
    for inside in ("items", "additionalProperties"):
        if isinstance(wanted.get(inside), Mapping) and isinstance(served.get(inside), Mapping):
            yield from _missing(wanted[inside], served[inside], path)
