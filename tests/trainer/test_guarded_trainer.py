"""GuardedGRPOTrainer: the kill switch on a bare instance and in real training; the auxiliary losses."""

from __future__ import annotations

import json
import math
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
from trainer_image.losses import Logits, distillation_loss, replay_loss

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


@pytest.mark.parametrize("name", ["alpha_sdpo", "beta_replay"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_wrong_weight_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        GuardedGRPOTrainer(**{name: value})


@pytest.mark.parametrize("setting", ["use_liger_kernel", "use_liger_loss"])
@pytest.mark.parametrize(
    "own", [{"heldout_guard": HeldOutGuard(), "heldout_eval_fn": float}, {"beta_replay": 0.1}]
)
def test_a_loss_that_would_leave_the_kill_switch_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, setting: str, own: dict[str, Any]
) -> None:
    """As TRL 0.29 and 1.8 have it; 1.16 has Liger inside the loss."""

    def begin(self: Any, args: Any) -> None:
        self.args, self.add_callback = args, lambda _: None

    monkeypatch.setattr(GRPOTrainer, "__init__", begin)
    given = SimpleNamespace(**{setting: True})
    GuardedGRPOTrainer(given, **own)
    monkeypatch.setattr(GRPOTrainer, "compute_liger_loss", lambda *_: None, raising=False)
    GuardedGRPOTrainer(given)
    GuardedGRPOTrainer(SimpleNamespace(**{setting: False}), **own)
    with pytest.raises(ValueError, match=f"set {setting}=False, or take TRL 1.16"):
        GuardedGRPOTrainer(given, **own)


def test_a_kl_that_is_not_finite_is_logged_and_not_folded(caplog: pytest.LogCaptureFixture) -> None:
    trainer, folded = bare(), []
    for trainer.state.global_step, kl in enumerate((0.01, math.inf, 0.03)):
        trainer._metrics["train"]["kl"].append(kl)
        folded.append(trainer._maybe_update_killswitch().kl_ema)
    assert folded == [0.01, 0.01, 0.03]
    assert "KL at step 1 is not finite" in caplog.text and "step 2" not in caplog.text


def test_a_reward_that_is_no_number_hides_the_older_one() -> None:
    trainer = bare()
    trainer._keep_newest()
    trainer._metrics = {"train": {"reward": [math.nan]}}
    assert trainer._maybe_update_killswitch() is None


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_an_error_naming_the_function(score: float) -> None:
    with pytest.raises(ValueError, match="heldout_eval_fn"):
        bare(heldout_eval_fn=lambda: score)._maybe_update_killswitch()


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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_every_due_step_is_folded_also_where_nothing_is_generated(tiny_model: Path, tmp_path: Path) -> None:
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=HeldOutGuard(ema_alpha=0.0),
        heldout_eval_fn=lambda: 0.5,
        logging_steps=2,
        steps_per_generation=3,
    )
    trainer.train()
    entries = [e for e in trainer.state.log_history if "killswitch/fire" in e]
    logged = [e["reward"] for e in trainer.state.log_history if e.get("reward") is not None]
    assert len(logged) == 2 and logged[0] != logged[1], "the generations before steps 1 and 4"
    # At step 4 the lists are empty: the second generation has just been logged.
    assert [(e["step"], e["killswitch/in_loop_ema"]) for e in entries] == [
        (0, logged[0]),
        (2, logged[0]),
        (4, logged[1]),
    ]


def saved_run(tiny_model: Path, output: Path, **overrides: Any) -> Path:
    """Two rounds with a held-out score of 0.9, and a checkpoint after them; its path."""
    guarded(
        tiny_model,
        output,
        heldout_guard=tight_guard(min_steps=3, max_proxy_real_gap=0.6),
        heldout_eval_fn=lambda: 0.9,
        save_only_model=False,
        **{"max_steps": 2} | overrides,
    ).train()
    return output / "checkpoint-2"


