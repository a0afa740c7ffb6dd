"""The API types and what is generated from them.

- Everything is described, and nothing of a guard can be changed.
- What the API server admits, pydantic admits: the policy keeps its values across both spellings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel, to_pascal

from guard_service.heldout.config import (
    HeldoutSettings,
    HfEvaluatorSettings,
    VllmEvaluatorSettings,
)
from rlguard.core.policy import Policy
from rlguard.operator.api.guard import GuardSpec
from rlguard.operator.api.reasons import FIRE_REASONS
from rlguard.operator.api.schema import root_schema

Json = dict[str, Any]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}.{key}")


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


def test_every_rule_of_the_guard_has_a_reason() -> None:
    assert all(reason == to_pascal(code) for code, reason in FIRE_REASONS.items())


def nodes_of_policy() -> dict[str, Any]:
    found: dict[str, Any] = dict(nodes(root_schema()))[".spec.guard.policy"]["properties"]
    return found


GUARD = {
    "checkpoints": {"volume": "c"},
    "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
}


def test_the_policy_is_read_from_camel_case() -> None:
    policy = {
        "detector": "HeldoutGuard",
        "heldoutGuard": {"minSteps": 3},
        "kl": {"hardStop": 0.2, "warnAbove": None},
        "silent": {"action": "Stop", "afterSeconds": 5},
    }
    spec = GuardSpec.model_validate({**GUARD, "policy": policy})
    kl = nodes_of_policy()["kl"]["properties"]["warnAbove"]
    assert kl["nullable"], "null switches it off: it must not be replaced by the default"
    assert spec.policy == Policy.model_validate(
        {
            "detector": "heldout_guard",
            "heldout_guard": {"min_steps": 3},
            "kl": {"hard_stop": 0.2, "warn_above": None},
            "silent": {"action": "stop", "after_seconds": 5},
        }
    )


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "0.00001"])
def test_a_number_that_came_as_text_is_not_made_another_one(text: str) -> None:
    spec = GuardSpec.model_validate({**GUARD, "policy": {"heldoutGuard": {"riseEps": text}}})
    assert spec.policy.heldout_guard.rise_eps == 1e-5


#: A section of the CRD under spec.guard.heldout, its type in the guard, what a value needs beside itself, and
#: what is not the same by nature.
SECTIONS: dict[str, tuple[type[BaseModel], Json, set[str]]] = {
    ".evaluator.hf": (HfEvaluatorSettings, {}, {"kind", "base_model"}),
    ".evaluator.vllm": (VllmEvaluatorSettings, {}, {"kind", "base_model"}),
    "": (
        HeldoutSettings,
        {"split": "s", "scorer_timeout_seconds": 1.0},
        {"split", "train_prompts", "evaluator"},
    ),
}
FIELDS = [
    (section, name)
    for section, (guard, _, elsewhere) in SECTIONS.items()
    for name in guard.model_fields
    if name not in elsewhere
]
#: What is tried where the schema has no bound to try.
TRIED: dict[str, list[Any]] = {
    "string": ["", "x", "math", "auto", "mps", "cuda:1", "cuda:x", "cuda:\u0661", "tpu"],
    "integer": [-1, 0, 1, 2**31 - 1, 2**31],
    "number": [-1.0, 0.0, 0.5, 1.0],
    "boolean": [True, False],
    "array": [[], ["x"], ["x", "\n"], [""], ["x" * 256], ["x" * 257], ["x"] * 16, ["x"] * 17, [1], "x", 1],
    "object": [{}, {"enable_thinking": False, "more": [{"a": None}]}, [], "x", 1],
}


def admits(schema: Json, value: Any) -> bool:
    """Whether an API server with this schema takes the value, which is no null."""
    bounds = {
        key: limit for key, limit in schema.items() if not key.startswith(("x-kubernetes", "exclusive"))
    }
    bounds |= {
        flag: bounds.pop(bound)
        for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        if schema.get(flag)
    }
    return bool(jsonschema_rs.is_valid(bounds, value))


def around(schema: Json) -> list[Any]:
    """Values on, below and above each bound of a field, and some of its kind."""
    near = 1 if schema["type"] == "integer" else 1e-6
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    values = [limit + offset for limit in bounds for offset in (-near, 0, near)]
    lengths = [schema[key] for key in ("minLength", "maxLength") if key in schema]
    values += ["x" * max(0, length + offset) for length in lengths for offset in (-1, 0, 1)]
    return values + schema.get("enum", []) + TRIED[schema["type"]]


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_crd_and_guard_accept_and_refuse_the_same(section: str, name: str) -> None:
    guard, needed, _ = SECTIONS[section]
    field = dict(nodes(root_schema()))[f".spec.guard.heldout{section}.{to_camel(name)}"]
    taken = []
    for value in around(field):
        taken.append(admits(field, value))
        assert accepted(guard, needed | {name: value}) is taken[-1], (name, value)
    assert any(taken) and (not all(taken) or field["type"] == "boolean")


def accepted(model: type[BaseModel], values: Any) -> bool:
    try:
        model.model_validate(values, strict=False)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind", ["hf", "vllm"])
def test_a_base_model_lies_in_the_volume_of_the_split(kind: str) -> None:
    """The only one that the guard mounts and the trainer does not. `test_review.py` has such paths."""
    declared = dict(nodes(root_schema()))
    field = declared[f".spec.guard.heldout.evaluator.{kind}.baseModel"]
    split = declared[".spec.guard.heldout.split"]
    same = ("x-kubernetes-validations", "minLength", "maxLength", "type")
    assert [field[key] for key in same] == [split[key] for key in same] and "default" not in field


def compared_by_itself(spec: dict[str, Any]) -> set[str]:
    """Paths that the rule compares by which `spec.guard` cannot be changed."""
    (rule,) = (
        one["rule"] for one in spec["x-kubernetes-validations"] if "guard is immutable" in one["message"]
    )
    return set(re.findall(r" self\.([\w.]+) == oldSelf\.", rule))


def test_each_field_of_the_guard_is_compared_by_itself_or_all_that_is_in_it() -> None:
    """So nothing can be changed. Within an object an API server of 1.32 finds null different from null."""
    spec = root_schema()["properties"]["spec"]
    compared = compared_by_itself(spec)

    def missed(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, inner in (schema.get("properties") or {}).items():
            where = f"{path}.{name}"
            if where in compared:
                yield from (
                    field for field, one in nodes(inner, where) if field != where and one.get("nullable")
                )
            elif "properties" in inner:
                yield from missed(inner, where)
            else:
                yield where

    assert list(missed(spec["properties"]["guard"], "guard")) == []
