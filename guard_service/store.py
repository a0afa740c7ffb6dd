"""The guard's store: an append-only SQLite log of everything that was reported, evaluated and decided.

What `append_*` returned is on disk: a transaction is flushed (`synchronous=EXTRA`) before it counts. A
file system that is known to be local gets a write-ahead log, which takes one flush a transaction; any other
gets the rollback journal, which takes three, because WAL does not work on network file systems, where a
run's state often lives. The file is locked while it is open, so two guards never share one.

Schema 1, `application_id` "RLGD", version in `user_version`:

    meta       policy and split digest of the run: a changed one is another run and is refused
    events     every event in the order in which it was folded; triggers refuse UPDATE and DELETE. `pass` is
               above 0 for the further evaluations of one checkpoint
    outcomes   per-item outcomes of an evaluation. They stay here and in `export_history` (invariant 8)
    snapshot   the judge's state after event `seq`, so that a restart replays only the tail

A `Store` is used from one thread at a time and knows neither the network nor the judge.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import TypeAdapter, ValidationError

from guard_core.judge import Evaluation, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, KlKind, StepReport
from guard_service.errors import ChangedRunError, FieldError, StoreCorruptError, StoreError

FILE_NAME = "guard.db"
APPLICATION_ID = int.from_bytes(b"RLGD", "big")
SCHEMA_VERSION = 1
BUSY_SECONDS = 2.0
LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
)
PAGE = 2_000  # rows of one read; ingest waits no longer than one page takes

_SCHEMA = f"""
BEGIN EXCLUSIVE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    pass INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL CHECK (kind IN ('step', 'checkpoint', 'evaluation', 'failure', 'fire', 'stop')),
    body TEXT NOT NULL,
    UNIQUE (attempt, step, pass, kind)
) STRICT;
CREATE INDEX rare_events ON events (kind, seq) WHERE kind <> 'step';
CREATE TRIGGER events_are_not_updated BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE outcomes (seq INTEGER PRIMARY KEY REFERENCES events (seq), items TEXT NOT NULL) STRICT;
CREATE TABLE snapshot (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, state TEXT NOT NULL
) STRICT;
COMMIT;
"""

# SQLite splits the list itself: one statement per group, outside the interpreter lock. Only integers and the
# verbatim text of an element pass through SQLite's JSON, so that floats keep every bit.
_INSERT_STEPS = """
INSERT INTO events (attempt, step, kind, body)
SELECT value ->> 'attempt', value ->> 'step', 'step', value FROM json_each(?)
"""
_INSERT = "INSERT INTO events (attempt, step, pass, kind, body) VALUES (?, ?, ?, ?, ?)"

_HISTORY = """
WITH keys AS (
    SELECT attempt, step, pass FROM events
    WHERE (attempt, step, pass) > (?, ?, ?) AND kind IN ('step', 'evaluation')
    GROUP BY attempt, step, pass ORDER BY attempt, step, pass LIMIT ?
)
SELECT k.attempt, k.step, k.pass, s.body, e.body, o.items FROM keys k
LEFT JOIN events s ON (s.attempt, s.step, s.pass, s.kind) = (k.attempt, k.step, k.pass, 'step')
LEFT JOIN events e ON (e.attempt, e.step, e.pass, e.kind) = (k.attempt, k.step, k.pass, 'evaluation')
LEFT JOIN outcomes o ON o.seq = e.seq
ORDER BY k.attempt, k.step, k.pass
"""

# Evenly spaced ranks 0 … n-1, both ends included: rank r is kept where r·(N-1) div (n-1) grows.
_THINNED = """
WITH ranked AS (
    SELECT seq, ROW_NUMBER() OVER (ORDER BY attempt, step) - 1 AS r FROM events WHERE kind = 'step'
)
SELECT body FROM ranked JOIN events USING (seq)
WHERE r = 0 OR r * (:points - 1) / (:total - 1) > (r - 1) * (:points - 1) / (:total - 1)
ORDER BY r
"""

_WINDOW = """
SELECT body ->> 'reward', body ->> 'kl', body ->> 'kl_kind' FROM events
WHERE attempt = ? AND step > ? AND step <= ? AND kind = 'step'
"""

_STEPS = TypeAdapter(list[StepReport])

Key = tuple[int, int]  # attempt, step
LineKey = tuple[int, int, int]  # attempt, step, pass
BEFORE_ALL: LineKey = (-1, -1, -1)


@dataclass(frozen=True, slots=True)
class Appended:
    """A list of steps that is on disk. `new`: the ones to fold, in order."""

    new: tuple[StepReport, ...]
    duplicates: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A report that contradicts one on disk. Nothing of the request was kept."""

    detail: str
    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What the judge made of an evaluation; stored with it, so that history can show it."""

    rounds: int
    in_loop_ema: float | None
    heldout_ema: float | None
    proxy_real_gap: float | None
    kl_ema: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An evaluation that gave no outcome."""

    attempt: int
    step: int
    pass_index: int
    message: str


