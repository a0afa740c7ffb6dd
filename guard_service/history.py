"""What is read of a log: its events for the fold, its history for people, what is not settled yet."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from guard_service.database import FILE_NAME, errors, open_ended
from guard_service.events import (
    Begun,
    Conflict,
    EventRow,
    Note,
    NoteKind,
    StepRun,
    StoredEvent,
    contradiction,
)
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.rounds import TOLD, TRAINER_LIMIT, Evaluation
from rlguard.core.thinning import rounds_that_stay
from rlguard.core.wire import CheckpointReport, KlKind, StepReport

STEP_RUN = 10_000  # steps that are read together
PAGE = 2_000  # rows of one read; ingest waits no longer than one page takes

LineKey = tuple[int, int, int]  # attempt, step, pass
BEFORE_ALL: LineKey = (-1, -1, -1)

#: What of a line of the history never leaves the guard (invariant 8), and what a trainer would see in it of
#: every evaluation.
STAYS_HERE = ("items", "proxy_items", "fooled_items", *TOLD.values())

#: The columns of a step: the fields of its report, in their order.
STEP_COLUMNS = ", ".join(StepReport.model_fields)
_STEPS = f"SELECT {STEP_COLUMNS} FROM events WHERE kind = 'step' ORDER BY attempt, step"  # noqa: S608  ours
_ONE_STEP = f"SELECT {STEP_COLUMNS} FROM events WHERE (attempt, step, pass, kind) = (?, ?, 0, 'step')"  # noqa: S608

_HISTORY = f"""
WITH keys AS (
    SELECT attempt, step, pass FROM events
    WHERE (attempt, step, pass) > (?, ?, ?) AND kind IN ('step', 'evaluation')
    GROUP BY attempt, step, pass ORDER BY attempt, step, pass LIMIT ?
)
SELECT k.attempt, k.step, k.pass, s.seq, e.seq, e.body, e.items, s.{STEP_COLUMNS.replace(", ", ", s.")}
FROM keys k
LEFT JOIN events s ON (s.attempt, s.step, s.pass, s.kind) = (k.attempt, k.step, k.pass, 'step')
LEFT JOIN events e ON (e.attempt, e.step, e.pass, e.kind) = (k.attempt, k.step, k.pass, 'evaluation')
ORDER BY k.attempt, k.step, k.pass
"""  # noqa: S608

# Evenly spaced ranks 0 … n-1, both ends included: rank r is kept where r·(N-1) div (n-1) grows.
_THINNED = f"""
WITH ranked AS (
    SELECT seq, ROW_NUMBER() OVER (ORDER BY attempt, step) - 1 AS r FROM events WHERE kind = 'step'
)
SELECT {STEP_COLUMNS} FROM ranked JOIN events USING (seq)
WHERE r = 0 OR r * (:points - 1) / (:total - 1) > (r - 1) * (:points - 1) / (:total - 1)
ORDER BY r
"""  # noqa: S608

_STEP_RUN = """
SELECT attempt, step, reward, kl, kl_kind FROM events WHERE seq > ? AND seq < ? AND seq <= ? ORDER BY seq
"""
_OTHER_EVENTS = """
SELECT seq, kind, attempt, step, pass, body, items FROM events WHERE seq > ? AND +kind <> 'step' ORDER BY seq
"""


class StoredHistory:
    """What an open store holds. Any method may raise `StoreError`."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self.path = db, path

    def last_seq(self) -> int:
        """Number of the newest event, 0 if there is none."""
        with errors(self.path, "read"):
            return int(self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()[0])

    def newest_steps(self) -> dict[int, int]:
        """The highest step on disk of each attempt."""
        with errors(self.path, "read"):
            return dict(
                self._db.execute("SELECT attempt, MAX(step) FROM events WHERE kind = 'step' GROUP BY attempt")
            )

    def step_report(self, key: CheckpointKey) -> StepReport | None:
        """The step with this attempt and number; None if there is none."""
        with errors(self.path, "read"):
            row = self._db.execute(_ONE_STEP, key).fetchone()
            return None if row is None else StepReport.model_validate(_step(row))

    def events(self, after: int) -> Iterator[StoredEvent]:
        """The events with a number above `after`, in order; steps that follow each other come together."""
        with errors(self.path, "read"):
            for seq, *row in self._db.execute(_OTHER_EVENTS, (after,)):
                yield from self._steps_between(after, seq)
                yield EventRow(*row).event()
                after = seq
            yield from self._steps_between(after, self.last_seq() + 1)

    def _steps_between(self, after: int, before: int) -> Iterator[StepRun]:
        for start in range(after, before - 1, STEP_RUN):
            rows = self._db.execute(_STEP_RUN, (start, before, start + STEP_RUN)).fetchall()
            yield StepRun(tuple(rows))

    def is_new(self) -> bool:
        """Whether the log knows nothing of a run."""
        with errors(self.path, "read"):
            notes = json.dumps([note.value for note in NoteKind])
            query = "SELECT EXISTS (SELECT 1 FROM events WHERE kind NOT IN (SELECT value FROM json_each(?)))"
            return not self._db.execute(query, (notes,)).fetchone()[0]

    def pending_checkpoints(self) -> list[CheckpointReport]:
        """Checkpoints that were announced and neither evaluated nor given up, in order."""
        with errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT body FROM events c WHERE kind = 'checkpoint' AND kind <> 'step' AND NOT EXISTS ("
                "SELECT 1 FROM events e WHERE (e.attempt, e.step, e.pass) = (c.attempt, c.step, 0) "
                "AND e.kind IN ('evaluation', 'failure')) ORDER BY seq"
            )
            return [CheckpointReport.model_validate_json(body) for (body,) in rows]

    def kept_rounds(self, best: CheckpointKey | None) -> list[dict[str, Any]]:
        """The evaluation rounds that evidence has room for, oldest first; see `thinning.rounds_that_stay`.

        Each has attempt, step, reward, heldout and, if known, kl. `reward` and `kl` are those of the `Round`
        that the judge handed out. An evaluation without a step in its window was no round.
        """
        with errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT seq, attempt, step FROM events WHERE kind = 'evaluation' AND kind <> 'step' "
                "AND pass = 0 AND body ->> 'reward' IS NOT NULL ORDER BY seq"
            ).fetchall()
            kept = rounds_that_stay([CheckpointKey(*place) for _, *place in rows], best)
            bodies = self._db.execute(
                "SELECT attempt, step, body FROM events WHERE seq IN (SELECT value FROM json_each(?)) "
                "ORDER BY seq",
                (json.dumps([rows[i][0] for i in kept]),),
            )
            return [_round(attempt, step, json.loads(body)) for attempt, step, body in bodies]

    def is_settled(self, key: CheckpointKey, pass_index: int) -> bool:
        """Whether this evaluation or its failure is on disk."""
        with errors(self.path, "read"):
            row = self._db.execute(
                "SELECT 1 FROM events WHERE (attempt, step, pass) = (?, ?, ?) "
                "AND kind IN ('evaluation', 'failure')",
                (*key, pass_index),
            ).fetchone()
            return row is not None

    def latched_at(self) -> dict[bool, datetime]:
        """When the fire (True) and the halt (False) latched."""
        with errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT kind, body ->> 'at' FROM events WHERE kind IN ('fire', 'halt') AND kind <> 'step'"
            )
            return {kind == "fire": datetime.fromisoformat(at) for kind, at in rows}

    def has_ended(self) -> bool:
        """Whether the newest report of the trainer is that it has finished."""
        with errors(self.path, "read"):
            row = self._db.execute(
                "SELECT body ->> 'finished' FROM events WHERE kind IN ('step', 'checkpoint', 'end') "
                "ORDER BY seq DESC LIMIT 1"
            ).fetchone()
            return row is not None and bool(row[0])

    def is_known_checkpoint(self, report: CheckpointReport) -> bool | Conflict:
        """Whether this checkpoint was announced before, or contradicts the one that was."""
        with errors(self.path, "read"):
            row = self._db.execute(
                "SELECT body FROM events WHERE (attempt, step, pass, kind) = (?, ?, 0, 'checkpoint')",
                CheckpointKey.of(report),
            ).fetchone()
            if row is None:
                return False
            known = CheckpointReport.model_validate_json(row[0])
        # Whether the trainer waits may have changed since it first announced this one.
        report = report.model_copy(update={"waits": known.waits})
        return True if known == report else contradiction(known, report, "")

    def announced(self, step: int, attempt: int | None) -> CheckpointReport | None:
        """The checkpoint that was announced of a step; of several attempts the newest. None: none was."""
        query = "SELECT body FROM events WHERE kind = 'checkpoint' AND kind <> 'step' AND step = ?"
        query += "" if attempt is None else " AND attempt = ?"
        place = (step,) if attempt is None else (step, attempt)
        with errors(self.path, "read"):
            row = self._db.execute(f"{query} ORDER BY attempt DESC LIMIT 1", place).fetchone()
            return None if row is None else CheckpointReport.model_validate_json(row[0])

    def evaluation(self, key: CheckpointKey, pass_index: int) -> Evaluation | None:
        """An evaluation that is on disk; None if there is none."""
        with errors(self.path, "read"):
            row = self._db.execute(
                "SELECT kind, attempt, step, pass, body, items FROM events "
                "WHERE (attempt, step, pass, kind) = (?, ?, ?, 'evaluation')",
                (*key, pass_index),
            ).fetchone()
            event = None if row is None else EventRow(*row).event()
            return event if isinstance(event, Evaluation) else None

    def newest_note(self, kind: NoteKind, key: CheckpointKey | None = None) -> Note | None:
        """The newest note of a kind, about one checkpoint or any; None if there is none."""
        query = "SELECT attempt, step, body FROM events WHERE kind = ? AND kind <> 'step'"
        if key is not None:
            query += " AND (attempt, step) = (?, ?)"
        with errors(self.path, "read"):
            row = self._db.execute(
                f"{query} ORDER BY seq DESC LIMIT 1", (kind.value, *(key or ()))
            ).fetchone()
            return None if row is None else Note(kind, json.loads(row[2]), CheckpointKey(row[0], row[1]))

    def begun(self) -> Begun | None:
        """The evaluation that was begun last."""
        note = self.newest_note(NoteKind.BEGUN)
        return None if note is None else Begun(note.key, *note.content)

    def history_page(self, after: LineKey) -> list[tuple[LineKey, dict[str, Any]]]:
        """The next lines of the history after `after`, with per-item outcomes; see `export_history`."""
        with errors(self.path, "read"):
            rows = self._db.execute(_HISTORY, (*after, PAGE))
            return [((row[0], row[1], row[2]), _line(row)) for row in rows]

    def trainer_limit(self) -> int | None:
        """The longest completion of the trainer, tokens, as the first checkpoint says; None: it does not."""
        with errors(self.path, "read"):
            first = self._db.execute(
                "SELECT body ->> '$.sampling.max_new_tokens' FROM events "
                "WHERE kind = 'checkpoint' AND kind <> 'step' ORDER BY seq LIMIT 1"
            ).fetchone()
            return None if first is None else first[0]

    def thinned_history(self, points: int) -> dict[str, Any]:
        """At most `points` steps, evenly spread, first and last kept; every evaluation; the step count."""
        with errors(self.path, "read"):
            (total,) = self._db.execute("SELECT COUNT(*) FROM events WHERE kind = 'step'").fetchone()
            thinned = _THINNED, {"points": points, "total": total}
            steps = self._db.execute(*(thinned if total > points else (_STEPS,)))
            evaluations = self._db.execute(
                "SELECT body FROM events WHERE kind = 'evaluation' AND kind <> 'step' AND pass = 0 "
                "ORDER BY seq"
            )
            return {
                "steps": [_step(row) for row in steps],
                "evaluations": [json.loads(body) for (body,) in evaluations],
                "total_steps": total,
            }


