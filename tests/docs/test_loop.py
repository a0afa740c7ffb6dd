"""The PyTorch loop of the page about scripts, as it is printed, with a real guard."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks
from tests.docs.test_blocks import ROOT, environment, materials, sandbox

__all__ = ["materials", "sandbox"]
PAGE = ROOT / "docs" / "tasks" / "guard-a-script.md"
[LOOP] = [block for block in blocks(PAGE) if block.title == "loop.py"]
[COMMAND] = [line for block in blocks(PAGE) if block.is_shell for line in block.commands if "loop.py" in line]
pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture
def folder(sandbox: Path) -> Path:
    """With tasks that a policy of random weights solves now and then: so it learns, and moves away."""
    tasks = [{"id": str(n), "prompt": f"{n} + 1 is?", "answer": str((n + 1) % 10)} for n in range(60)]
    for name, some in (("train", tasks[:40]), ("heldout", tasks[40:])):
        (sandbox / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in some))
    return sandbox


def guarded(folder: Path, script: str, *options: str) -> tuple[int, str]:
    """The page's command with this script, and more options of `rlguard run`."""
    (folder / "loop.py").write_text(script)
    command = COMMAND.replace(" -- ", f" {' '.join(('--out report', *options))} -- ")
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report" / "history.jsonl").read_text().splitlines()]


def test_its_steps_and_checkpoints_are_with_the_guard(folder: Path) -> None:
    code, said = guarded(folder, LOOP.in_the_test)
    assert code == 5, said  # so few checkpoints are no judgement
    steps = [row for row in rows(folder) if row.get("reward") is not None]
    assert [row["step"] for row in steps] == list(range(1, 9)), said
    assert {row["kl_kind"] for row in steps} == {"ref_token_mean"}
    assert any(row["reward"] > 0 for row in steps)
    assert steps[0]["kl"] == 0, "the reference is the starting policy"
    assert steps[-1]["kl"] > 0
    scored = {row["step"] for row in rows(folder) if row.get("items")}
    assert scored == {0, 4, 8}, said
    assert all((folder / "out" / f"step-{step}" / "model.safetensors").exists() for step in (4, 8))


def test_the_guard_ends_it(folder: Path) -> None:
    """With a learning rate at which the policy leaves its reference at once; 400 steps would take minutes."""
    (folder / "policy.yaml").write_text("kl: {hard_stop: 0.05, min_steps: 5}\n")
    script = LOOP.text.replace("lr=1e-5", "lr=1e-2")
    assert script != LOOP.text
    code, said = guarded(folder, script, "--policy policy.yaml")
    assert code == 3, said
    assert "kl_hard_stop" in (folder / "report" / "verdict.json").read_text()
    assert max(row["step"] for row in rows(folder) if row.get("reward") is not None) < 400
