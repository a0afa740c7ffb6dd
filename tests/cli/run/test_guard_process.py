"""The guard as a child process, with a real guard: what the supervisor does when it hangs."""

import os
import signal
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest

from rlguard.cli.guard_settings import make_settings
from rlguard.cli.links import token_file
from rlguard.cli.run import guard as guard_module
from rlguard.cli.run.guard import GuardProcess

pytestmark = pytest.mark.nightly


def start_guard(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    own = {"state_dir": state, "checkpoint_root": tmp_path, "port": 0}
    tokens = {f"{role}_token_file": token_file(state / role) for role in ("ingest", "read")}
    settings = make_settings({}, {**own, **tokens})
    return GuardProcess(settings, tmp_path / "guard.log", ready_seconds=60)


@pytest.fixture
def guard(tmp_path):
    process = start_guard(tmp_path)
    yield process
    process.stop()


def test_a_guard_that_hangs_is_replaced_at_the_same_address(guard, until, monkeypatch):
    monkeypatch.setattr(guard_module, "UNRESPONSIVE_SECONDS", 0.5)
    url, session = guard.url, guard.session
    assert guard.verdict().steps == 0
    assert guard.verdict().waiting == 0
    os.kill(session, signal.SIGSTOP)
    until(lambda: guard.verdict() is None and guard.session != session)
    assert guard.url == url
    assert guard.verdict().steps == 0


def test_who_connects_while_no_guard_runs_is_served_by_the_next(guard):
    kill(guard)
    seen = []
    waiting = threading.Thread(target=lambda: seen.append(httpx.get(f"{guard.url}/healthz", timeout=60)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and not seen, "neither refused nor answered"
    guard.verdict()
    waiting.join(60)
    assert [response.status_code for response in seen] == [200]


def refused(url):
    with socket.socket() as trainer:
        return trainer.connect_ex(("127.0.0.1", urlsplit(url).port)) != 0


def kill(guard):
    os.kill(guard.session, signal.SIGKILL)
    os.waitid(os.P_PID, guard.session, os.WEXITED | os.WNOWAIT)  # whoever started it asks for its exit code


@pytest.mark.always
def test_stopping_leaves_no_process(guard, runs):
    session = guard.session
    guard.stop()
    assert not runs(session) and refused(guard.url)
    guard.stop()  # again does no harm
