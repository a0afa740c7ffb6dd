"""A log that is damaged: it is refused in one sentence, or its fire is in force.

The files are those of a guard that was killed while some steps were in the write-ahead log alone, and those
of one that ended in order.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from guard_service.errors import StoreCorruptError, StoreError
from guard_service.event_log import EventLog
from guard_service.events import Note, NoteKind
from rlguard.core.wire import CheckpointReport
from tests.service.filled_store import FIRE, POLICY, content, fill, steps

PLACES = 13  # of each file and kind of damage: 156 in all
#: How the guard ended, which file is damaged, and whether that must be noticed: SQLite takes a damaged
#: write-ahead log for one that ends earlier, and reads no page of the database that its log has anew.
FILES = [("killed", "guard.db", False), ("killed", "guard.db-wal", False), ("ended", "guard.db", True)]


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data)) // 512 * 512
    end = min(len(data), start + chance.choice((512, 4096)))
    data[start:end] = bytes(end - start)


def spoil(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data)) // 4096 * 4096
    end = min(len(data), start + 4096)
    data[start:end] = chance.randbytes(end - start)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of a run that has fired, by how its guard ended."""
    live, rest = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("rest")
    store = fill(live, fire=True)
    store.append(steps(44, 60))
    shutil.copytree(live, rest / "killed")
    store.close()
    shutil.copytree(live, rest / "ended")
    return {"killed": rest / "killed", "ended": rest / "ended"}


@pytest.mark.parametrize(("end", "name", "noticed"), FILES)
@pytest.mark.parametrize("damage", [flip, cut, zero, spoil])
def test_damage_is_refused_in_one_sentence_or_harmless(
    runs: dict[str, Path],
    tmp_path: Path,
    end: str,
    name: str,
    noticed: bool,
    damage: Callable[[bytearray, random.Random], None],
) -> None:
    shutil.copytree(runs[end], tmp_path / "whole")
    assert content(tmp_path / "whole").verdict.fire
    chance, refusals = random.Random(f"{name} {damage.__name__}"), []
    for number in range(PLACES):
        directory = tmp_path / str(number)
        shutil.copytree(runs[end], directory)
        data = bytearray((directory / name).read_bytes())
        damage(data, chance)
        (directory / name).write_bytes(data)
        try:
            found = content(directory)
        except StoreError as error:
            refusals.append(str(error))
            found = None
        if found is not None:
            assert found.verdict.fire and FIRE in found.events, f"place {number}"
    assert all("\n" not in said and str(tmp_path) in said for said in refusals)
    assert refusals or not noticed


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE step = 4 AND kind = 'step'",
        "DELETE FROM events WHERE seq = 2",
        "UPDATE events SET body = replace(body, 'kl_hard_stop', 'kl_lard_stop') WHERE kind = 'fire'",
        "UPDATE events SET kind = 'gire' WHERE kind = 'fire'",
        "UPDATE events SET body = NULL WHERE kind = 'fire'",
        "UPDATE events SET body = replace(body, 'code', 'kode') WHERE kind = 'fire'",
        "UPDATE events SET body = substr(body, 2) WHERE kind = 'fire'",
        "UPDATE events SET items = substr(items, 2) WHERE kind = 'evaluation'",
        "UPDATE events SET kl_kind = 'ref_token_mean', kl = -1.0 WHERE kind = 'step'",
    ],
)
def test_rows_that_no_guard_wrote_are_refused(tmp_path: Path, statement: str) -> None:
    fill(tmp_path, fire=True).close()
    with closing(sqlite3.connect(tmp_path / "guard.db", isolation_level=None)) as db:
        guards = db.execute("SELECT name, sql FROM sqlite_schema WHERE name LIKE 'events_are_%'").fetchall()
        for name, _ in guards:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
        for _, sql in guards:
            db.execute(sql)
    with pytest.raises(StoreCorruptError, match="restore it, or start a new run"):
        content(tmp_path)


def test_a_write_ahead_log_whose_database_is_gone_is_no_new_run_and_a_fire_needs_none(tmp_path: Path) -> None:
    """SQLite takes a damaged one for one that ends earlier, and says nothing."""
    log = fill(tmp_path / "live", fire=True)
    log.append(steps(44, 48))
    for name in ("without database", "without log"):
        shutil.copytree(tmp_path / "live", tmp_path / name)
    log.close()
    (tmp_path / "without database" / "guard.db").unlink()
    with pytest.raises(StoreCorruptError, match="is gone, and its write-ahead log is not"):
        EventLog(tmp_path / "without database", POLICY)
    os.truncate(tmp_path / "without log" / "guard.db-wal", 0)
    found = content(tmp_path / "without log")
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
