"""The judge: what is folded into a round, what each condition needs, and which level a verdict has."""

from __future__ import annotations

import pytest

from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import EvaluationFailingPolicy, HeldOutGuardPolicy, Policy, SilentPolicy, StalePolicy
from guard_core.wire import Code, KlKind, Level, StepReport, Verdict

SHARP = HeldOutGuardPolicy(
    kl_hard_stop=0.5, max_proxy_real_gap=0.2, min_steps=1, ema_alpha=0.0, rise_eps=0.01
)


def judge(**sections: object) -> Judge:
    return Judge(Policy(**{"heldout_guard": SHARP, **sections}))  # type: ignore[arg-type]


def step(n: int, reward: float = 0.5, kl: float | None = None, attempt: int = 0) -> StepReport:
    kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
    return StepReport(attempt=attempt, step=n, reward=reward, kl=kl, kl_kind=kind)


def evaluation(n: int, score: float = 0.5, attempt: int = 0) -> Evaluation:
    items = tuple(1.0 if i < round(score * 100) else 0.0 for i in range(100))
    return Evaluation(attempt, n, f"/checkpoints/checkpoint-{n}", items)


def codes(verdict: Verdict) -> dict[Code, Level]:
    return {c.code: c.level for c in verdict.conditions}


class TestMissingDataIsUnknown:
    def test_nothing_reported(self) -> None:
        verdict = judge().verdict()
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_STEPS)
        assert verdict.step is verdict.in_loop_ema is verdict.heldout_ema is verdict.proxy_real_gap is None
        assert verdict.latch_attempt is verdict.latch_step is None
        assert (verdict.kl_hard_stop, verdict.max_proxy_real_gap) == (0.5, 0.2)

    def test_steps_without_an_evaluation(self) -> None:
        j = judge()
        j.fold_step(step(0))
        assert (j.verdict().level, j.verdict().code) == (Level.UNKNOWN, Code.WARMING_UP)

    def test_an_evaluation_without_a_reward_is_not_folded(self) -> None:
        j = judge()
        j.fold_evaluation(evaluation(0))
        assert j.verdict().rounds == 0
        assert j.verdict().last_evaluation is not None

    def test_healthy_needs_a_judged_round(self) -> None:
        j = judge()
        j.fold_step(step(0))
        j.fold_evaluation(evaluation(0))
        verdict = j.verdict()
        assert (verdict.level, verdict.code) == (Level.HEALTHY, Code.OK)
        assert "1 rounds" in verdict.reason


class TestTheWindowOfARound:
    def test_in_loop_is_the_mean_of_the_steps_since_the_last_round(self) -> None:
        j = judge()
        for n, reward in enumerate([0.0, 1.0, 0.25, 0.75]):
            j.fold_step(step(n, reward))
        j.fold_evaluation(evaluation(1))
        assert j.verdict().in_loop_ema == 0.5
        j.fold_step(step(4, 0.2))
        j.fold_evaluation(evaluation(4))
        assert j.verdict().in_loop_ema == pytest.approx(0.4)

    def test_steps_after_the_checkpoint_wait_for_the_next_round(self) -> None:
        j = judge()
        for n, reward in enumerate([0.0, 0.0, 9.0]):
            j.fold_step(step(n, reward))
        j.fold_evaluation(evaluation(1))
        assert j.verdict().in_loop_ema == 0.0

    def test_steps_of_an_earlier_attempt_are_not_mixed_in(self) -> None:
        j = judge()
        j.fold_step(step(3, 9.0, attempt=0))
        j.fold_step(step(4, 0.25, attempt=1))
        j.fold_evaluation(evaluation(4, attempt=1))
        assert j.verdict().in_loop_ema == 0.25
        j.fold_step(step(5, 0.75, attempt=1))
        j.fold_evaluation(evaluation(5, attempt=1))
        assert j.verdict().in_loop_ema == 0.75

    def test_kl_is_the_median_so_that_one_spike_does_not_own_the_round(self) -> None:
        j = judge()
        for n, kl in enumerate([0.1, 22_000.0, 0.1]):
            j.fold_step(step(n, kl=kl))
        j.fold_evaluation(evaluation(2))
        assert not j.verdict().fire


