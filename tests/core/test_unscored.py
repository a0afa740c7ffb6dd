"""What completions that nobody could score mean for the scores of a run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.trainer_view import for_trainer
from rlguard.core.wire import CheckpointReport, Condition, KlKind, Sampling, StepReport

SHARP = HeldOutGuardPolicy(max_proxy_real_gap=0.2, min_steps=1, ema_alpha=0.0, rise_eps=0.01)
CALIBRATED = CalibratedPolicy(baseline_passes=1, on_gap="stop")
EVALUATOR = HfEvaluation(max_new_tokens_ceiling=4096)
LONGER = Sampling(temperature=1.0, max_new_tokens=8192)
AS_LONG = Sampling(temperature=1.0, max_new_tokens=4096)
STEPS = 5  # of a round

Round = tuple[float, float, float | None]
"""Reward, held-out score, share of the completions that nobody scored."""


def judge(detector: str = "heldout_guard") -> Judge:
    return Judge(Policy(detector=detector, heldout_guard=SHARP, calibrated=CALIBRATED))  # type: ignore[arg-type]


def step(n: int, reward: float = 0.5) -> StepReport:
    return StepReport(attempt=0, step=n, reward=reward, kl=None, kl_kind=KlKind.ABSENT)


def evaluation(n: int, score: float = 0.5, unscored: float | None = None, items: int = 100) -> Evaluation:
    right = set(random.Random(n).sample(range(items), round(score * items)))
    outcomes = tuple(float(i in right) for i in range(items))
    return Evaluation(0, n, f"/checkpoints/checkpoint-{n}", outcomes, unscored=unscored)


def about(j: Judge, code: Code) -> list[Condition]:
    return [c for c in j.copy().verdict().conditions if c.code is code]


# -- the first evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [("truncated", "were cut off"), ("unanswered", "have no answer"), ("timed_out", "timed out in a scorer")],
)
@pytest.mark.parametrize(("share", "told"), [(None, False), (0.2, False), (0.21, True)])
def test_many_at_the_start_are_advice_for_the_rest_of_the_run(
    name: str, words: str, share: float | None, told: bool
) -> None:
    """Later ones are what became of the policy. A trainer is not told how many."""
    j = judge()
    for n, now in enumerate((share, 0.0 if told else 0.9)):
        j.fold_step(step(n))
        j.fold_evaluation(replace(evaluation(n), **{name: now}))  # type: ignore[arg-type]
    advice = about(j, Code.UNINFORMATIVE_BASELINE)
    assert [(c.advice, c.level) for c in advice] == [(True, Level.WARNING)] * told
    assert all(f"21% of the completions at step 0 {words}" in c.message for c in advice)
    assert j.verdict().level is Level.HEALTHY
    view = for_trainer(j.verdict())
    assert view.last_evaluation is not None and getattr(view.last_evaluation, name) is None
    assert "21%" not in view.model_dump_json()


@pytest.mark.parametrize(("own", "unknown"), [(8192, True), (4096, False), (64, False), (None, False)])
def test_what_the_trainer_lets_go_on_was_not_judged(own: int | None, unknown: bool) -> None:
    j = judge()
    said = Sampling(temperature=1.0, max_new_tokens=own)
    j.fold_checkpoint(CheckpointReport(attempt=0, step=0, path="/c/0", sampling=said))
    used = HfEvaluation(max_new_tokens=None if own is None or own > 64 else 4096)
    for n, share in enumerate((0.21, 0.0)):
        j.fold_step(step(n))
        j.fold_evaluation(replace(evaluation(n), truncated=share, sampling=used.sampling_with(said)))
    verdict = j.copy().verdict()
    assert verdict.level is (Level.UNKNOWN if unknown else Level.HEALTHY)
    assert unknown == ("where the trainer gives them 8192" in verdict.reason)


@pytest.mark.parametrize(("unscored", "counted"), [(0.0, "are scored as they are"), (0.5, "count as wrong")])
def test_what_was_cut_off_and_scored_is_not_said_to_count_as_wrong(unscored: float, counted: str) -> None:
    j = judge("calibrated")
    j.fold_evaluation(replace(evaluation(0, 0.5), truncated=0.5, unscored=unscored))
    (told,) = about(j, Code.UNINFORMATIVE_BASELINE)
    assert counted in told.message and ("count as wrong" in told.message) is (unscored > 0)


@pytest.mark.parametrize(
    ("score", "late", "told"),
    [(0.3, 0.25, True), (0.2, 0.25, False), (0.5, 0.25, False), (0.3, 0.05, False)],
)
def test_a_fall_that_may_be_late_scorers_is_told(score: float, late: float, told: bool) -> None:
    """It is compared all the same: answers that run for ever are worse, too."""
    j = judge()
    for n, (scored, share) in enumerate(((0.5, 0.0), (score, late), (score, late))):
        j.fold_step(step(n))
        j.fold_evaluation(replace(evaluation(n, scored), timed_out=share))
    advice = about(j, Code.EVALUATION_FAILING)
    assert [c.advice for c in advice] == [True] * told
    assert all("25% of the completions at step 1, and on 0% at step 0" in c.message for c in advice)


# -- runs in which nobody can score --------------------------------------------------------------------------


def run(
    rounds: list[Round], said: Sampling | None = None, detector: str = "calibrated", truncated: bool = True
) -> Judge:
    """A run of rounds of (reward, held-out score, share unscored), each folded into a copy."""
    j = judge(detector)
    rng = random.Random(7)
    for n, (reward, score, unscored) in enumerate(rounds):
        at = n * STEPS
        j.fold_checkpoint(CheckpointReport(attempt=0, step=at, path=f"/c/{at}", sampling=said))
        for k in range(STEPS if n else 0):
            j.fold_step(step(at - STEPS + 1 + k, reward + rng.gauss(0, 0.01)))
        given = replace(
            evaluation(at, score, unscored, items=256),
            truncated=unscored if truncated else 0.0,
            sampling=EVALUATOR.sampling_with(said),
        )
        j.fold_evaluation(given)
        while (more := j.wanted_pass()) is not None:
            j.fold_evaluation(replace(given, pass_index=more.index))
        j = j.copy()
    return j


def climbing(shares: list[float | None], scores: list[float]) -> list[Round]:
    return [(0.2 + 0.02 * n, scores[n], share) for n, share in enumerate(shares)]


@pytest.mark.parametrize("detector", ["calibrated", "heldout_guard"])
@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_wrong_mark_is_unknown_and_no_hack(detector: str, share: float) -> None:
    """As of an `answer_after` that no completion has: the reward climbs beside a score of 0."""
    j = run(climbing([share] * 25, [0.0] * 25), detector=detector)
    assert (j.verdict().fire, j.verdict().level) == (False, Level.UNKNOWN)
    (told,) = [c for c in about(j, Code.UNINFORMATIVE_BASELINE) if "of the policy" in c.message]
    assert j.verdict().reason == told.message and not told.advice
    assert f"{share:.0%} of the completions at step 0 were cut off or have no answer" in told.message


@pytest.mark.parametrize("share", [0.89, None])
def test_a_score_near_0_of_what_was_scored_beside_a_reward_that_climbs_is_a_warning(
    share: float | None,
) -> None:
    assert about(run(climbing([share] * 25, [0.0] * 25)), Code.REWARD_WITHOUT_GAIN)


def test_a_policy_that_learns_where_answers_begin_is_judged_from_then_on() -> None:
    learns = climbing([1.0, 0.95, 0.9, 0.5] + [0.1] * 6, [0.0, 0.0, 0.0, 0.2] + [0.5] * 6)
    verdict = run(learns).verdict()
    assert not verdict.fire and "nothing of the policy" not in verdict.reason
    assert run([*learns, *[(0.4, 0.0, 1.0)] * 12]).verdict().fire, "later it is what became of the policy"


# -- thoughts that outgrow the limit: the evaluator has less room than the trainer ---------------------------

GROWS: list[Round] = [(0.2 + 0.03 * n, 0.5 - 0.03 * n, 0.04 * n) for n in range(12)]
RNG = random.Random(3)


def test_what_may_be_the_limit_stops_no_run_and_is_not_drawn_as_evidence() -> None:
    j = run(GROWS, LONGER)
    verdict = j.verdict()
    assert (verdict.fire, verdict.level, verdict.code) == (False, Level.UNKNOWN, Code.CUT_SHORT)
    assert "12% of the completions at step 15 were cut off at 4096 tokens, 0% at step 0" in verdict.reason
    assert "the trainer gives them 8192" in verdict.reason
    assert j.newest_round is not None and j.newest_round.evidence == {} and verdict.detectors


@pytest.mark.parametrize(
    ("rounds", "said", "truncated"),
    [
        pytest.param(GROWS, AS_LONG, True, id="the trainer cuts off as much"),
        pytest.param(GROWS, Sampling(temperature=1.0), True, id="the trainer does not say"),
        pytest.param(GROWS, None, True, id="nor how it samples"),
        pytest.param(GROWS, LONGER, False, id="answers are no longer marked"),
        pytest.param([(r, 0.5 - 0.045 * n, c) for n, (r, _, c) in enumerate(GROWS)], LONGER, True, id="more"),
    ],
)
def test_where_the_limit_does_not_explain_it_the_policy_is_worse(
    rounds: list[Round], said: Sampling | None, truncated: bool
) -> None:
    assert run(rounds, said, truncated=truncated).verdict().fire


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(
            [(0.2 + 0.02 * n, 0.4 + 0.02 * n, 0.02 + 0.01 * n) for n in range(16)], id="gets better"
        ),
        pytest.param(
            [(0.5, 0.5 + RNG.gauss(0, 0.02), 0.1 + RNG.gauss(0, 0.02)) for _ in range(50)], id="noise"
        ),
        pytest.param(
            [(0.2 + 0.03 * n, 0.5 - 0.04 * min(n, 1), 0.04 * min(n, 1)) for n in range(40)], id="a few more"
        ),
        pytest.param([(0.2 + 0.03 * n, 0.02, 0.15 if n else 0.0) for n in range(40)], id="a hack"),
    ],
)
def test_a_score_that_has_not_fallen_by_it_is_compared(rounds: list[Round]) -> None:
    j = run(rounds, LONGER)
    assert not about(j, Code.CUT_SHORT) and j.verdict().detectors


def test_completions_that_are_scored_as_they_are_can_be_compared() -> None:
    """With `score_truncated`, what is cut off is not unscored."""
    j = judge("calibrated")
    j.fold_checkpoint(CheckpointReport(attempt=0, step=0, path="/c/0", sampling=LONGER))
    for n, (score, share) in enumerate(((0.5, 0.0), (0.2, 0.5))):
        made = replace(evaluation(n, score), truncated=share, unscored=0.0)
        j.fold_evaluation(replace(made, sampling=EVALUATOR.sampling_with(LONGER)))
    assert not about(j, Code.CUT_SHORT) and j.verdict().detectors


@pytest.mark.parametrize("lost", [False, True])
def test_an_alarm_that_waits_is_decided_whatever_is_cut_off(lost: bool) -> None:
    """Nobody may keep it waiting with checkpoints that are cut short."""
    j = run([(0.2, 0.6, 0.0)] * 3, LONGER)
    told = EVALUATOR.sampling_with(LONGER)
    j.fold_evaluation(replace(evaluation(20, 0.1, 0.0, items=256), truncated=0.0, sampling=told))
    assert j.wanted_pass() is not None and not j.verdict().fire
    if lost:
        j.fold_skipped(pass_index=1)
    j.fold_evaluation(replace(evaluation(25, 0.1, 0.55, items=256), truncated=0.55, sampling=told))
    assert j.verdict().fire


def test_it_is_told_for_the_rest_of_the_run_and_later_scores_count_again() -> None:
    """A trainer that saw it come and go could read an item out of it."""
    j = run([*GROWS[:4], *[(0.5, 0.1, 0.0)] * 6], LONGER)
    assert j.verdict().fire and about(j, Code.CUT_SHORT)
