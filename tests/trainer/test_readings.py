"""What is read of a trainer: its lists step by step, what its KL is, how it samples."""

from __future__ import annotations

import math
import os
import re
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from rlguard.client.samples import StepSample
from rlguard.core.wire import KlKind, Sampling
from trainer_image.figures import UNKNOWN, Figures, StepReader, figures_of, sampling_of

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
REF, NONE = KlKind.REF_TOKEN_MEAN, KlKind.ABSENT
GRPO = Figures(kl_kind=REF, per_generation=True)

# -- step by step ------------------------------------------------------------------------------------------


def test_each_step_is_the_mean_of_what_was_appended_in_it() -> None:
    """A step that generates nothing has the reward of the generation that it trains on."""
    reader, lists = StepReader(GRPO), {"reward": [0.25], "reward_std": [0.5], "kl": [0.1, 0.3]}
    reader.read_lists(lists)
    taken = [reader.take(1)]
    lists["kl"].append(0.5)
    for _ in range(2):  # what was read is not read again
        reader.read_lists(lists)
    taken.append(reader.take(2))
    lists["reward"] = [math.nan]  # TRL has logged, and begun new lists
    reader.read_lists(lists)
    taken.append(reader.take(3))
    lists["reward"] = [0.75]
    reader.read_lists(lists)
    taken.append(reader.take(4))
    assert taken == [
        StepSample(1, 0.25, kl=pytest.approx(0.2), kl_kind=REF, reward_std=0.5),
        *(
            StepSample(step, reward, kl=0.5, kl_kind=REF, reward_std=0.5)
            for step, reward in ((2, 0.25), (3, None))
        ),
        StepSample(4, 0.75, kl=0.5, kl_kind=REF, reward_std=0.5),
    ]


def test_of_a_trainer_whose_generations_are_not_known_nothing_is_carried_on() -> None:
    reader = StepReader(Figures())
    reader.read_lists({"reward": [0.25]})
    assert reader.take(1) is not None and reader.take(2) is None


def test_of_further_figures_those_are_taken_that_are_plotted() -> None:
    lists: dict[Any, Any] = {
        "reward": [0.5],
        "rewards/format/mean": [0.2, 0.4],
        "rewards/a\nb/c/mean": [1.0],
        "rewards/nothing/mean": [math.nan],
        "rewards/format/std": [0.1],
        "my/rewards/format/mean": [0.1],
        "completions/mean_length": [7.0],
        "completions/clipped_ratio": "no list",
        7: [1.0],
    }
    reader = StepReader(GRPO)
    reader.read_lists(lists)
    sample = reader.take(1)
    assert sample is not None and sample.figures == {
        "rewards/format/mean": pytest.approx(0.3),
        "rewards/a\nb/c/mean": 1.0,
        "completions/mean_length": 7.0,
    }


def test_what_is_logged_counts_where_there_are_no_lists() -> None:
    """TRL logs None where no value of a step was a number."""
    reader, taken = StepReader(GRPO), []
    for step, logs in enumerate([{"reward": 0.25, "kl": 0.1}, {"kl": 0.2}, {"reward": None, "kl": 0.3}], 1):
        reader.read_log(logs)
        taken.append(reader.take(step))
    found = [(sample.reward, sample.kl) for sample in taken if sample is not None]
    assert found == [(0.25, 0.1), (0.25, 0.2), (None, 0.3)]


# -- what the arguments say --------------------------------------------------------------------------------


def config(*names: str, module: str = "trl.trainer.grpo_config", **fields: Any) -> Any:
    """An object of a class of the first name that inherits from the others."""
    base: type = object
    for name in reversed(names):
        base = type(name, (base,), {"__module__": module})
    instance = base()
    vars(instance).update(fields)
    return instance


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (config("GRPOConfig", beta=0.04), REF),
        (config("GRPOConfig", beta=0.0), NONE),
        (config("Mine", "GRPOConfig", beta=0.1), REF),
        (config("AsyncGRPOConfig", module="trl.experimental.async_grpo", beta=0.1), KlKind.BEHAVIOUR),
        (config("AsyncGRPOConfig", "GRPOConfig", module="trl.trainer.async", beta=0.1), KlKind.BEHAVIOUR),
        (config("RLOOConfig", beta=0.0), NONE),
        (config("GRPOConfig", module="mine", beta=0.1), NONE),
    ],
)
def test_what_kl_means_follows_from_the_arguments(args: Any, kind: KlKind) -> None:
    figures = figures_of(args)
    assert figures is not None and figures.kl_kind is kind and (figures.kl is None) == (kind is NONE)