class TestFires:
    def test_the_gap(self) -> None:
        j = judge()
        for n, (reward, score) in enumerate([(0.2, 0.5), (0.8, 0.5)]):
            j.fold_step(step(n, reward))
            j.fold_evaluation(evaluation(n, score))
        verdict = j.verdict()
        assert verdict.fire and verdict.halt
        assert (verdict.level, verdict.code) == (Level.FIRED, Code.HACKING_GAP)
        assert (verdict.latch_attempt, verdict.latch_step) == (0, 1)
        assert j.latch is not None and j.latch.fire and j.latch.step == 1

    def test_kl_does_not_wait_for_an_evaluation(self) -> None:
        j = judge()
        for n in range(5):
            j.fold_step(step(n, kl=0.9))
        assert (j.verdict().fire, j.verdict().code) == (True, Code.KL_HARD_STOP)

    def test_the_first_reason_stays(self) -> None:
        j = judge()
        for n in range(5):
            j.fold_step(step(n, kl=0.9))
        reason = j.verdict().reason
        for n in range(5, 8):
            j.fold_step(step(n, float(n), kl=0.9))
            j.fold_evaluation(evaluation(n, 0.0))
        assert j.verdict().reason == reason


class TestWhatCountsAsAKl:
    @pytest.mark.parametrize("kind", [KlKind.REF_SEQ_SUM, KlKind.BEHAVIOUR])
    def test_another_kind_is_inert_and_says_so(self, kind: KlKind) -> None:
        j = judge()
        for n in range(10):
            j.fold_step(StepReport(attempt=0, step=n, reward=0.5, kl=99.0, kl_kind=kind))
        verdict = j.verdict()
        assert not verdict.fire
        assert verdict.kl_ema is None
        assert codes(verdict)[Code.KL_INERT] is Level.HEALTHY
        assert kind.value in next(c.message for c in verdict.conditions if c.code is Code.KL_INERT)

    def test_an_exact_zero_that_never_moves_counts_as_absent(self) -> None:
        j = judge()
        for n in range(10):
            j.fold_step(step(n, kl=0.0))
        assert j.verdict().kl_ema is None
        assert "exactly 0" in next(c.message for c in j.verdict().conditions if c.code is Code.KL_INERT)

    def test_zeros_count_once_the_kl_has_moved(self) -> None:
        j = judge()
        for n, kl in enumerate([0.0, 0.2, 0.0, 0.2, 0.2, 0.2]):
            j.fold_step(step(n, kl=kl))
        assert j.verdict().kl_ema == pytest.approx(0.2)
        assert Code.KL_INERT not in codes(j.verdict())

    def test_a_kl_that_stops_coming_is_said(self) -> None:
        j = judge()
        j.fold_step(step(0, kl=0.2))
        j.fold_step(StepReport(attempt=0, step=1, reward=0.5, kl_kind=KlKind.REF_TOKEN_MEAN))
        assert "no KL" in next(c.message for c in j.verdict().conditions if c.code is Code.KL_INERT)


class TestSilence:
    POLICY = SilentPolicy(after_seconds=10.0, policy="stop")

    def test_warn_is_unknown_and_passes_when_steps_come_back(self) -> None:
        j = judge(silent=SilentPolicy(after_seconds=10.0, policy="warn"))
        j.fold_step(step(0))
        assert j.fold_silence(11.0) is False
        assert codes(j.verdict(silent_for=11.0))[Code.SILENT] is Level.UNKNOWN
        assert Code.SILENT not in codes(j.verdict(silent_for=0.0))
        assert not j.verdict(silent_for=11.0).halt

    def test_stop_latches_but_is_no_fire(self) -> None:
        j = judge(silent=self.POLICY)
        assert j.fold_silence(10.0) is False
        assert j.fold_silence(10.5) is True
        assert j.fold_silence(11.0) is False
        verdict = j.verdict(silent_for=0.0)
        assert verdict.halt and not verdict.fire
        assert verdict.code is Code.SILENT
        assert j.latch is not None and not j.latch.fire

    def test_a_fire_after_a_stop_is_still_a_fire(self) -> None:
        j = judge(silent=self.POLICY)
        j.fold_silence(99.0)
        for n in range(5):
            j.fold_step(step(n, kl=0.9))
        assert j.verdict().fire
        assert j.verdict().level is Level.FIRED


