"""How an evaluation is sampled: what the settings say, what the trainer says, and what neither says.

Hostile: a trainer may say all that the wire takes; it can neither make an evaluation cost what it likes nor
reach what the settings say.
"""

from __future__ import annotations

import json
import math
from datetime import date
from functools import reduce
from typing import Any

import pytest
from pydantic import ValidationError

from rlguard.core.evaluation import HfEvaluation
from rlguard.core.wire import CheckpointReport, Sampling

TRAINER = Sampling(
    temperature=0.7, top_p=0.9, top_k=50, min_p=0.05, repetition_penalty=1.1, max_new_tokens=512
)
LONG = Sampling(temperature=1.0, max_new_tokens=1_000_000)


def used(trainer: Sampling | None, **settings: Any) -> dict[str, Any]:
    """What is not None or 1 of the sampling that is used."""
    found = HfEvaluation(**settings).sampling_with(trainer).model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in found.items() if (name, value) != ("samples", 1)}


def test_by_default_an_evaluation_samples_as_the_trainer_does() -> None:
    assert used(TRAINER) == TRAINER.model_dump(exclude_none=True) | {"source": "trainer"}


def test_a_trainer_that_does_not_say_gets_a_greedy_evaluation_that_says_so() -> None:
    assert used(None) == {"temperature": 0.0, "max_new_tokens": 256, "source": "default"}
    assert used(None, samples=4) == used(None), "greedy samples are all the same one"


def test_what_is_set_wins_and_a_distribution_is_not_mixed() -> None:
    own = {"temperature": 0.0, "max_new_tokens": 64}
    assert used(TRAINER, **own) == own | {"source": "settings"}
    assert used(TRAINER, temperature=1.0) == {"temperature": 1.0, "max_new_tokens": 512, "source": "trainer"}
    assert used(TRAINER, temperature=1.0, top_p=0.5)["top_p"] == 0.5
    assert used(TRAINER, temperature=1.0, min_p=0.2)["min_p"] == used(TRAINER, min_p=0.2)["min_p"] == 0.2
    assert "min_p" not in used(TRAINER, min_p=0.0)
    assert used(TRAINER, top_k=0, top_p=1.0) == {
        **{"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1},
        **{"max_new_tokens": 512, "source": "trainer"},
    }
    shorter = used(TRAINER, max_new_tokens=64)
    assert (shorter["max_new_tokens"], shorter["temperature"]) == (64, 0.7)
    assert used(TRAINER, samples=4)["samples"] == 4


def test_a_completion_ends_where_the_settings_say_else_where_the_trainer_does() -> None:
    theirs = Sampling(temperature=0.7, max_new_tokens=9, stop=("END",))
    assert used(theirs)["stop"] == used(theirs, temperature=1.0)["stop"] == ["END"]
    assert used(theirs, max_new_tokens=4)["stop"] == ["END"]
    assert used(theirs, stop=["x"])["stop"] == ["x"] == used(None, stop=["x"])["stop"]
    assert "stop" not in used(theirs, temperature=1.0, max_new_tokens=4), "nothing of the trainer's counts"


def test_what_ends_a_completion_is_shown_in_ascii_and_briefly() -> None:
    both = Sampling(temperature=1.0, max_new_tokens=9, stop=("\nQ:", "\x1b[2J"))
    assert both.words == 'temperature 1, up to 9 tokens or "\\nQ:" or "\\u001b[2J"'
    many = Sampling(temperature=1.0, stop=("x" * 256, *"abcd")).words
    assert many == f'temperature 1, up to "{"x" * 39}\\u2026" or "a" or "b" or 2 more texts'


def test_a_trainer_cannot_make_an_evaluation_arbitrarily_long() -> None:
    assert used(LONG)["max_new_tokens"] == 4096
    assert used(LONG, max_new_tokens_ceiling=100)["max_new_tokens"] == 100
    assert used(TRAINER, max_new_tokens_ceiling=100)["max_new_tokens"] == 100
    assert used(None, max_new_tokens_ceiling=100)["max_new_tokens"] == 100
    assert used(LONG, max_new_tokens=8192)["max_new_tokens"] == 8192, "what is set here is not bounded by it"


def test_half_an_answer_is_said_to_be_one() -> None:
    """Temperature without a length, or the other way round: something is a default, and that is told."""
    no_length = Sampling(temperature=0.7)
    assert used(no_length) == {"temperature": 0.7, "max_new_tokens": 256, "source": "default"}
    assert used(None, temperature=1.0)["source"] == used(None, max_new_tokens=9)["source"] == "default"
    assert used(no_length, max_new_tokens=9)["source"] == "trainer"


@pytest.mark.parametrize(
    ("sampling", "wrong"),
    [
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({}, "temperature"),
        ({"temperature": 1, "max_new_tokens": 10**9}, "max_new_tokens"),
        ({"temperature": 1, "top_p": 0}, "top_p"),
        ({"temperature": 1, "top_k": -2}, "top_k"),
        ({"temperature": 1, "min_p": 2}, "min_p"),
        ({"temperature": 1, "repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"temperature": 1, "beams": 4}, "beams"),
        ({"temperature": 1, "stop": "END"}, "stop"),
        ({"temperature": 1, "stop": ["x"] * 17}, "stop"),
    ],
)
def test_what_nobody_samples_with_is_refused(sampling: Any, wrong: str) -> None:
    text = json.dumps({"attempt": 0, "step": 1, "path": "/c", "sampling": sampling})
    with pytest.raises(ValidationError) as refused:
        CheckpointReport.model_validate_json(text)
    assert [error["loc"] for error in refused.value.errors()] == [("sampling", wrong)]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tokenize": True},
        {"enable-thinking": True},
        {"a" * 64: 1},
        {"when": date(2026, 1, 1)},
        {"x": math.nan},
        {"x": "\ud800"},
        {"x": "\u00e9" * 8_192},
        {"x": reduce(lambda inner, _: [inner], range(16), 0)},
        {"x": reduce(lambda inner, _: [inner], range(5_000), 0)},
    ],
    ids=range(9),
)
def test_what_is_no_variable_of_a_chat_template_is_refused(kwargs: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        HfEvaluation(chat_template_kwargs=kwargs)
    assert [error["loc"] for error in refused.value.errors()] == [("chat_template_kwargs",)]


@pytest.mark.parametrize("name", ["system_prompt", "answer_after"])
@pytest.mark.parametrize("value", ["", "x" * 65_537, 1])
def test_a_mark_and_a_system_prompt_are_texts_of_a_bounded_length(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        HfEvaluation.model_validate({name: value})


def test_two_ways_to_say_the_same_are_equal() -> None:
    plain = Sampling(temperature=1.0, max_new_tokens=9)
    said = Sampling(temperature=1, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_new_tokens=9)
    assert said == Sampling(temperature=1.0, max_new_tokens=9, stop=())
    assert said == plain == Sampling(temperature=1, top_k=-1, max_new_tokens=9)
    assert plain.words == "temperature 1, up to 9 tokens"
    assert Sampling(temperature=0.7, top_p=0.9).words == "temperature 0.7, top_p 0.9"
