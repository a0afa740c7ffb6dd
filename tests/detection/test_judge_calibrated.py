"""The judge with `detector: calibrated | both`: it gathers the baseline, asks for passes, latches, restarts.

Also: what HeldOutGuard and the KL stop may do under each setting; nothing per item is in a verdict.
"""

from __future__ import annotations

import numpy as np
import pytest

from guard_core.codes import Code, Level
from guard_core.detectors import Baseline, CalibratedDetector
from guard_core.detectors.planning import evaluations_to_detect
from guard_core.detectors.run import LAST_PASSES, CalibratedRun, Pass, uninformative_baseline
from guard_core.ending import not_judged
from guard_core.judge import Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.rounds import Evaluation
from guard_core.wire import Condition, EndReport, KlKind, StepReport

from simulated import difficulties, draw  # isort: skip

N = 128
MEANS = difficulties(N)
PASSES = 4
#: A last evaluation near an alarm of a run that was as usual, and one that is not.
USUAL, LOW = (
    tuple(float(i % 128 < round(count)) for i in range(N))
    for count in (N * float(MEANS.mean()), 0.68 * N * float(MEANS.mean()))
)


def policy(detector: str = "calibrated", **calibrated) -> Policy:
    settings = {"baseline_passes": PASSES, "alpha": 0.01, **calibrated}
    return Policy.model_validate({"detector": detector, "calibrated": settings})


class Run:
    """A guarded run: ten steps and one checkpoint a round; it gives the judge the passes that it wants."""

    means = MEANS

    def __init__(self, detector: str = "calibrated", **calibrated) -> None:
        self.judge = Judge(policy(detector, **calibrated))
        self.rng = np.random.default_rng(1)
        self.passes: list[int] = []
        self.climb = 0.0  # of the in-loop reward, each round

    def steps(self, round_: int, kl: float | None = None) -> None:
        for step in range(10 * round_ - 9, 10 * round_ + 1) if round_ else [0]:
            kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
            reward = 0.5 + self.climb * round_ + 0.01 * float(self.rng.standard_normal())
            self.judge.fold_step(StepReport(attempt=0, step=step, reward=reward, kl=kl, kl_kind=kind))

    def evaluate(self, round_: int, share: float = 1.0, index: int = 0) -> None:
        items = tuple(draw(self.rng, self.means * share).tolist())
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
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.WARMING_UP)
    for round_ in range(2, 20):
        run.round(round_)
    verdict = run.judge.verdict()
    assert verdict.level is Level.HEALTHY
    assert [r.name for r in verdict.detectors] == ["decline", "gap"]


def test_no_run_is_healthy_before_the_reward_can_be_compared_with_the_score():
    """With so many passes a fall would be seen at once; a rise of the reward alone would not."""
    run = Run(baseline_passes=16)
    run.round(0)
    for round_ in range(1, 4):
        run.round(round_)
        verdict = run.judge.verdict()
        unread = next(r for r in verdict.detectors if r.name == "gap")
        assert unread.level is Level.UNKNOWN and verdict.level is Level.UNKNOWN
        assert any(c.code is Code.WARMING_UP and unread.message in c.message for c in verdict.conditions)
    for round_ in range(4, 9):
        run.round(round_)
    verdict = run.judge.verdict()
    assert verdict.level is Level.HEALTHY
    assert "cannot judge" not in verdict.reason


def test_a_reward_that_never_moves_has_not_risen():
    run = Run(baseline_passes=16)
    for round_ in range(12):
        for step in range(10 * round_ - 9, 10 * round_ + 1) if round_ else [0]:
            run.judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
        run.judge.fold_checkpoint()
        run.evaluate(round_)
        while (wanted := run.judge.wanted_pass()) is not None:
            run.evaluate(round_, 1.0, wanted.index)
        gap = [r for r in run.judge.verdict().detectors if r.name == "gap"]
        assert not gap or gap[0].level is (Level.HEALTHY if round_ >= 10 else Level.UNKNOWN)
    assert run.judge.verdict().level is Level.HEALTHY


