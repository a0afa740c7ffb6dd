"""GuardedGRPOTrainer in real training: the kill switch, its state in checkpoints, the two auxiliary losses.

`tests/scenarios/test_seed_contract.py` has the kill switch on a bare instance.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from rlguard.core import CollapseStopError, HeldOutGuard
from tests.trainer.tiny import grpo_trainer, prompts
from trainer_image.guarded_trainer import GuardedGRPOTrainer

pytestmark = pytest.mark.torch

OWN = ("heldout_guard", "heldout_eval_fn", "strict_killswitch", "alpha_sdpo", "beta_replay")


def tight_guard(**overrides: Any) -> HeldOutGuard:
    """Fires at the first round whose gap is above 0.1."""
    return HeldOutGuard(**({"min_steps": 2, "ema_alpha": 0.0, "max_proxy_real_gap": 0.1} | overrides))


def guarded(model: Path, output: Path, dataset: Dataset | None = None, **overrides: Any) -> Any:
    own = {name: overrides.pop(name) for name in OWN if name in overrides}
    settings = {"max_steps": 6} | overrides
    return grpo_trainer(model, output, GuardedGRPOTrainer, dataset, trainer_kwargs=own, **settings)


def rounds(trainer: Any, figure: str = "fire") -> list[tuple[int, float]]:
    """What the kill switch has logged: step and figure."""
    key = f"killswitch/{figure}"
    return [(entry["step"], entry[key]) for entry in trainer.state.log_history if key in entry]


# -- the kill switch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alpha_sdpo", "beta_replay"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_wrong_weight_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        GuardedGRPOTrainer(**{name: value})


@pytest.mark.parametrize(
    "own", [{"heldout_guard": HeldOutGuard(), "heldout_eval_fn": float}, {"beta_replay": 1}]
)
def test_a_loss_that_would_leave_the_kill_switch_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    """TRL before 1.16 has Liger's loss in a method of its own."""
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda self, args: setattr(self, "args", args))
    liger, plain = SimpleNamespace(use_liger_kernel=True), SimpleNamespace(use_liger_kernel=False)
    GuardedGRPOTrainer(liger, **own)
    monkeypatch.setattr(GRPOTrainer, "compute_liger_loss", lambda *_: None, raising=False)
    GuardedGRPOTrainer(liger)
    GuardedGRPOTrainer(plain, **own)
    with pytest.raises(ValueError, match=r"set use_liger_kernel=False, or take TRL 1\.16"):
        GuardedGRPOTrainer(liger, **own)


def test_training_stops_when_the_heldout_score_falls(tiny_model: Path, tmp_path: Path) -> None:
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
    assert trainer.state.global_step == 2, "scores at steps 0, 1 and 2, once each"
    assert rounds(trainer) == [(0, 0.0), (1, 0.0), (2, 1.0)]


def test_a_reward_that_is_no_number_is_not_folded(tiny_model: Path, tmp_path: Path) -> None:
    calls: list[float] = []
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=HeldOutGuard(),
        heldout_eval_fn=lambda: calls.append(0.5) or 0.5,
        max_steps=2,
    )
    trainer.reward_funcs[0] = lambda completions, **_: [math.nan] * len(completions)
    trainer.train()
    assert trainer.heldout_guard.last_status is None and calls == []


def test_a_score_that_is_no_number_is_an_error_naming_the_function(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"heldout_guard": HeldOutGuard(), "heldout_eval_fn": lambda: math.nan}
    with pytest.raises(ValueError, match="heldout_eval_fn"):
        guarded(tiny_model, tmp_path, **settings).train()


# -- its state in checkpoints ------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("ceiling", "fires"), [(0.6, True), (5.0, False)])
def test_a_resumed_run_remembers_where_it_began_and_takes_the_thresholds_that_it_is_given(
    tiny_model: Path, tmp_path: Path, ceiling: float, fires: bool
) -> None:
    first = {
        "heldout_guard": tight_guard(min_steps=3, max_proxy_real_gap=0.6),
        "heldout_eval_fn": lambda: 0.9,
    }
    guarded(tiny_model, tmp_path, max_steps=2, save_only_model=False, **first).train()
    guard = tight_guard(min_steps=3, max_proxy_real_gap=ceiling)
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=guard,
        heldout_eval_fn=lambda: 0.0,
        strict_killswitch=False,
        max_steps=3,
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [(step, bool(fire)) for step, fire in rounds(trainer)][-1] == (2, fires)
    assert trainer.heldout_guard is guard and guard.should_halt() == fires
    assert guard.max_proxy_real_gap == ceiling


