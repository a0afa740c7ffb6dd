"""A guard beside another rank than 0, where each of several pods of a run has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_it_scores_nothing_and_is_ready_by_itself(new_guard: Callable[..., Any], tmp_path: Path) -> None:
    """Nobody reads its verdict, so it could be asked about the split for ever. It does not even read it."""
    guard = new_guard(
        REPLICA_INDEX="3",
        SUPERVISOR_TOKEN="supervisor-token-0123456789",
        HELDOUT__SPLIT=str(tmp_path / "not-there.jsonl"),
    ).start()
    assert guard.get("/readyz").status_code == 200, "no supervisor tells it of the run"
    (guard.directory / "checkpoints" / "checkpoint-5").mkdir()
    refused = guard.post("/v1/checkpoints", {"attempt": 0, "step": 5, "path": "checkpoint-5"})
    assert refused.status_code == 422
    assert "the pod of replica 3" in refused.text and "announce them on rank 0" in refused.text
    assert guard.end() == 0
    assert "the pod of replica 3" in guard.log and "no held-out evaluation is configured" not in guard.log


def test_the_first_is_as_any_guard(new_guard: Callable[..., Any]) -> None:
    guard = new_guard(REPLICA_INDEX="0", SUPERVISOR_TOKEN="supervisor-token-0123456789").start()
    assert guard.get("/readyz").status_code == 503
