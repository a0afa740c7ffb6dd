"""A trainer without a line of RLGuard, a real guard, and between them followers that are killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import stub_policy
from tests.cli.run.conftest import Workplace, model_policy, sigint_is_not_ignored

pytestmark = pytest.mark.nightly

__all__ = ["model_policy", "sigint_is_not_ignored"]
WRITER = Path(__file__).with_name("writer.py")
EXPECTED = [(0, s) for s in range(1, 13)] + [(1, s) for s in range(9, 21)]


@pytest.fixture
def workplace(tmp_path, model_policy, monkeypatch):
    for name, value in stub_policy.environment(model_policy.url).items():
        monkeypatch.setenv(name, value)
    return Workplace(tmp_path, model_policy.url)


def rlguard(*arguments, **more):
    command = [sys.executable, "-m", "rlguard.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def run(workplace, follow, *trainer, options=()):
    process = rlguard(
        *("run", "--config", workplace.config(), "--policy", workplace.path / "policy.yaml"),
        *("--checkpoints", workplace.checkpoints, "--out", workplace.out, "--grace", "0.5"),
        *("--follow", follow, "--format", "verl", *options, "--", sys.executable, WRITER, *trainer),
        cwd=workplace.path,
    )
    output, errors = process.communicate(timeout=120)
    return process.returncode, output + errors


def test_run_follows_a_trainer_that_starts_again(workplace):
    log = workplace.path / "run.jsonl"
    log.write_text('{"step": 1, "data": {"critic/score/mean": 9.0}}\n')  # of the run before
    code, said = run(workplace, log, log, workplace.checkpoints, options=["--map", "kl=actor/kl_loss"])
    assert code in (0, 5), said
    rows = [row for row in workplace.history() if row.get("reward") is not None]
    assert [(row["attempt"], row["step"]) for row in rows] == EXPECTED, said
    assert all(row["kl"] == row["step"] / 1000 for row in rows)
    scored = {(r["attempt"], r["step"]) for r in workplace.history() if r.get("heldout") is not None}
    assert scored == {(0, 4), (0, 8), (0, 12), (1, 12), (1, 16), (1, 20)}
    verdict = workplace.json("verdict.json")
    assert verdict["evaluated"] == verdict["announced"] == 6


def test_run_reads_what_the_trainer_prints_and_stops_it(workplace):
    """`--follow -` reads the trainer's own output; the log that it writes, too, is not looked at."""
    workplace.policy("{detector: heldout_guard, kl: {hard_stop: 0.02, min_steps: 5}}")
    log = workplace.path / "aside" / "run.jsonl"
    log.parent.mkdir()
    code, said = run(
        workplace, "-", log, workplace.checkpoints, "hack", options=["--map", "kl=actor/kl_loss"]
    )
    assert code == 3, said
    assert "kl_hard_stop" in json.dumps(workplace.json("verdict.json"))
    rows = [(row["step"], row["kl"]) for row in workplace.history() if row.get("reward") is not None]
    assert rows == [(step, step / 1000) for step in range(1, len(rows) + 1)]
