"""A trainer that starts from scratch under the guard of an earlier attempt: what it is compared with."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from rlguard.core.attempts import MOST_STARTS
from rlguard.core.codes import Code, Level
from rlguard.core.ending import not_judged
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.trainer_view import for_trainer
from rlguard.core.wire import (
    CheckpointReport,
    Condition,
    EvaluationSampling,
    Sampling,
    SamplingSource,
    StepReport,
)

from simulated import GuardedRun, draw  # isort: skip

ITEMS, START, REACHED, LOST = 256, 0.35, 0.75, 0.15
CALIBRATED = CalibratedPolicy(baseline_passes=4, on_gap="stop")


class Run(GuardedRun):
    """A trainer that begins again and again; ten steps and one checkpoint a round."""

    def __init__(self, policy: Policy | None = None, seed: int = 7, items: int = ITEMS) -> None:
        super().__init__(policy or Policy(calibrated=CALIBRATED), seed)
        self.items, self.round = items, 0
        self.scored(0, self.means(START))

    def means(self, score: float) -> np.ndarray:
        return np.full(self.items, score)

    def more_steps(self, reward: float = START) -> int:
        self.round += 1
        self.steps(10 * self.round - 9, 10 * self.round, reward)
        return 10 * self.round

    def train(self, *scores: float, reward: float | None = None) -> None:
        """Rounds with these true held-out scores; the reward is the score, or what is given."""
        for score in scores:
            step = self.more_steps(score if reward is None else reward)
            if self.judge.latch is None:
                self.scored(step, self.means(score))

    def learn(self, rounds: int = 16) -> None:
        self.train(*np.linspace(START, REACHED, rounds))

    def start_again(self, at: int = 0) -> None:
        self.attempt, self.round = self.attempt + 1, at

    @property
    def said(self) -> list[Condition]:
        return self.about(Code.STARTED_AGAIN)


def test_it_learns_anew_and_is_not_stopped() -> None:
    run = Run()
    run.learn()
    run.start_again()
    run.train(START)
    assert not_judged(run.judge.verdict(), "wait longer") != "", "it has to be judged anew"
    run.learn(30)
    verdict = run.judge.verdict()
    assert not verdict.fire and not_judged(verdict, "wait longer") == ""
    (told,) = run.said
    (to_the_trainer,) = [c for c in for_trainer(verdict).conditions if c.code is told.code]
    assert to_the_trainer.message == Code.STARTED_AGAIN.meaning, "an alarm that waits is not told"
    assert told.advice and "attempt 1 started from scratch" in told.message and "number 1" in told.message


@pytest.mark.parametrize("scored", ["before the first step", "after it"])
def test_a_loop_may_announce_its_start_again(scored: str) -> None:
    """As the loops of docs/concepts/trainer.md do; the score of that checkpoint is there when it is there."""
    run = Run()
    run.learn()
    run.start_again()
    if scored == "after it":
        run.more_steps()
    run.scored(0, run.means(START))
    run.learn()
    assert not run.judge.verdict().fire and "number 1" in run.said[0].message, "it is one start"


@pytest.mark.parametrize("scored", [True, False], ids=["scored late", "never scored"])
def test_a_start_that_crashed_before_it_was_judged_is_that_of_the_attempt_that_goes_on(scored: bool) -> None:
    run = Run()
    run.learn()
    run.start_again()
    run.more_steps()
    run.judge.fold_checkpoint()
    run.start_again(at=1)
    run.more_steps()
    if scored:
        items = tuple(draw(run.rng, run.means(START)).tolist())
        run.judge.fold_evaluation(Evaluation(1, 10, "/checkpoints/10", items))
    else:
        run.judge.fold_failure("it was gone")
    run.scored(20, run.means(START))
    run.learn()
    assert not run.judge.verdict().fire and "attempt 1 started from scratch" in run.said[0].message


def test_a_baseline_may_be_scored_after_the_next_attempt_began() -> None:
    """The first evaluation takes long, and what waits behind it is of the attempt that is over."""
    run = Run()
    run.judge = Judge(run.judge.policy)
    for attempt, step in ((0, 1), (0, 30), (1, 1)):
        run.judge.fold_step(StepReport(attempt=attempt, step=step, reward=START))
    run.scored(0, run.means(START))
    for step in (10, 20, 30):
        run.scored(step, run.means(REACHED))
    run.attempt = 1
    run.learn()
    assert not run.judge.verdict().fire and "attempt 1 started from scratch" in run.said[0].message


@pytest.mark.parametrize(
    ("first", "again", "from_scratch"),
    [(1, 1, True), (10, 10, True), (10, 5, True), (1, 2, True), (1, 3, False), (1, 161, False)],
    ids=["the same", "logged every ten", "earlier", "its first is late", "a resumed one", "goes on"],
)
def test_an_attempt_that_begins_where_the_first_did_started_from_scratch(
    first: int, again: int, from_scratch: bool
) -> None:
    run = Run()
    run.steps(first, 160, START)
    run.scored(160, run.means(START))
    run.start_again()
    run.steps(again, again + 9, START)
    run.scored(again + 9, run.means(START))
    assert bool(run.said) is from_scratch


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


def test_a_reward_that_rose_before_it_has_risen() -> None:
    """The score stays where it is. Whoever numbers steps anew is not rid of where the reward began."""
    run = Run(Policy(calibrated=CALIBRATED.model_copy(update={"baseline_passes": 16})), items=1500)
    rewards = [0.35, 0.53, 0.72, *[0.9] * 60]
    for round_, reward in enumerate(rewards):
        if round_ == 2:
            assert not run.judge.verdict().fire
            run.start_again()
        run.train(START, reward=reward)
    assert run.judge.verdict().code is Code.REWARD_WITHOUT_GAIN and run.judge.verdict().fire


def test_a_fourth_time_it_is_compared_with_what_was_reached() -> None:
    run = Run()
    run.learn()
    for _ in range(MOST_STARTS):
        run.start_again()
        run.learn()
        assert not run.judge.verdict().fire
    run.start_again()
    run.train(*[START] * 8)
    assert run.judge.verdict().fire and "as 3 had done before" in run.said[0].message


@pytest.mark.parametrize(("action", "halts"), [("warn", False), ("stop", True)])
def test_a_start_too_many_is_what_silence_is(action: str, halts: bool) -> None:
    run = Run(Policy.model_validate({"calibrated": CALIBRATED, "silent": {"action": action}}))
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
        step = run.more_steps()
        run.judge.fold_checkpoint()
        run.evaluate(step, draw(run.rng, run.means(LOST)))
    assert any("has to confirm" in r.message for r in run.judge.verdict().detectors)
    run.judge.fold_skipped(1)  # the fresh pass that decides it cannot be made: the checkpoint is gone
    if restarts:
        run.start_again()
    step = run.more_steps()
    run.evaluate(step, draw(run.rng, run.means(LOST)))
    assert run.judge.verdict().fire


def test_nothing_of_a_run_that_was_stopped_is_forgotten() -> None:
    run = Run()
    run.train(*[START] * 6, *[LOST] * 8)
    before = run.judge.verdict()
    run.start_again()
    run.scored(run.more_steps(), run.means(START))
    after = run.judge.verdict()
    assert (after.fire, after.code, after.reason) == (True, before.code, before.reason)


def test_evaluations_that_did_not_count_were_of_the_attempt_before() -> None:
    run = Run()
    run.learn()
    means = run.means(REACHED)  # a scorer failed on the first pass
    run.checkpoint(run.more_steps(REACHED), lambda index: draw(run.rng, means) if index else 0 * means)
    assert [c for c in run.judge.verdict().conditions if "are not counted" in c.message]
    run.start_again()
    run.train(START)
    assert not [c for c in run.judge.verdict().conditions if "are not counted" in c.message]


def test_a_score_is_cut_short_by_what_its_own_start_reached() -> None:
    """More is cut off than at the start, and the score has risen: there is no fall that it could be."""
    longer = Sampling(temperature=1.0, max_new_tokens=2048)
    used = EvaluationSampling(temperature=1.0, max_new_tokens=512, samples=1, source=SamplingSource.SETTINGS)
    judge = Judge(Policy(calibrated=CALIBRATED))
    judge.fold_checkpoint(CheckpointReport(attempt=0, step=0, path="/c", sampling=longer))

    def fold(attempt: int, step: int, score: float, cut: float) -> bool:
        judge.fold_step(StepReport(attempt=attempt, step=step + 1, reward=score))
        items = tuple(float(i < round(score * ITEMS)) for i in range(ITEMS))
        shares = {"truncated": cut, "unscored": cut, "sampling": used}
        judge.fold_evaluation(Evaluation(attempt, step, "/c", items, **shares))  # type: ignore[arg-type]
        return Code.CUT_SHORT in {c.code for c in judge.verdict().conditions}

    fold(0, 0, START, 0.02)
    fold(0, 10, START + 0.09, 0.02)
    fold(1, 0, START, 0.42)
    assert not fold(1, 10, START + 0.02, 0.45)
    assert fold(1, 20, START - 0.1, 0.45)


class TestHeldOutGuard:
    """What it has smoothed is of the attempt before; its baseline and its count are of the run."""

    SETTINGS: ClassVar = {"min_steps": 4, "ema_alpha": 0.8, "max_proxy_real_gap": 0.15, "rise_eps": 0.005}

    def run(self, **settings: object) -> Run:
        guard = HeldOutGuardPolicy.model_validate(self.SETTINGS | settings)
        run = Run(Policy(detector="heldout_guard", heldout_guard=guard))
        run.learn()
        return run

    def test_it_goes_back_to_its_baseline_and_its_warm_up_is_over(self) -> None:
        run = self.run()
        rounds = run.judge.verdict().rounds
        run.start_again()
        run.train(START)
        verdict = run.judge.verdict()
        assert verdict.heldout_ema is not None and abs(verdict.heldout_ema - START) < 0.1
        assert verdict.in_loop_ema is not None and abs(verdict.in_loop_ema - START) < 0.05
        assert verdict.rounds == rounds + 1 and not verdict.fire and run.said
        run.train(*[START] * 3, reward=1.0)
        assert run.judge.verdict().code is Code.HACKING_GAP

    def test_rounds_that_fell_before_it_are_no_patience_lost(self) -> None:
        run = self.run(max_proxy_real_gap=1.0, decline_patience=3)
        for fallen, reward in ((REACHED - 0.2, 0.85), (REACHED - 0.4, 0.95)):  # two of three
            run.train(fallen, reward=reward)
        run.start_again()
        run.train(START - 0.15, reward=START + 0.2)
        assert not run.judge.verdict().fire
