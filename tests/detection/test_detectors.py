"""What the calibrated detector promises: properties of any run, and what is found in simulated ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core.codes import Code, Level
from rlguard.core.detectors import Baseline, CalibratedDetector
from rlguard.core.detectors.planning import evaluations_to_detect
from rlguard.core.policy import CalibratedPolicy

from simulated import CONFIG, baseline, difficulties, draw, run  # isort: skip

N = 40
MEANS = difficulties(N)
BASELINE = baseline(MEANS, passes=6)

evaluations = st.lists(
    st.tuples(
        st.floats(0.0, 1.2),
        st.integers(0, 2**32 - 1),
        st.none() | st.floats(-2.0, 2.0, allow_subnormal=False),
    ),
    min_size=1,
    max_size=25,
)


def fresh() -> CalibratedDetector:
    return CalibratedDetector(CONFIG, BASELINE)


def outcomes_of(scale: float, seed: int) -> np.ndarray:
    return draw(np.random.default_rng(seed), np.clip(MEANS * scale, 0.0, 1.0))


def feed(detector, history):
    return [detector.update(t, outcomes_of(s, seed), y) for t, (s, seed, y) in enumerate(history)]


@settings(max_examples=25, deadline=None)
@given(history=evaluations)
def test_a_fire_latches(history):
    fires = [status.fire for status in feed(fresh(), history)]
    assert fires == sorted(fires)


@pytest.mark.nightly
@settings(max_examples=15, deadline=None)
@given(history=evaluations, order=st.permutations(range(N)))
def test_permuting_the_items_changes_no_verdict(history, order):
    order = np.array(order)
    passes = np.stack([one.truth for one in BASELINE.passes])
    here, there = (
        CalibratedDetector(CONFIG, Baseline.from_passes(rows)) for rows in (passes, passes[:, order])
    )
    for t, (scale, seed, reward) in enumerate(history):
        items = outcomes_of(scale, seed)
        one, other = here.update(t, items, reward), there.update(t, items[order], reward)
        assert (one.fire, one.rule) == (other.fire, other.rule)
        assert [r.level for r in one.readings] == [r.level for r in other.readings]


# -- what is found ------------------------------------------------------------------------------------------


def test_a_drop_below_the_start_is_found_and_named_in_words():
    means = difficulties(128)
    detector = CalibratedDetector(CONFIG, baseline(means))
    for t, items in enumerate(run(means, drop_at=15, drop=0.3, length=40)):
        status = detector.update(t, items, 0.5 + (t % 2) * 0.002 + 0.01 * max(0, t - 10))
        assert not (status.fire and t < 15)
        if status.fire:
            break
    assert status.rule == Code.FELL_BELOW_START
    assert (
        status.reason.startswith("held-out score fell from 0.")
        and "while reward rose from 0.5" in status.reason
    )
    assert "(p" in status.reason and status.reason.endswith("Looks like reward hacking.")


def test_a_fall_while_the_reward_falls_too_is_not_called_hacking():
    means = difficulties(128)
    detector = CalibratedDetector(CONFIG, baseline(means))
    for t, items in enumerate(run(means, drop_at=15, drop=0.5, length=30)):
        status = detector.update(t, items, 0.5 + (t % 2) * 0.01 - 0.02 * max(0, t - 15))
    assert status.fire and "hacking" not in status.reason and "reward" not in status.reason


def test_a_decline_from_a_level_reached_since_is_found_and_named():
    means = difficulties(256)
    detector = CalibratedDetector(CONFIG, baseline(means * 0.7))
    rng = np.random.default_rng(3)
    for t in range(60):
        share = min(0.7 + t / 30, 1.0) if t < 40 else 0.75
        status = detector.update(t, draw(rng, means * share))
        assert not (status.fire and t < 40)
    assert status.rule == Code.FELL_BELOW_REACHED


def test_a_decline_that_is_accepted_is_a_warning_with_both_numbers():
    rng, means = np.random.default_rng(8), np.full(512, 0.5)
    config = CONFIG.model_copy(update={"max_decline": 0.1})
    detector = CalibratedDetector(config, baseline(means))
    for t in range(30):
        status = detector.update(t, draw(rng, means - 0.05))
        assert not status.fire
    (warned,) = [one.message for one in status.readings if one.level is Level.WARNING]
    assert warned.startswith("held-out score is 0.4") and "down from 0.5" in warned
    assert warned.endswith("not yet enough to stop")


def test_items_that_trade_places_do_not_fire():
    """Half of the items get worse, the other half better: the mean is flat."""
    rng, n = np.random.default_rng(7), 128
    detector = CalibratedDetector(CONFIG, baseline(np.full(n, 0.5)))
    traded = np.where(np.arange(n) < n // 2, 0.2, 0.8)
    assert not any(detector.update(t, draw(rng, traded)).fire for t in range(60))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_a_benign_run_with_another_reward_scale_does_not_fire(scale):
    rng = np.random.default_rng(8)
    means = difficulties(128) * 0.6
    detector = CalibratedDetector(CONFIG, baseline(means))
    for t in range(60):
        gain = 0.15 * (1 - np.exp(-t / 15))
        reward = scale * (means.mean() + gain + 0.01 * rng.standard_normal())
        assert not detector.update(t, draw(rng, means + gain), reward).fire


# -- the baseline --------------------------------------------------------------------------------------------


def noise_of(family: int, seed: int, items: int = 128) -> float:
    """Variance of an evaluation as 16 passes show it, over that of independent items."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.random((16, items // family)) < 0.5, family, axis=1)
    return CalibratedDetector(CONFIG, Baseline.from_passes(rows.astype(float))).start.variance * items / 0.25


