"""Which checkpoints are passed over where only the newest is wanted: a pure decision."""

from __future__ import annotations

from pathlib import Path

from guard_core.wire import CheckpointReport, EvaluationSummary
from guard_service.evaluations import is_passed_over
from guard_service.heldout.worker import EvaluationRequest

QUEUE = [CheckpointReport(attempt=0, step=step, path=f"/c/{step}") for step in (1, 2)]
SCORED = EvaluationSummary(attempt=0, step=0, score=0.5, items=2, path="/c/0")


def asked(pass_index: int = 0) -> EvaluationRequest:
    return EvaluationRequest(0, 1, Path("/c/1"), pass_index, None)


def test_one_for_which_a_newer_one_waits_is_passed_over() -> None:
    assert is_passed_over(asked(), QUEUE, SCORED)


def test_the_newest_is_not() -> None:
    assert not is_passed_over(asked(), QUEUE[:1], SCORED)


def test_the_first_of_a_run_is_not() -> None:
    assert not is_passed_over(asked(), QUEUE, None)


def test_a_pass_that_the_judge_wants_is_not() -> None:
    assert not is_passed_over(asked(1), QUEUE, SCORED)
