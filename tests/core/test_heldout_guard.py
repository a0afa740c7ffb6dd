"""The rules of HeldOutGuard, each as a case a reader can check by hand.

`ema_alpha=0` makes every EMA the latest value, so most cases need no arithmetic.
"""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest

from guard_core import CollapseStopError, HeldOutGuard, TripwireStatus, kl_token_trust_filter


def sharp(**overrides: float) -> HeldOutGuard:
    """A guard without memory and without a warm-up, its rules out of reach unless overridden."""
    config = {
        "kl_hard_stop": 1e9,
        "max_proxy_real_gap": 1e9,
        "min_steps": 1,
        "ema_alpha": 0.0,
        "rise_eps": 0.01,
    }
    return HeldOutGuard(**{**config, **overrides})  # type: ignore[arg-type]


def feed(guard: HeldOutGuard, rounds: list[tuple[float, ...]]) -> list[TripwireStatus]:
    return [guard.update(i, *values) for i, values in enumerate(rounds)]


def test_defaults_are_the_documented_ones() -> None:
    guard = HeldOutGuard()
    assert (guard.kl_hard_stop, guard.max_proxy_real_gap, guard.min_steps) == (0.08, 0.10, 20)
    assert (guard.decline_patience, guard.ema_alpha, guard.rise_eps) == (3, 0.9, 1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ema_alpha", 1.0),
        ("ema_alpha", -0.01),
        ("kl_hard_stop", 0.0),
        ("kl_hard_stop", -1.0),
        ("decline_patience", 0),
        *[
            (field, bad)
            for field in (
                "kl_hard_stop",
                "max_proxy_real_gap",
                "min_steps",
                "decline_patience",
                "ema_alpha",
                "rise_eps",
            )
            for bad in (math.nan, math.inf)
        ],
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        HeldOutGuard(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("ema_alpha", 0.0), ("decline_patience", 1), ("min_steps", 0)])
def test_the_edge_of_a_range_is_allowed(field: str, value: float) -> None:
    assert getattr(HeldOutGuard(**{field: value}), field) == value  # type: ignore[arg-type]


class TestEma:
    def test_alpha_weighs_the_prior_and_the_first_sample_seeds(self) -> None:
        guard = HeldOutGuard(ema_alpha=0.75)
        assert guard._fold(None, 8.0) == 8.0
        assert guard._fold(8.0, 4.0) == 7.0

    def test_all_series_are_folded_and_absent_ones_are_left_alone(self) -> None:
        guard = sharp(ema_alpha=0.5)
        guard.update(0, 1.0, 2.0, 4.0, entropy=8.0, reward_std=16.0)
        status = guard.update(1, 3.0, 4.0)
        assert (status.in_loop_ema, status.heldout_ema, status.kl_ema) == (2.0, 3.0, 4.0)
        state = guard.to_state()
        assert (state["entropy_ema"], state["reward_std_ema"]) == (8.0, 16.0)
        guard.update(2, 3.0, 4.0, 2.0, entropy=4.0, reward_std=8.0)
        state = guard.to_state()
        assert (state["kl_ema"], state["entropy_ema"], state["reward_std_ema"]) == (3.0, 6.0, 12.0)

    def test_kl_ema_is_none_until_a_kl_is_given(self) -> None:
        assert sharp().update(0, 0.0, 0.0).kl_ema is None

    def test_a_kl_that_starts_late_seeds_its_ema(self) -> None:
        guard = sharp(ema_alpha=0.9)
        guard.update(0, 0.0, 0.0)
        assert guard.update(1, 0.0, 0.0, 0.5).kl_ema == 0.5


class TestGap:
    def test_it_is_zero_before_the_first_update_and_at_it(self) -> None:
        guard = sharp()
        assert guard.proxy_real_gap() == 0.0
        assert guard.update(0, 5.0, 1.0).proxy_real_gap == 0.0

    def test_it_is_proxy_gain_minus_heldout_gain(self) -> None:
        guard = sharp()
        statuses = feed(guard, [(1.0, 0.5), (1.5, 0.75)])
        assert statuses[-1].proxy_real_gap == guard.proxy_real_gap() == 0.25

    def test_baselines_are_the_emas_of_the_first_update(self) -> None:
        guard = sharp(ema_alpha=0.5)
        feed(guard, [(0.0, 0.0), (1.0, 0.0), (1.0, 0.0)])
        assert guard.proxy_real_gap() == 0.75


