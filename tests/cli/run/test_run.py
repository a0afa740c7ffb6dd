"""`rlguard run` with a real guard and a real trainer process; only the model behind the evaluator is fake.

Every way in which a run can end: the exit code, what is on disk afterwards, and that no process is left.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.stub_policy import Reply

pytestmark = [pytest.mark.nightly, pytest.mark.slow]  # each starts a guard

FINISH = (
    *["step=0.5,0.01"] * 4,
    "step=0.6,0.01",
    "checkpoint",
)  # five steps: what the median of the KL needs
FIRE = ("step=0.5,0.01", *(f"step=0.5,{9 + i}" for i in range(6)))  # KL far above the hard stop, moving


@pytest.mark.always
def test_a_finished_run_exits_0_and_leaves_a_full_report(workplace):
    done = workplace.run(*FINISH, "say=hello from the trainer")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello from the trainer\n"
    assert "dashboard http://127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr
    run, verdict = workplace.json("run.json"), workplace.json("verdict.json")
    assert run["trainer_ended_itself"] is True
    assert run["trainer_code"] == 0
    assert verdict["fire"] is False
    assert verdict["last_evaluation"]["score"] == 1.0
    assert [line["step"] for line in workplace.history()] == [1, 2, 3, 4, 5]
    assert workplace.history()[-1]["items"] == [1.0] * 4
    page = (workplace.out / "report.html").read_text()
    assert "<svg" in page
    assert "without a fire" in page
    assert "item-0" not in page
    assert oct(os.stat(workplace.out / "guard").st_mode)[-3:] == "700"
    assert oct(os.stat(workplace.out / "history.jsonl").st_mode)[-3:] == "600"


@pytest.mark.always
def test_a_fire_stops_the_trainer_and_exits_3(workplace):
    done = workplace.run("checkpoint", *FIRE, "sleep=600")
    assert done.returncode == 3, done.stderr
    assert workplace.json("verdict.json")["code"] == "kl_hard_stop"
    run = workplace.json("run.json")
    assert run["trainer_ended_itself"] is False
    assert run["trainer_code"] == 128 + signal.SIGTERM
    assert "; the trainer had reached step " in done.stderr.splitlines()[-1]
    assert "fire at step" in (workplace.out / "report.html").read_text()


def test_why_a_trainer_refused_to_start_is_the_last_line(workplace):
    done = workplace.run("say=rlguard: refused before the first step: set beta above 0", "exit=2")
    assert done.returncode == 2
    assert "the trainer refused to start (exit code 2): set beta above 0" in done.stderr.splitlines()[-1]


def test_a_replay_of_the_report_uses_the_policy_of_the_run(workplace):
    workplace.policy("kl: {hard_stop: 0.3, ema_alpha: 0.0, min_steps: 5}")  # by default a KL stops nothing
    calm, high = ["step=0.5,0.01", *["step=0.5,0.2"] * 5], ["step=0.5,0.4"] * 6
    assert workplace.run(*calm, *high, "sleep=600").returncode == 3
    fired_at = workplace.json("verdict.json")["latch_step"]

    def replay(*arguments):
        command = [sys.executable, "-m", "rlguard.cli.main", "replay", *arguments]
        command += ["--json", "--detector", "guard"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    for path in (workplace.out, workplace.out / "history.jsonl"):
        answer = replay(str(path))
        assert (answer["fired"], answer["step"], answer["rule"]) == (True, fired_at, "kl_hard_stop")
    loose = workplace.path / "loose.yaml"
    loose.write_text("kl: {hard_stop: 9}")
    assert replay(str(workplace.out), "--policy", str(loose))["fired"] is False


@pytest.mark.always
def test_nothing_of_a_trainer_that_resists_is_left(workplace, runs):
    done = workplace.run("ignore-term", "fork", "double-fork", *FIRE, "sleep=600")
    assert done.returncode == 3, done.stderr
    assert workplace.json("run.json")["trainer_code"] == 128 + signal.SIGKILL
    descendants = workplace.descendants_of_trainer()
    assert len(descendants) == 2
    assert not [pid for pid in descendants if runs(pid)]


def test_descendants_that_outlive_the_trainer_are_ended(workplace, runs):
    done = workplace.run(*FINISH, "double-fork", "sleep=0.5")
    assert done.returncode == 0, done.stderr
    [descendant] = workplace.descendants_of_trainer()
    assert not runs(descendant)


def test_a_full_disk_behind_what_is_shown_does_not_end_the_run(workplace):
    with Path("/dev/full").open("w") as full:
        process = workplace.start("say=first", *FINISH, stdout=full, stderr=full)
        assert process.wait(120) == 0
    assert workplace.json("run.json")["trainer_ended_itself"] is True
    assert (workplace.out / "report.html").exists()
    log = (workplace.out / "guard.log").read_text()
    for stream in ("standard output", "standard error"):
        assert log.count(f"rlguard run: {stream} takes no more (No space left on device)") == 1


def test_the_trainers_own_code_is_passed_on(workplace):
    done = workplace.run(*FINISH, "exit=7")
    assert done.returncode == 7
    assert "exit code 7" in done.stderr
    assert (workplace.out / "report.html").exists()


def test_steps_whose_reward_could_not_be_reported_after_the_last_evaluation_were_not_judged(workplace):
    done = workplace.run(*FINISH, "lost-steps=40", "end", "verdicts=1")
    assert done.returncode == 5, done.stderr
    assert "NOT JUDGED: 40 steps came after the last judged checkpoint" in done.stderr
    assert workplace.json("run.json")["steps_after_last_judged_checkpoint"] == 40


def test_refused_checkpoints_are_named_at_the_end(workplace):
    """Not "set save_steps": it has, and the guard refused them."""
    done = workplace.run("step=0.5", "refused-checkpoint", "step=0.6", "refused-checkpoint")
    assert done.returncode == 5
    assert "2 reports in a row of checkpoints refused, the newest: " in done.stderr
    assert "fix what the refusal names" in done.stderr


def test_a_stop_by_policy_has_its_own_code(workplace):
    workplace.policy("silent: {after_seconds: 1, action: stop}")
    done = workplace.run("step=0.5", "sleep=600")
    assert done.returncode == 4, done.stderr
    assert "no step for" in done.stderr
    assert workplace.json("verdict.json")["fire"] is False


def test_the_last_checkpoint_is_scored_after_the_trainers_end(workplace, model_policy):
    model_policy.reply = lambda asked: Reply("right", delay=0.5)
    done = workplace.run("step=0.5", "checkpoint", "step=0.6", "checkpoint")
    assert done.returncode == 0, done.stderr
    assert workplace.json("verdict.json")["last_evaluation"]["step"] == 2


def test_an_alarm_at_the_last_checkpoint_has_its_second_pass_before_the_run_ends(workplace, model_policy):
    """14 points are lost at the last of three checkpoints; the second pass is slow, and is waited for."""
    asked = Counter()

    def reply(request):
        step, again = request["step"], request["pass"]
        asked[step] += 1
        number = int(request["prompt"].split()[-1])
        lost = step == 3 and number % 7 == 0
        lucky = step == 1 and not again
        wrong = lost or (number == 5 and not lucky)
        return Reply("wrong" if wrong else "right", delay=0.01 * (step == 3) * again)

    model_policy.reply = reply
    workplace.split(128)
    workplace.policy("{detector: calibrated, calibrated: {baseline_passes: 2}}")
    sampled = ("--temperature", "1", "--max-new-tokens", "8")  # of greedy decoding it would be a copy
    done = workplace.run(*("step=0.5", "checkpoint") * 3, options=sampled)
    assert done.returncode == 3, done.stderr
    assert asked[3] == 2 * 128
    assert "evaluations are yet to be made" in done.stderr
    assert workplace.json("verdict.json")["waiting"] == 0


def test_a_drain_that_is_too_short_is_no_success(workplace, model_policy):
    model_policy.reply = lambda asked: Reply("right", delay=20.0)
    done = workplace.run("step=0.5", "checkpoint", options=("--drain", "0.3"))
    assert done.returncode == 5, done.stderr
    assert "raise --drain" in done.stderr


@pytest.mark.always
def test_a_guard_that_dies_is_started_again_and_forgets_nothing(workplace):
    state = workplace.out / "guard"
    again = ("step=0.6", "checkpoint", "verdicts=1")
    done = workplace.run("step=0.5", "checkpoint", f"kill-guard={state}", *again)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in workplace.history()] == [1, 2]
    assert workplace.json("verdict.json")["steps"] == 2


def test_a_guard_that_keeps_dying_ends_the_run(workplace, until):
    process = workplace.start("step=0.5", "ignore-term", "sleep=600")
    state = workplace.out / "guard" / "endpoint.json"
    killed = set()

    def kill_again():
        if state.exists() and (pid := json.loads(state.read_text())["pid"]) not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return process.poll() is not None

    until((workplace.out / "trainer.log").exists)
    until(kill_again)
    output = process.communicate()[1]
    assert process.returncode == 5, output
    assert "guard" in workplace.json("run.json")["guard_lost"]
    assert len(killed) == 4, "three are started in the place of the first"


def test_a_signal_is_passed_on_and_the_report_is_written(workplace, until, runs):
    ready = workplace.path / "ready"
    process = workplace.start(*FINISH, "fork", f"environ={ready}", "sleep=600")
    until(ready.exists)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert workplace.json("run.json")["interrupted_by"] == signal.SIGTERM
    assert not [pid for pid in workplace.descendants_of_trainer() if runs(pid)]


def test_a_signal_while_the_guard_starts_starts_no_trainer(workplace, until):
    process = workplace.start("say=started")
    until((workplace.out / "guard.log").exists)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert "interrupted before the trainer was started" in errors
    assert not (workplace.out / "trainer.log").exists()


def test_a_second_signal_ends_the_grace(workplace, until):
    ready = workplace.path / "ready"
    process = workplace.start(
        "ignore-term", *FINISH, f"environ={ready}", "sleep=600", options=("--grace", "500")
    )
    until(ready.exists)
    process.send_signal(signal.SIGINT)
    until(lambda: "stopping the trainer" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT


def test_the_trainer_is_told_of_the_guard_and_not_of_the_split(workplace, monkeypatch):
    monkeypatch.setenv("RLGUARD_GUARD_HELDOUT__SCORER", "exact")
    seen = workplace.path / "environ.json"
    workplace.run(*FINISH, f"environ={seen}")
    environment = json.loads(seen.read_text())
    ours = {name for name in environment if name.startswith("RLGUARD_")}
    assert ours == {"RLGUARD_URL", "RLGUARD_TOKEN"}
    assert "secret-split" not in json.dumps(environment)
    read_token = (workplace.out / "guard" / "read.token").read_text()
    assert read_token not in json.dumps(environment)


def test_the_trainer_is_told_from_where_it_starts(workplace):
    seen, best = workplace.path / "environ.json", workplace.path / "best"
    best.mkdir()
    done = workplace.run(*FINISH, f"environ={seen}", options=["--resume-from", str(best)])
    assert done.returncode == 0, done.stderr
    environment = json.loads(seen.read_text())
    assert environment["RLGUARD_RESUME_FROM"] == str(best)
    assert environment["RLGUARD_RUN"] == workplace.out.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: (w.out.mkdir(), (w.out / "old").touch()), "is not empty"),
        (lambda w: w.policy("heldout_guard: {ema_alfa: 0.5}"), "ema_alfa"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(workplace, change, message):
    change(workplace)
    done = workplace.run("say=started")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not Path(workplace.out / "trainer.log").exists()


def test_a_trainer_that_does_not_exist_is_refused(workplace):
    arguments = workplace.arguments()
    arguments[arguments.index("--") + 1 :] = ["no-such-program"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no program 'no-such-program'" in done.stderr
    assert not workplace.out.exists()


def test_a_command_is_run_once_after_the_run_and_changes_no_exit_code(workplace):
    noted = workplace.path / "noted"
    command = (
        f'echo "$RLGUARD_EXIT_CODE|$RLGUARD_OUTCOME|$(ls "$RLGUARD_FOLDER"/run.json)" >> {noted}; exit 7'
    )
    done = workplace.run("checkpoint", *FIRE, "sleep=600", options=["--on-end", command])
    assert done.returncode == 3, done.stderr
    (line,) = noted.read_text().splitlines()
    code, sentence, report = line.split("|")
    assert code == "3"
    assert f"rlguard: {sentence}" in done.stderr
    assert report == str(workplace.out / "run.json")
    assert "--on-end failed with exit code 7" in done.stderr
