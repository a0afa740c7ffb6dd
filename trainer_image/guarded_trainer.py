"""`GuardedGRPOTrainer`: TRL's GRPO with a kill switch inside the training process, and two auxiliary losses.

The kill switch needs no guard service, but it does not protect against a hostile trainer process: whoever can
change the trainer can change the guard in it. `GuardCallback` and a guard beside the trainer do.
"""

# ruff: noqa: ARG002 (the signature of an event is the Trainer's, whatever the event needs of it)

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer, is_conversational
from trl.trainer.utils import pad

from rlguard.core import CollapseStopError, HeldOutGuard, TripwireStatus
from trainer_image import ranks
from trainer_image.config import LOSS_COLUMNS

log = logging.getLogger(__name__)

_LOG_PREFIX = "killswitch/"
#: Under this name the kill switch's state is in `trainer_state.json`, among the states of callbacks.
_STATE_KEY = "rlguard-killswitch"


class GuardedGRPOTrainer(GRPOTrainer):
    """GRPO that stops when `heldout_guard` fires.

    Every `logging_steps` optimizer steps, beginning with step 0, the guard folds the newest in-loop reward,
    the score that `heldout_eval_fn` returns, and the newest KL to the reference if there is one. A step that
    generates nothing trains on the completions of an earlier one, and their reward is then the newest.

    The state is saved with every checkpoint, and `train(resume_from_checkpoint=...)` goes on from it, with
    the thresholds of the guard that was passed. A guard that had fired stops the resumed run before its first
    step (softly: after it).

    Keyword arguments beyond `GRPOTrainer`'s:
        heldout_guard: the rule; None switches the kill switch off.
        heldout_eval_fn: called without arguments, returns the policy's score on the held-out split. It runs
            without gradients, on EVERY rank (so it may generate with a sharded model); rank 0's score
            counts, so that all ranks fold the same numbers and stop in the same step.
        strict_killswitch: on a fire raise `CollapseStopError`; otherwise end training softly.
        alpha_sdpo: weight of the self-distillation loss (SDPO, Hübotter et al., arXiv 2601.20802), >= 0; 0
            computes nothing. Data column `privileged_prompt`: the prompt with the privileged context, in the
            format of `prompt`; None for rows without one, which then distil nothing.
        beta_replay: weight of the trace-replay loss, >= 0; 0 computes nothing. Data columns `replay_prompt`
            (in the format of `prompt`), `replay_completion` (text; the end-of-sequence token is appended),
            and optionally `replay_weight` (>= 0, default 1); None for rows without a trace.

    Both losses work on text prompts.

    Raises:
        ValueError: a guard without `heldout_eval_fn`, a weight that is negative or not finite, or any of
            these with Liger's loss, where TRL (before 1.16) computes that elsewhere.
    """

    # Defaults of everything the kill switch reads, so that it also works where `__init__` did not run.
    heldout_guard: HeldOutGuard | None = None
    heldout_eval_fn: Callable[[], float] | None = None
    strict_killswitch: bool = True
    alpha_sdpo: float = 0.0
    beta_replay: float = 0.0
    model: Any = None
    current_gradient_accumulation_steps: int = 1
    _killswitch_step: int | None = None
    #: Newest values by metric, kept because `log` clears the lists; None: the newest was not finite.
    _newest_values: Mapping[str, float | None] = {}

    def __init__(
        self,
        *args: Any,
        heldout_guard: HeldOutGuard | None = None,
        heldout_eval_fn: Callable[[], float] | None = None,
        strict_killswitch: bool = True,
        alpha_sdpo: float = 0.0,
        beta_replay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if heldout_guard is not None and heldout_eval_fn is None:
            raise ValueError(
                "heldout_guard needs heldout_eval_fn: a function that returns the held-out score"
            )
        for name, weight in (("alpha_sdpo", alpha_sdpo), ("beta_replay", beta_replay)):
            if not (math.isfinite(weight) and weight >= 0.0):
                raise ValueError(f"{name} must be >= 0, got {weight!r}")
        self.heldout_guard = heldout_guard
        self.heldout_eval_fn = heldout_eval_fn
        self.strict_killswitch = strict_killswitch
        self.alpha_sdpo = alpha_sdpo
        self.beta_replay = beta_replay
        super().__init__(*args, **kwargs)
        if heldout_guard is not None or alpha_sdpo or beta_replay:
            self._refuse_another_loss()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the parent does; on a resume, restore the kill switch first."""
        self.remove_callback(_KillSwitchAtStart)
        if self.heldout_guard is not None:
            self.add_callback(_KillSwitchAtStart(self))
        return super().train(*args, **kwargs)

    # -- the loss ------------------------------------------------------------------------------------------

    def _refuse_another_loss(self) -> None:
        """TRL before 1.16 has Liger's loss in a method of its own, which never comes by `_compute_loss`."""
        for name in ("use_liger_kernel", "use_liger_loss"):
            if hasattr(self, "compute_liger_loss") and getattr(getattr(self, "args", None), name, False):
                raise ValueError(
                    f"{name}=True has this version of TRL compute another loss, so neither the kill switch "
                    f"nor alpha_sdpo nor beta_replay would do anything: set {name}=False, or take TRL 1.16"
                )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.alpha_sdpo:
            loss = loss + self.alpha_sdpo * self._compute_sdpo_loss(model, inputs)
        if self.beta_replay:
            loss = loss + self.beta_replay * self._compute_trace_replay_loss(model, inputs)
        if self.heldout_guard is not None and self._killswitch_is_due():
            self._killswitch_step = self.state.global_step
            self._maybe_update_killswitch()
        return loss

    def _compute_sdpo_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """KL(policy on `prompt` || policy on `privileged_prompt`) of the sampled tokens, nats/token.

        The value is the k3 estimate, as of TRL's `kl`, and never negative. The gradient is that of the KL, as
        of TRL's own SDPO with its default `distillation_mode="sampled_token"`. None reaches the teacher.
        """
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        student = self._log_probs(model, inputs, "prompt", "completion")
        with torch.no_grad():
            teacher = self._log_probs(model, inputs, "privileged_prompt", "completion")
        ratio = (student - teacher).detach()
        estimate = torch.exp(-ratio) + ratio - 1
        per_token = estimate + ratio * (student - student.detach())
        return self._record("sdpo_loss", (per_token * mask).sum() / mask.sum().clamp(min=1))

    def _compute_trace_replay_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Weighted negative log-likelihood of the recorded traces: the mean over traces of w_i * NLL_i.

        NLL_i is the mean over the tokens of trace i, nats/token, so a long trace counts as much as a short
        one.
        """
        mask = inputs["replay_completion_mask"]
        log_probs = self._log_probs(model, inputs, "replay_prompt", "replay_completion")
        tokens = mask.sum(-1)
        per_trace = -(log_probs * mask).sum(-1) / tokens.clamp(min=1)
        loss = (inputs["replay_weight"] * per_trace).sum() / (tokens > 0).sum().clamp(min=1)
        return self._record("trace_replay_loss", loss)

    def _log_probs(
        self, model: Any, inputs: Mapping[str, torch.Tensor], prompt: str, completion: str
    ) -> torch.Tensor:
        """Log-probability of each token of the completion, (batch, tokens), at the sampling temperature."""
        ids, mask = (
            torch.cat([inputs[f"{prompt}_{part}"], inputs[f"{completion}_{part}"]], dim=1)
            for part in ("ids", "mask")
        )
        kept = inputs[f"{completion}_ids"].size(1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, kept)[0]

    def _record(self, name: str, loss: torch.Tensor) -> torch.Tensor:
        """Log the mean over all ranks, and scale for gradient accumulation, as the parent scales its own."""
        training = self._is_training()
        mean = self.accelerator.reduce(loss.detach(), reduction="mean").item()
        self._metrics["train" if training else "eval"][name].append(mean)
        return loss / self.current_gradient_accumulation_steps if training else loss

    # -- the columns of the auxiliary losses ---------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.alpha_sdpo:
            output |= self._privileged_inputs(inputs)
        if self.beta_replay:
            output |= self._replay_inputs(inputs)
        return output

    def _privileged_inputs(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """The teacher's prompts. A row without one gets its own prompt: teacher = student, and no loss."""
        _require_columns(rows, "alpha_sdpo")
        prompts = [row["privileged_prompt"] or row["prompt"] for row in rows]
        return self._padded("privileged_prompt", self._prompt_ids(prompts), "left")

    def _replay_inputs(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Traces, padded. A row without one gets an empty completion: every rank does the same forwards."""
        _require_columns(rows, "beta_replay")
        prompts = [row["replay_prompt"] or row["prompt"] for row in rows]
        traces = []
        for row in rows:
            present = row["replay_prompt"] is not None and row["replay_completion"] is not None
            text = row["replay_completion"] if present else None
            traces.append([] if text is None else self._trace_ids(text))
        weights = [1.0 if row.get("replay_weight") is None else float(row["replay_weight"]) for row in rows]
        if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights):
            raise ValueError(f"replay_weight must be >= 0, got {min(weights)!r}")
        return {
            **self._padded("replay_prompt", self._prompt_ids(prompts), "left"),
            **self._padded("replay_completion", traces, "right"),
            "replay_weight": torch.tensor(weights, device=self.accelerator.device),
        }

    def _prompt_ids(self, prompts: Sequence[Any]) -> list[list[int]]:
        """Token ids of text prompts, as the parent makes those of `prompt`."""
        if not is_conversational({"prompt": prompts[0]}):
            return self.processing_class(text=prompts)["input_ids"]
        return self.processing_class.apply_chat_template(
            conversation=prompts,
            tools=getattr(self, "tools", None) or None,
            chat_template=getattr(self, "chat_template", None),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self.chat_template_kwargs,
        )["input_ids"]

    @property
    def _text_tokenizer(self) -> Any:
        return getattr(self.processing_class, "tokenizer", self.processing_class)

    def _trace_ids(self, text: str) -> list[int]:
        tokenizer = self._text_tokenizer
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    def _padded(self, name: str, rows: Sequence[Sequence[int]], side: str) -> dict[str, torch.Tensor]:
        """`<name>_ids` and `<name>_mask`, shape (batch, longest); an empty row is one masked token."""
        padding, device = self._text_tokenizer.pad_token_id, self.accelerator.device
        ids = [torch.tensor(row or [padding]) for row in rows]
        masks = [torch.full_like(one, bool(row)) for one, row in zip(ids, rows, strict=True)]
        return {
            f"{name}_ids": pad(ids, padding, side).to(device),
            f"{name}_mask": pad(masks, 0, side).to(device),
        }

    # -- the kill switch -----------------------------------------------------------------------------------

    def _killswitch_is_due(self) -> bool:
        """Once per optimizer step, whatever the number of micro-batches, and never during evaluation."""
        step, every = self.state.global_step, self.args.logging_steps
        if every < 1:  # a share of all steps, which the Trainer has in its state as a number
            every = max(self.state.logging_steps, 1)
        return step % every == 0 and step != self._killswitch_step and self._is_training()

    def _is_training(self) -> bool:
        return self.model is None or self.model.training

    def _maybe_update_killswitch(self) -> TripwireStatus | None:
        """Fold one round into the guard, log it under `killswitch/`, and act on a fire.

        Returns:
            The round's status; None without a guard, or without an in-loop reward to fold: missing data is
            unknown, and then the held-out score is not computed either.

        Raises:
            CollapseStopError: the guard fired and `strict_killswitch` is set.
            ValueError: `heldout_eval_fn` returned no finite number.
        """
        if self.heldout_guard is None or self.heldout_eval_fn is None:
            return None
        self._keep_newest()
        reward = self._newest_values.get("reward")
        if reward is None:
            return None
        kl = self._newest_values.get("kl")
        if kl is None and "kl" in self._newest_values:
            log.warning("the newest KL at step %d is not finite: it is not folded", self.state.global_step)
        reward, score, kl = ranks.agree(
            (reward, self._heldout_score(), kl), getattr(self.args, "device", "cpu")
        )
        status = self.heldout_guard.update(self.state.global_step, reward, score, kl_to_init=kl)
        self.log(_log_entry(status, score))
        if status.fire:
            if self.strict_killswitch:
                raise CollapseStopError(status)
            self.control.should_training_stop = True
        return status

    def _heldout_score(self) -> float:
        assert self.heldout_eval_fn is not None
        with torch.no_grad():
            score = float(self.heldout_eval_fn())
        if self.model is not None:
            self.model.train()  # generation leaves the model in evaluation mode
        if not math.isfinite(score):
            raise ValueError(f"heldout_eval_fn must return a finite score, got {score!r}")
        return score

    def _keep_newest(self) -> None:
        """Remember the newest reward and KL, before `log` clears the lists that hold them."""
        for key in ("reward", "kl"):
            if values := self._metrics["train"].get(key):
                newest = float(values[-1]) if math.isfinite(values[-1]) else None
                self._newest_values = {**self._newest_values, key: newest}

    # -- the kill switch's state ---------------------------------------------------------------------------

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save as the parent does, with the kill switch in `trainer_state.json`."""
        if self.heldout_guard is not None:
            self.state.stateful_callbacks[_STATE_KEY] = self.heldout_guard.to_state()
        super()._save_checkpoint(*args, **kwargs)

    def _restore_killswitch(self) -> None:
        """Go on from the state in the checkpoint that training resumes from.

        Raises:
            CollapseStopError: the guard had fired, and `strict_killswitch` is set.
        """
        guard = self.heldout_guard
        self._killswitch_step = None
        self._newest_values = {}
        if guard is None or self.state.global_step == 0:
            return
        saved = self.state.stateful_callbacks.get(_STATE_KEY)
        if saved is None:
            log.warning("the checkpoint has no state of the kill switch: it begins again, with no memory")
            return
        thresholds = {f.name: getattr(guard, f.name) for f in fields(guard) if f.init}
        vars(guard).update(vars(HeldOutGuard.from_state(saved | thresholds)))
        log.info("the kill switch goes on after %d rounds", guard.count)
        if guard.fired:
            if self.strict_killswitch:
                guard.raise_if_fired()
            self.control.should_training_stop = True

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the parent does; an entry of the kill switch leaves the unfinished step's metrics alone.

        The parent's `log` would write out and clear them, and the user would find half a step twice.
        """
        self._keep_newest()
        if any(key.startswith(_LOG_PREFIX) for key in logs):
            super(GRPOTrainer, self).log(logs, start_time)
        else:
            super().log(logs, start_time)


class _KillSwitchAtStart(TrainerCallback):
    """Restores the kill switch once the Trainer has read the checkpoint, and before the first step."""

    def __init__(self, trainer: GuardedGRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer._restore_killswitch()


def _log_entry(status: TripwireStatus, score: float) -> dict[str, float]:
    entry = {
        "fire": float(status.fire),
        "heldout_score": score,
        "proxy_real_gap": status.proxy_real_gap,
        "in_loop_ema": status.in_loop_ema,
        "heldout_ema": status.heldout_ema,
    }
    if status.kl_ema is not None:
        entry["kl_ema"] = status.kl_ema
    return {_LOG_PREFIX + key: value for key, value in entry.items()}


def _require_columns(rows: Sequence[Mapping[str, Any]], weight: str) -> None:
    for column in LOSS_COLUMNS[weight]:
        if any(column not in row for row in rows):
            raise ValueError(f"{weight} > 0 needs the data column {column!r} (None for rows without one)")
