"""Which checkpoint something is about."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self


class OfCheckpoint(Protocol):
    """A report, a request, an evaluation, a failure: whatever is about one checkpoint."""

    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102


class CheckpointKey(NamedTuple):
    """The start of the trainer that wrote it, 0 for the first, and its optimizer step."""

    attempt: int
    step: int

    @classmethod
    def of(cls, what: OfCheckpoint) -> Self:
        """The key of the checkpoint that this is about."""
        return cls(what.attempt, what.step)
