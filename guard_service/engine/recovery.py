"""From a store to a judge: at the start, and whenever a store that failed works again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, StepReport
from guard_service.errors import GuardError, StoreCorruptError
from guard_service.store import Failure, RefusedCheckpoint, Store, StoredEvent, lost

log = logging.getLogger("rlguard.guard")


@dataclass(frozen=True, slots=True)
class FoldedState:
    """A judge's state, and the number of the newest event that it has folded."""

    state: dict[str, Any]
    seq: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is known of a run whose store is empty. `pins`: as of `Store.pins`."""

    judge: Judge
    pins: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """What is known of a run after its store was read. `pins`: as of `Store.pins`."""

    store: Store
    judge: Judge
    seq: int
    queue: list[CheckpointReport]
    pins: Mapping[str, str] | None
    latched_at: dict[bool, datetime]


def restore(
    state_dir: Path, policy: Policy, known: FoldedState | None, elsewhere: Elsewhere | None
) -> Restored:
    """Open the store and fold what is in it: the events after `known`, or after a snapshot.

    `elsewhere`: what an empty store begins with.

    Raises:
        StoreError, ChangedRunError: see `Store`; also if acknowledged events are gone or cannot be folded.
    """
    store = Store(state_dir, policy)
    try:
        last = store.last_seq()
        if known is not None and last < known.seq:
            raise lost(store.path, last, known.seq)
        if elsewhere is not None:
            store.save_snapshot(0, elsewhere.judge.to_state())
            if elsewhere.pins is not None:
                store.pin(elsewhere.pins)
        judge, seq = _starting_point(store, policy, known, last)
        for number, event in store.events(after=seq):
            fold_event(judge, event)
            seq = number
        if (end := store.told_end()) is not None:
            judge.fold_end(end)
        stored = store.latch_kinds()
        missing = [latch for latch in judge.latches if latch.fire not in stored]
        store.append_latches(missing)
        pending, pins = store.pending_checkpoints(), store.pins()
        return Restored(store, judge, seq + len(missing), pending, pins, store.latched_at())
    except GuardError:
        store.close()
        raise
    except Exception as error:
        store.close()
        raise StoreCorruptError(f"{store.path} cannot be folded ({type(error).__name__})") from error


def restored_judge(state_dir: Path, policy: Policy) -> Judge:
    """The judge of the store in `state_dir`, which must be a copy: it is opened for writing.

    Raises:
        StoreError: the store cannot be read.
    """
    restored = restore(state_dir, policy, None, None)
    restored.store.close()
    return restored.judge


def _starting_point(store: Store, policy: Policy, known: FoldedState | None, last: int) -> tuple[Judge, int]:
    if known is not None:
        return Judge.from_state(known.state), known.seq
    snapshot = store.snapshot()
    if snapshot is not None:
        seq, state = snapshot
        try:
            judge = Judge.from_state(state)
            if seq <= last and judge.policy == policy:
                return judge, seq
        except (ValueError, KeyError, TypeError):
            pass
        log.warning("the snapshot is not of this program's form: every event is folded again")
    return Judge(policy), 0


def fold_event(judge: Judge, event: StoredEvent) -> None:
    """Fold one stored event."""
    match event:
        case StepReport():
            judge.fold_step(event)
        case CheckpointReport():
            judge.fold_checkpoint(event)
        case RefusedCheckpoint():
            judge.fold_refused(event.key)
        case Evaluation():
            judge.fold_evaluation(event)
        case Latch():
            judge.fold_latch(event)
        case Failure(gone=True):
            judge.fold_skipped(event.pass_index)
        case Failure():
            judge.fold_failure(event.message, event.pass_index, event.kind)


def is_empty(state_dir: Path, policy: Policy) -> bool:
    """Whether the store knows nothing of a run. Raises as `Store` does."""
    store = Store(state_dir, policy)
    try:
        return store.last_seq() == 0 and store.snapshot() is None
    finally:
        store.close()
