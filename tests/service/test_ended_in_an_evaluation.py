"""A guard that ends in the midst of an evaluation, with its container: it begins it again, and not for ever.

On a node with cgroup v2 the kernel ends the whole container that is out of memory, and not the evaluation
process alone. What is on the disk at that moment is what the next guard starts with.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code
from guard_core.policy import EvaluationFailingPolicy
from guard_core.wire import FailureKind
from guard_service.evaluations import MOST_BEGUN, begun_before, refuse_once_more
from guard_service.events import Begun
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.worker import EvaluationRequest
from tests.service.test_engine import QUICK, FakeEvaluator, Run, calibrated, run, step, stored, until

__all__ = ["run"]


async def end_in(run: Run, asked: tuple[int, int], *, announced: int = 0, **options: Any) -> None:
    """A guard that is ended once it has begun this evaluation (step and pass); it finishes those before."""
    worker = FakeEvaluator(options.pop("outcomes", []))
    async with run.engine(worker, **options) as engine:
        for number in range(announced):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: bool(worker.asked) and of(worker)[-1] == asked and not worker.outcomes)
        shutil.copytree(run.directory / "state", run.directory / "left")
    shutil.rmtree(run.directory / "state")
    (run.directory / "left").rename(run.directory / "state")


def of(worker: FakeEvaluator) -> list[tuple[int, int]]:
    return [(request.step, request.pass_index) for request in worker.asked]


def test_a_checkpoint_that_ends_guards_is_given_up_and_those_behind_it_are_scored(run: Run) -> None:
    async def act() -> None:
        await end_in(run, (0, 0), announced=2)
        for _ in range(MOST_BEGUN - 1):
            await end_in(run, (0, 0))
        worker = FakeEvaluator([[1.0, 0.0]])
        async with run.engine(worker) as engine:
            await until(lambda: engine.run.queue_length == 0)
            verdict = engine.run.verdict
            assert of(worker) == [(1, 0)] and (verdict.failed, verdict.evaluated) == (1, 1)
            assert b"rlguard_guard_evaluation_failures_total 1.0" in engine.run.metrics.render()
        ((message,),) = stored(run, "SELECT body ->> 'message' FROM events WHERE kind = 'failure'")
        assert f"ended {MOST_BEGUN} times in the midst of" in message

    asyncio.run(act())


def test_it_is_a_failure_like_any_other_and_says_nothing_of_an_item(run: Run) -> None:
    async def act() -> None:
        failing = EvaluationFailingPolicy(after_failures=1, action="stop")
        policy = QUICK.model_copy(update={"evaluation_failing": failing})
        for number in range(MOST_BEGUN):
            await end_in(run, (0, 0), announced=1 if number == 0 else 0, policy=policy)
        async with run.engine(FakeEvaluator(), policy) as engine:
            await until(lambda: engine.run.queue_length == 0)
            verdict = engine.run.verdict
            assert verdict.halt and not verdict.fire and verdict.code is Code.EVALUATION_FAILING
            assert verdict.failure is FailureKind.UNDERWAY and b"in the midst" not in engine.run.trainer_json

    asyncio.run(act())


def test_two_nodes_that_are_lost_in_one_evaluation_cost_no_checkpoint(run: Run) -> None:
    async def act() -> None:
        for number in range(MOST_BEGUN - 1):
            await end_in(run, (0, 0), announced=1 if number == 0 else 0)
        worker = FakeEvaluator([[1.0, 0.0]])
        async with run.engine(worker) as engine:
            await until(lambda: engine.run.queue_length == 0)
            assert of(worker) == [(0, 0)] and (engine.run.verdict.failed, engine.run.verdict.evaluated) == (
                0,
                1,
            )

    asyncio.run(act())


def test_a_guard_that_is_asked_to_end_has_not_ended_of_its_evaluation(run: Run) -> None:
    """A drained node, a queue that suspends the run: any number of them."""

    async def act() -> None:
        await end_in(run, (0, 0), announced=1)
        for _ in range(MOST_BEGUN + 1):
            worker = FakeEvaluator()
            async with run.engine(worker) as engine:
                await until(lambda worker=worker: of(worker) == [(0, 0)])
        for _ in range(MOST_BEGUN - 1):
            await end_in(run, (0, 0))
        async with run.engine(FakeEvaluator()) as engine:
            await until(lambda: engine.run.queue_length == 0)
            assert engine.run.verdict.failed == 1, "those that it did not survive still count"

    asyncio.run(act())


def test_a_pass_of_the_baseline_that_ends_guards_is_given_up_too(run: Run) -> None:
    async def act() -> None:
        await end_in(run, (0, 1), announced=1, outcomes=[[0.0, 1.0]], policy=calibrated(3))
        for _ in range(MOST_BEGUN - 1):
            await end_in(run, (0, 1), policy=calibrated(3))
        worker = FakeEvaluator([[1.0, 0.0]])
        async with run.engine(worker, calibrated(3)) as engine:
            await until(lambda: len(worker.asked) == 2)
            assert of(worker)[0] == (0, 2), "and no score that is there is lost"
            assert not engine.run.latches and engine.run.verdict.evaluated == 1

    asyncio.run(act())


@pytest.mark.parametrize(
    ("newest", "before"),
    [
        (None, 0),
        (Begun(CheckpointKey(0, 5), 1, 2), 2),
        (Begun(CheckpointKey(0, 5), 0, 2), 0),
        (Begun(CheckpointKey(1, 5), 1, 2), 0),
    ],
    ids=str,
)
def test_only_ends_in_this_very_evaluation_count(newest: Begun | None, before: int) -> None:
    assert begun_before(EvaluationRequest(0, 5, Path("/c/5"), 1), newest) == before


def test_it_is_refused_from_the_third_on() -> None:
    request = EvaluationRequest(0, 5, Path("/c/5"))
    refuse_once_more(request, 2)
    for before in (3, 4):
        with pytest.raises(
            EvaluationError, match=f"ended {before} times .* step 5, so it is not begun"
        ) as refused:
            refuse_once_more(request, before)
        assert refused.value.kind is FailureKind.UNDERWAY
