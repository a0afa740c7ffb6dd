"""HeldOutGuard beyond its contract (`tests/scenarios`): finite values, state, pickling."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest

from guard_core import CollapseStopError, HeldOutGuard, TripwireStatus

FIELDS = ["kl_hard_stop", "max_proxy_real_gap", "min_steps", "decline_patience", "ema_alpha", "rise_eps"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_field_that_is_not_finite_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        HeldOutGuard(**{field: value})  # type: ignore[arg-type]


def test_values_still_fold_after_a_fire_and_the_rule_stays_the_first() -> None:
    guard = HeldOutGuard(min_steps=1, ema_alpha=0.0, max_proxy_real_gap=0.1, kl_hard_stop=0.5)
    guard.update(0, 0.0, 0.0)
    guard.update(1, 1.0, 0.0)
    assert guard.update(2, 7.0, 3.0, 9.0).in_loop_ema == 7.0
    assert guard.fired and guard.fired_rule == "hacking_gap"


def test_entropy_and_the_spread_of_the_reward_are_kept_as_emas() -> None:
    guard = HeldOutGuard(ema_alpha=0.5)
    guard.update(0, 0.0, 0.0, entropy=8.0, reward_std=16.0)
    guard.update(1, 0.0, 0.0)
    guard.update(2, 0.0, 0.0, entropy=4.0, reward_std=8.0)
    state = guard.to_state()
    assert (state["entropy_ema"], state["reward_std_ema"]) == (6.0, 12.0)


def test_the_error_survives_a_process_boundary() -> None:
    error = CollapseStopError(TripwireStatus(True, "because", 3, 0.1, 0.2, 0.3, 0.4))
    assert pickle.loads(pickle.dumps(error)).status == error.status


@pytest.mark.parametrize(
    ("kls", "factor", "message"),
    [([math.nan], 3.0, "baseline_kls must be finite"), ([0.1], math.inf, "factor must be finite")],
)
def test_calibration_refuses_what_is_not_finite(kls: list[float], factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeldOutGuard().calibrate_kl_threshold(kls, factor)


@pytest.mark.parametrize("name", ["in_loop_reward", "heldout_score", "kl_to_init", "entropy", "reward_std"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_and_nothing_is_folded(name: str, bad: float) -> None:
    guard = HeldOutGuard()
    guard.update(0, 0.0, 0.0)
    before = copy.deepcopy(guard.to_state())
    with pytest.raises(ValueError, match=name):
        guard.update(1, **{"in_loop_reward": 0.0, "heldout_score": 0.0, name: bad})
    assert guard.to_state() == before


class TestState:
    def test_it_is_plain_json_and_versioned(self) -> None:
        guard = HeldOutGuard()
        guard.update(0, 0.1, 0.2)
        guard.update(1, 0.3, 0.4)
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
