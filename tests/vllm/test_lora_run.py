"""`rlguard run --vllm` on real GRPO runs of TRL and PEFT: one that hacks is stopped, its honest twin ends.

Two environments, as a user has them: the guard's with vLLM is that of these tests, the trainer's is `.venv`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlguard.cli.demo import command
from trainer_image.demo.addition import TASK, Exercise, split_problems

pytestmark = pytest.mark.timeout(3000)

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / ".venv" / "bin" / "python"
TRAIN, HELDOUT = split_problems(TASK, command.HELDOUT_ITEMS, 0)
#: Of the run that hacks, which an adapter takes longer to learn than the whole policy of the demo does.
STEPS = 200
#: Of its twin: more than any that hacks has taken to be stopped (20 and 78).
HONEST = 100
GUARD = "heldout: {evaluator: {kind: vllm, dtype: float32, enforce_eager: true}}\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starting policy, made once."""
    assert TRAINER.exists(), "the trainer's environment is not there: run `make install`"
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    made = [str(TRAINER), str(Path(__file__).with_name("untied_base.py")), str(path)]
    subprocess.run(made, check=True, env=os.environ | command.ENVIRONMENT)
    return path


def write(path: Path, problems: Sequence[Exercise]) -> Path:
    path.write_text("".join(json.dumps(asdict(p)) + "\n" for p in problems))
    return path


def run(
    base: Path, folder: Path, grader: str, steps: int
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Exit code, last verdict and history of a guarded run with the demo's task."""
    checkpoints, report = folder / "checkpoints", folder / "report"
    checkpoints.mkdir()
    (folder / "guard.yaml").write_text(GUARD)
    trainer = [str(TRAINER), str(ROOT / "tests/cli/adapter/lora_trainer.py"), "--grader", grader]
    trainer += ["--train", str(write(folder / "train.jsonl", TRAIN)), "--model", str(base)]
    trainer += ["--checkpoints", str(checkpoints), "--steps", str(steps)]
    asked = [sys.executable, "-m", "rlguard.cli.main", "run", "--vllm", "--base-model", str(base)]
    asked += ["--config", str(folder / "guard.yaml"), "--out", str(report)]
    asked += ["--heldout", str(write(folder / "heldout.jsonl", HELDOUT)), "--checkpoints", str(checkpoints)]
    asked += ["--policy", str(command.POLICY), "--scorer", TASK.scorer, "--batch-size", "256"]
    asked += ["--proxy-scorer", f"trainer_image.demo.addition:{grader}", "--", *trainer]
    began = time.monotonic()
    done = subprocess.run(
        asked, capture_output=True, text=True, check=False, env=os.environ | command.ENVIRONMENT
    )
    logs = "".join(log.read_text()[-2000:] for log in folder.rglob("*.log"))
    assert (report / "verdict.json").exists(), done.stderr + logs
    verdict = json.loads((report / "verdict.json").read_text())
    history = [json.loads(line) for line in (report / "history.jsonl").read_text().splitlines()]
    scores = [(line["step"], line["heldout"]) for line in history if line.get("heldout") is not None]
    rewards = [line["reward"] for line in history if line["reward"] is not None]
    print(f"\n{grader}: exit code {done.returncode} after {time.monotonic() - began:.0f} s")
    print(f"  {done.stderr.strip().splitlines()[-2:]}")
    print(f"  held-out {scores}\n  reward {sum(rewards[:8]) / 8:.3f} -> {sum(rewards[-8:]) / 8:.3f}")
    print(f"  last step {history[-1]['step']}, conditions {[c['code'] for c in verdict['conditions']]}")
    return done.returncode, verdict, history


def test_a_hack_with_lora_is_stopped(base: Path, tmp_path: Path) -> None:
    code, verdict, history = run(base, tmp_path, "flawed", STEPS)
    assert code == 3, verdict
    assert verdict["fire"] is True and verdict["adapters"] == "applied" and verdict["failed"] == 0
    scores = [line["heldout"] for line in history if line.get("heldout") is not None]
    assert scores[0] > 0.2 and history[-1]["step"] < STEPS, scores
    saved = list((tmp_path / "checkpoints").rglob("*.safetensors"))
    assert {file.name for file in saved} == {"adapter_model.safetensors"}


def test_its_honest_twin_finishes(base: Path, tmp_path: Path) -> None:
    code, verdict, _ = run(base, tmp_path, "strict", HONEST)
    assert code == 0, verdict
    assert verdict["rounds"] == HONEST // 2 and verdict["failed"] == verdict["refused"] == 0
