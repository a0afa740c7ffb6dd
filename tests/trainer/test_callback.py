"""GuardCallback on a real TRL trainer: what it reports, what it leaves alone, and how it stops.

Aspects: every step is reported whatever `logging_steps` is; the reports equal what TRL would log at every
step; the user's log history is untouched; nothing is fabricated; checkpoints; strict and soft stops; a guard
that has already fired; a guard that cannot be reached; configuration.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guard_client.errors import GuardConfigError, GuardLostError
from guard_core import CollapseStopError
from guard_core.codes import Code, Level
from guard_core.wire import Condition, EvaluationsNeeded, EvaluationSummary, KlKind, Verdict
from tests.trainer.faulty_guard import BUSY, FIRED, HEALTHY, FaultyGuard, problem, reply
from tests.trainer.said import table_in

pytestmark = [pytest.mark.nightly, pytest.mark.torch]


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    """Make a trainer of the tiny model with a callback for a guard's URL."""
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(url: str | None, *, callback_kwargs: dict[str, Any] | None = None, **overrides: Any):
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        if url is not None:
            trainer.add_callback(GuardCallback(url, trainer=trainer, **(callback_kwargs or {})))
        return trainer

    return make


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    timed = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    return [{k: v for k, v in entry.items() if k not in timed} for entry in history]


@pytest.mark.always
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
    plotted = {
        "rewards/digit_share/mean",
        "completions/mean_length",
        "completions/clipped_ratio",
        "frac_reward_zero_std",
    }
    for report, entry in zip(guard.steps, logged, strict=True):
        assert report.figures == pytest.approx({name: entry[name] for name in plotted}, rel=1e-6)


@pytest.mark.parametrize("logging_steps", [3])
def test_the_log_history_is_what_it_would_have_been(train, guard: FaultyGuard, logging_steps: int) -> None:
    plain = train(None, max_steps=5, logging_steps=logging_steps)
    plain.train()
    guarded = train(guard.url, max_steps=5, logging_steps=logging_steps)
    guarded.train()
    assert len(guard.steps) == 5
    assert without_times(guarded.state.log_history) == without_times(plain.state.log_history)


