"""The rules by which a damaged log is noticed, each by itself; what becomes of a latch."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from guard_core.wire import CheckpointReport
from guard_service.errors import StoreCorruptError
from guard_service.event_log import EventLog
from guard_service.events import Note, NoteKind
from tests.service.filled_store import FIRE, POLICY, content, fill, steps


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM events WHERE step = 4 AND kind = 'step'", "events, and the newest is number"),
        ("DELETE FROM events WHERE seq = 2", "events, and the newest is number"),
    ],
)
def test_rows_that_no_guard_wrote_are_refused(tmp_path: Path, statement: str, reason: str) -> None:
    fill(tmp_path, fire=True).close()
    change(tmp_path, statement)
    with pytest.raises(StoreCorruptError, match=f"is damaged .*{reason}"):
        EventLog(tmp_path, POLICY)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = replace(body, 'kl_hard_stop', 'kl_lard_stop') WHERE kind = 'fire'",
        "UPDATE events SET kind = 'gire' WHERE kind = 'fire'",
        "UPDATE events SET body = NULL WHERE kind = 'fire'",
        "UPDATE events SET body = replace(body, 'code', 'kode') WHERE kind = 'fire'",
        "UPDATE events SET body = substr(body, 2) WHERE kind = 'fire'",
        "UPDATE events SET items = substr(items, 2) WHERE kind = 'evaluation'",
        "UPDATE events SET kl_kind = 'ref_token_mean', kl = -1.0 WHERE kind = 'step'",
    ],
)
def test_an_event_that_cannot_be_folded_is_refused(tmp_path: Path, statement: str) -> None:
    fill(tmp_path, fire=True).close()
    change(tmp_path, statement)
    with pytest.raises(StoreCorruptError, match="restore it, or start a new run"):
        content(tmp_path)


def change(directory: Path, statement: str) -> None:
    """Change a closed log as no guard does."""
    with closing(sqlite3.connect(directory / "guard.db", isolation_level=None)) as db:
        guards = db.execute("SELECT name, sql FROM sqlite_schema WHERE name LIKE 'events_are_%'").fetchall()
        for name, _ in guards:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
        for _, sql in guards:
            db.execute(sql)


def test_a_write_ahead_log_whose_database_is_gone_is_no_new_run(tmp_path: Path) -> None:
    log = fill(tmp_path / "live", fire=False)
    shutil.copytree(tmp_path / "live", tmp_path / "rest")
    log.close()
    (tmp_path / "rest" / "guard.db").unlink()
    with pytest.raises(StoreCorruptError, match="is gone, and its write-ahead log is not"):
        EventLog(tmp_path / "rest", POLICY)


def test_a_fire_does_not_depend_on_the_write_ahead_log(tmp_path: Path) -> None:
    """SQLite takes a damaged one for one that ends earlier, and says nothing."""
    log = fill(tmp_path / "live", fire=True)
    log.append(steps(44, 48))
    shutil.copytree(tmp_path / "live", tmp_path / "rest")
    log.close()
    os.truncate(tmp_path / "rest" / "guard.db-wal", 0)
    found = content(tmp_path / "rest")
    assert found.verdict.fire and FIRE in found.events


def test_a_log_is_checked_in_little_memory(tmp_path: Path) -> None:
    """An announcement of a checkpoint has up to 330 KB."""
    log = fill(tmp_path, fire=True)
    for number in range(100):
        report = CheckpointReport(attempt=1, step=number, path="/c")
        log.append([report, Note(NoteKind.MANIFEST, f"{number:08}" * 37_500)])
    log.close()
    tracemalloc.start()
    try:
        EventLog(tmp_path, POLICY).close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20 < (tmp_path / "guard.db").stat().st_size