def test_later_passes_count_neither_as_rounds_nor_as_checkpoints():
    run = Run()
    run.round(0)
    before = run.judge.verdict()
    assert before.rounds == 1
    assert before.best_evaluation == before.last_evaluation
    assert (before.announced, before.evaluated, before.waiting) == (1, 1, 0)


def test_a_drop_fires_and_names_its_code_and_no_pass_is_wanted_afterwards():
    run = Run()
    for round_ in range(40):
        run.round(round_, 1.0 if round_ < 20 else 0.6)
        assert run.judge.verdict().fire is False or round_ >= 20
    verdict = run.judge.verdict()
    assert verdict.fire and verdict.stop and verdict.level is Level.FIRED
    assert verdict.code in {Code.FELL_BELOW_START, Code.FELL_BELOW_REACHED}
    assert run.judge.wanted_pass() is None


def nearness(run: Run) -> float | None:
    """Evidence of `decline` over its threshold."""
    found = next((r for r in run.judge.verdict().detectors if r.name == "decline"), None)
    return None if found is None else found.statistic / found.threshold


def test_a_checkpoint_is_wanted_sooner_while_a_stop_is_near_its_threshold_and_may_stop_the_run():
    said: dict[bool, list[float]] = {True: [], False: []}
    run, advises = Run(baseline_passes=16), Run(baseline_passes=16, on_decline="warn")
    for round_ in range(40):
        for one in (run, advises):
            one.round(round_, 1.0 if round_ < 15 else 0.85)
        near, verdict = nearness(run), run.judge.verdict()
        if near is None or verdict.stop:
            assert not verdict.sooner
        else:
            said[verdict.sooner].append(near)
        assert not advises.judge.verdict().sooner
    assert run.judge.verdict().fire and max(said[False]) < 0.5 <= min(said[True])
    assert min(said[True]) < 1, "before there is an alarm"
    halted = Run("heldout_guard")
    halted.round(0)
    assert not halted.judge.verdict().sooner


def at_its_end(share: float, **calibrated) -> Run:
    """A run whose last checkpoint has a low evaluation that raises no alarm; further ones have `share`."""
    run = Run(baseline_passes=16, **calibrated)
    for round_ in range(15):
        run.round(round_)
    run.steps(15)
    run.judge.fold_checkpoint()
    run.judge.fold_evaluation(Evaluation(0, 150, "/checkpoints/150", LOW, None, 0))
    assert run.judge.wanted_pass() is None and run.judge.waiting == 0, "no alarm"
    run.means = MEANS * share
    return run


def ends(run: Run, step: int = 150) -> None:
    run.judge.fold_end(EndReport(attempt=0, step=step))


def test_a_fall_at_the_last_checkpoint_is_looked_at_again_once_the_trainer_has_ended():
    run = at_its_end(0.6)
    ends(run)
    assert not_judged(run.judge.verdict(), "wait longer").startswith("1 evaluations were left waiting")
    made = []
    while (wanted := run.judge.wanted_pass()) is not None:
        assert run.judge.waiting == 1
        made.append((wanted.step, wanted.index))
        run.evaluate(15, 1.0, wanted.index)
    assert made in ([(150, 1), (150, 2)], [(150, 1), (150, 2), (150, 3)]), "the last one confirms an alarm"
    assert run.judge.verdict().fire and run.judge.waiting == 0


def test_it_is_looked_at_no_more_than_twice_where_no_alarm_comes_of_it(monkeypatch):
    run = at_its_end(1.0)
    monkeypatch.setattr(CalibratedRun, "is_near", True)
    ends(run)
    made = []
    while (wanted := run.judge.wanted_pass()) is not None and len(made) < 9:
        made.append(wanted.index)
        run.judge.fold_evaluation(Evaluation(0, 150, "/checkpoints/150", USUAL, None, wanted.index))
    assert made == [1, 2] and LAST_PASSES == 2
    assert not run.judge.verdict().fire and run.judge.waiting == 0