def export_history(state_dir: Path) -> Iterator[dict[str, Any]]:
    """The history WITH per-item outcomes, for local reports and replay; in the order of (attempt, step).

    One dictionary a line: a step (`attempt, step, reward, kl, kl_kind, entropy, reward_std`) which, if its
    checkpoint was evaluated, also has `heldout` (mean score), `items` (outcome of each held-out item, in the
    split's order) and, with a `proxy_scorer`, `proxy_items` (what it gives the same completions) and, where
    an item is several completions, `fooled_items` (see `judge.Evaluation`), what `TOLD` has of it,
    and the trainer's longest completion (`TRAINER_LIMIT`), as far as that is known. An evaluation whose
    step reported no reward has a line of its own, with `reward` null; so has each further evaluation of one
    checkpoint, with its number in `pass_index`. `step_event` and `heldout_event` number steps and evaluations
    in the order in which the guard folded them.
    No guard may be running on this directory.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(open_ended(path)) as db:
        history, after = StoredHistory(db, path), BEFORE_ALL
        limit = history.trainer_limit()
        while page := history.history_page(after):
            after = page[-1][0]
            for _, line in page:
                yield line | ({TRAINER_LIMIT: limit} if limit is not None and "heldout" in line else {})


def thinned_history(state_dir: Path, points: int) -> dict[str, Any]:
    """See `StoredHistory.thinned_history`. No guard may be running on this directory.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(open_ended(path)) as db:
        return StoredHistory(db, path).thinned_history(points)


