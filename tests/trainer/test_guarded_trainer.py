"""GuardedGRPOTrainer: the kill switch on a bare instance and in real training; the auxiliary losses."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from guard_core import CollapseStopError, HeldOutGuard
from tests.trainer.tiny import grpo_trainer, prompts
from trainer_image.guarded_trainer import GuardedGRPOTrainer
from trainer_image.losses import distillation_loss, replay_loss

pytestmark = pytest.mark.torch


def tight_guard(**overrides: Any) -> HeldOutGuard:
    """Fires at the first round whose gap is above 0.1."""
    return HeldOutGuard(**({"min_steps": 2, "ema_alpha": 0.0, "max_proxy_real_gap": 0.1} | overrides))


def bare(**attributes: Any) -> GuardedGRPOTrainer:
    """An instance whose `__init__` did not run: only what the kill switch is promised."""
    trainer = GuardedGRPOTrainer.__new__(GuardedGRPOTrainer)
    logged: list[dict[str, float]] = []
    defaults = {
        "heldout_guard": tight_guard(),
        "heldout_eval_fn": lambda: 0.5,
        "strict_killswitch": True,
        "alpha_sdpo": 0.0,
        "beta_replay": 0.0,
        "state": SimpleNamespace(global_step=0),
        "args": SimpleNamespace(logging_steps=1),
        "control": SimpleNamespace(should_training_stop=False),
        "_metrics": {"train": {"reward": [0.5], "kl": [0.01]}},
        "log": logged.append,
        "logged": logged,
    }
    for name, value in (defaults | attributes).items():
        setattr(trainer, name, value)
    return trainer


@pytest.fixture
def parent_loss(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    loss = torch.tensor(2.0)
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda *_: loss)
    return loss


# -- the kill switch on a bare instance ------------------------------------------------------------


def test_the_parent_is_the_first_base() -> None:
    assert GuardedGRPOTrainer.__bases__[0] is GRPOTrainer


def test_a_guard_without_an_eval_function_is_refused() -> None:
    with pytest.raises(ValueError, match="heldout_eval_fn"):
        GuardedGRPOTrainer(heldout_guard=HeldOutGuard())


@pytest.mark.parametrize("name", ["alpha_sdpo", "beta_replay"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_wrong_weight_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        GuardedGRPOTrainer(**{name: value})


def test_without_a_guard_nothing_is_touched(parent_loss: torch.Tensor) -> None:
    trainer = GuardedGRPOTrainer.__new__(GuardedGRPOTrainer)
    trainer.state, trainer.args = SimpleNamespace(global_step=0), SimpleNamespace(logging_steps=1)
    assert trainer._compute_loss(None, {}) is parent_loss


@pytest.mark.parametrize("reward", [None, [], [math.nan]])
def test_without_a_reward_the_eval_function_is_not_called(reward: Any) -> None:
    metrics = {} if reward is None else {"reward": reward}
    trainer = bare(_metrics={"train": metrics}, heldout_eval_fn=lambda: pytest.fail("called"))
    assert trainer._maybe_update_killswitch() is None
    assert trainer.logged == [] and trainer.heldout_guard.count == 0


def test_the_newest_values_are_folded_and_logged() -> None:
    trainer = bare(_metrics={"train": {"reward": [0.1, 0.7], "kl": [0.5, 0.02]}})
    trainer.state.global_step = 7
    status = trainer._maybe_update_killswitch()
    assert (status.step, status.in_loop_ema, status.heldout_ema, status.kl_ema) == (7, 0.7, 0.5, 0.02)
    assert trainer.logged == [
        {
            "killswitch/fire": 0.0,
            "killswitch/heldout_score": 0.5,
            "killswitch/proxy_real_gap": 0.0,
            "killswitch/in_loop_ema": 0.7,
            "killswitch/heldout_ema": 0.5,
            "killswitch/kl_ema": 0.02,
        }
    ]


@pytest.mark.parametrize("kl", [None, [], [math.nan]])
def test_a_missing_kl_is_not_zero(kl: Any) -> None:
    metrics = {"reward": [0.5]} if kl is None else {"reward": [0.5], "kl": kl}
    trainer = bare(_metrics={"train": metrics})
    assert trainer._maybe_update_killswitch().kl_ema is None
    assert "killswitch/kl_ema" not in trainer.logged[0]


def hack(trainer: GuardedGRPOTrainer) -> None:
    """Two rounds between which only the in-loop reward rises."""
    for step, reward in enumerate((0.2, 0.9)):
        trainer.state.global_step = step
        trainer._metrics["train"]["reward"].append(reward)
        trainer._compute_loss(None, {})


def test_a_fire_raises_if_strict(parent_loss: torch.Tensor) -> None:
    trainer = bare()
    with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
        hack(trainer)
    assert stop.value.status.step == 1 and trainer.logged[-1]["killswitch/fire"] == 1.0
    assert not trainer.control.should_training_stop


def test_a_fire_stops_softly_otherwise(parent_loss: torch.Tensor) -> None:
    trainer = bare(strict_killswitch=False)
    hack(trainer)
    assert trainer.control.should_training_stop and trainer.logged[-1]["killswitch/fire"] == 1.0


def test_only_logging_steps_count_and_step_0_is_one(parent_loss: torch.Tensor) -> None:
    trainer = bare(args=SimpleNamespace(logging_steps=3), heldout_guard=HeldOutGuard())
    for trainer.state.global_step in range(7):
        for _micro_batch in range(4):
            trainer._compute_loss(None, {})
    assert trainer.heldout_guard.count == 3  # steps 0, 3 and 6, once each


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_an_error_naming_the_function(score: float) -> None:
    with pytest.raises(ValueError, match="heldout_eval_fn"):
        bare(heldout_eval_fn=lambda: score)._maybe_update_killswitch()


def test_the_weighted_losses_are_added(parent_loss: torch.Tensor) -> None:
    trainer = bare(alpha_sdpo=0.5, beta_replay=0.25, heldout_guard=None)
    trainer._compute_sdpo_loss = lambda *_: torch.tensor(10.0)
    trainer._compute_trace_replay_loss = lambda *_: torch.tensor(100.0)
    assert trainer._compute_loss(None, {}).item() == 2.0 + 5.0 + 25.0


def test_a_zero_weight_computes_nothing(parent_loss: torch.Tensor) -> None:
    trainer = bare(heldout_guard=None)
    trainer._compute_sdpo_loss = trainer._compute_trace_replay_loss = lambda *_: pytest.fail("computed")
    assert trainer._compute_loss(None, {}) is parent_loss


# -- the kill switch in real training --------------------------------------------------------------


def guarded(tiny_model: Path, tmp_path: Path, dataset: Dataset | None = None, **overrides: Any) -> Any:
    names = ("heldout_guard", "heldout_eval_fn", "strict_killswitch", "alpha_sdpo", "beta_replay")
    kwargs = {name: overrides.pop(name) for name in names if name in overrides}
    return grpo_trainer(
        tiny_model,
        tmp_path,
        GuardedGRPOTrainer,
        dataset,
        trainer_kwargs=kwargs,
        **({"max_steps": 6} | overrides),
    )


def test_real_training_stops_when_the_heldout_score_falls(tiny_model: Path, tmp_path: Path) -> None:
    scores = iter((0.9, 0.8, 0.1, 0.0))
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=tight_guard(min_steps=1, max_proxy_real_gap=0.5),
        heldout_eval_fn=lambda: next(scores),
        gradient_accumulation_steps=2,
    )
    with pytest.raises(CollapseStopError):
        trainer.train()
    assert trainer.state.global_step == 2  # scores at steps 0, 1 and 2, once each
    entries = [e for e in trainer.state.log_history if "killswitch/fire" in e]
    assert [(e["step"], e["killswitch/fire"]) for e in entries] == [(0, 0.0), (1, 0.0), (2, 1.0)]


def test_the_kill_switch_leaves_the_log_of_the_steps_as_it_was(tiny_model: Path, tmp_path: Path) -> None:
    plain = grpo_trainer(tiny_model, tmp_path / "a", max_steps=4, logging_steps=2)
    plain.train()
    watched = guarded(
        tiny_model,
        tmp_path / "b",
        heldout_guard=HeldOutGuard(),
        heldout_eval_fn=lambda: 0.5,
        max_steps=4,
        logging_steps=2,
    )
    watched.train()

    def rewards(trainer: Any) -> list[tuple[int, float, float]]:
        return [(e["step"], e["reward"], e["kl"]) for e in trainer.state.log_history if "reward" in e]

    assert rewards(watched) == rewards(plain)
    assert watched.heldout_guard.count == 2


def test_evaluation_does_not_move_the_kill_switch(tiny_model: Path, tmp_path: Path) -> None:
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=HeldOutGuard(),
        heldout_eval_fn=lambda: 0.5,
        max_steps=2,
        logging_steps=1,
        per_device_eval_batch_size=4,
    )
    trainer.train()
    trainer._metrics["train"]["reward"] = [0.5]
    trainer.evaluate(prompts(4))
    assert trainer.heldout_guard.count == 2


# -- the losses as functions -----------------------------------------------------------------------


def test_distillation_is_the_kl_of_the_two_distributions() -> None:
    student = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]]).log().requires_grad_()
    teacher = torch.tensor([[[0.6, 0.4], [0.1, 0.9]]]).log().requires_grad_()
    loss = distillation_loss(student, teacher, torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(0.9 * math.log(0.9 / 0.6) + 0.1 * math.log(0.1 / 0.4), rel=1e-5)
    loss.backward()
    assert student.grad[0, 0].abs().sum() > 0 and student.grad[0, 1].abs().sum() == 0
    assert teacher.grad is None


def test_replay_weighs_traces_and_not_their_lengths() -> None:
    logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log().expand(2, 2, 2)
    ids = torch.tensor([[0, 1], [1, 0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = replay_loss(logits, ids, mask, torch.tensor([1.0, 3.0]))
    first, second = (-math.log(0.8) - math.log(0.5)) / 2, -math.log(0.2)
    assert loss.item() == pytest.approx((first + 3.0 * second) / 2, rel=1e-5)


def test_empty_masks_give_zero_and_not_nan() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    nothing = torch.zeros(2, 3)
    assert distillation_loss(logits, logits, nothing).item() == 0.0
    loss = replay_loss(logits, torch.zeros(2, 3, dtype=torch.long), nothing, torch.ones(2))
    loss.backward()
    assert loss.item() == 0.0 and logits.grad.abs().sum() == 0.0


# -- the losses in real training -------------------------------------------------------------------


def with_columns(**columns: Any) -> Dataset:
    """The sums, with a column for every keyword: a constant, or a function of the row."""
    rows = prompts(16).to_list()
    return Dataset.from_list([r | {k: v(r) if callable(v) else v for k, v in columns.items()} for r in rows])


def privileged(row: dict[str, str]) -> str:
    return f"{row['answer']} {row['prompt']}"


def test_both_losses_train_the_model_and_are_logged(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(
        privileged_prompt=privileged,
        replay_prompt=lambda r: r["prompt"],
        replay_completion=lambda r: r["answer"],
    )
    trainer = guarded(
        tiny_model, tmp_path, data, alpha_sdpo=0.1, beta_replay=1.0, max_steps=30, learning_rate=1e-2
    )
    trainer.train()
    entries = [e for e in trainer.state.log_history if "trace_replay_loss" in e]
    assert len(entries) == 30 and all(e["sdpo_loss"] >= 0.0 for e in entries)
    assert entries[-1]["trace_replay_loss"] < 0.7 * entries[0]["trace_replay_loss"], "replay does not learn"


class Scored(GuardedGRPOTrainer):
    """Keeps the inputs of the loss, so that a test can compute it again by hand."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.seen = inputs
        return super()._compute_loss(model, inputs)


