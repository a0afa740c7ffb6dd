"""`given`, and what is made once for all scenarios."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.given import ENVIRONMENT, HERE, Given, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def given(stage: Stage) -> Given:
    return Given(stage)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that solves half of its held-out split; all workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "trained"
    with (shared / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "policy").exists():
            folder.mkdir(exist_ok=True)
            command = [sys.executable, str(HERE / "hack.py"), "policy", str(folder)]
            subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    return folder
