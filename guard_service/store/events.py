"""What is appended to a store, in the order in which it is folded. What `append_*` returned is on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Evaluation, Latch
from guard_core.policy import Policy
from guard_core.rounds import Round
from guard_core.wire import CheckpointReport, EndReport, StepReport
from guard_service.errors import StoreCorruptError
from guard_service.store.database import FILE_NAME, Database, errors
from guard_service.store.history import LATCHED_AT, StoredHistory, dump_times, manifest_key
from guard_service.store.records import (
    MANIFEST,
    Appended,
    Begun,
    Conflict,
    Failure,
    contradiction,
    dump_pay,
)
from guard_service.store.terms import check_evaluation, check_policy
from guard_service.store.witness import read_latches, write_latches

# SQLite splits the list itself: one statement per group, outside the interpreter lock. Only integers and the
# verbatim text of an element pass through SQLite's JSON, so that floats keep every bit.
_INSERT_STEPS = """
INSERT INTO events (attempt, step, kind, body)
SELECT value ->> 'attempt', value ->> 'step', 'step', value FROM json_each(?)
"""
_INSERT = "INSERT INTO events (attempt, step, pass, kind, body) VALUES (?, ?, ?, ?, ?)"
_INSERT_REFUSED = """
INSERT INTO events (attempt, step, pass, kind, body)
SELECT :attempt, :step, COUNT(*), 'refused', '{}' FROM events
WHERE (attempt, step, pass, kind) = (:attempt, :step, 0, 'checkpoint')
"""

_STEPS = TypeAdapter(list[StepReport])


class Store(StoredHistory):
    """An open store: its history, and what is appended to it.

    Any method may raise `StoreError`; after that, close it and open it again.
    """

    def __init__(self, state_dir: Path, policy: Policy) -> None:
        """Open the store of a run, making it if there is none, and lock it.

        Raises:
            StoreError: the file cannot be opened or written, or is locked by another process.
            StoreCorruptError: it is not a store of this program, or SQLite finds it damaged.
            ChangedRunError: it was written under another policy.
        """
        self._state_dir = state_dir
        with errors(state_dir / FILE_NAME, "opened"), ExitStack() as opened:
            self._database = opened.enter_context(closing(Database(state_dir)))
            super().__init__(self._database.connection, self._database.path)
            check_policy(self._database, policy)
            # A store that can only be read must not count as one that works.
            self._database.set_meta("opened", "for writing")
            self._agree_on_latches()
            # Highest step on disk of each attempt: a step beyond it is new without looking it up.
            self._newest: dict[int, int] = dict(
                self._db.execute("SELECT attempt, MAX(step) FROM events WHERE kind = 'step' GROUP BY attempt")
            )
            opened.pop_all()

    def close(self) -> None:
        """Close the files. Nothing is flushed here: what was acknowledged is on disk already."""
        self._database.close()

    @property
    def size(self) -> int:
        """Bytes on disk after the newest transaction."""
        return self._database.size

    def check_evaluation(self, digest: str, measure: Mapping[str, Any]) -> None:
        """Remember how the run is evaluated, or refuse another way; see `terms.check_evaluation`."""
        check_evaluation(self._database, digest, measure)

    def _agree_on_latches(self) -> None:
        """A latch in the store or in `guard.latch` is a latch in both.

        Raises:
            StoreCorruptError: the file is damaged, and the store has no latch that could be in it.
        """
        stored = self._latches()
        try:
            kept = read_latches(self._state_dir)
        except StoreCorruptError:
            if not stored:
                raise
            kept = ()
        missing = [latch for latch in kept if latch.fire not in {known.fire for known in stored}]
        both = (*stored, *missing)
        if set(both) != set(kept):
            write_latches(self._state_dir, both)
        with self._database.transaction():
            for latch in missing:
                self._insert_latch(latch)

    def note_end(self, report: EndReport) -> None:
        """Remember the last step that a trainer says it made, and how many checkpoints it could not announce.

        The latest of the one and the most of the other that it ever said.
        """
        known = self.told_end()
        if report.step is None and not report.gone:
            return
        kept = report
        if known is not None:
            later = report.step is not None and _end_of(report) > _end_of(known)
            kept = (report if later else known).model_copy(update={"gone": max(report.gone, known.gone)})
        if kept != known:
            self._database.set_meta("end", kept.model_dump_json())

    def append_steps(self, batches: Sequence[Sequence[StepReport]]) -> list[Appended | Conflict]:
        """Store several requests in one transaction, so that one flush serves them all.

        A request is kept whole or not at all: one item that contradicts what is on disk, an earlier request
        or another item of its own refuses it all. Identical items are counted and not stored again.
        """
        fresh: dict[CheckpointKey, StepReport] = {}
        with self._database.transaction():
            results = [self._sort_out(reports, fresh) for reports in batches]
            if fresh:
                self._db.execute(_INSERT_STEPS, (_STEPS.dump_json(list(fresh.values())).decode(),))
        for attempt, step in fresh:
            if step > self._newest.get(attempt, -1):
                self._newest[attempt] = step
        return results

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
                known = self._step(key)
            if known is None:
                mine[key] = report
            elif known == report:
                duplicates += 1
            else:
                return contradiction(known, report, f"{index}." if len(reports) > 1 else "")
        fresh |= mine
        return Appended(tuple(mine.values()), duplicates)

    def _step(self, key: CheckpointKey) -> StepReport | None:
        row = self._db.execute(
            "SELECT body FROM events WHERE (attempt, step, pass, kind) = (?, ?, 0, 'step')", key
        ).fetchone()
        return None if row is None else StepReport.model_validate_json(row[0])

    def append_checkpoint(self, report: CheckpointReport, manifest: str | None = None) -> None:
        """Store the announcement of a checkpoint that is not known yet, and what its files were then."""
        body = report.model_dump(mode="json") | ({} if manifest is None else {MANIFEST: manifest})
        with self._database.transaction():
            self._insert("checkpoint", report.attempt, report.step, 0, json.dumps(body))

    def renew_manifest(self, key: CheckpointKey, manifest: str) -> None:
        """Note what the files of a known checkpoint are now that it was announced again."""
        self._database.set_meta(manifest_key(key), manifest)

    def pin(self, pins: Mapping[str, str]) -> None:
        """Remember the files that every further checkpoint must have, too; the first call counts."""
        with errors(self.path, "written"):
            self._database.first_meta("pins", json.dumps(dict(pins), sort_keys=True))

    def note_said(self, key: CheckpointKey, said: str) -> None:
        """Remember what a server of weights that nobody has hashed said of this checkpoint, as a digest."""
        with errors(self.path, "written"):
            self._database.set_meta("said", json.dumps([*key, said]))

    def note_begun(self, begun: Begun) -> None:
        """Remember which evaluation begins, in case this guard does not survive it."""
        with errors(self.path, "written"):
            self._database.set_meta("begun", json.dumps([*begun.key, begun.pass_index, begun.times]))

    def append_refused(self, key: CheckpointKey) -> None:
        """Store that a checkpoint was refused; once before it is taken, and once after."""
        with self._database.transaction():
            self._db.execute(_INSERT_REFUSED, key._asdict())

    def append_evaluation(
        self, evaluation: Evaluation, round_: Round | None, latches: Sequence[Latch]
    ) -> None:
        """Store an evaluation, its items, and the latches that it closes, in one transaction.

        `round_`: what the judge made of it; None for a later pass of a checkpoint.
        """
        summary = evaluation.summary().model_dump(mode="json")
        more = {name: getattr(evaluation, name) for name in ("unscored", "completions", "seconds")}
        more |= {"parts": dict(evaluation.parts)}
        body = summary | more | (asdict(round_) if round_ else {})
        with self._database.transaction():
            seq = self._insert(
                "evaluation", evaluation.attempt, evaluation.step, evaluation.pass_index, json.dumps(body)
            )
            self._db.execute(
                "INSERT INTO outcomes VALUES (?, ?, ?)",
                (seq, json.dumps(evaluation.items), dump_pay(evaluation)),
            )
            self._insert_latches(latches)

    def append_failure(self, failure: Failure, latches: Sequence[Latch]) -> None:
        """Store that an evaluation gave no outcome, and the latches that this closes."""
        body = json.dumps({"message": failure.message, "gone": failure.gone, "kind": failure.kind.value})
        with self._database.transaction():
            self._insert("failure", failure.attempt, failure.step, failure.pass_index, body)
            self._insert_latches(latches)

    def append_latches(self, latches: Sequence[Latch]) -> None:
        """Store latches that closed."""
        with self._database.transaction():
            self._insert_latches(latches)

    def save_snapshot(self, seq: int, state: dict[str, Any]) -> None:
        """Store the judge's state after event `seq`."""
        with self._database.transaction(snapshot=True):
            self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", (seq, json.dumps(state)))

    def _insert_latches(self, latches: Sequence[Latch]) -> None:
        if latches:  # before the transaction ends: what announces a latch finds it in both places
            write_latches(self._state_dir, (*self._latches(), *latches))
            times = self._latched_at() | dict.fromkeys((one.fire for one in latches), datetime.now(UTC))
            self._database.put_meta(LATCHED_AT, dump_times(times))
        for latch in latches:
            self._insert_latch(latch)

    def _insert_latch(self, latch: Latch) -> None:
        self._insert(latch.kind, latch.attempt, latch.step, 0, json.dumps(asdict(latch)))

    def _insert(self, kind: str, attempt: int, step: int, pass_index: int, body: str) -> int:
        seq = self._db.execute(_INSERT, (attempt, step, pass_index, kind, body)).lastrowid
        assert seq is not None
        return seq


def _end_of(report: EndReport) -> tuple[int, int]:
    """Attempt and last step, -1 where it says none."""
    return report.attempt, -1 if report.step is None else report.step
