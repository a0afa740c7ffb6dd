"""The judge with `detector: calibrated | both`: it gathers the baseline, asks for passes, latches, restarts.

Also: what HeldOutGuard and the KL stop may do under each setting; nothing per item is in a verdict.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from guard_core.judge import Evaluation, Judge
from guard_core.policy import Policy
from guard_core.wire import Code, KlKind, Level, StepReport

from simulated import difficulties, draw  # isort: skip

N = 128
MEANS = difficulties(N)
PASSES = 4


def policy(detector: str = "calibrated", **calibrated) -> Policy:
    settings = {"baseline_passes": PASSES, "bootstrap_runs": 200, "horizon": 60, "alpha": 0.01, **calibrated}
    return Policy.model_validate({"detector": detector, "calibrated": settings})


class Run:
    """A guarded run: ten steps and one checkpoint a round; it gives the judge the passes that it wants."""

    def __init__(self, detector: str = "calibrated", **calibrated) -> None:
        self.judge = Judge(policy(detector, **calibrated))
        self.rng = np.random.default_rng(1)
        self.passes: list[int] = []

    def steps(self, round_: int, kl: float | None = None) -> None:
        for step in range(10 * round_ - 9, 10 * round_ + 1) if round_ else [0]:
            kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
            reward = 0.5 + 0.01 * float(self.rng.standard_normal())
            self.judge.fold_step(StepReport(attempt=0, step=step, reward=reward, kl=kl, kl_kind=kind))

    def evaluate(self, round_: int, share: float = 1.0, index: int = 0) -> None:
        items = tuple(draw(self.rng, MEANS * share).tolist())
        path = f"/checkpoints/{10 * round_}"
        self.judge.fold_evaluation(Evaluation(0, 10 * round_, path, items, None, index))

    def round(self, round_: int, share: float = 1.0, kl: float | None = None) -> None:
        self.steps(round_, kl)
        self.judge.fold_checkpoint()
        self.evaluate(round_, share)
        while (wanted := self.judge.wanted_pass()) is not None:
            assert (wanted.attempt, wanted.step, wanted.path) == (
                0,
                10 * round_,
                f"/checkpoints/{10 * round_}",
            )
            self.passes.append(wanted.index)
            self.evaluate(round_, share, wanted.index)


def test_the_first_checkpoint_is_evaluated_until_the_baseline_is_complete():
    run = Run()
    verdict = run.judge.verdict()
    assert verdict.detectors == ()
    run.steps(0)
    run.judge.fold_checkpoint()
    run.evaluate(0)
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_BASELINE)
    assert "1 of 4 passes" in verdict.reason
    wanted = []
    while (request := run.judge.wanted_pass()) is not None:
        wanted.append(request.index)
        run.evaluate(0, 1.0, request.index)
    assert wanted == [1, 2, 3]
    assert run.judge.verdict().code is Code.NO_BASELINE  # nothing to compare with it yet
    run.round(1)
    verdict = run.judge.verdict()
    assert verdict.level is Level.HEALTHY
    assert [r.name for r in verdict.detectors] == ["guaranteed", "fast", "peak", "gap"]


def test_later_passes_count_neither_as_rounds_nor_as_checkpoints():
    run = Run()
    run.round(0)
    before = run.judge.verdict()
    assert before.rounds == 1
    assert before.best_evaluation == before.last_evaluation
    assert run.judge.to_state()["waiting"] == 0


def test_a_drop_fires_and_names_its_code_and_no_pass_is_wanted_afterwards():
    run = Run()
    for round_ in range(40):
        run.round(round_, 1.0 if round_ < 20 else 0.6)
        assert run.judge.verdict().fire is False or round_ >= 20
    verdict = run.judge.verdict()
    assert verdict.fire and verdict.halt and verdict.level is Level.FIRED
    assert verdict.code in {Code.GUARANTEED_DECLINE, Code.FAST_DECLINE, Code.PEAK_DECLINE}
    assert run.judge.wanted_pass() is None


def test_an_alarm_asks_for_one_fresh_evaluation_of_that_checkpoint():
    run = Run(baseline_passes=16, alpha_shares={"guaranteed": 1e-6, "fast": 0.9, "peak": 1e-6, "gap": 1e-6})
    for round_ in range(15):
        run.round(round_)
    run.passes.clear()
    run.steps(15)
    run.judge.fold_checkpoint()
    run.evaluate(15, 0.2)
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.code, verdict.fire) == (Level.WARNING, Code.FAST_DECLINE, False)
    wanted = run.judge.wanted_pass()
    assert wanted is not None and (wanted.step, wanted.index) == (150, 1)
    run.evaluate(15, 1.0, 1)  # the fresh one is fine: no fire, and no third evaluation
    assert not run.judge.verdict().fire
    assert run.judge.wanted_pass() is None


def test_the_baseline_closes_early_when_a_pass_fails_or_another_checkpoint_comes():
    run = Run()
    run.steps(0)
    run.judge.fold_checkpoint()
    run.evaluate(0)
    run.judge.fold_failure("the checkpoint was rotated away", 1)
    assert run.judge.wanted_pass() is None
    for round_ in range(1, 40):
        run.round(round_, 1.0 if round_ < 10 else 0.3)
        assert not (run.judge.verdict().fire and round_ < 10)
    assert run.judge.verdict().fire  # one pass is a baseline too


def test_an_evaluation_of_other_items_is_unknown_and_not_judged():
    run = Run()
    run.round(0)
    run.judge.fold_evaluation(Evaluation(0, 10, "/checkpoints/10", (1.0, 0.0)))
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_BASELINE)
    assert f"2 items, but the baseline has {N}" in verdict.reason
    run.round(2)
    assert run.judge.verdict().level is Level.HEALTHY


@pytest.mark.parametrize("detector", ["calibrated", "both"])
def test_a_restart_at_any_event_changes_nothing(detector):
    live, restarted = Run(detector), Run(detector)
    for round_ in range(22):
        for run in (live, restarted):
            run.round(round_, 1.0 if round_ < 14 else 0.7)
        state = json.loads(json.dumps(restarted.judge.to_state(), allow_nan=False))
        restarted.judge = Judge.from_state(state)
        assert restarted.judge.to_state() == state
        assert restarted.judge.verdict() == live.judge.verdict()
    assert live.judge.verdict().fire


def test_under_calibrated_the_kl_stop_and_heldout_guard_only_inform():
    run = Run("calibrated")
    for round_ in range(25):
        run.round(round_, kl=0.5)
    verdict = run.judge.verdict()
    assert not verdict.fire and not verdict.halt
    assert [c.level for c in verdict.conditions if c.code is Code.KL_HARD_STOP] == [Level.WARNING]
    assert Code.WARMING_UP not in {c.code for c in verdict.conditions}


def test_under_both_the_old_rule_still_fires():
    run = Run("both")
    for round_ in range(3):
        run.round(round_, kl=0.5)
    assert run.judge.verdict().code is Code.KL_HARD_STOP
    assert run.judge.verdict().fire


def test_under_heldout_guard_no_pass_is_wanted_and_nothing_is_added():
    run = Run("heldout_guard")
    run.round(0)
    assert run.passes == []
    assert run.judge.verdict().detectors == ()
    assert run.judge.to_state()["calibrated"] is None


def test_a_verdict_carries_no_outcome_of_an_item():
    run = Run()
    for round_ in range(3):
        run.round(round_)
    dumped = run.judge.verdict().model_dump(mode="json")
    lengths = [len(v) for v in dumped.values() if isinstance(v, list)]
    assert max(lengths) < N
    for reading in dumped["detectors"]:
        assert set(reading) == {"name", "level", "code", "statistic", "threshold", "message"}


class EarlyRun(Run):
    """Folds ahead, and a step comes before the fold itself, as in the guard."""

    def evaluate(self, round_: int, share: float = 1.0, index: int = 0) -> None:
        items = tuple(draw(self.rng, MEANS * share).tolist())
        evaluation = Evaluation(0, 10 * round_, f"/checkpoints/{10 * round_}", items, None, index)
        before = self.judge.to_state()
        ahead = self.judge.fold_ahead(evaluation)
        assert (ahead is None) == (index == 0)
        assert self.judge.to_state() == before
        late = StepReport(attempt=0, step=10 * round_ + 1, reward=0.5, kl=None, kl_kind=KlKind.ABSENT)
        other = Judge.from_state(before)
        for judge in (self.judge, other):
            judge.fold_step(late)
        self.judge.fold_evaluation(evaluation, ahead)
        other.fold_evaluation(evaluation)
        assert self.judge.to_state() == other.to_state()


def test_what_is_folded_ahead_is_what_the_fold_itself_gives():
    run = EarlyRun()
    for round_ in range(12):
        run.round(round_, share=1.0 if round_ < 4 else 0.8)
    assert run.passes[:3] == [1, 2, 3]
