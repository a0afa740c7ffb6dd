"""The log of a run, which is its state: events are appended, and folded into a judge.

It is one append-only SQLite table of everything that can change a verdict (`events`), and of a few notes that
are not folded. A fire is an event of its own, appended in the transaction of its cause, and stored nowhere
else. With another policy or another held-out split it is another run, which is refused.

What an open log holds is in `history`; its file is opened, locked and checked by `database`.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from guard_service.database import FILE_NAME, READING_FAILS, open_ended, open_log, store_error
from guard_service.errors import (
    ChangedRunError,
    GuardError,
    NotAdoptedError,
    Problem,
    ProblemType,
    StoreCorruptError,
    StoreError,
)
from guard_service.events import (
    Appended,
    Conflict,
    EventRow,
    Failure,
    Note,
    NoteKind,
    RefusedCheckpoint,
    StepRun,
    StoredEvent,
    contradiction,
)
from guard_service.history import STEP_COLUMNS, StoredHistory
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.compact import CompactState
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.wire import CheckpointReport, EndReport, StepReport

_INSERT_STEP = (
    f"INSERT INTO events (kind, pass, {STEP_COLUMNS}) "  # noqa: S608  ours
    f"VALUES ('step', 0{', ?' * len(StepReport.model_fields)})"
)
_values_of_step = attrgetter(*StepReport.model_fields)
_INSERT = "INSERT INTO events (kind, attempt, step, pass, body, items) VALUES (?, ?, ?, ?, ?, ?)"


class EventLog(StoredHistory):
    """An open log: what it holds, and what is appended to it.

    It is used from one thread at a time. Any method may raise `StoreError`; after that, close it and open it
    again.
    """

    def __init__(self, state_dir: Path, policy: Policy) -> None:
        """Open the log of a run, making it if there is none, and lock it.

        Raises:
            StoreError: the file cannot be opened or written, or is locked by another process.
            StoreCorruptError: it is not a log of this program, or it is damaged.
            ChangedRunError: it was written under another policy.
        """
        path = state_dir / FILE_NAME
        super().__init__(open_log(path), path)
        try:
            about = path.stat()
            self._file = (about.st_dev, about.st_ino)
            (self._page_size,) = self._db.execute("PRAGMA page_size").fetchone()
            #: Bytes on disk after the newest transaction.
            self.size = self._measured()
            if changes := self._changes(NoteKind.POLICY, policy.model_dump(mode="json")):
                raise ChangedRunError(
                    f"the policy is not the one that {self.path} was written under ({changes}): a changed "
                    "policy is a new run; restore the policy, or give another state_dir"
                )
            # Highest step on disk of each attempt: a step beyond it is new without looking it up.
            self._newest = self.newest_steps()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Nothing is flushed here: what was acknowledged is on disk already."""
        self._db.close()

    def _measured(self) -> int:
        """Bytes of the database; what the write-ahead log has twice, SQLite bounds to some MiB."""
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        return int(pages * self._page_size)

    def check_evaluation(self, split_digest: str, measure: Mapping[str, Any]) -> None:
        """Remember how the run is evaluated, or compare it with what is remembered.

        Args:
            split_digest: of the held-out split.
            measure: what else decides a score (scorers, sampling); JSON values.

        Raises:
            ChangedRunError: the run began with another split, or was scored in another way.
        """
        if changes := self._changes(NoteKind.MEASURE, {"split": split_digest} | dict(measure)):
            raise ChangedRunError(
                f"the held-out evaluation is not the one that {self.path} was written under ({changes}): its "
                "scores cannot be compared with the earlier ones; restore it, or give another state_dir"
            )

    def _changes(self, kind: NoteKind, content: Any) -> str:
        """How this differs from what is remembered, in words; it is remembered if nothing is."""
        known = self.newest_note(kind)
        if known is None:
            self.append([Note(kind, content)])
            return ""
        return "; ".join(_differences(known.content, content, "")) if known.content != content else ""

    def append(self, events: Sequence[StoredEvent], round_: Round | None = None) -> int:
        """Append events in one transaction, which is on disk when this returns.

        Args:
            events: in the order in which they are folded.
            round_: what the judge made of the evaluation among them; None of a later pass of a checkpoint.

        Returns:
            The number of the newest event.
        """
        try:
            seq = self._write(events, round_)
        except READING_FAILS as error:
            raise store_error(self.path, "written", error) from error
        for event in events:
            if isinstance(event, StepReport):
                self._newest[event.attempt] = max(event.step, self._newest.get(event.attempt, -1))
        if any(isinstance(event, Latch) for event in events):
            # A damaged database is noticed; a damaged write-ahead log is taken for one that ends earlier.
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return seq

    def _write(self, events: Sequence[StoredEvent], round_: Round | None) -> int:
        now = self.path.stat()
        if (now.st_dev, now.st_ino) != self._file:  # SQLite would go on writing to a file without a name
            raise StoreCorruptError(f"{self.path} was replaced while it was open: restore it")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            _insert(self._db, events, round_, datetime.now(UTC))
            (seq,) = self._db.execute("SELECT MAX(seq) FROM events").fetchone()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.size = self._measured()
        return int(seq)

    def sort_out(self, batches: Sequence[Sequence[StepReport]]) -> list[Appended | Conflict]:
        """Tell the new steps of several requests from those that are on disk already; nothing is appended.

        A request is taken whole or not at all: one item that contradicts what is on disk, an earlier request
        or another item of its own refuses it all.
        """
        fresh: dict[CheckpointKey, StepReport] = {}
        return [self._sort_out(reports, fresh) for reports in batches]

    def _sort_out(
        self, reports: Sequence[StepReport], fresh: dict[CheckpointKey, StepReport]
    ) -> Appended | Conflict:
        """Tell new from repeated items; the new ones join `fresh` only if none contradicts."""
        mine: dict[CheckpointKey, StepReport] = {}
        duplicates = 0
        for index, report in enumerate(reports):
            key = CheckpointKey(report.attempt, report.step)
            known = mine.get(key) or fresh.get(key)
            if known is None and report.step <= self._newest.get(report.attempt, -1):
                known = self.step_report(key)
            if known is None:
                mine[key] = report
            elif known == report:
                duplicates += 1
            else:
                return contradiction(known, report, f"{index}." if len(reports) > 1 else "")
        fresh |= mine
        return Appended(tuple(mine.values()), duplicates)


