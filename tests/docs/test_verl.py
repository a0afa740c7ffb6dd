"""The script of the page about scripts for verl, with stand-ins for Ray and verl; it was tried with both.

The stand-ins have what verl 0.9.1 has there: a runner that is an actor already, from which no class can
inherit, and a trainer that saves before it logs, and logs by name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rlguard
from tests.docs.blocks import blocks
from tests.docs.test_blocks import ROOT

pytestmark = pytest.mark.nightly

[SCRIPT] = [b for b in blocks(ROOT / "docs/tasks/guard-a-script.md") if b.title == "guarded_ppo.py"]


class Actor:
    """What `ray.remote` makes of a class."""

    def __init__(self, of: type, options: dict[str, Any]) -> None:
        self.__ray_metadata__ = SimpleNamespace(modified_class=of)
        self.options = options


class Tracking:
    """verl's, with the logger `console` alone."""

    def __init__(self) -> None:
        self.logged: list[int] = []

    def log(self, data: dict[str, float], step: int, backend: str | None = None) -> None:
        self.logged.append(step)


class TaskRunnerV1:
    """verl's, whose trainer is the loop of `fit` with nothing in it."""

    def run(self, config: Any) -> None:
        self.tracking = Tracking()
        self.tracking.log(data={"val-core/x/acc/mean@1": 0.1}, step=0)
        for step in range(1, 5):
            if step % 2 == 0:
                Path(config.trainer.default_local_dir, f"global_step_{step}/actor/huggingface").mkdir(
                    parents=True
                )
            data = {"critic/score/mean": step / 10, "actor/reward_kl_penalty": step / 1000}
            self.tracking.log(data=data, step=step)


class Halted(Exception):
    """What a guard that has halted the run raises."""


class Guard:
    """Keeps what it is told, and halts the run after a step."""

    def __init__(self, last: int) -> None:
        self.last, self.steps, self.checkpoints, self.closed = last, [], [], False

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def step(self, step: int, *, reward: float, kl: float | None, kl_kind: str) -> None:
        self.steps.append((step, reward, kl, kl_kind))

    def checkpoint(self, path: str, *, step: int) -> None:
        self.checkpoints.append((path, step))

    def raise_if_halted(self) -> None:
        if self.steps and self.steps[-1][0] >= self.last:
            raise Halted


def remote(**options: Any) -> Any:
    return lambda of: Actor(of, options)


@pytest.fixture
def main_ppo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """verl's module, after its own `main` was called by the script as it is printed."""
    modules = {name: ModuleType(name) for name in ("ray", "verl", "verl.trainer", "verl.trainer.main_ppo")}
    modules |= {name: ModuleType(name) for name in ("verl.utils", "verl.utils.tracking")}
    module = modules["verl.trainer.main_ppo"]
    modules["ray"].remote = remote  # type: ignore[attr-defined]
    modules["verl.trainer"].main_ppo = module  # type: ignore[attr-defined]
    modules["verl.utils.tracking"].Tracking = Tracking  # type: ignore[attr-defined]
    module.TaskRunnerV1 = Actor(TaskRunnerV1, {})  # type: ignore[attr-defined]
    module.main = lambda: None  # type: ignore[attr-defined]
    for name, one in modules.items():
        monkeypatch.setitem(sys.modules, name, one)
    monkeypatch.setenv("RLGUARD_URL", "http://guard")
    monkeypatch.setenv("RLGUARD_TOKEN", "token")
    monkeypatch.setattr(Tracking, "log", Tracking.log)  # put back after the test
    exec(compile(SCRIPT.text, "guarded_ppo.py", "exec"), {"__name__": "__main__"})
    return module


def run(module: ModuleType, guard: Guard, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rlguard.Guard, "from_env", lambda: guard)
    runner = module.TaskRunnerV1.__ray_metadata__.modified_class()
    try:
        runner.run(SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(folder))))
    finally:
        assert guard.closed
    return runner


def test_verls_main_starts_the_guarded_runner_with_the_guards_address(main_ppo: ModuleType) -> None:
    assert main_ppo.TaskRunnerV1.__ray_metadata__.modified_class.__name__ == "GuardedRunner"
    variables = {"RLGUARD_URL": "http://guard", "RLGUARD_TOKEN": "token"}
    assert main_ppo.TaskRunnerV1.options == {"num_cpus": 1, "runtime_env": {"env_vars": variables}}


def test_each_step_that_is_logged_is_reported_and_each_checkpoint_with_its_step(
    main_ppo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = run(main_ppo, guard := Guard(last=9), tmp_path, monkeypatch)
    assert guard.steps == [(s, s / 10, s / 1000, "ref_token_mean") for s in range(1, 5)]
    assert guard.checkpoints == [(f"{tmp_path}/global_step_{s}/actor/huggingface", s) for s in (2, 4)]
    assert runner.tracking.logged == [0, 1, 2, 3, 4]


def test_a_halt_ends_the_trainer_where_it_logs(
    main_ppo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard(last=2)
    with pytest.raises(Halted):
        run(main_ppo, guard, tmp_path, monkeypatch)
    assert [step for step, *_ in guard.steps] == [1, 2]
    assert [step for _, step in guard.checkpoints] == [2]
