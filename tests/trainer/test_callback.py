"""GuardCallback on a real TRL trainer: what it reports, what it leaves alone, and how it stops.

Aspects: every step is reported whatever `logging_steps` is; the reports equal what TRL would log at every
step; the user's log history is untouched; nothing is fabricated; checkpoints; strict and soft stops; a guard
that has already fired; a guard that cannot be reached; configuration.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guard_core import CollapseStopError
from guard_core.wire import Code, Condition, KlKind, Level, Verdict
from tests.trainer.faulty_guard import FIRED, HEALTHY, STOPPED, FaultyGuard, problem, reply
from trainer_image.errors import GuardConfigError, GuardLostError, GuardStopError

pytestmark = pytest.mark.torch


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    """Make a trainer of the tiny model with a callback for a guard's URL."""
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(url: str | None, *, callback_kwargs: dict[str, Any] | None = None, **overrides: Any):
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        if url is not None:
            trainer.add_callback(GuardCallback(url, **(callback_kwargs or {})))
        return trainer

    return make


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    timed = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    return [{k: v for k, v in entry.items() if k not in timed} for entry in history]


def test_every_step_is_reported_with_the_values_that_trl_logs(train, guard: FaultyGuard) -> None:
    every_step = train(None, max_steps=6, logging_steps=1, gradient_accumulation_steps=2)
    every_step.train()
    logged = [entry for entry in every_step.state.log_history if "reward" in entry]

    trainer = train(guard.url, max_steps=6, logging_steps=4, gradient_accumulation_steps=2)
    trainer.train()

    assert [r.step for r in guard.steps] == [1, 2, 3, 4, 5, 6]
    assert {r.kl_kind for r in guard.steps} == {KlKind.REF_TOKEN_MEAN}
    for report, entry in zip(guard.steps, logged, strict=True):
        assert report.attempt == 0
        for name in ("reward", "kl", "entropy", "reward_std"):
            assert getattr(report, name) == pytest.approx(entry[name], rel=1e-6), name


@pytest.mark.parametrize("logging_steps", [1, 3, 100])
def test_the_log_history_is_what_it_would_have_been(train, guard: FaultyGuard, logging_steps: int) -> None:
    plain = train(None, max_steps=5, logging_steps=logging_steps)
    plain.train()
    guarded = train(guard.url, max_steps=5, logging_steps=logging_steps)
    guarded.train()
    assert len(guard.steps) == 5
    assert without_times(guarded.state.log_history) == without_times(plain.state.log_history)


def test_without_a_reference_model_kl_is_absent(train, guard: FaultyGuard) -> None:
    train(guard.url, beta=0.0).train()
    assert {(r.kl, r.kl_kind) for r in guard.steps} == {(None, KlKind.ABSENT)}


def test_a_step_without_a_generation_is_not_reported(train, guard: FaultyGuard) -> None:
    train(guard.url, max_steps=4, steps_per_generation=2).train()
    assert [r.step for r in guard.steps] == [1, 3]


def test_a_log_in_the_middle_of_a_step_loses_nothing(train, guard: FaultyGuard) -> None:
    trainer = train(guard.url, max_steps=3, logging_steps=100)
    original = trainer._compute_loss

    def compute_and_log(model: Any, inputs: Any) -> Any:
        trainer.log({"mine": 1.0})  # TRL clears its lists here, after the reward and before the KL
        return original(model, inputs)

    trainer._compute_loss = compute_and_log
    trainer.train()
    assert [r.step for r in guard.steps] == [1, 2, 3]
    assert all(r.kl is not None and r.reward_std is not None for r in guard.steps)


def test_evaluation_rewards_are_not_taken_for_training_rewards(train, guard: FaultyGuard) -> None:
    from tests.trainer.tiny import prompts

    trainer = train(guard.url, max_steps=2, eval_strategy="no")
    trainer.eval_dataset = prompts(4)
    trainer.args.per_device_eval_batch_size = 4
    original = trainer.training_step

    def evaluate_first(*args: Any, **kwargs: Any) -> Any:
        trainer.evaluate()
        trainer.model.train()
        return original(*args, **kwargs)

    trainer.training_step = evaluate_first
    trainer.train()
    training = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [r.reward for r in guard.steps] == pytest.approx([entry["reward"] for entry in training])


