"""The rules by which a damaged store is noticed, each by itself; what becomes of a latch; schema 5."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from guard_core.judge import Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, EndReport, StepReport
from guard_service.errors import ChangedRunError, StoreCorruptError, StoreError
from guard_service.store import SCHEMA_VERSION, Store, chain, database
from guard_service.store.database import APPLICATION_ID
from guard_service.store.witness import HEAD_NAME, LATCH_NAME, Head, read_head, read_latches
from tests.service.filled_store import FIRE, POLICY, content, fill, steps


@pytest.mark.parametrize("lost", ["guard.db-wal", "guard.db"])
def test_a_file_that_is_gone_is_noticed(tmp_path: Path, lost: str) -> None:
    store = fill(tmp_path / "live", fire=False)
    shutil.copytree(tmp_path / "live", tmp_path / "rest")
    store.close()
    (tmp_path / "rest" / lost).unlink()
    with pytest.raises(StoreCorruptError, match=r"guard\.db has \d+ events, but 46 were acknowledged"):
        Store(tmp_path / "rest", POLICY)
    assert (tmp_path / "rest" / "guard.db").exists() is (lost != "guard.db"), "no new run in its place"


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
        "DROP TRIGGER other",
    ],
)
def test_a_row_that_is_not_as_it_was_written_is_refused(tmp_path: Path, statement: str) -> None:
    """SQLite itself finds nothing wrong with any of these."""
    store = fill(tmp_path, fire=False)
    store._db.execute("CREATE TRIGGER other AFTER INSERT ON meta BEGIN SELECT 1; END")
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


def test_another_runs_store_of_the_same_length_is_noticed(tmp_path: Path) -> None:
    for name, reward in (("one", 0.5), ("other", 0.25)):
        store = Store(tmp_path / name, POLICY)
        store.append_steps([[StepReport(attempt=0, step=1, reward=reward)]])
        store.close()
    shutil.copy(tmp_path / "other" / "guard.db", tmp_path / "one" / "guard.db")
    with pytest.raises(StoreCorruptError, match="not those that were acknowledged"):
        Store(tmp_path / "one", POLICY)


# -- the two files beside it ---------------------------------------------------------------------------------


def test_the_head_is_what_was_acknowledged_and_may_be_behind(tmp_path: Path) -> None:
    store = Store(tmp_path, POLICY)
    store.append_steps([steps(0, 3)])
    behind = read_head(tmp_path)
    store.append_steps([steps(3, 5)])
    store.append_steps([steps(3, 5)])  # known: nothing is written
    store.close()
    ahead = read_head(tmp_path)
    assert behind is not None and ahead is not None and (behind.seq, ahead.seq) == (3, 5)
    (tmp_path / HEAD_NAME).write_bytes(behind.encoded())  # as after a power failure
    store = Store(tmp_path, POLICY)
    assert store.last_seq() == 5 and read_head(tmp_path) == ahead
    store.close()
    (tmp_path / HEAD_NAME).unlink()  # as where the database alone was restored
    Store(tmp_path, POLICY).close()
    assert read_head(tmp_path) == ahead
    (tmp_path / HEAD_NAME).write_bytes(replace(ahead, seq=6).encoded())
    with pytest.raises(StoreCorruptError, match="has 5 events, but 6 were acknowledged"):
        Store(tmp_path, POLICY)


def test_the_head_is_written_over_in_place() -> None:
    assert len(Head(0, "d" * 32).encoded()) == len(Head(2**62, "d" * 32).encoded())


def test_no_file_is_closed_while_steps_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing is flushing on a network file system, and the trainer waits for its answer."""
    store, closed = Store(tmp_path, POLICY), []
    monkeypatch.setattr(os, "close", closed.append)
    for first in range(0, 40, 4):
        store.append_steps([steps(first, first + 4)])
    monkeypatch.undo()
    assert closed == []
    head = read_head(tmp_path)
    assert head is not None and head.seq == 40
    store.close()


def test_a_store_leaves_no_file_open(tmp_path: Path) -> None:
    """The guard opens it again and again while it is refused."""
    before = len(os.listdir("/proc/self/fd"))
    fill(tmp_path, fire=False).close()
    with pytest.raises(ChangedRunError):
        Store(tmp_path, Policy(detector="heldout_guard"))
    assert len(os.listdir("/proc/self/fd")) == before


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


