"""StepMonitor: a drift of the KL fires at once, a spike of the k3 estimator does not."""

from __future__ import annotations

import math

import pytest

from guard_core.steps import StepMonitor


def test_a_true_drift_fires_when_most_of_the_window_has_drifted() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    kls = [0.0] * 5 + [0.2] * 3
    assert [monitor.update(step, kl).fire for step, kl in enumerate(kls)] == [False] * 7 + [True]


@pytest.mark.parametrize("min_steps", [0, 5, 20, 33])
def test_nothing_fires_before_min_steps(min_steps: int) -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=min_steps)
    fires = [monitor.update(step, 0.0 if step == 0 else 1.0).fire for step in range(40)]
    assert fires.index(True) == max(min_steps, 5) - 1


def test_a_kl_that_starts_away_from_0_is_measured_from_there() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    assert not any(monitor.update(step, 0.4 + 0.01 * (step % 3)).fire for step in range(50))
    assert 0.4 <= monitor.start <= 0.42
    fired = [monitor.update(step, 0.55) for step in range(50, 55)][-1]
    assert fired.fire and "over its start at 0.4" in fired.reason


def test_one_small_kl_among_the_first_five_says_that_it_started_near_0() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    for step, kl in enumerate([0.001, 0.2, 0.3, 0.4, 0.5]):
        status = monitor.update(step, kl)
    assert monitor.start == 0.0 and status.fire


def test_without_a_limit_it_only_measures() -> None:
    monitor = StepMonitor(kl_hard_stop=None)
    assert not any(monitor.update(step, float(step)).fire for step in range(100))
    assert monitor.rise is not None and monitor.rise > 1.0


def test_two_spikes_of_22000_nats_in_five_steps_do_not_fire() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, min_steps=0)
    for step in range(50):
        kl = 22_000.0 if step % 5 in (0, 1) else 0.01
        assert not monitor.update(step, kl).fire


def test_a_drift_that_lasts_three_of_five_steps_is_no_spike() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    for step, kl in enumerate([0.0, 0.0, 1.0, 1.0]):
        assert not monitor.update(step, kl).fire
    assert monitor.update(4, 1.0).fire


def test_the_ema_smooths_the_medians() -> None:
    monitor = StepMonitor(kl_hard_stop=10.0, ema_alpha=0.5)
    for step in range(5):
        monitor.update(step, 1.0)
    assert monitor.kl_ema == 1.0
    for step in range(5, 8):
        monitor.update(step, 3.0)
    assert monitor.kl_ema == 2.0


def test_the_threshold_itself_does_not_fire() -> None:
    monitor = StepMonitor(kl_hard_stop=0.25, ema_alpha=0.0, min_steps=0)
    assert not any(monitor.update(step, 0.25 if step else 0.0).fire for step in range(10))


def test_it_latches_with_the_first_reason() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    first = [monitor.update(step, 1.0 if step else 0.0) for step in range(5)][-1]
    assert "hard stop" in first.reason
    assert "step 4" in first.reason
    later = [monitor.update(step, 0.0) for step in range(5, 20)][-1]
    assert later.fire
    assert later.reason == f"latched: {first.reason}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_a_bad_kl_is_refused_and_nothing_is_folded(bad: float) -> None:
    monitor = StepMonitor()
    monitor.update(0, 0.01)
    before = monitor.memory
    with pytest.raises(ValueError, match="kl"):
        monitor.update(1, bad)
    assert monitor.memory == before


@pytest.mark.parametrize(
    ("field", "value"), [("kl_hard_stop", 0.0), ("ema_alpha", 1.0), ("kl_hard_stop", math.nan)]
)
def test_a_bad_field_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        StepMonitor(**{field: value})
