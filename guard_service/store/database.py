"""The file of a run: one SQLite database, opened, locked, verified, and sealed by every transaction.

What a transaction wrote is on disk when it ends: it is flushed (`synchronous=EXTRA`) before it counts. A
file system that is known to be local gets a write-ahead log, which takes one flush a transaction; any other
gets the rollback journal, which takes three, because WAL does not work on network file systems, where a
run's state often lives. The file is locked while it is open, so two guards never share one.

What was damaged or lost since it was acknowledged is refused when the file is opened: by its chain, by
`guard.head`, and by SQLite's own check.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from guard_service.errors import StoreCorruptError, StoreError, damaged
from guard_service.store.chain import Chain, noted, still
from guard_service.store.witness import Head, HeadFile, read_head, sync_directory

FILE_NAME = "guard.db"
APPLICATION_ID = int.from_bytes(b"RLGD", "big")
SCHEMA_VERSION = 6
BUSY_SECONDS = 2.0
LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
)

UNSEALED = "unsealed"  # a store that no transaction has sealed yet

_SCHEMA = f"""
BEGIN EXCLUSIVE;
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    pass INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL CHECK (
        kind IN ('step', 'checkpoint', 'refused', 'evaluation', 'failure', 'fire', 'halt')
    ),
    body TEXT NOT NULL,
    UNIQUE (attempt, step, pass, kind)
) STRICT;
CREATE INDEX rare_events ON events (kind, seq) WHERE kind <> 'step';
CREATE TRIGGER events_are_not_updated BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE outcomes (
    seq INTEGER PRIMARY KEY REFERENCES events (seq), items TEXT NOT NULL, proxy_items TEXT
) STRICT;
CREATE TABLE snapshot (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, state TEXT NOT NULL
) STRICT;
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), digest TEXT NOT NULL) STRICT;
INSERT INTO head (digest) SELECT '{UNSEALED}';
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

# SQLite splits the list itself: one statement per group, outside the interpreter lock. Only integers and the


class Database:
    """The open file. Any method may raise `StoreError`; after that, close it and open it again."""

    def __init__(self, state_dir: Path) -> None:
        """Open the file of a run, making it if there is none, and lock it.

        Raises:
            StoreError: it cannot be opened or written, or is locked by another process.
            StoreCorruptError: it is not a store of this program, or SQLite finds it damaged.
        """
        self._state_dir = state_dir
        self.path = state_dir / FILE_NAME
        with errors(self.path, "opened"):
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            head = read_head(state_dir)
            if not self.path.exists():
                if head is not None and head.seq > 0:
                    raise lost(self.path, 0, head.seq)
                _create(self.path)
            with ExitStack() as opened:
                self.connection = opened.enter_context(closing(_connect(self.path)))
                about = self.path.stat()
                self._file = (about.st_dev, about.st_ino)
                self._chain, self._seal = _verified(self.connection, self.path, head)
                self._noted, self._still = noted(self.connection), still(self.connection)
                self._notes = False  # whether the transaction under way has written a row of `meta`
                head = Head(self._chain.seq, self._chain.digest)
                # Closed before the database, which holds the lock: what is flushed late may hit no other's.
                self._head = opened.enter_context(closing(HeadFile(state_dir, head)))
                self.size = self._measured()
                self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the files. Nothing is flushed here: what was acknowledged is on disk already."""
        self._opened.close()

    def _measured(self) -> int:
        """Bytes of the database; what the write-ahead log has twice, SQLite bounds to some MiB."""
        (pages,), (size,) = (
            self.connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
        return int(pages * size)

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[None]:
        """All or nothing; on disk when it ends. `snapshot`: it writes one."""
        with errors(self.path, "written"):
            now = self.path.stat()
            if (now.st_dev, now.st_ino) != self._file:  # SQLite would go on writing to a file without a name
                raise StoreCorruptError(f"{self.path} was replaced while it was open: restore it")
            self.connection.execute("BEGIN IMMEDIATE")
            self._notes = False
            try:
                yield
                chain = self._chain.grown(self.connection)
                noting = noted(self.connection) if self._notes else self._noted
                unchanging = still(self.connection) if snapshot else self._still
                seal = chain.sealed(noting, unchanging)
                if seal != self._seal:  # else nothing was written
                    self.connection.execute("UPDATE head SET digest = ?", (seal,))
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            if chain.seq != self._chain.seq:
                self._head.write(Head(chain.seq, chain.digest))
            self._chain, self._noted, self._still, self._seal = chain, noting, unchanging, seal
            self.size = self._measured()

    def set_meta(self, key: str, value: str) -> None:
        """Write a row of `meta`."""
        with self.transaction():
            self.put_meta(key, value)

    def put_meta(self, key: str, value: str) -> None:
        """The same in a transaction that has begun."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        self._notes = True

    def first_meta(self, key: str, value: str) -> str:
        """The value on disk of `key`; `value` is written there if it had none."""
        known = meta(self.connection, key)
        if known is None:
            self.set_meta(key, value)
        return value if known is None else known


