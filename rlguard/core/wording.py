"""Mistakes in settings and reports as one line of text. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

#: Names of the settings from the top to one of them, such as ("heldout", "scorer").
Place = tuple[str, ...]
#: What a setting is called by the user: an option, a line of a file, an environment variable.
Named = Callable[[Place], str]

#: A number that YAML 1.1 takes for a text, and everybody who writes it for a number: 1e-5.
EXPONENT = re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")

#: Characters of what somebody wrote that a message repeats.
MAX_SHOWN = 60


def format_errors(error: ValidationError, named: Named = ".".join) -> str:
    """List all mistakes on one line: the setting, pydantic's message and a short value; no token."""
    return "; ".join(dict.fromkeys(_format(one, named) for one in error.errors(include_url=False)))


def _format(error: ErrorDetails, named: Named) -> str:
    place = tuple(excerpt(str(part)) for part in error["loc"])
    value, secret = error["input"], bool(place) and place[0].removesuffix("_file").endswith("token")
    # The value of an unknown name may be a token; a section of settings is too long to show.
    shown = not (secret or error["type"] == "extra_forbidden" or isinstance(value, dict | list))
    said = message(error) + (f" (got {quoted(value)})" if shown else "")
    return f"{named(place)}: {said}" if place else said


def message(error: ErrorDetails) -> str:
    """Pydantic's message, or that of a validator of ours, without the value."""
    if error["type"] in ("value_error", "assertion_error"):
        return str(error["ctx"]["error"])
    return error["msg"]


def unknown(place: Place, known: Sequence[str], named: Named) -> str:
    """A setting that does not exist, and which one may be meant. `known` is spelled as the user does."""
    return f"{named(place)} is not a setting: {meant(place[-1], known)}"


def meant(word: str, known: Collection[str]) -> str:
    """The one of the known words that is probably meant; all of them where none is like it."""
    if close := nearest(word, known):
        return f"did you mean {close}?"
    return f"known are {', '.join(sorted(known))}"


def count(number: int, one_thing: str, many: str = "") -> str:
    """A number of things: "1 step", "2,000 steps"."""
    return f"{number:,} {one_thing if number == 1 else many or one_thing + 's'}"


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


def not_yaml(error: Exception) -> str:
    """Where a text is not YAML, and why; `error` is what the YAML parser raised."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return "not YAML: " + " ".join(str(error).split())
    return f"not YAML at line {mark.line + 1}, column {mark.column + 1}: {problem}"
