"""What a run exits with: each way to end, and which one wins when several hold."""

from pathlib import Path

import pytest

from guard_cli.errors import ExitCode, exit_code_help
from guard_cli.run.outcome import Ending, judge_ending
from guard_core.wire import Code, Condition, EvaluationSummary, Level, Verdict

EVALUATED = EvaluationSummary(attempt=0, step=4, score=0.5, items=8, path="/c/4")


def verdict(**changes):
    healthy = {"level": "healthy", "code": "ok", "reason": "fine", "fire": False, "halt": False}
    return Verdict(**{**healthy, "steps": 4, "rounds": 2, "last_evaluation": EVALUATED, **changes})


FIRE = verdict(fire=True, halt=True, level="fired", code="hacking_gap", reason="too wide", latch_step=3)
STOP = verdict(
    halt=True,
    level="fired",
    code="silent",
    reason="no step for 9 s",
    latch_step=3,
    conditions=(Condition(code=Code.SILENT, level=Level.WARNING, message="no step for 9 s", policy="stop"),),
)


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        (Ending(verdict(), 0, True), 0, "without a fire"),
        (Ending(FIRE, 143, False), 3, "fired at step 3: too wide"),
        (Ending(FIRE, 0, True), 3, "after the trainer had finished"),
        (Ending(FIRE, 1, True), 3, "fired at step 3"),
        (Ending(FIRE, 143, False, interrupted_by=2), 3, "fired"),
        (Ending(FIRE, 143, False, guard_trouble="died"), 3, "fired"),
        (Ending(verdict(), 130, False, interrupted_by=2), 130, "SIGINT"),
        (Ending(verdict(), 0, True, interrupted_by=15), 143, "SIGTERM"),
        (Ending(STOP, 143, False, interrupted_by=15), 143, "SIGTERM"),
        (Ending(verdict(), 143, False, guard_trouble="the guard died"), 5, "the guard died"),
        (Ending(STOP, 143, False), 4, "stopped by policy at step 3: no step for 9 s"),
        (Ending(STOP, 0, True), 4, "stopped by policy"),
        (Ending(verdict(), 7, True), 7, "exit code 7"),
        (Ending(None, 0, True), 5, "reported no step"),
        (Ending(verdict(steps=0), 0, True), 5, "reported no step"),
        (Ending(verdict(), 0, True, waiting=2), 5, "2 checkpoints"),
        (Ending(verdict(), 0, True, waiting=None), 5, "unknown number"),
        (Ending(verdict(last_evaluation=None), 0, True), 5, "no checkpoint was evaluated"),
    ],
)
def test_the_first_that_holds_decides(ending, code, words):
    outcome = judge_ending(ending)
    assert (outcome.code, words in outcome.sentence) == (code, True), outcome


def test_a_process_that_survives_sigkill_is_named():
    assert (
        "STILL RUNNING after SIGKILL: process 12, 34"
        in judge_ending(Ending(FIRE, 0, False, leftovers=(12, 34))).sentence
    )


def test_every_exit_code_is_explained():
    text = exit_code_help()
    assert all(f"{code.value} {code.meaning}" in text for code in ExitCode)


def test_the_documentation_has_the_same_exit_codes():
    rows = (Path(__file__).parents[3] / "docs" / "run.md").read_text().splitlines()
    documented = {tuple(c.strip() for c in r.strip("|").split("|")) for r in rows if r.startswith("| ")}
    assert {(str(code.value), code.meaning) for code in ExitCode} <= documented