@pytest.mark.nightly
@pytest.mark.parametrize("strict", [True, False])
def test_a_run_that_had_fired_is_stopped_when_it_is_resumed(
    tiny_model: Path, tmp_path: Path, strict: bool
) -> None:
    scores = iter((0.9, 0.0))
    fired = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=tight_guard(),
        heldout_eval_fn=lambda: next(scores),
        strict_killswitch=False,
        save_steps=1,
        save_only_model=False,
    )
    fired.train()
    assert fired.state.global_step == 2
    asked: list[float] = []
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=tight_guard(),
        heldout_eval_fn=lambda: asked.append(0.9) or 0.9,
        strict_killswitch=strict,
    )
    resume = {"resume_from_checkpoint": str(tmp_path / "checkpoint-2")}
    if strict:
        with pytest.raises(CollapseStopError, match="Hacking Gap"):
            trainer.train(**resume)
        assert trainer.state.global_step == 2 and asked == []
    else:
        trainer.train(**resume)
        assert trainer.state.global_step == 3 and trainer.heldout_guard.should_halt()


# -- the auxiliary losses ----------------------------------------------------------------------------------


def with_columns(**columns: Any) -> Dataset:
    """The sums, with a column for every keyword: a constant, or a function of the row."""
    rows = prompts(16).to_list()
    return Dataset.from_list([r | {k: v(r) if callable(v) else v for k, v in columns.items()} for r in rows])


def privileged(row: dict[str, Any]) -> str:
    return f"{row['answer']} {row['prompt']}"


class Alone:
    """One step of plain gradient descent, in which nothing but an auxiliary loss has a gradient."""

    RATE = 0.1

    def __init__(self, model: Path, output: Path, data: Dataset, **overrides: float) -> None:
        descent = {
            "optim": "sgd",
            "learning_rate": self.RATE,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0,
        }
        settings = {"max_steps": 1, "beta": 0.0, "temperature": 0.5, "max_completion_length": 6}
        trainer = guarded(model, output, data, **(settings | descent | overrides))
        trainer.reward_funcs[0] = self.reward
        trainer.train()
        (self.logged,) = [e for e in trainer.state.log_history if "loss" in e]
        self.after = {name: p.detach() for name, p in trainer.model.named_parameters()}
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def reward(self, completions: Any, completion_ids: Any, prompts: Any, **columns: Any) -> list[float]:
        """The same for all: without an advantage GRPO's own loss has no gradient."""
        self.columns = {"prompt": prompts, "completion_ids": completion_ids} | columns
        return [1.0] * len(completions)

    def log_probs(self, prompt: str, completion: list[int]) -> torch.Tensor:
        """Of each token of the completion, at the sampling temperature, by the model as it was."""
        before = self.tokenizer(prompt)["input_ids"]
        logits = self.model(input_ids=torch.tensor([before + completion])).logits[0, len(before) - 1 : -1]
        return (logits / 0.5).log_softmax(-1)[range(len(completion)), completion]

    def descended_by(self, loss: torch.Tensor) -> bool:
        """Whether the step was one along the gradient of this loss."""
        loss.backward()
        return all(
            torch.allclose(self.after[name], p - self.RATE * p.grad, atol=1e-6)
            for name, p in self.model.named_parameters()
            if p.grad is not None
        )


