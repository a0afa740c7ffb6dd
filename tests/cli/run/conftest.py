import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep

import pytest

TRAINER = Path(__file__).with_name("fake_trainer.py")


@pytest.fixture(scope="session", autouse=True)
def sigint_is_not_ignored():
    """A runner in the background hands SIGINT on as ignored, and `rlguard run` respects that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Server(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that answers every prompt with its `answer`, as far as the CLI can tell.

    `answer` is a text, or a function of the request. A text gets more and more spaces after it: of a server
    that says of two checkpoints the same to the letter nobody knows which weights it has.
    """

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.leave.wait(self.server.delay)
        if isinstance(self.server.answer, str):
            answer = self.server.answer + " " * next(self.server.asked)
        else:
            answer = self.server.answer(asked)
        body = json.dumps({"choices": [{"index": 0, "text": answer, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the guard was ended meanwhile
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def openai_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.answer, server.delay, server.leave = "right", 0.0, threading.Event()
    server.asked = itertools.count()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.leave.set()
    server.shutdown()
    server.server_close()


class Workplace:
    """A folder with a held-out split and a policy, in which `rlguard run` is started."""

    def __init__(self, path, url):
        self.path, self.url = path, url
        self.out = path / "out"
        self.checkpoints = path / "checkpoints"
        self.checkpoints.mkdir()
        self.split(4)
        self.model = "m"
        self.policy(
            "{detector: heldout_guard, heldout_guard: {min_steps: 1}, kl: {hard_stop: 1.0, min_steps: 5}}"
        )

    def split(self, count):
        items = [{"id": f"item-{i}", "prompt": f"prompt number {i}", "answer": "right"} for i in range(count)]
        (self.path / "secret-split.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))

    def policy(self, text):
        (self.path / "policy.yaml").write_text(text)

    def config(self, url=None):
        evaluator = {"kind": "openai", "base_url": url or self.url, "model": self.model}
        evaluator |= {"chat": False, "retries": 0}
        split = str(self.path / "secret-split.jsonl")
        file = self.path / "guard.yaml"
        file.write_text(json.dumps({"heldout": {"split": split, "evaluator": evaluator}}))  # JSON is YAML
        return file

    def arguments(self, *actions, options=(), url=None):
        return [
            *(sys.executable, "-m", "guard_cli.main", "run", "--config", str(self.config(url))),
            *("--policy", str(self.path / "policy.yaml"), "--checkpoints", str(self.checkpoints)),
            *("--out", str(self.out), "--grace", "0.5", *options, "--"),
            *(sys.executable, str(TRAINER), str(self.checkpoints), *actions),
        ]

    def start(self, *actions, options=(), url=None):
        return subprocess.Popen(
            self.arguments(*actions, options=options, url=url),
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *actions, options=(), url=None):
        process = self.start(*actions, options=options, url=url)
        output, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def json(self, name):
        return json.loads((self.out / name).read_text())

    def history(self):
        return [json.loads(line) for line in (self.out / "history.jsonl").read_text().splitlines()]

    def descendants_of_trainer(self):
        log = (self.out / "trainer.log").read_text()
        return [int(line.split()[1]) for line in log.splitlines() if line.startswith("descendant ")]


@pytest.fixture
def workplace(tmp_path, openai_server):
    return Workplace(tmp_path, f"http://127.0.0.1:{openai_server.server_port}/v1")


@pytest.fixture
def until():
    def wait(condition, seconds=60.0):
        end = monotonic() + seconds
        while not condition():
            assert monotonic() < end, "waited in vain"
            sleep(0.05)

    return wait


@pytest.fixture
def runs():
    """Says whether a process exists and is no zombie."""

    def check(pid):
        try:
            os.kill(pid, 0)
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return check
