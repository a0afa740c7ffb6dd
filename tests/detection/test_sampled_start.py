"""A policy that solves nothing yet, or everything: passes that agree although they were sampled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from guard_core.codes import Code
from guard_core.detectors.baseline import Baseline
from guard_core.judge import Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.rounds import Evaluation
from guard_core.wire import EvaluationSampling, SamplingSource, StepReport

from simulated import draw  # isort: skip

N, PASSES = 128, 4
NOTHING, EVERYTHING, HALF = np.zeros(N), np.ones(N), (np.arange(N) % 2).astype(float)


def sampling(temperature: float) -> EvaluationSampling:
    return EvaluationSampling(
        temperature=temperature, max_new_tokens=64, samples=1, source=SamplingSource.TRAINER
    )


class Sampled:
    """A guarded run whose evaluations say how they were sampled; None: nothing is known of it."""

    def __init__(self, temperature: float | None) -> None:
        calibrated = CalibratedPolicy(baseline_passes=PASSES)
        self.judge = Judge(Policy(calibrated=calibrated))
        self.sampling = None if temperature is None else sampling(temperature)

    def evaluate(self, round_: int, items: np.ndarray, index: int = 0) -> None:
        if index == 0:
            self.judge.fold_step(StepReport(attempt=0, step=round_, reward=float(items.mean())))
            self.judge.fold_checkpoint()
        of = Evaluation(
            0, round_, f"/c/{round_}", tuple(items.tolist()), pass_index=index, sampling=self.sampling
        )
        self.judge.fold_evaluation(of)

    def passes(self, round_: int, items: Callable[[], np.ndarray]) -> int:
        """Make the evaluations of a checkpoint that are wanted, each after a restart; how many."""
        self.evaluate(round_, items())
        made = 1
        while (wanted := self.judge.wanted_pass()) is not None:
            self.evaluate(round_, items(), wanted.index)
            self.judge = self.judge.copy()
            made += 1
        return made


@pytest.mark.parametrize(
    ("temperature", "items", "passes"),
    [
        (1.0, NOTHING, PASSES),
        (1.0, EVERYTHING, PASSES),
        (1.0, HALF, 2),  # draws do not agree in every item, so these are none
        (0.0, NOTHING, 2),
        (None, NOTHING, 2),
    ],
)
def test_draws_that_all_fail_are_not_taken_for_greedy_decoding(temperature, items, passes) -> None:
    assert Sampled(temperature).passes(0, lambda: items) == passes


def flickering(rng: np.random.Generator) -> np.ndarray:
    """Greedy outcomes of a server or a scorer of which a few flip between passes of the same weights."""
    items = HALF.copy()
    flipped = rng.choice(N, 2, replace=False)
    items[flipped] = 1 - items[flipped]
    return items


def test_copies_at_temperature_0_are_no_draws_though_a_few_items_flip() -> None:
    """Sixteen of them would look as if the policy had hardly any noise."""
    run, rng = Sampled(0.0), np.random.default_rng(1)
    assert run.passes(0, partial(flickering, rng)) == 2
    told = [c.message for c in run.judge.verdict().conditions if c.code is Code.UNINFORMATIVE_BASELINE]
    assert len(told) == 1 and told[0].startswith("passes of the starting policy are copies of each other")
    unknown = Sampled(None)
    assert unknown.passes(0, partial(flickering, rng)) == PASSES, "of these nobody knows"
    assert [
        Baseline.from_passes([HALF, flickering(rng)]).greedy,
        Baseline.from_passes([HALF] * 2).greedy,
    ] == [False, True]


def test_a_greedy_run_that_moves_as_policies_do_is_not_stopped() -> None:
    """A third of the items is as good as a coin at each checkpoint; the expected score never changes."""
    stopped = 0
    for seed in range(6):
        run, rng = Sampled(0.0), np.random.default_rng(seed)
        known, open_ = HALF.copy(), rng.choice(N, N // 3, replace=False)

        def checkpoint(
            rng: np.random.Generator = rng, known: np.ndarray = known, open_: np.ndarray = open_
        ) -> np.ndarray:
            items = known.copy()
            items[open_] = rng.integers(0, 2, len(open_))
            return items

        for round_ in range(30):
            weights = checkpoint()

            def scored(
                weights: np.ndarray = weights, rng: np.random.Generator = rng, open_: np.ndarray = open_
            ) -> np.ndarray:
                items, flipped = weights.copy(), rng.choice(open_, 1)
                items[flipped] = 1 - items[flipped]
                return items

            run.passes(round_, scored)
        stopped += run.judge.verdict().fire
    assert stopped <= 1


def test_a_greedy_pass_that_was_none_is_found_by_a_third() -> None:
    run, broken = Sampled(0.0), iter([HALF, NOTHING, HALF])
    assert run.passes(0, lambda: next(broken)) == 3


def test_one_broken_evaluation_does_not_stop_a_run_that_began_at_0() -> None:
    run, rng = Sampled(1.0), np.random.default_rng(2)
    run.passes(0, lambda: NOTHING)
    for round_, share in enumerate(np.minimum(0.6, 0.04 * np.arange(1, 30)), start=1):
        run.passes(round_, partial(draw, rng, np.full(N, share)))
    run.evaluate(30, NOTHING)
    assert run.judge.latch is None
    wanted = run.judge.wanted_pass()
    assert wanted is not None and wanted.step == 30
    run.evaluate(30, draw(rng, np.full(N, 0.6)), wanted.index)
    assert run.judge.latch is None


def test_a_log_with_more_than_two_passes_is_one_of_draws() -> None:
    assert [Baseline.from_passes([NOTHING] * passes).greedy for passes in (1, 2, 3)] == [False, True, False]
    assert [Baseline.from_passes([NOTHING] * count).starts["score"].passes for count in (1, 2, 3)] == [
        1,
        1,
        3,
    ]
    assert Baseline.from_passes([HALF] * 3).greedy


def test_a_baseline_that_the_next_checkpoint_closes_is_one_of_draws_after_a_restart_too() -> None:
    run = Sampled(1.0)
    run.evaluate(0, NOTHING)
    run.evaluate(0, NOTHING, 1)
    run.judge = run.judge.copy()
    run.evaluate(1, NOTHING)
    said = [c.message for c in run.judge.verdict().conditions if c.code is Code.UNINFORMATIVE_BASELINE]
    assert said and not any("agree in every item" in message for message in said)
