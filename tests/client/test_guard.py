"""`Guard` in a plain loop: what it delivers, when it says stop, and what a wrong call does.

Stops come before, in and after the loop; wrong calls say so and end no loop. `test_delivery.py` has faults.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlguard.client
from rlguard.client.errors import GuardConfigError, GuardHaltError, GuardLostError
from rlguard.client.guard import Guard
from rlguard.core import CollapseStopError
from rlguard.core.codes import Code, Level
from rlguard.core.wire import Condition, KlKind
from tests.trainer.faulty_guard import BUSY, FIRED, HEALTHY, STOPPED, FaultyGuard, eventually, problem, reply

REF = "ref_token_mean"


@pytest.fixture
def opened(guard: FaultyGuard) -> Iterator[Guard]:
    made = Guard(guard.url).open()
    yield made
    made.close(finished=False)


def loop(
    guard: FaultyGuard, steps: int, last: Callable[[Guard], Any] = lambda _: None, **settings: Any
) -> None:
    """A loop of so many steps, which does `last` at its end."""
    with Guard(guard.url, **settings) as run:
        for step in range(1, steps + 1):
            run.step(step, reward=0.5)
        last(run)


def steps_of(guard: FaultyGuard) -> list[int]:
    return [report.step for report in guard.steps]


# -- what is delivered -----------------------------------------------------------------------------------


def test_a_loop_is_reported_as_it_was(guard: FaultyGuard, tmp_path: Path) -> None:
    with Guard(guard.url, token="secret") as run:
        for step in (1, 2, 3):
            run.step(step, reward=step / 10, kl=0.01, kl_kind=REF, entropy=1.5, reward_std=0.2)
        run.checkpoint(tmp_path, step=3)
        run.step(4, reward=0.4)
        assert run.halted is None
    assert steps_of(guard) == [1, 2, 3, 4]
    first, last = guard.steps[0], guard.steps[-1]
    assert (first.attempt, first.reward, first.kl, first.kl_kind) == (0, 0.1, 0.01, KlKind.REF_TOKEN_MEAN)
    assert (first.entropy, first.reward_std) == (1.5, 0.2)
    assert (last.kl, last.kl_kind, last.entropy) == (None, KlKind.ABSENT, None), "nothing is filled in"
    assert [(c.step, c.path) for c in guard.checkpoints] == [(3, str(tmp_path))]
    assert {headers["Authorization"] for headers in guard.headers} == {"Bearer secret"}
    assert guard.connections == 1
    posts = [path for kind, path in guard.requests if kind == "POST"]
    assert posts[-3:] == ["/v1/checkpoints", "/v1/steps", "/v1/end"]


@pytest.mark.parametrize("reward", [None, math.nan, -math.inf])
def test_a_reward_that_is_not_finite_is_reported_as_none(
    guard: FaultyGuard, caplog: Any, reward: float | None
) -> None:
    """It is no step that was not made: a run of NaN rewards is not silent."""
    loop(guard, 1, lambda run: [run.step(step, reward=reward) for step in (2, 3, 4, 5)])
    assert [(step.step, step.reward) for step in guard.steps] == [
        (1, 0.5),
        *((n, None) for n in (2, 3, 4, 5)),
    ]
    assert caplog.text.count("has no finite reward") == 1


@pytest.mark.parametrize("wrong", [{"step": 3, "reward": "broken"}, {"step": 2**60, "reward": 0.1}])
def test_the_end_tells_how_far_the_loop_came(guard: FaultyGuard, wrong: Any) -> None:
    loop(guard, 1, lambda run: run.step(**wrong), on_unreachable="continue")
    assert steps_of(guard) == [1]
    (end,) = guard.ends
    reached = 3 if wrong["step"] == 3 else 1
    assert (end.attempt, end.step, end.began, end.finished) == (0, reached, 0, True)


def test_the_last_line_says_how_far_training_came_and_what_was_not_scored(
    guard: FaultyGuard, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    guard.verdict_after = lambda _: BUSY
    with Guard(guard.url) as run:
        run.step(7, reward=0.5)
        run.checkpoint(tmp_path, step=7)
    assert caplog.messages[-1].startswith("training ended at step 7, with 1 unscored checkpoints")
    guard.verdict_after = lambda steps: FIRED if steps > 1 else HEALTHY
    with pytest.raises(CollapseStopError):
        loop(guard, 1)
    assert "training stopped at step 1, with 0 unscored checkpoints" in caplog.messages[-1]
    assert "Hacking Gap +0.5" in caplog.messages[-1]


def test_a_plain_script_shows_what_training_waits_for_and_how_it_ended(guard: FaultyGuard) -> None:
    script = (
        "from rlguard import Guard\n"
        f"with Guard({guard.url!r}) as run:\n"
        "    run.step(1, reward=float('nan'))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(rlguard.client.__file__).parents[2])}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True, text=True)
    assert "rlguard: step 1 has no finite reward" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("rlguard: training ended at step 1, with 0 unscored")


def test_a_process_that_ends_without_close_loses_no_report(guard: FaultyGuard) -> None:
    script = (
        "import math, sys; from rlguard import Guard\n"
        f"run = Guard({guard.url!r}).open()\n"
        "run.step(1, reward=0.1); run.step(2, reward=math.nan)\n"
        "sys.exit(0)"
    )
    ours = Path(rlguard.client.__file__).parents[2]  # with a mutant it is another one than what is installed
    environment = os.environ | {"PYTHONPATH": str(ours)}
    subprocess.run([sys.executable, "-P", "-c", script], env=environment, check=True, timeout=60)
    assert steps_of(guard) == [1, 2] and guard.ends == []


def test_a_resumed_loop_says_where_it_began(guard: FaultyGuard, tmp_path: Path) -> None:
    with Guard(guard.url) as run:
        run.checkpoint(tmp_path, step=20)
        for step in (21, 22, 23):
            run.step(step, reward=0.5)
        run.checkpoint(tmp_path, step=24)
    assert [(end.step, end.began) for end in guard.ends] == [(24, 20)]


def test_only_a_loop_that_came_to_its_end_says_that_training_has_finished(guard: FaultyGuard) -> None:
    with pytest.raises(ZeroDivisionError):
        loop(guard, 1, last=lambda _: 1 / 0)
    assert steps_of(guard) == [1] and guard.ends == []
    guard.verdict_after = lambda steps: FIRED if steps else HEALTHY
    with pytest.raises(CollapseStopError):
        loop(guard, 2)
    assert guard.ends == []


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_who_may_list_a_checkpoint_may_read_its_weights(
    opened: Guard, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    """safetensors 0.8 writes them with mode 0600. A file of another name keeps its mode."""
    (secret := tmp_path / "heldout.jsonl").touch(0o600)
    for listed, readable in ((0o755, 0o644), (0o750, 0o640), (0o700, 0o600)):
        (folder := tmp_path / f"checkpoint-{listed}").mkdir()
        (weights := folder / "model.safetensors").touch(0o600)
        plant(secret, folder / "a.safetensors")
        os.mkfifo(folder / "b.safetensors", 0o600)  # and it does not wait for who writes into it
        folder.chmod(listed)
        opened.checkpoint(folder, step=listed, wait=False)
        modes = [path.stat().st_mode & 0o777 for path in (weights, secret, folder / "b.safetensors")]
        assert modes == [readable, 0o600, 0o600]


# -- stops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "error", "words"),
    [(FIRED, CollapseStopError, r"Hacking Gap \+0.5"), (STOPPED, GuardHaltError, "stale: no evaluation")],
)
def test_a_verdict_that_says_stop_stops_the_loop_for_good(
    opened: Guard, guard: FaultyGuard, verdict: Any, error: type[Exception], words: str
) -> None:
    opened.raise_if_halted()
    guard.verdict_after = lambda _: verdict  # it is asked for also where nothing is reported
    eventually(lambda: opened.verdict.stop)
    guard.verdict_after = lambda _: HEALTHY  # before the loop has looked
    eventually(lambda: opened.verdict.code == "ok")
    with pytest.raises(error, match=words):
        opened.raise_if_halted()
    assert opened.halted is not None


def test_a_fired_guard_stops_a_run_before_its_first_step(guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: FIRED
    begun: list[Guard] = []
    with pytest.raises(CollapseStopError):
        loop(guard, 1, begun.append)
    assert begun == [] and guard.steps == []
    soft = Guard(guard.url).open()
    soft.step(1, reward=0.5)
    assert soft.halted
    soft.close()
    assert guard.steps == []


def test_the_fire_that_the_last_report_brings_is_raised_at_the_end(guard: FaultyGuard) -> None:
    guard.verdict_after = lambda steps: FIRED if steps == 3 else HEALTHY
    with pytest.raises(CollapseStopError):
        loop(guard, 3)
    assert guard.ends == [], "a run that was stopped has not finished by itself"


def test_a_loop_that_failed_does_not_wait_for_evaluations(guard: FaultyGuard, caplog: Any) -> None:
    guard.verdict_after = lambda _: BUSY
    with pytest.raises(ZeroDivisionError):
        loop(guard, 1, lambda _: 1 / 0, drain_seconds=0.2)
    assert "left without an evaluation" not in caplog.text
    loop(guard, 1, drain_seconds=0.2)
    assert "left without an evaluation" in caplog.text


def test_no_guard_at_the_start_stops(guard: FaultyGuard) -> None:
    guard.close()
    with (
        pytest.raises(GuardLostError, match="no guard responds at"),
        Guard(guard.url, unreachable_seconds=0.1),
    ):
        pytest.fail("the block must not begin")


def test_no_guard_at_the_start_continues_if_told_so(
    guard: FaultyGuard, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("rlguard.client.guard.FLUSH_SECONDS", 0.1)
    guard.close()
    with Guard(guard.url, unreachable_seconds=0.1, on_unreachable="continue") as run:
        run.step(1, reward=0.5)
    assert "1 not delivered" in caplog.text


def test_a_guard_lost_in_the_middle_stops(guard: FaultyGuard, monkeypatch: Any) -> None:
    monkeypatch.setattr("rlguard.client.guard.FLUSH_SECONDS", 0.1)
    with Guard(guard.url, unreachable_seconds=0.1) as run:
        guard.fault = lambda handler, _: reply(handler, 503, "gone")
        eventually(lambda: run.halted)
        with pytest.raises(GuardLostError, match="503: gone"):
            run.raise_if_halted()
        asked = len(guard.requests)
        guard.fault, guard.verdict_after = None, lambda _: FIRED
        eventually(lambda: len(guard.requests) > asked + 2)
        assert run.halted is not None and run.halted.lost, "the first reason stays"


def test_a_wrong_token_is_an_error_at_once(guard: FaultyGuard) -> None:
    guard.fault = problem(401, "wrong token")
    run = Guard(guard.url)
    with pytest.raises(GuardConfigError, match=r"wrong token.*RLGUARD_TOKEN"):
        run.open()
    run.step(1, reward=0.5)  # it is closed now


def test_a_checkpoint_waits_for_its_score(guard: FaultyGuard, tmp_path: Path) -> None:
    asked: list[int] = []

    def verdict(_: int) -> Any:
        asked.append(1)
        return BUSY if guard.checkpoints and len(asked) < 8 else HEALTHY

    guard.verdict_after = verdict
    with Guard(guard.url, max_lag=0) as run:
        run.checkpoint(tmp_path, step=1)
        assert len(asked) >= 8
        asked.clear()
        run.checkpoint(tmp_path, step=2, wait=False)
        assert run.must_wait()


@pytest.mark.parametrize("announced", [False, True])
def test_a_loop_that_announces_no_starting_policy_is_told_once(
    guard: FaultyGuard, tmp_path: Path, caplog: pytest.LogCaptureFixture, announced: bool
) -> None:
    lacks = Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message="0 of 16 passes")
    verdict = HEALTHY.model_copy(update={"level": Level.UNKNOWN, "conditions": (lacks,)})
    guard.verdict_after = lambda _: verdict
    with Guard(guard.url, drain_seconds=0.1) as run:
        if announced:
            run.checkpoint(tmp_path, step=0, wait=False)
        for step in (1, 2):
            run.step(step, reward=0.5, wait=False)
    assert caplog.text.count("guard.checkpoint(path, step=0)") == (not announced)


def test_beside_other_ranks_no_call_waits(
    guard: FaultyGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would stand in a collective meanwhile; the loop asks `must_wait` on all of them."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    guard.verdict_after = lambda _: BUSY if guard.checkpoints else HEALTHY
    with Guard(guard.url, max_lag=0, drain_seconds=0.1) as run:
        run.checkpoint(tmp_path, step=1)
        run.step(2, reward=0.5)
        assert run.must_wait()


# -- wrong calls -----------------------------------------------------------------------------------------

WRONG_STEPS = [
    ({"step": -1, "reward": 0.5}, "step must be a whole number >= 0, got -1"),
    ({"step": True, "reward": 0.5}, "step must be a whole number >= 0, got True"),
    ({"step": 1, "reward": "0.5"}, "reward must be a number, got '0.5'"),
    ({"step": 1, "reward": [0.5] * 1000}, "reward must be a number, got [0.5, 0.5"),
    ({"step": 1, "reward": 1e101}, "reward must lie between -1e100 and 1e100"),
    (
        {"step": 1, "reward": 0.5, "kl": 0.1},
        "kl says nothing without its kind: give kl_kind='ref_token_mean'",
    ),
    ({"step": 1, "reward": 0.5, "kl": 0.1, "kl_kind": "k3"}, "must be kl_kind='ref_token_mean'"),
    ({"step": 1, "reward": 0.5, "kl_kind": np.ones(2)}, "got array([1., 1.])"),
]


@pytest.mark.parametrize(("call", "sentence"), WRONG_STEPS)
def test_a_wrong_step_says_what_is_wrong_and_is_not_sent(
    opened: Guard, guard: FaultyGuard, caplog: Any, call: dict[str, Any], sentence: str
) -> None:
    opened.step(call.pop("step"), **call)
    opened.step(7, reward=0.5)
    eventually(lambda: steps_of(guard) == [7])
    [said] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sentence in said and len(said) < 400 and "\n" not in said
    assert opened.halted is None, "one mistake ends no run"


@pytest.mark.parametrize(
    ("path", "step", "sentence"),
    [
        ("nowhere", 1, "there is no directory 'nowhere' to score"),
        (None, 1, "path must be the path of a directory, got None"),
        (".", None, "step must be a whole number >= 0, got None"),
    ],
)
def test_a_wrong_checkpoint_says_what_is_wrong(
    opened: Guard, guard: FaultyGuard, caplog: Any, path: Any, step: Any, sentence: str
) -> None:
    opened.checkpoint(path, step=step)
    assert sentence in caplog.text and opened.halted is None
    opened.close()
    assert guard.checkpoints == []
    assert opened.halted is not None and sentence in opened.halted.reason, "no checkpoint was ever taken"


def test_a_loop_that_is_always_wrong_is_a_run_that_nobody_judges(opened: Guard, guard: FaultyGuard) -> None:
    for step in (1, 2, 3):
        assert opened.halted is None
        opened.step(step, reward="high")  # type: ignore[arg-type]
    with pytest.raises(
        GuardLostError, match=r"the client refuses every step, 3 in a row: reward must be a number"
    ):
        opened.raise_if_halted()


def test_a_guard_that_is_not_open_says_so(guard: FaultyGuard) -> None:
    run = Guard(guard.url)
    calls = [
        lambda: run.step(1, reward=0.5),
        lambda: run.checkpoint(".", step=1),
        lambda: run.halted,
        run.raise_if_halted,
    ]
    for call in calls:
        with pytest.raises(GuardConfigError, match="the guard is not open yet"):
            call()
    run.close()
    with pytest.raises(GuardConfigError, match="opened once"):
        run.open()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"url": None}, "Guard needs the guard's URL"),
        ({"url": "localhost:8470"}, "must look like http"),
        ({"on_unreachable": "ignore"}, "on_unreachable: Input should be 'stop' or 'continue'"),
        ({"unreachable_seconds": 0}, "unreachable_seconds: Input should be greater than 0"),
        ({"max_lag": -1}, "max_lag: Input should be greater than or equal to 0"),
        ({"rollouts": "off"}, "rollouts: Input should be a valid boolean"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GuardConfigError, match=sentence):
        Guard(**({"url": "http://127.0.0.1:1"} | arguments))


# -- processes -------------------------------------------------------------------------------------------


def test_a_guard_stays_in_its_process() -> None:
    with pytest.raises(TypeError, match="make one where the loop runs"):
        pickle.dumps(Guard("http://127.0.0.1:1"))


@pytest.mark.parametrize("on_unreachable", ["stop", "continue"])
def test_a_loop_in_a_forked_process_is_told_that_nobody_judges_it(
    guard: FaultyGuard, monkeypatch: Any, on_unreachable: Any
) -> None:
    run = Guard(guard.url, on_unreachable=on_unreachable).open()
    assert run.halted is None
    child = os.fork()
    if child == 0:
        run.step(1, reward=0.5)
        os._exit(0 if isinstance(run.halted and run.halted.error(), GuardLostError) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if on_unreachable == "stop" else 1)
    assert run.halted is None, "the process that opened it still has its guard"
    run.close()


def test_the_token_is_not_shown() -> None:
    run = Guard("http://127.0.0.1:1", "secret-of-the-test")
    assert "secret-of-the-test" not in repr(vars(run)) + repr(run)


# -- the environment -------------------------------------------------------------------------------------


def test_without_a_url_an_optional_guard_guards_nothing_and_says_so(caplog: Any, tmp_path: Path) -> None:
    with Guard.from_env({}, optional=True) as run:
        run.step(1, reward=0.5)
        run.step(2, reward=float("nan"))
        run.checkpoint(tmp_path, step=1)
        assert run.halted is None and run.verdict is None and not run.must_wait()
        assert caplog.text.count("this run is unguarded") == 1
        assert not any(thread.name == "rlguard-reporter" for thread in threading.enumerate())


def test_only_rank_0_has_the_guard(guard: FaultyGuard) -> None:
    Guard.from_env({"RLGUARD_URL": guard.url, "RANK": "0"})
    with pytest.raises(GuardConfigError, match=r"RANK is '3', and one process"):
        Guard.from_env({"RLGUARD_URL": guard.url, "RANK": "3"}, optional=True)
