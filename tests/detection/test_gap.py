"""The part `gap` on simulated runs: a reward that climbs, and a held-out score that does, or does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from guard_core.detectors import Baseline, CalibratedDetector
from guard_core.detectors.gap import Gap, Proxy, Rise, _log_weight, as_normal
from guard_core.judge import Evaluation, Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.rounds import standard_error
from guard_core.wire import Code, Level, StepReport

N = 256
STEPS = 10

#: alpha is the share that `gap` has of 5 % beside the other parts.
CONFIG = CalibratedPolicy(alpha=0.0045, horizon=100)

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
HALF_NEAR_0: Course = lambda t: (0.005 + 0.015 * ramp(t, 60), 0.01 + 0.03 * ramp(t, 60))  # noqa: E731
SATURATING: Course = lambda t: (0.93 + 0.04 * ramp(t, 30), 0.67 + 0.30 * ramp(t, 30))  # noqa: E731
IN_TENS: Course = lambda t: (0.3 + 0.15 * ramp(t, 30), 3 + 3 * ramp(t, 30))  # noqa: E731


def outcomes(rng: np.random.Generator, mean: float) -> np.ndarray:
    return (rng.random(N) < mean).astype(float)


def fired_at(
    course: Course,
    seed: int,
    length: int,
    passes: int = 16,
    noise: float = 0.055,
    wobble: float = 0.0,
    steps: int = STEPS,
) -> int | None:
    """The evaluation at which `gap` stops the run; an alarm gets its fresh pass, as a guard makes it.

    `noise`: standard deviation of the reward of one step; `wobble`: of its mean from round to round; `steps`:
    that are reported in a round.
    """
    rng = np.random.default_rng(seed)
    baseline = Baseline.from_passes([outcomes(rng, course(0)[0]) for _ in range(passes)])
    detector = CalibratedDetector(CONFIG, baseline, ("gap",))
    for t in range(1, length + 1):
        middle = course(t - 0.5)[1] + wobble * rng.normal()
        rewards = middle + noise * rng.normal(size=steps)
        held = course(t)[0]
        status = detector.update(
            t, outcomes(rng, held), float(rewards.mean()), in_loop_error=standard_error(rewards.tolist())
        )
        if status.needs_confirmation:
            status = detector.update(t, outcomes(rng, held))
        if status.fire:
            return t
    return None


def level_after(course: Course, seed: int, length: int, noise: float) -> Level:
    """What `gap` says at the end of a run, or where it is stopped."""
    rng = np.random.default_rng(seed)
    baseline = Baseline.from_passes([outcomes(rng, course(0)[0]) for _ in range(16)])
    detector = CalibratedDetector(CONFIG, baseline, ("gap",))
    for t in range(1, length + 1):
        rewards = course(t - 0.5)[1] + noise * rng.normal(size=STEPS)
        held, error = outcomes(rng, course(t)[0]), standard_error(rewards.tolist())
        status = detector.update(t, held, float(rewards.mean()), in_loop_error=error)
        if status.fire:
            break
    return status.level


@pytest.mark.parametrize("passes", [16, 2])
def test_with_a_truth_near_0_that_does_not_follow_the_reward_it_fires_within_10_evaluations(
    passes: int,
) -> None:
    stuck = [fired_at(STUCK, seed, 20, passes) for seed in range(20)]
    assert all(at is not None and at <= 10 for at in stuck), stuck
    compiles = [fired_at(COMPILES, seed, 20, passes) or math.inf for seed in range(20)]
    assert all(at <= 10 for at in compiles), compiles


def test_a_noisier_reward_or_rounds_of_few_steps_take_it_longer() -> None:
    """Ten evaluations are for rounds of four steps or more whose mean has a noise of about 0.025 or less. Of
    0.08 a third comes in time at most; of three steps the noise is known from ten rounds on.
    """
    noisy = [fired_at(STUCK, seed, 30, noise=0.08 * math.sqrt(STEPS)) or math.inf for seed in range(20)]
    assert sum(at <= 10 for at in noisy) <= 6 and sum(at <= 20 for at in noisy) >= 18, noisy
    short = [fired_at(STUCK, seed, 20, steps=3) or math.inf for seed in range(20)]
    assert all(10 < at <= 17 for at in short), short
    quiet = [fired_at(STUCK, seed, 10, noise=0.025 * math.sqrt(STEPS)) for seed in range(20)]
    assert all(at is not None for at in quiet), quiet


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("course", "options"),
    [
        pytest.param(NOTHING, {"wobble": 0.025, "noise": 0.01}, id="nothing changes, reward wobbles"),
        pytest.param(NOTHING_NEAR_0, {}, id="nothing changes near 0"),
        pytest.param(NOTHING_NEAR_0, {"wobble": 0.025, "noise": 0.01}, id="near 0, reward wobbles"),
        pytest.param(HALF, {}, id="half of the reward's gain"),
        pytest.param(HALF_NEAR_0, {"noise": 0.01}, id="half of it near 0"),
        pytest.param(SATURATING, {}, id="0.67 to 0.97, held-out saturates"),
        pytest.param(IN_TENS, {"noise": 0.5}, id="reward in other units"),
    ],
)
def test_null_and_honest_runs_are_not_stopped(course: Course, options: dict[str, float]) -> None:
    """alpha is 0.45 %: of 40 runs hardly one may be stopped by chance."""
    fires = [fired_at(course, seed, 60, **options) for seed in range(40)]  # type: ignore[arg-type]
    assert sum(at is not None for at in fires) <= 1, fires


def test_what_is_due_is_a_quarter_of_the_rewards_gain_within_bounds() -> None:
    """A small rise asks for little, a large one for `gap_gain`; near 1 for less, near 0 for more."""

    def due(start: float, rise: float) -> float:
        baseline = Baseline.from_passes([np.arange(200) < 200 * start] * 2)
        detector = CalibratedDetector(CONFIG, baseline, ("gap",))
        for t in range(1, 13):
            reward = 0.3 + (rise if t > 6 else 0.0)
            status = detector.update(t, np.arange(200) < 200 * start, reward, in_loop_error=0.001)
        return float(status.readings[0].message.partition("(now ")[2].partition(")")[0])

    assert due(0.3, 0.04) == pytest.approx(0.01)
    assert due(0.3, 0.5) == due(0.3, 5.0) == CONFIG.gap_gain
    assert due(0.96, 0.5) == pytest.approx(Gap.FRACTION * 0.04)
    assert due(0.01, 0.5) == pytest.approx(Gap.REACHED - 0.01) and due(0.01, 0.04) == pytest.approx(0.01)


def test_the_noise_of_the_reward_is_known_from_its_steps_or_from_ten_rewards() -> None:
    plain, told = Proxy(), Proxy()
    for t in range(12):
        plain = plain.fold(0.1 * t + 0.01 * (-1) ** t, None)
        told = told.fold(0.1 * t + 0.01 * (-1) ** t, 0.02)
        assert (plain.rise.z is None) is (plain.count < 10) and (told.rise.z is None) is (told.count < 4)
    # Successive rewards differ by more than 0.02, so their variance counts; what steps tell makes it surer.
    assert told.rise.gain == plain.rise.gain and 0 < plain.rise.z < told.rise.z


def test_a_rise_is_looked_for_between_all_rounds_with_the_noise_of_one() -> None:
    """Seven rewards before a jump and five after it, whose standard errors are 1."""
    proxy = Proxy()
    for t in range(12):
        proxy = proxy.fold(float(t >= 7), 1.0)
    t_value, freedom = 1 / math.sqrt(1 / 7 + 1 / 5), Proxy.PER_ERROR * 12
    assert proxy.rise == Rise(1.0, as_normal(t_value, freedom))


def test_fewer_than_five_rounds_on_a_side_show_no_rise_once_there_are_ten() -> None:
    proxy = Proxy()
    for t in range(20):
        proxy = proxy.fold(float(t >= 18), 0.1)
    assert proxy.rise.gain == pytest.approx(0.4)  # of the last five, two


def test_a_rise_that_went_is_what_is_left_of_it() -> None:
    proxy = Proxy()
    for t in range(30):
        proxy = proxy.fold(float(10 <= t < 25), 0.1)
    assert proxy.rise.gain == 0.0 and proxy.rise.z == 0.0


def test_the_normal_deviate_of_students_t() -> None:
    """Of the quantiles 0.999 and 0.9999 of t with 10 degrees of freedom, and 0.999 with 30."""
    assert as_normal(4.1437, 10) == pytest.approx(3.0902, abs=0.02)
    assert as_normal(5.6938, 10) == pytest.approx(3.7190, abs=0.03)
    assert as_normal(-3.3852, 30) == pytest.approx(-3.0902, abs=0.01)


def test_a_long_run_keeps_a_bounded_number_of_sums_and_loses_no_reward() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=1_000)
    proxy = Proxy()
    for reward in rewards:
        proxy = proxy.fold(float(reward), None)
        assert len(proxy.blocks) <= Proxy.MOST and (len(proxy.blocks) - 1) * proxy.per < proxy.count
    assert proxy.per == 8
    assert math.fsum(proxy.blocks) == pytest.approx(float((rewards - rewards[0]).sum()))
    assert proxy.blocks[3] == pytest.approx(float((rewards[24:32] - rewards[0]).sum()))


@pytest.mark.parametrize("noise", [0.2, 0.3])
def test_a_reward_of_small_batches_that_rises_by_30_points_with_a_flat_score_is_not_healthy(
    noise: float,
) -> None:
    """`noise` of one of ten steps a round; the rise takes all of 40 rounds."""
    levels = [level_after(lambda t: (0.3, 0.3 + 0.3 * ramp(t, 40)), seed, 40, noise) for seed in range(20)]
    assert sum(level is not Level.HEALTHY for level in levels) >= 18, levels


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.65])
def test_a_reward_of_any_noise_that_stays_leaves_a_run_healthy(noise: float) -> None:
    levels = [level_after(NOTHING, seed, 40, noise) for seed in range(20)]
    assert sum(level is not Level.HEALTHY for level in levels) <= 1, levels


@pytest.mark.parametrize("steps", [1, 4])
def test_a_reward_in_which_nothing_changes_has_hardly_ever_risen(steps: int) -> None:
    """In 100 rounds of four completions each, with and without a standard error."""
    rng, risen = np.random.default_rng(0), 0
    for _ in range(60):
        proxy, highest = Proxy(), 0.0
        for _ in range(100):
            rewards = rng.binomial(4, 0.3, size=steps) / 4
            proxy = proxy.fold(float(rewards.mean()), standard_error(rewards.tolist()))
            highest = max(highest, proxy.rise.z or 0.0)
        risen += highest >= Gap.RISEN
    assert risen <= 1


def test_a_reward_that_never_differs_has_no_known_noise() -> None:
    proxy = Proxy()
    for _ in range(12):
        proxy = proxy.fold(0.5, 0.0)
    assert proxy.rise.z is None


def test_the_standard_error_of_a_round_ignores_a_slow_trend() -> None:
    rng = np.random.default_rng(0)
    noisy = 0.001 * np.arange(400) + 0.1 * rng.normal(size=400)
    assert standard_error(noisy.tolist()) == pytest.approx(0.1 / 20, rel=0.15)
    assert standard_error([0.1, 0.2, 0.3]) is None and standard_error([]) is None
    assert standard_error([0.5] * 4) == 0.0


@pytest.mark.nightly
def test_the_judge_tells_the_noise_of_the_steps() -> None:
    """A live run: the gap can judge from the fourth evaluation on, and fires before the reward is up."""
    judge = Judge(Policy(detector="calibrated", calibrated=CONFIG.model_copy(update={"baseline_passes": 4})))
    rng = np.random.default_rng(1)
    step, known = 0, []
    for t in range(12):
        for _ in range(STEPS if t else 0):
            step += 1
            judge.fold_step(StepReport(attempt=0, step=step, reward=STUCK(t - 0.5)[1] + 0.05 * rng.normal()))
        index: int | None = 0
        while index is not None:
            judge.fold_evaluation(
                Evaluation(0, step, f"/c/{step}", tuple(outcomes(rng, STUCK(t)[0])), None, index)
            )
            wanted = judge.wanted_pass()
            index = None if wanted is None else wanted.index
        judge = Judge.from_state(judge.to_state())
        known += [t for r in judge.verdict().detectors if r.name == "gap" and r.statistic is not None]
        if judge.latch is not None:
            break
    assert known[0] == 4
    assert judge.verdict().code is Code.CALIBRATED_GAP and judge.verdict().level is Level.FIRED
    assert step <= 10 * STEPS


@pytest.mark.parametrize("horizon", [1, 10, 100])
def test_the_weights_of_the_rises_sum_to_at_most_one_for_ever(horizon: int) -> None:
    total = math.fsum(math.exp(_log_weight(rise, horizon)) for rise in range(1, 20_000))
    assert 0.95 < total <= 1 + 1e-9
