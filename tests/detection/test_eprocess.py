"""The inequalities that the guarantee of `Guaranteed` and `Peak` rests on, checked by enumerating every
outcome.

1. A bet's expected factor is at most 1 whenever the true mean is at least the centres' mean, for any items.
2. The reference evidence N(q) has expectation at most 1 at the true q, for any R, n and items.
3. The grid's infimum is a lower bound of N(c)·M(c) for every c, on the grid or not.
4. Restart weights sum to at most 1; a long null run stays below the threshold as often as promised.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core.detectors import Baseline
from guard_core.detectors import eprocess as ep
from guard_core.detectors.baseline import Outcomes
from guard_core.policy import CalibratedPolicy
from tests.detection.batch import Grouping, GuaranteedBatch

from simulated import difficulties, draw  # isort: skip

means_of = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5)


def expectation(means: list[float], statistic) -> float:
    """Exact expectation of `statistic(outcomes)` over independent Bernoulli items."""
    total = 0.0
    for outcomes in itertools.product((0.0, 1.0), repeat=len(means)):
        weight = math.prod(p if x else 1 - p for x, p in zip(outcomes, means, strict=True))
        total += weight * statistic(outcomes)
    return total


@given(means=means_of, data=st.data())
def test_a_bet_against_a_mean_that_holds_gains_nothing_on_average(means, data):
    n = len(means)
    centres = np.array(data.draw(st.lists(st.floats(0.01, 0.99), min_size=n, max_size=n)))
    target = np.array([data.draw(st.floats(0.0, 1.0)) * float(np.mean(means))])
    centres = ep.scaled_centres(centres, np.asarray(centres.mean()), target)
    assert centres.mean() == pytest.approx(target[0], abs=1e-12)
    levels = np.array([0.0, 1.0])
    factors = ep.log_factors(np.repeat(centres, ep.GRID, axis=0), levels, ep.BETS)

    def factor_of(bet):
        def factor(outcomes):
            table = np.array([[1 - x, x] for x in outcomes])
            return math.exp(ep.growth(factors, table)[bet, 0])

        return factor

    for bet in range(len(ep.BETS)):
        assert expectation(means, factor_of(bet)) <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(means=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3), passes=st.integers(1, 3))
def test_reference_evidence_against_the_truth_is_at_most_one_on_average(means, passes):
    n, q = len(means), float(np.mean(means))

    def evidence(outcomes):
        rows = np.array(outcomes).reshape(passes, n)
        log_n = ep.Gathered.of(Baseline.from_passes(rows)).log_evidence(np.array([q]), 0.05)
        return math.exp(log_n[0])

    assert expectation(means * passes, evidence) <= 1 + 1e-9


@pytest.mark.parametrize("passes", [1, 4, 16])
@pytest.mark.parametrize("tolerance", [0.0, 0.02, -0.02])
def test_the_grid_is_a_lower_bound_everywhere(passes, tolerance):
    means = difficulties(40)
    rng = np.random.default_rng(passes)
    baseline = Baseline.from_passes([draw(rng, means) for _ in range(passes)])
    reference = ep.Reference.of(baseline, 0.05)
    evaluations = [Outcomes.of(draw(rng, means * 0.8)) for _ in range(12)]

    def run(grid):
        one = ep.Reference(reference.strata, grid, reference.log_n)
        targets = one.targets(tolerance)
        log_s = np.full((len(ep.BETS), ep.GRID), -np.inf)
        for t, outcomes in enumerate(evaluations):
            table = outcomes.table(reference.strata.groups, reference.strata.count)
            grown = ep.growth(ep.log_factors(targets, outcomes.levels, ep.BETS), table)
            log_s = ep.step(log_s, ep.log_restart_weight(t + 1, 50), grown)
        return log_s

    found = float(ep.log_evidence(run(reference.grid), reference.log_n))
    candidates = np.sort(rng.uniform(0.0, 1.0, ep.GRID))[::-1]
    log_s = run(candidates)
    log_m = np.logaddexp(
        math.log(ep.IDLE), np.logaddexp.reduce(log_s, axis=0) + math.log((1 - ep.IDLE) / len(ep.BETS))
    )
    exact = ep.Gathered.of(baseline).log_evidence(candidates, 0.05) + log_m
    assert found <= exact.min() + 1e-9


@pytest.mark.parametrize("horizon", [1, 7, 100])
def test_restart_weights_sum_to_at_most_one_for_ever(horizon):
    weights = [math.exp(ep.log_restart_weight(t, horizon)) for t in range(1, 100_000)]
    assert sum(weights) <= 1 + 1e-12
    assert sum(weights[:horizon]) == pytest.approx(1 - ep.AFTER_HORIZON)
    assert min(weights) > 0


def test_null_runs_are_stopped_less_often_than_alpha():
    config, alpha, n, passes, runs = CalibratedPolicy(max_decline=0.0, horizon=50), 0.1, 48, 4, 40
    rng = np.random.default_rng(5)
    means = difficulties(n)
    references = [
        ep.Reference.of(Baseline.from_passes([draw(rng, means) for _ in range(passes)]), alpha)
        for _ in range(25)
    ]
    batch = GuaranteedBatch(config, references, alpha, runs)
    grouping = Grouping([r.strata for r in references], runs)
    for _ in range(config.horizon):
        batch.update(grouping.sums(rng.random((len(references), runs, n)) < means))
    assert batch.fired.mean() <= alpha


def test_a_real_drop_is_found():
    config, alpha, n, runs = CalibratedPolicy(max_decline=0.0), 0.05, 128, 20
    rng = np.random.default_rng(6)
    means = difficulties(n)
    reference = ep.Reference.of(Baseline.from_passes([draw(rng, means) for _ in range(16)]), alpha)
    batch, grouping = GuaranteedBatch(config, [reference], alpha, runs), Grouping([reference.strata], runs)
    for _ in range(20):
        batch.update(grouping.sums(rng.random((1, runs, n)) < means * 0.8))
    assert batch.fired.all()
