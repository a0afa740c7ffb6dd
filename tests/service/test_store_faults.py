"""A store that is corrupt, locked, full, unwritable or replaced, under a real guard process.

In every case: a clear error in the log and no traceback, `/readyz` 503, the verdict `unknown` with code
`store_unavailable` in every answer, ingest 503 with nothing kept, and a fire that was known stays in force.
When the store works again, so does the guard, and what was acknowledged is there.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import INGEST, READ
from tests.token_files import with_token_files

Step = Callable[..., dict[str, Any]]

FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


def assert_unavailable(guard: Any, reason: str, fired: bool = False) -> None:
    """The guard says everywhere that its store does not work, and why."""
    ready = guard.get("/readyz")
    assert ready.status_code == 503
    assert reason in ready.json()["detail"]
    refused = guard.post("/v1/steps", {"attempt": 7, "step": 1, "reward": 0.5})
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) >= 1
    for verdict in (guard.get("/v1/verdict").json(), refused.json()["verdict"]):
        assert "store_unavailable" in [c["code"] for c in verdict["conditions"]]
        assert verdict["level"] == ("fired" if fired else "unknown")
        assert verdict["fire"] is fired and verdict["stop"] is fired
        if not fired:
            assert verdict["code"] == "store_unavailable" and reason in verdict["reason"]
    path = guard.directory / "checkpoints" / "c"
    path.mkdir(exist_ok=True)
    announced = guard.post("/v1/checkpoints", {"attempt": 7, "step": 1, "path": str(path)})
    assert announced.status_code == 503
    assert guard.get("/v1/history").status_code == 503
    assert guard.get("/v1/history?max_points=5").status_code == 503
    assert guard.get("/healthz").status_code == 200
    assert reason in guard.log and "Traceback" not in guard.log


def wait_until_ready(guard: Any) -> None:
    until = time.monotonic() + 20
    while guard.get("/readyz").status_code != 200:
        assert time.monotonic() < until, guard.log
        time.sleep(0.05)


def fire(guard: Any) -> str:
    """Drift until the KL rule fires; returns the reason."""
    for number in range(6):
        report = {
            "attempt": 0,
            "step": number,
            "reward": 0.5,
            "kl": 0.5 * number,
            "kl_kind": "ref_token_mean",
        }
        answer = guard.post("/v1/steps", report).json()
    assert answer["verdict"]["fire"]
    return answer["verdict"]["reason"]


# -- at the start ------------------------------------------------------------------------------------------


def truncated(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def with_a_damaged_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 6)
        file.write(b"\xa5" * 4096)


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE notes (text)")


def of_another_release(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(random.Random(1).randbytes(20_000)), "is damaged"),
        (lambda path: truncated(path, 0), "its content was lost"),
        (lambda path: truncated(path, 0.6), "is damaged"),
        (with_a_damaged_page, "is damaged"),
        (of_another_program, "is a database of another program"),
        (of_another_release, "has schema 99"),
    ],
    ids=["garbage", "empty", "cut", "page", "program", "release"],
)
def test_a_store_that_cannot_be_used_is_no_new_run(
    new_guard: Callable[..., Any], step: Step, damage: Callable[[Path], Any], said: str
) -> None:
    guard = new_guard().start()
    guard.post("/v1/steps", [step(i) for i in range(300)])
    assert guard.end() == 0
    damage(guard.state / "guard.db")
    guard.start()
    assert_unavailable(guard, said)


@pytest.fixture
def tokens_for_all() -> Iterator[dict[str, str]]:
    """Token files that any user can read: pytest's own folders are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        given = with_token_files({"INGEST_TOKEN": INGEST, "READ_TOKEN": READ}, Path(folder))
        yield given


