"""A guard that reads what a trainer writes, which knows nothing of it: real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_service.feed import SILENT_SECONDS, FollowerHealth
from rlguard.core.codes import Level
from tests.service.conftest import INGEST, READ

SOON = 60.0
#: Steps of which each line is written in two pieces, into a file that is replaced once.
WRITER = """
import json, os, sys, time
from pathlib import Path
log = Path(sys.argv[1])
def line(step):
    data = {"critic/score/mean": step / 100, "actor/lr": 1e-6}
    return (json.dumps({"step": step, "data": data}) + "\\n").encode()
def write(mode, steps):
    with log.open(mode, buffering=0) as file:
        for step in steps:
            data = line(step)
            file.write(data[:7])
            time.sleep(0.02)
            file.write(data[7:])
            time.sleep(0.02)
write("ab", range(1, 41))
while not log.with_name("go").exists():  # what is renamed while nobody follows is gone
    time.sleep(0.05)
log.rename(log.with_suffix(".old"))
write("ab", range(41, 81))
"""


def feed(path: str = "metrics.jsonl", format_: str = "verl") -> dict[str, str]:
    return {"METRICS": json.dumps({"follow": {"path": path, "format": format_}})}


def steps(guard: Any) -> list[int]:
    return [json.loads(line)["step"] for line in guard.get("/v1/history").text.splitlines()]


def said(guard: Any) -> str:
    """What the verdict says of the follower; "" if nothing."""
    conditions = guard.get("/v1/verdict").json()["conditions"]
    return next((c["message"] for c in conditions if c["code"] == "not_followed"), "")


def eventually(probe: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + SOON
    while not (found := probe()):
        assert time.monotonic() < until, what
        time.sleep(0.1)
    return found


def rows(first: int, last: int) -> str:
    return "".join(
        json.dumps({"step": step, "data": {"critic/score/mean": step / 100, "actor/lr": 1e-6}}) + "\n"
        for step in range(first, last + 1)
    )


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "guard" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def writer(volume: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", WRITER, volume / "metrics.jsonl"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_no_step_is_lost_and_none_comes_twice_whoever_is_killed(
    new_guard: Callable[..., Any], volume: Path, writer: Callable[[], subprocess.Popen[bytes]]
) -> None:
    guard = new_guard(**feed()).start()
    trainer = writer()
    for at in (5, 20):
        eventually(lambda at=at: len(steps(guard)) >= at, f"{at} steps are read")
        guard.end(signal.SIGKILL)
        guard.start()
    eventually(lambda: len(steps(guard)) >= 40, "the first file is read")
    (volume / "go").touch()
    assert trainer.wait(SOON) == 0
    eventually(lambda: len(steps(guard)) >= 80, "every step is read")
    assert steps(guard) == list(range(1, 81))
    verdict = guard.get("/v1/verdict").json()
    assert verdict["attempt"] == 0 and not said(guard)
    assert guard.end() == 0 and "Traceback" not in guard.log


def test_what_was_written_last_is_read_before_the_guard_ends(
    new_guard: Callable[..., Any], volume: Path
) -> None:
    guard = new_guard(**feed()).start()
    (volume / "metrics.jsonl").write_text(rows(1, 5))
    eventually(lambda: len(steps(guard)) == 5, "it is followed")
    (volume / "metrics.jsonl").open("a").write(rows(6, 500))
    assert guard.end() == 0
    guard.settings.pop("METRICS")
    guard.start()
    assert steps(guard) == list(range(1, 501))


def test_lines_that_cannot_be_read_are_counted_and_said_and_never_quoted(
    new_guard: Callable[..., Any], volume: Path
) -> None:
    guard = new_guard(**feed()).start()
    rubbish = b"\xff\xfe rubbish-7531\n" + b"{" * 200_000 + b"\n" + b"x" * (5 << 20) + b"\n[1]\n"
    (volume / "metrics.jsonl").write_bytes(rows(1, 2).encode() + rubbish + rows(3, 3).encode())
    eventually(lambda: steps(guard) == [1, 2, 3], "what can be read is")
    eventually(lambda: "4 lines or records could not be read" in guard.log, "they are counted")
    assert "rubbish-7531" not in guard.log and "Traceback" not in guard.log


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["file", "proc", "pipe"])
def test_nothing_outside_is_read_and_nothing_is_waited_for(
    new_guard: Callable[..., Any], volume: Path, tmp_path: Path, what: str
) -> None:
    secret = tmp_path / "heldout"
    secret.mkdir()
    (secret / "metrics.jsonl").write_text('{"step": 1, "critic/score/mean": 0.5, "secret-8642": 1}\n')
    path = "logs/metrics.jsonl" if what == "proc" else "metrics.jsonl"
    guard = new_guard(**feed(path)).start()
    if what == "file":
        (volume / path).symlink_to(secret / "metrics.jsonl")
    elif what == "proc":
        (volume / "logs").symlink_to(f"/proc/{guard.pid}/root{secret}")
    else:
        os.mkfifo(volume / path)
    expected = {"file": "symbolic link", "pipe": "not a regular file"}.get(what, "leads out of")
    message = eventually(lambda: said(guard), "it is said")
    assert expected in message
    verdict = guard.get("/v1/verdict").json()
    assert verdict["level"] == "unknown" and verdict["steps"] == 0
    everything = guard.log + guard.get("/v1/history").text + json.dumps(verdict)
    assert "secret-8642" not in everything and "Traceback" not in guard.log

    (volume / path).unlink() if what in ("file", "pipe") else (volume / "logs").unlink()
    (volume / path).parent.mkdir(exist_ok=True)
    (volume / path).write_text(rows(1, 2))
    eventually(lambda: steps(guard) == [1, 2], "once there is a log, it is read")
    eventually(lambda: not said(guard), "and nothing is wrong any more")


def test_a_follower_that_is_killed_is_started_again_and_has_no_secret_where_others_see_it(
    new_guard: Callable[..., Any], volume: Path
) -> None:
    guard = new_guard(**feed()).start()
    (volume / "metrics.jsonl").write_text(rows(1, 3))
    eventually(lambda: len(steps(guard)) == 3, "it is followed")
    (child,) = Path(f"/proc/{guard.pid}/task/{guard.pid}/children").read_text().split()
    for name in ("environ", "cmdline"):  # no setting of the guard, and no token where others see it
        shown = Path(f"/proc/{child}/{name}").read_bytes().decode()
        assert "RLGUARD" not in shown and INGEST not in shown and READ not in shown
    os.kill(int(child), signal.SIGKILL)
    assert "exit code -9" in eventually(lambda: said(guard), "it is said")
    (volume / "metrics.jsonl").open("a").write(rows(4, 4))
    eventually(lambda: steps(guard) == [1, 2, 3, 4], "another one goes on")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *(
            ({"follow": {"path": path}}, "METRICS__FOLLOW__PATH")
            for path in ("/a", "..", "a/..", "../a", "a/../b", "a//b", "", "a/", "a\x00b")
        ),
        ({"follow": {"path": "m", "format": "torchtune"}}, "set checkpoints.layout"),
        ({"follow": {"path": "m", "run_config": "../run.yaml"}}, "METRICS__FOLLOW__RUN"),
        ({"follow": {"path": "m", "format": "varl"}}, "verl"),
        ({"follow": {"path": "m"}, "checkpoints": {"layout": "tinker"}}, "METRICS__CHECKPOINTS__LAYOUT"),
        ({"follow": {"path": "m"}, "checkpoints": {"path": ".."}}, "METRICS__CHECKPOINTS__PATH"),
    ],
)
def test_a_guard_with_a_wrong_path_or_name_does_not_start(
    new_guard: Callable[..., Any], wrong: dict[str, Any], named: str
) -> None:
    guard = new_guard(METRICS=json.dumps(wrong))
    guard.launch()
    assert guard.wait() == 2
    assert named in guard.log and "Traceback" not in guard.log


def test_a_follower_without_a_word_is_not_called_healthy_and_its_trouble_stops_nothing() -> None:
    now = [1000.0]
    following = FollowerHealth(lambda: now[0])
    now[0] += SILENT_SECONDS
    assert following.condition() is None
    now[0] += 1
    condition = following.condition()
    assert condition is not None and "said nothing for 61 s" in condition.message
    assert (condition.level, condition.action, condition.advice) == (Level.UNKNOWN, None, False)
    following.hear("")
    assert following.condition() is None
