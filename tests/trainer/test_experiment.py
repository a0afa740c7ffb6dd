"""The guard's figures beside the reward, in the files of a real logger, and what they must never do."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rlguard.client.client import VerdictView
from rlguard.client.stopping import Stop
from rlguard.core import CollapseStopError
from rlguard.core.codes import Code, Level
from rlguard.core.trainer_view import for_trainer
from rlguard.core.wire import DetectorReading, EvaluationSummary
from tests.trainer.faulty_guard import FIRED, HEALTHY, FaultyGuard
from trainer_image.experiment import verdict_figures

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

SCORED = EvaluationSummary(
    attempt=0, step=2, score=0.75, items=64, truncated=0.25, proxy_score=0.75, path="/out/checkpoint-2"
)
STATISTIC = DetectorReading(
    name="guaranteed", level=Level.HEALTHY, code=Code.OK, statistic=3.5, threshold=9.5, message="evidence"
)
JUDGED = HEALTHY.model_copy(
    update={
        "last_evaluation": SCORED,
        "best_evaluation": SCORED,
        "heldout_ema": 0.5,
        "proxy_real_gap": 0.25,
        "max_proxy_real_gap": 0.5,
        "detectors": (STATISTIC,),
    }
)
FIGURES = {
    "level": 0.0,
    "stop": 0.0,
    "heldout_score": 0.75,
    "heldout_step": 2.0,
    "heldout_ema": 0.5,
    "gap": 0.25,
    "gap_ceiling": 0.5,
}


def view(**changes: Any) -> VerdictView:
    return VerdictView.model_validate_json(JUDGED.model_copy(update=changes).model_dump_json())


@pytest.mark.parametrize(
    ("stop", "verdict", "figures"),
    [
        (None, None, {"stop": 0.0}),
        (None, VerdictView(fire=False, stop=False), {"stop": 0.0}),
        (Stop("no response for 300 s", lost=True), view(), {"level": 1.0, "stop": 1.0}),
        (None, view().model_copy(update={"level": "splendid"}), FIGURES | {"level": None}),
    ],
    ids=["no verdict", "nothing scored", "a lost guard has no verdict now", "a newer guard"],
)
def test_what_is_not_known_is_absent_and_never_0(
    stop: Stop | None, verdict: VerdictView | None, figures: dict[str, float | None]
) -> None:
    known = {f"rlguard/{name}": value for name, value in figures.items() if value is not None}
    assert verdict_figures(stop, verdict) == known


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(url: str, *callbacks: Any, strict: bool = False, **overrides: Any):
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        for callback in (*callbacks, GuardCallback(url, trainer=trainer, strict=strict)):
            trainer.add_callback(callback)
        return trainer

    return make


def scalars(directory: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard itself reads back: by name, by step."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    reader = EventMultiplexer().AddRunsFromDirectory(str(directory)).Reload()
    found: dict[str, dict[int, float]] = {}
    for run, tags in reader.Runs().items():
        for name in tags["scalars"]:
            found.setdefault(name, {}).update({e.step: e.value for e in reader.Scalars(run, name)})
    return {name.removeprefix("train/"): values for name, values in found.items()}


def test_tensorboard_has_them_once_beside_the_reward(train, guard: FaultyGuard, tmp_path: Path) -> None:
    """And none that is made of single items."""
    guard.verdict_after = lambda _: for_trainer(JUDGED)
    train(guard.url, max_steps=3, report_to=["tensorboard"]).train()
    found = scalars(tmp_path)
    assert sorted(found["reward"]) == [1, 2, 3]
    ours = {name: values for name, values in found.items() if name.startswith("rlguard/")}
    assert ours == {f"rlguard/{name}": {0: value} for name, value in FIGURES.items()}


def test_a_fire_is_in_the_log_before_it_ends_training(train, guard: FaultyGuard, tmp_path: Path) -> None:
    guard.verdict_after = lambda n: FIRED if n >= 2 else HEALTHY
    trainer = train(guard.url, strict=True, max_steps=500, report_to=["tensorboard"])
    with pytest.raises(CollapseStopError):
        trainer.train()
    at, found = trainer.state.global_step, scalars(tmp_path)
    assert at < 500 and (found["rlguard/level"][at], found["rlguard/stop"][at]) == (3.0, 1.0)


def test_the_trainers_own_log_is_as_it_was_and_a_logger_that_fails_is_one_warning(
    train, guard: FaultyGuard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The event takes `should_log` back, and what it logs is no step of the trainer."""
    from transformers import TrainerCallback

    class Broken(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if any(name.startswith("rlguard/") for name in logs):
                raise RuntimeError("429 too many requests")

    guard.verdict_after = lambda n: JUDGED.model_copy(update={"heldout_ema": n / 8})  # new figures every step
    trainer = train(guard.url, Broken(), max_steps=6, logging_steps=2, report_to=["tensorboard"])
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert [e["step"] for e in trainer.state.log_history if "reward" in e] == [2, 4, 6]
    assert not any("rlguard" in name for entry in trainer.state.log_history for name in entry)
    assert sorted(scalars(tmp_path)["reward"]) == [2, 4, 6]
    assert [r.step for r in guard.steps] == [1, 2, 3, 4, 5, 6]
    assert caplog.text.count("429 too many requests") == 1
