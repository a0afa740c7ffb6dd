"""The judge: what is folded into a round, what each condition needs, and which level a verdict has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.codes import Code, Level
from rlguard.core.compact import CompactState
from rlguard.core.ending import not_judged
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import (
    CalibratedPolicy,
    EvaluationFailingPolicy,
    HeldOutGuardPolicy,
    KlPolicy,
    Policy,
    SilentPolicy,
    StalePolicy,
)
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.wire import (
    CheckpointReport,
    Condition,
    EndReport,
    FailureKind,
    KlKind,
    Sampling,
    StepReport,
    Verdict,
)

SHARP = HeldOutGuardPolicy(max_proxy_real_gap=0.2, min_steps=1, ema_alpha=0.0, rise_eps=0.01)
KL = KlPolicy(warn_above=0.25, hard_stop=0.5, min_steps=5)


def judge(**sections: object) -> Judge:
    return Judge(Policy(**{"detector": "heldout_guard", "heldout_guard": SHARP, "kl": KL, **sections}))  # type: ignore[arg-type]


def step(n: int, reward: float | None = 0.5, kl: float | None = None, attempt: int = 0) -> StepReport:
    kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
    return StepReport(attempt=attempt, step=n, reward=reward, kl=kl, kl_kind=kind)


def fold_kls(j: Judge, *kls: float | None, **others: Any) -> None:
    for n, kl in enumerate(kls):
        values = {"kl": kl, "kl_kind": KlKind.REF_TOKEN_MEAN} | others
        j.fold_step(StepReport(attempt=0, step=n, reward=0.5, **values))


def evaluation(n: int, score: float = 0.5, attempt: int = 0) -> Evaluation:
    items = tuple(1.0 if i < round(score * 100) else 0.0 for i in range(100))
    return Evaluation(attempt, n, f"/checkpoints/checkpoint-{n}", items)


def drift(j: Judge) -> None:
    """Five steps that begin at the reference and end far from it."""
    fold_kls(j, 0.0, 0.9, 0.9, 0.9, 0.9)


def codes(verdict: Verdict) -> dict[Code, Level]:
    return {c.code: c.level for c in verdict.conditions}


def about(j: Judge, code: Code) -> list[Condition]:
    return [c for c in j.verdict().conditions if c.code is code]


class TestMissingDataIsUnknown:
    def test_nothing_reported(self) -> None:
        verdict = judge().verdict()
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_STEPS)
        assert verdict.step is verdict.in_loop_ema is verdict.heldout_ema is verdict.proxy_real_gap is None
        assert verdict.latch_attempt is verdict.latch_step is None

    def test_an_evaluation_without_a_reward_is_not_folded(self) -> None:
        j = judge()
        j.fold_evaluation(evaluation(0))
        assert j.verdict().rounds == 0 and j.verdict().last_evaluation is not None

    def test_healthy_needs_the_judged_rounds_that_the_rule_takes(self) -> None:
        j = judge(heldout_guard=SHARP.model_copy(update={"min_steps": 2}), kl=KlPolicy())
        for n in range(2):
            j.fold_step(step(n))
            assert (j.verdict().level, j.verdict().code) == (Level.UNKNOWN, Code.WARMING_UP)
            j.fold_evaluation(evaluation(n))
        assert (j.verdict().level, j.verdict().code) == (Level.HEALTHY, Code.OK)

    def test_five_rewards_in_a_row_that_are_not_finite_until_one_is(self) -> None:
        j = judge()
        for n in range(1, 6):
            assert Code.NO_REWARD not in codes(j.verdict()), "one overflow happens in good runs"
            j.fold_step(step(n, reward=None))
        (told,) = about(j, Code.NO_REWARD)
        assert told.level is Level.UNKNOWN and "last 5 steps is NaN or infinite" in told.message
        assert j.verdict().steps == 5
        j.fold_step(step(6))
        assert Code.NO_REWARD not in codes(j.verdict())

    def test_a_reward_that_is_not_finite_changes_no_mean(self) -> None:
        with_them, without = judge(), judge()
        for n in range(1, 9):
            without.fold_step(step(n, reward=0.1 * n))
            with_them.fold_step(step(2 * n, reward=0.1 * n))
            with_them.fold_step(step(2 * n + 1, reward=None))
        for j in (with_them, without):
            j.fold_evaluation(evaluation(20))
        assert with_them.verdict().in_loop_ema == without.verdict().in_loop_ema

    def test_a_run_of_which_the_past_is_lost_to_its_end(self) -> None:
        j = judge()
        j.fold_adopted(CompactState.unknown(j.policy, "the status says nothing"))
        for n in range(40):
            j.fold_step(step(n))
            j.fold_checkpoint()
            j.fold_evaluation(evaluation(n))
        verdict = j.verdict()
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.PAST_UNKNOWN)
        assert "past_unknown" in not_judged(verdict, "wait longer") and not verdict.stop


# -- steps that nobody has judged --------------------------------------------------------------------------


Event = Callable[[Judge], None]


def steps(*numbers: int, attempt: int = 0) -> Event:
    return lambda j: [j.fold_step(step(n, attempt=attempt)) for n in numbers] and None


def judged(n: int, attempt: int = 0) -> Event:
    return lambda j: j.fold_evaluation(evaluation(n, attempt=attempt))


def ended(last: int | None, attempt: int = 0, began: int | None = None) -> Event:
    return lambda j: j.fold_end(EndReport(attempt=attempt, step=last, began=began))


TO_80 = (steps(*range(1, 81)), judged(80))


@pytest.mark.parametrize(
    ("events", "after"),
    [
        pytest.param((steps(*range(7)), judged(3)), 3, id="reported"),
        pytest.param((steps(*range(7)), judged(3), steps(7), judged(5)), 2, id="and judged in part"),
        pytest.param((judged(0), steps(3, 4)), 4, id="made before the first report"),
        pytest.param((steps(3), judged(0), steps(4)), 4, id="whose checkpoint was scored late"),
        pytest.param((steps(*range(1, 11)), judged(10), judged(5)), 0, id="an older one takes nothing back"),
        pytest.param((steps(10, 20, 30), judged(20)), 10, id="of a loop that reports every tenth"),
        pytest.param((*TO_80, steps(400)), 320, id="between two reports"),
        pytest.param((*TO_80, ended(100)), 20, id="made, and not reported"),
        pytest.param((*TO_80, ended(100), ended(81), ended(None)), 20, id="what an end says stays"),
        pytest.param((*TO_80, ended(3)), 0, id="an end adds only"),
        pytest.param((*TO_80, ended(100), judged(100)), 0, id="the last checkpoint judges them"),
        pytest.param((*TO_80, ended(80, 1)), 0, id="an attempt with nothing left to do"),
        pytest.param((*TO_80, ended(100, 1)), 20, id="one that reported nothing"),
        pytest.param((*TO_80, ended(60, 1, 20)), 40, id="one that began earlier and reported nothing"),
        pytest.param((*TO_80, judged(50, 1), ended(60, 1, 20)), 10, id="and was judged in part"),
        pytest.param((*TO_80, steps(51, attempt=1), ended(71, 1)), 21, id="a resumed one"),
        pytest.param((*TO_80, steps(91, attempt=1), ended(91, 1, 50)), 41, id="that says where it began"),
        pytest.param((*TO_80, steps(51, 52, 60, attempt=1), judged(80)), 10, id="older attempt judged late"),
        pytest.param((*TO_80, steps(90), judged(95, 1)), 0, id="all before a later attempt's checkpoint"),
    ],
)
def test_the_steps_after_the_last_judged_checkpoint(events: tuple[Event, ...], after: int) -> None:
    j = judge()
    for event in events:
        event(j)
    assert j.copy().verdict().steps_since_evaluation == j.verdict().steps_since_evaluation == after


def test_the_longest_round_is_one_that_was_judged() -> None:
    """As many steps may follow the last checkpoint."""
    j = judge()
    for event, longest in ((judged(0), 0), (steps(1), 0), (steps(2, 3, 80), 0), (judged(80), 80)):
        event(j)
        assert j.verdict().longest_round == longest
    for event in (steps(81, 91), judged(91)):
        event(j)
    assert j.verdict().longest_round == 80


def test_checkpoints_that_were_gone_before_they_could_be_announced_were_not_judged() -> None:
    j = judge()
    for event in TO_80:
        event(j)
    j.fold_checkpoint()
    for gone in (2, 0):
        j.fold_end(EndReport(attempt=0, step=80, gone=gone))
    verdict = j.copy().verdict()
    assert (verdict.announced, verdict.evaluated, verdict.skipped, verdict.waiting) == (3, 1, 2, 0)
    assert "2 of 3 checkpoints were not evaluated (2 skipped)" in not_judged(verdict, "wait longer")


# -- checkpoints that are compared with no reward ------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "evaluated", "lacks"),
    [
        pytest.param(range(1, 21), range(0, 41, 10), False, id="two"),
        pytest.param(range(1, 21), range(0, 51, 10), True, id="three"),
        pytest.param([*range(1, 21), 55], range(0, 61, 10), False, id="until one comes"),
        pytest.param([40, 80], range(0, 161, 10), False, id="a log as rare as that"),
        pytest.param([40, 80], range(0, 171, 10), True, id="90 steps, of 40"),
        pytest.param([50], range(0, 151, 10), False, id="one report so far"),
        pytest.param([50], range(0, 161, 10), True, id="110 steps, of 50"),
        pytest.param(
            range(10, 101, 10), [*range(0, 101, 10), 101, 102, 103], False, id="after the last line"
        ),
        pytest.param([1050], range(1000, 1061, 10), False, id="begins late"),
        pytest.param([], range(0, 51, 10), False, id="before the first step"),
    ],
)
def test_the_third_checkpoint_without_a_step_is_unknown(
    steps: Iterable[int], evaluated: Iterable[int], lacks: bool
) -> None:
    j = judge()
    for n, is_evaluated in sorted([(n, False) for n in steps] + [(n, True) for n in evaluated]):
        (judged(n) if is_evaluated else lambda j, n=n: j.fold_step(step(n)))(j)
    assert [c.level for c in about(j.copy(), Code.NO_REWARD)] == [Level.UNKNOWN] * lacks


def test_an_attempt_that_begins_anew_is_counted_from_its_first_checkpoint() -> None:
    j = judge()
    steps(*range(1, 301))(j)
    for event in (judged(300), *(judged(n, 1) for n in (10, 20, 30))):
        event(j)
    assert Code.NO_REWARD in codes(j.verdict())


# -- the window of a round -----------------------------------------------------------------------------------


def round_of(j: Judge, made: Evaluation) -> Round | None:
    """What an evaluation comes to."""
    j.fold_evaluation(made)
    return j.newest_round


def test_in_loop_is_the_mean_of_the_steps_of_the_round_and_the_attempt() -> None:
    j = judge()
    for n, reward in enumerate([0.0, 1.0, 0.25, 0.75]):
        j.fold_step(step(n, reward))
    for n, mean in ((1, 0.5), (3, 0.5)):
        made = round_of(j, evaluation(n))
        assert made is not None and made.reward == mean
    j.fold_step(step(5, 9.0))
    j.fold_step(step(4, 0.25, attempt=1))
    made = round_of(j, evaluation(4, attempt=1))
    assert made is not None and made.reward == 0.25


def test_the_round_that_is_handed_out_is_what_was_folded() -> None:
    """The KL is a median, so that one spike of k3 does not own the round."""
    j = judge()
    for n, (reward, kl) in enumerate([(0.0, 0.0), (1.0, 0.1), (0.5, 0.2), (0.5, 22_000.0)]):
        j.fold_step(step(n, reward, kl))
    assert round_of(j, evaluation(3, 0.25)) == Round(0.5, 0.2, 1, 0.5, 0.25, 0.0, None)
    assert round_of(j, replace(evaluation(3, 0.25), pass_index=1)) is None
    assert round_of(j, evaluation(4, 0.25)) == Round(None, None, 1, 0.5, 0.25, 0.0, None)


def test_a_round_has_the_evidence_of_every_question_that_could_be_judged() -> None:
    """With it a report shows when which statistic passed which threshold."""
    j = judge(detector="calibrated", calibrated=CalibratedPolicy(baseline_passes=1))
    j.fold_step(step(0, 0.5, 0.0))
    first = round_of(j, evaluation(0, 0.5))
    assert first is not None and first.evidence == {}, "the baseline is judged by nobody"
    j.fold_step(step(1, 0.5, 0.0))
    given = round_of(j, evaluation(1, 0.25))
    known = {d.name: (d.statistic, d.threshold) for d in j.verdict().detectors if d.statistic is not None}
    assert given is not None and given.evidence == known != {}
    assert len(known) < len(j.verdict().detectors), "what cannot be judged has no number"


# -- fires ---------------------------------------------------------------------------------------------------


def hacked(**sections: object) -> Judge:
    j = judge(**sections)
    for n, (reward, score) in enumerate([(0.2, 0.5), (0.8, 0.5), (0.8, 0.5)]):
        j.fold_step(step(n, reward))
        j.fold_checkpoint()
        j.fold_evaluation(evaluation(n, score))
    return j


class TestFires:
    def test_the_gap(self) -> None:
        verdict = hacked().verdict()
        assert verdict.fire and verdict.stop and not any(c.advice for c in verdict.conditions)
        assert (verdict.level, verdict.code) == (Level.FIRED, Code.HACKING_GAP)
        assert (verdict.latch_attempt, verdict.latch_step) == (0, 1)

    def test_what_held_out_guard_would_have_said_is_advice_beside_the_calibrated_detector(self) -> None:
        verdict = hacked(detector="calibrated").verdict()
        (advice,) = [c for c in verdict.conditions if c.advice]
        assert (advice.code, advice.level) == (Code.HACKING_GAP, Level.WARNING)
        assert "would have stopped the run: Hacking Gap +0.6000 is above 0.2" in advice.message
        assert not verdict.stop and verdict.level is not Level.WARNING

    @pytest.mark.parametrize("detector", ["heldout_guard", "calibrated"])
    def test_a_limit_on_the_kl_stops_at_once_and_the_first_reason_stays(self, detector: str) -> None:
        j = judge(detector=detector)
        drift(j)
        verdict = j.verdict()
        assert (verdict.fire, verdict.code) == (True, Code.KL_HARD_STOP)
        for n in range(5, 8):
            j.fold_step(step(n, float(n), kl=0.9))
            j.fold_evaluation(evaluation(n, 0.0))
        assert j.verdict().reason == verdict.reason


def test_a_stored_latch_closes_again_and_an_earlier_one_stays() -> None:
    judge = Judge(Policy())
    stop = Latch(False, "silent", "no step for 1801 s", 0, 7)
    judge.fold_latch(stop)
    judge.fold_latch(Latch(False, "stale", "later", 0, 9))
    assert judge.latches == (stop,)
    assert judge.verdict().halt and not judge.verdict().fire
    fire = Latch(True, "kl_hard_stop", "KL", 0, 8)
    judge.fold_latch(fire)
    judge.fold_latch(Latch(True, "hacking_gap", "later", 0, 9))
    assert judge.latches == (fire, stop)
    assert judge.verdict().fire and judge.latch == fire


# -- the KL --------------------------------------------------------------------------------------------------


class TestWhatCountsAsAKl:
    @pytest.mark.parametrize(
        ("without", "why"),
        [
            ({"kl": 0.0}, "exactly 0 at every step"),
            ({"kl": None}, "has no KL"),
            ({"kl": 99.0, "kl_kind": KlKind.BEHAVIOUR}, "kl_kind=behaviour"),
            ({"kl": 99.0, "kl_kind": KlKind.REF_SEQ_SUM}, "kl_kind=ref_seq_sum"),
        ],
        ids=["always 0", "none", "another kind", "a sum"],
    )
    @pytest.mark.parametrize("limit", [None, 0.5])
    def test_what_is_none_is_inert_and_a_limit_on_it_is_not_kept(
        self, without: dict[str, Any], why: str, limit: float | None
    ) -> None:
        j = judge(kl=KlPolicy(hard_stop=limit))
        fold_kls(j, *[None] * 4, **without)
        assert codes(j.verdict())[Code.KL_INERT] is Level.HEALTHY, "four steps are no finding"
        fold_kls(j, None, **without)
        (told,) = about(j.copy(), Code.KL_INERT)
        assert told.level is (Level.HEALTHY if limit is None else Level.UNKNOWN) and why in told.message
        assert not j.verdict().fire and j.verdict().kl_ema is None
        fold_kls(j, 0.1, 0.2)
        assert Code.KL_INERT not in codes(j.verdict())

    def test_zeros_count_once_the_kl_has_moved(self) -> None:
        j = judge()
        fold_kls(j, 0.0, 0.2, 0.0, 0.2, 0.2, 0.2)
        assert j.verdict().kl_ema == pytest.approx(0.2) and Code.KL_INERT not in codes(j.verdict())

    def test_a_kl_at_every_other_step_is_watched(self) -> None:
        j = judge(kl=KlPolicy(hard_stop=0.5))
        fold_kls(j, *[0.1, None] * 10)
        assert codes(j.verdict())[Code.KL_INERT] is Level.HEALTHY

    def test_a_limit_that_could_not_act_yet_is_not_kept(self) -> None:
        j = judge(kl=KlPolicy(hard_stop=0.5, min_steps=20))
        fold_kls(j, *[0.1] * 19)
        j.fold_evaluation(evaluation(18))
        assert (j.verdict().level, j.verdict().code) == (Level.UNKNOWN, Code.WARMING_UP)
        j.fold_step(step(19, kl=0.1))
        assert j.verdict().level is Level.HEALTHY

    @pytest.mark.parametrize(("limit", "level"), [(0.5, Level.UNKNOWN), (None, Level.WARNING)])
    def test_five_in_a_row_that_are_not_finite(self, limit: float | None, level: Level) -> None:
        j = judge(kl=KlPolicy(hard_stop=limit))
        fold_kls(j, *[None] * 4, kl_kind=KlKind.NOT_FINITE)
        assert Code.KL_NOT_FINITE not in codes(j.verdict())
        fold_kls(j, None, kl_kind=KlKind.NOT_FINITE)
        (found,) = about(j, Code.KL_NOT_FINITE)
        assert (found.level, found.advice) == (level, limit is None)

    def test_a_warning_is_advice_and_null_switches_it_off(self) -> None:
        for limit, told in ((0.08, [Code.KL_HARD_STOP]), (None, [])):
            j = Judge(Policy(kl=KlPolicy(warn_above=limit)))
            fold_kls(j, 0.0, *[5.0] * 60)
            assert [c.code for c in j.verdict().conditions if c.advice] == told and not j.verdict().stop

    def test_a_reference_that_is_not_the_start_is_told_and_not_held_against_the_run(self) -> None:
        j = judge(kl=KlPolicy(warn_above=0.1, hard_stop=0.2, min_steps=0))
        fold_kls(j, *[0.4] * 30)
        verdict = j.verdict()
        assert codes(verdict)[Code.REFERENCE_NOT_START] is Level.WARNING and verdict.kl_start == 0.4
        assert not verdict.fire and Code.KL_HARD_STOP not in codes(verdict)


# -- what keeps the guard from knowing -----------------------------------------------------------------------


class TestSilence:
    def test_warn_is_unknown_and_passes_when_steps_come_back(self) -> None:
        j = judge(silent=SilentPolicy(after_seconds=10.0, action="warn"))
        j.fold_step(step(0))
        assert codes(j.verdict(silent_for=11.0))[Code.SILENT] is Level.UNKNOWN
        assert Code.SILENT not in codes(j.verdict(silent_for=0.0))
        assert not j.verdict(silent_for=11.0).stop

    def test_stop_latches_but_is_no_fire_and_a_later_fire_is_one(self) -> None:
        j = judge(silent=SilentPolicy(after_seconds=10.0, action="stop"))
        assert [[c.action for c in j.verdict(s).conditions if c.action] for s in (10.0, 10.5)] == [
            [],
            ["stop"],
        ]
        j.fold_latch(Latch(False, "silent", "no step for 10.5 s", 0, 0))
        verdict = j.verdict(silent_for=0.0)
        assert verdict.halt and not verdict.fire and verdict.code is Code.SILENT
        drift(j)
        assert j.verdict().fire and j.verdict().level is Level.FIRED


class TestStale:
    @pytest.mark.parametrize("action", ["warn", "stop"])
    def test_checkpoints_that_wait_or_were_gone_count_until_one_is_evaluated(self, action: str) -> None:
        j = judge(stale=StalePolicy(after_rounds=2, action=action))
        j.fold_checkpoint()
        j.fold_skipped()
        j.fold_checkpoint()
        assert Code.STALE not in codes(j.verdict())
        j.fold_checkpoint()
        assert Code.STALE in codes(j.verdict())
        assert j.verdict().halt is (action == "stop") and not j.verdict().fire
        j = j.copy()
        j.fold_evaluation(evaluation(1))
        assert (Code.STALE in codes(j.verdict())) is (action == "stop")

    def test_steps_without_any_checkpoint(self) -> None:
        j = judge(stale=StalePolicy(after_steps=3))
        steps(*range(4))(j)
        assert "4 steps" in about(j, Code.STALE)[0].message
        j.fold_evaluation(evaluation(2))
        assert Code.STALE not in codes(j.verdict())


class TestFailingEvaluations:
    def test_in_a_row_until_one_succeeds(self) -> None:
        j = judge(evaluation_failing=EvaluationFailingPolicy(after_failures=2, action="stop"))
        j.fold_failure("no such file")
        j.fold_evaluation(evaluation(0))
        j.fold_failure("no such file")
        j.fold_skipped()
        assert Code.EVALUATION_FAILING not in codes(j.verdict()), "a checkpoint that was gone is no failure"
        j.fold_failure("out of memory")
        assert j.verdict().halt and "out of memory" in j.verdict().reason


def test_the_worst_condition_names_the_verdict() -> None:
    j = judge(stale=StalePolicy(after_rounds=1))
    for _ in range(2):
        j.fold_checkpoint()
    drift(j)
    levels = [c.level.severity for c in j.verdict().conditions if not c.advice]
    assert levels == sorted(levels, reverse=True) and j.verdict().code is Code.KL_HARD_STOP


@pytest.mark.parametrize(("waits", "told"), [(False, True), (True, False), (None, False)])
def test_a_trainer_that_does_not_wait_is_told_until_it_waits_again(waits: bool | None, told: bool) -> None:
    j = judge()
    j.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/c/1", waits=waits))
    assert [c.advice for c in about(j, Code.NOT_WAITING)] == [True] * told
    j.fold_checkpoint(CheckpointReport(attempt=0, step=2, path="/c/2", waits=True))
    assert not about(j, Code.NOT_WAITING)


# -- counts --------------------------------------------------------------------------------------------------


class TestCounts:
    def test_the_best_checkpoint_is_the_highest_score_and_the_later_of_equals(self) -> None:
        j = judge()
        for n, score in enumerate([0.4, 0.6, 0.6, 0.5]):
            j.fold_evaluation(evaluation(n, score))
        best, last = j.verdict().best_evaluation, j.verdict().last_evaluation
        assert best is not None and (best.step, best.score) == (2, 0.6)
        assert last is not None and last.step == 3

    def test_every_checkpoint_is_evaluated_failed_skipped_or_waiting(self) -> None:
        j = judge()
        for n in (1, 2):
            j.fold_refused(CheckpointKey(0, n))
        j.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/checkpoints/checkpoint-1"))
        for _ in range(3):
            j.fold_checkpoint()
        j.fold_evaluation(evaluation(0))
        j.fold_failure("no weights")
        j.fold_skipped()
        verdict = j.verdict()
        assert (verdict.announced, verdict.evaluated, verdict.failed, verdict.skipped) == (4, 1, 1, 1)
        assert (verdict.waiting, verdict.refused) == (1, 1), "one was taken later"

    def test_weights_that_were_scored_before_are_judged_with_them(self) -> None:
        """A first step without a gradient, a final save of what was saved: no failure, and no new round."""
        j = judge(kl=KlPolicy(), evaluation_failing={"after_failures": 1, "action": "stop"})
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
        j.fold_evaluation(evaluation(1))
        assert j.verdict().level is Level.HEALTHY


# -- passes that cannot be had -------------------------------------------------------------------------------


def with_passes(count: int) -> Judge:
    return judge(detector="calibrated", calibrated=CalibratedPolicy(baseline_passes=count), kl=KlPolicy())


def fail(j: Judge, how: FailureKind | str) -> None:
    wanted = j.wanted_pass()
    assert wanted is not None
    if isinstance(how, FailureKind):
        j.fold_failure("it failed", wanted.index, how)
    else:
        j.fold_skipped(wanted.index)


def scored(j: Judge, n: int, score: float) -> None:
    j.fold_step(step(n))
    j.fold_checkpoint()
    j.fold_evaluation(evaluation(n, score))


def alarmed() -> Judge:
    """A run with a true drop at its newest checkpoint."""
    j = with_passes(1)
    for n in range(20):
        scored(j, n, 0.9 if n < 8 else 0.75)
        if j.wanted_pass() is not None:
            break
    assert not j.verdict().fire and j.verdict().waiting == 1
    return j


class TestPassesThatCannotBeHad:
    @pytest.fixture(params=[FailureKind.OUT_OF_MEMORY, FailureKind.CHECKPOINT, "gone"])
    def lose(self, request: pytest.FixtureRequest) -> Callable[[Judge], None]:
        """The pass that is wanted fails, both times where it is tried again, or its checkpoint is gone."""

        def lost(j: Judge) -> None:
            for _ in range(2 if request.param is FailureKind.OUT_OF_MEMORY else 1):
                fail(j, request.param)
            assert j.wanted_pass() is None

        return lost

    @pytest.mark.parametrize(("score", "fires"), [(0.75, True), (0.9, False)])
    def test_an_alarm_without_its_confirmation_never_ends_well_and_the_next_checkpoint_decides(
        self, lose: Callable[[Judge], None], score: float, fires: bool
    ) -> None:
        j = alarmed()
        lose(j)
        verdict = j.copy().verdict()
        assert (verdict.waiting, verdict.fire, verdict.level) == (0, False, Level.WARNING)
        assert verdict.evaluated == verdict.announced, "by the counts alone all was judged"
        assert "the next checkpoint decides" in " ".join(c.message for c in verdict.conditions)
        assert not_judged(verdict, "wait longer").startswith("warning (")
        scored(j, 30, score)
        assert j.verdict().fire is fires
        assert "could not be made" not in " ".join(c.message for c in j.verdict().conditions)

    def test_a_baseline_is_worth_the_passes_that_were_made(self, lose: Callable[[Judge], None]) -> None:
        """Sixteen were wanted, one was made: the run is judged as with one, and its reader is told."""
        j, one = with_passes(16), with_passes(1)
        for run in (j, one):
            scored(run, 0, 0.5)
        assert j.verdict().waiting == 0, "nothing is compared with it"
        lose(j)
        assert codes(j.verdict())[Code.NO_BASELINE] is Level.UNKNOWN
        for n in (1, 2, 3):
            for run in (j, one):
                scored(run, n, 0.5)
        verdict = j.copy().verdict()
        assert verdict.detectors == one.verdict().detectors
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.WARMING_UP), "fewer see less"
        (told,) = about(j, Code.NO_BASELINE)
        assert told.advice and "the baseline has 1 of 16 passes" in told.message
        assert not about(one, Code.NO_BASELINE)

    @pytest.mark.parametrize("kind", [FailureKind.UNDERWAY, FailureKind.OUT_OF_MEMORY, FailureKind.EVALUATOR])
    def test_a_lost_pass_is_tried_again_under_a_number_of_its_own(self, kind: FailureKind) -> None:
        """Each of sixteen passes fails once: the baseline is complete all the same, and nothing is told."""
        j = with_passes(16)
        scored(j, 0, 0.5)
        numbers = [0]
        while (wanted := j.wanted_pass()) is not None:
            numbers.append(wanted.index)
            if len(numbers) % 2 == 0:
                fail(j, kind)
                j = j.copy()
            else:
                j.fold_evaluation(replace(evaluation(0, 0.5 + len(numbers) / 100), pass_index=wanted.index))
        assert numbers == list(range(31)), "no number twice: it is what the store knows a pass by"
        scored(j, 1, 0.5)
        assert not about(j, Code.NO_BASELINE)

    def test_so_is_a_lost_confirmation_which_then_decides(self) -> None:
        j = alarmed()
        first = j.wanted_pass()
        fail(j, FailureKind.UNDERWAY)
        again = j.wanted_pass()
        assert first is not None and again is not None and again.index == first.index + 1
        assert j.verdict().waiting == 1
        j.fold_evaluation(replace(evaluation(again.step, 0.75), pass_index=again.index))
        assert j.verdict().fire


# -- sampling ------------------------------------------------------------------------------------------------

HOT = Sampling(temperature=1.0, max_new_tokens=64)
COLD = Sampling(temperature=0.5, max_new_tokens=64)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([HOT, HOT], ""),
        ([HOT, COLD], "at step 10 says temperature 0.5, up to 64 tokens; the run began with temperature 1,"),
        ([HOT, None], "at step 10 says nothing of its sampling; the run began with temperature 1,"),
        ([None, HOT], "at step 10 says temperature 1, up to 64 tokens; the run began with nothing of its"),
        ([HOT, COLD, HOT, HOT], "at step 10 says temperature 0.5"),
    ],
)
def test_the_first_checkpoint_fixes_the_sampling_and_another_one_is_advice(
    said: list[Sampling | None], told: str
) -> None:
    j = judge()
    for n, sampling in enumerate(said):
        j.fold_checkpoint(CheckpointReport(attempt=n, step=10 * n, path="/checkpoints", sampling=sampling))
        assert j.sampling == said[0]
    advice = about(j.copy(), Code.SAMPLING_CHANGED)
    assert [c.advice for c in advice] == [True] * bool(told) and all(told in c.message for c in advice)


def test_a_default_that_nobody_chose_is_said() -> None:
    chosen = {"temperature": 0.0, "max_new_tokens": 256}
    for settings, said in (({}, True), (chosen, False)):
        j = judge()
        sampling = HfEvaluation(**settings).sampling_with(None)
        j.fold_evaluation(replace(evaluation(0), sampling=sampling))
        found = about(j, Code.SAMPLING_UNKNOWN)
        assert [c.advice for c in found] == [True] * said
        assert all("temperature 0, up to 256 tokens" in c.message for c in found)
