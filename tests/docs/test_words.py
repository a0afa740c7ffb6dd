"""Every name has a meaning, and the references have every name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from guard_service.errors import ProblemType
from rlguard.cli.errors import ExitCode
from rlguard.core.codes import Code, Finding
from rlguard.core.policy import Policy
from rlguard.core.wire import (
    CheckpointReport,
    EndReport,
    FailureKind,
    FiguresReport,
    KlKind,
    RolloutsReport,
    StepReport,
    Verdict,
)
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import Status
from rlguard.operator.api.types import OnSilence, Spec

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))


def paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field of a model by its path; of one that holds a model, the fields in that."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from paths(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


ON_SILENCE = {f"spec.onSilence.{field.alias}" for field in OnSilence.model_fields.values()}


@pytest.mark.parametrize("words", [{*Code, *KlKind, *ConditionType, *Reason}, {*paths(Policy)}, ON_SILENCE])
def test_every_name_is_looked_up_somewhere(words: set[str]) -> None:
    assert {word for word in words if f"`{word}`" not in REFERENCES} == set()


#: Every table that the references are made from, and how a value of it says what it means.
EXPLAINED: dict[Iterable[Any], Callable[[Any], str]] = {
    Code: lambda code: code.meaning,
    Finding: lambda finding: finding.words,
    FailureKind: lambda kind: kind.words,
    ConditionType: lambda kind: kind.meaning,
    Reason: lambda reason: reason.meaning,
    ProblemType: lambda kind: kind.meaning,
    ExitCode: lambda code: code.meaning,
}
#: What travels, and what a person sets.
MODELS = (
    Verdict,
    StepReport,
    CheckpointReport,
    EndReport,
    RolloutsReport,
    FiguresReport,
    Policy,
    Spec,
    Status,
)


def is_said(meaning: str, name: str) -> bool:
    """Whether it is more than the name again."""
    words = re.findall(r"[a-z]+", meaning.lower())
    return len(words) >= 2 and not set(words) <= set(re.findall(r"[a-z]+", name.lower()))


def unexplained(values: Iterable[Any], meaning: Callable[[Any], str]) -> list[str]:
    """The values without a meaning that is written down."""
    without = []
    for value in values:
        try:
            said = meaning(value)
        except KeyError:
            said = ""
        if not is_said(said, value.name):
            without.append(value.name)
    return without


def within(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from within(inner)


def blank_fields(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    """Fields of the model, and of those in it, that say nothing; of a section its own model may say it."""
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        inner = list(within(field.annotation))
        said = field.description or next((one.__doc__ or "" for one in inner if "__doc__" in vars(one)), "")
        if not is_said(said, name):
            yield f"{model.__name__}.{name}"
        for one in inner:
            yield from blank_fields(one, seen)


@pytest.mark.parametrize("values", EXPLAINED, ids=lambda values: values.__name__)
def test_every_value_has_a_meaning(values: Any) -> None:
    assert unexplained(values, EXPLAINED[values]) == []


def test_every_field_has_a_meaning() -> None:
    seen: set[type[BaseModel]] = set()
    assert [blank for model in MODELS for blank in blank_fields(model, seen)] == []
    assert len(seen) > 40, "the models were looked for in the wrong place"
