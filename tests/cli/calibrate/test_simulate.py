"""The simulated worlds have the means, falls and limits that they claim."""

import math

import numpy as np
import pytest

from guard_cli.calibrate import simulate
from guard_cli.calibrate.propose import (
    MOST_ITEMS,
    Delay,
    Sizes,
    _delay,
    costs,
    items_needed,
    propose_guard,
    round_up,
)
from guard_cli.calibrate.simulate import World
from guard_core.detectors import Baseline
from guard_core.policy import CalibratedPolicy, Policy


def baseline(items: int = 128, passes: int = 16, seed: int = 0, spread: float = 1.0) -> Baseline:
    rng = np.random.default_rng(seed)
    means = rng.beta(spread, spread, size=items)
    return Baseline.from_passes((rng.random((passes, items)) < means).astype(float))


class TestWorld:
    def test_item_means_have_the_baselines_score_and_spread(self) -> None:
        world = World.of(baseline(), None, 0)
        means = world.item_means(np.random.default_rng(0), 500)
        assert means.mean() == pytest.approx(world.strata.score, abs=0.01)
        assert np.corrcoef(means.mean(axis=0), world.strata.scores[world.strata.groups])[0, 1] > 0.99

    @pytest.mark.parametrize("passes", [1, 4, 16])
    @pytest.mark.parametrize("spread", [0.5, 50.0])
    def test_the_score_is_as_uncertain_as_the_passes_leave_it(self, passes: int, spread: float) -> None:
        """Also where items are alike: then they all lean on one estimate, which has an error of its own."""
        world = World.of(baseline(512, passes, spread=spread), None, 0)
        error = math.sqrt(world.strata.variance / (512 * world.strata.precision))
        assert world.item_means(np.random.default_rng(0), 2000).mean(axis=1).std() == pytest.approx(
            error, rel=0.12
        )

    def test_scores_have_the_variance_of_the_items(self) -> None:
        """Against outcomes drawn one by one."""
        world = World.of(baseline(), None, 0)
        rng = np.random.default_rng(0)
        means = world.item_means(rng, 1)
        quick = simulate._scores(world, rng, means, 4000)
        slow = (rng.random((4000, 128)) < means[0]).mean(axis=1)
        assert quick.mean() == pytest.approx(slow.mean(), abs=0.003)
        assert quick.std() == pytest.approx(slow.std(), rel=0.06)

    @pytest.mark.parametrize("drop", [0.02, 0.1, 0.3])
    def test_a_fall_lowers_the_mean_by_just_that(self, drop: float) -> None:
        means = World.of(baseline(), None, 0).item_means(np.random.default_rng(0), 20)
        fallen = simulate.fallen(means, drop)
        assert (means.mean(axis=1) - fallen.mean(axis=1)).tolist() == pytest.approx([drop] * 20, abs=1e-6)
        assert (fallen <= means).all() and (fallen >= 0).all()

    def test_the_reward_rises_as_the_held_out_falls(self) -> None:
        world = World.of(baseline(), 0.0, 0)
        rewards = world.rewards(np.random.default_rng(0), 40, 3, 0.1)
        assert rewards[simulate.BEFORE - 1].tolist() == [0.0] * 3
        assert rewards[-1].tolist() == pytest.approx([0.1] * 3)


