"""The bases of the API's models, and types of fields that several of them have.

Python names are snake_case, the API is camelCase.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """`x-kubernetes-validations` from (rule, message) pairs."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


#: Marks a field that is required but has no schema of its own.
UNDECLARED = "rlguard-undeclared"
#: Marks a field under which choices are CamelCase here and snake_case in Python.
CAMEL_CHOICES = "rlguard-camel-choices"


class ModelRule(NamedTuple):
    """A rule of a model: in CEL for the API server, and in Python for who reads an object elsewhere.

    A rule about a change has nothing to say in Python.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] = lambda _model: True


class ApiModel(BaseModel):
    """Base of all of the API's models: camelCase outside, frozen, closed to unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    def to_json(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """It by the names of the API, without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=exclude)


def _add_rules(schema: dict[str, Any], model: type[RuledModel]) -> None:
    schema |= cel(*((rule.cel, rule.message) for rule in model.rules))


class RuledModel(ApiModel):
    """Base of the models that have rules beside those of their fields."""

    model_config = ConfigDict(json_schema_extra=_add_rules)
    rules: ClassVar[tuple[ModelRule, ...]]

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise ValueError(rule.message)
        return self


class StatusModel(ApiModel):
    """Base of what is read from a status: fields of a newer version are ignored, not refused."""

    model_config = ConfigDict(extra="ignore")


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: What JSON, or the kubelet in a variable, writes otherwise; as it stands in a regular expression.
ESCAPED = r'"\\$\x00-\x1f\x7f'
PLAIN = "must have no quotation mark, backslash, dollar sign or control character"
_IN_VOLUME = "must be a path inside the volume: relative and without '..'"


def _in_volume(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(_IN_VOLUME)
    if re.search(f"[{ESCAPED}]", path):
        raise ValueError(PLAIN)
    return path


#: A path inside a volume: relative, and it does not climb out. The guard is told it in JSON in a variable,
#: where the admission policy looks for it as it stands here: so nothing in it is written otherwise there.
InVolume = Annotated[
    str,
    Field(min_length=1, max_length=512),
    AfterValidator(_in_volume),
    Field(
        json_schema_extra=cel(
            ("!self.startsWith('/') && !self.matches('(^|/)[.][.](/|$)')", _IN_VOLUME),
            (f"!self.matches(r'[{ESCAPED}]')", PLAIN),
        )
    ),
]
Quantity = Annotated[
    int | str,
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]


def _readable(value: Any) -> Any:
    """What the API server takes for a time and is none, such as 30 February, hides no latch: 1970."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


Timestamp = Annotated[
    datetime,
    BeforeValidator(_readable),
    PlainSerializer(lambda t: t.isoformat(timespec="microseconds").replace("+00:00", "Z"), return_type=str),
]
