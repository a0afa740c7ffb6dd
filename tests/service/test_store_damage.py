"""The rules by which a damaged store is noticed, each by itself; what becomes of a latch."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from guard_core.judge import Latch
from guard_core.wire import CheckpointReport, StepReport
from guard_service.errors import StoreCorruptError, StoreError
from guard_service.store import Store
from guard_service.store.witness import LATCH_NAME, read_latches
from tests.service.filled_store import FIRE, POLICY, fill


def test_the_last_transaction_is_missed_too(tmp_path: Path) -> None:
    """SQLite takes a damaged last frame for a write that was never finished."""
    store = fill(tmp_path / "live", fire=False)
    shutil.copytree(tmp_path / "live", tmp_path / "rest")
    store.close()
    with (tmp_path / "rest" / "guard.db-wal").open("r+b") as log:
        log.seek(-100, os.SEEK_END)
        byte = log.read(1)
        log.seek(-100, os.SEEK_END)
        log.write(bytes([byte[0] ^ 1]))
    with pytest.raises(StoreCorruptError, match="has 42 events, but 46 were acknowledged"):
        Store(tmp_path / "rest", POLICY)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outcomes SET items = replace(items, '0.75', '0.76')",
        "UPDATE events SET body = replace(body, '0.504', '0.514') WHERE step = 4",
        "UPDATE events SET step = 400 WHERE step = 4 AND kind = 'step'",
        "DELETE FROM events WHERE step = 4 AND kind = 'step'",
        "UPDATE meta SET value = replace(value, 'd', 'e') WHERE key = 'split_digest'",
        "DELETE FROM meta WHERE key = 'measure'",
        "UPDATE snapshot SET state = replace(state, '0.5', '0.4')",
        "UPDATE head SET digest = replace(digest, '0', '1') || '1'",
    ],
)
def test_a_row_that_is_not_as_it_was_written_is_refused(tmp_path: Path, statement: str) -> None:
    """SQLite itself finds nothing wrong with any of these."""
    store = fill(tmp_path, fire=False)
    store.save_snapshot(46, {"reward": 0.5})
    store.close()
    Store(tmp_path, POLICY).close()
    with closing(sqlite3.connect(tmp_path / "guard.db", isolation_level=None)) as db:
        guards = db.execute("SELECT name, sql FROM sqlite_schema WHERE name LIKE 'events_are_%'").fetchall()
        for name, _ in guards:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
        for _, sql in guards:
            db.execute(sql)
    with pytest.raises(StoreCorruptError, match="is damaged"):
        Store(tmp_path, POLICY)


# -- the two files beside it ---------------------------------------------------------------------------------


def test_a_latch_is_kept_beside_the_store_before_it_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, POLICY)

    def fail(*_: Any) -> int:
        raise sqlite3.OperationalError("disk full")

    monkeypatch.setattr(store, "_insert", fail)
    with pytest.raises(StoreError, match="disk full"):
        store.append_latches([FIRE])
    store.close()
    assert read_latches(tmp_path) == (FIRE,)
    store = Store(tmp_path, POLICY)
    assert [event for _, event in store.events(0)] == [FIRE]
    store.close()


def test_a_latch_is_flushed_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, flushed = Store(tmp_path, POLICY), []
    real = os.fsync

    def fsync(file: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    store.append_latches([FIRE])
    assert flushed == [str(tmp_path / f"{LATCH_NAME}.new"), str(tmp_path)]
    store.close()


def test_a_store_with_a_latch_makes_the_file_anew(tmp_path: Path) -> None:
    for broken in (b"", b"nonsense", None):
        directory = tmp_path / str(broken)
        fill(directory, fire=True).close()
        path = directory / LATCH_NAME
        path.unlink() if broken is None else path.write_bytes(broken)
        Store(directory, POLICY).close()
        assert read_latches(directory) == (FIRE,)


def test_a_damaged_latch_that_the_store_does_not_have_is_no_open_latch(tmp_path: Path) -> None:
    fill(tmp_path, fire=False).close()
    (tmp_path / LATCH_NAME).write_bytes(b"[{")
    with pytest.raises(StoreCorruptError, match=r"guard\.latch is damaged .*: restore it, or"):
        Store(tmp_path, POLICY)


def test_a_halt_and_a_fire_are_both_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, POLICY)
    halt = Latch(False, "silent", "no step for an hour", 0, 3)
    store.append_latches([halt])
    store.append_latches([FIRE])
    store.close()
    assert set(read_latches(tmp_path)) == {halt, FIRE}


def full_of_names(directory: Path, announcements: int, size: int = 300_000) -> Store:
    """A store with so many announcements of checkpoints, of which each has many files; left open."""
    store = fill(directory, fire=True)
    for number in range(announcements):
        names = f"{number:08}" * (size // 8)
        store.append_checkpoint(CheckpointReport(attempt=1, step=number, path="/c"), names)
        store.append_steps([[StepReport(attempt=1, step=number, reward=0.5)]])
    return store


def test_a_store_is_verified_in_little_memory(tmp_path: Path) -> None:
    """Five thousand of its events at once were 1.6 GB, and three copies of it."""
    full_of_names(tmp_path, 100).close()
    tracemalloc.start()
    try:
        Store(tmp_path, POLICY).close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20 < (tmp_path / "guard.db").stat().st_size