def test_an_unwritable_directory(new_guard: Callable[..., Any], tokens_for_all: dict[str, str]) -> None:
    # Another user may not see this interpreter's own files: what is loaded late is loaded before.
    before = "import encodings.idna; os.getuid() or (os.setgid(65534), os.setuid(65534)); "
    before += "del os.environ['RLGUARD_GUARD_POLICY_FILE']"  # which it may not read
    guard = new_guard(before=before, INGEST_TOKEN="", READ_TOKEN="", **tokens_for_all)
    guard.state.mkdir()
    guard.state.chmod(0o500)
    guard.launch()
    # endpoint.json cannot be written either: the log tells where the guard listens.
    until = time.monotonic() + 20
    while "listening at " not in guard.log:
        assert guard.is_alive() and time.monotonic() < until, guard.log
        time.sleep(0.02)
    guard.url = guard.log.split("listening at ")[1].split()[0]
    assert_unavailable(guard, "Permission denied" if os.getuid() == 0 else "cannot be opened")
    assert "endpoint.json cannot be written" in guard.log


def test_a_second_guard_waits_for_the_first(new_guard: Callable[..., Any], step: Step) -> None:
    first, second = new_guard().start(), new_guard()
    first.post("/v1/steps", [step(1), step(2)])
    second.start()
    assert_unavailable(second, "another process")
    assert first.post("/v1/steps", step(3)).status_code == 200
    assert first.end() == 0
    wait_until_ready(second)
    assert second.get("/v1/verdict").json()["steps"] == 3


# -- while it runs -------------------------------------------------------------------------------------------


def fill(guard: Any, step: Step, fired: bool) -> tuple[int, dict[str, Any]]:
    """Post until the disk is full; returns how many steps were acknowledged, and the refusal's verdict."""
    for number in range(0, 100_000, 50):
        response = guard.post("/v1/steps", [step(1_000 + number + i) for i in range(50)])
        if response.status_code == 503:
            break
        assert response.status_code == 200
    verdict = response.json()["verdict"]
    assert verdict["level"] == ("fired" if fired else "unknown")
    assert verdict["fire"] is fired and verdict["stop"] is fired
    assert "store_unavailable" in [c["code"] for c in verdict["conditions"]]
    assert "Traceback" not in guard.log
    return number, verdict


@pytest.mark.parametrize("fired", [False, True])
def test_a_full_disk(new_guard: Callable[..., Any], step: Step, fired: bool) -> None:
    guard = new_guard(before=FULL_DISK.format(200_000)).start()
    reason = fire(guard) if fired else ""
    acknowledged, verdict = fill(guard, step, fired)
    assert acknowledged > 0 and (verdict["reason"] == reason or not fired)
    guard.end()
    guard.before = ""
    after = guard.start().get("/v1/verdict").json()
    assert after["steps"] == acknowledged + (6 if fired else 0)
    assert after["fire"] is fired and (after["reason"] == reason or not fired)
    assert guard.post("/v1/steps", step(99)).status_code == 200


@pytest.mark.parametrize("fired", [False, True])
def test_a_store_that_goes_away_and_comes_back(guard: Any, step: Step, fired: bool) -> None:
    guard.post("/v1/steps", [step(100 + i) for i in range(10)])
    if fired:
        fire(guard)
    before = guard.get("/v1/verdict").json()
    away = guard.directory / "away"
    away.mkdir()
    for file in guard.state.glob("guard.db*"):
        file.rename(away / file.name)
    assert guard.post("/v1/steps", step(200)).status_code == 503
    (guard.state / "guard.db").write_bytes(b"")  # nor does a fresh start happen in its place
    assert_unavailable(guard, "guard.db", fired)
    for file in away.iterdir():
        file.rename(guard.state / file.name)
    wait_until_ready(guard)
    assert guard.get("/v1/verdict").json() == before
    assert guard.post("/v1/steps", step(200)).json()["accepted"] == 1


def test_an_older_copy_of_the_store_is_refused(guard: Any, step: Step, tmp_path: Path) -> None:
    guard.post("/v1/steps", step(1))
    guard.end()
    shutil.copy(guard.state / "guard.db", tmp_path / "older")
    guard.start()
    guard.post("/v1/steps", [step(2), step(3)])
    for file in guard.state.glob("guard.db*"):
        file.unlink()
    shutil.copy(tmp_path / "older", guard.state / "guard.db")
    assert guard.post("/v1/steps", step(4)).status_code == 503
    time.sleep(1.5)  # a tick or two of trying again
    assert_unavailable(guard, "2 events, but 4 were acknowledged")
