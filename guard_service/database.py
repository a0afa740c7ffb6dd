"""The file of a run's log: one SQLite database, opened, locked and checked.

What a transaction wrote is on disk when it ends: it is flushed before it counts (`synchronous=EXTRA`, which
is FULL, and flushes the directory of a rollback journal, too). A file system that is known to be local gets a
write-ahead log, which takes one flush a transaction; any other gets the rollback journal, which takes three,
because a write-ahead log does not work on network file systems, where a run's state often lives. The file is
locked while it is open, so two guards never share one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from guard_service.errors import StoreCorruptError, StoreError, damaged

FILE_NAME = "guard.db"
APPLICATION_ID = int.from_bytes(b"RLGD", "big")
SCHEMA_VERSION = 7
BUSY_SECONDS = 2.0
LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
)

#: `pass` is NULL where one key may have several rows. A step has the columns from `reward` on and no `body`.
#: `items` is the outcome of each held-out item, which never leaves the guard (invariant 8). What else a row
#: must be, the fold checks: constraints would take most of the time in which a long log is checked.
_SCHEMA = f"""
BEGIN EXCLUSIVE;
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    pass INTEGER,
    reward REAL, kl REAL, kl_kind TEXT, entropy REAL, reward_std REAL,
    body TEXT,
    items TEXT,
    UNIQUE (attempt, step, pass, kind)
) STRICT;
CREATE INDEX rare_events ON events (kind, seq) WHERE kind <> 'step';
CREATE TRIGGER events_are_not_updated BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


#: What SQLite, the file system and a reader of stored JSON raise.
READING_FAILS = (sqlite3.Error, OSError, ValueError, KeyError, TypeError)
#: Of what SQLite and its Python module say.
_SIGNS_OF_DAMAGE = ("malformed", "not a database", "decode to UTF-8")


def store_error(path: Path, verb: str, error: Exception) -> StoreError:
    """One of `READING_FAILS` as the error of a store, in one sentence."""
    reason = str(error)
    match error:
        case sqlite3.Error() if any(sign in reason for sign in _SIGNS_OF_DAMAGE):
            return damaged(path, reason)
        case sqlite3.Error() if "locked" in reason:
            reason = "another process, perhaps a second guard, holds it"
        case sqlite3.Error():
            pass
        case OSError():
            reason = error.strerror or reason
        case _:
            return StoreCorruptError(
                f"{path} holds an event that cannot be read: restore it, or start a new run"
            )
    return StoreError(f"{path} cannot be {verb}: {reason}")


@contextmanager
def errors(path: Path, verb: str) -> Iterator[None]:
    """Raise what fails here as `StoreError`."""
    try:
        yield
    except READING_FAILS as error:
        raise store_error(path, verb, error) from error


def open_log(path: Path) -> sqlite3.Connection:
    """Open the file of a run, making it if there is none, and lock it.

    Raises:
        StoreError: it cannot be opened or written, or is locked by another process.
        StoreCorruptError: it is not a log of this program, or it is damaged.
    """
    with errors(path, "opened"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _create(path)
        db = _connect(path)
        try:
            _verify(db, path)
            # A log that can only be read must not count as one that works.
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            db.close()
            raise
    return db


def open_ended(path: Path) -> sqlite3.Connection:
    """The log of a guard that has ended, for reading."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist: no guard has run with this state_dir")
    with errors(path, "read"):
        db = _connect(path)
        try:
            _verify(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _create(path: Path) -> None:
    """Make an empty log under its name in one step, so that an empty file is never taken for a new run."""
    if path.with_name(f"{path.name}-wal").exists():
        raise StoreCorruptError(f"{path} is gone, and its write-ahead log is not: restore it")
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    db = _connect(draft)
    try:
        db.executescript(_SCHEMA)
    finally:
        db.close()
    draft.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


def _verify(db: sqlite3.Connection, path: Path) -> None:
    """Check the whole file.

    Raises:
        StoreCorruptError: it is of another program or release, or damaged.
    """
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreCorruptError(f"{path} is a database of another program: use another state_dir")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise StoreCorruptError(
            f"{path} has schema {version}; this program reads {SCHEMA_VERSION}: use the release that "
            "wrote it, or another state_dir"
        )
    if (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise damaged(path, found)
    count, newest = db.execute("SELECT COUNT(*), COALESCE(MAX(seq), 0) FROM events").fetchone()
    if count != newest:
        raise damaged(path, f"it has {count} events, and the newest is number {newest}")