def test_a_trainer_without_lists_is_reported_as_it_logs(guard: FaultyGuard, tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from trainer_image.callback import GuardCallback

    class Rewarded(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            step = self.state.global_step
            self.log({"reward": float("nan") if step == 1 else step / 10, "kl": 0.5, "entropy": None})
            return model(inputs["x"]).sum()

    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
    )
    data = [{"x": torch.ones(2)} for _ in range(64)]
    trainer = Rewarded(torch.nn.Linear(2, 1), arguments, train_dataset=data)
    trainer.add_callback(GuardCallback(guard.url))
    trainer.train()
    assert [(r.step, r.reward, r.kl, r.entropy) for r in guard.steps] == [
        (0, 0.0, None, None),
        (2, 0.2, None, None),
    ]


def test_checkpoints_are_reported_when_they_are_on_disk(train, guard: FaultyGuard) -> None:
    seen: list[list[str]] = []

    def look(_: Any, body: Any) -> bool:
        if isinstance(body, dict):
            directory = Path(body["path"])
            seen.append(sorted(p.name for p in directory.iterdir()))
            readers = directory.stat().st_mode & 0o044
            assert (directory / "model.safetensors").stat().st_mode & 0o044 == readers, (
                "for another user, too"
            )
        return False

    guard.fault = look
    trainer = train(guard.url, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    output = Path(trainer.args.output_dir).resolve()
    assert [(c.step, c.path) for c in guard.checkpoints] == [
        (2, str(output / "checkpoint-2")),
        (4, str(output / "checkpoint-4")),
    ]
    assert all({"model.safetensors", "trainer_state.json", "optimizer.pt"} <= set(names) for names in seen)


def late_evaluation(guard: FaultyGuard, found: Verdict) -> None:
    """The last checkpoint is evaluated only when the verdict has been asked for five more times."""

    def verdict(steps: int) -> Verdict:
        asked = [path for _, path in guard.requests if path == "/v1/verdict"]
        if not guard.checkpoints or len(asked) > 5:
            return found if guard.checkpoints else HEALTHY
        return HEALTHY.model_copy(update={"waiting": 1})

    guard.verdict_after = verdict


def test_the_end_of_training_waits_for_the_last_evaluations(
    train, guard: FaultyGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod the guard ends with the trainer: what it has not evaluated by then, it never will."""
    monkeypatch.setattr("trainer_image.reporter.POLL_SECONDS", 0.1)
    late_evaluation(guard, FIRED)
    waiting = {"drain_seconds": 60.0}
    trainer = train(guard.url, callback_kwargs=waiting, max_steps=2, save_strategy="steps", save_steps=2)
    with pytest.raises(CollapseStopError):
        trainer.train()


def test_the_end_of_training_waits_for_so_long_and_no_longer(
    train, guard: FaultyGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"waiting": 1})
    trainer = train(guard.url, callback_kwargs={"drain_seconds": 0.5}, max_steps=1)
    trainer.train()
    assert "checkpoints were left without an evaluation after 0.5 s" in caplog.text


def fire_after(steps: int) -> Any:
    return lambda acknowledged: FIRED if acknowledged >= steps else HEALTHY


def test_a_fire_raises_and_ends_training(train, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(2)
    trainer = train(guard.url, max_steps=500)
    with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
        trainer.train()
    assert 2 <= trainer.state.global_step < 500
    assert stop.value.status.fire and stop.value.status.step == 3
    assert math.isnan(stop.value.status.heldout_ema), "a number that the verdict lacks is not 0"


def test_a_fire_ends_training_softly(train, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(2)
    trainer = train(guard.url, max_steps=500, callback_kwargs={"strict": False})
    trainer.train()
    assert 2 <= trainer.state.global_step < 500


def test_a_policy_that_says_stop_is_no_collapse(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda acknowledged: STOPPED if acknowledged else HEALTHY
    with pytest.raises(GuardStopError, match="stale: no evaluation"):
        train(guard.url, max_steps=500).train()


def test_a_fire_that_the_last_report_brings_still_raises(train, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(3)
    trainer = train(guard.url, max_steps=3)
    with pytest.raises(CollapseStopError):
        trainer.train()
    assert trainer.state.global_step == 3


def test_a_restarted_trainer_stops_before_its_first_step(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: FIRED
    trainer = train(guard.url)
    with pytest.raises(CollapseStopError):
        trainer.train()
    assert trainer.state.global_step == 0 and guard.steps == []


def test_a_restarted_trainer_stops_softly_before_its_first_step(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: FIRED
    trainer = train(guard.url, callback_kwargs={"strict": False})
    weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    calls: list[int] = []
    trainer.reward_funcs[0] = lambda completions, **_: calls.append(1) or [0.0] * len(completions)
    trainer.train()
    assert trainer.state.global_step == 0 and calls == [] and guard.steps == []
    assert all((weights[name] == p).all() for name, p in trainer.model.named_parameters())

    guard.verdict_after = lambda _: HEALTHY  # a new guard: the same trainer object can train
    trainer.train()
    assert trainer.state.global_step == 4 and [r.step for r in guard.steps] == [1, 2, 3, 4]


def test_the_attempt_follows_the_guards_newest(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"attempt": 4, "step": 9})
    train(guard.url, max_steps=1).train()
    assert [r.attempt for r in guard.steps] == [5]


def test_a_given_attempt_is_kept(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"attempt": 4, "step": 9})
    train(guard.url, max_steps=1, callback_kwargs={"attempt": 7}).train()
    assert [r.attempt for r in guard.steps] == [7]


def test_no_guard_at_the_start_stops(train, guard: FaultyGuard) -> None:
    guard.close()
    trainer = train(guard.url, callback_kwargs={"unreachable_seconds": 0.2})
    with pytest.raises(GuardLostError, match="no guard answers"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_no_guard_at_the_start_continues_if_told_so(train, guard: FaultyGuard, caplog, monkeypatch) -> None:
    guard.close()
    kwargs = {"unreachable_seconds": 0.2, "on_unreachable": "continue"}
    trainer = train(guard.url, max_steps=3, callback_kwargs=kwargs)
    monkeypatch.setattr("trainer_image.callback.FLUSH_SECONDS", 0.2)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "3 not delivered" in caplog.text


def test_a_guard_lost_in_the_middle_stops(train, guard: FaultyGuard, monkeypatch) -> None:
    def lost(handler: Any, _: Any) -> bool:
        return len(guard.steps) >= 2 and reply(handler, 503, "")

    guard.fault = lost
    trainer = train(guard.url, max_steps=100_000, callback_kwargs={"unreachable_seconds": 0.3})
    monkeypatch.setattr("trainer_image.callback.FLUSH_SECONDS", 0.1)
    with pytest.raises(GuardLostError, match="no answer from the guard"):
        trainer.train()
    assert trainer.state.global_step < 100_000


def test_a_wrong_token_is_an_error_at_once(train, guard: FaultyGuard) -> None:
    guard.fault = problem(401, "wrong token")
    with pytest.raises(GuardConfigError, match=r"wrong token.*RLGUARD_TOKEN"):
        train(guard.url).train()


NEEDS_THE_START = HEALTHY.model_copy(
    update={"conditions": (Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message="no pass yet"),)}
)


def test_the_starting_policy_is_saved_for_a_guard_that_compares_with_it(
    train, guard: FaultyGuard, tiny_model: Path
) -> None:
    from safetensors.torch import load_file

    guard.verdict_after = lambda acknowledged: HEALTHY if acknowledged else NEEDS_THE_START
    trainer = train(guard.url, max_steps=2)
    trainer.train()
    start = guard.checkpoints[0]
    assert (start.step, Path(start.path).name) == (0, "rlguard-start")
    saved, before = (load_file(Path(d) / "model.safetensors") for d in (start.path, tiny_model))
    assert saved.keys() == before.keys() and all(saved[k].equal(before[k]) for k in saved)
    assert [r.step for r in guard.steps] == [1, 2]


def test_no_other_guard_makes_the_trainer_save_its_start(train, guard: FaultyGuard) -> None:
    seen_steps = NEEDS_THE_START.model_copy(update={"attempt": 0, "step": 7})
    for verdict in (HEALTHY, seen_steps):
        guard.verdict_after = lambda _, verdict=verdict: verdict
        train(guard.url, max_steps=1).train()
    assert guard.checkpoints == []


def test_no_step_waits_for_a_hanging_guard(train, guard: FaultyGuard, monkeypatch) -> None:
    import threading

    release = threading.Event()
    posts = []

    def hang(_: Any, body: Any) -> bool:
        if body is not None:
            posts.append(body)
            release.wait(60)
        return False

    guard.fault = hang
    trainer = train(guard.url, max_steps=20)
    monkeypatch.setattr("trainer_image.callback.FLUSH_SECONDS", 0.1)
    trainer.train()
    # Every step is done while the first reports still wait; a step that waited would have posted its own.
    assert trainer.state.global_step == 20
    assert guard.steps == []
    assert len(posts) < 10
    release.set()


def test_what_was_not_delivered_is_reported_at_the_end(train, guard: FaultyGuard, caplog) -> None:
    guard.fault = lambda handler, body: (
        body is not None and problem(409, "step 1 has other values")(handler, body)
    )
    with caplog.at_level(logging.WARNING):
        train(guard.url, max_steps=2).train()
    assert "0 steps and 0 checkpoints acknowledged" in caplog.text and "2 refused" in caplog.text
    assert "step 1 has other values" in caplog.text


# -- configuration -------------------------------------------------------------------------------------------


def from_env(**environ: str) -> Any:
    from trainer_image.callback import GuardCallback

    return GuardCallback.from_env(environ)


def test_without_a_url_the_error_says_what_to_set() -> None:
    with pytest.raises(GuardConfigError, match=r"RLGUARD_URL is not set: set it .*RLGUARD_TOKEN"):
        from_env()


def test_only_rank_0_needs_the_url() -> None:
    from_env(RANK="1")
    with pytest.raises(GuardConfigError, match="RLGUARD_URL"):
        from_env(RANK="0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLGUARD_URL", "localhost:8470"),
        ("RLGUARD_URL", "http://"),
        ("RLGUARD_URL", "http://host:port"),
        ("RLGUARD_ATTEMPT", "first"),
        ("RLGUARD_ATTEMPT", "-1"),
        ("RLGUARD_STRICT", "yes"),
        ("RLGUARD_ON_UNREACHABLE", "ignore"),
        ("RLGUARD_UNREACHABLE_SECONDS", "0"),
        ("RLGUARD_UNREACHABLE_SECONDS", "nan"),
        ("RLGUARD_UNREACHABLE_SECONDS", "five"),
        ("RLGUARD_DRAIN_SECONDS", "-1"),
        ("RLGUARD_DRAIN_SECONDS", "soon"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(GuardConfigError, match=name):
        from_env(**({"RLGUARD_URL": "http://127.0.0.1:1"} | {name: value}))


def test_the_callback_works_when_it_is_driven_without_a_trainer(guard: FaultyGuard) -> None:
    """Some loops call the events themselves; what they log is reported."""
    callback = from_env(RLGUARD_URL=guard.url)
    args = SimpleNamespace(device="cpu", output_dir="nowhere")
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    control = SimpleNamespace(should_training_stop=False)
    callback.on_train_begin(args, state, control)
    for state.global_step in (1, 2):
        callback.on_step_end(args, state, control)
        callback.on_log(args, state, control, logs={"reward": 0.5})
    callback.on_train_end(args, state, control)
    assert [(r.step, r.reward) for r in guard.steps] == [(1, 0.5), (2, 0.5)]
    assert not control.should_training_stop
