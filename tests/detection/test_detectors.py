"""What every detector promises, as properties, and what each part is for.

Properties: a fire latches; a replay of the history gives the live verdicts; the state round-trips exactly
through JSON at every prefix; permuting the items changes nothing, to the last bit; an offset of the proxy
changes nothing.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core.detectors import (
    DETECTORS,
    PARTS,
    Baseline,
    CalibratedDetector,
    build_detector,
    evaluations_to_detect,
    split_alpha,
)
from guard_core.detectors.baseline import CONCENTRATION, Outcomes, Strata
from guard_core.detectors.eprocess import Reference
from guard_core.detectors.fast import DIP, thresholds
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.wire import Code, Level
from tests.detection.batch import FastBatch, Grouping, GuaranteedBatch

from simulated import CONFIG, baseline, difficulties, draw, run  # isort: skip

N = 40
MEANS = difficulties(N)
BASELINE = baseline(MEANS, passes=6)
FRESH = {name: CalibratedDetector(CONFIG, BASELINE, (name,) if name in PARTS else PARTS).to_state()
         for name in (*PARTS, "calibrated")}  # fmt: skip

#: For tests that ask for no fire in one run: a false stop by chance is then one in hundreds.
CAREFUL = CONFIG.model_copy(update={"alpha": 0.005, "bootstrap_runs": 1000})

evaluations = st.lists(
    st.tuples(
        st.floats(0.0, 1.2),
        st.integers(0, 2**32 - 1),
        st.none() | st.floats(-2.0, 2.0, allow_subnormal=False),
    ),
    min_size=1,
    max_size=25,
)


def fresh(name: str = "calibrated") -> CalibratedDetector:
    return CalibratedDetector.from_state(FRESH[name])


def outcomes_of(scale: float, seed: int) -> np.ndarray:
    return draw(np.random.default_rng(seed), np.clip(MEANS * scale, 0.0, 1.0))


def feed(detector, history):
    return [detector.update(t, outcomes_of(s, seed), y) for t, (s, seed, y) in enumerate(history)]


@settings(max_examples=25, deadline=None)
@given(history=evaluations)
def test_a_fire_latches(history):
    fires = [status.fire for status in feed(fresh(), history)]
    assert fires == sorted(fires)


@settings(max_examples=25, deadline=None)
@given(history=evaluations)
def test_replay_gives_the_live_verdicts_from_any_restart(history):
    live = feed(fresh(), history)
    restarted = fresh()
    for t, (scale, seed, reward) in enumerate(history):
        state = json.loads(json.dumps(restarted.to_state(), allow_nan=False))
        restarted = CalibratedDetector.from_state(state)
        assert restarted.to_state() == state
        assert restarted.update(t, outcomes_of(scale, seed), reward) == live[t]


@pytest.mark.nightly
@settings(max_examples=15, deadline=None)
@given(history=evaluations, order=st.permutations(range(N)))
def test_permuting_the_items_changes_nothing(history, order):
    order = np.array(order)
    passes = np.stack([p.items for p in BASELINE.passes])
    here, there = (
        CalibratedDetector(CONFIG, Baseline.from_passes(rows)) for rows in (passes, passes[:, order])
    )
    for t, (scale, seed, reward) in enumerate(history):
        items = outcomes_of(scale, seed)
        assert here.update(t, items, reward) == there.update(t, items[order], reward)


@settings(max_examples=25, deadline=None)
@given(history=evaluations, offset=st.floats(-100.0, 100.0))
def test_an_offset_of_the_proxy_changes_nothing(history, offset):
    """Only differences of the proxy are used; they are exact up to the rounding of reward + offset itself."""
    # Rewards of a few bits keep reward + offset exact, so that equality can be asked for to the last bit.
    offset = round(offset)
    exact = [(s, seed, None if y is None else round(y * 1024) / 1024) for s, seed, y in history]
    moved = [(s, seed, None if y is None else y + offset) for s, seed, y in exact]
    assert feed(fresh(), exact) == feed(fresh(), moved)


def test_batch_and_live_detectors_fire_together():
    """The simulations behind docs/detection.md run the formulas of the live detector."""
    config = CONFIG.model_copy(update={"max_decline": 0.02})
    rng = np.random.default_rng(12)
    bases = [baseline(difficulties(N, seed), passes=3 + 2 * seed, seed=seed) for seed in range(3)]
    references = [Reference.of(b, config.alpha) for b in bases]
    live = [[CalibratedDetector(config, b, (part,)) for b in bases] for part in ("fast", "guaranteed")]
    levels = [thresholds(b.strata, config, config.alpha) for b in bases]
    grouping = Grouping([b.strata for b in bases], 1)
    fast = FastBatch(config, [b.strata for b in bases], levels, 1)
    guaranteed = GuaranteedBatch(config, references, config.alpha, 1)
    fired = moved = 0
    for t in range(40):
        means = np.stack([difficulties(N, seed) for seed in range(3)]) * (0.6 if t > 15 else 1.0)
        outcomes = rng.random((3, N)) < means * (0.9 if t % 2 else 1.0)
        sums = grouping.sums(outcomes[:, None, :])
        fast.update(sums.sum(axis=-1) / N)
        guaranteed.update(sums, fast.dispersion)
        moved += int((fast.dispersion > 1).any())
        for detectors, batch in zip(live, (fast, guaranteed), strict=True):
            statuses = [d.update(t, row.astype(float)) for d, row in zip(detectors, outcomes, strict=True)]
            assert [s.fire for s in statuses] == batch.fired[:, 0].tolist()
            fired += sum(s.fire for s in statuses)
    assert fired > 20 and moved > 10


# -- each part ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["guaranteed", "fast", "gap"])
def test_a_drop_below_the_baseline_is_found_and_named(part):
    means = difficulties(128)
    detector = CalibratedDetector(CONFIG, baseline(means), (part,))
    codes = {"guaranteed": Code.GUARANTEED_DECLINE, "fast": Code.FAST_DECLINE, "gap": Code.CALIBRATED_GAP}
    for t, items in enumerate(run(means, drop_at=15, drop=0.3, length=40)):
        status = detector.update(t, items, 0.5 + (t % 2) * 0.002 + 0.01 * max(0, t - 10))
        assert not (status.fire and t < 15)
    assert status.fire
    assert status.rule == codes[part]
    assert status.level is Level.FIRED


@pytest.mark.parametrize("part", ["fast", "peak"])
def test_a_decline_from_a_plateau_above_the_baseline_is_found(part):
    means = difficulties(256)
    detector = CalibratedDetector(CONFIG, baseline(means * 0.7), (part,))
    rng = np.random.default_rng(3)
    for t in range(60):
        share = min(0.7 + t / 30, 1.0) if t < 40 else 0.75
        status = detector.update(t, draw(rng, means * share))
        assert not (status.fire and t < 40)
    assert status.fire


@pytest.mark.nightly
@pytest.mark.parametrize("means", [np.full(128, 0.5), difficulties(128)], ids=["alike", "mixed"])
def test_one_baseline_pass_does_not_make_false_stops(means):
    """It does not say how much the items differ. 500 runs, alpha 0.05, which is an average over baselines."""
    strata = [baseline(means, passes=1, seed=seed).strata for seed in range(20)]
    levels = [thresholds(one, CONFIG, CONFIG.alpha) for one in strata]
    batch = FastBatch(CONFIG, strata, levels, 25)
    rng = np.random.default_rng(6)
    for _ in range(CONFIG.horizon):
        batch.update((rng.random((20, 25, 128)) < means).mean(axis=-1))
    assert batch.fired.mean() < 0.1


def test_items_that_trade_places_do_not_fire():
    """Half of the items get worse, the other half better: the mean is flat."""
    rng = np.random.default_rng(7)
    n = 128
    means = np.full(n, 0.5)
    detector = CalibratedDetector(CONFIG, baseline(means))
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


def test_the_gap_warns_before_it_knows_and_fires_once_the_heldout_provably_did_not_gain():
    rng = np.random.default_rng(9)
    means = difficulties(512)
    detector = CalibratedDetector(CONFIG, baseline(means), ("gap",))
    levels = []
    for t in range(60):
        reward = 0.4 + 0.3 * min(t / 40, 1) + 0.01 * rng.standard_normal()
        levels.append(detector.update(t, draw(rng, means), reward).level)
    assert levels[0] is Level.UNKNOWN
    assert Level.WARNING in levels
    assert levels[-1] is Level.FIRED


def test_the_gap_is_silent_without_a_proxy():
    detector = fresh("gap")
    status = detector.update(0, outcomes_of(1.0, 1))
    assert status.level is Level.UNKNOWN and status.readings[0].statistic is None


# -- the baseline --------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("passes", [1, 2, 4, 16])
@pytest.mark.parametrize("samples", [1, 4])
def test_any_number_of_passes_works(passes, samples):
    means = difficulties(128)
    config = CAREFUL.model_copy(update={"samples": samples})
    detector = CalibratedDetector(config, baseline(means, passes, samples))
    rng = np.random.default_rng(20 + passes)
    fires = [detector.update(t, draw(rng, means * (1 if t < 20 else 0.4), samples)).fire for t in range(45)]
    assert not fires[19] and fires[-1]


@pytest.mark.nightly
def test_fewer_passes_cost_delay():
    means = difficulties(128)
    delays = []
    for passes in (2, 8, 64):
        strata = [baseline(means, passes, seed=seed).strata for seed in range(4)]
        levels = [thresholds(one, CAREFUL, 0.05) for one in strata]
        batch, waited = FastBatch(CONFIG, strata, levels, 50), 0
        rng = np.random.default_rng(6)
        for _ in range(CONFIG.horizon):
            batch.update(rng.binomial(128, means.mean() - 0.09, size=(4, 50)) / 128)
            waited += int((~batch.fired).sum())
        delays.append(waited)
    assert delays[0] > 1.5 * delays[1] and delays[1] > 1.2 * delays[2], delays


@pytest.mark.parametrize(("horizon", "alpha"), [(1, 0.05), (10, 0.05), (30, 0.05), (60, 0.001)])
def test_without_enough_simulated_runs_the_thresholds_are_those_of_the_theorem(horizon, alpha):
    config = CONFIG.model_copy(update={"horizon": horizon})
    found = thresholds(BASELINE.strata, config, alpha)
    assert all(np.isfinite(found)) and max(found) <= np.log(1 / alpha)
    if horizon == 1 or alpha == 0.001:
        assert found == (np.log(1 / alpha),) * 2


def false_stops(rises: float, accepted: float = 0.0, falls: float = 0.0) -> float:
    """Share of 800 runs that `fast` stops, 4 for each of 200 baselines of 64 even items.

    They rise at once and stay there, but fall for ten evaluations after a third of the horizon.
    """
    level, runs = 0.5, 4
    rng = np.random.default_rng(21)
    passes = rng.random((200, 8, 64)) < level
    strata = [Baseline.from_passes(one.astype(float)).strata for one in passes]
    config = CONFIG.model_copy(update={"bootstrap_runs": 1000, "max_decline": accepted})
    levels = thresholds(strata[0], config, 0.1), thresholds(strata[1], config, 0.1)
    batch = FastBatch(config, strata, [levels[b % 2] for b in range(200)], runs)
    for t in range(config.horizon):
        now = level + rises - (falls if 0 <= t - config.horizon // 3 < DIP else 0.0)
        batch.update(rng.binomial(64, now, size=(200, runs)) / 64)
    return float(batch.fired.mean())


@pytest.mark.nightly
def test_fast_keeps_its_rate_at_the_baseline_and_at_every_level_above():
    """800 runs, alpha 0.1: the standard error is 0.015, with the 200 baselines as clusters at most."""
    at_baseline, *above = [false_stops(rise) for rise in (0.0, 0.03, 0.06, 0.2)]
    assert 0.055 < at_baseline < 0.145
    assert max(above) < 0.145 and above[-1] > 0.02


@pytest.mark.nightly
@pytest.mark.parametrize("rises", [0.0, 0.2], ids=["start", "plateau"])
def test_a_decline_that_is_accepted_and_recovers_keeps_the_rate(rises):
    """It is what the thresholds are for: what is not accepted is stopped more often."""
    rates = [false_stops(rises, accepted, 0.06) for accepted in (0.06, 0.0)]
    assert rates[0] < 0.145 and rates[1] > 2 * rates[0], rates


def test_greedy_passes_count_as_one():
    rows = [[1.0, 0.0, 1.0, 1.0]] * 5
    assert Baseline.from_passes(rows).precision == 1
    assert Baseline.from_passes([*rows, [1.0, 1.0, 1.0, 1.0]]).precision == 6


def test_greedy_evaluations_never_fire_above_the_baseline_score():
    """Deterministic outcomes: the guarantee reads `never while the score on these items stays`."""
    rng = np.random.default_rng(10)
    start = np.repeat([1.0, 0.0], 64)
    detector = CalibratedDetector(CONFIG, Baseline.from_passes([start] * 8), ("guaranteed",))
    for t in range(60):
        assert not detector.update(t, rng.permutation(start)).fire


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
    before = detector.to_state()
    with pytest.raises(ValueError, match=message):
        detector.update(0, items)
    assert detector.to_state() == before


@pytest.mark.parametrize("value", [{"in_loop_reward": float("inf")}, {"kl": float("nan")}])
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


def test_many_levels_round_trip_and_are_merged_into_few_groups():
    rng = np.random.default_rng(11)
    items = rng.random(300)
    packed = Outcomes.of(items)
    assert (Outcomes.from_state(json.loads(json.dumps(packed.to_state()))).items == items).all()
    strata = Baseline.from_passes([items, rng.random(300)]).strata
    assert strata.count <= 32
    again = Strata.from_state(json.loads(json.dumps(strata.to_state())))
    assert (again.centres == strata.centres).all() and again.prior == strata.prior


def test_the_state_of_a_large_split_stays_small():
    means = difficulties(1024)
    detector = CalibratedDetector(CONFIG, baseline(means))
    for t, items in enumerate(run(means, 100, 0.0, 50)):
        detector.update(t, items, 0.5 + 0.01 * (t % 3))
    assert len(json.dumps(detector.to_state())) <= 56 * 1024


# -- what holds alpha ---------------------------------------------------------------------------------------


def null_rate(means: np.ndarray, passes: int, max_decline: float, alpha: float = 0.05) -> float:
    """Share of 400 runs in which nothing changes that `fast` stops, 10 for each of 40 baselines."""
    config = CONFIG.model_copy(update={"bootstrap_runs": 300, "max_decline": max_decline})
    strata = [baseline(means, passes, seed=seed).strata for seed in range(40)]
    batch = FastBatch(config, strata, [thresholds(one, config, alpha) for one in strata], 10)
    rng = np.random.default_rng(31)
    for _ in range(config.horizon):
        batch.update((rng.random((40, 10, len(means))) < means).mean(axis=-1))
    return float(batch.fired.mean())


@pytest.mark.nightly
@pytest.mark.parametrize("score", [0.0, 0.002, 0.02, 0.998])
@pytest.mark.parametrize("passes", [1, 16])
def test_a_start_near_0_or_1_makes_no_false_stops(score, passes):
    """Without any accepted decline. A level that was lifted to 0.005 stopped 65 to 100 % of these runs."""
    assert null_rate(np.full(512, score), passes, max_decline=0.0) < 0.15


@pytest.mark.nightly
@pytest.mark.parametrize("passes", [1, 2, 4, 16])
def test_any_number_of_passes_holds_the_rate_of_alike_items(passes):
    """Two passes of alike items show a spread that is noise, and the noise of an evaluation seems less."""
    assert null_rate(np.full(128, 0.5), passes, max_decline=0.0) < 0.12
    assert null_rate(np.full(128, 0.5), passes, max_decline=0.03) < 0.05


def test_a_spread_that_is_noise_does_not_make_items_differ():
    """One standard error is taken off it: of 200 pairs of passes of alike items few say that they differ."""
    differ = [baseline(np.full(128, 0.5), 2, seed=seed).strata.prior for seed in range(200)]
    assert np.mean([sum(prior) < CONCENTRATION[1] for prior in differ]) < 0.3
    mixed = [baseline(difficulties(128), 2, seed=seed).strata.prior for seed in range(20)]
    assert all(sum(prior) < 20 for prior in mixed)


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


@pytest.mark.nightly
def test_about_half_of_the_runs_are_stopped_after_the_evaluations_that_are_needed():
    config = CalibratedPolicy(bootstrap_runs=400)
    needed = evaluations_to_detect(0.5, 128, 16, 0.1, config)
    strata = [baseline(np.full(128, 0.5), seed=seed).strata for seed in range(10)]
    levels = [thresholds(one, config, split_alpha(config, PARTS)["fast"]) for one in strata]
    batch = FastBatch(config, strata, levels, 40)
    rng = np.random.default_rng(32)
    for _ in range(needed + 1):  # the last one confirms
        batch.update(rng.binomial(128, 0.4, size=(10, 40)) / 128)
    assert 0.25 < batch.fired.mean() < 0.75


# -- alpha and names -----------------------------------------------------------------------------------------


def test_alpha_is_split_and_never_exceeded():
    config = CalibratedPolicy(alpha=0.04)
    assert split_alpha(config, PARTS) == pytest.approx(
        {"guaranteed": 0.004, "fast": 0.04 * 67 / 90, "peak": 0.002 * 10 / 9, "gap": 0.004}
    )
    assert split_alpha(config, ("fast",)) == {"fast": 0.04}
    assert Policy().calibrated_share().alpha == Policy().calibrated.alpha / 2
    with pytest.raises(ValueError, match="got \\['slow'\\]"):
        split_alpha(config, ("slow",))
    with pytest.raises(ValueError, match="must not exceed 1"):
        CalibratedPolicy.model_validate({"alpha_shares": {"guaranteed": 0.9}})


@pytest.mark.parametrize("name", DETECTORS)
def test_every_name_builds_and_a_collapse_fires_it(name):
    means = difficulties(256)
    policy = Policy.model_validate(
        {
            "heldout_guard": {"min_steps": 5, "ema_alpha": 0.5, "decline_patience": 9},
            "calibrated": {"bootstrap_runs": 200, "horizon": 60},
        }
    )
    detector = build_detector(name, policy, baseline(means))
    for t, items in enumerate(run(means, drop_at=25, drop=0.8, length=45)):
        status = detector.update(t, items, 0.5 + 0.002 * (t % 2) + 0.002 * t, None)
        assert not (status.fire and t < 25)
    assert status.fire and status.rule is not None and Code(status.rule)


def test_unknown_names_and_a_missing_baseline_are_refused():
    with pytest.raises(ValueError, match="no detector 'slow'"):
        build_detector("slow", Policy(), BASELINE)
    with pytest.raises(ValueError, match="needs passes"):
        build_detector("fast", Policy(), None)
    build_detector("heldout_guard", Policy(), None)


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version 99"):
        CalibratedDetector.from_state({**FRESH["calibrated"], "version": 99})


def test_a_kl_does_not_fire_in_a_replay_of_both_for_it_does_not_in_the_judge() -> None:
    rng = np.random.default_rng(5)
    passes = [(rng.random(64) < 0.5).astype(float) for _ in range(4)]
    both = build_detector("both", Policy(), Baseline.from_passes(np.array(passes)))
    for step in range(1, 31):
        status = both.update(step, (rng.random(64) < 0.5).astype(float), 0.5, kl=5.0)
        assert status.rule != "kl_hard_stop"
