"""A guard that ends in the midst of an evaluation, with its container: it begins it again, and not for ever.

On a node with cgroup v2 the kernel ends the whole container that is out of memory, and not the evaluation
process alone. What is on the disk at that moment is what the next guard starts with.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from guard_service.evaluations import MOST_BEGUN
from rlguard.core.codes import Code
from rlguard.core.policy import EvaluationFailingPolicy
from rlguard.core.wire import FailureKind
from tests.service.engines import QUICK, FakeEvaluator, Run, calibrated, settled, until

pytestmark = pytest.mark.asyncio


async def end_in(run: Run, asked: tuple[int, int], *, announced: int = 0, **options: Any) -> None:
    """A guard that is ended once it has begun this evaluation (step and pass); it finishes those before."""
    worker = FakeEvaluator(options.pop("outcomes", []))
    async with run.engine(worker, **options) as engine:
        await run.report(engine, *range(announced))
        await until(lambda: worker.passes[-1:] == [asked] and not worker.outcomes)
        shutil.copytree(run.state, run.directory / "left")
    shutil.rmtree(run.state)
    (run.directory / "left").rename(run.state)


async def test_a_checkpoint_that_ends_guards_is_a_failure_like_any_other_and_those_behind_it_are_scored(
    run: Run,
) -> None:
    failing = EvaluationFailingPolicy(after_failures=1, action="stop")
    policy = QUICK.model_copy(update={"evaluation_failing": failing})
    for number in range(MOST_BEGUN):
        await end_in(run, (0, 0), announced=0 if number else 2, policy=policy)
    worker = FakeEvaluator()
    async with run.engine(worker, policy) as engine:
        await until(lambda: worker.passes == [(1, 0)])
        verdict = engine.run.verdict
        assert verdict.halt and not verdict.fire and verdict.code is Code.EVALUATION_FAILING
        assert verdict.failure is FailureKind.UNDERWAY and b"in the midst" not in engine.run.trainer_json
        worker.outcomes.append([1.0, 0.0])
        await settled(engine)
        assert (engine.run.verdict.failed, engine.run.verdict.evaluated) == (1, 1)
    ((message,),) = run.stored("SELECT body ->> 'message' FROM events WHERE kind = 'failure'")
    assert f"ended {MOST_BEGUN} times in the midst of" in message


async def test_two_nodes_that_are_lost_in_one_evaluation_cost_no_checkpoint(run: Run) -> None:
    for number in range(MOST_BEGUN - 1):
        await end_in(run, (0, 0), announced=0 if number else 1)
    worker = FakeEvaluator([[1.0, 0.0]])
    async with run.engine(worker) as engine:
        await settled(engine)
        verdict = engine.run.verdict
    assert worker.passes == [(0, 0)] and (verdict.failed, verdict.evaluated) == (0, 1)


async def test_a_guard_that_is_asked_to_end_has_not_ended_of_its_evaluation(run: Run) -> None:
    """A drained node, a queue that suspends the run: any number of them."""
    await end_in(run, (0, 0), announced=1)
    for _ in range(MOST_BEGUN + 1):
        worker = FakeEvaluator()
        async with run.engine(worker):
            await until(lambda worker=worker: worker.passes == [(0, 0)])
    for _ in range(MOST_BEGUN - 1):
        await end_in(run, (0, 0))
    async with run.engine(FakeEvaluator()) as engine:
        await settled(engine)
        assert engine.run.verdict.failed == 1, "those that it did not survive still count"


async def test_a_pass_of_the_baseline_that_ends_guards_is_given_up_too(run: Run) -> None:
    await end_in(run, (0, 1), announced=1, outcomes=[[0.0, 1.0]], policy=calibrated(3))
    for _ in range(MOST_BEGUN - 1):
        await end_in(run, (0, 1), policy=calibrated(3))
    worker = FakeEvaluator([[1.0, 0.0]])
    async with run.engine(worker, calibrated(3)) as engine:
        await until(lambda: worker.passes[:1] == [(0, 2)] and len(worker.asked) == 2)
        assert not engine.run.latches and engine.run.verdict.evaluated == 1, "no score that is there is lost"
