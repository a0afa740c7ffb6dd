"""The script of docs/tasks/guard-a-script.md on a real Ray cluster of two nodes, with a real guard.

The head has no CPU, so that the actor is on another node than the driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from guard_service.history import export_history
from tests.docs.blocks import blocks
from tests.token_files import with_token_files

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "guard-a-script.md"
NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **NODE})
    made.add_node(num_cpus=2, **NODE)
    yield made
    made.shutdown()


class Guarded:
    """A guard of this machine, and the script of the page beside it."""

    def __init__(self, folder: Path, cluster: Cluster, policy: str) -> None:
        self.folder, self.state, self._cluster = folder, folder / "state", cluster
        (folder / "policy.yaml").write_text(policy)
        command = [sys.executable, "-m", "guard_service"]
        settings = {"STATE_DIR": self.state, "PORT": 0, "POLICY_FILE": folder / "policy.yaml"}
        settings |= with_token_files({"INGEST_TOKEN": "trainer", "READ_TOKEN": "reader"}, folder)
        settings |= {"CHECKPOINT_ROOT": folder}
        self._guard = subprocess.Popen(
            command,
            env=os.environ | {f"RLGUARD_GUARD_{name}": str(value) for name, value in settings.items()},
        )

    def train(self, steps: int) -> subprocess.CompletedProcess[str]:
        [script] = [block for block in blocks(PAGE) if block.title == "ray_train.py"]
        (self.folder / "ray_train.py").write_text(script.text)
        environment = os.environ | {"RAY_ADDRESS": self._cluster.address, "RLGUARD_TOKEN": "trainer"}
        command = [sys.executable, "ray_train.py", str(steps)]
        environment |= {"RLGUARD_URL": self._url()}
        return subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def _url(self) -> str:
        end = time.monotonic() + 60
        while not (self.state / "endpoint.json").exists():
            assert time.monotonic() < end and self._guard.poll() is None
            time.sleep(0.1)
        return str(json.loads((self.state / "endpoint.json").read_text())["url"])

    def steps(self) -> list[int]:
        """The steps that are on the guard's disk."""
        self._guard.send_signal(signal.SIGTERM)
        assert self._guard.wait(60) == 0
        return [row["step"] for row in export_history(self.state) if row.get("reward") is not None]

    def end(self) -> None:
        if self._guard.poll() is None:
            self._guard.kill()
            self._guard.wait()


@pytest.fixture
def guarded(tmp_path: Path, cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    one = Guarded(tmp_path, cluster, request.param)
    yield one
    one.end()


@pytest.mark.parametrize("guarded", ["{}"], indirect=True)
def test_an_actor_on_another_node_reports_every_step(guarded: Guarded, cluster: Cluster) -> None:
    done = guarded.train(200)
    assert done.returncode == 0, done.stderr
    assert f"200 steps on node {cluster.worker_nodes.copy().pop().node_id}" in done.stdout
    assert guarded.steps() == list(range(1, 201))


@pytest.mark.parametrize(
    "guarded", ["{detector: heldout_guard, kl: {hard_stop: 0.02, min_steps: 5}}"], indirect=True
)
def test_a_stop_ends_the_actor_and_the_driver_with_the_reason(guarded: Guarded) -> None:
    done = guarded.train(1_000_000)
    assert done.returncode != 0
    assert "CollapseStopError" in done.stderr and "kl_hard_stop" in done.stderr, done.stderr
    assert 20 <= len(guarded.steps()) < 1_000_000
