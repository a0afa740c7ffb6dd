"""Settings of held-out evaluation: defaults, bounds, and wrong combinations told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from guard_service.heldout.config import (
    CheckpointEvaluatorSettings,
    HeldoutSettings,
    OpenAIEvaluatorSettings,
)

OPENAI = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "policy-{step}"}


def test_a_split_is_enough() -> None:
    settings = HeldoutSettings.model_validate({"split": "held.jsonl"})
    assert settings.evaluator == CheckpointEvaluatorSettings() and settings.scorer == "exact"
    assert settings.split == Path("held.jsonl") and settings.train_prompts is None


def test_kind_chooses_the_evaluator_also_from_strings_as_in_the_environment() -> None:
    settings = HeldoutSettings.model_validate({"split": "s", "evaluator": {**OPENAI, "samples": "1"}})
    assert isinstance(settings.evaluator, OpenAIEvaluatorSettings) and settings.evaluator.samples == 1


def test_settings_survive_the_way_to_the_worker() -> None:
    settings = HeldoutSettings.model_validate({"split": "s", "evaluator": {**OPENAI, "api_key_file": "k"}})
    assert HeldoutSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_the_model_name_follows_the_checkpoint() -> None:
    settings = OpenAIEvaluatorSettings.model_validate({**OPENAI, "model": "p-{attempt}-{step}-{checkpoint}"})
    assert settings.model_name(attempt=1, step=20, checkpoint="checkpoint-20") == "p-1-20-checkpoint-20"


@pytest.mark.parametrize(
    ("evaluator", "told"),
    [
        ({"kind": "checkpoint", "samples": 4}, "set a temperature above 0, or samples to 1"),
        ({"kind": "checkpoint", "temperature": -1}, "temperature"),
        ({"kind": "checkpoint", "temperature": float("nan")}, "temperature"),
        ({"kind": "checkpoint", "batch_size": 0}, "batch_size"),
        ({"kind": "checkpoint", "device": "tpu"}, "device"),
        ({"kind": "checkpoint", "timeout_seconds": 0}, "timeout_seconds"),
        ({"kind": "checkpoint", "bacth_size": 3}, "bacth_size"),
        ({"kind": "vllm"}, "'checkpoint', 'openai'"),
        ({**OPENAI, "base_url": "127.0.0.1:1"}, "base_url"),
        ({**OPENAI, "model": "p-{setp}"}, "only {step}, {attempt} and {checkpoint} may stand in braces"),
        ({**OPENAI, "model": "p-{"}, "only {step}, {attempt} and {checkpoint} may stand in braces"),
        ({**OPENAI, "model": "{step.denominator.x}"}, "may stand in braces"),
        ({**OPENAI, "api_key_file": "k", "api_key_env": "K"}, "not both"),
    ],
)
def test_refuses_what_cannot_work_naming_it(evaluator: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HeldoutSettings.model_validate({"split": "s", "evaluator": evaluator})
    assert told in str(caught.value)
