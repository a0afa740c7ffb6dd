"""Settings of held-out evaluation: defaults, bounds, and wrong combinations told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from guard_service.heldout.config import (
    HeldoutSettings,
    HfEvaluatorSettings,
    VllmEvaluatorSettings,
)

MINIMAL: dict[str, Any] = {
    "state_dir": "s",
    "checkpoint_root": "c",
    "allow_unauthenticated_loopback": True,
}


def test_a_split_is_enough() -> None:
    settings = HeldoutSettings.model_validate({"split": "held.jsonl"})
    assert settings.evaluator == HfEvaluatorSettings() and settings.scorer == "exact"
    assert settings.split == Path("held.jsonl") and settings.train_prompts is None


def test_kind_chooses_the_evaluator_also_from_strings_as_in_the_environment() -> None:
    settings = HeldoutSettings.model_validate({"split": "s", "evaluator": {"kind": "vllm", "samples": "1"}})
    assert isinstance(settings.evaluator, VllmEvaluatorSettings) and settings.evaluator.samples == 1


def test_one_field_of_the_evaluator_is_enough() -> None:
    settings = HeldoutSettings.model_validate({"split": "s", "evaluator": {"max_new_tokens": 7}})
    assert settings.evaluator == HfEvaluatorSettings(max_new_tokens=7)


@pytest.mark.parametrize(
    ("change", "another"),
    [
        ({"scorer": "numeric"}, True),
        ({"proxy_scorer": "exact"}, True),
        ({"evaluator": {"temperature": 0.5}}, True),
        ({"evaluator": {"top_p": 0.5}}, True),
        ({"evaluator": {"top_k": 5}}, True),
        ({"evaluator": {"min_p": 0.1}}, True),
        ({"evaluator": {"stop": ["\n"]}}, True),
        ({"evaluator": {"max_new_tokens": 5}}, True),
        ({"evaluator": {"max_new_tokens_ceiling": 5}}, True),
        ({"evaluator": {"temperature": 1, "samples": 2}}, True),
        ({"evaluator": {"seed": 5}}, True),
        ({"evaluator": {"chat": True}}, True),
        ({"evaluator": {"chat_template_kwargs": {"enable_thinking": False}}}, True),
        ({"evaluator": {"system_prompt": "Think."}}, True),
        ({"evaluator": {"answer_after": "</think>"}}, True),
        ({"evaluator": {"score_truncated": True}}, True),
        ({"evaluator": {"kind": "vllm"}}, True),
        ({"evaluator": {"batch_size": 5}}, False),
        ({"evaluator": {"device": "cpu"}}, False),
        ({"evaluator": {"timeout_seconds": 5}}, False),
        ({"train_prompts": "t.jsonl"}, False),
        ({"scorer_timeout_seconds": 5}, False),  # it gives no score
        ({"scorer_timeout_seconds": 5, "on_scorer_timeout": "wrong"}, True),
        ({"scorer_concurrency": 5}, False),
        ({"backlog": "newest"}, False),
        ({"near_duplicates": False}, False),
    ],
)
def test_what_decides_a_score_is_its_measure(change: dict[str, Any], another: bool) -> None:
    plain, changed = (HeldoutSettings.model_validate({"split": "s.jsonl"} | more) for more in ({}, change))
    assert (plain.measure() != changed.measure()) is another


def test_what_becomes_of_a_limit_needs_one() -> None:
    with pytest.raises(ValidationError, match="means nothing: set scorer_timeout_seconds, too"):
        HeldoutSettings.model_validate({"split": "s", "on_scorer_timeout": "wrong"})


@pytest.mark.parametrize(
    ("evaluator", "told"),
    [
        (
            {"kind": "hf", "temperature": 0, "samples": 4},
            "set a temperature above 0, or samples to 1",
        ),
        ({"kind": "hf", "temperature": -1}, "temperature"),
        ({"kind": "hf", "temperature": float("nan")}, "temperature"),
        ({"kind": "hf", "batch_size": 0}, "batch_size"),
        ({"kind": "hf", "device": "tpu"}, "device"),
        ({"kind": "hf", "timeout_seconds": 0}, "timeout_seconds"),
        ({"kind": "hf", "bacth_size": 3}, "bacth_size"),
        ({"kind": "sglang"}, "'hf', 'vllm'"),
        ({"kind": "vllm", "gpu_memory_utilization": 1.1}, "gpu_memory_utilization"),
        ({"kind": "vllm", "tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"kind": "vllm", "device": "cuda"}, "device"),
    ],
)
def test_refuses_what_cannot_work_naming_it(evaluator: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HeldoutSettings.model_validate({"split": "s", "evaluator": evaluator})
    assert told in str(caught.value)