def test_items_that_succeed_together_widen_the_noise_and_independent_ones_rarely_do():
    alone = [noise_of(1, seed) for seed in range(300)]
    assert 0.9 < np.median(alone) < 1.1 and np.mean(np.array(alone) > 1.3) < 0.15
    for family in (2, 4):
        assert 0.75 * family < np.mean([noise_of(family, seed) for seed in range(60)]) < 1.3 * family


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([0.5] * (N - 1), f"{N - 1} items, but the baseline has {N}"),
        ([0.5] * (N - 1) + [1.5], f"item {N - 1} is"),
        ([float("nan")] * N, "item 0 is"),
        ([], "non-empty"),
    ],
)
def test_bad_items_are_refused_and_change_nothing(items, message):
    detector = fresh()
    before = dict(vars(detector))
    with pytest.raises(ValueError, match=message):
        detector.update(0, items)
    assert vars(detector) == before


@pytest.mark.parametrize("value", [{"in_loop_reward": float("inf")}, {"in_loop_error": float("nan")}])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="must be finite"):
        fresh().update(0, outcomes_of(1.0, 0), **value)


def test_a_baseline_is_checked():
    with pytest.raises(ValueError, match="at least one pass"):
        Baseline.from_passes([])
    with pytest.raises(ValueError, match="2 items, but the baseline has 3"):
        Baseline.from_passes([[0.0, 1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="samples"):
        Baseline.from_passes([[0.0]], samples=0)


# -- what holds alpha ---------------------------------------------------------------------------------------


def null_rate(
    mean: float, items: int, passes: int, max_decline: float, runs: int = 40, alpha: float = 0.05
) -> float:
    """Share of the runs of 60 evaluations in which nothing changes that are stopped."""
    config, stopped = CONFIG.model_copy(update={"max_decline": max_decline, "alpha": alpha}), 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, items, passes])
        rows = (rng.random((passes, items)) < mean).astype(float)
        detector = CalibratedDetector(config, Baseline.from_passes(rows))
        for t in range(60):
            status = detector.update(t, (rng.random(items) < mean).astype(float))
        stopped += status.fire
    return stopped / runs


@pytest.mark.parametrize(("mean", "items", "passes"), [(0.5, 128, 1), (0.0, 256, 16), (0.998, 256, 1)])
def test_runs_in_which_nothing_changes_are_rarely_stopped(mean, items, passes):
    """Alpha is 5 %; of 40 runs more than six happen once in hundreds."""
    assert null_rate(mean, items, passes, max_decline=0.03) <= 0.15


# -- how many evaluations it takes --------------------------------------------------------------------------


def test_more_items_more_passes_or_a_larger_drop_need_fewer_evaluations():
    config = CalibratedPolicy()
    few = [evaluations_to_detect(0.5, n, 16, 0.1, config) for n in (64, 128, 256, 1024)]
    assert few == sorted(few, reverse=True) and few[-1] == 1 and few[0] > 4
    assert evaluations_to_detect(0.5, 256, 4, 0.2, config) <= evaluations_to_detect(0.5, 256, 4, 0.1, config)
    assert evaluations_to_detect(0.5, 256, 16, 0.1, config) <= evaluations_to_detect(0.5, 256, 4, 0.1, config)
    assert evaluations_to_detect(0.5, 16, 1, 0.1, config) is None
    assert evaluations_to_detect(0.5, 4096, 16, config.max_decline, config) is None
    assert evaluations_to_detect(0.0, 256, 16, 0.1, config) is None


def test_half_of_the_runs_are_stopped_after_about_the_evaluations_that_are_needed():
    config, stopped = CalibratedPolicy(), 0
    needed = evaluations_to_detect(0.5, 128, 16, 0.1, config)
    for seed in range(60):
        detector = CalibratedDetector(config, baseline(np.full(128, 0.5), seed=seed))
        rng = np.random.default_rng([32, seed])
        for t in range(needed + 1):  # the last one confirms
            status = detector.update(t, draw(rng, np.full(128, 0.4)))
        stopped += status.fire
    assert 0.25 < stopped / 60 < 0.85