def test_nothing_is_looked_at_again_of_a_run_that_goes_on():
    run = at_its_end(0.75)
    ends(run, step=140)
    assert run.judge.wanted_pass() is None, "it has made steps since"
    ends(run)
    run.judge.fold_step(StepReport(attempt=1, step=151, reward=0.5))
    assert run.judge.wanted_pass() is None, "it was started again"
    run = at_its_end(0.75)
    ends(run)
    run.judge.fold_checkpoint()
    assert (run.judge.wanted_pass(), run.judge.waiting) == (None, 1), "a checkpoint has yet to be evaluated"


def test_nothing_is_looked_at_again_that_could_stop_nothing():
    run = at_its_end(0.75, on_decline="warn")
    ends(run)
    assert run.judge.wanted_pass() is None
    steady = Run(baseline_passes=16)
    for round_ in range(16):
        steady.round(round_)
    ends(steady)
    assert steady.judge.wanted_pass() is None, "far from any alarm"


@pytest.mark.parametrize(
    "lose", [Judge.fold_skipped, lambda judge, index: [judge.fold_failure("x", index)] * 1]
)
def test_a_last_look_that_could_not_be_had_is_no_pass(lose):
    run = at_its_end(0.75)
    ends(run)
    while (wanted := run.judge.wanted_pass()) is not None:
        lose(run.judge, wanted.index)
    assert run.judge.waiting == 0
    said = not_judged(run.judge.verdict(), "wait longer")
    assert "the fresh evaluation that" in said and "could not be made" in said


def test_what_is_wanted_sooner_says_no_more_than_the_scores_do():
    """A trainer is told it. So runs with the same scores, of other items, get the same."""
    runs = [Run(baseline_passes=16), Run(baseline_passes=16)]
    order = np.random.default_rng(8).permutation(N)
    told = []
    for round_ in range(30):
        scores = draw(runs[0].rng, MEANS * (1.0 if round_ < 12 else 0.85))
        for run, items in zip(runs, (scores, scores[order] if round_ else scores), strict=True):
            run.steps(round_)
            run.judge.fold_checkpoint()
            run.judge.fold_evaluation(
                Evaluation(0, 10 * round_, f"/checkpoints/{10 * round_}", tuple(items.tolist()), None, 0)
            )
            made = np.random.default_rng(round_)
            while (wanted := run.judge.wanted_pass()) is not None:
                again = draw(made, MEANS * (1.0 if round_ < 12 else 0.85))
                again = again if run is runs[0] or round_ == 0 else again[order]
                run.judge.fold_evaluation(
                    Evaluation(0, 10 * round_, wanted.path, tuple(again.tolist()), None, wanted.index)
                )
        told.append([run.judge.verdict().sooner for run in runs])
    assert all(one == other for one, other in told)
    assert {one for one, _ in told} == {True, False}


def test_an_alarm_asks_for_one_fresh_evaluation_of_that_checkpoint():
    run = Run(baseline_passes=16)
    for round_ in range(15):
        run.round(round_)
    run.passes.clear()
    run.steps(15)
    run.judge.fold_checkpoint()
    run.evaluate(15, 0.2)
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.fire) == (Level.WARNING, False)
    assert {Code.FELL_BELOW_START, Code.FELL_BELOW_REACHED} & {c.code for c in verdict.conditions}
    wanted = run.judge.wanted_pass()
    assert wanted is not None and (wanted.step, wanted.index) == (150, 1)
    run.evaluate(15, 1.0, 1)  # the fresh one is fine: no fire, and no third evaluation
    verdict = run.judge.verdict()
    assert not verdict.fire
    assert run.judge.wanted_pass() is None
    told = [condition for condition in verdict.conditions if condition.code is Code.EVALUATION_FAILING]
    assert [(condition.advice, condition.level) for condition in told] == [(True, Level.WARNING)]
    assert "1 of 16 evaluations are not counted" in told[0].message


def test_the_baseline_closes_early_when_a_pass_fails_or_another_checkpoint_comes():
    run = Run()
    run.steps(0)
    run.judge.fold_checkpoint()
    run.evaluate(0)
    run.judge.fold_skipped(1)  # it was rotated away
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
    assert Code.NO_BASELINE not in {condition.code for condition in run.judge.verdict().conditions}


