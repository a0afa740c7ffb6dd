"""What the passes of the starting policy may cost: as many are made as there is room for, at least one."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from guard_core.codes import Code, Level
from guard_core.detectors.run import PassCost
from guard_core.judge import Judge
from guard_core.policy import BaselineBudget, CalibratedPolicy, Policy
from guard_core.preflight import about_the_budget
from guard_core.rounds import Evaluation
from guard_core.wire import Condition, EvaluationSampling, SamplingSource, StepReport

from simulated import difficulties, draw  # isort: skip

N = 64
SAMPLED = EvaluationSampling(temperature=1.0, max_new_tokens=9, samples=1, source=SamplingSource.SETTINGS)


def policy(**budget: Any) -> Policy:
    settings = {"baseline_passes": 6, "baseline_budget": budget}
    return Policy(calibrated=CalibratedPolicy.model_validate(settings))


def gathered(
    budget: dict[str, Any],
    each: int | None = N,
    took: float | None = 30.0,
    starts: float | None = None,
    later_load: float = 0.0,
) -> Judge:
    """A judge that was given every pass it wanted, each at this cost; the first `starts` an engine."""
    judge, rng, index = Judge(policy(**budget)), np.random.default_rng(3), 0

    def evaluate(step: int, index: int) -> None:
        items = tuple(draw(rng, difficulties(N)).tolist())
        cost: dict[str, Any] = {"completions": each, "seconds": took}
        if starts is not None and took is not None:
            load = later_load if index else starts
            cost = {"completions": each, "seconds": took + load, "parts": {"generate": took, "load": load}}
        judge.fold_evaluation(Evaluation(0, step, f"/c/{step}", items, None, index, **cost))

    judge.fold_step(StepReport(attempt=0, step=0, reward=0.5))
    judge.fold_checkpoint()
    evaluate(0, 0)
    while (wanted := judge.wanted_pass()) is not None:
        index = wanted.index
        evaluate(0, index)
        again = judge.copy()
        assert (again.wanted_pass(), again.verdict()) == (judge.wanted_pass(), judge.verdict())
    judge.passes = index + 1  # type: ignore[attr-defined]
    return judge


def about(judge: Judge) -> list[Condition]:
    return [c for c in judge.verdict().conditions if c.code is Code.NO_BASELINE and c.advice]


@pytest.mark.parametrize(
    ("budget", "passes"),
    [
        ({}, 6),
        ({"completions": 6 * N}, 6),
        ({"completions": 6 * N - 1}, 5),
        ({"completions": 3 * N}, 3),
        ({"completions": 1}, 1),
        ({"minutes": 1.5}, 3),
        ({"minutes": 0.01}, 1),
        ({"completions": 5 * N, "minutes": 1.0}, 2),
        ({"completions": 2 * N, "minutes": 60}, 2),
    ],
    ids=str,
)
def test_as_many_passes_are_made_as_there_is_room_for(budget: dict[str, Any], passes: int) -> None:
    judge = gathered(budget)
    assert judge.passes == passes  # type: ignore[attr-defined]
    advice = about(judge)
    assert [c.level for c in advice] == [Level.WARNING] * (passes < 6), (
        "it leaves the verdict's level as it is"
    )
    if advice:
        assert advice[0].message.startswith(f"baseline_budget had room for {passes} of 6 passes")
    assert policy(**budget).within_budget(N, 30.0).calibrated.baseline_passes == passes, "foreseen"


@pytest.mark.parametrize(("minutes", "passes"), [(1.9, 1), (2.0, 1), (2.1, 2), (2.4, 4), (10, 6)])
def test_an_engine_that_is_started_once_is_no_cost_of_a_further_pass(minutes: float, passes: int) -> None:
    """10 s each, and 104 s more for the first, as of a policy of 1.5B on a GPU."""
    judge = gathered({"minutes": minutes}, took=10.0, starts=104.0)
    assert judge.passes == passes  # type: ignore[attr-defined]


def test_what_is_loaded_for_each_pass_is_found_out_by_the_second() -> None:
    judge = gathered({"minutes": 5}, took=10.0, starts=100.0, later_load=100.0)
    assert judge.passes == 2, "110 s each"  # type: ignore[attr-defined]
    judge = gathered({"minutes": 2.5}, took=10.0, starts=100.0, later_load=100.0)
    assert judge.passes == 2, "one load more than there was room for"  # type: ignore[attr-defined]


def test_what_a_pass_cost_is_bounded_by_nothing_where_nobody_knows_it() -> None:
    assert gathered({"completions": 1, "minutes": 0.01}, None, None).passes == 6  # type: ignore[attr-defined]
    assert policy(minutes=0.01).within_budget(N).calibrated.baseline_passes == 6


def test_what_is_not_known_of_one_pass_is_not_known_of_all() -> None:
    """The first passes were made by a release that did not note what they cost."""
    assert (
        PassCost(5, 1.0, 1.0).plus(PassCost(None, 2.0, 2.0))
        == PassCost(None, 3.0, 2.0)
        == PassCost(None, 2.0, 9.0).plus(PassCost(5, 1.0, 2.0))
    )


def test_a_baseline_within_its_budget_is_closed_by_no_other_checkpoint() -> None:
    """The pass that had no room is not wanted any more, and was not lost."""
    judge = gathered({"completions": 2 * N})
    assert judge.wanted_pass() is None and judge.waiting == 0
    assert "1 of 4 passes" in while_gathering(completions=8), "2 completions each"


def while_gathering(**budget: Any) -> str:
    judge = Judge(policy(**budget))
    judge.fold_step(StepReport(attempt=0, step=0, reward=0.5))
    judge.fold_evaluation(Evaluation(0, 0, "/c/0", (1.0, 0.0), None, completions=2, seconds=1.0))
    [condition] = [c for c in judge.verdict().conditions if c.code is Code.NO_BASELINE]
    assert not condition.advice
    return condition.message


def test_room_is_counted_without_rounding() -> None:
    tenth = BaselineBudget(completions=10**15 + 1)
    assert not tenth.has_room(3, 3 * (10**15 // 4 + 1), None, None)
    assert tenth.has_room(3, 3 * (10**15 // 4), None, None)


def test_what_another_pass_takes_is_not_known_of_one_without_its_time() -> None:
    assert BaselineBudget(minutes=1).has_room(1, None, 60.0, None)


@pytest.mark.parametrize("budget", [{"completions": 0}, {"minutes": 0}, {"minutes": math.inf}, {"hours": 1}])
def test_a_budget_without_a_meaning_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="baseline_budget"):
        policy(**budget)


def test_what_it_costs_is_said_before_the_run() -> None:
    def said(sampling: EvaluationSampling = SAMPLED, seconds: float | None = None, **budget: Any) -> str:
        return about_the_budget(policy(**budget), 256, N, sampling, seconds)

    few = said(completions=2 * N)
    assert few.startswith("baseline_budget has room for 2 of 6 passes")
    assert "False stops stay within alpha (5%)" in few and "from a start of 0.50 shows after" in few
    late, soon = map(int, re.findall(r"after (\d+)", few))
    assert late > soon
    many = about_the_budget(policy(completions=5 * N), 2048, N, SAMPLED)
    assert many.endswith("after 1 evaluations, as with all passes")
    assert said(minutes=5) == "", "how long one takes is not known yet"
    assert "has room for 5 of 6" in said(minutes=5, seconds=60.0)
    assert said() == said(completions=6 * N) == said(minutes=5, seconds=1.0) == ""
    assert said(SAMPLED.model_copy(update={"temperature": 0.0}), completions=1) == "", "two agree"
