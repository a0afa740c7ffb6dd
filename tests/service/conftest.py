"""Real guard processes for the tests of the service.

A guard is started by a zygote: a process that has imported the guard and forks one child for each, so that
a start takes milliseconds instead of the second that the imports take. The child runs `main()` as
`python -m guard_service` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_service import engine
from rlguard.core.policy import Policy
from tests.service.engines import Run
from tests.token_files import with_token_files

#: Unless a test says otherwise HeldOutGuard decides, and a KL stops within five steps.
POLICY = {"detector": "heldout_guard", "kl": {"hard_stop": 0.08, "min_steps": 5}}

INGEST, READ = "ingest-token-0123456789", "read-token-0123456789"
START_SECONDS = 30.0

ZYGOTE = """
import json, os, sys
import uvicorn.lifespan.off
import guard_service.__main__ as guard
import guard_service.heldout.worker, guard_service.server, guard_service.settings
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.run import LoggedRun
from pathlib import Path
from rlguard.core.policy import Policy
# An app that is made once has loaded what making one loads late.
run = LoggedRun(state_dir=Path(), checkpoint_root=Path(), policy=Policy())
create_app(Engine(run), Tokens(None, None))
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target in (1, 2):
            os.dup2(log, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name in [n for n in os.environ if n.startswith("RLGUARD_")]:
            del os.environ[name]
        os.environ.update(job["env"])
        exec(job["before"])
        code = guard.main()
        sys.stderr.flush()
        os._exit(code)
    print(pid, flush=True)
"""


class Zygote:
    """Forks guard processes."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        self._lock = threading.Lock()

    def ask(self, job: dict[str, Any]) -> int:
        """Fork a guard (its pid comes back), or wait for one (its exit code comes back)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class Guard:
    """One guard process on a state directory. It may be started again after it ended."""

    zygote: Zygote
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    before: str = ""  # Python that the child runs before `main()`: rlimits, a fault in the store
    pid: int = 0
    url: str = ""

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def log(self) -> str:
        path = self.directory / "guard.log"
        return path.read_text() if path.exists() else ""

    def launch(self) -> None:
        """Start the process, without waiting until it listens."""
        (self.directory / "checkpoints").mkdir(exist_ok=True)
        (self.state / "endpoint.json").unlink(missing_ok=True)
        policy = self.directory / "policy.json"  # JSON is YAML
        policy.write_text(json.dumps(POLICY))
        settings = {
            "PORT": "0",
            "STATE_DIR": str(self.state),
            "CHECKPOINT_ROOT": str(self.directory / "checkpoints"),
            "INGEST_TOKEN": INGEST,
            "READ_TOKEN": READ,
            "POLICY_FILE": str(policy),
        } | self.settings
        given = with_token_files(settings, self.directory)
        env = {f"RLGUARD_GUARD_{name}": value for name, value in given.items()}
        self.pid = self.zygote.ask(
            {"env": env, "log": str(self.directory / "guard.log"), "before": self.before}
        )

    def start(self) -> Guard:
        """Start the process and wait until it listens."""
        self.launch()
        endpoint = self.state / "endpoint.json"
        until = time.monotonic() + START_SECONDS
        while not endpoint.exists():
            if not self.is_alive() or time.monotonic() > until:
                raise AssertionError(f"the guard did not start: {self.log}")
            time.sleep(0.002)
        self.url = json.loads(endpoint.read_text())["url"]
        return self

    def is_alive(self) -> bool:
        """Whether the process runs (a zombie does not)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code (negative: the signal that ended it)."""
        pid, self.pid = self.pid, 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return self.zygote.ask({"wait": pid})

    def wait(self) -> int:
        """Wait until the process ends by itself."""
        pid, self.pid = self.pid, 0
        return self.zygote.ask({"wait": pid})

    def client(self, token: str | None = INGEST) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20.0, trust_env=False)

    def post(self, path: str, content: Any) -> httpx.Response:
        return self.post_bytes(path, json.dumps(content).encode())

    def post_bytes(self, path: str, content: bytes) -> httpx.Response:
        with self.client() as client:
            return client.post(path, content=content, headers={"Content-Type": "application/json"})

    def get(self, path: str) -> httpx.Response:
        with self.client(READ) as client:
            return client.get(path)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def new_guard(zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """Makes guards, each in a directory of its own, and ends them after the test."""
    made: list[Guard] = []

    def make(directory: str = "guard", before: str = "", **settings: str) -> Guard:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        made.append(Guard(zygote, tmp_path / directory, settings, before))
        return made[-1]

    yield make
    for guard in made:
        if guard.pid:
            guard.end(signal.SIGKILL)


@pytest.fixture
def guard(new_guard: Callable[..., Guard]) -> Guard:
    """A running guard without held-out evaluation."""
    return new_guard().start()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose engines look fifty times a second whether the store works and the trainer is silent."""
    monkeypatch.setattr(engine, "TICK_SECONDS", 0.02)
    return Run(tmp_path)


@pytest.fixture
def step() -> Callable[..., dict[str, Any]]:
    """Makes the JSON of a step."""

    def make(number: int, **values: Any) -> dict[str, Any]:
        return {"attempt": 0, "step": number, "reward": 0.5} | values

    return make


@pytest.fixture(scope="session")
def guard_policy() -> Policy:
    """The policy of a guard whose test sets none."""
    return Policy.model_validate(POLICY)


@pytest.fixture(scope="session")
def guard_type() -> type[Guard]:
    """For fixtures that make a guard of their own."""
    return Guard