def test_a_trainer_that_is_not_of_trl_may_log_a_reward() -> None:
    assert figures_of(object()) is UNKNOWN and figures_of(config("SFTConfig")) is None


@pytest.mark.torch
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trl.trainer.grpo_config", "GRPOConfig"),
        ("trl.trainer.rloo_config", "RLOOConfig"),
        ("trl.experimental.online_dpo", "OnlineDPOConfig"),
        ("trl.experimental.async_grpo", "AsyncGRPOConfig"),
        ("trl.experimental.sdpo", "SDPOConfig"),
        ("trl.experimental.a2po", "A2POConfig"),
    ],
)
def test_the_names_of_the_configurations_are_trls(module: str, name: str) -> None:
    if find_spec(module) is not None:
        found = getattr(import_module(module), name)
        assert found.__name__ == name and found.__module__.startswith("trl.")


# -- how it samples ----------------------------------------------------------------------------------------


def arguments(**values: Any) -> SimpleNamespace:
    """Of a trainer that samples with temperature 1, up to 64 tokens."""
    return SimpleNamespace(**({"temperature": 1.0, "max_completion_length": 64} | values))


def hot(**changes: Any) -> Sampling:
    return Sampling(**({"temperature": 1.0, "max_new_tokens": 64} | changes))


MORE = {"top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (arguments(top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0), hot()),
        (arguments(**MORE), hot(**MORE)),
        (arguments(max_completion_length=None), Sampling(temperature=1)),
        (
            arguments(generation_kwargs={"temperature": 0.5, "max_tokens": 9}),
            hot(temperature=0.5, max_new_tokens=9),
        ),
        (arguments(generation_kwargs='{"temperature": 0.5}'), hot()),
        (arguments(generation_kwargs={"stop": "x"}), hot()),
        (arguments(generation_kwargs={"stop": "xy"}, use_vllm=True), hot(stop=("xy",))),
        (arguments(generation_kwargs={"stop": ["x", "y"]}, use_vllm=True), hot(stop=("x", "y"))),
        (SimpleNamespace(temperature=0.7, max_new_tokens=5), Sampling(temperature=0.7, max_new_tokens=5)),
        (SimpleNamespace(max_new_tokens=5), None),
    ],
)
def test_how_a_trainer_samples(args: Any, expected: Sampling | None) -> None:
    assert sampling_of(args) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 1e9}, "temperature: Input should be less than or equal to 10 (got 1"),
        ({"temperature": math.nan}, "temperature: Input should be a finite number (got nan)"),
        ({"generation_kwargs": {"stop": 4}, "use_vllm": True}, "stop: Input should be a valid tuple"),
        ({"max_completion_length": 10**9}, "max_new_tokens: Input should be less than"),
    ],
)
def test_a_sampling_that_no_guard_takes_is_named(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sampling_of(arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "stop"),
    [
        ({"generation_kwargs": {"stop_strings": ["x", "y"]}}, ("x", "y")),
        ({"generation_kwargs": {"stop_strings": None}}, ("z",)),
        ({}, ("z",)),
        ({"generation_kwargs": {"stop_strings": "x"}, "use_vllm": True}, None),
        ({"generation_kwargs": {"stop_strings": "x"}, "use_transformers_paged": True}, None),
        ({"use_transformers_continuous_batching": True}, None),
    ],
)
def test_which_texts_end_a_completion_where_transformers_generates(changes: Any, stop: Any) -> None:
    """Those of the arguments, or of the model."""
    model = SimpleNamespace(generation_config=SimpleNamespace(stop_strings=["z"]))
    assert sampling_of(arguments(**changes), model) == hot(stop=stop)
