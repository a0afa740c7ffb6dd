"""What is wrong with settings, in our own words: what the user wrote, with which value, what to do. Pure.

A validation error names a place in a model. Who reads the message set an option, a line of YAML or an
environment variable, so the caller says what the place is called. No sentence of pydantic is ever passed on.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

#: Names of the settings from the top to one of them, such as ("heldout", "scorer").
Place = tuple[str, ...]
Named = Callable[[Place], str]
#: How a name or a choice of the model at a place is spelled by who writes the settings.
Spelled = Callable[[Place, str], str]
Models = tuple[type[BaseModel], ...]

#: A number that YAML 1.1 takes for a text, and everybody who writes it for a number: 1e-5.
EXPONENT = re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")

#: Characters of what somebody wrote that a message repeats.
MAX_SHOWN = 60

#: Kind of a validation error -> what must be; what stands in braces is its context.
MUST_BE = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_sub_type": "must be a text",
    "string_unicode": "must be a text in valid Unicode",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "datetime_type": "must be a date with a time",
    "datetime_parsing": "must be a date with a time",
    "datetime_from_date_parsing": "must be a date with a time",
    "datetime_object_invalid": "must be a date with a time",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}
_OTHER = "has another form"
_TYPES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
#: Names of settings in the sentence of a validator of ours.
_OUR_NAMES = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
#: The last part of a place where the key of a mapping is wrong, and not what it holds.
_KEY = "[key]"


def sentences(
    error: ValidationError,
    model: type[BaseModel],
    named: Named,
    *,
    key: Spelled = lambda _place, word: word,
    choice: Spelled = lambda _place, word: word,
) -> str:
    """Everything that is wrong, one clause for each mistake. Of a secret no value is shown.

    `named`: what a place is called; `key`, `choice`: how names and choices are spelled there, if not as in
    the model.
    """
    spelled = _Spelling(named, key, choice)
    told = (_sentence(one, model, spelled) for one in error.errors(include_url=False))
    return "; ".join(dict.fromkeys(told))


def unknown(place: Place, known: Sequence[str], named: Named) -> str:
    """A setting that does not exist, and which one may be meant. `known` is spelled as the user does."""
    return f"{named(place)} is not a setting: {meant(place[-1], known)}"


def meant(word: str, known: Collection[str]) -> str:
    """The one of the known words that is probably meant; all of them where none is like it."""
    if close := nearest(word, known):
        return f"did you mean {close}?"
    return f"known are {', '.join(sorted(known))}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one, "" if none is."""
    if len(word) > MAX_SHOWN:  # no name of ours; to compare it may take long
        return ""
    spelled = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(word.casefold(), list(spelled), n=1)
    return spelled[close[0]] if close else ""


def excerpt(text: str) -> str:
    """As much of it as a message repeats."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def quoted(value: Any) -> str:
    """The value as a message shows it."""
    return excerpt(repr(value))


def must_be(error: ErrorDetails) -> str:
    """What should be there in place of what is wrong, without showing that."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("value_error", "assertion_error"):  # a validator of ours
        return str(context["error"])
    if kind in ("string_too_short", "too_short") and context["min_length"] == 1:
        return "must not be empty"
    if kind in MUST_BE:
        return MUST_BE[kind].format(**{name: _plain(value) for name, value in context.items()})
    return _OTHER


