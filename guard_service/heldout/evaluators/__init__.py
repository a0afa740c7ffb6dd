"""Evaluators: from a checkpoint and a split to completions. They run in the worker process only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from guard_core.wire import EvaluationSampling
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest


@dataclass(frozen=True, slots=True)
class Completions:
    """What the policy said.

    `texts`: completions of each item in the given order; shape (n_items, samples).
    `sampling`: how they were sampled.
    `truncated`: share of them that ended at the length limit, in [0, 1]; None where the server does not say.
    `sha256`, `staged`: digest and directory of the scored weights, None where they are remote.
    `pins`: digests of the files that the run's further checkpoints must have, too.
    """

    texts: Sequence[Sequence[str]]
    sampling: EvaluationSampling
    truncated: float | None
    sha256: str | None = None
    staged: Path | None = None
    pins: Mapping[str, str] | None = None


class Evaluator(Protocol):
    """Asks the policy the held-out prompts."""

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """Refuse, at start, settings and items that can never work; raises SplitError."""

    def warm_up(self) -> None:
        """Do, between start and the first checkpoint, what every evaluation would wait for."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """Complete every prompt; raises EvaluationError, and never leaves an item out."""


def sample_seed(seed: int, pass_index: int, item_id: str, sample: int) -> int:
    """Seed of one completion, in [0, 2**31): it depends on no other item, nor on how they are batched."""
    digest = hashlib.sha256(f"{seed}/{pass_index}/{item_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
