"""Reading a step's values from TRL's lists: nothing is missed, counted twice or made up."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from guard_core.wire import KlKind
from trainer_image.metrics import StepMetrics, StepSample, kl_kind_of, mean_of, sample_of

REF = KlKind.REF_TOKEN_MEAN


def test_each_step_is_the_mean_of_what_was_appended_in_it() -> None:
    lists: dict[str, list[float]] = defaultdict(list)
    metrics = StepMetrics()
    lists["reward"].append(0.25)
    lists["kl"] += [0.1, 0.3]
    metrics.gather(lists)
    assert metrics.take(1, REF) == StepSample(1, 0.25, kl=pytest.approx(0.2), kl_kind=REF)
    lists["reward"].append(0.75)
    lists["kl"] += [0.5]
    metrics.gather(lists)
    metrics.gather(lists)
    assert metrics.take(2, REF) == StepSample(2, 0.75, kl=0.5, kl_kind=REF)


def test_a_cleared_list_is_read_from_its_start() -> None:
    lists: dict[str, list[float]] = defaultdict(list)
    metrics = StepMetrics()
    for step in range(1, 5):
        lists["reward"].append(step / 10)
        metrics.gather(lists)
        assert metrics.take(step, REF).reward == step / 10
        lists.clear()


def test_a_list_cleared_in_place_is_read_from_its_start() -> None:
    lists = {"reward": [0.1, 0.2]}
    metrics = StepMetrics()
    metrics.gather(lists)
    metrics.take(1, REF)
    lists["reward"].clear()
    lists["reward"].append(0.9)
    metrics.gather(lists)
    assert metrics.take(2, REF).reward == 0.9


def test_reading_creates_no_metric() -> None:
    lists: dict[str, list[float]] = defaultdict(list)
    StepMetrics().gather(lists)
    assert not lists


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf, "0.5", True, [0.5, 0.6]])
def test_without_a_finite_reward_there_is_no_sample(reward: Any) -> None:
    assert sample_of(1, {"reward": reward, "kl": 0.1}, REF) is None


@pytest.mark.parametrize("kl", [None, math.nan, math.inf, -1e-9])
def test_a_kl_that_says_nothing_is_absent_and_not_zero(kl: Any) -> None:
    assert sample_of(1, {"reward": 0.5, "kl": kl}, REF) == StepSample(1, 0.5)


def test_an_infinite_kl_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    sample_of(7, {"reward": 0.5, "kl": math.inf}, REF)
    assert "KL of step 7 is infinite" in caplog.text


def test_a_kl_of_an_unknown_kind_is_absent() -> None:
    assert sample_of(1, {"reward": 0.5, "kl": 0.1}, KlKind.ABSENT) == StepSample(1, 0.5)


def test_numpy_numbers_count() -> None:
    assert sample_of(1, {"reward": np.float32(0.5), "reward_std": np.float64(0.25)}, REF) == StepSample(
        1, 0.5, reward_std=0.25
    )


@pytest.mark.parametrize(
    ("values", "mean"),
    [((), None), ((math.nan,), None), ((1.0, math.nan, 3.0), 2.0), ((None, 1.0, (1, 2)), 1.0)],
)
def test_the_mean_passes_over_what_is_missing(values: Any, mean: float | None) -> None:
    assert mean_of(values) == mean


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
        (config("GRPOConfig", beta=0.04), KlKind.REF_TOKEN_MEAN),
        (config("GRPOConfig", beta=0.0), KlKind.ABSENT),
        (config("GMPOConfig", "GRPOConfig", beta=0.1), KlKind.REF_TOKEN_MEAN),
        (config("AsyncGRPOConfig", module="trl.experimental.async_grpo", beta=0.1), KlKind.BEHAVIOUR),
        (config("RLOOConfig", beta=0.1), KlKind.ABSENT),
        (config("GRPOConfig", module="mine", beta=0.1), KlKind.ABSENT),
        (SimpleNamespace(beta=0.1), KlKind.ABSENT),
    ],
)
def test_what_kl_means_follows_from_the_trainers_arguments(args: Any, kind: KlKind) -> None:
    assert kl_kind_of(args) is kind


@pytest.mark.torch
def test_the_names_of_the_config_classes_are_trls() -> None:
    from trl import GRPOConfig
    from trl.experimental.async_grpo import AsyncGRPOConfig

    assert kl_kind_of(GRPOConfig("x", beta=0.04, use_cpu=True, bf16=False)) is KlKind.REF_TOKEN_MEAN
    assert AsyncGRPOConfig.__name__ == "AsyncGRPOConfig" and AsyncGRPOConfig.__module__.startswith("trl.")
