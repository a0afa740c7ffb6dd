"""The fields of a pod as Kubernetes has them: values of the wrong type, and misspelt names. Pure.

The API server refuses both when the workload is created. This finds them earlier, and says which field was
meant. A field that resembles none is left to the API server: it may be of a later release.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import kubernetes.client

#: How alike two names must be, as difflib measures it.
ALIKE = 0.8
POD, METADATA = "V1PodSpec", "V1ObjectMeta"


def wrong_types(value: Any, model: str, where: str) -> Iterator[tuple[str, str]]:
    """Find what is no object, no list or no text where the API has one: where it stands, and what it must be.

    Args:
        value: what stands at `where`.
        model: what the package kubernetes calls its type, such as `POD`.
        where: the path with which the results begin.
    """
    for field, type_, found in _typed(value, model, where):
        if type_.startswith("List["):
            of_objects = type_.startswith("List[V1")
            if not isinstance(found, list) or (
                of_objects and not all(isinstance(one, dict) for one in found)
            ):
                yield field, "must be a list of objects" if of_objects else "must be a list"
        elif type_.startswith(("V1", "Dict[")) and not isinstance(found, dict | None):
            yield field, "must be an object"
        elif type_ == "str" and not isinstance(found, str | None):
            yield field, "must be a string"


def misspelt(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find unknown fields that resemble a known one: where it stands, and what was probably meant."""
    for where, type_, value in _typed(pod, POD, ""):
        if type_.startswith("V1") and isinstance(value, dict):
            known = _fields(type_)
            for name in value:
                if name not in known and (meant := difflib.get_close_matches(str(name), known, 1, ALIKE)):
                    yield f"{where}.{name}".lstrip("."), meant[0]


def _typed(value: Any, type_: str, where: str) -> Iterator[tuple[str, str, Any]]:
    """Every value of which the API says the type, from the outside in: where it stands, its type, and it."""
    yield where, type_, value
    if type_.startswith("List[") and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _typed(item, type_[5:-1], f"{where}[{index}]")
    elif type_.startswith("V1") and isinstance(value, dict):
        for name, inner in _fields(type_).items():
            if name in value:
                yield from _typed(value[name], inner, f"{where}.{name}".lstrip("."))


@cache
def _fields(model: str) -> Mapping[str, str]:
    """The fields of a type of the API, each with its own type."""
    of = getattr(kubernetes.client, model)
    return {name: of.openapi_types[attribute] for attribute, name in of.attribute_map.items()}
