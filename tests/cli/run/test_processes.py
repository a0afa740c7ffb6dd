"""The trainer as a process tree, with real processes that resist."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard_cli.run.processes import TrainerProcess, descendants

FAKE = Path(__file__).with_name("fake_trainer.py")


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*actions):
        command = [sys.executable, str(FAKE), str(tmp_path), *actions]
        trainer = TrainerProcess(command, os.environ, tmp_path / "log")
        started.append(trainer)
        return trainer

    yield start
    for trainer in started:
        trainer.stop(signal.SIGKILL, 0.0)


def log_shows(tmp_path, until, word, times=1):
    until(lambda: (tmp_path / "log").read_text().count(word) >= times)


@pytest.mark.parametrize(("actions", "code"), [((), 0), (("exit=7",), 7)])
def test_the_exit_code_is_the_trainers(start, until, actions, code):
    trainer = start(*actions)
    until(lambda: trainer.poll() is not None)
    assert trainer.poll() == code


def test_a_killed_trainer_has_the_shells_code(start, until):
    trainer = start("sleep=60")
    os.kill(trainer.pid, signal.SIGKILL)
    until(lambda: trainer.poll() is not None)
    assert trainer.poll() == 137


def test_a_trainer_that_obeys_gets_no_sigkill(start, tmp_path, until):
    trainer = start("say=ready", "sleep=60")
    log_shows(tmp_path, until, "ready")
    begun = time.monotonic()
    assert trainer.stop(signal.SIGTERM, 60.0) == []
    assert trainer.poll() == 143
    assert time.monotonic() - begun < 30


def test_a_trainer_that_ignores_sigterm_is_killed_after_the_grace(start, tmp_path, until):
    trainer = start("ignore-term", "say=ready", "sleep=60")
    log_shows(tmp_path, until, "ready")
    begun = time.monotonic()
    assert trainer.stop(signal.SIGTERM, 0.3) == []
    assert trainer.poll() == 137
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("action", ["fork", "double-fork"])
def test_descendants_are_found_and_ended_also_after_their_parent(start, tmp_path, until, runs, action):
    trainer = start(action, "say=ready")
    log_shows(tmp_path, until, "descendant")
    until(lambda: trainer.poll() == 0)
    pid = int((tmp_path / "log").read_text().split("descendant ")[1].split()[0])
    assert runs(pid)
    assert [p.pid for p in trainer.rest()] == [pid]
    assert trainer.stop(signal.SIGTERM, 0.2) == []
    assert not runs(pid)


def test_other_children_of_this_process_are_left_alone(start, tmp_path, until, runs):
    before = subprocess.Popen(["sleep", "60"])
    trainer = start("ignore-term", "say=ready", "sleep=60")
    guard = subprocess.Popen(["sleep", "60"], start_new_session=True)
    trainer.leave_alone(guard.pid)
    try:
        log_shows(tmp_path, until, "ready")
        assert trainer.stop(signal.SIGTERM, 0.1) == []
        assert runs(before.pid)
        assert runs(guard.pid)
    finally:
        before.kill()
        guard.kill()
        assert before.wait() == -9
        assert guard.wait() == -9


def test_what_the_guard_starts_is_left_alone_in_whatever_session(start, tmp_path, until, runs):
    trainer = start("ignore-term", "say=ready", "sleep=60")
    code = (
        "import subprocess; below = subprocess.Popen(['sleep', '60'], start_new_session=True); "
        "print(below.pid, flush=True); below.wait()"
    )
    command = [sys.executable, "-c", code]
    guard = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    trainer.leave_alone(guard.pid)
    evaluation = int(guard.stdout.readline())
    try:
        log_shows(tmp_path, until, "ready")
        assert trainer.stop(signal.SIGTERM, 0.1) == []
        assert runs(evaluation)
        assert runs(guard.pid)
    finally:
        os.kill(evaluation, signal.SIGKILL)
        assert guard.wait() == 0
        guard.stdout.close()


def test_descendants_are_those_below(until):
    code = "import os, time; os.fork(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        until(lambda: len(descendants(child.pid)) == 1)
        assert child.pid in {p.pid for p in descendants(os.getpid())}
        assert os.getpid() not in {p.pid for p in descendants(child.pid)}
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