def meta(db: sqlite3.Connection, key: str) -> str | None:
    """The value on disk of `key`, if it has one."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


#: Of what SQLite and its Python module say.
_SIGNS_OF_DAMAGE = ("malformed", "not a database", "decode to UTF-8")


@contextmanager
def errors(path: Path, verb: str) -> Iterator[None]:
    """Turn what SQLite, the file system and a reader of stored JSON raise into `StoreError`."""
    try:
        yield
    except sqlite3.Error as error:
        reason = str(error)
        if any(sign in reason for sign in _SIGNS_OF_DAMAGE):
            raise damaged(path, reason) from error
        if "locked" in reason:
            reason = "another process, perhaps a second guard, holds it"
        raise StoreError(f"{path} cannot be {verb}: {reason}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be {verb}: {error.strerror or error}") from error
    except (ValidationError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreCorruptError(
            f"{path} holds an event that cannot be read: restore it, or start a new run"
        ) from error


def open_ended(path: Path) -> sqlite3.Connection:
    """The store of a guard that has ended, for reading."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist: no guard has run with this state_dir")
    with errors(path, "read"):
        db = _connect(path)
        try:
            _verified(db, path, None)
        except BaseException:
            db.close()
            raise
    return db


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
    sync_directory(path.parent)


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


def _verified(db: sqlite3.Connection, path: Path, head: Head | None) -> tuple[Chain, str]:
    """Chain and seal of the whole store, once nothing speaks against it.

    Raises:
        StoreCorruptError: it is of another program or release, damaged, or not all that was acknowledged.
    """
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreCorruptError(f"{path} is a database of another program: use another state_dir")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise StoreCorruptError(
            f"{path} has schema {version}; this program reads {SCHEMA_VERSION}: use the release that "
            "wrote it, or another state_dir"
        )
    if (found := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise damaged(path, found)
    known = head or Head(0, Chain.empty().digest)
    chain = Chain.empty().grown(db, known.seq)
    if chain.seq < known.seq:
        raise lost(path, chain.seq, known.seq)
    if chain.digest != known.digest:
        raise damaged(path, "its events are not those that were acknowledged")
    chain = chain.grown(db)
    seal = chain.sealed(noted(db), still(db))
    written = db.execute("SELECT digest FROM head").fetchone()[0]
    if written == UNSEALED:
        db.execute("UPDATE head SET digest = ?", (seal,))
    elif written != seal:
        raise damaged(path, "its content is not what was written")
    return chain, seal


def lost(path: Path, found: int, acknowledged: int) -> StoreCorruptError:
    """A store that has less than was acknowledged."""
    return StoreCorruptError(
        f"{path} has {found} events, but {acknowledged} were acknowledged: it was replaced, cut or damaged; "
        "restore it, or start a new run with an empty state_dir"
    )
