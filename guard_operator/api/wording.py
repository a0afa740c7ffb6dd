"""What is wrong with a spec, in our words and as YAML of this API spells it. Pure."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_pascal

from guard_core.wording import Place, sentences
from guard_operator.api.types import Spec

#: Below this the models are those of the guard, whose names are snake_case.
_POLICY = ("guard", "policy")


def invalid_spec(error: ValidationError) -> str:
    """Every mistake in a spec, each with its path."""
    return sentences(error, Spec, _named, key=_key, choice=_choice)


def _named(place: Place) -> str:
    return ".".join(["spec", *(_key(place[:end], place[end - 1]) for end in range(1, len(place) + 1))])


def _key(place: Place, word: str) -> str:
    return to_camel(word) if place[:2] == _POLICY and place != _POLICY else word


def _choice(place: Place, word: str) -> str:
    return to_pascal(word) if place[:2] == _POLICY else word
