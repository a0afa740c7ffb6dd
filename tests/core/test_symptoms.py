"""Symptoms: each in a run that has it and in a near one that has not; what cannot be looked for; odd logs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core.symptoms import (
    FEWEST_STEPS,
    FIRST_STEPS,
    NEAR_ZERO_ENTROPY,
    TITLES,
    Examined,
    Logged,
    Symptom,
    examine,
)

STEPS = 200
Values = Sequence[float]


def run(
    steps: Sequence[int] = range(1, STEPS + 1), components: dict[str, Values] | None = None, **figures: Values
) -> Logged:
    def arrays(values: dict[str, Values]) -> dict[str, np.ndarray]:
        return {name: np.array(of, dtype=np.float64) for name, of in values.items()}

    return Logged(np.array(steps, dtype=np.int64), arrays(figures), arrays(components or {}))


def found(log: Logged, name: str) -> Symptom | None:
    """The symptom, None where it was looked for and is not there."""
    seen = examine(log)
    assert name not in [one.name for one in seen.unseen], seen.unseen
    return next((one for one in seen.symptoms if one.name == name), None)


def why_unseen(log: Logged, name: str) -> tuple[str, str]:
    return next((one.why, one.needs) for one in examine(log).unseen if one.name == name)


def noisy(
    of: Callable[[float], float], noise: float = 0.02, steps: int = STEPS, seed: int = 1
) -> list[float]:
    """Values over the run, whose x goes from 0 to 1."""
    rng = random.Random(seed)
    return [of(i / (steps - 1)) + rng.gauss(0, noise) for i in range(steps)]


def line(start: float, end: float) -> Callable[[float], float]:
    return lambda x: start + (end - start) * x


class TestComponents:
    NAME = "components_part"

    def of(self, **components: Values) -> Symptom | None:
        return found(run(components=components), self.NAME)

    def test_one_that_climbs_while_another_falls(self) -> None:
        seen = self.of(
            form=noisy(line(0.2, 0.9)), right=noisy(line(0.6, 0.3), seed=2), same=noisy(line(1, 1))
        )
        assert seen is not None and (seen.first_step, seen.last_step) == (1, STEPS)
        assert "`form` went from 0.2" in seen.sentence and "while `right` went from 0.5" in seen.sentence
        assert "(medians of steps 1 to 20 and of steps 181 to 200)" in seen.sentence
        numbers = dict(seen.numbers)
        assert numbers["rises_from"] < numbers["rises_to"] and numbers["falls_from"] > numbers["falls_to"]

    @pytest.mark.parametrize(
        ("other_from", "other_to"), [(0.6, 0.9), (0.6, 0.6)], ids=["climbs, too", "stays"]
    )
    def test_two_that_do_not_part(self, other_from: float, other_to: float) -> None:
        other = noisy(line(other_from, other_to), seed=2)
        assert self.of(form=noisy(line(0.2, 0.9)), right=other) is None

    def test_two_that_fall(self) -> None:
        assert self.of(form=noisy(line(0.9, 0.2)), right=noisy(line(0.6, 0.3), seed=2)) is None

    def test_a_fall_within_the_noise_of_a_step_is_none(self) -> None:
        up = noisy(line(0.2, 0.9))
        assert self.of(form=up, right=noisy(line(5.0, 4.4), noise=0.4, seed=2)) is None
        assert self.of(form=up, right=noisy(line(5.0, 3.8), noise=0.4, seed=2)) is not None

    def test_a_fall_by_a_small_part_of_its_size_is_none(self) -> None:
        up = noisy(line(0.2, 0.9), noise=0.0)
        assert self.of(form=up, right=noisy(line(1.0, 0.96), noise=0.0)) is None
        assert self.of(form=up, right=noisy(line(1.0, 0.93), noise=0.0)) is not None

    def test_a_spike_at_the_end_parts_nothing(self) -> None:
        up, spike = noisy(line(0.2, 0.9)), [0.6] * STEPS
        spike[-2:] = [-1e9, -1e9]
        assert self.of(form=up, right=spike) is None

    def test_components_have_scales_of_their_own(self) -> None:
        seen = self.of(small=noisy(line(0.002, 0.009), noise=0.0002), large=noisy(line(600, 300), noise=20))
        assert seen is not None and "`small` went" in seen.sentence
        small, large = noisy(line(0.2, 0.9)), noisy(line(100, 120), noise=1)
        seen = self.of(small=small, large=large, falls=noisy(line(1, 0.2)))
        assert seen is not None and "`small` went" in seen.sentence

    def test_of_two_alike_the_first_name_is_told_in_whatever_order_they_are(self) -> None:
        up, down = noisy(line(0.2, 0.9)), noisy(line(0.9, 0.2))
        for names in ("abcd", "dcba"):
            seen = self.of(**{name: up if name in "bd" else down for name in names})
            assert (
                seen is not None
                and seen.sentence.startswith("`b` went")
                and "while `a` went" in seen.sentence
            )

    def test_one_is_not_enough(self) -> None:
        assert why_unseen(run(components={"a": noisy(line(0, 1))}), self.NAME) == (
            "fewer than two components of the reward at 20 steps",
            "components",
        )
        half = [math.nan] * (STEPS - 19) + [1.0] * 19
        assert why_unseen(run(components={"a": noisy(line(0, 1)), "b": half}), self.NAME)[1] == ""


class TestLength:
    NAME = "length_at_cap"

    def test_completions_that_are_cut_off_for_a_stretch(self) -> None:
        share = [0.05] * 100 + [0.5] * 40 + [0.05] * 60
        seen = found(run(clipped=share), self.NAME)
        assert seen is not None and (seen.first_step, seen.last_step) == (101, 140)
        assert seen.sentence.startswith(
            "50% of the completions were cut off at the length limit in steps 101"
        )
        assert dict(seen.numbers) == {"lowest_clipped": 0.5, "highest_clipped": 0.5}

    def test_of_two_stretches_the_longer_is_told_and_of_equal_ones_the_last(self) -> None:
        for last, told in ((40, 161), (20, 21)):
            share = [0.05] * 20 + [0.5] * 40 + [0.05] * (STEPS - 60 - last) + [0.5] * last
            seen = found(run(clipped=share), self.NAME)
            assert seen is not None and seen.first_step == told

    @pytest.mark.parametrize(
        "share",
        [([0.05] * 20 + [0.5] * 20) * 5, [0.2] * STEPS, [0.9, 0.0, 0.0, 0.0] * 50],
        ids=["too short", "not above the limit", "every fourth step"],
    )
    def test_a_few_are_cut_off(self, share: Values) -> None:
        assert found(run(clipped=share), self.NAME) is None

    def test_without_a_share_the_mean_is_compared_with_the_limit(self) -> None:
        longest = [256.0] * 150 + [255.0] * 50
        seen = found(
            run(length=noisy(lambda x: min(250.0, 60 + 300 * x), noise=1), longest=longest), self.NAME
        )
        assert seen is not None and seen.last_step == STEPS and seen.first_step > 100
        assert "of at most 256 tokens" in seen.sentence

    @pytest.mark.parametrize(
        ("length", "longest"),
        [
            ([100.0] * STEPS, [256.0] * STEPS),
            ([250.0] * STEPS, [256.0 + i % 7 for i in range(STEPS)]),
            ([0.0] * STEPS, [0.0] * STEPS),
        ],
        ids=["far below", "no limit is seen", "empty"],
    )
    def test_a_mean_below_the_limit_says_nothing(self, length: Values, longest: Values) -> None:
        why, needs = why_unseen(run(length=length, longest=longest), self.NAME)
        assert "cannot be told" in why and needs == "clipped"

    def test_the_share_counts_where_there_is_one(self) -> None:
        figures = {"length": [250.0] * STEPS, "longest": [256.0] * STEPS, "clipped": [0.0] * STEPS}
        assert found(run(**figures), self.NAME) is None

    @pytest.mark.parametrize("share", [50.0, -0.5])
    def test_what_is_no_share(self, share: float) -> None:
        assert "is no share" in why_unseen(run(clipped=[share] * STEPS), self.NAME)[0]


class TestEntropy:
    NAME = "entropy_collapse"

    def test_one_that_falls_to_a_tenth_and_stays(self) -> None:
        values = noisy(line(0.8, 0.1), steps=100, noise=0.01) + [0.04] * 100
        seen = found(run(entropy=values), self.NAME)
        assert seen is not None and (seen.first_step, seen.last_step) == (101, STEPS)
        assert (
            "stays at 0.04 from step 101 to the end, step 200" in seen.sentence
            and "nats/token" in seen.sentence
        )
        assert dict(seen.numbers)["end"] == 0.04

    @pytest.mark.parametrize(
        "end",
        [[0.09] * 100, [0.04] * 60 + [0.5] * 40, [0.5] * 80 + [0.04] * 20],
        ids=["more than a tenth", "recovers", "only just now"],
    )
    def test_one_that_does_not_collapse(self, end: Values) -> None:
        assert found(run(entropy=[0.8] * 100 + [*end]), self.NAME) is None

    def test_one_that_is_near_0_from_the_start(self) -> None:
        seen = found(run(entropy=[NEAR_ZERO_ENTROPY] * STEPS), self.NAME)
        assert seen is not None and seen.first_step == 1
        assert found(run(entropy=[2 * NEAR_ZERO_ENTROPY] * STEPS), self.NAME) is None

    def test_one_below_0_is_no_entropy(self) -> None:
        assert why_unseen(run(entropy=[-0.5] * STEPS), self.NAME)[1] == "entropy"


class TestGroups:
    NAME = "groups_without_spread"

    def test_nearly_all_groups_for_a_stretch(self) -> None:
        share = [0.3] * 120 + [0.9] * 80
        seen = found(run(zero_std=share, reward=[0.5] * 120 + [0.98] * 80), self.NAME)
        assert seen is not None and (seen.first_step, seen.last_step) == (121, STEPS)
        assert (
            seen.sentence.startswith("in 90% of the groups") and "The reward there is 0.98." in seen.sentence
        )
        without = found(run(zero_std=share), self.NAME)
        assert without is not None and "The reward" not in without.sentence

    @pytest.mark.parametrize(
        "share", [[0.8] * STEPS, [0.3] * 180 + [1.0] * 20], ids=["a fifth is left", "short"]
    )
    def test_most_groups_or_for_a_short_time(self, share: Values) -> None:
        assert found(run(zero_std=share), self.NAME) is None

    def test_the_share_of_groups_with_spread_is_its_complement(self) -> None:
        seen = found(run(mixed=[0.7] * 120 + [0.1] * 80), self.NAME)
        assert seen is not None and seen.first_step == 121
        assert found(run(mixed=[0.9] * STEPS), self.NAME) is None
        assert found(run(mixed=[0.1] * STEPS, zero_std=[0.0] * STEPS), self.NAME) is None


class TestKlTrend:
    NAME = "kl_above_trend"

    def of(self, of: Callable[[float], float], noise: float = 0.001) -> Symptom | None:
        return found(run(kl=[abs(kl) for kl in noisy(of, noise)]), self.NAME)

    def test_one_that_rises_ever_faster(self) -> None:
        seen = self.of(lambda x: 0.02 * x + max(0.0, x - 0.6) * 2)
        assert seen is not None and (seen.first_step, seen.last_step) == (101, STEPS)
        assert "nats/token over steps 1 to 100 and by +" in seen.sentence
        numbers = dict(seen.numbers)
        assert numbers["second_half"] > 4 * numbers["first_half"]

    @pytest.mark.parametrize(
        "of",
        [line(0.0, 1.0), lambda x: x**2, lambda x: max(0.0, x - 0.05) ** 2, lambda x: x**0.5, lambda x: 0.3],
        ids=["steady", "constant speed", "after a warm-up", "ever slower", "constant"],
    )
    def test_growth_as_it_is_to_be_expected(self, of: Callable[[float], float]) -> None:
        assert self.of(of) is None

    def test_growth_beyond_constant_speed(self) -> None:
        assert self.of(lambda x: x**3) is not None

    def test_a_rise_that_stays_near_0_is_none(self) -> None:
        assert self.of(lambda x: 0.04 * x**6) is None

    def test_a_rise_within_the_noise_is_none(self) -> None:
        assert self.of(lambda x: 5.0 + 0.8 * x**6, noise=0.5) is None
        assert self.of(lambda x: 5.0 + 0.8 * x**6, noise=0.05) is not None

    def test_spikes_of_k3_are_no_trend(self) -> None:
        kl = [0.01] * STEPS
        kl[-3:] = [22_000.0] * 3
        assert found(run(kl=kl), self.NAME) is None

    def test_a_fall_before_is_no_reason_to_alarm(self) -> None:
        assert self.of(lambda x: 1.0 - x) is None


class TestReference:
    NAME = "reference_not_start"

    def test_a_kl_that_does_not_begin_near_0(self) -> None:
        seen = found(run(kl=[0.3, 0.2, 0.31, 0.25, 0.3] + [0.4] * 195), self.NAME)
        assert seen is not None and (seen.first_step, seen.last_step) == (1, 5)
        assert "0.2 to 0.31 nats/token at the first 5 steps that have one (1 to 5)" in seen.sentence

    def test_one_that_does_once(self) -> None:
        assert found(run(kl=[0.3, 0.3, 0.05, 0.3, 0.3] + [0.4] * 195), self.NAME) is None

    def test_five_steps_are_enough(self) -> None:
        assert found(run(range(1, 6), kl=[0.3] * 5), self.NAME) is not None
        assert why_unseen(run(range(1, 5), kl=[0.3] * 4), self.NAME)[0].startswith(
            "KL to the reference at 4 "
        )

    def test_a_log_that_begins_later_does_not_say(self) -> None:
        late = range(FIRST_STEPS + 1, FIRST_STEPS + 1 + STEPS)
        assert "the start is not in the log" in why_unseen(run(late, kl=[0.3] * STEPS), self.NAME)[0]
        assert found(run([step - 1 for step in late], kl=[0.3] * STEPS), self.NAME) is not None


def test_a_kl_of_0_throughout_says_nothing() -> None:
    for name in ("kl_above_trend", "reference_not_start"):
        assert "exactly 0 at every step" in why_unseen(run(kl=[0.0] * STEPS), name)[0]


def test_what_a_log_has_not_is_not_looked_for_and_says_what_it_takes() -> None:
    seen = examine(run(reward=[0.5] * STEPS))
    assert seen.symptoms == ()
    assert {one.name: one.needs for one in seen.unseen} == {
        "components_part": "components",
        "length_at_cap": "clipped",
        "entropy_collapse": "entropy",
        "groups_without_spread": "zero_std",
        "kl_above_trend": "kl",
        "reference_not_start": "kl",
    }
    assert [one.name for one in seen.unseen] == list(TITLES)


def test_a_reason_that_is_known_is_told() -> None:
    log = Logged(np.arange(5), {}, because={"kl": "the KL is behaviour"})
    assert why_unseen(log, "kl_above_trend") == ("the KL is behaviour", "kl")


@pytest.mark.parametrize("steps", [0, 1, FEWEST_STEPS - 1])
def test_a_short_run_is_not_looked_at(steps: int) -> None:
    values = [0.001] * steps
    every = dict.fromkeys(("entropy", "zero_std", "clipped", "kl"), values)
    seen = examine(run(range(1, steps + 1), {"a": values, "b": values}, **every))
    assert seen.symptoms == () and len(seen.unseen) >= 5
    assert f"entropy at {steps} steps, and 20 are needed" in [one.why for one in seen.unseen]


def test_twenty_steps_are_enough() -> None:
    assert found(run(range(1, 21), entropy=[1.0] * 10 + [0.01] * 10), "entropy_collapse") is not None


def test_a_constant_run_has_no_symptom() -> None:
    constant = {"reward": 0.5, "kl": 0.01, "entropy": 0.5, "clipped": 0.1, "zero_std": 0.2}
    log = run(
        components={"a": [1.0] * STEPS, "b": [0.0] * STEPS}, **{k: [v] * STEPS for k, v in constant.items()}
    )
    assert examine(log) == Examined((), ())


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_what_is_no_number_is_not_known(odd: float) -> None:
    entropy = [0.8] * 100 + [0.04] * 100
    for i in range(0, STEPS, 3):
        entropy[i] = odd
    seen = found(run(entropy=entropy), "entropy_collapse")
    assert seen is not None and dict(seen.numbers)["start"] == 0.8
    assert found(run(clipped=[0.1] * 100 + [odd] * 100), "length_at_cap") is None
    kl = [0.3] * STEPS
    kl[0] = odd
    assert found(run(kl=kl), "reference_not_start") is not None


ANY = st.one_of(st.floats(), st.floats(0, 1), st.sampled_from([0.0, -0.0, 1e15, 5e-324, math.nan, math.inf]))
NAMES = ("reward", "kl", "entropy", "clipped", "zero_std", "mixed", "length", "longest")


@st.composite
def logs(draw: st.DrawFn) -> Logged:
    count = draw(st.integers(0, 70))
    column = st.lists(ANY, min_size=count, max_size=count)
    steps = sorted(draw(st.lists(st.integers(0, 2**53), min_size=count, max_size=count, unique=True)))
    figures = draw(st.dictionaries(st.sampled_from(NAMES), column))
    return run(steps, draw(st.dictionaries(st.text(max_size=5), column, max_size=4)), **figures)


@settings(max_examples=100, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_no_log_breaks_it_and_the_order_of_columns_is_nothing(log: Logged, rng: random.Random) -> None:
    seen = examine(log)
    assert len(seen.symptoms) + len(seen.unseen) <= len(TITLES)
    assert all(math.isfinite(value) for one in seen.symptoms for _, value in one.numbers)

    def shuffled(of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(rng.sample(list(of.items()), len(of)))

    again = Logged(log.step, shuffled(dict(log.figures)), shuffled(dict(log.components)))
    assert examine(again) == seen