def scored(tiny_model: Path, tmp_path: Path, data: Dataset, **weights: float) -> Any:
    trainer = grpo_trainer(tiny_model, tmp_path, Scored, data, trainer_kwargs=weights, max_steps=1)
    trainer.train()
    trainer.model.zero_grad()
    return trainer


def test_the_teacher_sees_the_privileged_prompt_and_gets_no_gradient(
    tiny_model: Path, tmp_path: Path
) -> None:
    trainer = scored(tiny_model, tmp_path, with_columns(privileged_prompt=privileged), alpha_sdpo=1.0)
    inputs, forwards = trainer.seen, []

    def model(**kwargs: Any) -> Any:
        output = trainer.model(**kwargs)
        forwards.append((kwargs["input_ids"], output.logits))
        return output

    loss = trainer._compute_sdpo_loss(model, inputs)
    (student_ids, student), (teacher_ids, teacher) = forwards
    assert student.requires_grad and not teacher.requires_grad
    assert student_ids.tolist() == torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1).tolist()
    text = trainer._tokenizer.decode(teacher_ids[0, : inputs["privileged_prompt_ids"].size(1)])
    assert text.replace(" ", "").endswith("=") and teacher_ids.size(1) > student_ids.size(1)
    assert loss.item() > 0.0
    loss.backward()
    assert sum(p.grad.abs().sum().item() for p in trainer.model.parameters() if p.grad is not None) > 0.0


