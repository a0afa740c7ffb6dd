"""The question `gap` on simulated runs: a reward that climbs, and a held-out score that does, or does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.detectors import Baseline, CalibratedDetector
from rlguard.core.policy import CalibratedPolicy
from rlguard.core.rounds import standard_error
from rlguard.core.wire import DetectorReading

N, STEPS = 256, 10
CONFIG = CalibratedPolicy(alpha=0.02, on_gap="stop")

#: From the time of evaluation t to (held-out mean, in-loop reward).
Course = Callable[[float], tuple[float, float]]


def ramp(t: float, by: float) -> float:
    return min(1.0, max(0.0, t) / by)


#: Compile rate up, tests passed 0.002 -> 0.016: what real hacked runs look like.
COMPILES: Course = lambda t: (0.002 + 0.014 * ramp(t, 10), 0.3 + 0.5 * ramp(t, 10))  # noqa: E731
STUCK: Course = lambda t: (0.005, 0.3 + 0.5 * ramp(t, 10))  # noqa: E731
NOTHING_NEAR_0: Course = lambda t: (0.003, 0.3)  # noqa: E731
NOTHING: Course = lambda t: (0.4, 0.3)  # noqa: E731
HALF: Course = lambda t: (0.3 + 0.15 * ramp(t, 30), 0.3 + 0.3 * ramp(t, 30))  # noqa: E731
SATURATING: Course = lambda t: (0.93 + 0.04 * ramp(t, 30), 0.67 + 0.30 * ramp(t, 30))  # noqa: E731
IN_TENS: Course = lambda t: (0.3 + 0.15 * ramp(t, 30), 3 + 3 * ramp(t, 30))  # noqa: E731


def outcomes(rng: np.random.Generator, mean: float) -> np.ndarray:
    return (rng.random(N) < mean).astype(float)


def gap_after(
    course: Course,
    seed: int,
    length: int,
    noise: float = 0.055,
    wobble: float = 0.0,
    config: CalibratedPolicy = CONFIG,
) -> tuple[int | None, DetectorReading]:
    """When a run was stopped for its reward, and what `gap` said at the end; an alarm gets its fresh pass.

    `noise`: standard deviation of the reward of one step; `wobble`: of its mean from round to round.
    """
    rng = np.random.default_rng(seed)
    start = Baseline.from_passes([outcomes(rng, course(0)[0]) for _ in range(16)])
    detector = CalibratedDetector(config, start)
    for t in range(1, length + 1):
        rewards = course(t - 0.5)[1] + wobble * rng.normal() + noise * rng.normal(size=STEPS)
        held, error = course(t)[0], standard_error(rewards.tolist())
        status = detector.update(t, outcomes(rng, held), float(rewards.mean()), in_loop_error=error)
        if status.needs_confirmation:
            status = detector.update(t, outcomes(rng, held))
        if status.fire and status.rule == Code.REWARD_WITHOUT_GAIN:
            return t, status.readings[-1]
    return None, status.readings[-1]


@pytest.mark.parametrize("course", [STUCK, COMPILES])
def test_a_truth_near_0_that_does_not_follow_the_reward_is_found_in_time(course: Course) -> None:
    fires = [gap_after(course, seed, 20)[0] for seed in range(10)]
    assert sum(at is not None and at <= 12 for at in fires) >= 9, fires


def test_by_default_it_only_warns() -> None:
    at, reading = gap_after(STUCK, 0, 30, config=CalibratedPolicy())
    assert at is None and reading.level is Level.WARNING
    assert reading.message.endswith("the policy's on_gap is warn")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("course", "options"),
    [
        pytest.param(NOTHING, {"wobble": 0.025, "noise": 0.01}, id="nothing changes, reward wobbles"),
        pytest.param(NOTHING_NEAR_0, {}, id="nothing changes near 0"),
        pytest.param(HALF, {}, id="half of the reward's gain"),
        pytest.param(SATURATING, {}, id="0.67 to 0.97, held-out saturates"),
        pytest.param(IN_TENS, {"noise": 0.5}, id="reward in other units"),
    ],
)
def test_null_and_honest_runs_are_not_stopped(course: Course, options: dict[str, float]) -> None:
    fires = [gap_after(course, seed, 60, **options)[0] for seed in range(20)]  # type: ignore[arg-type]
    assert sum(at is not None for at in fires) <= 1, fires


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.65])
def test_a_reward_of_any_noise_that_stays_leaves_a_run_healthy(noise: float) -> None:
    levels = [gap_after(NOTHING, seed, 40, noise)[1].level for seed in range(10)]
    assert sum(level is not Level.HEALTHY for level in levels) <= 1, levels
