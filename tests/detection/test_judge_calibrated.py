"""The judge with `detector: calibrated | both`: what alarms, what confirms, what stops, and what it lacks.

Also: what HeldOutGuard and the KL may do under each setting; nothing per item is in a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.detectors.conditions import uninformative_baseline
from rlguard.core.detectors.run import LAST_PASSES
from rlguard.core.ending import not_judged
from rlguard.core.judge import Judge
from rlguard.core.policy import Policy
from rlguard.core.preflight import evaluations_needed
from rlguard.core.trainer_view import for_trainer
from rlguard.core.wire import EndReport, EvaluationSampling, SamplingSource, StepReport

from simulated import GuardedRun, difficulties, draw  # isort: skip

N = 128
MEANS = difficulties(N)
FALLS = {Code.FELL_BELOW_START, Code.FELL_BELOW_REACHED}
#: A last evaluation near an alarm of a run that was as usual, and one that is not.
USUAL, LOW = (np.array([float(i < round(share * N * MEANS.mean())) for i in range(N)]) for share in (1, 0.68))


def policy(detector: str = "calibrated", **calibrated: Any) -> Policy:
    settings = {"baseline_passes": 16, "alpha": 0.01, **calibrated}
    return Policy.model_validate({"detector": detector, "calibrated": settings})


def guarded(rounds: int = 0, **calibrated: Any) -> GuardedRun:
    """A run whose baseline is made, after so many further rounds."""
    run = GuardedRun(policy(**calibrated))
    run.rounds(0, rounds, MEANS)
    return run


def codes(run: GuardedRun) -> set[Code]:
    return {condition.code for condition in run.judge.verdict().conditions}


def test_no_run_is_healthy_before_the_reward_can_be_compared_with_the_score() -> None:
    """With so many passes a fall would be seen at once; a rise of the reward alone would not."""
    run = guarded()
    for round_ in range(1, 9):
        run.rounds(round_, round_, MEANS)
        verdict = run.judge.verdict()
        gap = next(r for r in verdict.detectors if r.name == "gap")
        if round_ < 4:
            assert verdict.level is gap.level is Level.UNKNOWN
            assert any(gap.message in c.message for c in run.about(Code.WARMING_UP))
    assert verdict.level is Level.HEALTHY and [r.name for r in verdict.detectors] == ["decline", "gap"]


def test_a_reward_that_never_moves_has_not_risen() -> None:
    run = GuardedRun(policy())
    for step in range(12):
        run.judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
        run.scored(step, MEANS)
        gap = [r.level for r in run.judge.verdict().detectors if r.name == "gap"]
        assert gap in ([], [Level.HEALTHY if step >= 10 else Level.UNKNOWN])
    assert run.judge.verdict().level is Level.HEALTHY


@pytest.mark.parametrize("passes", [1, 16])
def test_a_drop_fires_and_no_pass_is_wanted_afterwards(passes: int) -> None:
    run = guarded(rounds=19, baseline_passes=passes)
    assert run.judge.latch is None
    assert run.rounds(20, 40, MEANS * 0.5) is not None
    verdict = run.judge.verdict()
    assert verdict.fire and verdict.stop and verdict.level is Level.FIRED and verdict.code in FALLS
    assert run.judge.wanted_pass() is None


def test_an_alarm_asks_for_one_fresh_evaluation_of_that_checkpoint() -> None:
    run = guarded(rounds=14)
    run.judge.fold_checkpoint()
    run.evaluate(150, draw(run.rng, MEANS * 0.2))
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.fire, verdict.waiting) == (Level.WARNING, False, 1) and FALLS & codes(run)
    wanted = run.judge.wanted_pass()
    assert wanted is not None and (wanted.step, wanted.index) == (150, 1)
    run.evaluate(150, draw(run.rng, MEANS), 1)  # the fresh one is fine: no fire, and no third evaluation
    assert not run.judge.verdict().fire and run.judge.wanted_pass() is None
    (told,) = run.about(Code.EVALUATION_FAILING)
    assert told.advice and "1 of 16 evaluations are not counted" in told.message


def test_a_kl_above_its_limit_for_a_warning_only_informs() -> None:
    run = GuardedRun(policy())
    run.rounds(0, 0, MEANS, kl=0.001)
    run.rounds(1, 24, MEANS, kl=0.5)
    assert [(c.level, c.advice) for c in run.about(Code.KL_HARD_STOP)] == [(Level.WARNING, True)]
    assert not run.judge.verdict().stop


def test_what_the_policy_only_warns_of_is_advice_and_a_trainer_is_told_its_code() -> None:
    """By default a reward that gains alone stops nothing."""
    run = guarded()
    for round_ in range(1, 20):
        run.rounds(round_, round_, MEANS, reward=0.5 + 0.05 * round_)
    verdict = run.judge.verdict()
    (told,) = run.about(Code.REWARD_WITHOUT_GAIN)
    assert told.advice and (verdict.level, verdict.code) == (Level.HEALTHY, Code.OK)
    assert verdict.reason.startswith("nothing that stops a run by this policy speaks against the run after ")
    assert verdict.reason.endswith("; it warns of reward_without_gain")
    assert for_trainer(verdict).reason == verdict.reason, "no number that a trainer may not know"


def test_under_heldout_guard_no_pass_is_wanted_and_nothing_is_added() -> None:
    run = GuardedRun(policy("heldout_guard"))
    assert run.scored(0, MEANS) == 1
    assert run.judge.verdict().detectors == () and run.judge.compact().detector is None


def test_a_verdict_carries_no_outcome_of_an_item() -> None:
    dumped = guarded(rounds=3).judge.verdict().model_dump(mode="json")
    assert max(len(value) for value in dumped.values() if isinstance(value, list)) < N
    for reading in dumped["detectors"]:
        assert set(reading) == {"name", "level", "code", "statistic", "threshold", "message"}


# -- the end of a run ----------------------------------------------------------------------------------------


def at_its_end(**calibrated: Any) -> GuardedRun:
    """A run whose last checkpoint has a low evaluation that raises no alarm."""
    run = guarded(rounds=14, **calibrated)
    run.steps(141, 150)
    run.judge.fold_checkpoint()
    run.evaluate(150, LOW)
    assert run.judge.wanted_pass() is None and run.judge.waiting == 0, "no alarm"
    return run


def ends(run: GuardedRun, step: int = 150) -> None:
    run.judge.fold_end(EndReport(attempt=0, step=step))


def looked_at(run: GuardedRun, make: Callable[[], np.ndarray]) -> list[int]:
    """Passes of the last checkpoint that are made."""
    made = []
    while (wanted := run.judge.wanted_pass()) is not None and len(made) < 9:
        assert wanted.step == 150 and run.judge.waiting == 1
        made.append(wanted.index)
        run.evaluate(150, make(), wanted.index)
    return made


def test_a_fall_at_the_last_checkpoint_is_looked_at_again_once_the_trainer_has_ended() -> None:
    run = at_its_end()
    ends(run)
    assert not_judged(run.judge.verdict(), "wait longer").startswith("1 evaluations were left waiting")
    made = looked_at(run, lambda: draw(run.rng, MEANS * 0.6))
    assert made in ([1, 2], [1, 2, 3]), "the last one confirms an alarm"
    assert run.judge.verdict().fire and run.judge.waiting == 0


def test_it_is_looked_at_no_more_than_twice_where_no_alarm_comes_of_it() -> None:
    run = at_its_end()
    ends(run)
    made = looked_at(run, lambda: 0.4 * LOW + 0.6 * USUAL)
    assert 1 <= len(made) <= LAST_PASSES and not run.judge.verdict().fire and run.judge.waiting == 0


@pytest.mark.parametrize(
    "goes_on",
    [
        pytest.param(lambda run: ends(run, step=140), id="it has made steps since"),
        pytest.param(lambda run: (ends(run), run.judge.fold_checkpoint()), id="a checkpoint waits"),
        pytest.param(
            lambda run: (ends(run), run.judge.fold_step(StepReport(attempt=1, step=151, reward=0.5))),
            id="it was started again",
        ),
    ],
)
def test_nothing_is_looked_at_again_of_a_run_that_goes_on(goes_on: Callable[[GuardedRun], object]) -> None:
    run = at_its_end()
    goes_on(run)
    assert run.judge.wanted_pass() is None


def test_nothing_is_looked_at_again_that_could_stop_nothing() -> None:
    for run in (at_its_end(on_decline="warn"), guarded(rounds=15)):
        ends(run)
        assert run.judge.wanted_pass() is None


@pytest.mark.parametrize("lose", [Judge.fold_skipped, lambda judge, index: judge.fold_failure("x", index)])
def test_a_last_look_that_could_not_be_had_is_no_pass(lose: Callable[[Judge, int], None]) -> None:
    run = at_its_end()
    ends(run)
    while (wanted := run.judge.wanted_pass()) is not None:
        lose(run.judge, wanted.index)
    assert run.judge.waiting == 0
    said = not_judged(run.judge.verdict(), "wait longer")
    assert "the fresh evaluation that" in said and "could not be made" in said


# -- what a baseline can say ---------------------------------------------------------------------------------


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
def test_a_start_without_room_is_told_and_unknown_while_it_stays_near_0(
    score: float, newest: float | None, level: Level | None
) -> None:
    found = uninformative_baseline(score, newest)
    assert (found.level if found else None) is level
    assert found is None or (found.advice == (level is not Level.UNKNOWN) and f"{score:.4f}" in found.message)


def test_a_run_that_cannot_be_judged_yet_says_what_it_lacks() -> None:
    run, few = (GuardedRun(policy(baseline_passes=4)) for _ in range(2))
    half = np.full(256, 0.5)
    run.rounds(0, 1, half)
    assert "1 evaluations so far: a fall of 10 points from the start shows after " in " ".join(
        c.message for c in run.about(Code.WARMING_UP)
    )
    run.rounds(2, 18, half)
    assert not run.about(Code.WARMING_UP)
    few.rounds(0, 10, half[:16])
    assert "take more items, or more passes" in few.about(Code.WARMING_UP)[0].message


@pytest.mark.parametrize(
    ("items", "passes", "enough"),
    [(1, 1, False), (31, 1, False), (1, 31, False), (32, 1, True), (8, 16, True)],
)
def test_of_too_few_outcomes_of_the_start_no_fall_is_judged_and_that_is_no_pass(
    items: int, passes: int, enough: bool
) -> None:
    """It stopped 38 of 40 null runs of one item and one pass, and 12 of 30 with two passes."""
    run = GuardedRun(policy(baseline_passes=passes), sampling=1.0)
    assert run.rounds(0, 12, np.full(items, 0.5)) is None
    decline = run.judge.verdict().detectors[0]
    assert (decline.statistic is not None) is enough
    if not enough:
        assert "are too few (it takes 32)" in decline.message and not_judged(run.judge.verdict(), "")
        how = EvaluationSampling(temperature=1, max_new_tokens=1, samples=1, source=SamplingSource.SETTINGS)
        needed = evaluations_needed(policy(baseline_passes=passes), items, how)
        assert needed.long_rounds is None, "`check` says so"


def test_a_run_from_a_low_start_is_told_at_once_and_judged_once_it_has_risen() -> None:
    """More items would not help: only a grader, `on_gap: stop`, or a level that it has risen to."""
    low, risen = np.full(256, 0.03), np.full(256, 0.5)
    runs = [GuardedRun(policy(baseline_passes=4, **others)) for others in ({}, {"on_gap": "stop"})]
    for run in runs:
        run.rounds(0, 0, low)
        run.rounds(1, 5, risen)
    assert any("beside the 3 that are accepted" in c.message for c in runs[0].about(Code.WARMING_UP))
    (told,) = runs[0].about(Code.UNINFORMATIVE_BASELINE)
    assert told.advice and "below twice the accepted decline (0.06)" in told.message
    assert "`proxy_scorer`" in told.message and "`calibrated.on_gap: stop`" in told.message
    assert not runs[1].about(Code.UNINFORMATIVE_BASELINE)
    runs[0].rounds(6, 17, risen)
    assert not runs[0].about(Code.WARMING_UP)
    stays = GuardedRun(policy(baseline_passes=4))
    stays.rounds(0, 20, low)
    assert stays.about(Code.WARMING_UP)


RISE = np.linspace(0.3, 0.6, 9).tolist()


@pytest.mark.parametrize(
    ("after", "fires"),
    [([0.42] * 8, True), ([0.6] * 12, False), ([0.57] * 12, False), ([0.5] * 2 + [0.6] * 10, False)],
    ids=["lost", "stays", "accepted", "recovers"],
)
def test_a_rise_that_is_lost_again_stops_the_run(after: list[float], fires: bool) -> None:
    """It lies above its start all the time, and never stood on a level."""
    run = GuardedRun(policy(), seed=3)
    for step, level in enumerate([RISE[0], *RISE, *after]):
        if run.judge.latch is None:
            run.scored(step, np.full(256, level))
    assert run.judge.verdict().fire is fires and bool(FALLS & codes(run)) is fires
    assert not fires or run.judge.verdict().reason.startswith("held-out score fell from 0.5")


@pytest.mark.parametrize(("start", "later"), [(1.0, 1.0), (0.2, 0.7)])
def test_a_run_far_above_every_drop_is_judged_like_any_other(start: float, later: float) -> None:
    """The odds of a drop are then smaller than the smallest float; no evaluation may be lost to that."""
    run = GuardedRun(policy(baseline_passes=2))
    run.scored(0, np.full(8000, start))
    for step in range(1, 6):
        run.scored(step, np.full(8000, later))
    verdict = run.judge.verdict()
    assert verdict.evaluated == 6 and not verdict.fire
    assert all(one.statistic is None or one.statistic >= 0 for one in verdict.detectors)
