"""The log of a run: what is appended to it, in the order in which it is folded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Latch
from guard_core.policy import Policy
from guard_core.rounds import Round
from guard_core.wire import StepReport
from guard_service.errors import ChangedRunError, StoreError
from guard_service.store.database import FILE_NAME, Database, errors, open_ended
from guard_service.store.history import StoredHistory, step_report
from guard_service.store.records import (
    Appended,
    Conflict,
    EventRow,
    Note,
    NoteKind,
    StoredEvent,
    contradiction,
)

_INSERT_STEP = """
INSERT INTO events (kind, attempt, step, pass, reward, kl, kl_kind, entropy, reward_std)
VALUES ('step', ?, ?, 0, ?, ?, ?, ?, ?)
"""
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
        self._database = Database(state_dir)
        super().__init__(self._database.connection, self._database.path)
        try:
            if changes := self._changes(NoteKind.POLICY, policy.model_dump(mode="json")):
                raise ChangedRunError(
                    f"the policy is not the one that {self.path} was written under ({changes}): a changed "
                    "policy is a new run; restore the policy, or give another state_dir"
                )
            with errors(self.path, "read"):
                # Highest step on disk of each attempt: a step beyond it is new without looking it up.
                self._newest: dict[int, int] = dict(
                    self._db.execute(
                        "SELECT attempt, MAX(step) FROM events WHERE kind = 'step' GROUP BY attempt"
                    )
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Nothing is flushed here: what was acknowledged is on disk already."""
        self._database.close()

    @property
    def size(self) -> int:
        """Bytes on disk after the newest transaction."""
        return self._database.size

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
        return ", ".join(_differences(known.content, content, "")) if known.content != content else ""

    def append(self, events: Sequence[StoredEvent], round_: Round | None = None) -> None:
        """Append events in one transaction.

        Args:
            events: in the order in which they are folded.
            round_: what the judge made of the evaluation among them; None of a later pass of a checkpoint.
        """
        now = datetime.now(UTC)
        with self._database.transaction() as db:
            _insert(db, events, round_, now)
        for event in events:
            if isinstance(event, StepReport):
                self._newest[event.attempt] = max(event.step, self._newest.get(event.attempt, -1))
        if any(isinstance(event, Latch) for event in events):
            self._database.empty_write_ahead_log()

    def sort_out(self, batches: Sequence[Sequence[StepReport]]) -> list[Appended | Conflict]:
        """Tell the new steps of several requests from those that are on disk already; nothing is appended.

        A request is taken whole or not at all: one item that contradicts what is on disk, an earlier request
        or another item of its own refuses it all.
        """
        fresh: dict[CheckpointKey, StepReport] = {}
        with errors(self.path, "read"):
            return [self._sort_out(reports, fresh) for reports in batches]

    def _sort_out(
        self, reports: Sequence[StepReport], fresh: dict[CheckpointKey, StepReport]
    ) -> Appended | Conflict:
        """Tell new from repeated items; the new ones join `fresh` only if none contradicts."""
        mine: dict[CheckpointKey, StepReport] = {}
        duplicates = 0
        for index, report in enumerate(reports):
            key = CheckpointKey.of(report)
            known = mine.get(key) or fresh.get(key)
            if known is None and report.step <= self._newest.get(report.attempt, -1):
                known = step_report(self._db, key)
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
            place = event.attempt, event.step, event.reward
            steps.append((*place, event.kl, event.kl_kind.value, event.entropy, event.reward_std))
            continue
        db.executemany(_INSERT_STEP, steps)
        steps.clear()
        db.execute(_INSERT, EventRow.of(event, round_, now))
    db.executemany(_INSERT_STEP, steps)


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
