import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests import stub_policy
from tests.stub_policy import Reply

TRAINER = Path(__file__).with_name("fake_trainer.py")


@pytest.fixture(scope="session", autouse=True)
def sigint_is_not_ignored():
    """A runner in the background hands SIGINT on as ignored, and `rlguard run` respects that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def model_policy():
    """Replies "right" to every prompt, until the test gives it another `reply`."""
    with stub_policy.policy(lambda asked: Reply("right")) as served:
        yield served


class Workplace:
    """A folder with a held-out split and a policy, in which `rlguard run` is started."""

    def __init__(self, path, url):
        self.path, self.url = path, url
        self.out = path / "out"
        self.checkpoints = path / "checkpoints"
        self.checkpoints.mkdir()
        self.split(4)
        self.policy(
            "{detector: heldout_guard, heldout_guard: {min_steps: 1}, kl: {hard_stop: 1.0, min_steps: 5}}"
        )

    def split(self, count):
        items = [{"id": f"item-{i}", "prompt": f"prompt number {i}", "answer": "right"} for i in range(count)]
        (self.path / "secret-split.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))

    def policy(self, text):
        (self.path / "policy.yaml").write_text(text)

    def config(self):
        split = str(self.path / "secret-split.jsonl")
        file = self.path / "guard.yaml"
        file.write_text(json.dumps({"heldout": {"split": split}}))  # JSON is YAML
        return file

    def arguments(self, *actions, options=()):
        return [
            *(sys.executable, "-m", "rlguard.cli.main", "run", "--config", str(self.config())),
            *("--policy", str(self.path / "policy.yaml"), "--checkpoints", str(self.checkpoints)),
            *("--out", str(self.out), "--grace", "0.5", *options, "--"),
            *(sys.executable, str(TRAINER), str(self.checkpoints), *actions),
        ]

    def start(self, *actions, options=(), url=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
        return subprocess.Popen(
            self.arguments(*actions, options=options),
            env=os.environ | stub_policy.environment(url or self.url),
            cwd=self.path,
            stdout=stdout,
            stderr=stderr,
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
def workplace(tmp_path, model_policy):
    return Workplace(tmp_path, model_policy.url)


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