class TestWarmUp:
    def test_min_steps_counts_calls_not_round_idx(self) -> None:
        guard = sharp(min_steps=3, max_proxy_real_gap=0.1)
        fires = [guard.update(1000 + i, float(i), 0.0).fire for i in range(3)]
        assert fires == [False, False, True]

    def test_emas_and_streak_build_up_during_the_warm_up(self) -> None:
        guard = sharp(min_steps=4, decline_patience=3)
        statuses = feed(guard, [(0.0, 1.0), (0.1, 0.9), (0.2, 0.8), (0.3, 0.7)])
        assert [s.fire for s in statuses] == [False, False, False, True]
        assert "consecutive" in statuses[-1].reason


class TestKlHardStop:
    def test_strictly_above_fires(self) -> None:
        guard = sharp(kl_hard_stop=0.5)
        assert not guard.update(0, 0.0, 0.0, 0.5).fire
        status = guard.update(1, 0.0, 0.0, 0.6)
        assert status.fire
        assert "kl_to_init" in status.reason
        assert "hard stop" in status.reason
        assert guard.fired_rule == "kl_hard_stop"

    def test_it_is_the_ema_that_is_judged(self) -> None:
        guard = sharp(kl_hard_stop=0.5, ema_alpha=0.9)
        guard.update(0, 0.0, 0.0, 0.0)
        assert not guard.update(1, 0.0, 0.0, 4.0).fire
        assert guard.update(2, 0.0, 0.0, 4.0).fire

    def test_it_comes_before_the_other_rules(self) -> None:
        guard = sharp(kl_hard_stop=0.5, max_proxy_real_gap=0.1, decline_patience=1)
        guard.update(0, 0.0, 1.0, 0.0)
        assert "hard stop" in guard.update(1, 1.0, 0.0, 1.0).reason


class TestDecline:
    def test_patience_counts_consecutive_declines_under_a_rise(self) -> None:
        guard = sharp(decline_patience=2)
        statuses = feed(guard, [(0.0, 1.0), (0.1, 0.9), (0.2, 0.8)])
        assert [s.fire for s in statuses] == [False, False, True]
        assert "held-out" in statuses[-1].reason
        assert "consecutive" in statuses[-1].reason
        assert "Hacking Gap" in statuses[-1].reason
        assert guard.fired_rule == "heldout_decline"

    @pytest.mark.parametrize("heldout", [0.9, 0.895, 0.95], ids=["flat", "fall-within-eps", "rise"])
    def test_a_round_without_a_decline_resets(self, heldout: float) -> None:
        guard = sharp(decline_patience=2)
        statuses = feed(guard, [(0.0, 1.0), (0.1, 0.9), (0.2, heldout), (0.3, heldout - 0.1)])
        assert not any(s.fire for s in statuses)

    @pytest.mark.parametrize("in_loop", [0.1, 0.105, 0.0], ids=["flat", "rise-within-eps", "fall"])
    def test_a_decline_without_a_rise_leaves_the_streak(self, in_loop: float) -> None:
        guard = sharp(decline_patience=2)
        statuses = feed(guard, [(0.0, 1.0), (0.1, 0.9), (in_loop, 0.8), (in_loop + 0.1, 0.7)])
        assert [s.fire for s in statuses] == [False, False, False, True]

    def test_rise_eps_is_exclusive(self) -> None:
        guard = sharp(decline_patience=1, rise_eps=0.25)
        assert not any(s.fire for s in feed(guard, [(0.0, 1.0), (0.25, 0.5), (1.0, 0.25)]))

    def test_it_comes_before_the_gap(self) -> None:
        guard = sharp(decline_patience=1, max_proxy_real_gap=0.1)
        assert "consecutive" in feed(guard, [(0.0, 1.0), (0.5, 0.5)])[-1].reason


class TestHackingGap:
    def test_it_fires_even_while_heldout_still_rises(self) -> None:
        guard = sharp(max_proxy_real_gap=0.1)
        status = feed(guard, [(0.0, 0.0), (0.5, 0.25)])[-1]
        assert status.fire
        assert status.reason.startswith("Hacking Gap")
        assert guard.fired_rule == "hacking_gap"

    def test_the_ceiling_itself_does_not_fire(self) -> None:
        assert not feed(sharp(max_proxy_real_gap=0.25), [(0.0, 0.0), (0.5, 0.25)])[-1].fire


class TestLatch:
    def test_a_fired_guard_fires_for_ever_and_says_why(self) -> None:
        guard = sharp(max_proxy_real_gap=0.1)
        first = feed(guard, [(0.0, 0.0), (1.0, 0.0)])[-1]
        for i in range(3):
            later = guard.update(10 + i, 0.0, 1.0)
            assert later.fire
            assert later.halt
            assert later.reason == f"latched: {first.reason}"
            assert later.step == 10 + i
        assert guard.fired_rule == "hacking_gap"

    def test_values_still_fold_after_the_fire(self) -> None:
        guard = sharp(max_proxy_real_gap=0.1)
        feed(guard, [(0.0, 0.0), (1.0, 0.0)])
        assert guard.update(2, 7.0, 3.0).in_loop_ema == 7.0