def test_self_distillation_is_the_kl_to_the_policy_with_the_privileged_prompt(
    tiny_model: Path, tmp_path: Path
) -> None:
    """KL(student || teacher) of the sampled tokens; no gradient reaches the teacher."""
    run = Alone(tiny_model, tmp_path, with_columns(privileged_prompt=privileged), alpha_sdpo=1.0)
    columns = run.columns
    students, ratios = [], []
    for asked, more, ids in zip(
        columns["prompt"], columns["privileged_prompt"], columns["completion_ids"], strict=True
    ):
        students.append(run.log_probs(asked, ids))
        ratios.append((students[-1] - run.log_probs(more, ids)).detach())
    ratio = torch.cat(ratios)
    assert run.logged["sdpo_loss"] == pytest.approx((torch.exp(-ratio) + ratio - 1).mean().item(), rel=1e-2)
    assert run.logged["sdpo_loss"] > 1e-5, "the privileged context makes a difference"
    assert run.descended_by((ratio * torch.cat(students)).mean())


def test_replay_is_the_weighted_likelihood_of_the_recorded_completion(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A long trace counts as much as a short one, and a row without a trace costs nothing."""
    data = with_columns(
        replay_prompt="1+1=",
        replay_completion=lambda row: {"1": "2", "2": "34567"}.get(row["answer"]),
        replay_weight=lambda row: float(row["answer"]) + 0.5,
    ).select([1, 2, 3])
    run = Alone(tiny_model, tmp_path, data, beta_replay=1.0, per_device_train_batch_size=6, num_generations=2)
    end = run.tokenizer.eos_token_id
    losses = [
        weight * -run.log_probs("1+1=", [*run.tokenizer(text)["input_ids"], end]).mean()
        for text, weight in zip(run.columns["replay_completion"], run.columns["replay_weight"], strict=True)
        if text is not None
    ]
    assert len(losses) == 4
    loss = torch.stack(losses).mean()
    assert run.logged["trace_replay_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert run.descended_by(loss)


@pytest.mark.parametrize(
    ("columns", "own"),
    [
        ({"privileged_prompt": None}, {"alpha_sdpo": 1.0}),
        ({"privileged_prompt": lambda row: row["prompt"]}, {"alpha_sdpo": 1.0}),
        ({"replay_prompt": None, "replay_completion": None}, {"beta_replay": 1.0}),
    ],
)
def test_a_row_without_context_or_trace_changes_nothing(
    tiny_model: Path, tmp_path: Path, columns: dict[str, Any], own: dict[str, float]
) -> None:
    run = Alone(tiny_model, tmp_path, with_columns(**columns), **own)
    assert all(torch.allclose(run.after[name], p, atol=1e-6) for name, p in run.model.named_parameters())
    logged = {name: value for name, value in run.logged.items() if name in ("sdpo_loss", "trace_replay_loss")}
    assert list(logged.values()) == [pytest.approx(0.0, abs=1e-5)]


def test_a_conversation_is_read_as_the_trainer_reads_it(tiny_model: Path, tmp_path: Path) -> None:
    """The same conversation is no privileged context, and another one is."""
    model = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + '=' + m.content }}{% endfor %}=="
    tokenizer.save_pretrained(model)

    def asks(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    found = []
    for extra in ("", "9 "):
        rows = [{"prompt": asks("1+1"), "privileged_prompt": asks(f"{extra}1+1")}] * 4
        trainer = guarded(model, tmp_path / "out", Dataset.from_list(rows), alpha_sdpo=1.0, max_steps=1)
        trainer.reward_funcs[0] = lambda completions, **_: [1.0] * len(completions)
        trainer.train()
        found += [e["sdpo_loss"] for e in trainer.state.log_history if "sdpo_loss" in e]
    assert found[0] == pytest.approx(0.0, abs=1e-6) and found[1] > 1e-5


@pytest.mark.parametrize(
    ("columns", "own", "message"),
    [
        ({}, {"alpha_sdpo": 0.1}, "alpha_sdpo > 0 needs the data column 'privileged_prompt'"),
        ({"replay_prompt": "1"}, {"beta_replay": 0.1}, "beta_replay > 0 needs the data column 'replay_comp"),
        (
            {"replay_prompt": "1", "replay_completion": "2", "replay_weight": -1.0},
            {"beta_replay": 0.1},
            "replay_weight must be >= 0",
        ),
    ],
)
def test_what_is_wrong_in_a_column_is_named(
    tiny_model: Path, tmp_path: Path, columns: Any, own: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        guarded(tiny_model, tmp_path, with_columns(**columns), **own).train()
