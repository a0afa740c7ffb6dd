"""Symptoms: each in a run that has it and in a near one that has not; what cannot be looked for; odd logs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core.symptoms import (
    FEWEST_STEPS,
    FIRST_STEPS,
    NEAR_ZERO_ENTROPY,
    TITLES,
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


def noisy(of: Callable[[float], float], noise: float = 0.02, seed: int = 1) -> list[float]:
    """Values over the run, whose x goes from 0 to 1."""
    rng = random.Random(seed)
    return [of(i / (STEPS - 1)) + rng.gauss(0, noise) for i in range(STEPS)]


def line(start: float, end: float) -> Callable[[float], float]:
    return lambda x: start + (end - start) * x


UP = noisy(line(0.2, 0.9))
SPIKE = [0.6] * (STEPS - 2) + [-1e9] * 2


@pytest.mark.parametrize(
    ("up", "other", "part"),
    [
        pytest.param(UP, noisy(line(0.6, 0.3), seed=2), True, id="one falls"),
        pytest.param(UP, noisy(line(0.6, 0.9), seed=2), False, id="both climb"),
        pytest.param(UP, noisy(line(0.6, 0.6), seed=2), False, id="one stays"),
        pytest.param(noisy(line(0.9, 0.2)), noisy(line(0.6, 0.3), seed=2), False, id="both fall"),
        pytest.param(UP, noisy(line(5.0, 4.4), 0.4, 2), False, id="within the noise of a step"),
        pytest.param(UP, noisy(line(5.0, 3.8), 0.4, 2), True, id="beyond it"),
        pytest.param(UP, noisy(line(1.0, 0.96), 0.0), False, id="by a small part of its size"),
        pytest.param(UP, noisy(line(1.0, 0.93), 0.0), True, id="by more"),
        pytest.param(UP, SPIKE, False, id="a spike"),
        pytest.param(noisy(line(0.002, 0.009), 0.0002), noisy(line(600, 300), 20), True, id="scales"),
    ],
)
def test_components_that_part(up: Values, other: Values, part: bool) -> None:
    for components in ({"form": up, "right": other}, {"right": other, "form": up}):
        seen = found(run(components=components), "components_part")
        assert (seen is not None) is part
        if seen is not None:
            assert (seen.first_step, seen.last_step) == (1, STEPS)
            assert seen.sentence.startswith("`form` went from ") and " while `right` went " in seen.sentence


@pytest.mark.parametrize(
    ("share", "first", "last"),
    [
        ([0.05] * 100 + [0.5] * 40 + [0.05] * 60, 101, 140),
        ([0.05] * 20 + [0.5] * 40 + [0.05] * 100 + [0.5] * 40, 161, 200),
        ([0.05] * 20 + [0.5] * 40 + [0.05] * 120 + [0.5] * 20, 21, 60),
        (([0.05] * 20 + [0.5] * 20) * 5, None, None),
        ([0.2] * STEPS, None, None),
        ([0.9, 0.0, 0.0, 0.0] * 50, None, None),
    ],
    ids=[
        "a stretch",
        "the last of two",
        "the longer of two",
        "too short",
        "at the limit",
        "every fourth step",
    ],
)
def test_length_at_its_cap(share: Values, first: int | None, last: int | None) -> None:
    seen = found(run(clipped=share), "length_at_cap")
    assert (seen and (seen.first_step, seen.last_step)) == (first and (first, last))
    assert seen is None or seen.sentence.startswith(
        "50% of the completions were cut off at the length limit in"
    )


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (noisy(line(0.8, 0.1), 0.01)[:100] + [0.04] * 100, 101),
        ([0.8] * 100 + [0.09] * 100, None),
        ([0.8] * 100 + [0.04] * 60 + [0.5] * 40, None),
        ([0.8] * 180 + [0.04] * 20, None),
        ([NEAR_ZERO_ENTROPY] * STEPS, 1),
        ([2 * NEAR_ZERO_ENTROPY] * STEPS, None),
    ],
    ids=["falls and stays", "more than a tenth", "recovers", "only just now", "near 0", "not so near"],
)
def test_entropy_that_collapses(values: Values, first: int | None) -> None:
    seen = found(run(entropy=values), "entropy_collapse")
    assert (seen and (seen.first_step, seen.last_step)) == (first and (first, STEPS))
    assert seen is None or ("nats/token" in seen.sentence and "to the end, step 200" in seen.sentence)


@pytest.mark.parametrize(
    ("figures", "first"),
    [
        ({"zero_std": [0.3] * 120 + [0.9] * 80}, 121),
        ({"zero_std": [0.8] * STEPS}, None),
        ({"zero_std": [0.3] * 180 + [1.0] * 20}, None),
        ({"mixed": [0.7] * 120 + [0.1] * 80}, 121),
        ({"mixed": [0.9] * STEPS}, None),
        ({"mixed": [0.1] * STEPS, "zero_std": [0.0] * STEPS}, None),
    ],
    ids=["nearly all", "a fifth is left", "short", "by the complement", "of few", "its own share counts"],
)
def test_groups_without_spread(figures: dict[str, Values], first: int | None) -> None:
    seen = found(run(**figures, reward=[0.5] * 120 + [0.98] * 80), "groups_without_spread")
    assert (seen and seen.first_step) == first
    assert seen is None or "The reward there is 0.98." in seen.sentence


@pytest.mark.parametrize(
    ("of", "noise", "above"),
    [
        pytest.param(lambda x: 0.02 * x + max(0.0, x - 0.6) * 2, 0.001, True, id="ever faster"),
        pytest.param(lambda x: x**3, 0.001, True, id="beyond constant speed"),
        pytest.param(lambda x: x**2, 0.001, False, id="constant speed"),
        pytest.param(lambda x: max(0.0, x - 0.05) ** 2, 0.001, False, id="after a warm-up"),
        pytest.param(lambda x: x**0.5, 0.001, False, id="ever slower"),
        pytest.param(lambda x: 1.0 - x, 0.001, False, id="a fall"),
        pytest.param(lambda x: 0.04 * x**6, 0.001, False, id="near 0"),
        pytest.param(lambda x: 5.0 + 0.8 * x**6, 0.5, False, id="within the noise"),
        pytest.param(lambda x: 5.0 + 0.8 * x**6, 0.05, True, id="beyond it"),
        pytest.param(lambda x: 22_000.0 if x > 0.99 else 0.01, 0.0, False, id="spikes of k3"),
    ],
)
def test_a_kl_above_its_own_trend(of: Callable[[float], float], noise: float, above: bool) -> None:
    seen = found(run(kl=[abs(kl) for kl in noisy(of, noise)]), "kl_above_trend")
    assert (seen is not None) is above
    assert seen is None or (seen.first_step, seen.last_step) == (101, STEPS)


@pytest.mark.parametrize(
    ("first", "kls", "seen"),
    [
        (1, [0.3, 0.2, 0.31, 0.25, 0.3], True),
        (1, [0.3, 0.3, 0.05, 0.3, 0.3], False),
        (FIRST_STEPS, [0.3] * 5, True),
    ],
    ids=["away from 0", "once near 0", "a log that begins a little later"],
)
def test_a_reference_that_is_not_the_start(first: int, kls: Values, seen: bool) -> None:
    symptom = found(run(range(first, first + 5), kl=kls), "reference_not_start")
    assert (symptom is not None) is seen
    assert (
        symptom is None or f"at the first 5 steps that have one ({first} to {first + 4})" in symptom.sentence
    )


@pytest.mark.parametrize(
    ("log", "name", "why"),
    [
        (run(range(1, 5), kl=[0.3] * 4), "reference_not_start", "KL to the reference at 4 "),
        (run(range(21, 221), kl=[0.3] * STEPS), "reference_not_start", "the start is not in the log"),
        (run(kl=[0.0] * STEPS), "reference_not_start", "exactly 0 at every step"),
        (run(kl=[0.0] * STEPS), "kl_above_trend", "exactly 0 at every step"),
        (Logged(np.arange(5), {}, because={"kl": "the KL is behaviour"}), "kl_above_trend", "is behaviour"),
    ],
)
def test_why_a_kl_is_not_looked_at(log: Logged, name: str, why: str) -> None:
    assert why in why_unseen(log, name)[0]


def test_what_a_log_has_not_is_not_looked_for_and_says_what_it_takes() -> None:
    seen = examine(run(reward=[0.5] * STEPS))
    assert seen.symptoms == () and [one.name for one in seen.unseen] == list(TITLES)
    assert [one.needs for one in seen.unseen] == ["components", "clipped", "entropy", "zero_std", "kl", "kl"]


@pytest.mark.parametrize("steps", [0, 1, FEWEST_STEPS - 1, FEWEST_STEPS])
def test_a_short_run_is_not_looked_at(steps: int) -> None:
    values = [1.0] * (steps // 2) + [0.001] * (steps - steps // 2)
    seen = examine(run(range(1, steps + 1), {"a": values, "b": values}, entropy=values, zero_std=values))
    if steps < FEWEST_STEPS:
        assert seen.symptoms == ()
        assert f"entropy at {steps} steps, and 20 are needed" in [one.why for one in seen.unseen]
    else:
        assert "entropy_collapse" in [one.name for one in seen.symptoms]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_what_is_no_number_is_not_known(odd: float) -> None:
    entropy = [0.8] * 100 + [0.04] * 100
    entropy[::3] = [odd] * len(entropy[::3])
    seen = found(run(entropy=entropy), "entropy_collapse")
    assert seen is not None and dict(seen.numbers)["start"] == 0.8
    assert found(run(clipped=[0.1] * 100 + [odd] * 100), "length_at_cap") is None
    assert found(run(kl=[odd, *[0.3] * (STEPS - 1)]), "reference_not_start") is not None


ANY = st.one_of(st.floats(), st.floats(0, 1), st.sampled_from([0.0, -0.0, 1e15, 5e-324, math.nan, math.inf]))
NAMES = ("reward", "kl", "entropy", "clipped", "zero_std", "mixed")


@st.composite
def logs(draw: st.DrawFn) -> Logged:
    count = draw(st.integers(0, 70))
    column = st.lists(ANY, min_size=count, max_size=count)
    steps = sorted(draw(st.lists(st.integers(0, 2**53), min_size=count, max_size=count, unique=True)))
    figures = draw(st.dictionaries(st.sampled_from(NAMES), column))
    return run(steps, draw(st.dictionaries(st.text(max_size=5), column, max_size=4)), **figures)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_no_log_breaks_it(log: Logged) -> None:
    seen = examine(log)
    assert len(seen.symptoms) + len(seen.unseen) <= len(TITLES)
    assert all(math.isfinite(value) for one in seen.symptoms for _, value in one.numbers)