@pytest.mark.parametrize("detector", ["calibrated", "both"])
def test_a_copy_goes_on_by_itself_from_any_round(detector):
    live, restarted = Run(detector), Run(detector)
    for round_ in range(22):
        for run in (live, restarted):
            run.round(round_, 1.0 if round_ < 14 else 0.7)
        restarted.judge = restarted.judge.copy()
        assert restarted.judge.verdict() == live.judge.verdict()
    assert live.judge.verdict().fire


def test_under_calibrated_the_kl_stop_and_heldout_guard_only_inform():
    run = Run("calibrated")
    for round_ in range(25):
        run.round(round_, kl=0.5 if round_ else 0.001)
    verdict = run.judge.verdict()
    assert not verdict.fire and not verdict.stop
    told = [c for c in verdict.conditions if c.code is Code.KL_HARD_STOP]
    assert [(c.level, c.advice) for c in told] == [(Level.WARNING, True)]
    assert Code.WARMING_UP not in {c.code for c in verdict.conditions}


def test_under_both_the_old_rule_still_fires():
    run = Run("both")
    run.climb = 0.02
    for round_ in range(25):
        run.round(round_)
    assert run.judge.verdict().code is Code.HACKING_GAP
    assert run.judge.verdict().fire


def test_under_heldout_guard_no_pass_is_wanted_and_nothing_is_added():
    run = Run("heldout_guard")
    run.round(0)
    assert run.passes == []
    assert run.judge.verdict().detectors == ()
    assert run.judge.compact().detector is None


def test_a_verdict_carries_no_outcome_of_an_item():
    run = Run()
    for round_ in range(3):
        run.round(round_)
    dumped = run.judge.verdict().model_dump(mode="json")
    lengths = [len(v) for v in dumped.values() if isinstance(v, list)]
    assert max(lengths) < N
    for reading in dumped["detectors"]:
        assert set(reading) == {"name", "level", "code", "statistic", "threshold", "message"}


# -- what a baseline can say ---------------------------------------------------------------------------------


def conditions(
    means: np.ndarray, rounds: int, start: np.ndarray | None = None, before: int = 0, **calibrated
) -> dict[Code, Condition]:
    """What holds after some rounds of a run whose items have these means; at the start, and for so many
    rounds before, those of `start`.
    """
    start = means if start is None else start
    rng = np.random.default_rng(7)
    run = CalibratedRun(policy(**calibrated).calibrated)
    for round_ in range(1 + before + rounds):
        asked = Pass(0, round_, "/c", 0)
        while asked is not None:
            reward = 0.5 + 0.01 * rng.standard_normal()
            now = means if round_ > before else start
            run.fold(asked, tuple(draw(rng, now).tolist()), reward, in_loop_error=0.01)
            asked = run.wanted()
    held = sorted(run.conditions(), key=lambda condition: condition.message.startswith("`"), reverse=True)
    return {condition.code: condition for condition in held if condition.level is not Level.HEALTHY}


def test_greedy_passes_are_two_and_the_user_is_told_what_sampling_would_give():
    run = CalibratedRun(policy(baseline_passes=16).calibrated)
    start = tuple((np.arange(N) % 2).astype(float).tolist())
    for index in range(2):
        assert run.fold(Pass(0, 0, "/c", index), start, None) is None
    assert run.wanted() is None
    run.fold(Pass(0, 1, "/c", 0), tuple(np.zeros(N).tolist()), None)
    assert run.wanted() is None  # a copy of an alarm would confirm nothing
    told = [c for c in run.conditions() if c.code is Code.UNINFORMATIVE_BASELINE]
    assert [c.advice for c in told] == [True] and "temperature" in told[0].message