Event = StepReport | CheckpointReport | Evaluation | Failure | Latch
"""One stored event, for a replay."""


class Store:
    """An open store. Any method may raise `StoreError`; after that, close it and open it again."""

    def __init__(self, state_dir: Path, policy: Policy) -> None:
        """Open the store of a run, making it if there is none, and lock it.

        Raises:
            StoreError: the file cannot be opened or written, or is locked by another process.
            StoreCorruptError: it is not a store of this program, or SQLite finds it damaged.
            ChangedRunError: it was written under another policy.
        """
        self.path = state_dir / FILE_NAME
        with _errors(self.path, "opened"):
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self.path.exists():
                _create(self.path)
            self._db = _connect(self.path)
            try:
                opened = self.path.stat()
                self._file = (opened.st_dev, opened.st_ino)
                _check_identity(self._db, self.path)
                if (found := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise StoreCorruptError(
                        f"{self.path} is damaged ({found}): restore it, or start a new run"
                    )
                self._check_policy(policy)
                # A store that can only be read must not count as one that works.
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('opened', 'for writing')")
                # Highest step on disk of each attempt: a step beyond it is new without looking it up.
                self._newest: dict[int, int] = dict(
                    self._db.execute(
                        "SELECT attempt, MAX(step) FROM events WHERE kind = 'step' GROUP BY attempt"
                    )
                )
            except BaseException:
                self._db.close()
                raise

    def _check_policy(self, policy: Policy) -> None:
        known = self._meta("policy", policy.model_dump_json())
        try:
            unchanged = Policy.model_validate_json(known) == policy
        except ValidationError:  # written by a release with other thresholds
            unchanged = False
        if not unchanged:
            changes = _differences(json.loads(known), policy.model_dump(mode="json"), "")
            raise ChangedRunError(
                f"the policy is not the one that {self.path} was written under ({', '.join(changes)}): a "
                "changed policy is a new run; restore the policy, or give another state_dir"
            )

    def check_split(self, digest: str) -> None:
        """Remember the digest of the held-out split, or compare it with the remembered one.

        Raises:
            ChangedRunError: the run began with another split.
        """
        with _errors(self.path, "written"):
            if self._meta("split_digest", digest) != digest:
                raise ChangedRunError(
                    f"the held-out split is not the one that {self.path} was written under: its scores "
                    "cannot be compared with the earlier ones; restore it, or give another state_dir"
                )

    def _meta(self, key: str, value: str) -> str:
        """The value on disk of `key`; `value` is written there if it had none."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            self._db.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        return value if row is None else str(row[0])

    def close(self) -> None:
        """Close the file. Nothing is flushed here: what was acknowledged is on disk already."""
        self._db.close()

    # -- writing -------------------------------------------------------------------------------------------

    def append_steps(self, batches: Sequence[Sequence[StepReport]]) -> list[Appended | Conflict]:
        """Store several requests in one transaction, so that one flush serves them all.

        A request is kept whole or not at all: one item that contradicts what is on disk, an earlier request
        or another item of its own refuses it all. Identical items are counted and not stored again.
        """
        fresh: dict[Key, StepReport] = {}
        with self._transaction():
            results = [self._sort_out(reports, fresh) for reports in batches]
            if fresh:
                self._db.execute(_INSERT_STEPS, (_STEPS.dump_json(list(fresh.values())).decode(),))
        for attempt, step in fresh:
            if step > self._newest.get(attempt, -1):
                self._newest[attempt] = step
        return results

    def _sort_out(self, reports: Sequence[StepReport], fresh: dict[Key, StepReport]) -> Appended | Conflict:
        """Tell new from repeated items; the new ones join `fresh` only if none contradicts."""
        mine: dict[Key, StepReport] = {}
        duplicates = 0
        for index, report in enumerate(reports):
            key = (report.attempt, report.step)
            known = mine.get(key) or fresh.get(key)
            if known is None and report.step <= self._newest.get(report.attempt, -1):
                known = self._step(key)
            if known is None:
                mine[key] = report
            elif known == report:
                duplicates += 1
            else:
                return _conflict(known, report, f"{index}." if len(reports) > 1 else "")
        fresh |= mine
        return Appended(tuple(mine.values()), duplicates)

    def _step(self, key: Key) -> StepReport | None:
        row = self._db.execute(
            "SELECT body FROM events WHERE (attempt, step, pass, kind) = (?, ?, 0, 'step')", key
        ).fetchone()
        return None if row is None else StepReport.model_validate_json(row[0])

    def is_known_checkpoint(self, report: CheckpointReport) -> bool | Conflict:
        """Whether this checkpoint was announced before, or contradicts the one that was."""
        with _errors(self.path, "read"):
            row = self._db.execute(
                "SELECT body FROM events WHERE (attempt, step, pass, kind) = (?, ?, 0, 'checkpoint')",
                (report.attempt, report.step),
            ).fetchone()
            if row is None:
                return False
            known = CheckpointReport.model_validate_json(row[0])
        return True if known == report else _conflict(known, report, "")

    def append_checkpoint(self, report: CheckpointReport) -> None:
        """Store the announcement of a checkpoint that is not known yet."""
        with self._transaction():
            self._insert("checkpoint", report.attempt, report.step, 0, report.model_dump_json())

    def append_evaluation(self, evaluation: Evaluation, round_: Round, latches: Sequence[Latch]) -> None:
        """Store an evaluation, its items, and the latches that it closes, in one transaction."""
        body = evaluation.summary().model_dump(mode="json") | asdict(round_)
        with self._transaction():
            seq = self._insert(
                "evaluation", evaluation.attempt, evaluation.step, evaluation.pass_index, json.dumps(body)
            )
            self._db.execute("INSERT INTO outcomes VALUES (?, ?)", (seq, json.dumps(evaluation.items)))
            self._insert_latches(latches)

    def append_failure(self, failure: Failure, latches: Sequence[Latch]) -> None:
        """Store that an evaluation gave no outcome, and the latches that this closes."""
        body = json.dumps({"message": failure.message})
        with self._transaction():
            self._insert("failure", failure.attempt, failure.step, failure.pass_index, body)
            self._insert_latches(latches)

    def append_latches(self, latches: Sequence[Latch]) -> None:
        """Store latches that closed."""
        with self._transaction():
            self._insert_latches(latches)

    def save_snapshot(self, seq: int, state: dict[str, Any]) -> None:
        """Store the judge's state after event `seq`."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", (seq, json.dumps(state)))

    def _insert_latches(self, latches: Sequence[Latch]) -> None:
        for latch in latches:
            kind = "fire" if latch.fire else "stop"
            self._insert(kind, latch.attempt, latch.step, 0, json.dumps(asdict(latch)))

    def _insert(self, kind: str, attempt: int, step: int, pass_index: int, body: str) -> int:
        seq = self._db.execute(_INSERT, (attempt, step, pass_index, kind, body)).lastrowid
        assert seq is not None
        return seq

    # -- reading -------------------------------------------------------------------------------------------

    def last_seq(self) -> int:
        """Number of the newest event, 0 if there is none."""
        with _errors(self.path, "read"):
            return int(self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()[0])

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """The newest snapshot: after which event, and the judge's state."""
        with _errors(self.path, "read"):
            row = self._db.execute("SELECT seq, state FROM snapshot").fetchone()
            return None if row is None else (row[0], json.loads(row[1]))

    def events(self, after: int) -> Iterator[tuple[int, Event]]:
        """The events with a number above `after`, in order."""
        with _errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT seq, kind, attempt, step, pass, body, items "
                "FROM events LEFT JOIN outcomes USING (seq) "
                "WHERE seq > ? ORDER BY seq",
                (after,),
            )
            for seq, kind, *event in rows:
                yield seq, _event(kind, *event)

    def pending_checkpoints(self) -> list[CheckpointReport]:
        """Checkpoints that were announced and neither evaluated nor given up, in order."""
        with _errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT body FROM events c WHERE kind = 'checkpoint' AND kind <> 'step' AND NOT EXISTS ("
                "SELECT 1 FROM events e WHERE (e.attempt, e.step, e.pass) = (c.attempt, c.step, 0) "
                "AND e.kind IN ('evaluation', 'failure')) ORDER BY seq"
            )
            return [CheckpointReport.model_validate_json(body) for (body,) in rows]

    def recent_rounds(self, count: int) -> list[dict[str, Any]]:
        """The last `count` evaluation rounds, oldest first: attempt, step, reward, heldout and, if known, kl.

        `reward` is the mean in-loop reward and `kl` the median KL to the reference, nats/token, of the steps
        after the evaluation before, as `Judge.fold_evaluation` takes them. An evaluation without any step in
        that window was no round.
        """
        with _errors(self.path, "read"):
            evaluations = self._db.execute(
                "SELECT attempt, step, body ->> 'score' FROM events WHERE kind = 'evaluation' AND pass = 0 "
                "ORDER BY seq DESC LIMIT ?",
                (count + 1,),
            ).fetchall()[::-1]
            before = (None, -1) if len(evaluations) <= count else evaluations.pop(0)[:2]
            rounds = []
            for attempt, step, score in evaluations:
                after = before[1] if before[0] == attempt else -1
                window = self._db.execute(_WINDOW, (attempt, after, step)).fetchall()
                if window:
                    kls = [kl for _, kl, kind in window if kl is not None and kind == KlKind.REF_TOKEN_MEAN]
                    one = {"attempt": attempt, "step": step, "heldout": score}
                    one["reward"] = fmean(reward for reward, _, _ in window)
                    rounds.append(one | ({"kl": median(kls)} if kls else {}))
                before = (attempt, step)
        return rounds

    def is_settled(self, attempt: int, step: int, pass_index: int) -> bool:
        """Whether this evaluation or its failure is on disk."""
        with _errors(self.path, "read"):
            row = self._db.execute(
                "SELECT 1 FROM events WHERE (attempt, step, pass) = (?, ?, ?) "
                "AND kind IN ('evaluation', 'failure')",
                (attempt, step, pass_index),
            ).fetchone()
            return row is not None

    def latch_kinds(self) -> set[bool]:
        """Which latches are on disk: True for the fire, False for the stop."""
        with _errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT kind FROM events WHERE kind IN ('fire', 'stop') AND kind <> 'step'"
            )
            return {kind == "fire" for (kind,) in rows}

    def history_page(self, after: LineKey) -> list[tuple[LineKey, dict[str, Any]]]:
        """The next lines of the history after `after`, with per-item outcomes; see `export_history`."""
        with _errors(self.path, "read"):
            return _history_page(self._db, after)

    def thinned_history(self, points: int) -> dict[str, Any]:
        """At most `points` steps, evenly spread, first and last kept; every evaluation; the step count."""
        with _errors(self.path, "read"):
            total = self._db.execute("SELECT COUNT(*) FROM events WHERE kind = 'step'").fetchone()[0]
            if total <= points:
                rows = self._db.execute("SELECT body FROM events WHERE kind = 'step' ORDER BY attempt, step")
            else:
                rows = self._db.execute(_THINNED, {"points": points, "total": total})
            return {
                "steps": [json.loads(body) for (body,) in rows],
                "evaluations": [
                    json.loads(body)
                    for (body,) in self._db.execute(
                        "SELECT body FROM events WHERE kind = 'evaluation' AND kind <> 'step' AND pass = 0 "
                        "ORDER BY seq"
                    )
                ],
                "total_steps": total,
            }

    # -- errors --------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; on disk when it ends."""
        with _errors(self.path, "written"):
            now = self.path.stat()
            if (now.st_dev, now.st_ino) != self._file:  # SQLite would go on writing to a file without a name
                raise StoreCorruptError(f"{self.path} was replaced while it was open: restore it")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


