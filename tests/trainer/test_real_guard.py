"""Trainer and guard together: a real TRL training reports to a real guard process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_core import CollapseStopError
from tests.trainer.real_guard import INGEST, LOOSE_KL, TIGHT_KL, RealGuard

pytestmark = pytest.mark.torch


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    guards = []

    def make(policy: dict[str, Any] | None = None) -> RealGuard:
        guards.append(RealGuard(tmp_path / "guard", tmp_path / "out", policy))
        return guards[-1]

    yield make
    for guard in guards:
        guard.close()


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path) -> Any:
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(guard: RealGuard, strict: str = "1", **overrides: Any) -> Any:
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        environ = {"RLGUARD_URL": guard.url, "RLGUARD_TOKEN": INGEST, "RLGUARD_STRICT": strict}
        trainer.add_callback(GuardCallback.from_env(environ))
        return trainer

    return make


def test_the_guard_has_what_trl_logged(start: Any, train: Any) -> None:
    guard = start()
    trainer = train(guard, max_steps=6, save_strategy="steps", save_steps=3)
    trainer.train()
    logged = [e for e in trainer.state.log_history if "reward" in e]
    steps = [line for line in guard.history() if "reward" in line]
    assert [line["step"] for line in steps] == [e["step"] for e in logged] == [1, 2, 3, 4, 5, 6]
    for line, entry in zip(steps, logged, strict=True):
        assert line["attempt"] == 0 and line["kl_kind"] == "ref_token_mean"
        for name in ("reward", "kl", "entropy", "reward_std"):
            assert line[name] == pytest.approx(entry[name], rel=1e-6)


def test_a_kl_fire_stops_training_and_every_restart(start: Any, train: Any) -> None:
    guard = start(TIGHT_KL)
    trainer = train(guard, max_steps=2000)
    with pytest.raises(CollapseStopError, match="hard stop") as stop:
        trainer.train()
    assert 5 <= trainer.state.global_step < 2000
    assert stop.value.status.kl_ema > 1e-9

    guard.kill()
    guard.start()
    restarted = train(guard)
    with pytest.raises(CollapseStopError, match="hard stop"):
        restarted.train()
    assert restarted.state.global_step == 0

    softly = train(guard, strict="0")
    softly.train()
    assert softly.state.global_step == 0
    assert {line["attempt"] for line in guard.history()} == {0}


def test_a_second_start_is_a_second_attempt(start: Any, train: Any) -> None:
    guard = start()
    for _ in range(2):
        train(guard, max_steps=2).train()
    assert [(line["attempt"], line["step"]) for line in guard.history()] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_killed_guard_loses_no_step(start: Any, train: Any) -> None:
    guard = start(LOOSE_KL)
    trainer = train(guard, max_steps=150)
    original, restart = trainer.training_step, threading.Thread(target=guard.start)

    def kill_after_20(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 20 and not restart.ident:
            guard.kill()
            restart.start()
        return original(*args, **kwargs)

    trainer.training_step = kill_after_20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_image.callback.FLUSH_SECONDS", 30.0)
        trainer.train()
    restart.join()
    assert [line["step"] for line in guard.history()] == list(range(1, 151))
