"""The demo as a user runs it: real TRL GRPO, real guard, real evaluation of real checkpoints."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]


def demo(folder, *options):
    command = [sys.executable, "-m", "rlguard.cli.main", "demo", "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, folder / "report"


def test_the_hack_is_stopped_while_heldout_is_above_half_of_its_start(tmp_path):
    done, report = demo(tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    verdict = json.loads((report / "verdict.json").read_text())
    assert verdict["fire"] is True
    assert verdict["code"] in (
        "graders_disagree",
        "fell_below_start",
        "fell_below_start",
        "reward_without_gain",
    )
    history = [json.loads(line) for line in (report / "history.jsonl").read_text().splitlines()]
    scores = [line["heldout"] for line in history if "heldout" in line]
    assert scores[-1] > scores[0] / 2
    assert history[-1]["step"] < 80
    assert (report / "best_checkpoint" / "model.safetensors").exists()
    assert "fire at step" in (report / "report.html").read_text()


def test_an_honest_run_finishes(tmp_path):
    done, report = demo(tmp_path / "demo", "--benign", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "without a fire" in done.stderr
    assert json.loads((report / "verdict.json").read_text())["rounds"] == 10, (
        "as many as it takes to know the noise of two steps"
    )
