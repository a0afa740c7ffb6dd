"""What the engine asks of whoever scores checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from guard_core.wire import Adapters, EvaluationsNeeded
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult


class ScoringWorker(Protocol):
    """Scores checkpoints on the held-out split; `EvaluationWorker` does it in a process of its own."""

    @property
    def split_digest(self) -> str | None:
        """Digest of the split; None before `start`."""

    @property
    def measure(self) -> Mapping[str, Any]:
        """What decides a score, beside the split; JSON values."""

    @property
    def adapters(self) -> Adapters | None:
        """What becomes of a checkpoint that is an adapter; None if no checkpoint is loaded."""

    @property
    def needed(self) -> EvaluationsNeeded | None:
        """How many evaluations the policy takes with these items; None before `start`."""

    async def start(self) -> None:
        """Make ready. Raise `SplitError` if the run must not begin, `EvaluationError` to be tried again."""

    def unfit(self, checkpoint: Path) -> str:
        """Why the checkpoint in this directory can never be scored, or ""; blocking, but quick."""

    async def pins(self, request: EvaluationRequest) -> Mapping[str, str] | None:
        """Digests, by name, of what must be the same in every checkpoint; None where no file is looked at."""

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Score one checkpoint; raise `CheckpointGoneError` if it is gone, else `EvaluationError`."""

    async def close(self) -> None:
        """Give up what is under way and release everything."""