def _round(attempt: int, step: int, body: dict[str, Any]) -> dict[str, Any]:
    one = {"attempt": attempt, "step": step, "heldout": body["score"], "reward": body["reward"]}
    return one | ({} if body["kl"] is None else {"kl": body["kl"]})


def _step(row: Sequence[Any]) -> dict[str, Any]:
    """A step as JSON, from its columns."""
    return dict(zip(StepReport.model_fields, row, strict=True))


def _line(row: Sequence[Any]) -> dict[str, Any]:
    """A line of the history, from a row of `_HISTORY`."""
    attempt, step, pass_index, step_event, heldout_event, evaluation_body, items, *columns = row
    line = _step(columns)
    if step_event is None:
        line |= {"attempt": attempt, "step": step, "kl_kind": KlKind.ABSENT.value}
    else:
        line["step_event"] = step_event
    if evaluation_body is not None:
        evaluation = json.loads(evaluation_body)
        line |= {"heldout": evaluation["score"], "heldout_event": heldout_event}
        known = evaluation | (evaluation["sampling"] or {})
        if (samples := known.get("samples", 1)) != 1:
            line["samples_per_item"] = samples
        line |= {column: known[name] for name, column in TOLD.items() if known.get(name) is not None}
        line |= json.loads(items or "{}")
    if pass_index:
        line["pass_index"] = pass_index
    return line