# -- schema 5 ------------------------------------------------------------------------------------------------


def as_schema_5(directory: Path) -> None:
    """What the release before the chain left behind."""
    with closing(sqlite3.connect(directory / "guard.db", isolation_level=None)) as db:
        db.execute("DROP TABLE head")
        db.execute("PRAGMA user_version = 5")
    for name in (HEAD_NAME, LATCH_NAME):
        (directory / name).unlink(missing_ok=True)


def test_a_store_of_schema_5_is_taken_over(tmp_path: Path) -> None:
    fill(tmp_path, fire=True).close()
    expected = content(tmp_path)
    as_schema_5(tmp_path)
    assert content(tmp_path) == expected
    assert read_latches(tmp_path) == (FIRE,) and read_head(tmp_path) is not None
    with closing(sqlite3.connect(tmp_path / "guard.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        db.execute("UPDATE outcomes SET items = '[1.0]'")
        db.commit()
    with pytest.raises(StoreCorruptError, match="is damaged"):  # from then on it is noticed
        Store(tmp_path, POLICY)


def test_taking_over_may_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, fire=True).close()
    expected = content(tmp_path)
    as_schema_5(tmp_path)

    def end(_: Any) -> bytes:
        raise OSError("killed here")

    monkeypatch.setattr(database, "still", end)
    with pytest.raises(StoreError, match="killed here"):
        Store(tmp_path, POLICY)
    monkeypatch.undo()
    assert content(tmp_path) == expected


def full_of_names(directory: Path, announcements: int, size: int = 300_000) -> Store:
    """A store with so many announcements of checkpoints, of which each has many files; left open."""
    store = fill(directory, fire=True)
    for number in range(announcements):
        names = f"{number:08}" * (size // 8)
        store.append_checkpoint(CheckpointReport(attempt=1, step=number, path="/c"), names)
        store.append_steps([[StepReport(attempt=1, step=number, reward=0.5)]])
    return store


@pytest.mark.parametrize("page_bytes", [1, 1_000, chain.PAGE_BYTES, 10 * chain.PAGE_BYTES])
def test_the_digest_is_of_each_event_in_turn_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    """A store that an earlier release has written is verified, too."""
    monkeypatch.setattr(chain, "PAGE_BYTES", page_bytes)
    full_of_names(tmp_path, 20).close()
    with closing(sqlite3.connect(tmp_path / "guard.db")) as db:
        events = db.execute("SELECT seq, attempt, step, pass, kind, body FROM events ORDER BY seq").fetchall()
        outcomes = db.execute(
            "SELECT seq, items, ifnull(proxy_items, '') FROM outcomes ORDER BY seq"
        ).fetchall()
        digests = b"".join(
            blake2b(
                "".join("\x1f".join(map(str, row)) + "\x1e" for row in rows).encode(), digest_size=16
            ).digest()
            for rows in (events, outcomes)
        )
        assert read_head(tmp_path) == Head(len(events), blake2b(digests, digest_size=16).hexdigest())
        some = chain.Chain.empty().grown(db, 30)
        assert some.seq == 30 and some.grown(db).digest == read_head(tmp_path).digest
    assert content(tmp_path).verdict.fire


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


def test_what_no_transaction_has_written_is_not_read_in_it(
    tmp_path: Path,
) -> None:
    """A trainer may have a large part of the store beside the events, and each step would read it all."""
    store = fill(tmp_path, fire=False)
    read: list[str] = []
    store._db.set_trace_callback(read.append)
    store.append_steps([steps(44, 45)])
    assert read and not [one for one in read if "FROM meta" in one]
    store.note_end(EndReport(attempt=0, step=44))
    assert [one for one in read if "FROM meta ORDER BY" in one]
    store.append_steps([steps(45, 46)])
    store.close()
    told = Store(tmp_path, POLICY)
    assert told.told_end() == EndReport(attempt=0, step=44)
    told.close()


def test_what_was_taken_back_is_not_what_the_next_transaction_seals(tmp_path: Path) -> None:
    store = fill(tmp_path, fire=False)

    def broken_off() -> None:
        with store._database.transaction():
            store._database.put_meta("end", "{}")
            raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError):
        broken_off()
    store.append_steps([steps(44, 45)])
    store.close()
    assert content(tmp_path).verdict.steps == 45