class TestQueries:
    def test_they_change_nothing(self) -> None:
        guard = sharp(max_proxy_real_gap=0.1)
        assert guard.last_status is None
        guard.raise_if_fired()
        status = guard.update(0, 0.0, 0.0)
        before = guard.to_state()
        assert not guard.fired and not guard.should_halt()
        assert guard.last_status is status
        guard.raise_if_fired()
        guard.proxy_real_gap()
        assert guard.to_state() == before

    def test_raise_if_fired_carries_the_status(self) -> None:
        guard = sharp(max_proxy_real_gap=0.1)
        status = feed(guard, [(0.0, 0.0), (1.0, 0.0)])[-1]
        with pytest.raises(CollapseStopError) as caught:
            guard.raise_if_fired()
        assert caught.value.status == status
        assert str(caught.value) == status.reason
        assert isinstance(caught.value, RuntimeError)
        assert guard.fired and guard.should_halt()

    def test_a_given_status_decides_instead_of_the_last(self) -> None:
        fired = TripwireStatus(True, "because", 3, 0.0, 0.0, 0.0)
        with pytest.raises(CollapseStopError, match="because"):
            HeldOutGuard().raise_if_fired(fired)

    def test_the_error_survives_a_process_boundary(self) -> None:
        error = CollapseStopError(TripwireStatus(True, "because", 3, 0.1, 0.2, 0.3, 0.4))
        assert pickle.loads(pickle.dumps(error)).status == error.status


@pytest.mark.parametrize("name", ["in_loop_reward", "heldout_score", "kl_to_init", "entropy", "reward_std"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_and_nothing_is_folded(name: str, bad: float) -> None:
    guard = sharp()
    guard.update(0, 0.0, 0.0)
    before = copy.deepcopy(guard.to_state())
    with pytest.raises(ValueError, match=name):
        guard.update(1, **{"in_loop_reward": 0.0, "heldout_score": 0.0, name: bad})
    assert guard.to_state() == before


class TestCalibration:
    @pytest.mark.parametrize(
        ("current", "kls", "factor", "expected"),
        [
            (0.08, [0.01, 0.03], 3.0, 0.06),
            (0.08, [1.0], 3.0, 0.08),
            (0.08, [0.0], 3.0, 1e-6),
            (1.0, [0.25, 0.75], 0.5, 0.25),
        ],
        ids=["tightens", "never-loosens", "floor", "factor"],
    )
    def test_threshold(self, current: float, kls: list[float], factor: float, expected: float) -> None:
        guard = HeldOutGuard(kl_hard_stop=current)
        assert guard.calibrate_kl_threshold(kls, factor) == pytest.approx(expected)
        assert guard.kl_hard_stop == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("kls", "factor", "message"),
        [
            ([], 3.0, "non-empty"),
            ([0.1], 0.0, "factor must be > 0"),
            ([0.1], -1.0, "factor must be > 0"),
            ([0.1, -0.1], 3.0, "non-negative"),
            ([math.nan], 3.0, "finite"),
            ([0.1], math.inf, "factor must be finite"),
        ],
    )
    def test_bad_arguments(self, kls: list[float], factor: float, message: str) -> None:
        guard = HeldOutGuard()
        with pytest.raises(ValueError, match=message):
            guard.calibrate_kl_threshold(kls, factor)
        assert guard.kl_hard_stop == 0.08


class TestState:
    def test_it_is_plain_json_and_versioned(self) -> None:
        guard = sharp()
        feed(guard, [(0.1, 0.2), (0.3, 0.4)])
        state = json.loads(json.dumps(guard.to_state()))
        assert state["version"] == 1
        again = HeldOutGuard.from_state(state)
        assert again == guard
        assert again.last_status == guard.last_status

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(ValueError, match="version 99"):
            HeldOutGuard.from_state({**HeldOutGuard().to_state(), "version": 99})

    def test_missing_and_unknown_keys_are_named(self) -> None:
        state = {**HeldOutGuard().to_state(), "surprise": 1}
        del state["streak"]
        with pytest.raises(ValueError, match=r"missing keys \['streak'\], unknown keys \['surprise'\]"):
            HeldOutGuard.from_state(state)


def test_the_trust_filter_masks_strictly_above() -> None:
    assert [kl_token_trust_filter(x) for x in (0.0, 0.08, 0.0801)] == [False, False, True]
    assert kl_token_trust_filter(0.3, threshold=0.5) is False


def test_the_trust_filter_is_elementwise() -> None:
    import numpy as np

    mask = kl_token_trust_filter(np.array([[0.0, 1.0], [0.08, 0.09]]))
    assert mask.tolist() == [[False, True], [False, True]]
