"""What is wrong with a spec, named by its path. Pure."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from rlguard.core.wording import Place, format_errors

#: Below this the models are those of the guard, whose names are snake_case.
_POLICY = ("guard", "policy")


def invalid_spec(error: ValidationError) -> str:
    """Every mistake in a spec, each with its path."""
    return format_errors(error, _named)


def _named(place: Place) -> str:
    inside = map(to_camel, place[2:]) if place[:2] == _POLICY else place[2:]
    return ".".join(["spec", *place[:2], *inside])