@pytest.mark.always
def test_without_a_reference_model_kl_is_absent(train, guard: FaultyGuard) -> None:
    train(guard.url, beta=0.0).train()
    assert {(r.kl, r.kl_kind) for r in guard.steps} == {(None, KlKind.ABSENT)}


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

    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=3,
        use_cpu=True,
        report_to=[],
        save_steps=3,
        remove_unused_columns=False,
    )
    data = [{"x": torch.ones(2)} for _ in range(64)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    trainer = Rewarded(
        torch.nn.Linear(2, 1),
        arguments,
        train_dataset=data,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.add_callback(GuardCallback(guard.url, trainer=trainer))
    trainer.train()
    assert [(r.step, r.reward, r.kl, r.entropy) for r in guard.steps] == [
        (0, 0.0, None, None),
        (1, None, None, None),
        (2, 0.2, None, None),
    ]
    assert [r.figures for r in guard.steps] == [{"rewards/format/mean": step / 4} for step in range(3)]


@pytest.mark.always
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
    trainer = train(guard.url, max_steps=4, save_steps=2, save_only_model=False)
    trainer.train()
    output = Path(trainer.args.output_dir).resolve()
    assert [(c.step, c.path) for c in guard.checkpoints] == [
        (2, str(output / "checkpoint-2")),
        (4, str(output / "checkpoint-4")),
    ]
    assert all({"model.safetensors", "trainer_state.json", "optimizer.pt"} <= set(names) for names in seen)


def scored_best(guard: FaultyGuard, step: int, elsewhere: str = "") -> None:
    """From its report on the checkpoint of this step is the best one."""

    def verdict(_: int) -> Verdict:
        paths = [report.path for report in guard.checkpoints if report.step == step]
        if not paths:
            return HEALTHY
        best = EvaluationSummary(attempt=0, step=step, score=0.5, items=4, path=elsewhere or paths[0])
        return HEALTHY.model_copy(update={"best_evaluation": best, "last_evaluation": best})

    guard.verdict_after = verdict


@pytest.mark.parametrize(
    ("keep_best", "limit", "elsewhere", "kept"),
    [
        (True, 2, "", {"checkpoint-2", "checkpoint-5"}),
        (False, 2, "", {"checkpoint-4", "checkpoint-5"}),
    ],
)
def test_the_best_checkpoint_is_spared_on_request(
    train, guard: FaultyGuard, quick_looks, keep_best: bool, limit: int, elsewhere: str, kept: set[str]
) -> None:
    scored_best(guard, 2, elsewhere)
    settings = {"keep_best": keep_best, "max_lag": 0}  # it waits for each response, so that none is late
    trainer = train(guard.url, max_steps=5, save_steps=1, save_total_limit=limit, callback_kwargs=settings)
    trainer.train()
    assert {path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")} == kept


def scored_soon(guard: FaultyGuard, sooner: bool, late: int) -> None:
    """Of the announced checkpoints all but so many are scored, and the next one may be wanted sooner."""

    def verdict(_: int) -> Verdict:
        scored = guard.checkpoints[: len(guard.checkpoints) - late]
        if not scored:
            return HEALTHY
        newest = EvaluationSummary(attempt=0, step=scored[-1].step, score=0.5, items=4, path=scored[-1].path)
        return HEALTHY.model_copy(update={"last_evaluation": newest, "sooner": sooner})

    guard.verdict_after = verdict


@pytest.mark.parametrize(
    ("sooner", "late", "switch", "settings", "saved"),
    [
        (True, 0, "1", {}, [4, 6, 8, 10, 12]),
        (False, 0, "1", {}, [4, 8, 12]),
        (True, 1, "1", {}, [4, 8, 12]),
        (True, 0, "1", {"save_total_limit": 2}, [4, 8, 12]),
        (True, 0, "1", {"save_strategy": "epoch", "max_steps": 6}, [6]),
    ],
    ids=[
        "wanted",
        "not wanted",
        "one waits",
        "two are kept",
        "one epoch",
    ],
)
def test_one_checkpoint_is_saved_between_two_where_the_guard_wants_one_sooner(
    train,
    guard: FaultyGuard,
    quick_looks,
    sooner: bool,
    late: int,
    switch: str,
    settings: dict[str, Any],
    saved: list[int],
) -> None:
    scored_soon(guard, sooner, late)
    trainer = train(None, **({"max_steps": 12, "save_steps": 4} | settings))
    # It waits for each response, so that none is late.
    trainer.add_callback(
        from_env(trainer, RLGUARD_URL=guard.url, RLGUARD_MAX_LAG="0", RLGUARD_SAVE_SOONER=switch)
    )
    trainer.train()
    assert [report.step for report in guard.checkpoints] == saved


@pytest.mark.parametrize("switch", ["1", "0"])
def test_every_rank_saves_the_checkpoint_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """As rank 0 has it, whatever the environment of another rank says: else they would not save together."""
    from trainer_image.experiment import News

    callback = from_env(RANK="1", RLGUARD_SAVE_SOONER=switch)
    args = SimpleNamespace(device="cpu", output_dir=str(tmp_path), save_strategy="steps", save_total_limit=3)
    state = SimpleNamespace(global_step=8, is_world_process_zero=False, save_steps=4, max_steps=20)
    control = SimpleNamespace(should_training_stop=False, should_save=False, should_log=False)
    callback.on_train_begin(args, state, control)
    heard = {9: News(None, {}, "", True), 16: News(None, {}, "", False)}  # what is heard holds
    asks = itertools.cycle([True, False])  # whether to wait, and then what rank 0 has heard
    monkeypatch.setattr(
        "trainer_image.ranks.agree",
        lambda _mine, _device: None if next(asks) else heard.pop(state.global_step, None),
    )
    found = []
    for state.global_step in range(9, 21):
        control.should_save = False
        callback.on_step_end(args, state, control)
        found += [state.global_step] if control.should_save else []
        if state.global_step % 4 == 0:
            callback.on_save(args, state, control)
    assert found == [10, 11, 14, 15]


def test_every_rank_spares_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node rotates its own disk where nodes share none."""
    from trainer_image.experiment import News

    callback = from_env(RANK="1", RLGUARD_KEEP_BEST="1")
    args = SimpleNamespace(
        device="cpu", output_dir=str(tmp_path), metric_for_best_model=None, save_total_limit=2
    )
    state = SimpleNamespace(global_step=0, is_world_process_zero=False, best_model_checkpoint=None)
    control = SimpleNamespace(should_training_stop=False, should_save=False, should_log=False)
    callback.on_train_begin(args, state, control)
    best = str(tmp_path / "checkpoint-7")
    told = iter([None, News(None, {}, best)])  # it does not wait; then what rank 0 has heard
    monkeypatch.setattr("trainer_image.ranks.agree", lambda _mine, _device: next(told))
    callback.on_step_end(args, state, control)
    assert state.best_model_checkpoint == best


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"metric_for_best_model": "reward"}, "metric_for_best_model to be unset, got 'reward'"),
        ({"save_total_limit": 1}, "save_total_limit to be 2 or more, got 1"),
    ],
)
def test_a_rotation_that_could_not_spare_it_is_refused(
    train, guard: FaultyGuard, settings: Any, wrong: str
) -> None:
    trainer = train(guard.url, callback_kwargs={"keep_best": True}, **settings)
    with pytest.raises(GuardConfigError, match=wrong):
        trainer.train()
    assert guard.requests == [] and trainer.state.global_step == 0


@pytest.fixture
def driven(guard: FaultyGuard, tmp_path: Path) -> Any:
    """A callback that has begun, with the arguments of its events; no trainer."""
    args = SimpleNamespace(device="cpu", output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    control = SimpleNamespace(should_training_stop=False, should_save=False, should_log=False)
    callback = from_env(RLGUARD_URL=guard.url)
    callback.on_train_begin(args, state, control)
    return SimpleNamespace(callback=callback, events=(args, state, control), state=state)


def test_a_training_that_has_finished_says_so_last(driven: Any, guard: FaultyGuard) -> None:
    driven.state.global_step = 1
    driven.callback.on_log(*driven.events, logs={"reward": 0.5})
    driven.state.global_step = 7  # whatever became of the rewards since
    driven.callback.on_train_end(*driven.events)
    assert [(end.attempt, end.step, end.began) for end in guard.ends] == [(0, 7, 0)] and guard.requests[
        -1
    ] == (
        "POST",
        "/v1/end",
    )


def test_a_training_that_was_stopped_does_not_say_that_it_finished(driven: Any, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(1)
    driven.state.global_step = 1
    driven.callback.on_log(*driven.events, logs={"reward": 0.5})
    with pytest.raises(CollapseStopError):
        driven.callback.on_train_end(*driven.events)
    assert guard.ends == []


def test_a_checkpoint_is_announced_when_every_rank_has_written_it(
    driven: Any, guard: FaultyGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_rank_writes = (tmp_path / "checkpoint-1").mkdir
    monkeypatch.setattr("trainer_image.ranks.barrier", last_rank_writes)
    driven.state.global_step = 1
    driven.callback.on_save(*driven.events)
    driven.callback.on_train_end(*driven.events)
    assert [c.step for c in guard.checkpoints] == [1]


def test_a_run_whose_last_checkpoint_never_reaches_the_guard_does_not_end_well(
    driven: Any, guard: FaultyGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guard_client.guard.FLUSH_SECONDS", 0.2)
    guard.fault = lambda handler, _: reply(handler, 503, "starting again")
    (tmp_path / "checkpoint-1").mkdir()
    driven.state.global_step = 1
    driven.callback.on_save(*driven.events)
    with pytest.raises(GuardLostError, match="1 checkpoints never reached the guard"):
        driven.callback.on_train_end(*driven.events)
    assert driven.callback.stop.lost


def late_evaluation(guard: FaultyGuard, found: Verdict) -> None:
    """The last checkpoint is evaluated only when the verdict has been asked for five more times."""

    def verdict(steps: int) -> Verdict:
        asked = [path for _, path in guard.requests if path == "/v1/verdict"]
        if not guard.checkpoints or len(asked) > 5:
            return found if guard.checkpoints else HEALTHY
        return BUSY

    guard.verdict_after = verdict


@pytest.mark.always
def test_the_end_of_training_waits_for_the_last_evaluations(
    train, guard: FaultyGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod the guard ends with the trainer: what it has not evaluated by then, it never will."""
    monkeypatch.setattr("guard_client.reporter.POLL_SECONDS", 0.1)
    late_evaluation(guard, FIRED)
    waiting = {"drain_seconds": 60.0}
    trainer = train(guard.url, callback_kwargs=waiting, max_steps=2)
    with pytest.raises(CollapseStopError):
        trainer.train()


def fire_after(steps: int) -> Any:
    return lambda acknowledged: FIRED if acknowledged >= steps else HEALTHY


@pytest.mark.always
def test_a_fire_raises_and_ends_training(train, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(2)
    trainer = train(guard.url, max_steps=500)
    with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
        trainer.train()
    assert 2 <= trainer.state.global_step < 500
    assert stop.value.status.fire and stop.value.status.step == 3
    assert math.isnan(stop.value.status.heldout_ema), "a number that the verdict lacks is not 0"


@pytest.mark.always
def test_a_fire_ends_training_softly(train, guard: FaultyGuard) -> None:
    guard.verdict_after = fire_after(2)
    trainer = train(guard.url, max_steps=500, callback_kwargs={"strict": False})
    trainer.train()
    assert 2 <= trainer.state.global_step < 500


@pytest.mark.always
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
    assert (start.step, Path(start.path).name) == (0, "_rlguard-start")
    assert start.sampling is not None and start.sampling == guard.checkpoints[1].sampling, (
        "what the first one says counts for the whole run"
    )
    saved, before = (load_file(Path(d) / "model.safetensors") for d in (start.path, tiny_model))
    assert saved.keys() == before.keys() and all(saved[k].equal(before[k]) for k in saved)
    assert [r.step for r in guard.steps] == [1, 2]


def test_no_other_guard_makes_the_trainer_save_its_start(train, guard: FaultyGuard) -> None:
    seen_steps = NEEDS_THE_START.model_copy(update={"attempt": 0, "step": 7})
    for verdict in (HEALTHY, seen_steps):
        guard.verdict_after = lambda _, verdict=verdict: verdict
        train(guard.url, max_steps=1).train()
    assert [Path(c.path).name for c in guard.checkpoints] == ["checkpoint-1"] * 2


def test_a_resumed_run_has_no_start_to_save_and_says_where_it_began(train, guard: FaultyGuard) -> None:
    """Its weights are no starting policy, also for a guard that has seen nothing of the run."""
    train(None, max_steps=2, save_only_model=False).train()
    guard.verdict_after = lambda acknowledged: HEALTHY if acknowledged else NEEDS_THE_START
    trainer = train(guard.url, max_steps=4, save_only_model=False)
    trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-2"))
    assert [(c.step, Path(c.path).name) for c in guard.checkpoints] == [(4, "checkpoint-4")]
    assert [r.step for r in guard.steps] == [3, 4]
    assert [(end.step, end.began) for end in guard.ends] == [(4, 2)]


# -- a guard that refuses ------------------------------------------------------------------------------------


def refuse(path: str, detail: str) -> Any:
    """A fault that answers every POST to `path` with a refusal."""
    return lambda handler, body: handler.path == path and problem(409, detail)(handler, body)


OUTSIDE = refuse("/v1/checkpoints", "the checkpoint lies outside the checkpoint root /checkpoints")


@pytest.mark.parametrize("path", ["/v1/checkpoints"])
def test_a_guard_that_refuses_everything_is_treated_as_lost(train, guard: FaultyGuard, path: str) -> None:
    guard.fault = refuse(path, "attempt 0 has ended")
    trainer = train(guard.url, max_steps=300, save_steps=5)  # none is rotated away before it is sent
    with pytest.raises(GuardLostError, match=r"refuses every .* in a row: .*attempt 0 has ended"):
        trainer.train()
    assert trainer.state.global_step < 300


@pytest.mark.always
def test_a_run_of_which_every_checkpoint_was_refused_does_not_end_well(train, guard: FaultyGuard) -> None:
    guard.fault = OUTSIDE
    with pytest.raises(GuardLostError, match=r"refused every checkpoint .*outside the checkpoint root"):
        train(guard.url, max_steps=2).train()


# -- a run that waits for its guard --------------------------------------------------------------------------


def scored_after(looks: int, found: Verdict = HEALTHY) -> Any:
    """A fault: the verdict has the newest checkpoint waiting until it was asked for so many times."""
    state = {"left": 0}

    def answer(handler: Any, _: Any) -> bool:
        if handler.path == "/v1/checkpoints":
            state["left"] = looks
        elif handler.path == "/v1/verdict" and state["left"]:
            state["left"] -= 1
            waiting = BUSY
            return reply(handler, 200, (waiting if state["left"] else found).model_dump_json())
        return False

    return answer


def lagging(guard: FaultyGuard) -> None:
    """One evaluation is under way whenever a report is answered."""
    guard.verdict_after = lambda _: BUSY if guard.checkpoints else HEALTHY


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guard_client.reporter.POLL_SECONDS", 0.05)
    monkeypatch.setattr("trainer_image.callback.LAG_POLL_SECONDS", 0.02)


@pytest.mark.always
def test_training_waits_for_a_guard_that_lags_and_goes_on(
    train, guard: FaultyGuard, quick_looks, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagging(guard)
    monkeypatch.setattr("guard_client.waiting.STALL_SECONDS", 3.0)  # its verdict lags for ever after
    guard.fault = scored_after(3)
    steps_at_look: list[int] = []
    trainer = train(guard.url, max_steps=2, save_steps=1, callback_kwargs={"max_lag": 0})
    answer = guard.fault

    def look(handler: Any, body: Any) -> bool:
        if handler.path == "/v1/verdict":
            steps_at_look.append(trainer.state.global_step)
        return answer(handler, body)

    guard.fault = look
    with caplog.at_level(logging.INFO, "rlguard.trainer"):
        trainer.train()
    assert "training waits for 1 unscored checkpoints (at most 0)" in caplog.text
    assert steps_at_look.count(1) >= 3 and trainer.state.global_step == 2


@pytest.mark.always
def test_a_rank_without_a_guard_waits_as_long_as_rank_0_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And asks at every look: else its next collective would wait for rank 0 as long as the guard lags."""
    callback = from_env(RANK="1")
    args = SimpleNamespace(device="cpu", output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=0, is_world_process_zero=False)
    control = SimpleNamespace(should_training_stop=False, should_save=False, should_log=False)
    callback.on_train_begin(args, state, control)
    told = iter([True, True, None, None])  # it lags at two looks; then what rank 0 has heard: nothing
    monkeypatch.setattr("trainer_image.ranks.agree", lambda _mine, _device: next(told))
    callback.on_save(args, state, control)
    assert list(told) == [] and callback.stop is None


@pytest.mark.always
def test_a_fire_stops_a_run_that_waits_before_it_trains_on(train, guard: FaultyGuard, quick_looks) -> None:
    lagging(guard)
    guard.fault = scored_after(3, FIRED)
    trainer = train(guard.url, max_steps=500, save_steps=1, callback_kwargs={"max_lag": 0})
    with pytest.raises(CollapseStopError):
        trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.always
def test_a_guard_that_finishes_nothing_is_waited_for_once(
    train, guard: FaultyGuard, quick_looks, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr("guard_client.waiting.STALL_SECONDS", 0.3)
    lagging(guard)
    trainer = train(guard.url, max_steps=4, save_steps=1, callback_kwargs={"max_lag": 0})
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.callback_handler.callbacks[-1].stop is None
    assert caplog.text.count("training goes on unjudged") == 1


LOOKS = 6


def held_by(next_pass: str, first: int) -> tuple[Any, list[int]]:
    """A verdict that wants such a pass for some looks from step `first` on, and the steps at these looks."""
    seen: list[int] = []

    def verdict(steps: int) -> Any:
        wants = steps >= first and len(seen) < LOOKS
        if wants:
            seen.append(steps)
        return BUSY.model_copy(update={"waiting": 0, "next_pass": next_pass if wants else None})

    return verdict, seen


@pytest.mark.always
def test_no_step_is_made_before_the_baseline(train, guard: FaultyGuard, quick_looks) -> None:
    guard.verdict_after, seen = held_by("baseline", first=0)
    train(guard.url, max_steps=4, save_steps=4).train()
    assert seen == [0] * LOOKS


@pytest.mark.always
def test_nobody_trains_on_while_an_alarm_waits_for_its_second_look(
    train, guard: FaultyGuard, quick_looks
) -> None:
    guard.verdict_after, seen = held_by("confirmation", first=1)
    train(guard.url, max_steps=20, save_steps=20).train()
    assert len(seen) == LOOKS and len(set(seen[2:])) == 1, "the step under way when it is heard, and no more"


# -- how much of it can be judged ----------------------------------------------------------------------------


def test_before_the_first_step_one_table_says_what_was_looked_at(train, guard: FaultyGuard, caplog) -> None:
    needed = EvaluationsNeeded(long_rounds=2, short_rounds=2)
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"needed": needed, "checkpoint_root": "/"})
    with caplog.at_level(logging.INFO, "rlguard.trainer"):
        train(guard.url, max_steps=3, save_steps=1, save_total_limit=2, beta=0.0).train()
    rows = table_in(caplog)
    assert {name: row.level.value for name, row in rows.items()} == {
        "steps": "ok",
        "KL to the reference": "warn",
        "checkpoints folder": "ok",
        "checkpoint layout": "ok",
        "tokenizer": "ok",
        "evaluations": "ok",
        "sampling": "ok",
        "save_total_limit": "ok",
        "starting policy": "ok",
        "evaluation time": "not checked",
    }
    assert "a beta of 0.001 would show it" in rows["KL to the reference"].says
    assert "while more than 1 are unscored" in rows["save_total_limit"].says


def test_checks_that_cannot_be_made_end_no_run(train, guard: FaultyGuard, monkeypatch, caplog) -> None:
    """Other ranks wait for the first one, which makes them."""
    monkeypatch.setattr("trainer_image.callback.trainer_rows", lambda _: 1 / 0)
    train(guard.url, max_steps=1).train()
    assert [report.step for report in guard.steps] == [1]
    assert "nothing was checked before the first step: ZeroDivisionError" in caplog.text


# -- what could never be scored ------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"save_strategy": "no"}, "set save_strategy='steps' and save_steps=1"),
        ({"max_steps": 40, "save_steps": 500}, "500 is more than max_steps 40.* set save_steps to 4 or less"),
        ({"save_steps": 5}, "set save_steps to 1 or less"),
    ],
)
def test_a_run_without_a_checkpoint_is_refused(
    train, guard: FaultyGuard, settings: Any, setting: str
) -> None:
    trainer = train(guard.url, **settings)
    with pytest.raises(GuardConfigError, match=setting):
        trainer.train()
    assert guard.requests == [] and trainer.state.global_step == 0


def test_without_a_tokenizer_nothing_could_be_scored(guard: FaultyGuard, tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from trainer_image.callback import GuardCallback

    arguments = TrainingArguments(str(tmp_path), max_steps=3, save_steps=1, use_cpu=True, report_to=[])
    trainer = Trainer(torch.nn.Linear(2, 1), arguments, train_dataset=[{"x": torch.ones(2)}] * 8)
    trainer.add_callback(GuardCallback(guard.url, trainer=trainer))
    with pytest.raises(GuardConfigError, match="pass processing_class=tokenizer"):
        trainer.train()


def stub(**changes: Any) -> SimpleNamespace:
    """A trainer with nothing but what the checks read."""
    plugins = SimpleNamespace(
        fsdp_plugin=SimpleNamespace(state_dict_type="StateDictType.FULL_STATE_DICT"),
        deepspeed_plugin=SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 2}}),
    )
    whole = {"model": object(), "processing_class": object(), "accelerator": SimpleNamespace(state=plugins)}
    return SimpleNamespace(**(whole | changes))


def why_refused(trainer: Any, args: Any = None, **verdict: Any) -> str | None:
    """Why a run with this trainer must not start."""
    from guard_client.client import VerdictView
    from guard_core.run_checks import reason_to_refuse
    from trainer_image.preflight import Outset, trainer_rows

    said = VerdictView.model_validate({"fire": False, "stop": False} | verdict)
    state = SimpleNamespace(global_step=0)
    run = Outset(
        args or SimpleNamespace(), state, trainer.model, trainer.processing_class, trainer, verdict=said
    )
    return reason_to_refuse(trainer_rows(run))


def sharded(**plugins: Any) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(**plugins))


ZERO_3 = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}}
GATHERED = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}}
SHARDS = SimpleNamespace(state_dict_type="StateDictType.SHARDED_STATE_DICT")
PEFT_MODEL = type("PeftModel", (), {"__module__": "peft.peft_model"})


@pytest.mark.parametrize(
    ("trainer", "setting"),
    [
        (stub(), None),
        (stub(processing_class=None, data_collator=SimpleNamespace(tokenizer=object())), None),
        (stub(processing_class=None), "pass processing_class=tokenizer"),
        (stub(model=PEFT_MODEL()), None),  # whether the guard can score it is the guard's to say
        (stub(is_fsdp_enabled=True), None),
        (
            stub(is_fsdp_enabled=True, accelerator=sharded(fsdp_plugin=SHARDS)),
            "FULL_STATE_DICT in fsdp_config",
        ),
        (stub(is_deepspeed_enabled=True), None),
        (
            stub(
                is_deepspeed_enabled=True,
                accelerator=sharded(deepspeed_plugin=SimpleNamespace(deepspeed_config=ZERO_3)),
            ),
            "stage3_gather_16bit_weights_on_model_save to true",
        ),
        (
            stub(
                is_deepspeed_enabled=True,
                accelerator=sharded(deepspeed_plugin=SimpleNamespace(deepspeed_config=GATHERED)),
            ),
            None,
        ),
    ],
)
def test_what_a_trainer_saves_that_nobody_could_load_is_refused(trainer: Any, setting: str | None) -> None:
    reason = why_refused(trainer)
    assert reason is None if setting is None else reason is not None and setting in reason


LORA = {"peft_type": "LORA", "r": 8}


@pytest.mark.parametrize("model", [PEFT_MODEL(), SimpleNamespace(_hf_peft_config_loaded=True)])
@pytest.mark.parametrize(
    ("adapters", "config", "told"),
    [
        ("refused", LORA, "set --base-model DIR"),
        ("applied", LORA, None),
        ("applied", LORA | {"peft_type": "IA3"}, "an adapter of the kind 'IA3'"),
        ("applied", LORA | {"modules_to_save": ["lm_head"]}, "'modules_to_save' is ['lm_head']"),
        (None, LORA | {"peft_type": "IA3"}, None),  # a server applies it, or an older guard says nothing
        ("invented", LORA, None),
    ],
)
def test_an_adapter_that_the_guard_cannot_apply_is_refused_before_the_first_step(
    model: Any, adapters: str | None, config: dict[str, Any], told: str | None
) -> None:
    model.peft_config = {"default": SimpleNamespace(to_dict=lambda: config)}
    reason = why_refused(stub(model=model), adapters=adapters)
    assert reason is None if told is None else reason is not None and told in reason
    assert why_refused(stub(), adapters=adapters) is None  # a whole model


@pytest.mark.parametrize(
    ("lora", "refused"),
    [
        ({"target_modules": ["q_proj"]}, False),
        ({"target_modules": ["q_proj", "lm_head"]}, False),
        ({"target_modules": ["q_proj", "embed_tokens"]}, True),
        ({"target_modules": r".*(q_proj|embed_tokens)"}, True),
        ({"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True}, True),
    ],
    ids=str,
)
def test_an_adapted_embedding_is_refused_before_the_first_step_however_it_was_chosen(
    lora: dict[str, Any], refused: bool
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    tied = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, tie_word_embeddings=True, **sizes))
    model = get_peft_model(tied, LoraConfig(r=2, task_type="CAUSAL_LM", **lora))
    reason = why_refused(stub(model=model), adapters="applied")
    assert (reason is not None and "embed_tokens.lora_embedding_A" in reason) is refused


def test_a_limit_on_a_kl_that_no_step_will_have_is_refused_before_the_first_step(
    train, guard: FaultyGuard
) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"kl_hard_stop": 0.3})
    trainer = train(guard.url, beta=0.0)
    with pytest.raises(GuardConfigError, match=r"kl.hard_stop \(0.3\).*set beta above 0, or leave"):
        trainer.train()
    assert trainer.state.global_step == 0 and guard.steps == []


def test_a_folder_outside_the_guards_root_is_refused_before_the_first_step(
    train, guard: FaultyGuard, tmp_path: Path
) -> None:
    root = tmp_path / "elsewhere"
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"checkpoint_root": str(root)})
    trainer = train(guard.url)
    with pytest.raises(GuardConfigError, match=rf"outside the guard's checkpoint_root {root}, so it would"):
        trainer.train()
    assert trainer.state.global_step == 0 and guard.steps == [] and guard.checkpoints == []


def test_a_folder_is_inside_the_root_with_or_without_its_links(tmp_path: Path) -> None:
    def outside(output: Path, root: Path) -> bool:
        args = SimpleNamespace(output_dir=output)
        return why_refused(stub(), args, checkpoint_root=str(root)) is not None

    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "out").symlink_to(tmp_path / "away")
    inside = [("disk/runs", "disk"), ("link/runs", "disk"), ("disk/runs", "link"), ("disk/out", "disk")]
    assert not any(outside(tmp_path / output, tmp_path / root) for output, root in inside)
    assert outside(tmp_path / "disk" / ".." / "away", tmp_path / "disk")


# -- a hub ---------------------------------------------------------------------------------------------------


def test_what_the_guard_made_is_never_pushed(train, guard: FaultyGuard, monkeypatch) -> None:
    """Neither when the start is saved, nor with what the Trainer pushes of `output_dir` later."""
    from fnmatch import fnmatch

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


# -- configuration -------------------------------------------------------------------------------------------


def from_env(trainer: Any = None, **environ: str) -> Any:
    from trainer_image.callback import GuardCallback

    return GuardCallback.from_env(trainer, environ)


def test_only_rank_0_needs_the_url() -> None:
    from_env(RANK="1")
    with pytest.raises(GuardConfigError, match="RLGUARD_URL"):
        from_env(RANK="0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLGUARD_URL", "localhost:8470"),
        ("RLGUARD_ATTEMPT", "first"),
        ("RLGUARD_STRICT", "maybe"),
        ("RLGUARD_ON_UNREACHABLE", "ignore"),
        ("RLGUARD_UNREACHABLE_SECONDS", "0"),
        ("RLGUARD_DRAIN_SECONDS", "-1"),
        ("RLGUARD_MAX_LAG", "-1"),
        ("RLGUARD_KEEP_BEST", "2"),
        ("RLGUARD_SAVE_SOONER", "2"),
        ("RLGUARD_ROLLOUTS", "2"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(GuardConfigError, match=name):
        from_env(**({"RLGUARD_URL": "http://127.0.0.1:1"} | {name: value}))


@pytest.mark.always
def test_without_its_trainer_a_callback_reads_what_the_trainer_logs_at_every_step(
    train, guard: FaultyGuard, tiny_model: Path
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
    assert (Path(start.path) / "tokenizer.json").exists() and (
        Path(start.path) / "model.safetensors"
    ).exists()


def test_a_callback_of_another_trainer_says_so(train, guard: FaultyGuard) -> None:
    trainer = train(None, max_steps=2)
    trainer.add_callback(from_env(train(None, max_steps=2), RLGUARD_URL=guard.url))
    with pytest.raises(GuardConfigError, match="another trainer than the one that it was added to"):
        trainer.train()


@pytest.mark.always
@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_run_of_rewards_that_are_not_finite_is_not_silent(
    train, guard: FaultyGuard, caplog, reward: float
) -> None:
    trainer = train(guard.url, max_steps=3)
    trainer.reward_funcs[0] = lambda completions, **_: [reward] * len(completions)
    trainer.train()
    assert [(r.step, r.reward) for r in guard.steps] == [(1, None), (2, None), (3, None)]
    assert caplog.text.count("has no finite reward") == 1


def test_an_optional_guard_that_the_environment_does_not_name_trains_unguarded(
    train, guard: FaultyGuard, caplog
) -> None:
    from trainer_image.callback import GuardCallback

    trainer = train(None, max_steps=2, save_strategy="no")
    trainer.add_callback(GuardCallback.from_env(trainer, {}, optional=True))
    trainer.train()
    assert trainer.state.global_step == 2 and guard.requests == []
    assert caplog.text.count("RLGUARD_URL is not set: this run is unguarded") == 1


# -- rollouts ----------------------------------------------------------------------------------------------


def test_rollouts_of_the_first_step_and_of_each_checkpoint_are_sent(train, guard: FaultyGuard) -> None:
    trainer = train(guard.url, max_steps=4, save_steps=2, gradient_accumulation_steps=2)
    trainer.train()
    assert [report.step for report in guard.rollouts] == [1, 2, 4]
    kept = list(
        zip(
            trainer._logs["prompt"],
            trainer._logs["completion"],
            trainer._logs["rewards"]["digit_share"],
            strict=True,
        )
    )
    last = guard.rollouts[-1].rollouts
    assert last and {(r.prompt, r.completion, r.reward) for r in last} <= set(kept)
    assert last[0].reward == max(reward for _, _, reward in kept)


def test_prompts_of_the_trainers_own_evaluation_are_never_sent(train, guard: FaultyGuard) -> None:
    from datasets import Dataset

    # Of two steps that share a generation the second makes none, and an evaluation lies between.
    trainer = train(guard.url, max_steps=4, save_steps=1, num_iterations=2)
    trainer.eval_dataset = Dataset.from_list([{"prompt": "held out", "answer": "0"}] * 4)
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 1
    trainer.args.per_device_eval_batch_size = 4
    trainer.train()

    def asked(prompts: Iterable[str]) -> set[str]:
        """TRL 0.29 decodes them from tokens, and this tokenizer puts a space between two."""
        return {prompt.replace(" ", "") for prompt in prompts}

    assert "heldout" in asked(trainer._logs["prompt"])
    assert [report.step for report in guard.rollouts] == [1, 2, 3, 4]
    sent = asked(r.prompt for report in guard.rollouts for r in report.rollouts)
    assert sent and "heldout" not in sent


@pytest.mark.parametrize("logs", [{"prompt": 1, "completion": 2, "rewards": 3}])
def test_a_trainer_whose_completions_cannot_be_read_sends_none_and_says_so_once(
    train, guard: FaultyGuard, caplog, logs: Any
) -> None:
    caplog.set_level(logging.INFO)
    trainer = train(guard.url, max_steps=3, save_steps=1)

    original = trainer._generate_and_score_completions

    def generate(inputs: Any) -> Any:
        trainer._logs = trainer_logs
        output = original(inputs)
        trainer._logs = logs
        return output

    trainer_logs = trainer._logs
    trainer._generate_and_score_completions = generate
    trainer.train()
    assert len(guard.steps) == 3 and guard.rollouts == []
    assert caplog.text.count("no rollouts are shown") == 1
