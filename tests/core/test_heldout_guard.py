"""HeldOutGuard beyond its contract (`tests/scenarios`): finite values, state, pickling."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest

from rlguard.core import CollapseStopError, HeldOutGuard, TripwireStatus

FIELDS = ["kl_hard_stop", "max_proxy_real_gap", "min_steps", "decline_patience", "ema_alpha", "rise_eps"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_not_finite_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        HeldOutGuard(**{field: math.nan})  # type: ignore[arg-type]


def test_values_still_fold_after_a_fire_and_the_rule_stays_the_first() -> None:
    guard = HeldOutGuard(min_steps=1, ema_alpha=0.0, max_proxy_real_gap=0.1, kl_hard_stop=0.5)
    guard.update(0, 0.0, 0.0)
    guard.update(1, 1.0, 0.0)
    assert guard.update(2, 7.0, 3.0, 9.0).in_loop_ema == 7.0
    assert guard.fired and guard.fired_rule == "hacking_gap"


def test_the_error_survives_a_process_boundary() -> None:
    error = CollapseStopError(TripwireStatus(True, "because", 3, 0.1, 0.2, 0.3, 0.4))
    assert pickle.loads(pickle.dumps(error)).status == error.status


@pytest.mark.parametrize(("kls", "factor"), [([math.nan], 3.0), ([0.1], math.inf)])
def test_calibration_refuses_what_is_not_finite(kls: list[float], factor: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        HeldOutGuard().calibrate_kl_threshold(kls, factor)


@pytest.mark.parametrize("name", ["in_loop_reward", "heldout_score", "kl_to_init", "entropy", "reward_std"])
def test_a_value_that_is_not_finite_is_refused_and_nothing_is_folded(name: str) -> None:
    guard = HeldOutGuard()
    guard.update(0, 0.0, 0.0)
    before = copy.deepcopy(guard.to_state())
    with pytest.raises(ValueError, match=name):
        guard.update(1, **{"in_loop_reward": 0.0, "heldout_score": 0.0, name: math.inf})
    assert guard.to_state() == before


def test_its_state_is_plain_json_and_other_keys_are_named() -> None:
    guard = HeldOutGuard(ema_alpha=0.5)
    guard.update(0, 0.1, 0.2, entropy=8.0, reward_std=16.0)
    guard.update(1, 0.3, 0.4, entropy=4.0, reward_std=8.0)
    state = json.loads(json.dumps(guard.to_state()))
    assert (state["entropy_ema"], state["reward_std_ema"]) == (6.0, 12.0)
    again = HeldOutGuard.from_state(state)
    assert again == guard and again.last_status == guard.last_status
    del state["streak"]
    with pytest.raises(ValueError, match=r"\['streak', 'surprise'\]"):
        HeldOutGuard.from_state(state | {"surprise": 1})