@pytest.mark.nightly
def test_a_resumed_run_remembers_where_it_began(tiny_model: Path, tmp_path: Path) -> None:
    checkpoint = saved_run(tiny_model, tmp_path)
    guard = tight_guard(min_steps=3, max_proxy_real_gap=0.6)
    trainer = guarded(tiny_model, tmp_path, heldout_guard=guard, heldout_eval_fn=lambda: 0.0)
    with pytest.raises(CollapseStopError, match="Hacking Gap"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.heldout_guard is guard and guard.count == 3
    assert trainer.state.global_step == 2


@pytest.mark.nightly
def test_a_resumed_run_takes_the_thresholds_that_it_is_given(tiny_model: Path, tmp_path: Path) -> None:
    checkpoint = saved_run(tiny_model, tmp_path)
    guard = tight_guard(min_steps=3, max_proxy_real_gap=5.0)
    trainer = guarded(tiny_model, tmp_path, heldout_guard=guard, heldout_eval_fn=lambda: 0.0, max_steps=3)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert guard.count == 3 and guard.max_proxy_real_gap == 5.0


@pytest.mark.nightly
@pytest.mark.parametrize("strict", [True, False])
def test_a_run_that_had_fired_is_stopped_when_it_is_resumed(
    tiny_model: Path, tmp_path: Path, strict: bool
) -> None:
    checkpoint = saved_run(tiny_model, tmp_path)
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text())
    fired = tight_guard()
    fired.update(0, 0.0, 0.9)
    fired.update(1, 1.0, 0.0)
    state["stateful_callbacks"]["rlguard-killswitch"]["guard"] = fired.to_state()
    path.write_text(json.dumps(state))
    scores: list[float] = []
    trainer = guarded(
        tiny_model,
        tmp_path,
        heldout_guard=tight_guard(),
        heldout_eval_fn=lambda: scores.append(0.9) or 0.9,
        strict_killswitch=strict,
    )
    if strict:
        with pytest.raises(CollapseStopError, match="Hacking Gap"):
            trainer.train(resume_from_checkpoint=str(checkpoint))
        assert trainer.state.global_step == 2 and scores == []
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint))
        assert trainer.state.global_step == 3 and trainer.heldout_guard.should_halt()


@pytest.mark.nightly
def test_a_checkpoint_without_the_kill_switch_is_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grpo_trainer(tiny_model, tmp_path, max_steps=2, save_only_model=False).train()
    guard = HeldOutGuard()
    trainer = guarded(tiny_model, tmp_path, heldout_guard=guard, heldout_eval_fn=lambda: 0.5, max_steps=3)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert guard.count == 1 and "no state of the kill switch" in caplog.text


def test_a_run_from_step_0_misses_no_state_of_the_kill_switch(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"heldout_guard": HeldOutGuard(), "heldout_eval_fn": lambda: 0.5, "max_steps": 1}
    trainer = guarded(tiny_model, tmp_path, **settings)
    trainer.train()
    assert trainer.heldout_guard.count == 1 and "kill switch" not in caplog.text


# -- the losses as functions -----------------------------------------------------------------------


def given(logits: torch.Tensor) -> Logits:
    """Logits that are there already."""
    return Logits(logits, lambda chunk: chunk, logits.size(-1))


