"""The judge: what is folded into a round, what each condition needs, and which level a verdict has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.compact import CompactState
from guard_core.ending import not_judged
from guard_core.evaluation import HfEvaluation
from guard_core.judge import Judge, Latch
from guard_core.policy import (
    CalibratedPolicy,
    EvaluationFailingPolicy,
    HeldOutGuardPolicy,
    KlPolicy,
    Policy,
    SilentPolicy,
    StalePolicy,
)
from guard_core.rounds import Evaluation, Round
from guard_core.wire import CheckpointReport, EndReport, FailureKind, KlKind, Sampling, StepReport, Verdict

SHARP = HeldOutGuardPolicy(max_proxy_real_gap=0.2, min_steps=1, ema_alpha=0.0, rise_eps=0.01)
KL = KlPolicy(warn_above=0.25, hard_stop=0.5, min_steps=5)


def judge(**sections: object) -> Judge:
    return Judge(Policy(**{"detector": "heldout_guard", "heldout_guard": SHARP, "kl": KL, **sections}))  # type: ignore[arg-type]


def step(n: int, reward: float | None = 0.5, kl: float | None = None, attempt: int = 0) -> StepReport:
    kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
    return StepReport(attempt=attempt, step=n, reward=reward, kl=kl, kl_kind=kind)


def evaluation(n: int, score: float = 0.5, attempt: int = 0) -> Evaluation:
    items = tuple(1.0 if i < round(score * 100) else 0.0 for i in range(100))
    return Evaluation(attempt, n, f"/checkpoints/checkpoint-{n}", items)


def drift(j: Judge) -> None:
    """Five steps that begin at the reference and end far from it."""
    for n, kl in enumerate([0.0, 0.9, 0.9, 0.9, 0.9]):
        j.fold_step(step(n, kl=kl))


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
        assert "1 evaluated checkpoint" in verdict.reason


class TestWarmUp:
    WARM = SHARP.model_copy(update={"min_steps": 5})

    def test_a_rule_that_only_warm_up_keeps_from_firing_is_a_warning(self) -> None:
        j = judge(heldout_guard=self.WARM)
        for n, (reward, score) in enumerate([(0.2, 0.5), (0.9, 0.5)]):
            j.fold_step(step(n, reward))
            j.fold_evaluation(evaluation(n, score))
        verdict = j.verdict()
        assert not verdict.stop
        assert (verdict.level, verdict.code) == (Level.WARNING, Code.HACKING_GAP)
        assert "only its warm-up keeps the rule from stopping the run: Hacking Gap +0.7" in verdict.reason
        assert codes(verdict)[Code.WARMING_UP] is Level.UNKNOWN
        assert j.copy().verdict() == verdict

    def test_after_the_warm_up_only_the_rule_speaks(self) -> None:
        j = judge(heldout_guard=self.WARM, kl=KlPolicy())
        for n, reward in enumerate([0.2, 0.9, 0.2, 0.2, 0.2]):
            assert j.verdict().level is not Level.HEALTHY
            j.fold_step(step(n, reward))
            j.fold_evaluation(evaluation(n))
        assert (j.verdict().level, j.verdict().code) == (Level.HEALTHY, Code.OK)

    def test_a_quiet_warm_up_is_unknown(self) -> None:
        j = judge(heldout_guard=self.WARM)
        j.fold_step(step(0))
        j.fold_evaluation(evaluation(0))
        assert (j.verdict().level, j.verdict().code) == (Level.UNKNOWN, Code.WARMING_UP)


class TestStepsAfterTheLastEvaluation:
    def test_they_are_counted_and_so_is_the_longest_round(self) -> None:
        j = judge()
        for n in range(7):
            j.fold_step(step(n))
        j.fold_evaluation(evaluation(3))
        after = j.verdict()
        assert (after.steps_since_evaluation, after.longest_round) == (3, 4)
        j.fold_step(step(7))
        j.fold_evaluation(evaluation(5))
        after = j.copy().verdict()
        assert (after.steps_since_evaluation, after.longest_round) == (2, 4)

    def trained(self, *steps: int, evaluated: int = 80) -> Judge:
        j = judge()
        for n in steps:
            j.fold_step(step(n))
        j.fold_evaluation(evaluation(evaluated))
        return j

    @pytest.mark.parametrize(
        ("told", "after"),
        [(100, 15), (85, 0), (3, 0), (None, 0)],
    )
    def test_what_a_trainer_made_and_could_not_report_counts_and_never_less(
        self, told: int | None, after: int
    ) -> None:
        """A reward that is NaN from step 86 on is not reported."""
        j = self.trained(*range(1, 86))
        before = j.verdict().steps_since_evaluation
        j.fold_end(EndReport(attempt=0, step=told))
        assert before == 5 and j.copy().verdict().steps_since_evaluation == 5 + after

    @pytest.mark.parametrize("scored_late", [False, True])
    def test_steps_before_the_first_report_count_whenever_their_checkpoint_is_scored(
        self, scored_late: bool
    ) -> None:
        """The rewards of steps 1 and 2 were not finite; the checkpoint before them is scored when it is."""
        j = Judge(Policy())
        events: list[Callable[[], object]] = [
            lambda: j.fold_evaluation(evaluation(0)),
            lambda: j.fold_step(step(3)),
        ]
        for event in reversed(events) if scored_late else events:
            event()
        j.fold_step(step(4))
        assert j.verdict().steps_since_evaluation == 4

    def test_a_checkpoint_that_is_scored_after_a_later_one_takes_nothing_back(self) -> None:
        j = self.trained(*range(1, 11), evaluated=10)
        j.fold_evaluation(evaluation(5))
        assert j.verdict().steps_since_evaluation == 0

    def test_what_it_said_is_not_taken_back(self) -> None:
        j = self.trained(*range(1, 81))
        for told in (100, 81, None):
            j.fold_end(EndReport(attempt=0, step=told))
        assert j.verdict().steps_since_evaluation == 20
        assert j.verdict().step == 80, "the newest that was reported stays what it is"

    def test_checkpoints_that_were_gone_before_they_could_be_announced_were_not_judged(self) -> None:
        j = self.trained(*range(1, 81), evaluated=80)
        j.fold_checkpoint()
        for gone in (2, 0):
            j.fold_end(EndReport(attempt=0, step=80, gone=gone))
        verdict = j.copy().verdict()
        assert (verdict.announced, verdict.evaluated, verdict.skipped, verdict.waiting) == (3, 1, 2, 0)
        assert "2 of 3 checkpoints were not evaluated (2 skipped)" in not_judged(verdict, "wait longer")

    def test_a_checkpoint_of_the_last_step_judges_them(self) -> None:
        j = self.trained(*range(1, 81))
        j.fold_end(EndReport(attempt=0, step=100))
        j.fold_evaluation(evaluation(100))
        assert j.verdict().steps_since_evaluation == 0

    def test_a_loop_that_reports_every_tenth_step_has_left_none_out(self) -> None:
        j = self.trained(*range(10, 131, 10), evaluated=100)
        j.fold_end(EndReport(attempt=0, step=139))
        assert j.verdict().steps_since_evaluation == 3
        j.fold_end(EndReport(attempt=0, step=160))
        assert j.verdict().steps_since_evaluation == 3 + 3, "as many as it would have reported"

    def test_an_attempt_that_could_report_nothing_counts_until_a_later_one_reports(self) -> None:
        j = self.trained(*range(1, 91))
        j.fold_end(EndReport(attempt=1, step=100))
        assert j.verdict().steps_since_evaluation == 10 + 10
        j.fold_step(step(81, attempt=2))
        assert j.verdict().steps_since_evaluation == 10 + 1

    def test_an_attempt_that_had_nothing_left_to_do_adds_nothing(self) -> None:
        j = self.trained(*range(1, 81))
        j.fold_end(EndReport(attempt=1, step=80))
        assert j.verdict().steps_since_evaluation == 0

    def test_a_resumed_attempt_counts_from_what_it_reported_itself(self) -> None:
        """The checkpoint that was judged is of the attempt before, and later than where this one began."""
        j = self.trained(*range(1, 81))
        j.fold_step(step(51, attempt=1))
        j.fold_end(EndReport(attempt=1, step=71))
        assert j.verdict().steps_since_evaluation == 1 + 20

    @pytest.mark.parametrize(
        ("began", "ended", "after"),
        [(20, 60, 40), (20, 80, 60), (20, 100, 80), (80, 100, 20), (80, 80, 0), (None, 100, 20)],
    )
    def test_a_later_attempt_without_a_reward_counts_from_where_it_began(
        self, began: int | None, ended: int, after: int
    ) -> None:
        """Steps 21 to 80 of the attempt before were judged, and are not those that this one made again."""
        j = self.trained(*range(1, 81))
        j.fold_end(EndReport(attempt=1, step=ended, began=began))
        assert j.copy().verdict() == j.verdict()
        assert j.verdict().steps_since_evaluation == after

    def test_a_checkpoint_of_an_attempt_without_a_reward_judges_its_steps(self) -> None:
        j = self.trained(*range(1, 81))
        j.fold_evaluation(evaluation(50, attempt=1))
        j.fold_end(EndReport(attempt=1, step=60, began=20))
        assert j.verdict().steps_since_evaluation == 10

    def test_steps_between_two_reports_were_made(self) -> None:
        """Rewards were NaN at steps 81 to 399: a finite one at the end does not hide them."""
        j = self.trained(*range(1, 81))
        j.fold_step(step(400))
        assert j.verdict().steps_since_evaluation == 320
        j.fold_end(EndReport(attempt=0, step=90, began=0))
        assert j.verdict().steps_since_evaluation == 320
        j.fold_evaluation(evaluation(60))
        j.fold_end(EndReport(attempt=0, step=400, began=0))
        assert j.verdict().steps_since_evaluation == 320
        j.fold_end(EndReport(attempt=0, step=410, began=0))
        assert j.copy().verdict().steps_since_evaluation == 330

    def test_a_loop_that_reports_every_tenth_step_counts_its_reports(self) -> None:
        j = judge()
        for n in (10, 20):
            j.fold_step(step(n))
        assert j.verdict().steps_since_evaluation == 2

    def test_a_last_report_that_comes_early_changes_no_count(self) -> None:
        """A loop that reports every tenth step, and its last one."""
        j = self.trained(*range(10, 91, 10), 95, evaluated=80)
        assert (j.verdict().steps_since_evaluation, j.verdict().longest_round) == (2, 8)

    def test_of_two_usual_distances_the_shorter_counts(self) -> None:
        j = self.trained(*range(10, 51, 10), 52, 54, 56, 58, evaluated=50)
        assert j.verdict().steps_since_evaluation == 4
        j.fold_step(step(78))
        assert j.verdict().steps_since_evaluation == 14

    def test_steps_that_are_numbered_without_any_order_take_no_memory(self) -> None:
        j = self.trained(*(n * (n + 1) // 2 for n in range(200)), evaluated=0)
        assert len(j.compact().notes.count.apart) == 64

    def test_such_a_round_is_as_long_as_it_was(self) -> None:
        """Else an ordinary end would have more steps than any round."""
        j = self.trained(*range(1, 41), 80)
        assert j.verdict().longest_round == 80
        j.fold_step(step(81))
        j.fold_step(step(91))
        assert j.verdict().steps_since_evaluation == 11
        j.fold_evaluation(evaluation(91))
        assert j.verdict().longest_round == 80

    def test_so_is_one_of_an_earlier_attempt_that_is_judged_late(self) -> None:
        j = judge()
        for n in range(1, 31):
            j.fold_step(step(n))
        for n in (11, 12):
            j.fold_step(step(n, attempt=1))
        j.fold_evaluation(evaluation(30))
        j.fold_evaluation(evaluation(12, attempt=1))
        assert j.verdict().longest_round == 30

    def test_what_came_before_the_first_report_of_an_attempt_is_known_from_its_checkpoint(self) -> None:
        j = judge()
        j.fold_evaluation(evaluation(0))
        j.fold_step(step(81))
        assert j.verdict().steps_since_evaluation == 81

    def test_or_from_its_end(self) -> None:
        j = self.trained(*range(1, 81))
        j.fold_step(step(91, attempt=1))
        assert j.verdict().steps_since_evaluation == 1
        j.fold_end(EndReport(attempt=1, step=91, began=50))
        assert j.verdict().steps_since_evaluation == 41
        j.fold_evaluation(evaluation(91, attempt=1))
        assert j.verdict().steps_since_evaluation == 0

    def test_a_late_evaluation_of_an_earlier_attempt_judges_nothing_of_this_one(self) -> None:
        j = self.trained(*range(1, 81))
        for n in (51, 52, 60):
            j.fold_step(step(n, attempt=1))
        j.fold_evaluation(evaluation(80))
        assert j.verdict().steps_since_evaluation == 10

    def test_a_checkpoint_of_an_attempt_that_has_reported_nothing_judges_all_before(self) -> None:
        j = self.trained(*range(1, 81), 90)
        j.fold_evaluation(evaluation(95, attempt=1))
        assert j.verdict().steps_since_evaluation == 0

    def test_a_starting_policy_alone_has_no_round(self) -> None:
        j = judge()
        j.fold_evaluation(evaluation(0))
        j.fold_step(step(1))
        assert (j.verdict().steps_since_evaluation, j.verdict().longest_round) == (1, 0)


class TestRewardsThatAreNotFinite:
    """They are reported as null: such steps are counted, and nothing is judged by them."""

    def test_five_in_a_row_are_unknown_and_say_so_until_a_finite_one_comes(self) -> None:
        j = judge()
        for n in range(1, 5):
            j.fold_step(step(n, reward=None))
        assert Code.NO_REWARD not in codes(j.verdict()), "one overflow happens in good runs"
        j.fold_step(step(5, reward=None))
        assert codes(j.verdict())[Code.NO_REWARD] is Level.UNKNOWN
        assert any("last 5 steps is NaN or infinite" in c.message for c in j.verdict().conditions)
        assert j.verdict().steps == 5
        adopted = judge()
        adopted.fold_adopted(j.compact())
        assert Code.NO_REWARD in codes(adopted.verdict())
        j.fold_step(step(6))
        assert Code.NO_REWARD not in codes(j.verdict())

    def test_they_change_no_mean(self) -> None:
        with_them, without = judge(), judge()
        for n in range(1, 9):
            without.fold_step(step(n, reward=0.1 * n))
            with_them.fold_step(step(2 * n, reward=0.1 * n))
            with_them.fold_step(step(2 * n + 1, reward=None))
        for j in (with_them, without):
            j.fold_evaluation(evaluation(20))
        assert with_them.verdict().in_loop_ema == without.verdict().in_loop_ema


class TestATrainerThatDoesNotWait:
    @pytest.mark.parametrize(("waits", "told"), [(False, True), (True, False), (None, False)])
    def test_is_told_as_advice_until_it_waits_again(self, waits: bool | None, told: bool) -> None:
        j = judge()
        j.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/c/1", waits=waits))
        assert [c.advice for c in j.verdict().conditions if c.code is Code.NOT_WAITING] == [True] * told
        adopted = judge()
        adopted.fold_adopted(j.compact())
        assert (Code.NOT_WAITING in codes(adopted.verdict())) is told
        j.fold_checkpoint(CheckpointReport(attempt=0, step=2, path="/c/2", waits=True))
        assert Code.NOT_WAITING not in codes(j.verdict())


class TestRewardsThatEnd:
    """Where steps are not reported any more, what is evaluated then is compared with nothing."""

    def run(self, steps: Iterable[int], evaluated: Iterable[int], **sections: object) -> Judge:
        """Steps and evaluations in the order of their numbers; of one number the step comes first."""
        j = judge(**sections)
        for n, is_evaluated in sorted([(n, False) for n in steps] + [(n, True) for n in evaluated]):
            if is_evaluated:
                j.fold_evaluation(evaluation(n))
            else:
                j.fold_step(step(n))
        return j.copy()

    def test_the_third_checkpoint_without_one_is_unknown_until_one_comes(self) -> None:
        assert Code.NO_REWARD not in codes(self.run(range(1, 21), range(0, 41, 10)).verdict())
        j = self.run(range(1, 21), range(0, 51, 10))
        assert codes(j.verdict())[Code.NO_REWARD] is Level.UNKNOWN
        (told,) = [c.message for c in j.verdict().conditions if c.code is Code.NO_REWARD]
        assert "the last 3 evaluated checkpoints" in told and told.endswith("newest that was is step 20")
        j.fold_step(step(55))
        j.fold_evaluation(evaluation(60))
        assert Code.NO_REWARD not in codes(j.verdict())

    def test_of_evaluations_that_come_late_it_says_nothing_of_steps_that_came_since(self) -> None:
        j = judge()
        for n in (*range(1, 21), *range(60, 76)):
            j.fold_step(step(n))
        for n in range(0, 51, 10):
            j.fold_evaluation(evaluation(n))
        (told,) = [c.message for c in j.verdict().conditions if c.code is Code.NO_REWARD]
        assert told.endswith("was reported for them, and the newest that was is step 75")

    def test_a_log_that_has_a_step_less_often_than_the_trainer_saves_has_them(self) -> None:
        assert Code.NO_REWARD not in codes(self.run([40, 80], range(0, 161, 10)).verdict())
        assert Code.NO_REWARD in codes(self.run([40, 80], range(0, 171, 10)).verdict()), "90 steps, of 40"

    def test_before_there_are_two_reports_the_first_says_how_often_there_may_be_one(self) -> None:
        """It saves every tenth step, has every fiftieth in its log, and ends before the second."""
        assert Code.NO_REWARD not in codes(self.run([50], range(0, 91, 10)).verdict())
        assert Code.NO_REWARD not in codes(self.run([50], range(0, 151, 10)).verdict())
        assert Code.NO_REWARD in codes(self.run([50], range(0, 161, 10)).verdict()), "110 steps, of 50"

    def test_what_is_saved_after_the_last_line_of_a_log_that_is_as_rare_is_none(self) -> None:
        run = self.run(range(10, 101, 10), [*range(0, 101, 10), 101, 102, 103])
        assert Code.NO_REWARD not in codes(run.verdict())

    def test_an_outage_does_not_make_the_next_one_usual(self) -> None:
        run = self.run([*range(1, 101), 305], range(0, 341, 10))
        assert Code.NO_REWARD in codes(run.verdict())

    def test_a_run_that_goes_on_from_a_late_step_has_missed_none_before_it(self) -> None:
        run = self.run([1050], range(1000, 1061, 10))
        assert Code.NO_REWARD not in codes(run.verdict())

    def test_an_attempt_that_begins_anew_is_counted_from_its_first_checkpoint(self) -> None:
        j = self.run(range(1, 301), range(0, 301, 10))
        for n in (10, 20, 30):
            j.fold_evaluation(evaluation(n, attempt=1))
        assert Code.NO_REWARD in codes(j.verdict())

    def test_a_checkpoint_that_is_scored_after_a_later_one_is_none_of_them(self) -> None:
        j = self.run(range(1, 41), [0, 40])
        for n in (10, 20, 30):
            j.fold_evaluation(evaluation(n))
        assert Code.NO_REWARD not in codes(j.verdict())

    def test_a_step_that_comes_late_with_its_checkpoint_sets_nothing_back(self) -> None:
        j = self.run(range(10, 41, 10), [0, 40])
        j.fold_step(step(15))
        j.fold_evaluation(evaluation(20))
        for n in (50, 55, 60):  # 20 steps after the newest that was compared, twice the usual distance
            j.fold_evaluation(evaluation(n))
        assert Code.NO_REWARD not in codes(j.verdict())

    def test_before_the_first_step_it_is_that_there_is_none(self) -> None:
        told = codes(self.run([], range(0, 51, 10)).verdict())
        assert Code.NO_STEPS in told and Code.NO_REWARD not in told

    def test_a_warm_up_is_told_beside_it(self) -> None:
        told = codes(self.run([1], range(0, 51, 10), heldout_guard=HeldOutGuardPolicy(min_steps=5)).verdict())
        assert Code.NO_REWARD in told and Code.WARMING_UP in told


def round_of(j: Judge, made: Evaluation) -> Round | None:
    """What an evaluation comes to."""
    j.fold_evaluation(made)
    return j.newest_round


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

    def test_of_a_long_round_the_newest_steps_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("guard_core.steps.MAX_PENDING", 3)
        j = judge()
        for first, mean in ((0, 3.0), (5, 8.0)):  # the steps since the start, and those since a round
            for n in range(first, first + 5):
                j.fold_step(step(n, reward=n))
            made = round_of(j, evaluation(first + 4))
            assert made is not None and made.reward == mean


class TestFires:
    def test_the_gap(self) -> None:
        j = judge()
        for n, (reward, score) in enumerate([(0.2, 0.5), (0.8, 0.5)]):
            j.fold_step(step(n, reward))
            j.fold_evaluation(evaluation(n, score))
        verdict = j.verdict()
        assert verdict.fire and verdict.stop
        assert (verdict.level, verdict.code) == (Level.FIRED, Code.HACKING_GAP)
        assert (verdict.latch_attempt, verdict.latch_step) == (0, 1)
        assert j.latch is not None and j.latch.fire and j.latch.step == 1

    def test_kl_does_not_wait_for_an_evaluation(self) -> None:
        j = judge()
        drift(j)
        assert (j.verdict().fire, j.verdict().code) == (True, Code.KL_HARD_STOP)

    def test_the_first_reason_stays(self) -> None:
        j = judge()
        drift(j)
        reason = j.verdict().reason
        for n in range(5, 8):
            j.fold_step(step(n, float(n), kl=0.9))
            j.fold_evaluation(evaluation(n, 0.0))
        assert j.verdict().reason == reason


class TestWhatCountsAsAKl:
    @pytest.mark.parametrize("kind", [KlKind.REF_SEQ_SUM, KlKind.BEHAVIOUR])
    def test_another_kind_is_inert_and_says_so(self, kind: KlKind) -> None:
        j = judge(kl=KlPolicy())
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

    @pytest.mark.parametrize(
        "without",
        [
            {"kl": 0.0, "kl_kind": KlKind.REF_TOKEN_MEAN},
            {"kl_kind": KlKind.REF_TOKEN_MEAN},
            {"kl": 0.1, "kl_kind": KlKind.BEHAVIOUR},
        ],
        ids=["always 0", "none", "another kind"],
    )
    @pytest.mark.parametrize("limit", [None, 0.5])
    def test_a_limit_that_stops_and_is_not_watched_is_unknown(
        self, without: dict[str, Any], limit: float | None
    ) -> None:
        j = judge(kl=KlPolicy(hard_stop=limit))
        for n in range(5):
            assert codes(j.verdict()).get(Code.KL_INERT) in (None, Level.HEALTHY), "four steps are no finding"
            j.fold_step(StepReport(attempt=0, step=n, reward=0.5, **without))
        expected = Level.HEALTHY if limit is None else Level.UNKNOWN
        assert codes(j.verdict())[Code.KL_INERT] is expected
        assert codes(j.copy().verdict())[Code.KL_INERT] is expected
        for n, kl in enumerate((0.1, 0.2), start=5):
            j.fold_step(step(n, kl=kl))
        assert Code.KL_INERT not in codes(j.verdict())

    def test_a_kl_at_every_other_step_is_watched(self) -> None:
        j = judge(kl=KlPolicy(hard_stop=0.5))
        for n in range(20):
            kl = None if n % 2 else 0.1
            j.fold_step(StepReport(attempt=0, step=n, reward=0.5, kl=kl, kl_kind=KlKind.REF_TOKEN_MEAN))
        assert codes(j.verdict())[Code.KL_INERT] is Level.HEALTHY

    def test_a_kl_that_stops_coming_is_said(self) -> None:
        j = judge()
        j.fold_step(step(0, kl=0.2))
        j.fold_step(StepReport(attempt=0, step=1, reward=0.5, kl_kind=KlKind.REF_TOKEN_MEAN))
        assert "no KL" in next(c.message for c in j.verdict().conditions if c.code is Code.KL_INERT)


class TestSilence:
    POLICY = SilentPolicy(after_seconds=10.0, action="stop")

    def test_warn_is_unknown_and_passes_when_steps_come_back(self) -> None:
        j = judge(silent=SilentPolicy(after_seconds=10.0, action="warn"))
        j.fold_step(step(0))
        assert j.fold_silence(11.0) is False
        assert codes(j.verdict(silent_for=11.0))[Code.SILENT] is Level.UNKNOWN
        assert Code.SILENT not in codes(j.verdict(silent_for=0.0))
        assert not j.verdict(silent_for=11.0).stop

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
        drift(j)
        assert j.verdict().fire
        assert j.verdict().level is Level.FIRED


class TestStale:
    @pytest.mark.parametrize("action", ["warn", "stop"])
    def test_checkpoints_that_wait(self, action: str) -> None:
        j = judge(stale=StalePolicy(after_rounds=2, action=action))
        for _ in range(2):
            j.fold_checkpoint()
        assert Code.STALE not in codes(j.verdict())
        j.fold_checkpoint()
        assert Code.STALE in codes(j.verdict())
        assert j.verdict().halt is (action == "stop")
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

    @pytest.mark.parametrize("action", ["warn", "stop"])
    def test_checkpoints_that_were_gone_count_until_one_is_evaluated(self, action: str) -> None:
        j = judge(stale=StalePolicy(after_rounds=2, action=action))
        for _ in range(2):
            j.fold_checkpoint()
            j.fold_skipped()
        assert Code.STALE not in codes(j.verdict())
        j.fold_checkpoint()
        if action == "warn":
            message = next(c.message for c in j.verdict().conditions if c.code is Code.STALE)
            assert message.startswith("2 checkpoints were skipped, and 1 checkpoints wait")
        j.fold_skipped()
        assert Code.STALE in codes(j.verdict())
        assert j.verdict().halt is (action == "stop")
        j = j.copy()
        j.fold_checkpoint()
        j.fold_evaluation(evaluation(1))
        assert (Code.STALE in codes(j.verdict())) is (action == "stop")

    def test_a_checkpoint_that_was_gone_is_no_failure(self) -> None:
        j = judge(evaluation_failing=EvaluationFailingPolicy(after_failures=1, action="stop"))
        j.fold_checkpoint()
        j.fold_skipped()
        assert not j.verdict().stop and Code.EVALUATION_FAILING not in codes(j.verdict())


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
        j = judge(evaluation_failing=EvaluationFailingPolicy(after_failures=2, action="stop"))
        j.fold_failure("one")
        j.fold_evaluation(evaluation(0))
        j.fold_failure("one")
        assert not j.verdict().stop
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
    drift(j)
    levels = [c.level.severity for c in j.verdict().conditions if not c.advice]
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


def test_a_run_of_which_the_past_is_lost_is_unknown_to_its_end() -> None:
    j = judge()
    assert Code.PAST_UNKNOWN not in {c.code for c in j.verdict().conditions}
    j.fold_adopted(CompactState.unknown(j.policy, "the status says nothing"))
    for n in range(40):
        j.fold_step(step(n))
        j.fold_checkpoint()
        j.fold_evaluation(evaluation(n))
    for one in (j, j.copy()):
        verdict = one.verdict()
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.PAST_UNKNOWN)
        assert verdict.reason == "the status says nothing"
        assert "past_unknown" in not_judged(verdict, "wait longer") and not verdict.stop


def test_a_stored_latch_closes_again_and_an_earlier_one_stays() -> None:
    judge = Judge(Policy())
    stop = Latch(False, "silent", "no step for 1801 s", 0, 7)
    judge.fold_latch(stop)
    judge.fold_latch(Latch(False, "stale", "later", 0, 9))
    assert judge.latches == (stop,)
    assert judge.verdict().halt and not judge.verdict().fire
    fire = Latch(True, "kl_hard_stop", "KL", 0, 8)
    judge.fold_latch(fire)
    judge.fold_latch(Latch(True, "calibrated_peak", "later", 0, 9))
    assert judge.latches == (fire, stop)
    assert judge.verdict().fire and judge.latch == fire


class TestAdvice:
    """Under the default detector HeldOutGuard and the KL are heard, and neither stops nor colours a run."""

    def hacked(self, **sections: object) -> Judge:
        j = judge(**sections)
        for n, (reward, score) in enumerate([(0.2, 0.5), (0.8, 0.5), (0.8, 0.5)]):
            j.fold_step(step(n, reward))
            j.fold_checkpoint()
            j.fold_evaluation(evaluation(n, score))
        return j

    def test_what_held_out_guard_would_have_said_is_told_with_its_numbers(self) -> None:
        verdict = self.hacked(detector="calibrated").verdict()
        advice = [c for c in verdict.conditions if c.advice]
        assert [(c.code, c.level) for c in advice] == [(Code.HACKING_GAP, Level.WARNING)]
        assert "would have stopped the run: Hacking Gap +0.6000 is above 0.2" in advice[0].message
        assert not verdict.fire and not verdict.stop and verdict.level is not Level.WARNING

    def test_it_stops_where_the_policy_says_so(self) -> None:
        for detector in ("heldout_guard", "both"):
            verdict = self.hacked(detector=detector).verdict()
            assert verdict.fire and not any(c.advice for c in verdict.conditions)

    def test_by_default_the_kl_stops_nothing_and_is_advice(self) -> None:
        j = Judge(Policy())
        for n in range(60):
            j.fold_step(step(n, kl=0.0 if n == 0 else 5.0))
        verdict = j.verdict()
        assert not verdict.stop
        assert [c.code for c in verdict.conditions if c.advice] == [Code.KL_HARD_STOP]
        assert verdict.kl_hard_stop is None and verdict.kl_warn_above == 0.08

    def test_it_leaves_the_level_as_it_is(self) -> None:
        j = judge(kl=KlPolicy(warn_above=0.1, min_steps=0))
        drift(j)
        j.fold_evaluation(evaluation(4))
        verdict = j.verdict()
        assert [c.code for c in verdict.conditions] == [Code.KL_HARD_STOP]
        assert (verdict.level, verdict.code) == (Level.HEALTHY, Code.OK)

    @pytest.mark.parametrize("detector", ["heldout_guard", "calibrated", "both"])
    def test_a_limit_that_the_user_wrote_stops_under_every_detector(self, detector: str) -> None:
        j = judge(detector=detector, kl=KlPolicy(hard_stop=0.5, min_steps=0))
        drift(j)
        assert (j.verdict().fire, j.verdict().code) == (True, Code.KL_HARD_STOP)

    def test_a_limit_that_only_the_warm_up_keeps_from_stopping_is_a_warning(self) -> None:
        """A run of fewer steps than the warm-up is else healthy, however far it has gone."""
        j = judge(kl=KlPolicy(hard_stop=0.5, min_steps=60))
        for n in range(59):
            j.fold_step(step(n, kl=0.0 if n == 0 else 5.0 if n < 9 else 0.01))
        j.fold_evaluation(evaluation(58))
        verdict = j.copy().verdict()
        assert (verdict.level, verdict.code, verdict.fire) == (Level.WARNING, Code.KL_HARD_STOP, False)
        assert verdict.reason.startswith(
            "only its warm-up of 60 steps keeps the rule from stopping the run: KL"
        )
        assert not_judged(verdict, "wait longer")
        for n in range(59, 70):
            j.fold_step(step(n, kl=0.01))
        assert j.verdict().level is Level.HEALTHY, "the rule has judged since"

    def test_a_kl_below_its_limit_in_the_warm_up_is_nothing(self) -> None:
        j = judge(kl=KlPolicy(hard_stop=0.5, min_steps=20))
        for n in range(10):
            j.fold_step(step(n, kl=0.0 if n == 0 else 0.4))
        j.fold_evaluation(evaluation(9))
        assert j.verdict().level is Level.HEALTHY

    def test_null_switches_the_kl_off(self) -> None:
        j = judge(kl=KlPolicy(warn_above=None))
        for n in range(60):
            j.fold_step(step(n, kl=float(n)))
        assert not j.verdict().stop and not any(c.advice for c in j.verdict().conditions)

    def test_a_reference_that_is_not_the_start_is_told_and_not_held_against_the_run(self) -> None:
        j = judge(kl=KlPolicy(warn_above=0.1, hard_stop=0.2, min_steps=0))
        for n in range(30):
            j.fold_step(step(n, kl=0.4))
        verdict = j.verdict()
        assert codes(verdict)[Code.REFERENCE_NOT_START] is Level.WARNING and not verdict.fire
        assert verdict.kl_start == 0.4
        assert not any(c.code is Code.KL_HARD_STOP for c in verdict.conditions)


class TestKlThatIsNotFinite:
    def not_finite(self, n: int) -> StepReport:
        return StepReport(attempt=0, step=n, reward=0.5, kl_kind=KlKind.NOT_FINITE)

    def test_one_overflow_is_nothing_five_in_a_row_are_told(self) -> None:
        j = judge()
        for n in range(4):
            j.fold_step(self.not_finite(n))
        assert Code.KL_NOT_FINITE not in codes(j.verdict())
        j.fold_step(self.not_finite(4))
        assert Code.KL_NOT_FINITE in codes(j.verdict())
        j.fold_step(step(5, kl=0.1))
        assert Code.KL_NOT_FINITE not in codes(j.verdict())

    def test_with_a_limit_that_stops_it_is_unknown_and_without_it_is_advice(self) -> None:
        for limit, level, advice in ((0.5, Level.UNKNOWN, False), (None, Level.WARNING, True)):
            j = judge(kl=KlPolicy(hard_stop=limit))
            for n in range(5):
                j.fold_step(self.not_finite(n))
            (found,) = (c for c in j.verdict().conditions if c.code is Code.KL_NOT_FINITE)
            assert (found.level, found.advice) == (level, advice)

    def test_a_value_that_is_said_not_to_be_finite_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not_finite"):
            StepReport(attempt=0, step=0, reward=0.5, kl=0.1, kl_kind=KlKind.NOT_FINITE)


class TestCounts:
    def test_every_checkpoint_is_evaluated_failed_skipped_or_waiting(self) -> None:
        j = judge()
        for _ in range(4):
            j.fold_checkpoint()
        j.fold_evaluation(evaluation(0))
        j.fold_failure("no weights")
        j.fold_skipped()
        verdict = j.verdict()
        assert (verdict.announced, verdict.evaluated, verdict.failed, verdict.skipped) == (4, 1, 1, 1)
        assert verdict.waiting == 1

    def test_one_that_was_refused_and_is_then_taken_is_no_longer_refused(self) -> None:
        j = judge()
        for n in (1, 2):
            j.fold_refused(CheckpointKey(0, n))
        j.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/checkpoints/checkpoint-1"))
        assert (j.verdict().refused, j.verdict().announced) == (1, 1)

    def test_weights_that_were_scored_before_are_judged_with_them(self) -> None:
        """A first step without a gradient, a final save of what was saved: no failure, and no new round."""
        j = judge(heldout_guard=SHARP, evaluation_failing={"after_failures": 1, "action": "stop"})
        j.fold_step(step(0))
        for _ in range(3):
            j.fold_checkpoint()
        j.fold_evaluation(evaluation(0))
        j.fold_failure("the same", kind=FailureKind.UNCHANGED)
        assert j.verdict().level is Level.HEALTHY, "no step has come since"
        j.fold_step(step(1))
        verdict = j.verdict()
        assert codes(verdict)[Code.CHECKPOINT_DOUBTFUL] is Level.UNKNOWN
        assert (verdict.evaluated, verdict.failed, verdict.waiting, verdict.rounds) == (2, 0, 1, 1)
        assert verdict.steps_since_evaluation == 1 and not verdict.stop
        assert j.copy().verdict() == verdict
        j.fold_evaluation(evaluation(1))
        assert j.verdict().level is Level.HEALTHY
        assert (j.verdict().evaluated, j.verdict().announced) == (3, 3)

    def test_an_alarm_that_waits_for_its_confirmation_is_waiting(self) -> None:
        calibrated = CalibratedPolicy(baseline_passes=1)
        j = judge(detector="calibrated", calibrated=calibrated)
        for n in range(20):
            j.fold_checkpoint()
            j.fold_evaluation(evaluation(n, 0.9 if n < 5 else 0.8))
            if j.wanted_pass() is not None:
                break
        assert j.wanted_pass() is not None
        assert j.verdict().waiting == 1

    def test_passes_of_a_baseline_that_nothing_is_compared_with_are_not(self) -> None:
        j = judge(detector="calibrated")
        j.fold_checkpoint()
        j.fold_evaluation(evaluation(0))
        assert j.wanted_pass() is not None and j.verdict().waiting == 0


def with_passes(count: int) -> CalibratedPolicy:
    return CalibratedPolicy(baseline_passes=count)


class TestPassesThatCannotBeHad:
    @pytest.fixture(params=[FailureKind.OUT_OF_MEMORY, FailureKind.CHECKPOINT, "gone"])
    def lose(self, request: pytest.FixtureRequest) -> Callable[[Judge], None]:
        """The pass that is wanted fails, both times where it is tried again, or its checkpoint is gone."""

        def lost(j: Judge) -> None:
            tries = 2 if request.param is FailureKind.OUT_OF_MEMORY else 1
            for _ in range(tries):
                self.fail(j, request.param)
            assert j.wanted_pass() is None

        return lost

    def fail(self, j: Judge, how: FailureKind | str) -> None:
        wanted = j.wanted_pass()
        assert wanted is not None
        if isinstance(how, FailureKind):
            j.fold_failure("it failed", wanted.index, how)
        else:
            j.fold_skipped(wanted.index)

    def scored(self, j: Judge, n: int, score: float) -> None:
        j.fold_step(step(n))
        j.fold_checkpoint()
        j.fold_evaluation(evaluation(n, score))

    def alarmed(self) -> Judge:
        """A run with a true drop at its newest checkpoint."""
        j = judge(detector="calibrated", calibrated=with_passes(1))
        for n in range(20):
            self.scored(j, n, 0.9 if n < 8 else 0.75)
            if j.wanted_pass() is not None:
                break
        assert not j.verdict().fire and j.verdict().waiting == 1
        return j

    def test_an_alarm_without_its_confirmation_never_ends_well(self, lose: Callable[[Judge], None]) -> None:
        j = self.alarmed()
        lose(j)
        verdict = j.copy().verdict()
        assert (verdict.waiting, verdict.fire, verdict.level) == (0, False, Level.WARNING)
        assert verdict.evaluated == verdict.announced, "by the counts alone all was judged"
        assert codes(verdict)[Code.EVALUATION_FAILING] is Level.WARNING
        assert "the next checkpoint decides" in " ".join(c.message for c in verdict.conditions)
        assert not_judged(verdict, "wait longer").startswith("warning (")

    def test_the_next_checkpoint_upholds_it(self, lose: Callable[[Judge], None]) -> None:
        j = self.alarmed()
        lose(j)
        self.scored(j, 30, 0.75)
        assert j.verdict().fire

    def test_the_next_checkpoint_clears_it(self, lose: Callable[[Judge], None]) -> None:
        j = self.alarmed()
        lose(j)
        self.scored(j, 30, 0.9)
        verdict = j.verdict()
        assert not verdict.fire and verdict.level is not Level.WARNING
        assert "could not be made" not in " ".join(c.message for c in verdict.conditions)

    def test_a_baseline_is_worth_the_passes_that_were_made(self, lose: Callable[[Judge], None]) -> None:
        """Sixteen were wanted, one was made: the run is judged as with one, and its reader is told."""
        j = judge(detector="calibrated", calibrated=with_passes(16))
        one = judge(detector="calibrated", calibrated=with_passes(1))
        for run in (j, one):
            self.scored(run, 0, 0.5)
        lose(j)
        assert codes(j.verdict())[Code.NO_BASELINE] is Level.UNKNOWN
        for n in (1, 2, 3):
            for run in (j, one):
                self.scored(run, n, 0.5)
        verdict = j.copy().verdict()
        assert verdict.detectors == one.verdict().detectors
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.WARMING_UP), "fewer see less"
        assert "or more passes of the starting policy" in verdict.reason
        (told,) = (c for c in verdict.conditions if c.code is Code.NO_BASELINE)
        assert told.advice and "the baseline has 1 of 16 passes" in told.message
        assert Code.NO_BASELINE not in codes(one.verdict())

    @pytest.mark.parametrize("kind", [FailureKind.UNDERWAY, FailureKind.OUT_OF_MEMORY, FailureKind.EVALUATOR])
    def test_a_lost_pass_of_the_baseline_is_made_up_for(self, kind: FailureKind) -> None:
        """Each of sixteen passes fails once: the baseline is complete all the same, and nothing is told."""
        j = judge(detector="calibrated", calibrated=with_passes(16))
        self.scored(j, 0, 0.5)
        numbers = [0]
        while (wanted := j.wanted_pass()) is not None:
            numbers.append(wanted.index)
            if len(numbers) % 2 == 0:
                self.fail(j, kind)
                j = j.copy()
            else:
                j.fold_evaluation(replace(evaluation(0, 0.5 + len(numbers) / 100), pass_index=wanted.index))
        assert numbers == list(range(31)), "no number twice: it is what the store knows a pass by"
        self.scored(j, 1, 0.5)
        assert Code.NO_BASELINE not in codes(j.verdict())

    def test_a_lost_confirmation_is_tried_again_and_decides(self) -> None:
        j = self.alarmed()
        first = j.wanted_pass()
        self.fail(j, FailureKind.UNDERWAY)
        again, verdict = j.wanted_pass(), j.verdict()
        assert first is not None and again is not None and again.index == first.index + 1
        assert verdict.waiting == 1 and "could not be made" not in " ".join(
            c.message for c in verdict.conditions
        )
        j.fold_evaluation(replace(evaluation(again.step, 0.75), pass_index=again.index))
        assert j.verdict().fire

    def test_a_baseline_that_lost_no_pass_is_not_told(self) -> None:
        j = judge(detector="calibrated", calibrated=with_passes(3))
        self.scored(j, 0, 0.5)
        j.fold_evaluation(replace(evaluation(0, 0.4), pass_index=1))
        j.fold_evaluation(replace(evaluation(0, 0.6), pass_index=2))
        self.scored(j, 1, 0.5)
        assert Code.NO_BASELINE not in codes(j.verdict())


def test_a_round_has_the_evidence_of_every_detector_that_could_judge() -> None:
    """With it a report shows when which statistic passed which threshold."""
    j = judge(detector="calibrated", calibrated=with_passes(1))
    j.fold_step(step(0, 0.5, 0.0))
    first = round_of(j, evaluation(0, 0.5))
    assert first is not None and first.evidence == {}, "the baseline is judged by nobody"
    j.fold_step(step(1, 0.5, 0.0))
    given = round_of(j, evaluation(1, 0.25))
    known = {d.name: (d.statistic, d.threshold) for d in j.verdict().detectors if d.statistic is not None}
    assert given is not None and given.evidence == known != {}
    assert len(known) < len(j.verdict().detectors), "what cannot be judged has no number"


def test_the_round_that_is_handed_out_is_what_was_folded() -> None:
    j = judge()
    for n, (reward, kl) in enumerate([(0.0, 0.0), (1.0, 0.1), (0.5, 0.2), (0.5, 0.9)]):
        j.fold_step(step(n, reward, kl))
    given = round_of(j, evaluation(3, 0.25))
    assert given == Round(0.5, 0.2, 1, 0.5, 0.25, 0.0, None)
    assert round_of(j, replace(evaluation(3, 0.25), pass_index=1)) is None
    assert round_of(j, evaluation(4, 0.25)) == Round(None, None, 1, 0.5, 0.25, 0.0, None)


HOT = Sampling(temperature=1.0, max_new_tokens=64)
COLD = Sampling(temperature=0.5, max_new_tokens=64)


def announced(n: int, sampling: Sampling | None, attempt: int = 0) -> CheckpointReport:
    return CheckpointReport(attempt=attempt, step=n, path=f"/checkpoints/{n}", sampling=sampling)


class TestSampling:
    """The first checkpoint fixes how the trainer samples; what a later one says is told, no more."""

    def test_the_first_checkpoint_fixes_it(self) -> None:
        j = judge()
        assert j.sampling is None
        j.fold_checkpoint(announced(0, HOT))
        assert j.sampling == HOT and Code.SAMPLING_CHANGED not in codes(j.verdict())
        j.fold_checkpoint(announced(10, HOT))
        assert Code.SAMPLING_CHANGED not in codes(j.verdict())

    @pytest.mark.parametrize(
        ("first", "later", "told"),
        [
            (
                HOT,
                [COLD],
                "at step 10 says temperature 0.5, up to 64 tokens; the run began with temperature 1,",
            ),
            (HOT, [None], "at step 10 says nothing of its sampling; the run began with temperature 1,"),
            (
                None,
                [HOT],
                "at step 10 says temperature 1, up to 64 tokens; the run began with nothing of its",
            ),
            (HOT, [COLD, HOT, HOT], "at step 10 says temperature 0.5"),
            (HOT, [COLD, HOT, COLD], "at step 30 says temperature 0.5"),
        ],
        ids=["another", "none any more", "only later", "once and back again", "again and again"],
    )
    def test_another_one_is_advice_with_both_values(
        self, first: Sampling | None, later: list[Sampling | None], told: str
    ) -> None:
        j = judge()
        for n, sampling in enumerate([first, *later]):
            j.fold_step(step(10 * n))
            j.fold_checkpoint(announced(10 * n, sampling))
            assert j.sampling == first
        verdict = j.copy().verdict()
        assert verdict == j.verdict()
        (said,) = [c for c in verdict.conditions if c.code is Code.SAMPLING_CHANGED]
        assert said.advice and said.level is Level.WARNING and told in said.message
        assert "its evaluations stay as they were" in said.message and not verdict.stop

    def test_another_attempt_changes_nothing_either(self) -> None:
        j = judge()
        j.fold_checkpoint(announced(10, HOT))
        j.fold_checkpoint(announced(10, COLD, attempt=1))
        assert j.sampling == HOT and Code.SAMPLING_CHANGED in codes(j.verdict())

    def test_a_default_that_nobody_chose_is_said(self) -> None:
        default, chosen = (
            HfEvaluation(**settings).sampling_with(None)
            for settings in ({}, {"temperature": 0.0, "max_new_tokens": 256})
        )
        for sampling, said in ((default, True), (chosen, False), (None, False)):
            j = judge()
            j.fold_step(step(0))
            j.fold_evaluation(replace(evaluation(0), sampling=sampling))
            verdict = j.verdict()
            assert verdict.last_evaluation is not None and verdict.last_evaluation.sampling == sampling
            found = [c for c in verdict.conditions if c.code is Code.SAMPLING_UNKNOWN]
            assert [c.advice for c in found] == [True] * said
            assert all("temperature 0, up to 256 tokens" in c.message for c in found)
