"""GuardCallback on a real TRL trainer: what it reports and leaves alone, when it waits, how it stops."""

from __future__ import annotations

import logging
import math
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlguard.client.errors import GuardConfigError, GuardLostError
from rlguard.core import CollapseStopError
from rlguard.core.codes import Code, Level
from rlguard.core.preflight import REFUSED
from rlguard.core.wire import Condition, EvaluationsNeeded, EvaluationSummary, KlKind, Verdict
from tests.trainer.faulty_guard import BUSY, FIRED, HEALTHY, FaultyGuard, problem
from tests.trainer.said import table_in

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

NEEDS_THE_START = HEALTHY.model_copy(
    update={"conditions": (Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message="no pass yet"),)}
)


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    """Make a trainer of the tiny model with a callback for a guard's URL."""
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(url: str | None, *, callback: dict[str, Any] | None = None, **overrides: Any):
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        if url is not None:
            trainer.add_callback(GuardCallback(url, trainer=trainer, **(callback or {})))
        return trainer

    return make


def from_env(trainer: Any = None, **environ: str) -> Any:
    from trainer_image.callback import GuardCallback

    return GuardCallback.from_env(trainer, environ)


@pytest.fixture
def drive(tmp_path: Path) -> Any:
    """A callback that has begun on events without a training; `rank`, and what else its trainer has."""

    def begin(url: str = "", *, rank: int = 0, trainer: dict[str, Any] | None = None, **settings: Any) -> Any:
        from trainer_image.callback import GuardCallback

        args = SimpleNamespace(device="cpu", output_dir=str(tmp_path), **settings.pop("args", {}))
        state = SimpleNamespace(global_step=0, is_world_process_zero=rank == 0, best_model_checkpoint=None)
        control = SimpleNamespace(should_training_stop=False, should_save=False, should_log=False)
        given = None if trainer is None else SimpleNamespace(state=state, **trainer)
        callback = GuardCallback(url or None, trainer=given, **settings)
        events = (args, state, control)
        own = {} if trainer is None else {"model": SimpleNamespace(), "processing_class": object()}
        callback.on_train_begin(*events, **own)
        return SimpleNamespace(callback=callback, events=events, state=state)

    return begin


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlguard.client.reporter.POLL_SECONDS", 0.05)
    monkeypatch.setattr("trainer_image.callback.LAG_POLL_SECONDS", 0.02)


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    timed = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    return [{k: v for k, v in entry.items() if k not in timed} for entry in history]


# -- reports -----------------------------------------------------------------------------------------------


@pytest.mark.always
def test_every_step_is_reported_with_the_values_that_trl_logs(train, guard: FaultyGuard) -> None:
    """Whatever `logging_steps` is; and the user's own log is what it would have been."""
    settings = {"max_steps": 5, "gradient_accumulation_steps": 2}
    every_step = train(None, **settings)
    every_step.train()
    logged = [entry for entry in every_step.state.log_history if "reward" in entry]
    plain = train(None, logging_steps=3, **settings)
    plain.train()
    trainer = train(guard.url, logging_steps=3, **settings)
    trainer.train()

    assert without_times(trainer.state.log_history) == without_times(plain.state.log_history)
    assert [r.step for r in guard.steps] == [1, 2, 3, 4, 5]
    assert {(r.attempt, r.kl_kind) for r in guard.steps} == {(0, KlKind.REF_TOKEN_MEAN)}
    plotted = {
        *("rewards/digit_share/mean", "completions/mean_length"),
        *("completions/clipped_ratio", "frac_reward_zero_std"),
    }
    for report, entry in zip(guard.steps, logged, strict=True):
        for name in ("reward", "kl", "entropy", "reward_std"):
            assert getattr(report, name) == pytest.approx(entry[name], rel=1e-6), name
        assert report.figures == pytest.approx({name: entry[name] for name in plotted}, rel=1e-6)


