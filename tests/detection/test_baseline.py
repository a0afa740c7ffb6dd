"""The baseline: how many passes of the starting policy are made, what each is worth, which do not count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.detectors.baseline import Baseline, Outcomes, outlier_passes
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, Policy
from rlguard.core.preflight import about_the_budget, evaluations_needed
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import EvaluationSampling, SamplingSource

from simulated import GuardedRun, difficulties, draw  # isort: skip

N = 256
MEANS = difficulties(N)
NOTHING, EVERYTHING, HALF = np.zeros(N), np.ones(N), (np.arange(N) % 2).astype(float)


def policy(passes: int = 16, **settings: Any) -> Policy:
    return Policy(calibrated=CalibratedPolicy(baseline_passes=passes, **settings))


def begun(
    passes: int = 16, broken: dict[int, float] | None = None, **settings: Any
) -> tuple[GuardedRun, int]:
    """A run whose baseline was made, and in how many passes; `broken` ones have one outcome for all items."""
    run = GuardedRun(policy(passes, **settings), seed=5, seconds=60.0)
    run.steps(0, 0)

    def made(index: int) -> np.ndarray:
        items = draw(run.rng, MEANS)
        return np.full(N, broken[index]) if broken and index in broken else items

    return run, run.checkpoint(0, made)


def test_it_is_made_from_the_first_checkpoint_and_then_there_is_nothing_to_compare_yet() -> None:
    run = GuardedRun(policy(4))
    run.steps(0, 0)
    run.judge.fold_checkpoint()
    run.evaluate(0, draw(run.rng, MEANS))
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_BASELINE)
    assert "1 of 4 passes" in verdict.reason and verdict.detectors == ()
    wanted = []
    while (request := run.judge.wanted_pass()) is not None:
        wanted.append(request.index)
        run.evaluate(0, draw(run.rng, MEANS), request.index)
    verdict = run.judge.verdict()
    assert wanted == [1, 2, 3] and verdict.code is Code.NO_BASELINE
    assert (verdict.rounds, verdict.announced, verdict.evaluated, verdict.waiting) == (1, 1, 1, 0)


def test_an_evaluation_of_other_items_is_unknown_and_not_judged() -> None:
    run, _ = begun(2)
    run.evaluate(10, HALF[:2])
    verdict = run.judge.verdict()
    assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.NO_BASELINE)
    assert f"2 items, but the baseline has {N}" in verdict.reason
    run.rounds(2, 2, MEANS)
    assert not run.about(Code.NO_BASELINE)


def test_a_first_evaluation_that_cannot_be_used_begins_none() -> None:
    run = GuardedRun(policy(1))
    for step, items in enumerate(([2.0, 1.0], [1.0, 0.0], [1.0, 0.0])):
        run.evaluate(step, np.array(items))
    assert run.judge.verdict().detectors


# -- what the passes may cost --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minutes", "first", "later", "passes"),
    [
        (20, {"generate": 30.0}, {"generate": 30.0}, 6),
        (1.5, {"generate": 30.0}, {"generate": 30.0}, 3),
        (0.01, {"generate": 30.0}, {"generate": 30.0}, 1),
        (2.4, {"generate": 10.0, "load": 104.0}, {"generate": 10.0}, 4),
        (5, {"generate": 10.0, "load": 100.0}, {"generate": 10.0, "load": 100.0}, 2),
        (0.01, {}, {}, 6),
    ],
    ids=["all", "three", "one at least", "an engine starts once", "weights load each time", "nobody knows"],
)
def test_as_many_passes_are_made_as_there_is_time_for(
    minutes: float, first: dict[str, float], later: dict[str, float], passes: int
) -> None:
    run = GuardedRun(policy(6, baseline_minutes=minutes))
    run.steps(0, 0)

    def made(index: int) -> np.ndarray:
        parts = later if index else first
        run.cost = {"parts": parts, "seconds": sum(parts.values())} if parts else {}
        return draw(run.rng, MEANS)

    run.judge.fold_checkpoint()
    run.evaluate(0, made(0))
    count = 1
    while (wanted := run.judge.wanted_pass()) is not None:
        run.evaluate(0, made(wanted.index), wanted.index)
        count += 1
    assert count == passes and run.judge.waiting == 0
    advice = [c for c in run.about(Code.NO_BASELINE) if c.advice]
    assert [c.level for c in advice] == [Level.WARNING] * (passes < 6), "the verdict's level stays as it is"
    assert all(c.message.startswith(f"baseline_minutes had room for {passes} of 6 passes") for c in advice)


def test_what_the_budget_costs_is_said_before_the_run() -> None:
    sampled = EvaluationSampling(temperature=1.0, max_new_tokens=9, samples=1, source=SamplingSource.SETTINGS)

    def said(minutes: float, seconds: float | None, sampling: EvaluationSampling = sampled) -> str:
        return about_the_budget(policy(6, baseline_minutes=minutes), N, sampling, seconds)

    few = said(5, 150.0)
    assert few.startswith("baseline_minutes have room for 2 of 6 passes")
    assert "False stops stay within alpha (5%)" in few and "from a start of 0.50 shows after" in few
    assert (
        said(5, None) == said(5, 1.0) == said(5, 150.0, sampled.model_copy(update={"temperature": 0})) == ""
    )


# -- passes that agree ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "items", "passes"),
    [
        (1.0, NOTHING, 4),
        (1.0, EVERYTHING, 4),
        (1.0, HALF, 2),  # draws do not agree in every item, so these are none
        (0.0, NOTHING, 2),
        (None, NOTHING, 2),
    ],
)
def test_draws_that_all_fail_are_not_taken_for_greedy_decoding(
    temperature: float | None, items: np.ndarray, passes: int
) -> None:
    assert GuardedRun(policy(4), sampling=temperature).checkpoint(0, lambda _: items) == passes


def flickering(rng: np.random.Generator, _: int = 0) -> np.ndarray:
    """Greedy outcomes of a server or a scorer of which a few flip between passes of the same weights."""
    items = HALF.copy()
    flipped = rng.choice(N, 2, replace=False)
    items[flipped] = 1 - items[flipped]
    return items


def test_copies_at_temperature_0_are_no_draws_though_a_few_items_flip() -> None:
    """Sixteen of them would look as if the policy had hardly any noise; a copy would confirm no alarm."""
    run = GuardedRun(policy(16), sampling=0.0)
    assert run.checkpoint(0, partial(flickering, run.rng)) == 2
    (told,) = run.about(Code.UNINFORMATIVE_BASELINE)
    assert told.advice and told.message.startswith("passes of the starting policy are copies of each other")
    assert run.checkpoint(1, lambda _: NOTHING) == 1
    unknown = GuardedRun(policy(4))
    assert unknown.checkpoint(0, partial(flickering, unknown.rng)) == 4, "of these nobody knows"


def test_a_log_with_more_than_two_passes_is_one_of_draws() -> None:
    starts = [Baseline.from_passes([NOTHING] * count).starts["score"].passes for count in (1, 2, 3)]
    assert starts == [1, 1, 3] and Baseline.from_passes([HALF] * 3).greedy


def readings(says: int, does: int, told: bool) -> object:
    """What a steady run comes to. `says`: samples by the policy; `told`: whether evaluations say `does`."""
    run = GuardedRun(policy(1, samples=says))
    if told:
        run.cost["sampling"] = with_samples(does)
    for step in range(12):
        run.steps(step, step)
        run.checkpoint(step, lambda _: draw(run.rng, np.full(128, 0.5), does))
    return run.judge.verdict().detectors


def with_samples(samples: int) -> EvaluationSampling:
    source = SamplingSource.SETTINGS
    return EvaluationSampling(temperature=1.0, max_new_tokens=9, samples=samples, source=source)


@pytest.mark.parametrize("does", [1, 4])
def test_samples_behind_an_outcome_are_as_many_as_were_made(does: int) -> None:
    """Of an evaluation that does not say it the policy is believed."""
    assert readings(8, does, told=True) == readings(does, does, told=True) == readings(does, does, told=False)
    assert readings(8, does, told=False) != readings(does, does, told=True)
    foreseen = [evaluations_needed(policy(4, samples=n), 128, with_samples(does)) for n in (8, does)]
    assert foreseen[0] == foreseen[1]


# -- passes that do not count --------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("value", [0.0, 1.0], ids=["the server was gone", "the scorer accepted everything"])
@pytest.mark.parametrize(("passes", "at"), [(16, 0), (16, 7), (16, 15), (4, 2)], ids=str)
def test_a_pass_that_was_none_is_left_out_and_made_again(passes: int, at: int, value: float) -> None:
    """With it a run in which nothing changed was `unknown` to its end, and a fall was seen late or never."""
    run, made = begun(passes, {at: value})
    assert made == passes + 1
    assert run.rounds(1, 2, MEANS * (1 - 0.2 / MEANS.mean())) is not None
    healthy, _ = begun(passes, {at: value})
    assert healthy.rounds(1, 12, MEANS) is None and healthy.judge.verdict().level is Level.HEALTHY
    (told,) = healthy.about(Code.EVALUATION_FAILING)
    assert told.advice and told.message.startswith("1 further pass of the starting policy")


@pytest.mark.parametrize(
    ("passes", "broken", "made", "told"),
    [
        (16, {}, 16, ""),
        (2, {0: 0.0}, 3, "1 further pass "),
        (2, {1: 0.0}, 3, "1 further pass "),
        (16, dict.fromkeys(range(0, 12, 3), 0.0), 20, "4 further passes "),
        (16, dict.fromkeys(range(0, 15, 3), 0.0), 16, ""),
    ],
    ids=["none", "a third tells", "which of two", "four", "five of 16 are what this policy does"],
)
def test_how_many_are_made_again(passes: int, broken: dict[int, float], made: int, told: str) -> None:
    run, count = begun(passes, broken)
    run.rounds(1, 1, MEANS)
    found = run.about(Code.EVALUATION_FAILING)
    assert (count, len(found)) == (made, int(bool(told))) and all(c.message.startswith(told) for c in found)


def test_one_is_left_out_where_time_or_another_checkpoint_closes_the_baseline() -> None:
    run, made = begun(16, {3: 0.0}, baseline_minutes=8)
    assert made == 8, "there is no room for another in its place"
    run.rounds(1, 1, MEANS)
    assert len(run.about(Code.EVALUATION_FAILING)) == 1
    early = GuardedRun(policy())
    for index in range(6):
        early.evaluate(0, EVERYTHING if index == 2 else draw(early.rng, MEANS), index)
    early.evaluate(1, draw(early.rng, MEANS))
    assert len(early.about(Code.EVALUATION_FAILING)) == 1


@pytest.mark.parametrize("broken", [0, 7])
def test_the_score_of_a_start_is_that_of_a_pass_that_counts(broken: int) -> None:
    verdict = begun(16, {broken: 1.0})[0].judge.verdict()
    assert verdict.best_evaluation == verdict.last_evaluation
    assert verdict.best_evaluation is not None and verdict.best_evaluation.score < 0.7


def share(right: int) -> Outcomes:
    return Outcomes.of((np.arange(N) < right).astype(float))


@pytest.mark.parametrize(
    ("passes", "samples", "outliers"),
    [
        ((128, 66), 1, (0, 1)),
        ((128, 80), 1, ()),
        ((118, 136, 0), 1, (2,)),
        ((128, 128, 102), 16, (2,)),
        ((128, 128, 102), 1, ()),
    ],
    ids=["24 points; noise is 4.4", "19 points", "the others are 7 apart", "more samples vary less", "fewer"],
)
def test_few_passes_are_told_apart_by_what_independent_items_do(
    passes: tuple[int, ...], samples: int, outliers: tuple[int, ...]
) -> None:
    assert outlier_passes([share(right) for right in passes], 0.03, samples) == outliers


@pytest.mark.parametrize(("families", "passes", "most"), [(1, 4, 0.0), (4, 4, 0.05), (8, 16, 0.02)])
def test_passes_that_vary_because_items_go_together_are_kept(families: int, passes: int, most: float) -> None:
    """Families without a `group`, of 128 items: an evaluation varies up to 2.8 times as much."""
    rng, left_out, count = np.random.default_rng(7), 0, 400
    for _ in range(count):
        drawn = [np.repeat(rng.binomial(1, 0.5, 128 // families), families) for _ in range(passes)]
        left_out += bool(outlier_passes([Outcomes.of(items.astype(float)) for items in drawn], 0.03))
    assert left_out <= most * count


# -- evaluations after the baseline that do not count --------------------------------------------------------


def jumped(later: Callable[[np.random.Generator], np.ndarray]) -> tuple[GuardedRun, float]:
    """A run whose fourth checkpoint has the score 1.0, and then in a fresh pass what `later` gives."""
    run, _ = begun()
    run.rounds(1, 3, MEANS)
    best = run.judge.verdict().best_evaluation
    run.evaluate(40, EVERYTHING)
    assert run.judge.verdict().best_evaluation == best, "a fresh pass decides"
    wanted, items = run.judge.wanted_pass(), later(run.rng)
    assert wanted is not None
    run.evaluate(40, items, wanted.index)
    return run, float(items.mean())


def test_one_that_was_none_is_neither_the_best_nor_the_newest() -> None:
    """Everything was accepted: its 1.0 would stay the best score, and its checkpoint the last good one."""
    run, score = jumped(lambda rng: draw(rng, MEANS))
    verdict = run.judge.verdict()
    assert verdict.last_evaluation is not None and verdict.best_evaluation is not None
    assert (verdict.last_evaluation.step, verdict.last_evaluation.score) == (40, score)
    assert verdict.best_evaluation.score < 0.7


def test_a_jump_that_a_fresh_pass_upholds_is_the_best() -> None:
    best = jumped(lambda _: EVERYTHING)[0].judge.verdict().best_evaluation
    assert best is not None and (best.step, best.score) == (40, 1.0)


def test_one_broken_evaluation_does_not_stop_a_run_that_began_at_0() -> None:
    run = GuardedRun(policy(4), sampling=1.0)
    run.checkpoint(0, lambda _: NOTHING)
    for step, mean in enumerate(np.minimum(0.6, 0.04 * np.arange(1, 30)), start=1):
        run.scored(step, np.full(N, mean))
    run.judge.fold_checkpoint()
    run.evaluate(30, NOTHING)
    wanted = run.judge.wanted_pass()
    assert run.judge.latch is None and wanted is not None and wanted.step == 30
    run.evaluate(30, draw(run.rng, np.full(N, 0.6)), wanted.index)
    assert run.judge.latch is None
    (told,) = run.about(Code.EVALUATION_FAILING)
    assert told.advice and "1 of 31 evaluations are not counted" in told.message


@pytest.mark.nightly
def test_a_run_of_which_every_second_evaluation_does_not_count_is_not_healthy() -> None:
    judge = Judge(Policy())
    good, broken = tuple(float(i % 5 < 3) for i in range(N)), tuple(float(i % 20 == 0) for i in range(N))
    for index in range(2):
        judge.fold_evaluation(Evaluation(0, 0, "/c/0", good, pass_index=index))
    for step in range(1, 30):
        judge.fold_evaluation(Evaluation(0, step, f"/c/{step}", broken if step % 2 else good))
    assert judge.verdict().level is not Level.HEALTHY
    (told,) = [c for c in judge.verdict().conditions if c.code is Code.EVALUATION_FAILING]
    assert not told.advice
