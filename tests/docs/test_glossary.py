"""One word for one thing: the glossary and the code know the same names, and no old spelling is left."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, Field

import rlguard
from guard_cli.errors import ExitCode
from guard_core.codes import Code, Finding, Level
from guard_core.evaluation import Generation, Scoring
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.wire import (
    CheckpointReport,
    Condition,
    EndReport,
    EvaluationSummary,
    FailureKind,
    FiguresReport,
    KlKind,
    RolloutsReport,
    StepReport,
    Verdict,
)
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import OnSilence, Spec, Status
from guard_service.errors import ProblemType
from tools.references import LEVELS

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
TERMS = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY, re.MULTILINE)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field of a model, and of the models in it, by its path."""
    for name, field in model.model_fields.items():
        yield prefix + name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, f"{prefix}{name}.")


POLICY = set(fields(Policy))
ON_SILENCE = {f"spec.onSilence.{field.alias}" for field in OnSilence.model_fields.values()}
NAMES = set(
    itertools.chain(
        Code,
        Finding,
        Level,
        KlKind,
        ConditionType,
        Reason,
        Verdict.model_fields,
        Condition.model_fields,
        EvaluationSummary.model_fields,
    )
)
#: What the glossary may set as code, beside the names above.
BESIDE = {
    *(f"detector {choice}" for choice in ("heldout_guard", "both", "calibrated")),
    *("warn", "stop", "heldout_guard", "both", "calibrated"),  # choices of the policy
    *("policy.yaml", "spec.guard.policy", "spec.onSilence", "rlguard run", "rlguard report"),
    HeldOutGuard.should_halt.__name__,
    HeldOutGuard.update.__name__,
    *rlguard.__all__,
    *Generation.model_fields,
    *Scoring.model_fields,
}


def references() -> str:
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))


def test_the_terms_stand_in_their_order() -> None:
    assert len(TERMS) > 40
    assert sorted(TERMS, key=str.lower) == TERMS and len(set(TERMS)) == len(TERMS)


def test_what_the_glossary_names_exists() -> None:
    named = set(re.findall(r"`([^`]+)`", GLOSSARY))
    assert named - NAMES - POLICY - BESIDE == set()


@pytest.mark.parametrize("words", [NAMES, POLICY, ON_SILENCE, {code.name.lower() for code in ExitCode}])
def test_every_name_is_looked_up_somewhere(words: set[str]) -> None:
    pages = references() + GLOSSARY
    assert {word for word in words if f"`{word}`" not in pages} == set()


#: Every table that the references are made from, and how a value of it says what it means.
EXPLAINED: dict[Iterable[Any], Callable[[Any], str]] = {
    Code: lambda code: code.meaning,
    Finding: lambda finding: finding.words,
    Level: lambda level: LEVELS[level],
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


def test_what_has_no_meaning_is_found() -> None:
    class Word(StrEnum):
        SAID = "said"
        REPEATED = "repeated"
        FORGOTTEN = "forgotten"

    meanings = {Word.SAID: "Somebody wrote it down.", Word.REPEATED: "Repeated."}
    assert unexplained(Word, lambda word: meanings[word]) == ["REPEATED", "FORGOTTEN"]

    class Inner(BaseModel):
        late: int

    class Outer(BaseModel):
        inner: Inner | None = None
        count: int = Field(description="Count.")
        told: int = Field(description="How many were told.")

    assert list(blank_fields(Outer, set())) == ["Outer.inner", "Inner.late", "Outer.count"]


def test_what_a_verdict_counts_and_says_is_explained() -> None:
    said = {"fire", "halt", "stop", "level", "code", "action", "advice"}
    counts = {"announced", "evaluated", "failed", "skipped", "refused", "waiting"}
    assert said | counts <= set(TERMS) & {*Verdict.model_fields, *Condition.model_fields}


#: Spellings of earlier releases.
OLD = (
    r"GuardStopError|StepsAnswer|CheckpointAnswer|STOPPED_BY_POLICY",
    r"(stop|stopped|halt|halted) by (the )?policy|policy halts the run",
    r"whose policy is `?stop|(silent|stale|evaluation_failing|refused|onSilence)\.policy",
    r"no answer from the guard|gave no answer",
    # An answer is of an item or a completion; who is asked over a network responds.
    r"(guard|server|endpoint|operator|process|daemon|requests?)"
    r"( (does|did) not| is| was| that)? answer(s|ed)?\b|_answer\(request",
    r"\btripwire\b|the (run|guard) halts on a fire|halt that is not a fire|a stop latches",
    r"(trainer|run) halt(s|ed) itself",
    # What RBAC gives is permissions; what a Dockerfile has is stages.
    r"\brights of (these|those|the|its|a)\b|the rights\b|\btool room\b",
)


#: Generated pages, the CRD and the face list the old names that are refused.
REFUSED = (":!docs/reference/guardedtrainingjob.md", ":!*/crds/*", ":!rlguard/__init__.py")


@pytest.mark.parametrize("pattern", OLD)
def test_no_old_spelling_is_left(pattern: str) -> None:
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-nEi", pattern, "--", ":!tests", *REFUSED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 1, listed.stdout
