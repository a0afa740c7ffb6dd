"""The API types and what is generated from them.

- Every generated file is up to date, and the schema is structural.
- The reference page names every condition type and reason.
- What the API server admits, pydantic admits: the policy keeps its values across both spellings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_pascal

from guard_core.policy import Policy
from guard_core.wire import Code
from guard_operator.api import generate
from guard_operator.api.reasons import FIRE_REASONS, ConditionType, Reason
from guard_operator.api.schema import crd, root_schema, structural
from guard_operator.api.types import CheckpointEvaluator, GuardSpec, OpenAIEvaluator
from guard_service.heldout.config import CheckpointEvaluatorSettings, OpenAIEvaluatorSettings

ROOT = Path(__file__).parents[3]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}.{key}")


@pytest.mark.parametrize("path", generate.outputs(), ids=str)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert (ROOT / path).read_text() == generate.outputs()[path], "run `make generate`"


def test_check_fails_on_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "__file__", str(tmp_path / "a" / "b" / "generate.py"))
    assert generate.main(["--check"]) == 1
    assert "make generate" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_the_schema_is_structural() -> None:
    for path, node in nodes(root_schema()):
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "const"} & node.keys(), path
        assert node.get("type") or node.get("x-kubernetes-int-or-string"), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert not ({"properties", "additionalProperties"} <= node.keys()), path


def test_everything_is_described() -> None:
    described = (".spec", ".status")
    missing = [
        path
        for path, node in nodes(root_schema())
        if path.startswith(described)
        and not path.endswith(("items", "additionalProperties"))
        and "description" not in node
    ]
    assert missing == []


def test_a_union_has_no_structural_schema() -> None:
    with pytest.raises(ValueError, match="union of 2 types"):
        structural({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {})


def test_every_threshold_has_the_range_of_the_policy() -> None:
    policy = root_schema()["properties"]["spec"]["properties"]["guard"]["properties"]["policy"]
    guard = policy["properties"]["heldoutGuard"]["properties"]
    assert guard["klHardStop"] == guard["klHardStop"] | {
        "minimum": 0,
        "exclusiveMinimum": True,
        "default": 0.08,
    }
    assert guard["emaAlpha"] == guard["emaAlpha"] | {"minimum": 0, "maximum": 1, "exclusiveMaximum": True}
    assert guard["declinePatience"] == guard["declinePatience"] | {"minimum": 1, "type": "integer"}


def test_printer_columns() -> None:
    columns = crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    names = [column["name"] for column in columns]
    assert names == ["Phase", "Step", "Reward", "Held-out", "KL", "Gap", "Fired", "Age"]


def test_the_reference_names_everything() -> None:
    page = generate.reference()
    for name in (*ConditionType, *Reason):
        assert f"| `{name}` | {name.meaning} |" in page


def test_reasons_are_camel_case_and_unique() -> None:
    for reason in (*Reason, *ConditionType):
        assert reason.value.isalnum() and reason.value[0].isupper()


def test_every_rule_of_the_guard_has_a_reason() -> None:
    """Every code of a verdict either can fire or is a state; a new code must be put on one of the sides."""
    states = {
        Code.SILENT, Code.STALE, Code.EVALUATION_FAILING, Code.NO_STEPS, Code.WARMING_UP, Code.KL_INERT,
        Code.NO_BASELINE, Code.STORE_UNAVAILABLE, Code.OK,
    }  # fmt: skip
    assert set(FIRE_REASONS) == set(Code) - states
    assert all(reason == to_pascal(code) for code, reason in FIRE_REASONS.items())


GUARD = {
    "checkpoints": {"volume": "c"},
    "heldout": {"volume": {"claimName": "h"}, "evaluator": {"openai": {"baseUrl": "http://x", "model": "m"}}},
}


def test_the_policy_is_read_from_camel_case() -> None:
    policy = {
        "detector": "HeldoutGuard",
        "heldoutGuard": {"klHardStop": 0.2, "minSteps": 3},
        "silent": {"policy": "Stop", "afterSeconds": 5},
    }
    spec = GuardSpec.model_validate({**GUARD, "policy": policy})
    assert spec.policy == Policy.model_validate(
        {
            "heldout_guard": {"kl_hard_stop": 0.2, "min_steps": 3},
            "silent": {"policy": "stop", "after_seconds": 5},
        }
    )


@pytest.mark.parametrize("policy", [{"heldoutGuard": {"klHardStop": 0}}, {"nope": {}}, {"silent": []}, 3])
def test_a_bad_policy_names_the_field(policy: Any) -> None:
    with pytest.raises(ValidationError, match="policy"):
        GuardSpec.model_validate({**GUARD, "policy": policy})


@pytest.mark.parametrize(
    ("api", "guard"),
    [(CheckpointEvaluator, CheckpointEvaluatorSettings), (OpenAIEvaluator, OpenAIEvaluatorSettings)],
)
def test_evaluators_have_the_settings_of_the_guard(api: type[BaseModel], guard: type[BaseModel]) -> None:
    """Contract with guard_service: same names, same defaults; the API key comes from a Secret instead."""
    elsewhere = {"kind", "api_key_file", "api_key_env", "api_key_secret_name"}
    ours, theirs = (
        {name: field.default for name, field in model.model_fields.items() if name not in elsewhere}
        for model in (api, guard)
    )
    assert ours == theirs
