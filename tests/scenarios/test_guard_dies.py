"""The guard is killed, moved, started twice, frozen, or has no disk left."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.scenarios import interface
from tests.scenarios.given import Given, Poster, Stage, When, children, free_port, is_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(interface.TEST)]

KILLS = 20
FIRES_AFTER = 12


def test_killed_20_times_it_loses_no_acknowledged_step_and_opens_no_latch(given: Given, stage: Stage) -> None:
    """Scenario 4. Two trainers post all the time; one of them goes too far while kills go on."""
    when = given.thresholds(interface.FIRES_ON_KL).when().the_guard_starts()
    far = threading.Event()
    drifting = Poster(stage.guard("trainer"), 0, lambda: interface.FAR_KL if far.is_set() else 0.01)
    steady = Poster(stage.guard("trainer"), 1, lambda: 0.01)
    chance = random.Random(4)
    drifting.start()
    steady.start()
    for kill in range(KILLS):
        if kill == FIRES_AFTER:
            far.set()
            wait_for(drifting.saw_fire.is_set, "the drifting trainer sees a fire")
        time.sleep(chance.random())
        when.the_guard_is_killed()
        fired = drifting.saw_fire.is_set() or steady.saw_fire.is_set()
        when.the_guard_starts()
        assert stage.guard().verdict().fired or not fired
    for poster in (drifting, steady):
        poster.ended.set()
        poster.join()
        assert not poster.opened
        assert not poster.wrong
        lines = interface.reported_steps(stage.guard().history(), poster.attempt)
        assert lines == sorted(set(lines)), "each step once"
        assert set(poster.acknowledged) <= set(lines)
    when.then().the_level_is("fired").the_guard_says_stop()


def test_a_second_guard_on_one_state_folder_takes_nothing(given: Given, stage: Stage) -> None:
    """Scenario 9. It says why in one line, is not ready, and the first one does not notice."""
    when = given.when().the_guard_starts().steps_are_reported(range(1, 6))
    first = stage.port
    stage.port = free_port()
    second = interface.serve(
        stage.state, stage.port, stage.checkpoints, stage.tokens, stage.policy_file, stage.heldout
    )
    stage.start("second", second)
    when.wait_for_line("second", interface.URL)
    assert not stage.guard().ready()
    assert stage.guard().verdict().level == "unknown"
    when.steps_are_reported(range(6, 9), expect=503)
    assert sum(str(stage.state) in line for line in stage.printed("second").splitlines()) == 1
    stage.port = first
    when.steps_are_reported(range(6, 9)).then().the_history_has(range(1, 9))


def test_a_second_run_in_one_report_folder_is_refused(given: Given, stage: Stage) -> None:
    """Scenario 9. Its trainer does not start."""
    given.a_trainer("--until", str(stage.folder / "enough")).when().the_run_starts()
    pid = stage.trainer["pid"]
    stage.started_file.unlink()
    when = When(stage).the_run_starts("second").wait_for_the_end_of("second")
    when.then().exit_code(interface.REFUSED, "second")
    assert len(stage.printed("second").splitlines()) == 1, stage.printed("second")
    assert not stage.started_file.exists()
    when.a_file_appears("enough").wait_for_the_end_of("run").then().the_training_was_complete()
    assert pid in stage.seen


@pytest.mark.torch
def test_moved_it_goes_on_with_the_past_of_the_run(given: Given, stage: Stage, trained: Path) -> None:
    """Scenario 10. The starting policy is not scored again, and no checkpoint twice."""
    from tests.scenarios.trainer import save_changed

    given.a_policy_with_its_split(trained).thresholds(interface.FEW_PASSES)
    saved = [save_changed(trained / "policy", stage.checkpoints / f"step-{n}", n) for n in (0, 5, 10)]
    when = given.when().the_guard_starts()
    when.a_checkpoint_is_announced(saved[0], 0).steps_are_reported(range(1, 6))
    when.a_checkpoint_is_announced(saved[1], 5).evaluations_are_made(2)
    before = (stage.guard().verdict().level, stage.guard().history())
    when.the_guard_is_killed().the_state_folder_is_moved().the_guard_starts()
    assert (stage.guard().verdict().level, stage.guard().history()) == before
    when.steps_are_reported(range(6, 11)).a_checkpoint_is_announced(saved[2], 10).evaluations_are_made(3)
    when.then().the_history_has(range(1, 11))
    after = stage.guard().history()
    assert after[: len(before[1])] == before[1]
    assert len(interface.heldout_scores(after)) == len(interface.heldout_scores(before[1])) + 1


def test_frozen_under_a_supervisor_it_is_never_taken_for_healthy(given: Given, stage: Stage) -> None:
    """Scenario 6. The trainer finishes while nobody guards it: that is no success, and the run says why."""
    given.options("--drain", "3").a_trainer("--until", str(stage.folder / "enough")).when().the_run_starts()
    trainer = stage.trainer["pid"]
    run = stage.processes["run"].pid
    others = wait_for(lambda: set(children(run)) - {trainer}, "the run has a guard")
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    when = When(stage).a_file_appears("enough").wait_for_the_end_of("run")
    when.then().exit_code(interface.NOT_JUDGED).nothing_runs_any_more()
    end = stage.printed("run").splitlines()[-3:]
    assert any(re.search("guard.* respon", line) for line in end), end


def test_frozen_it_stops_a_trainer_that_has_no_supervisor(given: Given, stage: Stage) -> None:
    """Scenario 6. A trainer does not train on unguarded for longer than it may."""
    given.environment(**{interface.UNREACHABLE_AFTER: "3"}).a_trainer("--until", str(stage.folder / "never"))
    when = given.when().the_guard_starts().the_trainer_starts().wait_for_line("trainer", "step 5 done")
    when.the_guard_is_frozen().wait_for_the_end_of("trainer").then().the_trainer_failed()


def test_a_fire_while_the_supervisor_is_down_still_stops_the_trainer(given: Given, stage: Stage) -> None:
    """Scenario 3. Whoever asks the guard later is told of the fire, also the next guard."""
    given.thresholds(interface.FIRES_ON_KL)
    far = stage.folder / "far"
    given.a_trainer("--kl-from", str(far), "--until", str(stage.folder / "never"), "--pause", "0.2")
    when = given.when().the_run_starts()
    trainer = stage.trainer
    left = interface.Api(trainer[interface.URL], trainer[interface.TOKEN])
    wait_for(lambda: left.verdict().steps >= 10, "it is known where the KL starts")
    when.is_killed("run").a_file_appears(far.name)
    wait_for(lambda: not is_running(trainer["pid"]), "the trainer stops by itself")
    assert "the training is complete" not in stage.report.trainer_output()
    assert left.verdict().fired
    stage.close()  # the guard that was left, too
    stage.state = stage.report.state
    when.the_guard_starts().then().the_level_is("fired").the_guard_says_stop()


def test_a_full_disk_loses_nothing_and_is_freed_again(given: Given, stage: Stage) -> None:
    """Scenario 13. A step that the disk has no room for is refused, and never acknowledged."""
    stage.state.mkdir()
    user = () if os.getuid() == 0 else ("--map-root-user",)
    mount = f'mount -t tmpfs -o size=2m none {stage.state} && exec "$@"'
    when = given.when().the_guard_starts(("unshare", "--mount", *user, "sh", "-c", mount, "sh"))
    when.steps_are_reported(range(1, 21))
    inside = Path(f"/proc/{stage.processes['guard'].pid}/root{stage.state}")
    ballast = inside / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    api = stage.guard("trainer")
    number = 20
    status = 200
    while status == 200:  # what the store has allocated already takes a few more
        number += 1
        assert number < 100_000
        status, body = api.call(interface.STEPS, interface.step_report(number))
    assert status >= 500, body
    assert stage.guard().verdict().level == "unknown"
    ballast.unlink()
    wait_for(
        lambda: api.call(interface.STEPS, interface.step_report(number))[0] == 200, "it takes steps again"
    )
    when.then().the_history_has(range(1, number + 1))