def test_a_trainer_without_lists_is_reported_as_it_logs(
    guard: FaultyGuard, tmp_path: Path, tiny_model: Path
) -> None:
    import torch
    from transformers import AutoTokenizer, Trainer, TrainingArguments, default_data_collator

    from trainer_image.callback import GuardCallback

    class Rewarded(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            step = self.state.global_step
            values = {"reward": float("nan") if step == 1 else step / 10, "kl": 0.5, "entropy": None}
            self.log({**values, "rewards/format/mean": step / 4, "rewards/format/std": 0.5, "loss": 1.0})
            return model(inputs["x"]).sum()

    settings = {"max_steps": 3, "save_steps": 3, "use_cpu": True, "report_to": []}
    trainer = Rewarded(
        torch.nn.Linear(2, 1),
        TrainingArguments(str(tmp_path), remove_unused_columns=False, **settings),
        train_dataset=[{"x": torch.ones(2)} for _ in range(64)],
        processing_class=AutoTokenizer.from_pretrained(tiny_model),
        data_collator=default_data_collator,
    )
    trainer.add_callback(GuardCallback(guard.url, trainer=trainer))
    trainer.train()
    assert [(r.step, r.reward, r.kl, r.entropy, r.figures) for r in guard.steps] == [
        (0, 0.0, None, None, {"rewards/format/mean": 0.0}),
        (1, None, None, None, {"rewards/format/mean": 0.25}),
        (2, 0.2, None, None, {"rewards/format/mean": 0.5}),
    ]


@pytest.mark.always
def test_without_its_trainer_a_callback_reads_what_the_trainer_logs_at_every_step(
    train, guard: FaultyGuard
) -> None:
    """As where a framework makes the trainer, and takes callbacks alone."""
    guard.verdict_after = lambda acknowledged: HEALTHY if acknowledged else NEEDS_THE_START
    trainer = train(None, max_steps=6, logging_steps=100, num_iterations=2)
    trainer.add_callback(from_env(RLGUARD_URL=guard.url))
    trainer.train()
    assert [r.step for r in guard.steps] == [1, 2, 3, 4, 5, 6]
    assert all(r.reward is not None and r.kl is not None for r in guard.steps) and guard.rollouts == []
    start = guard.checkpoints[0]
    assert (start.step, start.sampling) == (0, guard.checkpoints[-1].sampling)
    assert all((Path(start.path) / name).exists() for name in ("tokenizer.json", "model.safetensors"))


@pytest.mark.always
def test_a_run_of_rewards_that_are_not_finite_is_not_silent(train, guard: FaultyGuard, caplog) -> None:
    trainer = train(guard.url, max_steps=3)
    trainer.reward_funcs[0] = lambda completions, **_: [math.nan] * len(completions)
    trainer.train()
    assert [(r.step, r.reward) for r in guard.steps] == [(1, None), (2, None), (3, None)]
    assert caplog.text.count("has no finite reward") == 1


@pytest.mark.parametrize("finishes", [True, False])
def test_only_a_training_that_came_to_its_end_says_that_it_finished(
    drive, guard: FaultyGuard, finishes: bool
) -> None:
    run = drive(guard.url)
    guard.verdict_after = lambda steps: HEALTHY if finishes or not steps else FIRED
    run.state.global_step = 1
    run.callback.on_log(*run.events, logs={"reward": 0.5})
    run.state.global_step = 7  # whatever became of the rewards since
    if finishes:
        run.callback.on_train_end(*run.events)
        assert guard.requests[-1] == ("POST", "/v1/end")
    else:
        with pytest.raises(CollapseStopError):
            run.callback.on_train_end(*run.events)
    assert [(end.attempt, end.step, end.began) for end in guard.ends] == ([(0, 7, 0)] if finishes else [])


# -- rollouts ----------------------------------------------------------------------------------------------


def test_rollouts_of_the_first_step_and_of_each_checkpoint_are_sent(train, guard: FaultyGuard) -> None:
    trainer = train(guard.url, max_steps=4, save_steps=2, gradient_accumulation_steps=2)
    asked, seen = trainer.reward_funcs[0], []

    def noted(prompts: list[str], completions: list[str], **more: Any) -> list[float]:
        rewards = asked(completions, **more)
        seen.extend(zip(prompts, completions, (round(reward, 6) for reward in rewards), strict=True))
        return rewards

    trainer.reward_funcs[0] = noted
    trainer.train()
    assert [report.step for report in guard.rollouts] == [1, 2, 4]
    for report in guard.rollouts:
        sent = [(r.prompt, r.completion, round(r.reward, 6)) for r in report.rollouts]
        assert sent and set(sent) <= set(seen)
    assert sent[0][2] == max(reward for _, _, reward in seen[-8:])


def test_prompts_of_the_trainers_own_evaluation_are_never_sent(train, guard: FaultyGuard) -> None:
    from datasets import Dataset

    # Of two steps that share a generation the second makes none, and an evaluation lies between.
    trainer = train(guard.url, max_steps=4, save_steps=1, num_iterations=2)
    trainer.eval_dataset = Dataset.from_list([{"prompt": "held out", "answer": "0"}] * 4)
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 1
    trainer.args.per_device_eval_batch_size = 4
    trainer.train()
    assert any("eval_reward" in entry for entry in trainer.state.log_history)
    assert [report.step for report in guard.rollouts] == [1, 2, 3, 4]
    sent = {r.prompt.replace(" ", "") for report in guard.rollouts for r in report.rollouts}
    assert sent and "heldout" not in sent


# -- checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.always
def test_checkpoints_are_reported_when_they_are_on_disk(train, guard: FaultyGuard) -> None:
    seen: list[set[str]] = []

    def look(_: Any, body: Any) -> bool:
        if isinstance(body, dict) and "path" in body:
            directory = Path(body["path"])
            seen.append({path.name for path in directory.iterdir()})
            readers = directory.stat().st_mode & 0o044
            assert (directory / "model.safetensors").stat().st_mode & 0o044 == readers, (
                "for another user, too"
            )
        return False

    guard.fault = look
    trainer = train(guard.url, max_steps=4, save_steps=2, save_only_model=False)
    trainer.train()
    output = Path(trainer.args.output_dir).resolve()
    assert [(c.step, c.path) for c in guard.checkpoints] == [
        (2, str(output / "checkpoint-2")),
        (4, str(output / "checkpoint-4")),
    ]
    assert len(seen) == 2
    assert all({"model.safetensors", "trainer_state.json", "optimizer.pt"} <= names for names in seen)


def test_a_checkpoint_is_announced_when_every_rank_has_written_it(
    drive, guard: FaultyGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = drive(guard.url)
    last_rank_writes = (tmp_path / "checkpoint-1").mkdir
    monkeypatch.setattr("trainer_image.ranks.barrier", last_rank_writes)
    run.state.global_step = 1
    run.callback.on_save(*run.events)
    run.callback.on_train_end(*run.events)
    assert [c.step for c in guard.checkpoints] == [1]


@pytest.mark.parametrize("resumed", [False, True])
def test_the_starting_policy_is_saved_for_a_guard_that_compares_with_it(
    train, guard: FaultyGuard, tiny_model: Path, tmp_path: Path, resumed: bool
) -> None:
    """The weights of a resumed run are no starting policy, and it says where it began."""
    from safetensors.torch import load_file

    guard.verdict_after = lambda acknowledged: HEALTHY if acknowledged else NEEDS_THE_START
    resume = None
    if resumed:
        train(None, max_steps=2, save_only_model=False).train()
        resume = str(tmp_path / "out" / "checkpoint-2")
    trainer = train(guard.url, max_steps=4, save_only_model=False)
    trainer.train(resume_from_checkpoint=resume)
    saved = [(c.step, Path(c.path).name) for c in guard.checkpoints]
    assert [(end.step, end.began) for end in guard.ends] == [(4, 2 if resumed else 0)]
    if resumed:
        assert saved == [(4, "checkpoint-4")] and [r.step for r in guard.steps] == [3, 4]
        return
    assert saved == [(0, "_rlguard-start"), (4, "checkpoint-4")]
    start, last = guard.checkpoints
    assert start.sampling is not None and start.sampling == last.sampling, "the first one counts for the run"
    weights, before = (load_file(Path(d) / "model.safetensors") for d in (start.path, tiny_model))
    assert weights.keys() == before.keys() and all(weights[k].equal(before[k]) for k in weights)


def test_what_the_guard_made_is_never_pushed(train, guard: FaultyGuard, monkeypatch) -> None:
    """Neither when the start is saved, nor with what the Trainer pushes of `output_dir` later."""
    from transformers import Trainer

    guard.verdict_after = lambda acknowledged: HEALTHY if acknowledged else NEEDS_THE_START
    pushed: list[int] = []
    trainer = train(guard.url, max_steps=2)
    monkeypatch.setattr(Trainer, "push_to_hub", lambda self, **_: pushed.append(self.state.global_step))
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda *_: None)
    trainer.args.push_to_hub = True
    trainer.train()
    assert pushed == [], "training itself pushes checkpoints only"
    trainer.save_model()
    assert pushed == [2], "the user's own save is pushed"
    start = Path(guard.checkpoints[0].path)
    assert start.is_dir() and fnmatch(start.name, "_*"), "the Trainer leaves `_*` out of what it pushes"


def test_the_best_checkpoint_is_spared_on_request(train, guard: FaultyGuard, quick_looks) -> None:
    def verdict(_: int) -> Verdict:
        paths = [report.path for report in guard.checkpoints if report.step == 2]
        if not paths:
            return HEALTHY
        best = EvaluationSummary(attempt=0, step=2, score=0.5, items=4, path=paths[0])
        return HEALTHY.model_copy(update={"best_evaluation": best, "last_evaluation": best})

    guard.verdict_after = verdict
    waits = {"keep_best": True, "max_lag": 0}  # for each response, so that none is late
    trainer = train(guard.url, max_steps=5, save_steps=1, save_total_limit=2, callback=waits)
    trainer.train()
    kept = {path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")}
    assert kept == {"checkpoint-2", "checkpoint-5"}


# -- stops -------------------------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.parametrize("strict", [True, False])
def test_a_fire_ends_training(train, guard: FaultyGuard, strict: bool) -> None:
    guard.verdict_after = lambda steps: FIRED if steps >= 2 else HEALTHY
    trainer = train(guard.url, max_steps=500, callback={"strict": strict})
    if strict:
        with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
            trainer.train()
        assert stop.value.status.fire and stop.value.status.step == 3
        assert math.isnan(stop.value.status.heldout_ema), "a number that the verdict lacks is not 0"
    else:
        trainer.train()
    assert 2 <= trainer.state.global_step < 500


@pytest.mark.always
def test_a_restarted_trainer_stops_before_its_first_step(train, guard: FaultyGuard) -> None:
    guard.verdict_after = lambda _: FIRED
    trainer = train(guard.url)
    with pytest.raises(CollapseStopError):
        trainer.train()
    assert trainer.state.global_step == 0 and guard.steps == []


@pytest.mark.always
def test_a_run_of_which_every_checkpoint_was_refused_does_not_end_well(train, guard: FaultyGuard) -> None:
    outside = problem(409, "the checkpoint lies outside the checkpoint root /checkpoints")
    guard.fault = lambda handler, body: handler.path == "/v1/checkpoints" and outside(handler, body)
    with pytest.raises(GuardLostError, match=r"refused every checkpoint .*outside the checkpoint root"):
        train(guard.url, max_steps=2).train()


@pytest.mark.always
def test_the_end_of_training_waits_for_the_last_evaluations(train, guard: FaultyGuard, quick_looks) -> None:
    """In a pod the guard ends with the trainer: what it has not evaluated by then, it never will."""
    asked: list[int] = []

    def verdict(_: int) -> Verdict:
        asked.extend([1] if guard.checkpoints else [])
        return FIRED if len(asked) > 8 else BUSY if asked else HEALTHY

    guard.verdict_after = verdict
    with pytest.raises(CollapseStopError):
        train(guard.url, callback={"drain_seconds": 600.0, "max_lag": None}, max_steps=2).train()


# -- waiting -----------------------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.parametrize("then", [HEALTHY, FIRED], ids=["healthy", "fired"])
def test_training_waits_for_a_guard_that_lags(
    train, guard: FaultyGuard, quick_looks, caplog, then: Verdict
) -> None:
    steps: list[int] = []  # at each look while the newest checkpoint waits for its score
    trainer = train(guard.url, max_steps=3, save_steps=2, callback={"max_lag": 0})

    def verdict(_: int) -> Verdict:
        if [c.step for c in guard.checkpoints] != [2]:
            return HEALTHY
        steps.append(trainer.state.global_step)
        return BUSY if len(steps) < 8 else then

    guard.verdict_after = verdict
    with caplog.at_level(logging.INFO, "rlguard.trainer"):
        if then is FIRED:
            with pytest.raises(CollapseStopError):
                trainer.train()
            assert trainer.state.global_step == 2
        else:
            trainer.train()
            assert trainer.state.global_step == 3
    assert steps[:8] == [2] * 8
    assert "training waits for 1 unscored checkpoints (at most 0)" in caplog.text


@pytest.mark.always
@pytest.mark.parametrize(("next_pass", "first"), [("baseline", 0), ("confirmation", 1)])
def test_nobody_trains_on_while_the_guard_makes_a_pass(
    train, guard: FaultyGuard, quick_looks, next_pass: str, first: int
) -> None:
    """No step is made before the baseline, nor while an alarm waits for its second look."""
    looks, seen = 6, list[int]()

    def verdict(steps: int) -> Verdict:
        wants = steps >= first and len(seen) < looks
        seen.extend([steps] if wants else [])
        return BUSY.model_copy(update={"waiting": 0, "next_pass": next_pass if wants else None})

    guard.verdict_after = verdict
    train(guard.url, max_steps=8, save_steps=8).train()
    assert len(seen) == looks and len(set(seen[2 * first :])) == 1, "the step under way, and no more"


@pytest.mark.always
def test_a_rank_without_a_guard_waits_as_long_as_rank_0_says(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks at every look: else its next collective would wait for rank 0 as long as the guard lags."""
    run = drive(rank=1)
    heard = iter([True, True, None, None])  # it lags at two looks; then what rank 0 has heard: nothing
    monkeypatch.setattr("trainer_image.ranks.agree", lambda _mine, _device: next(heard))
    run.callback.on_save(*run.events)
    assert list(heard) == [] and run.callback.stop is None


# -- before the first step ---------------------------------------------------------------------------------


def test_before_the_first_step_one_table_says_what_was_looked_at(train, guard: FaultyGuard, caplog) -> None:
    needed = EvaluationsNeeded(long_rounds=2, short_rounds=2)
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"needed": needed, "checkpoint_root": "/"})
    with caplog.at_level(logging.INFO, "rlguard.trainer"):
        train(guard.url, max_steps=3, save_steps=1, save_total_limit=2, beta=0.0).train()
    levels = {name: row.level.value for name, row in table_in(caplog).items()}
    assert levels.pop("KL to the reference") == "warn" and levels.pop("evaluation time") == "not checked"
    assert len(levels) == 8 and set(levels.values()) == {"ok"}
    assert {(r.kl, r.kl_kind) for r in guard.steps} == {(None, KlKind.ABSENT)}


@pytest.mark.always
@pytest.mark.parametrize(
    ("settings", "verdict", "message"),
    [
        (
            {"max_steps": 40, "save_steps": 500},
            {},
            "500 is more than max_steps 40.* set save_steps to 4 or less",
        ),
        ({}, {"checkpoint_root": "/elsewhere"}, "outside the guard's checkpoint_root /elsewhere"),
        ({"beta": 0.0}, {"kl_hard_stop": 0.3}, r"kl.hard_stop \(0.3\).*set beta above 0, or leave"),
    ],
)
def test_a_run_that_could_not_be_judged_is_refused(
    train, guard: FaultyGuard, caplog, settings: Any, verdict: Any, message: str
) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update=verdict)
    trainer = train(guard.url, **settings)
    with pytest.raises(GuardConfigError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0 and guard.steps == [] and guard.checkpoints == []
    assert REFUSED in caplog.text, "`rlguard run` looks for it"


# -- configuration -----------------------------------------------------------------------------------------


def test_only_rank_0_needs_the_url() -> None:
    from_env(RANK="1")
    with pytest.raises(GuardConfigError, match="RLGUARD_URL"):
        from_env(RANK="0")


@pytest.mark.parametrize(
    ("name", "value"),
    [("RLGUARD_URL", "localhost:8470"), ("RLGUARD_STRICT", "maybe"), ("RLGUARD_MAX_LAG", "-1")],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(GuardConfigError, match=name):
        from_env(**({"RLGUARD_URL": "http://127.0.0.1:1"} | {name: value}))


def test_a_callback_of_another_trainer_says_so(train, guard: FaultyGuard) -> None:
    trainer = train(None, max_steps=2)
    trainer.add_callback(from_env(train(None, max_steps=2), RLGUARD_URL=guard.url))
    with pytest.raises(GuardConfigError, match="another trainer than the one that it was added to"):
        trainer.train()


def test_an_optional_guard_that_the_environment_does_not_name_trains_unguarded(
    train, guard: FaultyGuard, caplog
) -> None:
    from trainer_image.callback import GuardCallback

    trainer = train(None, max_steps=2, save_strategy="no")
    trainer.add_callback(GuardCallback.from_env(trainer, {}, optional=True))
    trainer.train()
    assert trainer.state.global_step == 2 and guard.requests == []
    assert caplog.text.count("RLGUARD_URL is not set: this run is unguarded") == 1