def test_a_row_without_privileged_context_distils_nothing(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(privileged_prompt=None)
    trainer = scored(tiny_model, tmp_path, data, alpha_sdpo=1.0)
    loss = trainer._compute_sdpo_loss(trainer.model, trainer.seen)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert max(p.grad.abs().max().item() for p in trainer.model.parameters() if p.grad is not None) < 1e-6


def test_replay_scores_the_recorded_completion(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(replay_prompt="1+1=", replay_completion="2", replay_weight=0.5)
    trainer = scored(tiny_model, tmp_path, data, beta_replay=1.0)
    loss = trainer._compute_trace_replay_loss(trainer.model, trainer.seen)
    tokenizer = trainer._tokenizer
    ids = torch.tensor([tokenizer("1+1=2")["input_ids"] + [tokenizer.eos_token_id]])
    log_probs = trainer.model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
    nll = -log_probs[torch.arange(ids.size(1) - 1), ids[0, 1:]][-2:].mean()  # "2" and the end
    assert loss.item() == pytest.approx(0.5 * nll.item(), rel=1e-4)


def test_rows_without_a_trace_cost_nothing(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(replay_prompt=None, replay_completion=None)
    trainer = scored(tiny_model, tmp_path, data, beta_replay=1.0)
    assert trainer._compute_trace_replay_loss(trainer.model, trainer.seen).item() == 0.0


def test_zero_weights_need_no_columns_and_no_forward(tiny_model: Path, tmp_path: Path) -> None:
    trainer = grpo_trainer(tiny_model, tmp_path, Scored, max_steps=1)
    trainer.train()
    assert not any("privileged" in key or "replay" in key for key in trainer.seen)


@pytest.mark.parametrize(
    ("weight", "column"), [("alpha_sdpo", "privileged_prompt"), ("beta_replay", "replay_prompt")]
)
def test_a_missing_column_is_named(tiny_model: Path, tmp_path: Path, weight: str, column: str) -> None:
    with pytest.raises(ValueError, match=f"{weight} > 0 needs the data column '{column}'"):
        guarded(tiny_model, tmp_path, **{weight: 0.1}).train()


def test_a_negative_replay_weight_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(replay_prompt="1+1=", replay_completion="2", replay_weight=-1.0)
    with pytest.raises(ValueError, match="replay_weight must be >= 0"):
        guarded(tiny_model, tmp_path, data, beta_replay=0.1).train()


def test_metrics_of_a_bare_instance_may_be_a_defaultdict() -> None:
    trainer = bare(_metrics={"train": defaultdict(list)}, heldout_eval_fn=lambda: pytest.fail("called"))
    assert trainer._maybe_update_killswitch() is None
    assert not trainer._metrics["train"], "reading a metric must not create it"