def test_distillation_is_the_kl_of_the_two_distributions() -> None:
    student = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]]).log().requires_grad_()
    teacher = torch.tensor([[[0.6, 0.4], [0.1, 0.9]]]).log().requires_grad_()
    loss = distillation_loss(given(student), given(teacher), torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(0.9 * math.log(0.9 / 0.6) + 0.1 * math.log(0.1 / 0.4), rel=1e-5)
    loss.backward()
    assert student.grad[0, 0].abs().sum() > 0 and student.grad[0, 1].abs().sum() == 0
    assert teacher.grad is None


def test_replay_weighs_traces_and_not_their_lengths() -> None:
    logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log().expand(2, 2, 2)
    ids = torch.tensor([[0, 1], [1, 0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = replay_loss(given(logits), ids, mask, torch.tensor([1.0, 3.0]))
    first, second = (-math.log(0.8) - math.log(0.5)) / 2, -math.log(0.2)
    assert loss.item() == pytest.approx((first + 3.0 * second) / 2, rel=1e-5)


def test_empty_masks_give_zero_and_not_nan() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    nothing = torch.zeros(2, 3)
    assert distillation_loss(given(logits), given(logits), nothing).item() == 0.0
    loss = replay_loss(given(logits), torch.zeros(2, 3, dtype=torch.long), nothing, torch.ones(2))
    loss.backward()
    assert loss.item() == 0.0 and logits.grad.abs().sum() == 0.0


@pytest.mark.parametrize("chunk", [1, 7, 15, 100])
def test_chunks_change_neither_loss_nor_gradient(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, hidden, privileged = torch.randn(4, 5), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    ids, mask = torch.randint(5, (2, 3)), torch.tensor([[1, 1, 0], [1, 0, 0]])

    sizes: list[int] = []

    def both(head: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        def logits(chunk: torch.Tensor) -> torch.Tensor:
            sizes.append(5 * len(chunk))
            return chunk @ head

        student, teacher = Logits(hidden, logits, 5), Logits(privileged, logits, 5)
        return distillation_loss(student, teacher, mask) + replay_loss(student, ids, mask, torch.ones(2))

    def by_hand(head: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        student, teacher = (hidden @ head).log_softmax(-1), (privileged @ head).detach().log_softmax(-1)
        kl = (student.exp() * (student - teacher)).sum(-1)
        nll = -student.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return (kl * mask).sum() / 3 + ((nll * mask).sum(-1) / mask.sum(-1)).mean()

    monkeypatch.setattr("trainer_image.losses.CHUNK_LOGITS", chunk)
    found, wanted = [], []
    for function, results in ((both, found), (by_hand, wanted)):
        leaves = head.clone().requires_grad_(), hidden.clone().requires_grad_()
        loss = function(*leaves)
        loss.backward()
        results += [loss.detach(), *(leaf.grad for leaf in leaves)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert max(sizes) <= max(5, chunk)


@pytest.mark.parametrize("where", ["student", "teacher", "both"])
def test_logits_of_minus_infinity_stay_finite(where: str) -> None:
    barred = torch.tensor([[[0.0, -math.inf, 1.0]]])
    free = torch.tensor([[[0.0, 0.5, 1.0]]])
    student = (free if where == "teacher" else barred).clone().requires_grad_()
    teacher = free if where == "student" else barred
    one = torch.ones(1, 1)
    loss = distillation_loss(given(student), given(teacher), one)
    loss = loss + replay_loss(given(student), torch.tensor([[1]]), one, torch.ones(1))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(student.grad).all()


def peak_bytes(work: Any, directory: Path) -> int:
    """The most memory that PyTorch held at one time during `work()`, bytes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    profiler.export_chrome_trace(str(directory / "trace.json"))
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]
    held = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return max(held) - held[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_large_vocabulary_needs_less_than_two_gib_however_many_tokens(tmp_path: Path) -> None:
    """At the real vocabulary and chunk. All logits of 1,024 tokens at once would be 0.6 GB, several times."""
    vocabulary, width = 152_000, 4
    head = torch.zeros(width, vocabulary, requires_grad=True)

    def work(tokens: int) -> None:
        hidden = torch.zeros(1, tokens, width, requires_grad=True)
        logits = Logits(hidden, lambda h: h @ head, vocabulary)
        mask, ids = torch.ones(1, tokens), torch.zeros(1, tokens, dtype=torch.long)
        distillation_loss(logits, logits, mask).backward()
        replay_loss(logits, ids, mask, torch.ones(1)).backward()

    few, many = (peak_bytes(lambda tokens=tokens: work(tokens), tmp_path) for tokens in (256, 1024))
    assert many < 2**30, "half of what is allowed"
    assert many < 1.05 * few, "8 x 1,024 tokens need no more than these"


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


def scored(
    tiny_model: Path,
    tmp_path: Path,
    data: Dataset,
    overrides: dict[str, Any] | None = None,
    **weights: float,
) -> Any:
    settings = {"max_steps": 1} | (overrides or {})
    trainer = grpo_trainer(tiny_model, tmp_path, Scored, data, trainer_kwargs=weights, **settings)
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
    assert student.size(1) == teacher.size(1) == 1, "no forward makes the logits of the whole completion"
    assert student_ids.tolist() == torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1).tolist()
    text = trainer._text_tokenizer.decode(teacher_ids[0, : inputs["privileged_prompt_ids"].size(1)])
    assert text.replace(" ", "").endswith("=") and teacher_ids.size(1) > student_ids.size(1)
    assert loss.item() > 0.0
    loss.backward()
    assert sum(p.grad.abs().sum().item() for p in trainer.model.parameters() if p.grad is not None) > 0.0


def logits_by_hand(trainer: Any, prompt: str) -> torch.Tensor:
    """Log-probabilities of the completion's tokens after a prompt's inputs, at the sampling temperature."""
    inputs = trainer.seen
    ids = torch.cat([inputs[f"{prompt}_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs[f"{prompt}_mask"], inputs["completion_mask"]], 1)
    logits = trainer.model(input_ids=ids, attention_mask=mask).logits
    return (logits[:, -inputs["completion_ids"].size(1) - 1 : -1] / trainer.temperature).log_softmax(-1)


@pytest.mark.parametrize("whole", [False, True])
def test_the_loss_is_the_kl_at_the_sampling_temperature(
    tiny_model: Path, tmp_path: Path, whole: bool
) -> None:
    data = with_columns(privileged_prompt=privileged)
    trainer = scored(tiny_model, tmp_path, data, overrides={"temperature": 0.3}, alpha_sdpo=1.0)
    trainer._whole_logits = whole
    student, teacher = logits_by_hand(trainer, "prompt"), logits_by_hand(trainer, "privileged_prompt")
    mask = trainer.seen["completion_mask"]
    wanted = ((student.exp() * (student - teacher)).sum(-1) * mask).sum() / mask.sum()
    assert trainer._compute_sdpo_loss(trainer.model, trainer.seen).item() == pytest.approx(
        wanted.item(), rel=1e-3
    )


def test_a_model_that_changes_its_logits_is_asked_for_all_of_them(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(privileged_prompt=privileged)
    trainer = scored(tiny_model, tmp_path, data, alpha_sdpo=1.0)
    forward, sizes = trainer.model.forward, []

    def scaled(**kwargs: Any) -> Any:
        output = forward(**kwargs)
        output.logits = output.logits / 8
        sizes.append(output.logits.size(1))
        return output

    loss = trainer._compute_sdpo_loss(scaled, trainer.seen)
    length = trainer.seen["completion_ids"].size(1)
    assert sizes == [1, length + 1, length + 1] and torch.isfinite(loss)


@pytest.mark.nightly
def test_a_sharded_model_is_asked_for_all_of_its_logits(tiny_model: Path, tmp_path: Path) -> None:
    """Outside its forward a rank has a part of the output layer only."""
    trainer = scored(tiny_model, tmp_path, with_columns(privileged_prompt=privileged), alpha_sdpo=1.0)
    whole = trainer.seen["completion_ids"].size(1) + 1
    sizes: list[int] = []

    def model(**kwargs: Any) -> Any:
        output = trainer.model(**kwargs)
        sizes.append(output.logits.size(1))
        return output

    for fsdp, deepspeed, wanted in ((False, False, 1), (True, False, whole), (False, True, whole)):
        trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled = fsdp, deepspeed
        trainer._whole_logits = None
        sizes.clear()
        trainer._compute_sdpo_loss(model, trainer.seen)
        assert sizes == [wanted, wanted]


def test_the_answers_of_tools_are_not_distilled(tiny_model: Path, tmp_path: Path) -> None:
    trainer = scored(tiny_model, tmp_path, with_columns(privileged_prompt=privileged), alpha_sdpo=1.0)
    trainer.seen["tool_mask"] = torch.zeros_like(trainer.seen["completion_mask"])
    assert trainer._compute_sdpo_loss(trainer.model, trainer.seen).item() == 0.0


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
    tokenizer = trainer._text_tokenizer
    ids = torch.tensor([tokenizer("1+1=2")["input_ids"] + [tokenizer.eos_token_id]])
    log_probs = trainer.model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
    nll = -log_probs[torch.arange(ids.size(1) - 1), ids[0, 1:]][-2:].mean()  # "2" and the end
    assert loss.item() == pytest.approx(0.5 * nll.item(), rel=1e-4)


def test_rows_without_a_trace_cost_nothing(tiny_model: Path, tmp_path: Path) -> None:
    data = with_columns(replay_prompt=None, replay_completion=None)
    trainer = scored(tiny_model, tmp_path, data, beta_replay=1.0)
    assert trainer._compute_trace_replay_loss(trainer.model, trainer.seen).item() == 0.0


@pytest.mark.nightly
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
