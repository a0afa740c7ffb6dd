"""The guard as a child process, with a real guard: what the supervisor does when it hangs."""

import os
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import httpx
import pytest

from guard_cli.errors import CliError
from guard_cli.guard_settings import make_settings
from guard_cli.run import guard as guard_module
from guard_cli.run.guard import GuardProcess, GuardProcessLostError, write_tokens

pytestmark = pytest.mark.nightly

#: Programs that end as a guard can while it starts.
ENDS = {
    "signal": "import os; os.kill(os.getpid(), 9)",
    "failure": "import sys; print('rlguard guard: no space'); sys.exit(1)",
    "refusal": "import sys; print('rlguard guard: changed'); sys.exit(2)",
}


def start_guard(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    ingest, read = write_tokens(state)
    own = {"state_dir": state, "checkpoint_root": tmp_path, "port": 0}
    settings = make_settings({}, {**own, "ingest_token_file": ingest, "read_token_file": read})
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


@pytest.mark.always
def test_a_guard_that_dies_too_often_is_given_up(guard, monkeypatch):
    monkeypatch.setattr(guard_module, "MAX_RESTARTS", 0)
    kill(guard)
    with pytest.raises(GuardProcessLostError, match=r"died \(signal 9\), after 0 restarts"):
        guard.verdict()
    assert refused(guard.url), "a trainer that is left waits for nobody"


@pytest.fixture
def ends_at_start(monkeypatch):
    """The next guards that are started end as listed; one after these lives."""
    start = subprocess.Popen

    def end(ways):
        left, starts = list(ways), []

        def started(command, **options):
            starts.append(command)
            return start([sys.executable, "-c", ENDS[left.pop(0)]] if left else command, **options)

        monkeypatch.setattr(guard_module.subprocess, "Popen", started)
        return starts

    return end


def refused(url):
    with socket.socket() as trainer:
        return trainer.connect_ex(("127.0.0.1", urlsplit(url).port)) != 0


def kill(guard):
    os.kill(guard.session, signal.SIGKILL)
    os.waitid(os.P_PID, guard.session, os.WEXITED | os.WNOWAIT)  # whoever started it asks for its exit code


def test_a_guard_that_dies_while_it_starts_is_started_again_as_often_as_one_may(guard, ends_at_start):
    kill(guard)
    starts = ends_at_start(["signal", "signal"])
    assert guard.verdict() is not None, "the third restart is one that lives"
    assert len(starts) == 3


def test_no_guard_is_started_a_fourth_time(guard, ends_at_start):
    kill(guard)
    starts = ends_at_start(["signal", "failure", "failure"])
    words = r"did not start \(exit code 1\): no space, after 3 restarts: see .*guard.log"
    with pytest.raises(GuardProcessLostError, match=words):
        guard.verdict()
    assert len(starts) == 3 and refused(guard.url), "a trainer that is left waits for nobody"


def test_a_guard_that_refuses_its_settings_is_final(guard, ends_at_start):
    kill(guard)
    starts = ends_at_start(["refusal"])
    with pytest.raises(CliError, match=r"^changed$") as refusal:
        guard.verdict()
    assert refusal.value.exit_code == 2
    assert len(starts) == 1 and refused(guard.url)


def test_the_first_guard_of_a_run_is_started_once(tmp_path, ends_at_start):
    starts = ends_at_start(["failure"])
    with pytest.raises(GuardProcessLostError, match=r"did not start \(exit code 1\): no space: see .*log$"):
        start_guard(tmp_path)
    assert len(starts) == 1


@pytest.mark.always
def test_stopping_leaves_no_process(guard, runs):
    session = guard.session
    guard.stop()
    assert not runs(session) and refused(guard.url)
    guard.stop()  # again does no harm