@pytest.mark.parametrize(
    ("score", "newest", "level"),
    [
        (0.01, None, Level.UNKNOWN),
        (0.01, 0.015, Level.UNKNOWN),
        (0.01, 0.2, Level.WARNING),
        (0.99, 0.99, Level.WARNING),
        (0.02, 0.0, None),
        (0.98, 0.98, None),
    ],
)
def test_a_start_without_room_is_told_and_unknown_while_it_stays_near_0(score, newest, level):
    found = uninformative_baseline(score, newest)
    assert (found.level if found else None) is level
    if found is not None:
        assert found.advice == (level is not Level.UNKNOWN)
        assert found.code is Code.UNINFORMATIVE_BASELINE and f"{score:.4f}" in found.message


def test_a_run_that_cannot_be_judged_yet_says_what_it_lacks():
    means = np.full(256, 0.5)
    lacks = conditions(means, 1)[Code.WARMING_UP]
    assert lacks.level is Level.UNKNOWN
    assert "1 evaluations so far: a fall of 10 points from the start shows after " in lacks.message
    assert Code.WARMING_UP not in conditions(means, 18)
    few = conditions(means[:16], 10)[Code.WARMING_UP]
    assert "take more items, or more passes" in few.message


@pytest.mark.nightly
@pytest.mark.parametrize(("items", "passes"), [(1, 1), (1, 2), (3, 1), (31, 1), (1, 31)])
def test_of_too_few_samples_of_the_start_no_fall_is_judged_and_that_is_said(items, passes):
    """It stopped 38 of 40 null runs of one item and one pass, and 12 of 30 with two passes."""
    rng = np.random.default_rng([items, passes])
    for _ in range(10):
        start = Baseline.from_passes((rng.random((passes, items)) < 0.5).astype(float))
        detector = CalibratedDetector(CalibratedPolicy(), start)
        for t in range(40):
            status = detector.update(t, (rng.random(items) < 0.5).astype(float), 0.5)
            assert not status.fire
        reading = status.readings[0]
        assert (reading.level, reading.statistic) == (Level.UNKNOWN, None)
        assert "outcomes of the starting policy are too few (it takes 32)" in reading.message
    assert evaluations_to_detect(0.5, items, passes, 0.1, CalibratedPolicy()) is None, "`check` says so"


@pytest.mark.parametrize(("items", "passes", "samples"), [(32, 1, 1), (1, 32, 1), (2, 16, 1), (8, 1, 4)])
def test_of_as_many_samples_as_it_takes_a_fall_is_judged(items, passes, samples):
    config = CalibratedPolicy(samples=samples)
    outcomes = (np.random.default_rng(items).random((passes, items)) < 0.5).astype(float)
    detector = CalibratedDetector(config, Baseline.from_passes(outcomes, samples))
    assert detector.update(0, outcomes[0], 0.5).readings[0].statistic is not None


def test_a_run_of_too_few_samples_has_not_passed():
    run = Run(baseline_passes=1)
    run.means = MEANS[:3]
    for round_ in range(12):
        run.round(round_)
    verdict = run.judge.verdict()
    assert verdict.level is Level.UNKNOWN and not_judged(verdict, "wait longer")
    assert any("are too few (it takes 32)" in c.message for c in verdict.conditions)


def test_a_run_from_a_low_start_is_told_at_once_and_judged_once_it_has_risen():
    """More items would not help: only a grader, `on_gap: stop`, or a level that it has risen to."""
    start, risen = np.full(256, 0.03), np.full(256, 0.5)
    early = conditions(risen, 5, start)
    assert "beside the 3 that are accepted" in early[Code.WARMING_UP].message
    told = early[Code.UNINFORMATIVE_BASELINE]
    assert told.advice and "below twice the accepted decline (0.06)" in told.message
    assert "`proxy_scorer`" in told.message and "`calibrated.on_gap: stop`" in told.message
    assert Code.UNINFORMATIVE_BASELINE not in conditions(risen, 5, start, on_gap="stop")
    assert Code.WARMING_UP not in conditions(risen, 17, start)
    assert Code.WARMING_UP in conditions(start, 20, start)


def test_256_items_and_16_passes_are_judged_within_eight_evaluations():
    assert Code.WARMING_UP not in conditions(np.full(256, 0.5), 8, baseline_passes=16)


