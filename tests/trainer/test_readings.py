"""Reading a step's values from TRL's lists: nothing is missed, counted twice or made up."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

from guard_client.samples import StepSample, sample_of
from guard_core.wire import KlKind
from trainer_image.figures import Figures, StepReader

REF = KlKind.REF_TOKEN_MEAN
GRPO = Figures(kl_kind=REF, per_generation=True)


def test_each_step_is_the_mean_of_what_was_appended_in_it() -> None:
    lists: dict[str, list[float]] = defaultdict(list)
    reader = StepReader(GRPO)
    lists["reward"].append(0.25)
    lists["kl"] += [0.1, 0.3]
    reader.read_lists(lists)
    assert reader.take(1) == StepSample(1, 0.25, kl=pytest.approx(0.2), kl_kind=REF)
    lists["reward"].append(0.75)
    lists["kl"] += [0.5]
    reader.read_lists(lists)
    reader.read_lists(lists)
    assert reader.take(2) == StepSample(2, 0.75, kl=0.5, kl_kind=REF)


def test_a_list_cleared_in_place_is_read_from_its_start() -> None:
    lists = {"reward": [0.1, 0.2]}
    reader = StepReader(GRPO)
    reader.read_lists(lists)
    reader.take(1)
    lists["reward"].clear()
    lists["reward"].append(0.9)
    reader.read_lists(lists)
    assert reader.take(2).reward == 0.9


def test_reading_creates_no_metric() -> None:
    lists: dict[str, list[float]] = defaultdict(list)
    StepReader(GRPO).read_lists(lists)
    assert not lists


def test_of_further_figures_those_are_taken_that_are_plotted() -> None:
    lists: dict[Any, Any] = {
        "reward": [0.5],
        "rewards/format/mean": [0.2, 0.4],
        "rewards/a\nb/c/mean": [1.0],
        "rewards/nothing/mean": [math.nan],
        "rewards/format/std": [0.1],
        "my/rewards/format/mean": [0.1],
        "completions/mean_length": [7.0],
        "completions/max_length": [9.0],
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
    assert reader.take(2) == StepSample(2, 0.5, figures=sample.figures)  # it trains on the same completions


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf, "0.5", True, [0.5, 0.6]])
def test_a_reward_that_is_not_a_finite_number_is_none(reward: Any) -> None:
    assert sample_of(1, {"reward": reward, "kl": 0.1}, REF) == StepSample(1, None, kl=0.1, kl_kind=REF)


def test_a_kl_that_is_missing_is_absent_and_not_zero() -> None:
    assert sample_of(1, {"reward": 0.5, "kl": None}, REF) == StepSample(1, 0.5)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [REF, KlKind.REF_SEQ_SUM])
def test_a_kl_to_the_reference_that_is_not_finite_is_reported_as_such(kl: float, kind: KlKind) -> None:
    assert sample_of(1, {"reward": 0.5, "kl": kl}, kind) == StepSample(1, 0.5, kl_kind=KlKind.NOT_FINITE)


def test_a_drift_from_the_rollouts_that_is_not_finite_says_nothing_of_the_reference() -> None:
    assert sample_of(1, {"reward": 0.5, "kl": math.nan}, KlKind.BEHAVIOUR) == StepSample(1, 0.5)


def test_a_step_without_a_generation_has_the_reward_of_the_one_it_trains_on() -> None:
    reader, lists = StepReader(GRPO), {"reward": [0.25], "reward_std": [0.5], "kl": [0.1]}
    reader.read_lists(lists)
    reader.take(1)
    lists["kl"].append(0.2)
    reader.read_lists(lists)
    assert reader.take(2) == StepSample(2, 0.25, kl=0.2, kl_kind=REF, reward_std=0.5)


def test_a_generation_without_a_finite_reward_hides_the_one_before() -> None:
    reader, lists = StepReader(GRPO), {"reward": [0.25]}
    reader.read_lists(lists)
    reader.take(1)
    lists["reward"].append(math.nan)
    reader.read_lists(lists)
    assert reader.take(2) == StepSample(2, None) and reader.take(3) == StepSample(3, None)


def test_of_a_trainer_whose_generations_are_not_known_nothing_is_carried_on() -> None:
    reader = StepReader(Figures())
    reader.read_lists({"reward": [0.25]})
    assert reader.take(1) is not None and reader.take(2) is None


def test_what_is_logged_counts_where_there_are_no_lists() -> None:
    """TRL logs None where no value of a step was a number."""
    reader = StepReader(GRPO)
    taken = []
    for step, logs in enumerate([{"reward": 0.25, "kl": 0.1}, {"kl": 0.2}, {"reward": None, "kl": 0.3}], 1):
        reader.read_log(logs)
        taken.append(reader.take(step))
    assert [(sample.reward, sample.kl) for sample in taken if sample is not None] == [
        (0.25, 0.1),
        (0.25, 0.2),
        (None, 0.3),
    ]
