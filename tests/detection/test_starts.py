"""A trainer that starts from scratch under the guard of an earlier attempt: what it is compared with."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from guard_core.attempts import MOST_STARTS
from guard_core.codes import Code, Level
from guard_core.ending import not_judged
from guard_core.judge import Judge
from guard_core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy
from guard_core.rounds import Evaluation
from guard_core.trainer_view import for_trainer
from guard_core.wire import (
    CheckpointReport,
    Condition,
    EvaluationSampling,
    Sampling,
    SamplingSource,
    StepReport,
)

from simulated import draw  # isort: skip

ITEMS, START, REACHED, LOST = 256, 0.35, 0.75, 0.15
CALIBRATED = CalibratedPolicy(baseline_passes=4, on_gap="stop")


class Run:
    """A trainer that begins again and again; ten steps and one checkpoint a round."""

    def __init__(
        self,
        detector: str = "calibrated",
        seed: int = 7,
        items: int = ITEMS,
        passes: int = 4,
        **heldout_guard: object,
    ) -> None:
        calibrated = CALIBRATED.model_copy(update={"baseline_passes": passes})
        guard = HeldOutGuardPolicy(**heldout_guard)  # type: ignore[arg-type]
        self.judge = Judge(Policy(detector=detector, calibrated=calibrated, heldout_guard=guard))  # type: ignore[arg-type]
        self.rng, self.items = np.random.default_rng(seed), items
        self.attempt, self.round = 0, 0
        self.evaluate(0, START)

    def evaluate(self, step: int, score: float, first: float | None = None) -> None:
        """The first evaluation of this checkpoint gives another score where one is given."""
        self.judge.fold_checkpoint()
        index: int | None = 0
        while index is not None:
            mean = first if index == 0 and first is not None else score
            items = tuple(draw(self.rng, np.full(self.items, mean)).tolist())
            self.judge.fold_evaluation(
                Evaluation(self.attempt, step, f"/checkpoints/{step}", items, None, index)
            )
            wanted = self.judge.wanted_pass()
            index = None if wanted is None else wanted.index

    def steps(self, reward: float) -> None:
        for step in range(10 * self.round + 1, 10 * self.round + 11):
            noise = 0.01 * float(self.rng.standard_normal())
            self.judge.fold_step(StepReport(attempt=self.attempt, step=step, reward=reward + noise))
        self.round += 1

    def train(self, *scores: float, reward: float | None = None) -> None:
        """Rounds with these true held-out scores; the reward is the score, or what is given."""
        for score in scores:
            self.steps(score if reward is None else reward)
            if self.judge.latch is None:
                self.evaluate(10 * self.round, score)

    def learn(self, rounds: int = 16) -> None:
        self.train(*np.linspace(START, REACHED, rounds))

    def start_again(self, at: int = 0) -> None:
        self.attempt, self.round = self.attempt + 1, at

    @property
    def said(self) -> list[Condition]:
        return [c for c in self.judge.verdict().conditions if c.code is Code.STARTED_AGAIN]


def test_it_learns_anew_and_is_not_stopped() -> None:
    run = Run()
    run.learn()
    run.start_again()
    run.learn(30)
    verdict = run.judge.verdict()
    assert not verdict.fire and not_judged(verdict, "wait longer") == ""
    (told,) = run.said
    (to_the_trainer,) = [c for c in for_trainer(verdict).conditions if c.code is told.code]
    assert to_the_trainer.message == Code.STARTED_AGAIN.meaning, "an alarm that waits is not told"
    assert told.advice and "attempt 1 started from scratch" in told.message
    assert "compared with the baseline" in told.message and "number 1" in told.message
    assert run.judge.verdict() == run.judge.copy().verdict()


@pytest.mark.nightly
def test_of_twenty_that_begin_anew_none_is_stopped() -> None:
    """All of them were when nothing was forgotten."""
    stopped = 0
    for seed in range(20):
        run = Run(seed=seed)
        run.learn()
        run.start_again()
        run.learn()
        stopped += run.judge.verdict().fire
    assert stopped == 0


@pytest.mark.parametrize("score_of_the_start", ["before the first step", "between the two", "after it"])
def test_a_loop_may_announce_its_start_again_before_its_first_step(score_of_the_start: str) -> None:
    """As the loops of docs/concepts/trainer.md do; the score of that checkpoint is there when it is there."""
    run = Run()
    run.learn()
    run.start_again()
    if score_of_the_start == "after it":
        run.steps(START)
    elif score_of_the_start == "between the two":
        run.judge.fold_checkpoint()
        items = tuple(draw(run.rng, np.full(ITEMS, START)).tolist())
        run.judge.fold_evaluation(Evaluation(1, 0, "/checkpoints/0", items))
        run.steps(START)
        while (wanted := run.judge.wanted_pass()) is not None:
            items = tuple(draw(run.rng, np.full(ITEMS, START)).tolist())
            run.judge.fold_evaluation(Evaluation(1, 0, wanted.path, items, None, wanted.index))
    if score_of_the_start != "between the two":
        run.evaluate(0, START)
    run.learn()
    assert not run.judge.verdict().fire
    assert "number 1" in run.said[0].message, "it is one start"


@pytest.mark.parametrize("scored", [True, False], ids=["scored late", "never scored"])
def test_a_start_that_crashed_before_it_was_judged_is_that_of_the_attempt_that_goes_on(scored: bool) -> None:
    run = Run()
    run.learn()
    run.start_again()
    run.steps(START)
    run.judge.fold_checkpoint()
    run.start_again(at=1)
    run.steps(START)
    if scored:
        items = tuple(draw(run.rng, np.full(ITEMS, START)).tolist())
        run.judge.fold_evaluation(Evaluation(1, 10, "/checkpoints/10", items))
    else:
        run.judge.fold_failure("it was gone")
    run.evaluate(20, START)
    run.learn()
    assert not run.judge.verdict().fire and "attempt 1 started from scratch" in run.said[0].message


def test_a_baseline_may_be_scored_after_the_next_attempt_began() -> None:
    """The first evaluation takes long, and what waits behind it is of the attempt that is over."""
    run = Run()
    run.judge = Judge(run.judge.policy)
    for attempt, step in ((0, 1), (0, 30), (1, 1)):
        run.judge.fold_step(StepReport(attempt=attempt, step=step, reward=START))
    run.evaluate(0, START)
    for step in (10, 20, 30):
        run.evaluate(step, REACHED)
    run.attempt = 1
    run.learn()
    assert not run.judge.verdict().fire and "attempt 1 started from scratch" in run.said[0].message


@pytest.mark.parametrize("after", [2, 3])
def test_a_reward_that_rose_before_it_has_risen(after: int) -> None:
    """The score stays where it is. Whoever numbers steps anew is not rid of where the reward began."""
    run = Run(items=1500, passes=16)
    rewards = [0.35, 0.53, 0.72, *[0.9] * 60]
    for reward in rewards[:after]:
        run.train(START, reward=reward)
    assert not run.judge.verdict().fire
    run.start_again()
    for reward in rewards[after:]:
        run.train(START, reward=reward)
    assert run.judge.verdict().code is Code.REWARD_WITHOUT_GAIN and run.judge.verdict().fire


def test_a_score_is_cut_short_by_what_its_own_start_reached() -> None:
    """More is cut off than at the start, and the score has risen: there is no fall that it could be."""
    longer = Sampling(temperature=1.0, max_new_tokens=2048)
    used = EvaluationSampling(temperature=1.0, max_new_tokens=512, samples=1, source=SamplingSource.SETTINGS)
    judge = Judge(Policy(calibrated=CALIBRATED))
    judge.fold_checkpoint(CheckpointReport(attempt=0, step=0, path="/c", sampling=longer))

    def fold(attempt: int, step: int, score: float, cut: float) -> None:
        judge.fold_step(StepReport(attempt=attempt, step=step + 1, reward=score))
        items = tuple(float(i < round(score * ITEMS)) for i in range(ITEMS))
        judge.fold_evaluation(
            Evaluation(attempt, step, "/c", items, truncated=cut, unscored=cut, sampling=used)
        )

    fold(0, 0, START, 0.02)
    fold(0, 10, START + 0.09, 0.02)
    fold(1, 0, START, 0.42)
    fold(1, 10, START + 0.02, 0.45)
    assert Code.CUT_SHORT not in {c.code for c in judge.verdict().conditions}
    fold(1, 20, START - 0.1, 0.45)
    assert Code.CUT_SHORT in {c.code for c in judge.verdict().conditions}
    best = judge.verdict().best_evaluation
    assert best is not None and best.attempt == 0


def test_one_that_goes_on_is_compared_with_what_was_reached() -> None:
    run = Run()
    run.learn()
    run.start_again(at=16)
    run.train(*[START] * 8)
    assert run.judge.verdict().fire and run.said == []


def test_it_is_compared_with_the_start_of_the_first_attempt() -> None:
    """Also where it lies about it: whoever goes on with what was hacked is below the baseline."""
    run = Run()
    run.learn()
    run.start_again()
    run.train(*[LOST] * 8)
    assert run.judge.verdict().fire


def test_it_has_to_be_judged_anew() -> None:
    run = Run()
    run.learn()
    assert not_judged(run.judge.verdict(), "wait longer") == ""
    run.start_again()
    run.train(START)
    assert not_judged(run.judge.verdict(), "wait longer") != ""


def test_a_fourth_time_it_is_compared_with_what_was_reached() -> None:
    run = Run()
    run.learn()
    for _ in range(MOST_STARTS):
        run.start_again()
        run.learn()
        assert not run.judge.verdict().fire
    run.start_again()
    run.train(*[START] * 8)
    assert run.judge.verdict().fire
    assert "as 3 had done before" in run.said[0].message and run.said[0].level is Level.UNKNOWN


@pytest.mark.parametrize(("action", "halts"), [("warn", False), ("stop", True)])
def test_a_start_too_many_is_what_silence_is(action: str, halts: bool) -> None:
    run = Run()
    silent = run.judge.policy.silent.model_copy(update={"action": action})
    run.judge = Judge(run.judge.policy.model_copy(update={"silent": silent}))
    run.evaluate(0, START)
    run.train(START)
    for _ in range(MOST_STARTS + 1):
        assert not run.judge.verdict().halt
        run.start_again()
        run.train(START, START)
    assert run.judge.verdict().halt is halts and run.judge.verdict().level is not Level.HEALTHY


@pytest.mark.parametrize("restarts", [False, True], ids=["it goes on", "it says it starts again"])
def test_an_alarm_that_waits_is_not_shed(restarts: bool) -> None:
    run = Run()
    run.train(*[START] * 6)
    while not run.judge.verdict().waiting:
        run.steps(START)
        items = tuple(draw(run.rng, np.full(ITEMS, LOST)).tolist())
        run.judge.fold_checkpoint()
        run.judge.fold_evaluation(Evaluation(0, 10 * run.round, f"/checkpoints/{10 * run.round}", items))
    alarmed = any("has to confirm" in r.message for r in run.judge.verdict().detectors)
    assert alarmed, "the fresh pass that decides it cannot be made: the checkpoint is gone"
    run.judge.fold_skipped(1)
    if restarts:
        run.start_again()
    run.steps(START)
    step = 10 * run.round
    items = tuple(draw(run.rng, np.full(ITEMS, LOST)).tolist())
    run.judge.fold_evaluation(Evaluation(run.attempt, step, f"/checkpoints/{step}", items))
    assert run.judge.verdict().fire


def test_nothing_of_a_run_that_was_stopped_is_forgotten() -> None:
    run = Run()
    run.train(*[START] * 6, *[LOST] * 8)
    before = run.judge.verdict()
    assert before.fire
    run.start_again()
    run.steps(START)
    run.evaluate(10, START)
    after = run.judge.verdict()
    assert (after.fire, after.code, after.reason) == (True, before.code, before.reason)


def test_evaluations_that_were_none_were_of_the_attempt_before() -> None:
    run = Run()
    run.learn()
    run.steps(REACHED)
    run.evaluate(10 * run.round, REACHED, first=0.0)  # a scorer that failed
    shown = [c for c in run.judge.verdict().conditions if "are not counted" in c.message]
    run.start_again()
    run.train(START)
    assert shown
    assert not [c for c in run.judge.verdict().conditions if "are not counted" in c.message]


class TestHeldOutGuard:
    """What it has smoothed is of the attempt before; its baseline and its count are of the run."""

    SETTINGS: ClassVar = {"min_steps": 4, "ema_alpha": 0.8, "max_proxy_real_gap": 0.15, "rise_eps": 0.005}

    def test_it_goes_back_to_its_baseline(self) -> None:
        run = Run("heldout_guard", **self.SETTINGS)
        run.learn()
        rounds = run.judge.verdict().rounds
        run.start_again()
        run.train(START)
        verdict = run.judge.verdict()
        assert verdict.heldout_ema is not None and abs(verdict.heldout_ema - START) < 0.1
        assert verdict.in_loop_ema is not None and abs(verdict.in_loop_ema - START) < 0.05
        assert verdict.rounds == rounds + 1 and not verdict.fire and run.said

    def test_a_gap_from_that_baseline_fires_without_another_warm_up(self) -> None:
        run = Run("heldout_guard", **self.SETTINGS)
        run.learn()
        run.start_again()
        run.train(*[START] * 3, reward=1.0)
        assert run.judge.verdict().code is Code.HACKING_GAP

    def test_rounds_that_fell_before_it_are_no_patience_lost(self) -> None:
        run = Run("heldout_guard", **{**self.SETTINGS, "max_proxy_real_gap": 1.0, "decline_patience": 3})
        run.learn()
        for fallen, reward in ((REACHED - 0.2, 0.85), (REACHED - 0.4, 0.95)):  # two of three
            run.train(fallen, reward=reward)
        run.start_again()
        run.train(START - 0.15, reward=START + 0.2)
        assert not run.judge.verdict().fire

    def test_what_it_would_have_done_stays_told(self) -> None:
        run = Run(**self.SETTINGS)
        run.train(START)
        run.train(*[START] * 5, reward=0.9)
        told = [c for c in run.judge.verdict().conditions if c.code is Code.HACKING_GAP]
        assert told
        run.start_again()
        run.train(START)
        assert [c for c in run.judge.verdict().conditions if c.code is Code.HACKING_GAP] == told
