"""The guard's figures beside the reward, in the files of a real logger, and what they must never do.

Aspects: TensorBoard's own file has them at the right steps; what is unknown is absent; no number of single
items is among them; the trainer's own log stays as it was; loggers that fail end nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from guard_client.client import VerdictView
from guard_client.stopping import Stop
from guard_core.codes import Code, Level
from guard_core.trainer_view import for_trainer
from guard_core.wire import DetectorReading, EvaluationSummary, Verdict
from tests.trainer.faulty_guard import FIRED, HEALTHY, FaultyGuard
from trainer_image.experiment import Experiment, verdict_figures

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

SCORED = EvaluationSummary(
    attempt=0, step=2, score=0.75, items=64, truncated=0.25, proxy_score=0.75, path="/out/checkpoint-2"
)
JUDGED = HEALTHY.model_copy(
    update={
        "last_evaluation": SCORED,
        "best_evaluation": SCORED,
        "heldout_ema": 0.5,
        "proxy_real_gap": 0.25,
        "max_proxy_real_gap": 0.5,
        "detectors": (
            DetectorReading(
                name="guaranteed",
                level=Level.HEALTHY,
                code=Code.OK,
                statistic=3.5,
                threshold=9.5,
                message="evidence",
            ),
        ),
    }
)
FIGURES = {
    "rlguard/level": 0.0,
    "rlguard/stop": 0.0,
    "rlguard/heldout_score": 0.75,
    "rlguard/heldout_step": 2.0,
    "rlguard/heldout_ema": 0.5,
    "rlguard/gap": 0.25,
    "rlguard/gap_ceiling": 0.5,
}


def view(verdict: Verdict) -> VerdictView:
    """As a trainer reads it from the wire."""
    return VerdictView.model_validate_json(for_trainer(verdict).model_dump_json())


def test_a_checkpoint_that_is_wanted_sooner_is_news_once_the_newest_has_been_scored() -> None:
    experiment, wanted = Experiment(), view(JUDGED.model_copy(update={"sooner": True}))
    first = experiment.news(None, view(JUDGED), 2, may_save=True)
    assert first is not None and not first.sooner
    told = [experiment.news(None, wanted, saved, may_save=True) for saved in (2, 2, 4)]
    assert [None if news is None else (news.sooner, dict(news.figures)) for news in told] == [
        (True, {}),
        None,
        (False, {}),
    ]
    for verdict, may_save in (
        (HEALTHY, True),
        (JUDGED, False),
        (JUDGED.model_copy(update={"waiting": 1}), True),
    ):
        news = Experiment().news(None, view(verdict.model_copy(update={"sooner": True})), 2, may_save)
        assert news is not None and not news.sooner


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(url: str, *callbacks: Any, strict: bool = False, **overrides: Any):
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.add_callback(GuardCallback(url, trainer=trainer, strict=strict))
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
    return found


def wait_for_the_verdict(trainer: Any, guard: FaultyGuard) -> None:
    """Let a step end when the response to the one before has been read: nothing is left to chance."""
    callback = next(c for c in trainer.callback_handler.callbacks if hasattr(c, "_guard"))
    original = callback.on_step_end

    def patiently(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if callback._guard is not None:
            reporter = callback._guard._reporter
            while reporter.delivery.steps + 1 < state.global_step:
                pass
        return original(args, state, control, **kwargs)

    callback.on_step_end = patiently


class TestWhatIsTold:
    def test_it_is_what_a_trainer_may_know(self) -> None:
        assert verdict_figures(None, view(JUDGED)) == FIGURES

    def test_what_is_not_known_is_absent_and_never_0(self) -> None:
        assert verdict_figures(None, view(HEALTHY)) == {"rlguard/level": 0.0, "rlguard/stop": 0.0}
        assert verdict_figures(None, None) == {"rlguard/stop": 0.0}
        newer = view(JUDGED).model_copy(update={"level": "splendid"})
        assert "rlguard/level" not in verdict_figures(None, newer)

    def test_a_guard_that_is_lost_has_no_verdict_now(self) -> None:
        lost = Stop("no response from the guard for 300 s", lost=True)
        assert verdict_figures(lost, view(JUDGED)) == {"rlguard/level": 1.0, "rlguard/stop": 1.0}

    def test_a_fire_is_the_highest_level(self) -> None:
        fired = verdict_figures(Stop.of(view(FIRED)), view(FIRED))
        assert (fired["rlguard/level"], fired["rlguard/stop"]) == (3.0, 1.0)

    def test_the_same_is_told_once(self) -> None:
        experiment = Experiment()
        assert experiment.news(None, view(JUDGED), saved=2) is not None
        assert experiment.news(None, view(JUDGED), saved=2) is None


def test_tensorboard_has_them_beside_the_reward(train, guard: FaultyGuard, tmp_path: Path) -> None:
    guard.verdict_after = lambda n: for_trainer(JUDGED) if n >= 2 else for_trainer(HEALTHY)
    trainer = train(guard.url, max_steps=5, logging_steps=1, report_to=["tensorboard"])
    wait_for_the_verdict(trainer, guard)
    trainer.train()
    found = scalars(tmp_path)
    assert sorted(found["train/reward"]) == [1, 2, 3, 4, 5]
    assert found["train/rlguard/stop"][0] == 0.0  # what the guard said when training began
    assert set(found["train/rlguard/heldout_score"].values()) == {0.75}
    assert set(found["train/rlguard/gap"].values()) == {0.25}
    assert min(found["train/rlguard/heldout_score"]) in (2, 3), "as soon as it is known, and once"
    assert len(found["train/rlguard/heldout_score"]) == 1
    ours = {name.removeprefix("train/") for name in found if "rlguard" in name}
    assert ours == set(FIGURES), "a statistic, or a share of completions, is made of single items"


def test_a_fire_is_in_the_log_before_it_ends_training(train, guard: FaultyGuard, tmp_path: Path) -> None:
    from guard_core import CollapseStopError

    guard.verdict_after = lambda n: FIRED if n >= 2 else HEALTHY
    trainer = train(guard.url, strict=True, max_steps=50, report_to=["tensorboard"])
    with pytest.raises(CollapseStopError):
        trainer.train()
    at = trainer.state.global_step
    assert at < 50
    found = scalars(tmp_path)
    assert found["train/rlguard/level"][at] == 3.0
    assert found["train/rlguard/stop"][at] == 1.0


def test_the_trainers_own_log_is_as_it_was(train, guard: FaultyGuard, tmp_path: Path) -> None:
    """The event takes `should_log` back, and what it logs is no step of the trainer."""
    guard.verdict_after = lambda n: JUDGED.model_copy(update={"heldout_ema": n / 8})  # new figures every step
    trainer = train(guard.url, max_steps=6, logging_steps=2, report_to=["tensorboard"])
    wait_for_the_verdict(trainer, guard)
    trainer.train()
    assert [e["step"] for e in trainer.state.log_history if "reward" in e] == [2, 4, 6]
    assert not any("rlguard" in name for entry in trainer.state.log_history for name in entry)
    assert sorted(scalars(tmp_path)["train/reward"]) == [2, 4, 6]
    assert [r.step for r in guard.steps] == [1, 2, 3, 4, 5, 6]


def test_a_logger_that_fails_is_one_warning(
    train, guard: FaultyGuard, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import TrainerCallback

    class Broken(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if any(name.startswith("rlguard/") for name in logs):
                raise RuntimeError("429 too many requests")

    guard.verdict_after = lambda n: JUDGED.model_copy(update={"heldout_ema": n / 8})
    trainer = train(guard.url, Broken(), max_steps=4)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 4
    assert len([r for r in caplog.records if "429" in r.getMessage()]) == 1
