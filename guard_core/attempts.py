"""Which attempts of a trainer started from scratch, and which of those are judged as starts. Pure.

A pod that finds no checkpoint when it is made again trains the starting policy anew. What the attempt before
had reached was never its own, so a fall from there is none. The baseline is its own.

Who holds the ingest token can say that it starts from scratch, and be rid of the evidence since the baseline.
So few starts are believed, and none while an alarm waits to be decided; the baseline stays in any case, and
so do the first rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

#: Starts of one run that are judged as starts, beside the first. Each has a false-stop rate of its own.
MOST_STARTS = 3


@dataclass(slots=True)
class Lineage:
    """From which start the weights of the newest attempt come: its own, or one that it goes on from.

    `by`, `began`: the first attempt that reported a step, and its first step; `base`: step of the first
    evaluated checkpoint; `newest`: the newest attempt that was heard of; `start`: the newest that started
    from scratch, and `at` the step that said so. None before there is any.
    """

    by: int | None = None
    began: int | None = None
    base: int | None = None
    newest: int | None = None
    start: int | None = None
    at: int | None = None

    def fold_step(self, attempt: int, step: int, stride: int) -> None:
        """Fold a reported step; `stride`: the usual distance of two. One at the start may have no reward."""
        if self.began is None or self.by is None:
            self.by, self.began = attempt, step
        elif attempt == self.by:
            self.began = min(self.began, step)
        self._hear(attempt, step, from_scratch=step <= self.began + stride)

    def fold_checkpoint(self, attempt: int, step: int) -> None:
        """Fold a checkpoint that was evaluated."""
        if self.base is None:
            self.base = step
        self._hear(attempt, step, from_scratch=step <= self.base)

    def _hear(self, attempt: int, step: int, *, from_scratch: bool) -> None:
        newest = attempt if self.newest is None else max(self.newest, attempt)
        if self.start is None or (from_scratch and newest == attempt > self.start):
            self.start, self.at = attempt, step
        self.newest = newest

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**state)


@dataclass(slots=True)
class Restarts:
    """Which starts were judged as starts.

    `start`: attempt of the start that what was judged last came from; None before any. `taken`: how many were
    judged as starts, beside the first. `said`: a sentence about the newest; "" if there was none.
    """

    start: int | None = None
    taken: int = 0
    said: str = ""

    def takes(self, lineage: Lineage, attempt: int, *, made: int, alarmed: bool) -> bool:
        """Whether what was judged since the baseline is to be forgotten before a checkpoint is judged.

        Args:
            lineage: of all that was reported, the checkpoint included.
            attempt: whose checkpoint it is.
            made: evaluations since the baseline, of all attempts.
            alarmed: whether an alarm waits to be decided. The start waits, too.
        """
        if self.start is None:
            self.start = lineage.start
        if lineage.start is None or lineage.start == self.start or attempt < lineage.start:
            return False
        started = f"attempt {lineage.start} started from scratch (step {lineage.at})"
        if alarmed:
            self.said = (
                f"{started} while an alarm waits to be decided: until then it is compared with what the "
                "attempts before had reached"
            )
            return False
        self.start = lineage.start
        if made < 1:
            return False
        if self.taken >= MOST_STARTS:
            self.said = (
                f"{started}, as {MOST_STARTS} had done before, so it is compared with what the attempts "
                "before had reached. Give a run that starts from scratch a guard of its own"
            )
            return False
        self.taken += 1
        self.said = (
            f"{started}: it is compared with the baseline (step {lineage.base}), and not with what the "
            f"attempts before had reached. That is done {MOST_STARTS} times at most; this is number "
            f"{self.taken}"
        )
        return True

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**state)
