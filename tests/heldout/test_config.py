"""Settings of held-out evaluation: defaults, bounds, and wrong combinations told by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings


def settings(**more: Any) -> HeldoutSettings:
    return HeldoutSettings.model_validate({"split": "held.jsonl", **more})


def test_a_split_is_enough_and_one_field_of_the_evaluator() -> None:
    assert settings().evaluator == HfEvaluatorSettings() and settings().scorer == "exact"
    given = settings(evaluator={"max_new_tokens": "7"})  # as in the environment
    assert given.evaluator == HfEvaluatorSettings(max_new_tokens=7)


@pytest.mark.parametrize(
    "change",
    [
        {"scorer": "numeric"},
        {"proxy_scorer": "exact"},
        {"scorer_timeout_seconds": 5, "on_scorer_timeout": "wrong"},
        *(
            {"evaluator": {name: value}}
            for name, value in {
                "temperature": 0.5,
                "top_p": 0.5,
                "top_k": 5,
                "min_p": 0.1,
                "stop": ["\n"],
                "max_new_tokens": 5,
                "max_new_tokens_ceiling": 5,
                "samples": 2,
                "seed": 5,
                "chat": True,
                "chat_template_kwargs": {"enable_thinking": False},
                "system_prompt": "Think.",
                "answer_after": "</think>",
                "score_truncated": True,
                "kind": "vllm",
            }.items()
        ),
    ],
    ids=str,
)
def test_what_decides_a_score_is_its_measure(change: dict[str, Any]) -> None:
    assert settings().measure() != settings(**change).measure()


def test_what_decides_none_is_not() -> None:
    """How fast, where and in which batches; a limit of scorers that gives no score."""
    evaluator = {"batch_size": 5, "device": "cpu", "timeout_seconds": 5}
    scoring = {"train_prompts": "t.jsonl", "scorer_timeout_seconds": 5, "scorer_concurrency": 5}
    other = settings(evaluator=evaluator, **scoring, backlog="newest", near_duplicates=False)
    assert other.measure() == settings().measure()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on_scorer_timeout": "wrong"}, "means nothing: set scorer_timeout_seconds, too"),
        ({"evaluator": {"temperature": 0, "samples": 4}}, "set a temperature above 0, or samples to 1"),
        ({"evaluator": {"temperature": float("nan")}}, "temperature"),
        ({"evaluator": {"batch_size": 0}}, "batch_size"),
        ({"evaluator": {"device": "tpu"}}, "device"),
        ({"evaluator": {"timeout_seconds": 0}}, "timeout_seconds"),
        ({"evaluator": {"bacth_size": 3}}, "bacth_size"),
        ({"evaluator": {"kind": "sglang"}}, "'hf', 'vllm'"),
        ({"evaluator": {"kind": "vllm", "gpu_memory_utilization": 1.1}}, "gpu_memory_utilization"),
        ({"evaluator": {"kind": "vllm", "device": "cuda"}}, "device"),
    ],
)
def test_refuses_what_cannot_work_naming_it(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**given)
    assert told in str(caught.value)