def not_yaml(error: Exception) -> str:
    """Where a text is not YAML, and why; `error` is what the YAML parser raised."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return "not YAML: " + " ".join(str(error).split())
    return f"not YAML at line {mark.line + 1}, column {mark.column + 1}: {problem}"


@dataclass(frozen=True)
class MustBe:
    """In the annotation of a text with a pattern: what it must be, in words."""

    words: str


class InvalidValueError(ValueError):
    """A model was called with wrong arguments; the message is for people."""


class InOurWords(BaseModel):
    """A model that may be written in Python. Called with what is wrong it says so in our words.

    What validates JSON or mappings (`model_validate`) gets pydantic's error, and words it with the places of
    its file.
    """

    if not TYPE_CHECKING:  # who writes a call is shown the fields, and not this

        def __init__(self, /, *args: Any, **values: Any) -> None:
            name = type(self).__name__
            if args:
                raise TypeError(f"{name} takes its values by name; of a mapping it is {name}(**mapping)")
            try:
                super().__init__(**values)
            except ValidationError as error:
                told = sentences(error, type(self), lambda place: ".".join((name, *place)))
                raise InvalidValueError(told) from None

        # Else pydantic would call it for what it validates, too.
        __init__.__pydantic_base_init__ = True


@dataclass(frozen=True)
class _Spelling:
    named: Named
    key: Spelled
    choice: Spelled


def _sentence(error: ErrorDetails, model: type[BaseModel], spelled: _Spelling) -> str:
    at = _find(model, error["loc"])
    named, place, kind = spelled.named, at.place, error["type"]
    if kind in ("value_error", "assertion_error"):
        said = _OUR_NAMES.sub(lambda name: spelled.key(place, name[0]), must_be(error))
        return f"{named(place)}: {said}" if place else said
    if place and place[-1] == _KEY:
        return f"{named(place[:-1])}: the key {place[-2]} {must_be(error)}"
    if place and kind in ("extra_forbidden", "invalid_key"):
        return _unknown(at, spelled)
    if kind == "missing":
        return f"{named(place)} is not set" + (f": {at.about}" if at.about else "")
    if kind == "union_tag_invalid" and (tags := [repr(_tag(one)) for one in _models(at.members)]):
        given = error["input"].get("kind") if isinstance(error["input"], Mapping) else error["input"]
        return f"{named((*place, 'kind'))} must be {_either(tags)}, not {quoted(given)}{_hint(given, tags)}"
    return _wrong_value(error, at, spelled)


def _unknown(at: _At, spelled: _Spelling) -> str:
    place = at.place
    for sibling in at.ruled_out:
        if _field(sibling, place[-1]) is not None:
            return f"{spelled.named(place)} belongs to `kind: {_tag(sibling)}`: set that, or leave it out"
    known = [spelled.key(place, word) for one in at.parents for word in _words(one)]
    meant = (*place[:-1], spelled.key(place, place[-1]))
    return unknown(meant, known, lambda _: spelled.named(place))


def _wrong_value(error: ErrorDetails, at: _At, spelled: _Spelling) -> str:
    place, kind, shown, hint = at.place, error["type"], error["input"], ""
    if kind in ("literal_error", "enum") and (choices := _choices(at.members)):
        words = [repr(spelled.choice(place, str(one))) for one in choices]
        said = f"must be {_either(words)}"
        shown = spelled.choice(place, shown) if isinstance(shown, str) else shown
        hint = _hint(shown, words)
    elif at.branch:
        said = f"must be {_either([_TYPES.get(member, 'a mapping or a list') for member in at.members])}"
    elif (kind.startswith("model_") or kind not in MUST_BE) and (models := _models(at.members)):
        some = [spelled.key((*place, word), word) for word in _words(models[0])[:3]]
        said = f"must be a mapping of settings, such as {', '.join(some)}"
    else:
        said = at.must_be or must_be(error)
        said += f" ({at.about})" if said == _OTHER and at.about else ""
    name = spelled.named(place) if place else "the file"
    secret = bool(place) and place[0].removesuffix("_file").endswith("token")
    return f"{name} {said}" + ("" if secret else f", not {quoted(shown)}{hint}")


def _hint(given: Any, words: Sequence[str]) -> str:
    """Which of several quoted choices may be meant."""
    close = nearest(repr(given), words)
    return f": did you mean {close}?" if close else ""


def _words(model: type[BaseModel]) -> list[str]:
    """The names of its fields, as they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _plain(value: Any) -> Any:
    """A bound as it was written: 0.0 is 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class _At:
    """Where a mistake is.

    place: names from the top to it. parents: the models that may hold it. ruled_out: those that a `kind`
    ruled out. field: what it is in the parent, if it is a field. members: the types that it may have.
    branch: whether the mistake is told once for each of them.
    """

    place: Place
    parents: Models = ()
    ruled_out: Models = ()
    field: FieldInfo | None = None
    members: tuple[Any, ...] = ()
    branch: bool = False

    @property
    def about(self) -> str:
        """What the field is for."""
        return ((self.field.description if self.field is not None else None) or "").rstrip(".")

    @property
    def must_be(self) -> str:
        """What the field's own annotation says; "" if it says nothing."""
        said = self.field.metadata if self.field is not None else ()
        return next((f"must be {one.words}" for one in said if isinstance(one, MustBe)), "")


def _find(model: type[BaseModel], loc: tuple[int | str, ...]) -> _At:
    """Follow the place of an error through the types of the model."""
    at, ruled_out = _At((), members=(model,)), Models()
    for part in map(str, loc):
        models = _models(at.members)
        tagged = tuple(one for one in models if _tag(one) == part)
        if tagged and len(at.members) > 1:
            ruled_out = tuple(one for one in models if one not in tagged)
            at = replace(at, members=tagged)
            continue
        if len(at.members) > 1 and not models:  # the name of a branch, such as `int`
            at = replace(at, branch=True)
            continue
        field = next((found for one in models if (found := _field(one, part)) is not None), None)
        inner = _members(field.annotation) if field is not None else _held(at.members)
        at = _At((*at.place, excerpt(part)), models, ruled_out, field, inner)
        ruled_out = ()
    return at


def _tag(model: type[BaseModel]) -> Any:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    """The field of this name or alias."""
    named = (field for known, field in model.model_fields.items() if name in (known, field.alias))
    return next(named, None)


def _models(members: Sequence[Any]) -> Models:
    return tuple(one for one in members if isinstance(one, type) and issubclass(one, BaseModel))


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, through unions and `Annotated`; None is not among them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return () if annotation in (None, type(None)) else (annotation,)


def _held(members: Sequence[Any]) -> tuple[Any, ...]:
    """The types that a mapping or a list of these types holds."""
    return tuple(member for one in members if get_args(one) for member in _members(get_args(one)[-1]))


def _choices(members: Sequence[Any]) -> list[Any]:
    """The values of literals and enums."""
    found: list[Any] = []
    for one in members:
        found += list(one) if isinstance(one, type) and issubclass(one, Enum) else get_args(one)
    return found
