"""The state of a run is the fold of its log. `append` is the only way on, `restore` the way back.

`fold` is pure: it changes no judge. So what could not be put on disk has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from guard_core.compact import CompactState
from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, EndReport, StepReport
from guard_service.errors import GuardError, StoreCorruptError
from guard_service.store import (
    Appended,
    Conflict,
    EventLog,
    Failure,
    Note,
    NoteKind,
    RefusedCheckpoint,
    StepRun,
    StoredEvent,
)


@dataclass(frozen=True, slots=True)
class Folded:
    """A judge, and the number of the newest event that it has folded.

    `latched_at`: when the fire (True) and the halt (False) latched, as the log says.
    """

    judge: Judge
    seq: int
    latched_at: Mapping[bool, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """What is known of a run after its log was read.

    `pins`: the files that every checkpoint must have. `ended`: its newest report says that it has finished.
    """

    log: EventLog
    folded: Folded
    queue: list[CheckpointReport]
    pins: Mapping[str, str] | None
    ended: bool


def fold(judge: Judge, events: Iterable[StoredEvent]) -> Judge:
    """The judge after these events, in the order in which they are in the log."""
    run = judge.copy()
    for event in events:
        _fold_one(run, event)
    return run


def _fold_one(judge: Judge, event: StoredEvent) -> None:
    match event:
        case StepRun():
            judge.fold_steps(event.rows)
        case StepReport():
            judge.fold_step(event)
        case CheckpointReport():
            judge.fold_checkpoint(event)
        case RefusedCheckpoint():
            judge.fold_refused(event.key)
        case Evaluation():
            judge.fold_evaluation(event)
        case Failure(gone=True):
            judge.fold_skipped(event.pass_index)
        case Failure():
            judge.fold_failure(event.message, event.pass_index, event.kind)
        case EndReport():
            judge.fold_end(event)
        case Latch():
            judge.fold_latch(event)
        case CompactState():
            judge.fold_adopted(event)
        case Note():
            pass


def append(log: EventLog, folded: Folded, events: Sequence[StoredEvent]) -> Folded:
    """Append events, and the latches that they close, in one transaction; what is folded after them.

    Raises:
        StoreError: nothing was appended.
    """
    after = fold(folded.judge, events)
    new = [latch for latch in after.latches if latch not in folded.judge.latches]
    log.append([*events, *(latch for latch in new if latch not in events)], after.newest_round)
    return Folded(after, log.last_seq(), log.latched_at() if new else folded.latched_at)


def append_steps(
    log: EventLog, folded: Folded, batches: Sequence[Sequence[StepReport]]
) -> tuple[list[Appended | Conflict], Folded]:
    """Append what is new of several requests in one transaction, so that one flush serves them all."""
    results = log.sort_out(batches)
    new = [report for result in results if isinstance(result, Appended) for report in result.new]
    return results, append(log, folded, new) if new else folded


def restore(
    state_dir: Path, policy: Policy, known: Folded | None, adopted: Sequence[StoredEvent] = ()
) -> Restored:
    """Open the log and fold what is in it: the events after those of `known`.

    `adopted`: what an empty log begins with.

    Raises:
        StoreError, ChangedRunError: see `EventLog`; also if acknowledged events are gone or cannot be folded.
    """
    log = EventLog(state_dir, policy)
    try:
        last, former = log.last_seq(), known or Folded(Judge(policy), 0)
        if last < former.seq:
            raise StoreCorruptError(
                f"{log.path} has {last} events, but {former.seq} were acknowledged: it was replaced, cut or "
                "damaged; restore it, or start a new run with an empty state_dir"
            )
        if adopted:
            log.append(adopted)
        judge = fold(former.judge, log.events(former.seq))
        latched_at = log.latched_at()
        if missing := [latch for latch in judge.latches if latch.fire not in latched_at]:
            log.append(missing)
        pins = log.newest_note(NoteKind.PINS)
        return Restored(
            log,
            Folded(judge, log.last_seq(), log.latched_at()),
            log.pending_checkpoints(),
            None if pins is None else pins.content,
            log.has_ended(),
        )
    except GuardError:
        log.close()
        raise
    except Exception as error:
        log.close()
        raise StoreCorruptError(
            f"{log.path} cannot be folded ({type(error).__name__}): restore it, or start a new run"
        ) from error


def restored_judge(state_dir: Path, policy: Policy) -> Judge:
    """The judge of the log in `state_dir`, which must be a copy: it is opened for writing.

    Raises:
        StoreError: the log cannot be read.
    """
    restored = restore(state_dir, policy, None)
    restored.log.close()
    return restored.folded.judge


def is_new(state_dir: Path, policy: Policy) -> bool:
    """Whether the log knows nothing of a run. Raises as `EventLog` does."""
    log = EventLog(state_dir, policy)
    try:
        return log.is_new()
    finally:
        log.close()
