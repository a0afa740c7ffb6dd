"""A step and a checkpoint cross the files that docs/concepts/architecture.md lists, up to the verdict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.face import walk

ROOT = Path(__file__).resolve().parents[2]

#: Values, what evaluations have found so far, and what a trainer does with the verdict of an earlier step.
BESIDE = {
    *(
        "rlguard/core/wire.py",
        "rlguard/core/codes.py",
        "rlguard/client/samples.py",
        "rlguard/core/trainer_view.py",
    ),
    *("rlguard/core/heldout_guard.py", "rlguard/core/unscored.py", "rlguard/core/detectors/run.py"),
    *("rlguard/client/waiting.py", "rlguard/client/log.py", "trainer_image/experiment.py"),
    *("trainer_image/ranks.py", "guard_service/heldout/worker.py", "guard_service/heldout/config.py"),
}
#: Beside a checkpoint: values, and how a row of the log looks.
BESIDE_A_CHECKPOINT = {f"guard_service/{name}.py" for name in ("database", "errors", "events", "history")} | {
    "guard_service/termination.py"
}


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    folder = tmp_path_factory.mktemp("walk")
    flag, crossed = folder / "flag", folder / "crossed"
    flag.write_bytes(walk.OFF)
    crossed.touch()
    (folder / "sitecustomize.py").write_text("from tests.face.walk import trace\ntrace()\n")
    rows = [{"id": f"i{n}", "prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (folder / "split.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = {**os.environ, walk.FLAG: str(flag), walk.CROSSED: str(crossed)}
    env["PYTHONPATH"] = f"{folder}:{ROOT}"
    command = [sys.executable, walk.__file__, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, set[str]] = {"step": set(), "checkpoint": set()}
    for line in crossed.read_text().splitlines():
        what, path = line.split()
        found[what].add(path)
    return found


def listed(heading: str) -> set[str]:
    """The files that a list of the page has."""
    page = (ROOT / "docs/concepts/architecture.md").read_text("utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\d+\. `([\w/.]+)`", section, re.MULTILINE))


@pytest.mark.torch
def test_a_step_crosses_the_files_that_the_architecture_lists(crossed: dict[str, set[str]]) -> None:
    assert crossed["step"] - BESIDE - {"tests/face/walk.py"} == listed("A step")
    assert len(listed("A step")) <= 10


@pytest.mark.torch
def test_a_checkpoint_crosses_the_files_that_the_architecture_lists(crossed: dict[str, set[str]]) -> None:
    """They use others of the held-out evaluation and of the detectors, which have lists of their own."""
    way = listed("A checkpoint")
    assert way <= crossed["checkpoint"] and len(way) <= 15
    own = ("rlguard/core/", "guard_service/heldout/", "tests/")
    others = {path for path in crossed["checkpoint"] - way - BESIDE if not path.startswith(own)}
    assert others <= BESIDE_A_CHECKPOINT
