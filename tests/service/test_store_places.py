"""A log that was damaged at 156 places: it is refused in one sentence, or its fire is in force.

The files are those of a guard that was killed while some steps were in the write-ahead log alone, and those
of one that ended in order. One place is damaged, and the log is opened and folded. The rules by which damage
is noticed have tests of their own in `test_store_damage.py`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guard_service.errors import StoreError
from tests.service.filled_store import FIRE, content, fill, steps

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
