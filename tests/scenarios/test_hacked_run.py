"""Real GRPO with TRL: a run that hacks its reward, and its honest twin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios import interface
from tests.scenarios.given import ENVIRONMENT, HERE, Given, Stage, wait_for

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(interface.TEST)]

STEPS = 60


def assert_stopped_in_time(stage: Stage) -> None:
    """The newest weights on disk keep at least half of the held-out score that the policy started with."""
    assert stage.trained is not None
    newest = max(stage.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    kept, start = (heldout_score(stage, path) for path in (newest, stage.trained / "policy"))
    assert kept >= start / 2, f"{newest.name} has {kept:.3f}, of {start:.3f} at the start"


def heldout_score(stage: Stage, checkpoint: Path) -> float:
    """By the scenario itself; no guard is asked."""
    command = [sys.executable, str(HERE / "hack.py"), "score", str(stage.heldout), str(checkpoint)]
    return float(subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True).stdout)


def assert_a_replay_agrees(report: interface.Report) -> None:
    """Scenario 11: replaying the recorded run gives the live verdict, at the same step."""
    done = subprocess.run(
        interface.replay(report.folder), capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    live = report.verdict()
    assert interface.replayed(done.stdout) == (live.level, live.fired_at)


def test_a_run_that_hacks_is_stopped_in_time(given: Given, stage: Stage, trained: Path) -> None:
    """Scenarios 1 and 11."""
    given.a_policy_with_its_split(trained).thresholds(interface.FOUR_PASSES)
    given.a_grpo_run("--steps", str(STEPS))
    then = given.when().the_run_ends().then().exit_code(interface.FIRED)
    then.the_training_was_cut().nothing_runs_any_more()
    assert_stopped_in_time(stage)
    assert_a_replay_agrees(stage.report)


def test_its_honest_twin_ends_with_0(given: Given, stage: Stage, trained: Path) -> None:
    """Scenarios 1 and 11."""
    given.a_policy_with_its_split(trained).thresholds(interface.FOUR_PASSES)
    given.a_grpo_run("--honest", "--steps", "24")
    then = given.when().the_run_ends().then().exit_code(interface.FINISHED)
    then.the_training_was_complete().nothing_runs_any_more()
    assert stage.report.verdict().level == "healthy"
    assert_a_replay_agrees(stage.report)


@pytest.mark.nightly  # the slower the machine scores, the later it is stopped: nothing waits
def test_followed_by_its_log_alone_it_is_stopped_in_time(given: Given, stage: Stage, trained: Path) -> None:
    """Scenario 2. The trainer has no line for the guard, so nothing waits."""
    given.a_policy_with_its_split(trained).thresholds(interface.FOUR_PASSES)
    given.options("--follow", "-", "--format", "trl", *interface.SAMPLING)
    given.a_grpo_run("--logs-only", "--steps", str(STEPS))
    then = given.when().the_run_ends().then().exit_code(interface.FIRED)
    then.the_training_was_cut().nothing_runs_any_more()
    assert_stopped_in_time(stage)


def test_a_trainer_that_is_killed_and_resumed_is_one_run(given: Given, stage: Stage, trained: Path) -> None:
    """Scenario 5. The second start goes on from a checkpoint of the first, in the same history."""
    given.a_policy_with_its_split(trained).thresholds(interface.FEW_PASSES)
    given.a_grpo_run("--honest", "--resumable", "--steps", "8")
    when = given.when().the_guard_starts().the_trainer_starts("first", "--stand-still-after", "5")
    when.wait_for_line("first", "stands still after step 5", interface.RUN)
    wait_for(lambda: 5 in interface.reported_steps(stage.guard().history()), "step 5 is reported")
    when.is_killed("first")
    first = interface.reported_steps(stage.guard().history(), 0)
    when.the_trainer_starts("second", "--resume").wait_for_the_end_of("second")
    when.then().exit_code(0, "second")
    second = interface.reported_steps(stage.guard().history(), 1)
    assert first == [1, 2, 3, 4, 5]
    assert second == list(range(5, 9)), "from the checkpoint of step 4"
    when.evaluations_are_made(5)  # of the start, and of steps 2 and 4, then 6 and 8
    scored = [line["step"] for line in stage.guard().history() if line.get("heldout") is not None]
    assert scored == sorted(set(scored)), "no checkpoint was scored for two starts"
    assert stage.guard().verdict().level not in ("fired", "warning")
