"""A pass of the starting policy that is none: everything after it would be compared with what broke."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from guard_core.codes import Code, Level
from guard_core.detectors.baseline import Outcomes, outlier_passes
from guard_core.judge import Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.rounds import Evaluation
from guard_core.wire import Condition, StepReport

from simulated import difficulties, draw  # isort: skip

N = 256
MEANS = difficulties(N)


class Run:
    """A judged run whose passes of the start with these numbers have one outcome for every item."""

    def __init__(self, broken: dict[int, float], passes: int = 16, **settings: Any) -> None:
        given = {"baseline_passes": passes, **settings}
        self.judge = Judge(Policy(calibrated=CalibratedPolicy.model_validate(given)))
        self.rng, self.broken, self.made = np.random.default_rng(5), broken, 1
        self.judge.fold_step(StepReport(attempt=0, step=0, reward=0.5))
        self.judge.fold_checkpoint()
        self.evaluate(0, MEANS, 0)
        while (wanted := self.judge.wanted_pass()) is not None:
            self.evaluate(0, MEANS, wanted.index)
            self.made += 1

    def evaluate(self, step: int, means: np.ndarray, index: int) -> None:
        items = draw(self.rng, means)
        if step == 0 and index in self.broken:
            items[:] = self.broken[index]
        self.fold(step, items, index)

    def fold(self, step: int, items: np.ndarray, index: int) -> None:
        cost = {"completions": N, "seconds": 60.0}
        self.judge.fold_evaluation(Evaluation(0, step, f"/c/{step}", tuple(items), pass_index=index, **cost))
        self.judge = self.judge.copy()

    def go_on(self, means: np.ndarray, evaluations: int) -> int | None:
        """The first evaluation at which the run is stopped."""
        for step in range(1, evaluations + 1):
            self.judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
            self.judge.fold_checkpoint()
            self.evaluate(step, means, 0)
            while (wanted := self.judge.wanted_pass()) is not None:
                self.evaluate(step, means, wanted.index)
            if self.judge.latch is not None:
                return step
        return None

    @property
    def told(self) -> list[Condition]:
        return [c for c in self.judge.verdict().conditions if c.code is Code.EVALUATION_FAILING]


@pytest.mark.nightly
@pytest.mark.parametrize("value", [0.0, 1.0], ids=["the server was gone", "the scorer accepted everything"])
@pytest.mark.parametrize(("passes", "at"), [(16, 0), (16, 7), (16, 15), (4, 2)], ids=str)
def test_a_pass_that_was_none_is_left_out_and_made_again(passes: int, at: int, value: float) -> None:
    """With it a run in which nothing changed was `unknown` to its end, and a fall was seen late or never."""
    run = Run({at: value}, passes)
    assert run.made == passes + 1
    assert run.go_on(MEANS * (1 - 0.2 / MEANS.mean()), 2) is not None
    healthy = Run({at: value}, passes)
    assert healthy.go_on(MEANS, 12) is None
    assert healthy.judge.verdict().level is Level.HEALTHY
    [condition] = healthy.told
    assert condition.advice and condition.message.startswith("1 further pass of the starting policy")


@pytest.mark.parametrize("at", [0, 1])
def test_of_two_that_are_far_from_each_other_a_third_tells(at: int) -> None:
    run = Run({at: 0.0}, passes=2)
    assert run.made == 3
    run.go_on(MEANS, 1)
    assert len(run.told) == 1


def score(means: np.ndarray) -> float:
    return float(means.mean())


def test_an_evaluation_that_was_none_is_neither_the_best_nor_the_newest() -> None:
    """Everything was accepted: its 1.0 would stay the best score, and its checkpoint the last good one."""
    run = Run({})
    run.go_on(MEANS, 3)
    best = run.judge.verdict().best_evaluation
    run.fold(4, np.ones(N), 0)
    assert run.judge.verdict().best_evaluation == best, "a fresh pass decides"
    fresh = draw(run.rng, MEANS)
    wanted = run.judge.wanted_pass()
    assert wanted is not None
    run.fold(4, fresh, wanted.index)
    newest, after = run.judge.verdict().last_evaluation, run.judge.verdict().best_evaluation
    assert newest is not None and (newest.step, newest.score) == (4, score(fresh))
    assert after == max(best, newest, key=lambda e: e.score)


def test_a_jump_that_a_fresh_pass_upholds_is_the_best() -> None:
    run = Run({})
    run.go_on(MEANS, 3)
    items = draw(run.rng, np.full(N, 0.95))
    run.fold(4, items, 0)
    wanted = run.judge.wanted_pass()
    assert wanted is not None
    run.fold(4, draw(run.rng, np.full(N, 0.95)), wanted.index)
    best = run.judge.verdict().best_evaluation
    assert best is not None and (best.step, best.score) == (4, score(items))


def test_a_start_whose_first_pass_was_none_has_the_score_of_another() -> None:
    verdict = Run({0: 1.0}).judge.verdict()
    assert verdict.best_evaluation == verdict.last_evaluation
    assert verdict.best_evaluation is not None and verdict.best_evaluation.score < 0.7
    later = Run({7: 1.0}).judge.verdict()
    assert later.best_evaluation is not None and later.best_evaluation.score < 0.7


def test_a_baseline_in_which_nothing_broke_is_as_it_was() -> None:
    run = Run({})
    run.go_on(MEANS, 1)
    assert run.made == 16 and run.told == []


def test_a_greedy_pass_that_was_none_leaves_greedy_ones() -> None:
    good, broken = Outcomes.of((MEANS > 0.5).astype(float)), Outcomes.of(np.zeros(N))
    assert outlier_passes([good, broken, good], 0.03) == (1,)
    assert outlier_passes([good] * 15 + [broken], 0.03) == (15,)


def test_it_is_left_out_where_another_checkpoint_closes_the_baseline() -> None:
    run = Run({3: 0.0}, passes=16, baseline_budget={"completions": 8 * N})
    assert run.made == 8, "there is no room for another in its place"
    run.go_on(MEANS, 1)
    [condition] = run.told
    early = Judge(Policy(calibrated=CalibratedPolicy()))
    rng = np.random.default_rng(6)
    for index in range(6):
        items = np.ones(N) if index == 2 else draw(rng, MEANS)
        early.fold_evaluation(Evaluation(0, 0, "/c/0", tuple(items), pass_index=index))
    early.fold_evaluation(Evaluation(0, 1, "/c/1", tuple(draw(rng, MEANS))))
    assert condition.message in [c.message for c in early.verdict().conditions]


def test_many_are_what_this_policy_does() -> None:
    """Five of 16 lie elsewhere: that is its noise, and how much it is shows in the passes."""
    few, many = Run(dict.fromkeys(range(0, 12, 3), 0.0)), Run(dict.fromkeys(range(0, 15, 3), 0.0))
    few.go_on(MEANS, 1)
    many.go_on(MEANS, 1)
    assert (few.made, many.made) == (20, 16)
    assert few.told[0].message.startswith("4 further passes") and many.told == []


@pytest.mark.parametrize("families", [1, 4, 8])
@pytest.mark.parametrize("passes", [4, 16])
def test_passes_that_vary_because_items_go_together_are_kept(families: int, passes: int) -> None:
    """Families without a `group`, of 128 items: an evaluation varies up to 2.8 times as much."""
    rng, left_out, count = np.random.default_rng(7), 0, 400
    for _ in range(count):
        drawn = [np.repeat(rng.binomial(1, 0.5, 128 // families), families) for _ in range(passes)]
        left_out += bool(outlier_passes([Outcomes.of(items.astype(float)) for items in drawn], 0.03))
    assert left_out <= (0.0 if families == 1 else 0.05 if passes == 4 else 0.02) * count


def test_few_passes_are_told_apart_by_what_independent_items_do() -> None:
    def share(right: int) -> Outcomes:
        return Outcomes.of((np.arange(N) < right).astype(float))

    assert outlier_passes([share(128), share(66)], 0.03) == (0, 1), "24 points; noise is 4.4"
    assert outlier_passes([share(128), share(80)], 0.03) == (), "19 points"
    assert outlier_passes([share(118), share(136), share(0)], 0.03) == (2,), "the others are 7 points apart"


def test_a_pass_of_more_samples_varies_less() -> None:
    good, low = Outcomes.of(np.full(N, 0.5)), Outcomes.of(np.full(N, 0.4))
    assert outlier_passes([good, good, low], 0.03, samples=16) == (2,)
    assert outlier_passes([good, good, low], 0.03) == ()
    assert outlier_passes([good, good, low], 0.08, samples=16) == ()
