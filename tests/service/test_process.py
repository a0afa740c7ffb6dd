"""The guard as a process: `python -m guard_service`, where it listens, its signals and its exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

Step = Callable[..., dict[str, Any]]


def environment(tmp_path: Path, **settings: str) -> dict[str, str]:
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    values = {
        "STATE_DIR": str(tmp_path / "state"),
        "CHECKPOINT_ROOT": str(tmp_path / "checkpoints"),
        "PORT": "0",
        "ALLOW_UNAUTHENTICATED_LOOPBACK": "true",
    } | settings
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLGUARD_")}
    return env | {f"RLGUARD_GUARD_{name}": value for name, value in values.items()}


def run_module(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`python -m guard_service`, which is expected to end by itself."""
    command = [sys.executable, "-m", "guard_service"]
    env = environment(tmp_path, **settings)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


def test_python_m_guard_service_runs_and_ends_on_sigterm(tmp_path: Path) -> None:
    endpoint = tmp_path / "state" / "endpoint.json"
    command = [sys.executable, "-m", "guard_service"]
    with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 200
        while not endpoint.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        told = json.loads(endpoint.read_text())
        assert told["pid"] == process.pid and told["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = process.stderr.read()
    assert process.returncode == 0 and "listening at" in log and "Traceback" not in log


def test_a_guard_that_ends_by_an_error_leaves_it_beside_its_verdict(tmp_path: Path) -> None:
    """The kubelet takes the end of the log only where the termination message is empty."""
    message = tmp_path / "termination"
    heldout = json.dumps({"split": str(tmp_path / "no-such-file.jsonl"), "evaluator": {"kind": "hf"}})
    done = run_module(tmp_path, HELDOUT=heldout, TERMINATION_MESSAGE=str(message))
    assert done.returncode == 2, done.stderr
    said = message.read_text()
    assert "no-such-file.jsonl" in json.loads(said)["error"] and "sequence" in said
    assert len(said.encode()) <= 1024


def test_as_the_first_process_of_a_container_it_ends_on_sigterm_while_it_loads() -> None:
    """The kernel would keep the signal from it; here it is kept away by ignoring it beforehand."""
    program = (
        "import os, runpy, signal, sys, time; me = os.getpid(); os.getpid = lambda: 1\n"
        "class Loading:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'guard_service.errors': os.kill(me, signal.SIGTERM); time.sleep(30)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.meta_path.insert(0, Loading())\n"
        "runpy.run_module('guard_service', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=200, check=False)
    assert ended.returncode == 143


def refused(guard: Any, *words: str) -> None:
    """It does not start, and says why in one sentence."""
    guard.launch()
    assert guard.wait() == 2 and "Traceback" not in guard.log
    assert [word for word in words if word not in guard.log] == []


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"PORT": "-1"}, "RLGUARD_GUARD_PORT"),
        ({"HOST": "198.51.100.7"}, "cannot listen on RLGUARD_GUARD_HOST='198.51.100.7'"),
        ({"POLICY_FILE": "/nowhere.yaml"}, "policy_file /nowhere.yaml"),
        ({"INGEST_TOKEN": "", "INGEST_TOKEN_FILE": "/nowhere"}, "ingest_token_file /nowhere"),
        ({"LISTEN_FD": "3"}, "LISTEN_FD=3 must be a TCP socket that listens"),
    ],
)
def test_a_refused_start_is_one_sentence_and_exit_code_2(
    new_guard: Callable[..., Any], settings: dict[str, str], word: str
) -> None:
    refused(new_guard(**settings), word)


