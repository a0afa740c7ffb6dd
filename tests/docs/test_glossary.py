"""One word for one thing: the glossary and the code know the same names, and no old spelling is left."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from guard_cli.errors import ExitCode
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.wire import Code, Condition, EvaluationSummary, Finding, KlKind, Level, Verdict
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import OnSilence

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
    *("policy.yaml", "spec.guard.policy", "spec.onSilence", "rlguard run"),
    HeldOutGuard.should_halt.__name__,
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
)


#: Generated pages, the CRD and the face list the old names that are refused.
REFUSED = (":!docs/reference/guardedtrainingjob.md", ":!*/crds/*", ":!rlguard/__init__.py")


@pytest.mark.parametrize("pattern", OLD)
def test_no_old_spelling_is_left(pattern: str) -> None:
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-nEi", pattern, "--", ":!CHANGELOG.md", ":!tests", *REFUSED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 1, listed.stdout
