"""What a policy wrote to the held-out prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guard_core.evaluation import Generation
from guard_core.wire import EvaluationSampling
from guard_service.heldout.prompts import answer_after
from guard_service.heldout.split import HeldoutItem


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy wrote to a prompt.

    `text`: all of it.
    `answer`: the part that is scored, which may be empty; None: there is no answer.
    `truncated`: it ended at the length limit.
    """

    text: str
    answer: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of one evaluation.

    `rows`: those of each item in the given order; shape (n_items, samples).
    `sampling`: how they were sampled.
    `sha256`, `staged`: digest and directory of the scored weights.
    `seconds`: wall time of each part of the work, by its name.
    """

    rows: Sequence[Sequence[Completion]]
    sampling: EvaluationSampling
    sha256: str
    staged: Path
    seconds: Mapping[str, float]

    @property
    def texts(self) -> list[list[str]]:
        """All that was written, shape (n_items, samples)."""
        return [[completion.text for completion in row] for row in self.rows]

    @property
    def truncated(self) -> float:
        """Share that ended at the length limit, in [0, 1]."""
        ends = [completion.truncated for row in self.rows for completion in row]
        return ends.count(True) / len(ends)

    def unanswered(self, items: Sequence[HeldoutItem], settings: Generation) -> float | None:
        """Share without an answer among those whose answer begins after a mark; None if there are none."""
        rows = [row for item, row in zip(items, self.rows, strict=True) if answer_after(item, settings)]
        answers = [completion.answer for row in rows for completion in row]
        return answers.count(None) / len(answers) if answers else None


def sample_seed(seed: int, pass_index: int, item_id: str, sample: int) -> int:
    """Seed of one completion, in [0, 2**31): it depends on no other item, nor on how they are batched."""
    digest = hashlib.sha256(f"{seed}/{pass_index}/{item_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
