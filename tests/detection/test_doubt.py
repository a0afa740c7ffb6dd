"""No evaluation stops a run alone: an alarm is confirmed, and a broken evaluation is taken back.

The broken ones are those of real life: all 0 (the server is gone), half of the level (half of the completions
cut off), half of the items scored 0 (they were never answered), all 1 (a scorer that accepts everything).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core.codes import Level
from rlguard.core.detectors import Baseline, CalibratedDetector, DetectorStatus

from simulated import CONFIG, baseline, difficulties, draw  # isort: skip

N = 128
MEANS = difficulties(N)
BASELINE = baseline(MEANS)
FRESH = CalibratedDetector(CONFIG, BASELINE)

Break = Callable[[np.random.Generator, np.ndarray], np.ndarray]
BROKEN: dict[str, Break] = {
    "zero": lambda rng, means: np.zeros(len(means)),
    "half of its level": lambda rng, means: draw(rng, means / 2),
    "half of the items": lambda rng, means: draw(rng, means) * (np.arange(len(means)) % 2),
    "one": lambda rng, means: np.ones(len(means)),
}


def fresh() -> CalibratedDetector:
    return copy.copy(FRESH)


def live(
    detector: CalibratedDetector, rng: np.random.Generator, step: int, means: np.ndarray, first: np.ndarray
) -> DetectorStatus:
    """One checkpoint under a guard: its first evaluation, and the fresh ones that are asked for."""
    status = detector.update(step, first)
    for _ in range(5):
        if not status.needs_confirmation:
            break
        status = detector.update(step, draw(rng, means))
    return status


@pytest.mark.nightly
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("at", [0, 1, 20])
def test_one_broken_evaluation_stops_no_run(kind, at):
    """20 runs of 30 evaluations; without the doubt all of them were stopped at the broken one."""
    stopped = 0
    for seed in range(20):
        rng, detector = np.random.default_rng([seed, at]), fresh()
        for t in range(30):
            first = BROKEN[kind](rng, MEANS) if t == at else draw(rng, MEANS)
            status = live(detector, rng, t, MEANS, first)
        stopped += status.fire
    assert stopped <= 2


@settings(max_examples=20, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=25))
def test_what_is_taken_back_leaves_no_trace(seeds):
    """The detector is then what it would be without the broken evaluation."""
    with_it, without = fresh(), fresh()
    for t, seed in enumerate(seeds):
        items = draw(np.random.default_rng(seed), MEANS)
        for detector in (with_it, without):
            detector.update(t, items, 0.5 + 0.01 * (seed % 7))
    if without.last_status is None or without.last_status.needs_confirmation or without.last_status.fire:
        return
    broken = with_it.update(99, np.zeros(N), 0.7)
    assert broken.needs_confirmation and not broken.fire
    items = draw(np.random.default_rng(1), MEANS)
    after, clean = with_it.update(99, items), without.update(99, items, 0.7)
    assert after.readings == clean.readings and after.fire == clean.fire
    assert with_it.state.series == without.state.series
    assert with_it.state.not_counted == without.state.not_counted + 1


def test_a_real_collapse_is_confirmed_by_the_next_evaluation():
    rng, detector = np.random.default_rng(4), fresh()
    for t in range(20):
        assert not live(detector, rng, t, MEANS, draw(rng, MEANS)).fire
    fallen = MEANS * 0.3
    first = detector.update(20, draw(rng, fallen))
    assert not first.fire and first.needs_confirmation
    reading = first.readings[0]
    assert reading.level is Level.WARNING and "a fresh evaluation has to confirm it" in reading.message
    assert detector.update(20, draw(rng, fallen)).fire


def test_a_jump_upwards_is_asked_about_and_is_no_warning():
    rng, detector = np.random.default_rng(6), fresh()
    for t in range(4):
        assert not detector.update(t, draw(rng, MEANS)).needs_confirmation
    status = detector.update(4, np.ones(N))
    assert status.needs_confirmation and status.in_doubt == ""
    assert Level.WARNING not in {one.level for one in status.readings}
    after = detector.update(4, draw(rng, MEANS))
    assert not after.needs_confirmation and detector.state.not_counted == 1
    better = 0.2 + 0.8 * MEANS
    for t in range(5, 9):
        found = live(detector, rng, t, better, draw(rng, better))
        assert not found.in_doubt and Level.WARNING not in {one.level for one in found.readings}
    assert detector.state.not_counted == 1  # what rises and stays counts


# -- greedy decoding -----------------------------------------------------------------------------------------


def test_under_greedy_decoding_a_copy_confirms_nothing():
    """A fresh evaluation would repeat every item: the next checkpoint decides."""
    start = np.repeat([1.0, 0.0], 64)
    detector = CalibratedDetector(CONFIG, Baseline.from_passes([start] * 2))
    for t in range(10):
        detector.update(t, start)
    status = detector.update(10, np.zeros(N))
    assert Level.WARNING in {one.level for one in status.readings}
    assert not status.needs_confirmation and not status.fire
    assert detector.update(11, np.zeros(N)).fire


@pytest.mark.nightly
def test_greedy_runs_whose_score_wobbles_are_rarely_stopped():
    """The score of 256 items moves by 2 points about its start; 40 runs of 60 evaluations."""
    items = 256
    start = (np.arange(items) % 2).astype(float)
    fresh = CalibratedDetector(CONFIG, Baseline.from_passes([start] * 2))
    stopped = 0
    for seed in range(40):
        rng, detector = np.random.default_rng(seed), copy.copy(fresh)
        for t in range(60):
            flipped = rng.permutation(items)[: 2 * abs(int(rng.normal(0.0, 0.02 * items)))]
            status = detector.update(t, np.where(np.isin(np.arange(items), flipped), 1 - start, start))
        stopped += status.fire
    assert stopped <= 2