def _insert(
    db: sqlite3.Connection, events: Sequence[StoredEvent], round_: Round | None, now: datetime
) -> None:
    """Insert rows in the order of the events; many steps in a row by one statement."""
    steps: list[tuple[Any, ...]] = []
    for event in events:
        if isinstance(event, StepReport):
            steps.append(_values_of_step(event))
            continue
        db.executemany(_INSERT_STEP, steps)
        steps.clear()
        db.execute(_INSERT, EventRow.of(event, round_, now))
    db.executemany(_INSERT_STEP, steps)


#: What a store may have without a setting.
MAX_BYTES = 1 << 30
#: Steps a second in the long run.
RATE = 1_000
#: Steps at once: a trainer that was cut off sends what waits, and a log that is followed anew is read from
#: its beginning. They take some 20 MB; what is longer takes a second for each thousand more.
BURST = 100_000
#: Of the bytes that a store may have: for steps, then for announcements of checkpoints.
STEPS_SHARE = 0.8
ANNOUNCED_SHARE = 0.9


@dataclass(slots=True)
class Allowance:
    """How much a trainer may still write into a store of `max_bytes`: steps a second, bytes in all. Pure.

    The guard's own writes (evaluations, latches) are not bounded by it: the rest of the room is theirs, so
    that a run whose trainer has filled its share can still be judged and still fires.
    """

    max_bytes: int
    _steps: float = math.inf
    _at: float = 0.0

    def is_full(self, size: int) -> bool:
        """Whether a store of this size takes no further steps."""
        return size >= STEPS_SHARE * self.max_bytes

    def refuses_steps(self, count: int, size: int, now: float) -> Problem | None:
        """Why these steps are not taken into a store of this size, if they are not; else they are counted."""
        if self.is_full(size):
            return self._full("steps")
        self._steps, self._at = min(BURST, self._steps + RATE * (now - self._at)), now
        if count > self._steps:
            seconds = math.ceil((count - self._steps) / RATE)
            return Problem(
                ProblemType.TOO_MANY_REQUESTS,
                f"more than {RATE} steps a second, so nothing of this request was kept; send it again in "
                f"{seconds} s",
                headers={"Retry-After": str(seconds)},
            )
        self._steps -= count
        return None

    def refuses_announcement(self, size: int) -> Problem | None:
        """The same of a checkpoint; files of checkpoints are no part of the store."""
        if size >= ANNOUNCED_SHARE * self.max_bytes:
            return self._full("checkpoints")
        return None

    def _full(self, what: str) -> Problem:
        """How much is used a trainer is not told: of its items so many bytes are kept."""
        return Problem(
            ProblemType.INSUFFICIENT_STORAGE,
            f"the store may have {self.max_bytes >> 20} MiB, and the share of it for {what} is used, so no "
            "more of them are kept: the rest is for evaluations. Start a new run, or raise "
            "RLGUARD_GUARD_MAX_STORE_MIB and start the guard again",
        )