def test_a_changed_policy_on_restart_is_refused(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard().start()
    guard.post("/v1/steps", step(1))
    guard.end()
    policy = guard.directory / "policy.yaml"
    policy.write_text(
        "{detector: heldout_guard, heldout_guard: {min_steps: 5}, kl: {hard_stop: 0.08, min_steps: 5}}"
    )
    guard.settings["POLICY_FILE"] = str(policy)
    refused(guard, "heldout_guard.min_steps: was 20, now 5")


def test_an_unfit_split_ends_the_guard(new_guard: Callable[..., Any]) -> None:
    guard = new_guard()
    row = {"prompt": "What is 12 plus 30, said in words and not in digits?", "answer": "forty-two"}
    for name, prefix in (("train.jsonl", "train"), ("heldout.jsonl", "heldout")):
        (guard.directory / name).write_text(json.dumps({"id": f"{prefix}-1"} | row) + "\n")
    guard.settings |= {
        "HELDOUT__SPLIT": str(guard.directory / "heldout.jsonl"),
        "HELDOUT__TRAIN_PROMPTS": str(guard.directory / "train.jsonl"),
    }
    refused(guard, "heldout-1", "train-1")
    assert "forty-two" not in guard.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_steps_arrive(guard: Any, step: Step, number: signal.Signals) -> None:
    acknowledged = []

    def post() -> None:
        with guard.client() as client:
            for i in range(100_000):
                try:
                    response = client.post("/v1/steps", json=step(i))
                except Exception:
                    return
                assert response.status_code == 200
                acknowledged.append(i)

    thread = threading.Thread(target=post)
    thread.start()
    while len(acknowledged) < 20:
        time.sleep(0.005)
    assert guard.end(number) == 0
    thread.join()
    guard.start()
    assert guard.get("/v1/verdict").json()["steps"] >= len(acknowledged)
    assert "Traceback" not in guard.log


def test_the_state_directory_is_private(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    assert guard.state.stat().st_mode & 0o077 == 0
    assert (guard.state / "guard.db").stat().st_mode & 0o077 == 0


# -- where it listens ----------------------------------------------------------------------------------------

#: A machine without IPv6 says no to the address, or to the family.
WITHOUT_IPV6 = """
import errno, socket, guard_service.server as server
def bind(self, address):
    if self.family == socket.AF_INET6:
        raise OSError(errno.{error}, "no IPv6 here")
    socket.socket.bind(self, address)
server.Listener.bind = bind
"""
with_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


def answers(host: str, port: int | None) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://{host}:{port}/healthz", trust_env=False, timeout=60).is_success
    return False


@with_ipv6
def test_every_address_is_of_ipv6_and_ipv4(new_guard: Callable[..., Any]) -> None:
    port = urlsplit(new_guard(HOST="::").start().url).port
    assert answers("127.0.0.1", port) and answers("[::1]", port)
    port = urlsplit(new_guard("other", HOST="::1").start().url).port
    assert not answers("127.0.0.1", port) and answers("[::1]", port)


@pytest.mark.parametrize("error", ["EADDRNOTAVAIL", "EAFNOSUPPORT"])
def test_without_ipv6_every_address_is_of_ipv4(new_guard: Callable[..., Any], error: str) -> None:
    guard = new_guard(HOST="::", before=WITHOUT_IPV6.format(error=error)).start()
    assert answers("127.0.0.1", urlsplit(guard.url).port)


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::", marks=with_ipv6)])
def test_a_taken_port_is_named_and_not_had_over_ipv4_alone(new_guard: Callable[..., Any], host: str) -> None:
    with socket.socket(socket.AF_INET6 if host == "::" else socket.AF_INET) as taken:
        taken.bind((host, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(new_guard(HOST=host, PORT=port), f"RLGUARD_GUARD_PORT={port}: Address already in use")


# -- what a client may do to it ------------------------------------------------------------------------------

GET = b"GET /healthz HTTP/1.1\r\nHost: guard\r\n"
CHUNKED = b"POST /v1/steps HTTP/1.1\r\nHost: guard\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((b"nonsense\r\n\r\n",), 400),
        ((b"GET / HTTP/x\r\n\r\n",), 400),
        ((b"POST /v1/steps HTTP/1.1\r\nContent-Length: -1\r\n\r\n",), 400),
        ((GET + b"X: ", *[b"x" * 8_000] * 20), 400),
        ((GET, *[b"Y: " + b"y" * 10_000 + b"\r\n"] * 20), 400),
        ((CHUNKED + b"zz\r\n",), 400),
        ((CHUNKED, b"zz\r\n"), 401),
        ((GET + b"\r\n", b"nonsense\r\n\r\n"), 200),
        ((b"GET /nowhere HTTP/1.1\r\nHost: [\r\n\r\n",), 404),
    ],
    ids=lambda value: value[0][:20].decode() if isinstance(value, tuple) else None,
)
def test_what_is_not_http_is_refused_and_leaves_nothing_in_the_log(
    guard: Any, parts: tuple[bytes, ...], status: int
) -> None:
    before = guard.log
    host, port = guard.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        for part in parts:
            with contextlib.suppress(OSError):  # it may hang up before all of them have gone
                connection.sendall(part)
                time.sleep(0.05)
        assert connection.recv(100).startswith(f"HTTP/1.1 {status} ".encode())
    assert guard.get("/healthz").status_code == 200 and guard.log == before
