"""Evaluators: from a checkpoint and a split to completions. They run in the worker process only."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from guard_core.evaluation import Generation
from guard_core.wire import EvaluationSampling
from guard_service.heldout.asking import answer_after
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy wrote to a prompt.

    `text`: all of it.
    `answer`: the part that is scored, which may be empty; None: there is no answer.
    `truncated`: it ended at the length limit; None where the server does not say.
    """

    text: str
    answer: str | None
    truncated: bool | None


@dataclass(frozen=True, slots=True)
class Completions:
    """What the policy said.

    `made`: completions of each item in the given order; shape (n_items, samples).
    `sampling`: how they were sampled.
    `sha256`, `staged`: digest and directory of the scored weights, None where they are remote.
    `seconds`: wall time of each part of the work, by its name.
    `said`: digest of greedy completions, where a server has weights that nobody has hashed; else None.
    """

    made: Sequence[Sequence[Completion]]
    sampling: EvaluationSampling
    sha256: str | None = None
    staged: Path | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    said: str | None = None

    @property
    def texts(self) -> list[list[str]]:
        """All that was written, shape (n_items, samples)."""
        return [[completion.text for completion in row] for row in self.made]

    @property
    def truncated(self) -> float | None:
        """Share that ended at the length limit, in [0, 1]; None where that is not known of each."""
        ends = [completion.truncated for row in self.made for completion in row]
        return None if None in ends else ends.count(True) / len(ends)

    def unanswered(self, items: Sequence[HeldoutItem], settings: Generation) -> float | None:
        """Share without an answer among those whose answer begins after a mark, in [0, 1]; None: none's."""
        rows = [row for item, row in zip(items, self.made, strict=True) if answer_after(item, settings)]
        answers = [completion.answer for row in rows for completion in row]
        return answers.count(None) / len(answers) if answers else None


class Evaluator(Protocol):
    """Asks the policy the held-out prompts."""

    @property
    def over(self) -> bool:
        """Whether this process is to end now, because nothing else gives back what the evaluator holds."""

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """Refuse, at start, settings and items that can never work; raises SplitError."""

    def warm_up(self) -> None:
        """Do, between start and the first checkpoint, what every evaluation would wait for."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """Complete every prompt; raises EvaluationError, and never leaves an item out."""


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Write down how long this part of an evaluation takes."""
    start = time.monotonic()
    yield
    seconds[part] = time.monotonic() - start


def sample_seed(seed: int, pass_index: int, item_id: str, sample: int) -> int:
    """Seed of one completion, in [0, 2**31): it depends on no other item, nor on how they are batched."""
    digest = hashlib.sha256(f"{seed}/{pass_index}/{item_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
