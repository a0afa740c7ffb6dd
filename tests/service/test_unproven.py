"""A server that may still have old weights: what it says of them is no new evidence, and is never healthy."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from guard_core.checkpoint_key import CheckpointKey
from guard_core.ending import not_judged
from guard_core.wire import Code, FailureKind, Level
from guard_service.cluster.mapping import Known, guard_status, resumed
from guard_service.engine.evaluations import refuse_unproven
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.store import export_history
from tests.service.test_engine import QUICK, FakeEvaluator, Run, run, step, until

__all__ = ["run"]

ASKED = EvaluationRequest(1, 8, Path("/c/8"))


def test_the_same_words_of_another_checkpoint_prove_nothing() -> None:
    for before, where in ((CheckpointKey(1, 4), "step 4."), (CheckpointKey(0, 9), "step 9 of attempt 0.")):
        with pytest.raises(EvaluationError, match=f"what it said of {where} Have it") as caught:
            refuse_unproven(ASKED, "d", (before, "d"))
        assert caught.value.kind is FailureKind.UNPROVEN


@pytest.mark.parametrize(
    "before", [None, (CheckpointKey(1, 4), "another"), (CheckpointKey(1, 8), "d")], ids=str
)
def test_other_words_do_and_so_does_the_same_checkpoint_once_more(
    before: tuple[CheckpointKey, str] | None,
) -> None:
    refuse_unproven(ASKED, "d", before)


def test_a_server_with_old_weights_is_unknown_until_it_says_something_else(run: Run) -> None:
    """Also where the guard starts again in between: it would read as a policy that never changes."""

    def says(digest: str) -> EvaluationResult:
        return EvaluationResult((1.0, 0.0), None, 0.01, None, said=digest)

    async def act() -> list[dict[str, Any]]:
        async with run.engine(FakeEvaluator([says("old")])) as engine:
            await engine.add_steps([step(0)])
            await engine.add_checkpoint(run.checkpoint(0))
            await until(lambda: engine.queue_length == 0)
            assert Code.CHECKPOINT_DOUBTFUL not in {c.code for c in engine.verdict.conditions}
        worker = FakeEvaluator([says("old"), says("old")])
        async with run.engine(worker) as engine:
            for number in (1, 2):
                await engine.add_steps([step(number)])
                await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.queue_length == 0)
            verdict = engine.verdict
            assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.CHECKPOINT_DOUBTFUL)
            assert "nobody has shown which weights the server has" in verdict.reason
            assert verdict.failure is FailureKind.UNPROVEN
            assert (verdict.failed, verdict.evaluated, verdict.steps_since_evaluation) == (2, 1, 2)
            assert "nobody has shown" in not_judged(verdict, "wait longer")
            worker.outcomes.append(says("new"))
            await engine.add_steps([step(3)])
            await engine.add_checkpoint(run.checkpoint(3))
            await until(lambda: engine.queue_length == 0)
            last = engine.verdict
            assert last.level is Level.HEALTHY and last.steps_since_evaluation == 0
            assert "2 of 4 checkpoints were not evaluated (2 failed)" in not_judged(last, "wait longer")
            known = Known(last, state=engine.compact_state())
            history = [line async for line in engine.history()]
            thinned = await engine.thinned_history(10)
        status = guard_status(known, {}, datetime.now(UTC))
        assert (status["announced"], status["evaluated"], status["failed"], status["waiting"]) == (4, 2, 2, 0)
        state = resumed(QUICK, status)
        assert state is not None and state.failed == 2
        async with run.engine(FakeEvaluator()) as engine:
            assert (engine.verdict.evaluated, engine.verdict.failed) == (2, 2)
        return [*history, *thinned["evaluations"]]

    shown = asyncio.run(act())
    lines = [*export_history(run.directory / "state"), *shown]
    assert not any("said" in line for line in lines), "it is made of held-out completions"
