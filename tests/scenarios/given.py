"""Given, when, then: scenarios of real processes, in the manner of argo-rollouts' fixtures.

    given.thresholds(...).when().the_guard_starts().then().the_level_is("unknown")

A `Given` describes, a `When` acts and waits, a `Then` asserts. All three share one `Stage`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from tests.scenarios import interface

HERE = Path(__file__).parent
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("RLGUARD_", "PYTEST_"))
} | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}


def wait_for(condition: Callable[[], Any], what: str, seconds: float = interface.SOON) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def began(pid: int) -> str | None:
    """When this process began, in ticks since the boot; None if there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def is_running(pid: int) -> bool:
    return began(pid) is not None


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()
        ]
    return []


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


class Stage:
    """One scenario's folder, its settings and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.state = folder / "state"
        self.out = folder / "out"
        self.tokens = folder / "tokens"
        self.started_file = folder / "trainer-started.json"
        for made in (self.checkpoints, self.tokens):
            made.mkdir()
        (self.tokens / "trainer").write_text("the-token-of-the-trainer")
        (self.tokens / "reader").write_text("the-token-of-the-reader")
        self.policy_file = folder / "policy.yaml"
        self.policy_file.write_text("{}")
        self.heldout: Path | None = None
        self.trained: Path | None = None
        self.options: list[str] = []
        self.environment = dict(ENVIRONMENT)
        self.port = free_port()
        self.trainer_command: list[str] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: dict[int, str | None] = {}  # when each process began, for pids are used again

    def start(self, name: str, command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start a process; what it prints goes into NAME.log."""
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                env=self.environment | more.pop("env", {}),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **more,
            )
        self.processes[name] = process
        self.seen[process.pid] = began(process.pid)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def printed(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    def note_processes(self) -> None:
        """Remember what runs now, to end it at the latest with the scenario."""
        for process in self.processes.values():
            self.seen |= {pid: began(pid) for pid in descendants(process.pid)}

    def left(self) -> list[int]:
        """Those of the processes seen that still run."""
        return [pid for pid, start in self.seen.items() if start is not None and began(pid) == start]

    def some_split(self) -> Path:
        """A held-out split for a run whose checkpoints are not the matter."""
        path = self.folder / "some-split.jsonl"
        items = [{"id": str(i), "prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(8)]
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
        return path

    def close(self) -> None:
        self.note_processes()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def guard(self, role: str = "reader") -> interface.Api:
        """The guard that was started alone."""
        return interface.Api(f"http://127.0.0.1:{self.port}", (self.tokens / role).read_text())

    @property
    def trainer(self) -> dict[str, Any]:
        """Process id and environment of the trainer, as it wrote them down."""
        wait_for(self.started_file.exists, "the trainer starts", interface.START)
        return json.loads(self.started_file.read_text())

    @property
    def report(self) -> interface.Report:
        return interface.Report(self.out)


class Given:
    """What the scenario starts from."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def thresholds(self, policy: dict[str, Any]) -> Self:
        """A policy file with these entries; what it does not name has its default."""
        self.stage.policy_file.write_text(json.dumps(policy))
        return self

    def options(self, *options: str) -> Self:
        """Further options of `rlguard run`."""
        self.stage.options += options
        return self

    def environment(self, **values: str) -> Self:
        self.stage.environment |= values
        return self

    def a_heldout_split(self, split: Path) -> Self:
        self.stage.heldout = split
        return self

    def a_policy_with_its_split(self, trained: Path) -> Self:
        """What `hack.py policy` made: a policy that solves half of its held-out split."""
        self.stage.trained, self.stage.heldout = trained, trained / "heldout.jsonl"
        return self

    def a_trainer(self, *options: str) -> Self:
        """trainer.py, with these options."""
        self.stage.trainer_command = self._script(
            "trainer.py", *options, "--started", str(self.stage.started_file)
        )
        if self.stage.trained is not None:
            self.stage.trainer_command += ["--policy", str(self.stage.trained / "policy")]
        self.stage.trainer_command += ["--checkpoints", str(self.stage.checkpoints)]
        return self

    def a_grpo_run(self, *options: str) -> Self:
        """hack.py, with these options: TRL's GRPO."""
        assert self.stage.trained is not None
        folders = (str(self.stage.trained), str(self.stage.checkpoints))
        self.stage.trainer_command = self._script("hack.py", "train", *folders, *options)
        return self

    @staticmethod
    def _script(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(HERE / name), *arguments]

    def when(self) -> When:
        return When(self.stage)


class When:
    """What happens."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    # -- a guard alone -----------------------------------------------------------------------------------

    def the_guard_starts(self, prefix: tuple[str, ...] = (), name: str = "guard") -> Self:
        """`rlguard serve` on the state folder; returns when it is ready."""
        stage = self.stage
        command = interface.serve(
            stage.state, stage.port, stage.checkpoints, stage.tokens, stage.policy_file, stage.heldout
        )
        process = stage.start(name, [*prefix, *command])
        api = stage.guard()
        wait_for(lambda: process.poll() is not None or api.ready(), "the guard is ready", interface.START)
        assert process.poll() is None, stage.printed(name)
        return self

    def the_guard_is_killed(self) -> Self:
        self.stage.note_processes()
        self.stage.processes["guard"].kill()
        self.stage.processes["guard"].wait()
        return self

    def the_guard_is_frozen(self) -> Self:
        os.kill(self.stage.processes["guard"].pid, signal.SIGSTOP)
        return self

    def the_state_folder_is_moved(self) -> Self:
        elsewhere = self.stage.folder / "elsewhere" / "state"
        elsewhere.parent.mkdir()
        self.stage.state = Path(shutil.move(self.stage.state, elsewhere))
        return self

    def steps_are_reported(self, numbers: range, *, expect: int = 200, **values: Any) -> Self:
        """One request for each; all must have this HTTP status."""
        api = self.stage.guard("trainer")
        for number in numbers:
            status, body = api.call(interface.STEPS, interface.step_report(number, **values))
            assert status == expect, body
        return self

    def a_checkpoint_is_announced(self, path: Path, step: int, *, attempt: int = 0) -> Self:
        report = interface.checkpoint_report(step, path, attempt=attempt)
        status, body = self.stage.guard("trainer").call(interface.CHECKPOINTS, report)
        assert status == 200, body
        return self

    def evaluations_are_made(self, count: int) -> Self:
        """Wait until so many checkpoints were evaluated, and none waits."""
        api = self.stage.guard()

        def done() -> bool:
            verdict = api.verdict()
            return verdict.evaluated + verdict.failed >= count and not verdict.waiting

        wait_for(done, f"{count} evaluations", interface.EVALUATED)
        return self

    # -- a trainer, with or without a supervisor -----------------------------------------------------------

    def the_trainer_starts(self, name: str = "trainer", *more: str) -> Self:
        """Beside the guard that was started alone."""
        api = self.stage.guard("trainer")
        environment = {interface.URL: api.url, interface.TOKEN: api.token}
        self.stage.start(name, [*self.stage.trainer_command, *more], env=environment)
        return self

    def the_run_starts(self, name: str = "run") -> Self:
        """`rlguard run` with the trainer; returns at once."""
        stage = self.stage
        command = [interface.RLGUARD, "run", "--out", str(stage.out), "--checkpoints", str(stage.checkpoints)]
        command += ["--policy", str(stage.policy_file), "--grace", "2", *stage.options]
        command += ["--heldout", str(stage.heldout or stage.some_split()), "--device", "cpu"]
        stage.start(name, [*command, "--", *stage.trainer_command], start_new_session=True)
        return self

    def the_run_ends(self) -> Self:
        """`rlguard run` with the trainer, to its end."""
        return self.the_run_starts().wait_for_the_end_of("run")

    def wait_for_the_end_of(self, name: str, seconds: float = interface.RUN) -> Self:
        process = self.stage.processes[name]

        def ended() -> bool:
            self.stage.note_processes()
            return process.poll() is not None

        try:
            wait_for(ended, f"{name} ends", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.stage.printed(name)}") from None
        return self

    def wait_for_line(self, name: str, text: str, seconds: float = interface.START) -> Self:
        wait_for(lambda: text in self.stage.printed(name), f"{text!r} in what {name} prints", seconds)
        self.stage.note_processes()
        return self

    def is_killed(self, name: str) -> Self:
        """SIGKILL for this process alone."""
        self.stage.note_processes()
        self.stage.processes[name].kill()
        self.stage.processes[name].wait()
        return self

    def a_file_appears(self, name: str) -> Self:
        (self.stage.folder / name).touch()
        return self

    def then(self) -> Then:
        return Then(self.stage)


class Then:
    """What must hold."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def exit_code(self, expected: int, name: str = "run") -> Self:
        assert self.stage.processes[name].returncode == expected, self.stage.printed(name)
        return self

    def the_trainer_failed(self, name: str = "trainer") -> Self:
        """It ended by itself, with an error, before its last step."""
        assert self.stage.processes[name].returncode > 0, self.stage.printed(name)
        assert "the training is complete" not in self.stage.printed(name)
        return self

    def the_training_was_complete(self) -> Self:
        assert "the training is complete" in self.stage.report.trainer_output()
        return self

    def the_training_was_cut(self) -> Self:
        assert "the training is complete" not in self.stage.report.trainer_output()
        return self

    def nothing_runs_any_more(self) -> Self:
        """Not one process that this scenario was seen to start."""
        left = self.stage.left()
        assert not left, [Path(f"/proc/{pid}/stat").read_text() for pid in left if is_running(pid)]
        return self

    def the_level_is(self, *levels: str) -> Self:
        verdict = self.stage.guard().verdict()
        assert verdict.level in levels, verdict.level
        return self

    def the_guard_says_stop(self) -> Self:
        assert self.stage.guard().verdict().stop
        return self

    def the_history_has(self, numbers: range, *, attempt: int = 0) -> Self:
        """Each of these steps of this attempt exactly once, and no other."""
        steps = interface.reported_steps(self.stage.guard().history(), attempt)
        assert steps == list(numbers), steps
        return self

    def when(self) -> When:
        return When(self.stage)


class Poster(threading.Thread):
    """Posts steps to the guard all the time; notes what was acknowledged, and repeats what was not."""

    def __init__(self, api: interface.Api, attempt: int, kl: Callable[[], float]) -> None:
        super().__init__(daemon=True)
        self.api, self.attempt, self.kl = api, attempt, kl
        self.acknowledged: list[int] = []
        self.saw_fire = threading.Event()
        self.ended = threading.Event()
        self.opened: list[str] = []  # a latch that was seen open again
        self.wrong: list[str] = []

    def run(self) -> None:
        for number in self._numbers():
            report = interface.step_report(number, kl=self.kl(), attempt=self.attempt)
            while not self.ended.is_set():
                try:
                    status, body = self.api.call(interface.STEPS, report, timeout=10)
                except (OSError, ValueError):
                    time.sleep(0.02)
                    continue
                if status == 200:
                    self._note(number, interface.verdict_in(body))
                    break
                if status < 500:
                    self.wrong.append(f"{status} {body.decode()}")
                    return
                time.sleep(0.02)

    def _numbers(self) -> Iterator[int]:
        number = 0
        while not self.ended.is_set():
            number += 1
            yield number

    def _note(self, number: int, verdict: interface.Verdict) -> None:
        self.acknowledged.append(number)
        if verdict.fired:
            self.saw_fire.set()
        elif self.saw_fire.is_set():
            self.opened.append(f"at step {number}: {verdict.level}")