@dataclass(frozen=True, slots=True)
class Folded:
    """A judge, and the number of the newest event that it has folded.

    `latched_at`: when the fire (True) and the halt (False) latched, as the log says.
    """

    judge: Judge
    seq: int
    latched_at: Mapping[bool, datetime] = field(default_factory=dict)


def fold(judge: Judge, events: Iterable[StoredEvent]) -> Judge:
    """The judge after these events, in the order in which they are in the log. Pure."""
    run = judge.copy()
    for event in events:
        match event:
            case StepRun():
                run.fold_steps(event.rows)
            case StepReport():
                run.fold_step(event)
            case CheckpointReport():
                run.fold_checkpoint(event)
            case RefusedCheckpoint():
                run.fold_refused(event.key)
            case Evaluation():
                run.fold_evaluation(event)
            case Failure(gone=True):
                run.fold_skipped(event.pass_index)
            case Failure():
                run.fold_failure(event.message, event.pass_index, event.kind)
            case EndReport():
                run.fold_end(event)
            case Latch():
                run.fold_latch(event)
            case CompactState():
                run.fold_adopted(event)
            case Note():
                pass
    return run


def append(store: EventLog, folded: Folded, events: Sequence[StoredEvent]) -> Folded:
    """Append events, and the latches that they close, in one transaction; what is folded after them.

    Raises:
        StoreError: nothing was appended.
    """
    after = fold(folded.judge, events)
    new = [latch for latch in after.latches if latch not in folded.judge.latches]
    seq = store.append([*events, *(latch for latch in new if latch not in events)], after.newest_round)
    return Folded(after, seq, store.latched_at() if new else folded.latched_at)


def append_steps(
    store: EventLog, folded: Folded, batches: Sequence[Sequence[StepReport]]
) -> tuple[list[Appended | Conflict], Folded]:
    """Append what is new of several requests in one transaction, so that one flush serves them all."""
    results = store.sort_out(batches)
    new = [report for result in results if isinstance(result, Appended) for report in result.new]
    return results, append(store, folded, new) if new else folded


def restore(
    state_dir: Path, policy: Policy, known: Folded | None, adopted: Sequence[StoredEvent] | None = ()
) -> tuple[EventLog, Folded]:
    """Open the log and fold what is in it: the events after those of `known`.

    `adopted`: what an empty log begins with; None while that is not known.

    Raises:
        StoreError, ChangedRunError: see `EventLog`; also if acknowledged events are gone or cannot be folded.
        NotAdoptedError: the log is empty, and it is not known what it begins with.
    """
    store = EventLog(state_dir, policy)
    try:
        last, former = store.last_seq(), known or Folded(Judge(policy), 0)
        if last < former.seq:
            raise StoreCorruptError(
                f"{store.path} has {last} events, but {former.seq} were acknowledged: it was replaced, cut "
                "or damaged; restore it, or start a new run with an empty state_dir"
            )
        if known is None and adopted != () and store.is_new():
            if adopted is None:
                raise NotAdoptedError(
                    "the store is empty, and the supervisor has not said yet what is known of this run "
                    "(PUT /v1/state)"
                )
            store.append(adopted)
        judge = fold(former.judge, store.events(former.seq))
        latched_at = store.latched_at()
        if missing := [latch for latch in judge.latches if latch.fire not in latched_at]:
            store.append(missing)
        return store, Folded(judge, store.last_seq(), store.latched_at())
    except GuardError:
        store.close()
        raise
    except Exception as error:
        store.close()
        raise StoreCorruptError(
            f"{store.path} cannot be folded ({type(error).__name__}): restore it, or start a new run"
        ) from error


def stored_policy(state_dir: Path) -> Policy:
    """The policy that the run in `state_dir` was judged by. No guard may be running on this directory.

    Raises:
        StoreError: there is no log, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(open_ended(path)) as db:
        note = StoredHistory(db, path).newest_note(NoteKind.POLICY)
    if note is None:
        raise StoreError(f"{path} has no policy: no guard has finished its start with this state_dir")
    return Policy.model_validate(note.content)


def _differences(before: Any, after: Any, prefix: str) -> Iterator[str]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield f"{prefix}: was {before!r}, now {after!r}"
        return
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield from _differences(before.get(key), after.get(key), f"{prefix}.{key}" if prefix else key)
