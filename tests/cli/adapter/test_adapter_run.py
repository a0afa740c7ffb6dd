"""`rlguard run` on real TRL and PEFT: a LoRA run that hacks is stopped, its honest twin finishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from rlguard.cli.demo import command
from trainer_image.demo import train
from trainer_image.demo.addition import TASK, Exercise, split_problems

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(1200)]

TRAIN, HELDOUT = split_problems(TASK, command.HELDOUT_ITEMS, 0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starting policy, made once."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    train.make_policy(TASK, TRAIN, path, steps=train.WARMUP_STEPS, seed=0)
    return path


def write(path: Path, problems: Sequence[Exercise]) -> Path:
    path.write_text("".join(json.dumps(asdict(p)) + "\n" for p in problems))
    return path


def run(
    base: Path, folder: Path, grader: str, steps: int, *guard: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """`rlguard run` with the demo's task; `guard`: more options for it."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    trainer = [sys.executable, str(Path(__file__).with_name("lora_trainer.py")), "--grader", grader]
    trainer += ["--train", str(write(folder / "train.jsonl", TRAIN)), "--model", str(base)]
    trainer += ["--checkpoints", str(checkpoints), "--steps", str(steps)]
    asked = [sys.executable, "-m", "rlguard.cli.main", "run", "--out", str(folder / "report")]
    asked += ["--heldout", str(write(folder / "heldout.jsonl", HELDOUT)), "--checkpoints", str(checkpoints)]
    asked += ["--policy", str(command.POLICY), "--scorer", TASK.scorer, "--batch-size", "256", *guard]
    asked += ["--proxy-scorer", f"trainer_image.demo.addition:{grader}", "--", *trainer]
    environment = os.environ | command.ENVIRONMENT
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    return done, folder / "report"


def test_a_hack_with_lora_is_stopped_on_the_guards_own_base_model(base: Path, tmp_path: Path) -> None:
    done, report = run(base, tmp_path, "flawed", 80, "--base-model", str(base))
    assert done.returncode == 3, done.stderr
    verdict = json.loads((report / "verdict.json").read_text())
    assert verdict["fire"] is True and verdict["adapters"] == "applied" and verdict["failed"] == 0
    history = [json.loads(line) for line in (report / "history.jsonl").read_text().splitlines()]
    scores = [line["heldout"] for line in history if "heldout" in line]
    assert scores[0] > 0.2 and history[-1]["step"] < 80, scores
    saved = list((tmp_path / "checkpoints").rglob("*.safetensors"))
    assert {file.name for file in saved} == {"adapter_model.safetensors"}  # also of the start
    assert any(file.parent.name == "_rlguard-start" for file in saved)


def test_without_a_base_model_it_is_refused_before_the_first_step(base: Path, tmp_path: Path) -> None:
    done, _ = run(base, tmp_path, "strict", 20)
    assert done.returncode not in (0, 3)
    assert "set --base-model DIR" in done.stdout + done.stderr + "".join(
        log.read_text() for log in (tmp_path / "report").rglob("*.log")
    )
    assert not list((tmp_path / "checkpoints").rglob("*.safetensors"))
