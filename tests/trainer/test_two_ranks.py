"""Two real processes under torchrun with gloo: both ranks stop in the same step, for the same reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.real_guard import LOOSE_KL, TIGHT_KL, RealGuard

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What both ranks saw in each run, and what the guards have on disk."""
    directory = tmp_path_factory.mktemp("ranks")
    output = directory / "out"
    policies = {"strict": TIGHT_KL, "soft": TIGHT_KL, "entrypoint": LOOSE_KL}
    guards = {name: RealGuard(directory / name, output, policy) for name, policy in policies.items()}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
    ]
    try:
        process = subprocess.run(
            [*command, str(tiny_model), str(output), *(guard.url for guard in guards.values())],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-4000:]
        found = {name: {"history": guard.history()} for name, guard in guards.items()}
    finally:
        for guard in guards.values():
            guard.close()
    ranks = [json.loads((output / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {name: found.get(name, {}) | {"ranks": [rank[name] for rank in ranks]} for name in ranks[0]}


@pytest.mark.parametrize("run", ["strict", "soft"])
def test_both_ranks_stop_in_the_same_step(runs: dict[str, Any], run: str) -> None:
    first, second = runs[run]["ranks"]
    assert first == second
    assert 5 <= first["step"] < 500 and "hard stop" in first["stop"]
    assert (first["raised"] is None) == (run == "soft")


@pytest.mark.parametrize("run", ["strict", "soft"])
def test_only_one_rank_reports(runs: dict[str, Any], run: str) -> None:
    steps = [line["step"] for line in runs[run]["history"]]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 5


def test_both_ranks_of_a_restarted_run_stop_before_the_first_step(runs: dict[str, Any]) -> None:
    first, second = runs["restarted"]["ranks"]
    assert first == second and first["step"] == 0 and "hard stop" in first["raised"]


def test_both_ranks_fold_the_same_scores_into_the_kill_switch(runs: dict[str, Any]) -> None:
    first, second = runs["killswitch"]["ranks"]
    assert first == second and first["step"] == 2 and "Hacking Gap" in first["raised"]


def test_the_entrypoint_works_under_torchrun(runs: dict[str, Any]) -> None:
    assert runs["entrypoint"]["ranks"] == [0, 0], "exit codes"
    assert [line["step"] for line in runs["entrypoint"]["history"]] == [1, 2]
