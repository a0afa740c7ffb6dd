"""A store that is corrupt, locked, full, unwritable or replaced, under a real guard process.

In every case: a clear error in the log and no traceback, `/readyz` 503, the verdict `unknown` with code
`store_unavailable` in every answer, ingest 503 with nothing kept, and a fire that was known stays in force.
When the store works again, so does the guard, and what was acknowledged is there.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    metrics = guard.get("/metrics").text
    assert "rlguard_guard_store_up 0.0" in metrics
    assert 'rlguard_guard_verdict_level{level="healthy"} 0.0' in metrics
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


def with_steps(guard: Any, step: Step, count: int = 300) -> Path:
    """The store of a guard that took some steps and was ended."""
    guard.start()
    guard.post("/v1/steps", [step(i) for i in range(count)])
    assert guard.end() == 0
    return guard.state / "guard.db"


# -- at the start ------------------------------------------------------------------------------------------


def test_garbage(new_guard: Callable[..., Any]) -> None:
    guard = new_guard()
    guard.state.mkdir()
    (guard.state / "guard.db").write_bytes(random.Random(1).randbytes(20_000))
    guard.start()
    assert_unavailable(guard, "is damaged")


def test_a_file_that_lost_its_content_is_not_a_new_run(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard()
    os.truncate(with_steps(guard, step), 0)
    guard.start()
    assert_unavailable(guard, "its content was lost")


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_truncated_file(new_guard: Callable[..., Any], step: Step, kept: float) -> None:
    guard = new_guard()
    path = with_steps(guard, step)
    os.truncate(path, int(path.stat().st_size * kept))
    guard.start()
    assert_unavailable(guard, "is damaged")


def test_a_damaged_page(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard()
    path = with_steps(guard, step)
    with path.open("r+b") as file:
        file.seek(4096 * 6)
        file.write(b"\xa5" * 4096)
    guard.start()
    assert_unavailable(guard, "is damaged")


def test_a_database_of_another_program(new_guard: Callable[..., Any]) -> None:
    guard = new_guard()
    guard.state.mkdir()
    db = sqlite3.connect(guard.state / "guard.db")
    db.execute("CREATE TABLE notes (text)")
    db.close()
    guard.start()
    assert_unavailable(guard, "is a database of another program")


@pytest.mark.parametrize("version", [6, 99])
def test_another_schema_is_refused(new_guard: Callable[..., Any], step: Step, version: int) -> None:
    guard = new_guard()
    db = sqlite3.connect(with_steps(guard, step))
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    guard.start()
    assert_unavailable(guard, f"has schema {version}")


def test_an_unwritable_directory(new_guard: Callable[..., Any]) -> None:
    # Another user may not see this interpreter's own files: what is loaded late is loaded before.
    before = "import encodings.idna; os.getuid() or (os.setgid(65534), os.setuid(65534)); "
    before += "del os.environ['RLGUARD_GUARD_POLICY_FILE']"  # which it may not read
    guard = new_guard(before=before)
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


def test_a_full_disk(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard(before=FULL_DISK.format(200_000)).start()
    acknowledged, verdict = fill(guard, step, fired=False)
    assert acknowledged > 0 and verdict["code"] == "store_unavailable"
    guard.end()
    guard.before = ""
    guard.start()
    assert guard.get("/v1/verdict").json()["steps"] == acknowledged
    assert guard.post("/v1/steps", step(1)).status_code == 200


def test_a_known_fire_stays_when_the_disk_is_full(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard(before=FULL_DISK.format(200_000)).start()
    reason = fire(guard)
    _, verdict = fill(guard, step, fired=True)
    assert verdict["reason"] == reason
    guard.end()
    guard.before = ""
    guard.start()
    after = guard.get("/v1/verdict").json()
    assert after["fire"] and after["reason"] == reason


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


def test_a_fire_is_told_by_the_next_guard_though_the_write_ahead_log_is_gone(
    new_guard: Callable[..., Any], step: Step
) -> None:
    guard = new_guard().start()
    reason = fire(guard)
    guard.end(signal.SIGKILL)
    (guard.state / "guard.db-wal").unlink(missing_ok=True)
    guard.start()
    told = guard.get("/v1/verdict").json()
    assert told["fire"] and told["reason"] == reason
    assert guard.end() == 0
