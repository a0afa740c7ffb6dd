"""What is in a guard's store, for people and for a support bundle; also while the guard runs.

The guard holds its file alone, so a copy is read, and it is one moment of the store: a copy during which the
guard wrote is made again. Nothing per item is read, and nothing is written beside the store.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from guard_core.wire import Verdict
from guard_service.engine import restored_judge
from guard_service.errors import StoreError
from guard_service.store import FILE_NAME, open_ended, stored_policy

COPY_TRIES = 50
PAUSE_SECONDS = 0.1
LAST_ROUNDS = 20
KINDS = ("step", "checkpoint", "refused", "evaluation", "failure", "fire", "halt")
_WAL_HEADER = 32  # bytes; it changes when the log begins anew
_DB_HEADER = 100

_COUNTS = "SELECT kind, COUNT(*) FROM events GROUP BY kind"
_ATTEMPTS = """
SELECT attempt, COUNT(*), MIN(step), MAX(step) FROM events
WHERE kind = 'step' GROUP BY attempt ORDER BY attempt
"""
_EVALUATIONS = """
SELECT attempt, step, pass, body ->> 'score' FROM events WHERE kind = 'evaluation' ORDER BY seq DESC LIMIT ?
"""


def summarize_store(state_dir: Path) -> dict[str, Any]:
    """What the store in `state_dir` holds, without anything per item; plain values.

    Raises:
        StoreError: there is no store, it cannot be read, or the guard wrote all the time.
    """
    with copied(state_dir) as copy:
        policy = stored_policy(copy)
        with closing(open_ended(copy / FILE_NAME)) as db:
            counts = dict(db.execute(_COUNTS).fetchall())
            attempts = [
                {"attempt": attempt, "steps": steps, "first": first, "last": last}
                for attempt, steps, first, last in db.execute(_ATTEMPTS)
            ]
            rounds = [
                {"attempt": attempt, "step": step, "pass": number, "score": score}
                for attempt, step, number, score in db.execute(_EVALUATIONS, (LAST_ROUNDS,))
            ]
            split = db.execute("SELECT value FROM meta WHERE key = 'split_digest'").fetchone()
        verdict: Verdict = restored_judge(copy, policy).verdict()
    return {
        "store": str(state_dir / FILE_NAME),
        "split_sha256": None if split is None else split[0],
        "policy": policy.model_dump(mode="json"),
        "events": {kind: counts.get(kind, 0) for kind in KINDS},
        "attempts": attempts,
        "last_evaluations": rounds,
        "verdict": json.loads(verdict.model_dump_json()),
    }


@contextmanager
def copied(state_dir: Path) -> Iterator[Path]:
    """A directory with one moment of the store, for this user only; it is removed.

    Raises:
        StoreError: there is no store, or no quiet moment was found.
    """
    source = state_dir / FILE_NAME
    if not source.is_file():
        raise StoreError(f"{source} does not exist: no guard has run with this state_dir")
    with tempfile.TemporaryDirectory(prefix="rlguard-inspect-") as folder:
        for _ in range(COPY_TRIES):
            if _copy(source, Path(folder)):
                with _named_as(state_dir, Path(folder)):
                    yield Path(folder)
                return
            time.sleep(PAUSE_SECONDS)
    raise StoreError(f"{source} changed whenever it was copied: try again when the guard has less to do")


@contextmanager
def _named_as(state_dir: Path, copy: Path) -> Iterator[None]:
    """What is wrong with the copy is said of the store; the copy will be gone."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{state_dir / FILE_NAME} cannot be read: {error}") from error
    except StoreError as error:
        raise StoreError(str(error).replace(str(copy), str(state_dir))) from error


def _copy(source: Path, folder: Path) -> bool:
    """Copy the files of a store; whether they belong together."""
    try:
        before = _state(source)
        for old in folder.iterdir():
            old.unlink()
        shutil.copyfile(source, folder / source.name)
        log = source.with_name(f"{source.name}-wal")
        if log.exists():
            shutil.copyfile(log, folder / log.name)
        return before is not None and before == _state(source)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{source} cannot be read: {error.strerror or error}") from error


def _state(source: Path) -> tuple[Any, ...] | None:
    """What changes when the database file itself does, or when its log begins anew; None while it does.

    A log that only grows is no change: what was appended after the copy is a later moment, and a half-written
    end of it is passed over by SQLite.
    """
    if source.with_name(f"{source.name}-journal").exists():
        return None
    log = source.with_name(f"{source.name}-wal")
    about = source.stat()
    return (
        about.st_mtime_ns,
        about.st_size,
        _head(source, _DB_HEADER),
        _head(log, _WAL_HEADER) if log.exists() else None,
    )


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)