@contextmanager
def _errors(path: Path, verb: str) -> Iterator[None]:
    """Turn what SQLite, the file system and a reader of stored JSON raise into `StoreError`."""
    try:
        yield
    except sqlite3.Error as error:
        reason = str(error)
        if "malformed" in reason or "not a database" in reason:
            raise StoreCorruptError(
                f"{path} is damaged ({reason}): restore it, or start a new run"
            ) from error
        if "locked" in reason:
            reason = "another process, perhaps a second guard, holds it"
        raise StoreError(f"{path} cannot be {verb}: {reason}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be {verb}: {error.strerror or error}") from error
    except (ValidationError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreCorruptError(
            f"{path} holds an event that cannot be read: restore it, or start a new run"
        ) from error


def export_history(state_dir: Path) -> Iterator[dict[str, Any]]:
    """The history WITH per-item outcomes, for local reports and replay; in the order of (attempt, step).

    One dictionary a line: a step (`attempt, step, reward, kl, kl_kind, entropy, reward_std`) which, if its
    checkpoint was evaluated, also has `heldout` (mean score) and `items` (outcome of each held-out item, in
    the split's order). An evaluation whose step reported no reward has a line of its own, with `reward` null;
    so has each further evaluation of one checkpoint, with its number in `pass_index`.
    No guard may be running on this directory.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(_open_ended(path)) as db:
        after = BEFORE_ALL
        while True:
            with _errors(path, "read"):
                page = _history_page(db, after)
            if not page:
                return
            after = page[-1][0]
            yield from (line for _, line in page)


def stored_policy(state_dir: Path) -> Policy:
    """The policy that the run in `state_dir` was judged by. No guard may be running on this directory.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(_open_ended(path)) as db, _errors(path, "read"):
        row = db.execute("SELECT value FROM meta WHERE key = 'policy'").fetchone()
    if row is None:
        raise StoreError(f"{path} has no policy: no guard has finished its start with this state_dir")
    return Policy.model_validate_json(row[0])


def _open_ended(path: Path) -> sqlite3.Connection:
    """The store of a guard that has ended, for reading."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist: no guard has run with this state_dir")
    with _errors(path, "read"):
        db = _connect(path)
        try:
            _check_identity(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _history_page(db: sqlite3.Connection, after: LineKey) -> list[tuple[LineKey, dict[str, Any]]]:
    rows = db.execute(_HISTORY, (*after, PAGE))
    return [
        ((attempt, step, number), _line(attempt, step, number, *row)) for attempt, step, number, *row in rows
    ]


def _create(path: Path) -> None:
    """Make an empty store under its name in one step, so that an empty file is never taken for a new run."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    db = _connect(draft)
    try:
        db.executescript(_SCHEMA)
    finally:
        db.close()
    draft.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing database file, with the settings that durability rests on."""
    if path.stat().st_size == 0 and path.suffix == ".db":
        raise StoreCorruptError(f"{path} is empty: its content was lost; restore it, or start a new run")
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        # Exclusive before the first access: then a write-ahead log needs no memory shared between processes.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute(f"PRAGMA journal_mode = {journal_mode(path.parent)}")
        db.execute("PRAGMA synchronous = EXTRA")
        db.execute("BEGIN EXCLUSIVE")  # takes the lock, which is kept from here on
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def journal_mode(directory: Path) -> str:
    """WAL on a file system that is known to be local, else DELETE (the rollback journal)."""
    best, kind = -1, ""
    with suppress(OSError, ValueError):
        directory = directory.resolve()
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            fields, _, tail = line.partition(" - ")
            mount = Path(fields.split()[4].encode("latin-1", "replace").decode("unicode_escape"))
            # The last of equals: a later mount hides an earlier one.
            if directory.is_relative_to(mount) and len(mount.parts) >= best:
                best, kind = len(mount.parts), tail.split()[0]
    return "WAL" if kind in LOCAL_FILE_SYSTEMS else "DELETE"


def _check_identity(db: sqlite3.Connection, path: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreCorruptError(f"{path} is a database of another program: use another state_dir")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise StoreCorruptError(
            f"{path} has schema {version}; this program reads {SCHEMA_VERSION}: use the release that wrote "
            "it, or another state_dir"
        )


def _event(kind: str, attempt: int, step: int, pass_index: int, body: str, items: str | None) -> Event:
    match kind:
        case "step":
            return StepReport.model_validate_json(body)
        case "checkpoint":
            return CheckpointReport.model_validate_json(body)
        case "evaluation":
            content = json.loads(body)
            outcomes = tuple(json.loads(items or ""))
            return Evaluation(attempt, step, content["path"], outcomes, content["sha256"], pass_index)
        case "failure":
            return Failure(attempt, step, pass_index, json.loads(body)["message"])
        case _:
            return Latch(**json.loads(body))


def _line(
    attempt: int,
    step: int,
    pass_index: int,
    step_body: str | None,
    evaluation_body: str | None,
    items: str | None,
) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(StepReport.model_fields)
    line |= {"attempt": attempt, "step": step, "kl_kind": "absent"}
    if step_body is not None:
        line |= json.loads(step_body)
    if evaluation_body is not None:
        line["heldout"] = json.loads(evaluation_body)["score"]
        line["items"] = json.loads(items or "")
    if pass_index:
        line["pass_index"] = pass_index
    return line


def _conflict(
    known: StepReport | CheckpointReport, given: StepReport | CheckpointReport, prefix: str
) -> Conflict:
    differing = [name for name in type(known).model_fields if getattr(known, name) != getattr(given, name)]
    what = "step" if isinstance(known, StepReport) else "checkpoint"
    errors = tuple(
        FieldError(
            field=prefix + name, message=f"{getattr(given, name)!r}, but on disk {getattr(known, name)!r}"
        )
        for name in differing
    )
    return Conflict(
        f"attempt {known.attempt}, {what} {known.step} was reported before with another "
        f"{', '.join(differing)}; nothing of this request was kept. A restarted trainer needs a new attempt",
        errors,
    )


def _differences(before: Any, after: Any, prefix: str) -> Iterator[str]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield f"{prefix}: was {before!r}, now {after!r}"
        return
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield from _differences(before.get(key), after.get(key), f"{prefix}.{key}" if prefix else key)
