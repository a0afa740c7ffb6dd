"""The guard as a process: `python -m guard_service`, its endpoint file, its signals and its exit codes."""

from __future__ import annotations

import contextlib
import http.client
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

import pytest

Step = Callable[..., dict[str, Any]]


def run_module(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`python -m guard_service`, which is expected to end by itself."""
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    values = {
        "STATE_DIR": str(tmp_path / "state"),
        "CHECKPOINT_ROOT": str(tmp_path / "checkpoints"),
        "PORT": "0",
        "ALLOW_UNAUTHENTICATED_LOOPBACK": "true",
    } | settings
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLGUARD_")}
    env |= {f"RLGUARD_GUARD_{name}": value for name, value in values.items()}
    command = [sys.executable, "-m", "guard_service"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_python_m_guard_service_runs_and_ends_on_sigterm(tmp_path: Path) -> None:
    endpoint = tmp_path / "state" / "endpoint.json"
    seen: dict[str, Any] = {}

    def end_when_listening() -> None:
        until = time.monotonic() + 50
        while not endpoint.exists() and time.monotonic() < until:
            time.sleep(0.01)
        seen.update(json.loads(endpoint.read_text()))
        os.kill(seen["pid"], signal.SIGTERM)

    thread = threading.Thread(target=end_when_listening)
    thread.start()
    done = run_module(tmp_path)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert seen["url"].startswith("http://127.0.0.1:")
    assert "listening at" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PORT": "-1"}, ["RLGUARD_GUARD_PORT"]),
        ({"HOST": "198.51.100.7"}, ["not a loopback"]),
        ({"HOST": "127.0.0.1", "PORT": "1x"}, ["'1x'"]),
        ({"POLICY_FILE": "/nowhere.yaml"}, ["policy_file /nowhere.yaml"]),
        ({"INGEST_TOKEN_FILE": "/nowhere"}, ["ingest_token_file /nowhere"]),
    ],
)
def test_a_refused_start_is_one_sentence_and_exit_code_2(
    tmp_path: Path, settings: dict[str, str], words: list[str]
) -> None:
    done = run_module(tmp_path, **settings)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_module(tmp_path, PORT=str(port))
    assert done.returncode == 2 and f"PORT={port}" in done.stderr and "in use" in done.stderr


def test_a_changed_policy_on_restart_is_refused(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard().start()
    guard.post("/v1/steps", step(1))
    guard.end()
    policy = guard.directory / "policy.yaml"
    policy.write_text(
        "{detector: heldout_guard, heldout_guard: {min_steps: 5}, kl: {hard_stop: 0.08, min_steps: 5}}"
    )
    guard.settings["POLICY_FILE"] = str(policy)
    guard.launch()
    assert guard.wait() == 2
    assert "heldout_guard.min_steps: was 20, now 5" in guard.log
    assert "Traceback" not in guard.log


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
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == 143


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


def test_an_unfit_split_ends_the_guard(new_guard: Callable[..., Any]) -> None:
    guard = new_guard()
    row = {"prompt": "What is 12 plus 30, said in words and not in digits?", "answer": "forty-two"}
    for name, prefix in (("train.jsonl", "train"), ("heldout.jsonl", "heldout")):
        (guard.directory / name).write_text(json.dumps({"id": f"{prefix}-1"} | row) + "\n")
    guard.settings |= {
        "HELDOUT__SPLIT": str(guard.directory / "heldout.jsonl"),
        "HELDOUT__TRAIN_PROMPTS": str(guard.directory / "train.jsonl"),
    }
    guard.launch()
    assert guard.wait() == 2, guard.log
    assert "heldout-1" in guard.log and "train-1" in guard.log
    assert "forty-two" not in guard.log and "Traceback" not in guard.log


def test_another_loopback_address(new_guard: Callable[..., Any], step: Step) -> None:
    host, expected = "localhost", ("http://127.0.0.1:", "http://[::1]:")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        host, expected = "::1", ("http://[::1]:",)
    guard = new_guard(HOST=host).start()
    assert guard.url.startswith(expected)
    assert guard.post("/v1/steps", step(1)).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"POST /v1/steps HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_problem_too(guard: Any, request_: bytes) -> None:
    response, problem = sent(guard, request_)
    assert (response.status, problem["status"]) == (400, 400)
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:rlguard:problem:bad-request" and "HTTP" in problem["detail"]
    assert guard.get("/healthz").status_code == 200


def sent(guard: Any, *parts: bytes) -> tuple[http.client.HTTPResponse, dict[str, Any]]:
    """The response to these bytes, and its body; the guard may hang up before all of them have gone."""
    host, port = guard.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        for part in parts:
            with contextlib.suppress(OSError):
                connection.sendall(part)
                time.sleep(0.05)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response, json.loads(response.read())


GET = b"GET /healthz HTTP/1.1\r\nHost: guard\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (GET + b"X: ", *[b"x" * 8_000] * 20),
        (GET, *[b"Y: " + b"y" * 10_000 + b"\r\n"] * 20),
    ],
    ids=["one header", "many headers"],
)
def test_a_head_that_does_not_end_is_a_problem(guard: Any, parts: tuple[bytes, ...]) -> None:
    response, problem = sent(guard, *parts)
    assert (response.status, problem["status"]) == (400, 400)
    assert response.headers["content-type"] == "application/problem+json"
    assert guard.get("/healthz").status_code == 200


def test_a_body_that_is_no_http_leaves_no_traceback(guard: Any) -> None:
    """Whether the response has begun or not."""
    head = b"POST /v1/steps HTTP/1.1\r\nHost: guard\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent(guard, head + b"zz\r\n")
    sent(guard, head, b"zz\r\n")
    sent(guard, GET + b"\r\n", b"nonsense\r\n\r\n")
    assert guard.get("/healthz").status_code == 200 and "Traceback" not in guard.log


def test_a_host_that_is_none_fails_no_response(guard: Any) -> None:
    response, problem = sent(guard, b"GET /nowhere HTTP/1.1\r\nHost: [\r\n\r\n")
    assert (response.status, problem["instance"]) == (404, "/nowhere") and "Traceback" not in guard.log


def test_a_run_that_has_filled_its_share_is_told_so(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard(MAX_STORE_MIB="1").start()
    with guard.client() as client:
        for first in range(0, 20_000, 900):
            response = client.post("/v1/steps", json=[step(n) for n in range(first, first + 900)])
            if response.status_code != 200:
                break
    assert response.status_code == 507 and response.headers["retry-after"] == "60"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:rlguard:problem:insufficient-storage"
    verdict = guard.get("/v1/verdict").json()
    assert verdict["steps"] == first and verdict["level"] == "unknown"


def test_a_guard_that_ends_by_an_error_leaves_it_beside_its_verdict(tmp_path: Path) -> None:
    """The kubelet takes the end of the log only where the termination message is empty."""
    message = tmp_path / "termination"
    heldout = json.dumps({"split": str(tmp_path / "no-such-file.jsonl"), "evaluator": {"kind": "hf"}})
    done = run_module(tmp_path, HELDOUT=heldout, TERMINATION_MESSAGE=str(message))
    assert done.returncode == 2, done.stderr
    said = message.read_text()
    assert "no-such-file.jsonl" in json.loads(said)["error"] and "sequence" in said
    assert len(said.encode()) <= 1024
