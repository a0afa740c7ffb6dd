"""The real guard process, fed over HTTP, and a headless Chromium that looks at its page.

Chromium is the system's (`make browser` installs it). A missing one is an error, not a skip.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import stub_policy
from tests.stub_policy import Reply, save_checkpoint
from tests.token_files import with_token_files

expect.set_options(timeout=20_000)  # a busy machine is slow; what is expected comes within seconds

ITEMS = 40
POLICY = """
detector: heldout_guard
heldout_guard: {min_steps: 3, ema_alpha: 0.5, max_proxy_real_gap: 0.2}
kl: {hard_stop: 0.3}
"""
READ_TOKEN = "read-token-of-the-test"
INGEST_TOKEN = "ingest-token-of-the-test"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def _reply(asked: dict[str, Any], right: Callable[[int], int]) -> Reply:
    """Say what the policy of step s says: it knows the first `right(s)` of the held-out items."""
    item = int(asked["prompt"].split()[-1])
    return Reply(str(item) if item < right(asked["step"]) else "no")


class Guard:
    """A guard process, the server of the policy that it evaluates, and a client."""

    def __init__(
        self, root: Path, right: Callable[[int], int], extra_policy: str, settings: dict[str, str]
    ) -> None:
        self._open = ExitStack()
        policy = self._open.enter_context(stub_policy.policy(lambda asked: _reply(asked, right)))
        self.state = root / "state"
        self.checkpoints = root / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        split = root / "heldout.jsonl"
        lines = ({"id": f"i{n}", "prompt": f"item {n}", "answer": str(n)} for n in range(ITEMS))
        split.write_text("".join(json.dumps(line) + "\n" for line in lines))
        policy_file = root / "policy.yaml"
        policy_file.write_text(POLICY + extra_policy)
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RLGUARD_")},
            "RLGUARD_GUARD_PORT": "0",
            "RLGUARD_GUARD_STATE_DIR": str(self.state),
            "RLGUARD_GUARD_CHECKPOINT_ROOT": str(self.checkpoints),
            "RLGUARD_GUARD_POLICY_FILE": str(policy_file),
            "RLGUARD_GUARD_HELDOUT__SPLIT": str(split),
            "RLGUARD_GUARD_HELDOUT__EVALUATOR__STOP": '["\\nQ:"]',
            **policy.environment,
            **with_token_files({f"RLGUARD_GUARD_{key.upper()}": v for key, v in settings.items()}, root),
        }
        self.log = root / "guard.log"
        self.shown: dict[int, dict[str, Any]] = {}
        self.start()

    def start(self) -> None:
        endpoint = self.state / "endpoint.json"
        endpoint.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "guard_service"], env=self._environment, stdout=log, stderr=log
            )
        wait_for(lambda: endpoint.exists() or self.process.poll() is not None, "endpoint.json")
        assert self.process.poll() is None, self.log.read_text()
        self.url = json.loads(endpoint.read_text())["url"]
        self._environment["RLGUARD_GUARD_PORT"] = self.url.rsplit(":", 1)[1]  # a restart keeps its address
        headers = {"Authorization": f"Bearer {INGEST_TOKEN}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def post(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """Report steps, with what `show` has for them."""
        answer = self.client.post("/v1/steps", json=[one | self.shown.get(one["step"], {}) for one in steps])
        answer.raise_for_status()
        return answer.json()["verdict"]

    def show(self, step: int, **what: Any) -> None:
        """Have figures or rollouts go with a step that will be reported."""
        self.shown.setdefault(step, {}).update(what)

    def evaluate(self, step: int, attempt: int = 0) -> None:
        """Announce a checkpoint, and wait until it has been scored."""
        path = save_checkpoint(self.checkpoints / f"checkpoint-{step}")
        body = {"attempt": attempt, "step": step, "path": str(path)}
        self.client.post("/v1/checkpoints", json=body).raise_for_status()
        wait_for(lambda: self._last_evaluated() == (attempt, step), f"evaluation of step {step}")

    def _last_evaluated(self) -> tuple[int, int] | None:
        last = self.verdict()["last_evaluation"]
        return last and (last["attempt"], last["step"])

    def verdict(self) -> dict[str, Any]:
        return self.client.get("/v1/verdict").raise_for_status().json()

    def end(self) -> None:
        """End the process. It can be started again on the same address."""
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def close(self) -> None:
        self.end()
        self._open.close()


# Not of the session: while Playwright's synchronous interface is open its event loop runs in this thread, and
# no later test of the process could run one of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "Chromium is not installed: run `make browser`"
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield instance
        instance.close()


@contextmanager
def guards(root: Path) -> Iterator[Callable[..., Guard]]:
    """Starts guards under `root`: without tokens unless they are given, of a policy that stays as it is."""
    started: list[Guard] = []

    def start(
        right: Callable[[int], int] = lambda step: ITEMS // 2, extra_policy: str = "", **settings: str
    ) -> Guard:
        settings = settings or {"allow_unauthenticated_loopback": "true"}
        started.append(Guard(root / f"guard-{len(started)}", right, extra_policy, settings))
        return started[-1]

    try:
        yield start
    finally:
        for guard in started:
            guard.close()


@pytest.fixture
def start_guard(tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """Starts guards of one test."""
    with guards(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Guard]]:
    """Starts guards that several tests only read."""
    with guards(tmp_path_factory.mktemp("guards")) as start:
        yield start


class Watched:
    """Everything a page asked for and complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on(
            "console",
            lambda message: self.errors.append(message.text) if "Content Security" in message.text else None,
        )


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open the page of a guard. At the end: no script failed, and nothing but that guard was asked."""
    opened: list[tuple[str, Watched, BrowserContext]] = []

    def open_page(
        guard: Guard, link: str = "", width: int = 1600, height: int = 1000, scheme: Any = "light"
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        opened.append((guard.url, Watched(context), context))
        page = context.new_page()
        page.goto(f"{guard.url}/{link}")
        return page

    yield open_page
    for url, watched, context in opened:
        context.close()
        assert watched.errors == []
        assert [asked for asked in watched.requests if not asked.startswith(url + "/")] == []


@contextmanager
def stopped(guard: Guard) -> Iterator[None]:
    """The guard holds its socket but answers nothing."""
    guard.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        guard.process.send_signal(signal.SIGCONT)
