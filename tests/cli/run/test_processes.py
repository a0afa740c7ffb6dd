"""The trainer as a process tree: its exit code, and what is no part of it. `test_run.py` ends such trees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlguard.cli.run.processes import TrainerProcess

FAKE = Path(__file__).with_name("fake_trainer.py")
#: A guard, and what evaluates for it: a child in a session of its own.
GUARD = (
    "import subprocess; below = subprocess.Popen(['sleep', '60'], start_new_session=True); "
    "print(below.pid, flush=True); below.wait()"
)


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


@pytest.mark.parametrize(
    ("actions", "kill", "code"), [((), False, 0), (("exit=7",), False, 7), (("sleep=60",), True, 137)]
)
def test_the_exit_code_is_the_trainers_as_a_shell_tells_it(start, until, actions, kill, code):
    trainer = start(*actions)
    if kill:
        os.kill(trainer.pid, signal.SIGKILL)
    until(lambda: trainer.poll() is not None)
    assert trainer.poll() == code


def test_other_children_and_what_the_guard_starts_are_left_alone(start, tmp_path, until, runs):
    before = subprocess.Popen(["sleep", "60"])
    trainer = start("ignore-term", "say=ready", "sleep=60")
    command = [sys.executable, "-c", GUARD]
    guard = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    trainer.leave_alone(guard.pid)
    evaluation = int(guard.stdout.readline())
    try:
        until(lambda: "ready" in (tmp_path / "log").read_text())
        assert trainer.stop(signal.SIGTERM, 0.1) == []
        assert trainer.poll() == 137 and runs(before.pid) and runs(guard.pid) and runs(evaluation)
    finally:
        os.kill(evaluation, signal.SIGKILL)
        before.kill()
        assert before.wait() == -9
        assert guard.wait() == 0
        guard.stdout.close()
