"""StepMonitor: a drift of the KL fires at once, a spike of the k3 estimator does not."""

from __future__ import annotations

import pytest

from rlguard.core.steps import StepMonitor


def fired_at(monitor: StepMonitor, kls: list[float]) -> int | None:
    """The first step after which it is latched; the KLs are folded one by one."""
    for step, kl in enumerate(kls):
        if monitor.fold([(0, step, kl)]) is not None:
            return step
    return None


@pytest.mark.parametrize(
    ("min_steps", "kls", "step"),
    [
        (0, [0.0] * 5 + [0.2] * 3, 7),
        (0, [0.0, 0.0, 1.0, 1.0, 1.0], 4),
        (0, [0.001, 0.2, 0.3, 0.4, 0.5], 4),
        (20, [0.0, *[1.0] * 39], 19),
        (0, [22_000.0 if step % 5 in (0, 1) else 0.01 for step in range(50)], None),
        (0, [0.0, *[0.1] * 9], None),
        (0, [0.4, 0.41, 0.42] * 10, None),
    ],
    ids=[
        "a drift",
        "three of five",
        "one near 0",
        "not before min_steps",
        "spikes",
        "at the limit",
        "starts away",
    ],
)
def test_when_it_fires(min_steps: int, kls: list[float], step: int | None) -> None:
    assert fired_at(StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=min_steps), kls) == step
    whole = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=min_steps)
    latched = whole.fold([(0, n, kl) for n, kl in enumerate(kls)])
    assert (None if latched is None else latched[1]) == step, "at once as one by one"


def test_a_kl_that_starts_away_from_0_is_measured_from_there() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    assert fired_at(monitor, [0.4] * 50) is None and monitor.start == 0.4
    assert fired_at(monitor, [0.55] * 5) == 2
    assert "over its start at 0.4" in (monitor.fired_reason or "")


def test_the_ema_smooths_the_medians_and_without_a_limit_it_only_measures() -> None:
    monitor = StepMonitor(kl_hard_stop=None, ema_alpha=0.5, min_steps=0)
    assert fired_at(monitor, [0.0] * 5 + [2.0] * 3) is None
    assert monitor.kl_ema == monitor.rise == 1.0


def test_it_latches_with_the_first_reason() -> None:
    monitor = StepMonitor(kl_hard_stop=0.1, ema_alpha=0.0, min_steps=0)
    assert fired_at(monitor, [0.0, *[1.0] * 4]) == 4
    reason = monitor.fired_reason
    assert reason is not None and "hard stop" in reason and "step 4" in reason
    assert fired_at(monitor, [0.0] * 15) == 0 and monitor.fired_reason == reason
