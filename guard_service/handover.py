"""What travels of a run from one guard to the next, by way of their supervisor.

A guard whose log is empty cannot tell a new run from one whose store was lost with a pod. Where it has a
supervisor it asks: it judges nothing until it was told what is known of its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from guard_service.errors import Problem, ProblemType
from guard_service.events import Note, NoteKind, StoredEvent
from rlguard.core.codes import Code
from rlguard.core.compact import CompactState, policy_digest
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import Policy
from rlguard.core.trainer_view import TOLD_BY_KIND, for_the_status
from rlguard.core.wire import MAX_ATTEMPT, MAX_STEP


def _at_a_step(latch: Latch) -> Latch:
    if not (0 <= latch.attempt < MAX_ATTEMPT and 0 <= latch.step < MAX_STEP):
        raise ValueError("attempt and step of a latch must be numbers that a trainer can report")
    return latch


class RunState(BaseModel):
    """What is known of a run. No per-item outcome is in it (invariant 8)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence: int = Field(0, ge=0, description="It grows with everything that is known; compare it.")
    state: CompactState | None = Field(None, description="How the run was judged; null: not at all so far.")
    latches: tuple[Annotated[Latch, AfterValidator(_at_a_step)], ...] = Field(
        (), max_length=2, description="The fire and the halt, if there are."
    )
    pins: dict[str, str] | None = Field(None, description="The files that every checkpoint must have.")
    lost: str = Field(
        "", max_length=300, description="Why nobody knows how the run was judged, if nobody does; else empty."
    )

    @classmethod
    def of(
        cls, sequence: int, state: CompactState, latches: Sequence[Latch], pins: Mapping[str, str] | None
    ) -> Self:
        """What is known of a run, without words that may quote an item or a file."""
        if state.notes.failure in TOLD_BY_KIND:
            notes = replace(state.notes, last_failure=state.notes.failure.words)
            state = state.model_copy(update={"notes": notes})
        told = (
            replace(latch, message=for_the_status(Code(latch.code), latch.message, None)) for latch in latches
        )
        return cls(
            sequence=sequence, state=state, latches=tuple(told), pins=None if pins is None else dict(pins)
        )

    def events(self, policy: Policy) -> Sequence[StoredEvent]:
        """What the log of the next guard begins with.

        Raises:
            Problem: 422 if the state was made under another policy.
        """
        if self.lost:
            state = CompactState.unknown(policy, self.lost)
        else:  # of a new run there is nothing to go on from, and that is known
            state = self.state or CompactState(policy=policy_digest(policy))
        try:
            Judge(policy).fold_adopted(state)
        except ValueError as error:
            detail = f"refused: state; {error}"
            raise Problem.of_field(ProblemType.INVALID_CONTENT, "state", str(error), detail) from error
        pins = [] if self.pins is None else [Note(NoteKind.PINS, self.pins)]
        return (state, *map(_understood, self.latches), *pins)


def _understood(latch: Latch) -> Latch:
    """A latch of a code that this release does not know is a latch all the same."""
    if latch.code in list(Code):
        return latch
    return replace(latch, code=Code.HELDOUT_DECLINE.value, message=f"{latch.code}: {latch.message}")