def fallen_after(levels: list[float]) -> tuple[Level | None, str]:
    """What `decline` says of a run with these levels of 256 items, at the end or when it stops it."""
    rng = np.random.default_rng(3)
    run = CalibratedRun(policy(baseline_passes=16).calibrated)
    for index in range(16):
        run.fold(Pass(0, 0, "/c", index), tuple(draw(rng, np.full(256, levels[0])).tolist()), None)
    for step, level in enumerate(levels, 1):
        status = run.fold(Pass(0, step, "/c", 0), tuple(draw(rng, np.full(256, level)).tolist()), None)
        assert status is not None
        if status.fire:
            return status.level, status.reason
    falls = (Code.FELL_BELOW_START, Code.FELL_BELOW_REACHED)
    told = next((condition for condition in run.conditions() if condition.code in falls), None)
    return (None, "") if told is None else (told.level, told.message)


RISE = np.linspace(0.3, 0.6, 9).tolist()


def test_a_rise_that_is_lost_again_stops_the_run():
    """It lies above its start all the time, and never stood on a level."""
    level, sentence = fallen_after([*RISE, *[0.42] * 8])
    assert level is Level.FIRED and sentence.startswith("held-out score fell from 0.5")


@pytest.mark.parametrize(
    "after", [[0.6] * 12, [0.57] * 12, [0.5] * 2 + [0.6] * 10], ids=["stays", "accepted", "recovers"]
)
def test_a_rise_that_is_kept_or_recovers_is_none(after: list[float]):
    assert fallen_after([*RISE, *after]) == (None, "")


# -- what a hostile review broke ---------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "later"), [(1.0, 1.0), (0.2, 0.7)])
def test_a_run_far_above_every_drop_is_judged_like_any_other(start: float, later: float) -> None:
    """The odds of a drop are then smaller than the smallest float; no evaluation may be lost to that."""
    items = 8000
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=2))
    judge = Judge(policy)
    rng = np.random.default_rng(3)

    def outcomes(mean: float) -> tuple[float, ...]:
        return tuple((rng.random(items) < mean).astype(float).tolist())

    for index in range(2):
        judge.fold_evaluation(Evaluation(0, 0, "/c", outcomes(start), pass_index=index))
    for step in range(1, 6):
        judge.fold_evaluation(Evaluation(0, step, "/c", outcomes(later)))
    assert judge.verdict().evaluated == 6 and not judge.verdict().fire
    assert all(reading.statistic is None or reading.statistic >= 0 for reading in judge.verdict().detectors)


def test_many_evaluations_of_four_items_are_still_no_judgement() -> None:
    judge = Judge(Policy(calibrated=CalibratedPolicy(baseline_passes=1)))
    for step in range(30):
        judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
        judge.fold_evaluation(Evaluation(0, step, f"/c/{step}", (1.0, 0.0, 1.0, 0.0)))
    verdict = judge.verdict()
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.WARMING_UP)


@pytest.mark.nightly
def test_a_run_of_which_every_second_evaluation_does_not_count_is_not_healthy() -> None:
    judge = Judge(Policy())
    good, broken = tuple(float(i % 5 < 3) for i in range(256)), tuple(float(i % 20 == 0) for i in range(256))
    for index in range(2):
        judge.fold_evaluation(Evaluation(0, 0, "/c/0", good, pass_index=index))
    for step in range(1, 30):
        judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
        judge.fold_evaluation(Evaluation(0, step, f"/c/{step}", broken if step % 2 else good))
    assert judge.verdict().level is not Level.HEALTHY
    (told,) = [c for c in judge.verdict().conditions if c.code is Code.EVALUATION_FAILING]
    assert not told.advice


def test_a_first_evaluation_that_cannot_be_used_begins_no_baseline() -> None:
    judge = Judge(Policy(calibrated=CalibratedPolicy(baseline_passes=1)))
    judge.fold_evaluation(Evaluation(0, 0, "/c/0", (2.0, 1.0)))
    judge.fold_evaluation(Evaluation(0, 1, "/c/1", (1.0, 0.0)))
    judge.fold_evaluation(Evaluation(0, 2, "/c/2", (1.0, 0.0)))
    assert judge.verdict().detectors
