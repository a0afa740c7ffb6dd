"""Evaluations that fail, hang, or run out of memory; checkpoints that want to carry items out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios import interface
from tests.scenarios.given import Given, Stage

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(interface.TEST)]

SCORERS = """
import os, signal, time

def hangs(completion, answer, meta):
    while completion != answer:
        time.sleep(1)
    return 1.0

def fails(completion, answer, meta):
    if completion != answer:
        raise RuntimeError("the scorer is broken: " + answer)
    return 1.0

def eats_memory(completion, answer, meta):
    if completion != answer:
        raise MemoryError
    return 1.0

def is_killed(completion, answer, meta):  # as the kernel does to a process that is out of memory
    if completion != answer:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0
"""

#: What the last lines of `rlguard run` say of each.
NAMED = {
    "hangs": r"\b2 s\b|=2\b",  # its limit
    "fails": r"RuntimeError|scorer",
    "eats_memory": r"MemoryError|memory",
    "is_killed": r"signal|killed|memory",
}


@pytest.mark.parametrize("scorer", NAMED)
def test_an_evaluation_that_is_not_made_halts_a_run_that_wants_it(
    given: Given, stage: Stage, trained: Path, scorer: str
) -> None:
    """Scenario 7: exit code 4 and never a fire, and the last lines say why."""
    (stage.folder / "scorers.py").write_text(SCORERS)
    given.environment(PYTHONPATH=str(stage.folder)).a_policy_with_its_split(trained)
    given.thresholds(interface.STOPS_ON_FAILURE)
    given.options("--scorer", f"scorers:{scorer}", *interface.SAMPLING)
    if scorer == "hangs":
        given.options("--scorer-timeout", "2")
    given.a_trainer("--checkpoint-every", "5", "--until", str(stage.folder / "never"), "--pause", "0.3")
    given.when().the_run_ends().then().exit_code(
        interface.HALTED
    ).the_training_was_cut().nothing_runs_any_more()
    assert not stage.report.verdict().fired
    end = "\n".join(stage.printed("run").splitlines()[-3:])
    assert re.search(NAMED[scorer], end), end
