"""StepMonitor: a drift of the KL fires at once, a spike of the k3 estimator does not."""

from __future__ import annotations

import json
import math

import pytest

from guard_core import StepMonitor


def test_a_true_drift_fires_when_the_window_is_full() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1)
    assert [monitor.update(step, 0.2).fire for step in range(6)] == [False] * 4 + [True, True]


def test_two_spikes_of_22000_nats_in_five_steps_do_not_fire() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1)
    for step in range(50):
        kl = 22_000.0 if step % 5 in (0, 1) else 0.01
        assert not monitor.update(step, kl).fire


def test_a_drift_that_lasts_three_of_five_steps_is_no_spike() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0)
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
    monitor = StepMonitor(kl_hard_stop=0.25, ema_alpha=0.0)
    assert not any(monitor.update(step, 0.25).fire for step in range(10))


def test_it_latches_with_the_first_reason() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0)
    first = [monitor.update(step, 1.0) for step in range(5)][-1]
    assert "hard stop" in first.reason
    assert "step 4" in first.reason
    later = [monitor.update(step, 0.0) for step in range(5, 20)][-1]
    assert later.fire
    assert later.reason == f"latched: {first.reason}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_a_bad_kl_is_refused_and_nothing_is_folded(bad: float) -> None:
    monitor = StepMonitor()
    monitor.update(0, 0.01)
    before = monitor.to_state()
    with pytest.raises(ValueError, match="kl"):
        monitor.update(1, bad)
    assert monitor.to_state() == before


@pytest.mark.parametrize(
    ("field", "value"), [("kl_hard_stop", 0.0), ("ema_alpha", 1.0), ("kl_hard_stop", math.nan)]
)
def test_a_bad_field_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        StepMonitor(**{field: value})


def test_another_version_of_the_state_is_refused() -> None:
    with pytest.raises(ValueError, match="version"):
        StepMonitor.from_state({**StepMonitor().to_state(), "version": 0})


def test_the_state_is_plain_json() -> None:
    monitor = StepMonitor()
    for step in range(7):
        monitor.update(step, 0.01 * step)
    again = StepMonitor.from_state(json.loads(json.dumps(monitor.to_state())))
    assert again == monitor