class TestStale:
    @pytest.mark.parametrize("policy", ["warn", "stop"])
    def test_checkpoints_that_wait(self, policy: str) -> None:
        j = judge(stale=StalePolicy(after_rounds=2, policy=policy))
        for _ in range(2):
            j.fold_checkpoint()
        assert Code.STALE not in codes(j.verdict())
        j.fold_checkpoint()
        assert Code.STALE in codes(j.verdict())
        assert j.verdict().halt is (policy == "stop")
        assert not j.verdict().fire

    def test_evaluations_work_the_queue_off(self) -> None:
        j = judge(stale=StalePolicy(after_rounds=1))
        for _ in range(2):
            j.fold_checkpoint()
        assert Code.STALE in codes(j.verdict())
        j.fold_evaluation(evaluation(0))
        assert Code.STALE not in codes(j.verdict())

    def test_steps_without_any_checkpoint(self) -> None:
        j = judge(stale=StalePolicy(after_steps=3))
        for n in range(4):
            j.fold_step(step(n))
        assert "4 steps" in next(c.message for c in j.verdict().conditions if c.code is Code.STALE)
        j.fold_evaluation(evaluation(2))
        assert Code.STALE not in codes(j.verdict())


class TestFailingEvaluations:
    def test_in_a_row(self) -> None:
        j = judge(evaluation_failing=EvaluationFailingPolicy(after_failures=2))
        j.fold_failure("no such file")
        assert Code.EVALUATION_FAILING not in codes(j.verdict())
        j.fold_failure("out of memory")
        condition = next(c for c in j.verdict().conditions if c.code is Code.EVALUATION_FAILING)
        assert "out of memory" in condition.message
        assert condition.level is Level.UNKNOWN

    def test_a_success_ends_the_row(self) -> None:
        j = judge(evaluation_failing=EvaluationFailingPolicy(after_failures=2, policy="stop"))
        j.fold_failure("one")
        j.fold_evaluation(evaluation(0))
        j.fold_failure("one")
        assert not j.verdict().halt
        j.fold_failure("two")
        assert j.verdict().halt


class TestBestCheckpoint:
    def test_it_is_the_highest_score_and_the_later_of_equals(self) -> None:
        j = judge()
        for n, score in enumerate([0.4, 0.6, 0.6, 0.5]):
            j.fold_evaluation(evaluation(n, score))
        best = j.verdict().best_evaluation
        assert best is not None and (best.step, best.score) == (2, 0.6)
        assert j.verdict().last_evaluation is not None and j.verdict().last_evaluation.step == 3


def test_the_worst_condition_names_the_verdict() -> None:
    j = judge(stale=StalePolicy(after_rounds=1))
    for _ in range(2):
        j.fold_checkpoint()
    for n in range(5):
        j.fold_step(step(n, kl=0.9))
    levels = [c.level.severity for c in j.verdict().conditions]
    assert levels == sorted(levels, reverse=True)
    assert j.verdict().code is Code.KL_HARD_STOP


def test_levels_have_one_order() -> None:
    assert [level.severity for level in (Level.HEALTHY, Level.UNKNOWN, Level.WARNING, Level.FIRED)] == [
        0,
        1,
        2,
        3,
    ]


def test_every_code_has_a_meaning() -> None:
    assert all(code.meaning.endswith(".") for code in Code)


def test_no_answer_can_carry_items() -> None:
    j = judge()
    j.fold_step(step(0))
    j.fold_evaluation(evaluation(0))
    assert "1.0, 1.0" not in j.verdict().model_dump_json()


def test_another_version_of_the_state_is_refused() -> None:
    with pytest.raises(ValueError, match="version"):
        Judge.from_state({**judge().to_state(), "version": 0})


def test_a_stored_latch_closes_again_and_an_earlier_one_stays() -> None:
    judge = Judge(Policy())
    stop = Latch(False, "silent", "no step for 1801 s", 0, 7)
    judge.fold_latch(stop)
    judge.fold_latch(Latch(False, "stale", "later", 0, 9))
    assert judge.latches == (stop,)
    assert judge.verdict().halt and not judge.verdict().fire
    fire = Latch(True, "kl_hard_stop", "KL", 0, 8)
    judge.fold_latch(fire)
    assert judge.latches == (fire, stop)
    assert judge.verdict().fire and judge.latch == fire