class TestLeastDelay:
    def test_it_solves_its_equation(self) -> None:
        gamma = 100 / -math.log(0.95)
        for nats in (0.05, 0.3, 2.0):
            delay = simulate.least_delay(nats, 0.05, 100)
            h = next(x for x in np.arange(0, 30, 1e-4) if math.exp(x) - x - 1 >= gamma * nats)
            assert delay == pytest.approx(max(1.0, (h - 1 + math.exp(-h)) / nats), rel=1e-3)

    def test_limits(self) -> None:
        assert simulate.least_delay(0.0, 0.05, 100) == math.inf
        assert simulate.least_delay(50.0, 0.05, 100) == 1.0

    def test_information_is_additive_in_items_and_grows_with_the_drop(self) -> None:
        strata = baseline().strata
        one = simulate.information(strata, 1, 0.05, 100)
        assert simulate.information(strata, 2, 0.05, 300) == pytest.approx(6 * one)
        assert simulate.information(strata, 1, 0.1, 100) > 3 * one

    def test_of_alike_items_it_is_the_textbook_divergence(self) -> None:
        passes = np.tile(np.r_[np.ones(50), np.zeros(50)], (2, 1))
        passes[1] = 1 - passes[1]  # every item 1 of 2
        strata = Baseline.from_passes(passes).strata
        q = float(strata.centres[0])
        expected = (q - 0.1) * math.log((q - 0.1) / q) + (0.9 - q + 0.2) * 0
        expected = (q - 0.1) * math.log((q - 0.1) / q) + (1.1 - q) * math.log((1.1 - q) / (1 - q))
        assert simulate.information(strata, 1, 0.1, 100) == pytest.approx(100 * expected, rel=1e-4)


class TestProposal:
    def test_false_stops_are_as_wanted_on_other_simulated_runs(self) -> None:
        """Flat runs of another seed, with every outcome drawn: at most the wanted rate, within its noise."""
        base = baseline(items=64)
        policy = propose_guard(World.of(base, None, 0), 0.05, 60)
        world = World.of(base, None, 99)
        rng = np.random.default_rng(5)
        stops = 0
        runs = 400
        means = world.item_means(rng, runs)
        for run in range(runs):
            guard = policy.build()
            for t in range(60):
                score = float((rng.random(64) < means[run]).mean())
                guard.update(t, float(rng.normal(0.5, world.reward_noise)), score)
            stops += guard.fired
        assert stops / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)

    def test_it_is_the_same_for_the_same_seed(self) -> None:
        worlds = [World.of(baseline(items=64), None, 3) for _ in range(2)]
        assert propose_guard(worlds[0], 0.1, 30) == propose_guard(worlds[1], 0.1, 30)

    def test_more_items_need_less_slack(self) -> None:
        few, many = (propose_guard(World.of(baseline(items=n), None, 0), 0.05, 50) for n in (32, 512))
        assert many.max_proxy_real_gap < few.max_proxy_real_gap / 2

    @pytest.mark.parametrize(
        ("value", "up"), [(0.0123456, 0.0124), (0.0124, 0.0124), (0.0, 0.0), (1.0001, 1.01)]
    )
    def test_round_up(self, value: float, up: float) -> None:
        assert round_up(value) == up


class TestDelay:
    def test_false_stops_before_the_fall_are_not_counted(self) -> None:
        assert _delay(0.1, np.array([3, 12, 14, 16])) == Delay(0.1, 4.0, 1.0)

    def test_a_median_that_is_never_reached(self) -> None:
        found = _delay(0.1, np.array([0, 0, 12]))
        assert found.median == math.inf and found.seen == pytest.approx(1 / 3)

    def test_all_stopped_before(self) -> None:
        assert _delay(0.1, np.array([1, 2])) == Delay(0.1, math.inf, 0.0)

    def test_items_needed_are_enough_when_tried(self) -> None:
        base = baseline(items=24, spread=50.0)
        world = World.of(base, None, 0)
        policy = Policy(calibrated=CalibratedPolicy(alpha=0.05, horizon=40, bootstrap_runs=400))
        found = costs(world, base, policy, 0.05)
        sizes = Sizes(world, base, policy, found)
        assert found.calibrated[2].median > 10
        needed = items_needed(world, sizes, found, policy, 2)
        assert needed in (64, 128)
        assert items_needed(world, sizes, found, policy, 0) > MOST_ITEMS  # 2 points are accepted
        enough = baseline(items=needed, spread=50.0, seed=8)
        delay = costs(World.of(enough, None, 1), enough, policy, 0.05).calibrated[2]
        assert delay.median <= 10 * 1.5  # another draw of the items, another 40 runs
