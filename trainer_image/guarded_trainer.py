"""`GuardedGRPOTrainer`: TRL's GRPO with the tripwire inside the training process, and two auxiliary losses.

The kill switch needs no guard service, but it does not protect against a hostile trainer process: whoever can
change the trainer can change the guard in it. `GuardCallback` and a guard beside the trainer do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import pad

from guard_core import CollapseStopError, HeldOutGuard, TripwireStatus
from trainer_image import ranks
from trainer_image.config import LOSS_COLUMNS
from trainer_image.losses import distillation_loss, replay_loss

_LOG_PREFIX = "killswitch/"


class GuardedGRPOTrainer(GRPOTrainer):
    """GRPO that stops when `heldout_guard` fires.

    Every `logging_steps` optimizer steps, beginning with step 0, the guard folds the newest in-loop reward,
    the score that `heldout_eval_fn` returns, and the newest KL to the reference if there is one.

    Keyword arguments beyond `GRPOTrainer`'s:
        heldout_guard: the tripwire; None switches the kill switch off.
        heldout_eval_fn: called without arguments, returns the policy's score on the held-out split. It runs
            without gradients, on EVERY rank (so it may generate with a sharded model); rank 0's score
            counts, so that all ranks fold the same numbers and stop in the same step.
        strict_killswitch: on a fire raise `CollapseStopError`; otherwise end training softly.
        alpha_sdpo: weight of the self-distillation loss, >= 0; 0 computes nothing. Data column
            `privileged_prompt`: the prompt with the privileged context, in the format of `prompt`; None for
            rows without one, which then distil nothing.
        beta_replay: weight of the trace-replay loss, >= 0; 0 computes nothing. Data columns `replay_prompt`
            (in the format of `prompt`), `replay_completion` (text; the end-of-sequence token is appended),
            and optionally `replay_weight` (>= 0, default 1); None for rows without a trace.

    Both losses work on text prompts.

    Raises:
        ValueError: a guard without `heldout_eval_fn`, or a weight that is negative or not finite.
    """

    # Defaults of everything the kill switch reads, so that it also works where `__init__` did not run.
    heldout_guard: HeldOutGuard | None = None
    heldout_eval_fn: Callable[[], float] | None = None
    strict_killswitch: bool = True
    alpha_sdpo: float = 0.0
    beta_replay: float = 0.0
    model: Any = None
    temperature: float = 1.0
    current_gradient_accumulation_steps: int = 1
    _killswitch_step: int | None = None

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

    # -- the loss ------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.alpha_sdpo:
            loss = loss + self.alpha_sdpo * self._compute_sdpo_loss(model, inputs)
        if self.beta_replay:
            loss = loss + self.beta_replay * self._compute_trace_replay_loss(model, inputs)
        if self._killswitch_is_due():
            self._killswitch_step = self.state.global_step
            self._maybe_update_killswitch()
        return loss

    def _compute_sdpo_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Distil the policy on `privileged_prompt` into the policy on `prompt`; see `distillation_loss`."""
        completion = inputs["completion_ids"], inputs["completion_mask"]
        student = self._logits(model, inputs["prompt_ids"], inputs["prompt_mask"], *completion)
        with torch.no_grad():
            teacher = self._logits(
                model, inputs["privileged_prompt_ids"], inputs["privileged_prompt_mask"], *completion
            )
        mask = completion[1] if "tool_mask" not in inputs else completion[1] * inputs["tool_mask"]
        return self._record("sdpo_loss", distillation_loss(student, teacher, mask))

    def _compute_trace_replay_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Weighted negative log-likelihood of the recorded traces; see `replay_loss`."""
        ids, mask = inputs["replay_completion_ids"], inputs["replay_completion_mask"]
        logits = self._logits(model, inputs["replay_prompt_ids"], inputs["replay_prompt_mask"], ids, mask)
        return self._record("trace_replay_loss", replay_loss(logits, ids, mask, inputs["replay_weight"]))

    def _logits(
        self,
        model: Any,
        prompt_ids: torch.Tensor,
        prompt_mask: torch.Tensor,
        completion_ids: torch.Tensor,
        completion_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Logits that predict the completion, at the sampling temperature: (batch, tokens, vocabulary)."""
        output = model(
            input_ids=torch.cat([prompt_ids, completion_ids], dim=1),
            attention_mask=torch.cat([prompt_mask, completion_mask], dim=1),
            logits_to_keep=completion_ids.size(1) + 1,
            use_cache=False,
        )
        return output.logits[:, :-1] / self.temperature

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
        return self._padded("privileged_prompt", self._tokenize_prompts(prompts)[0], "left")

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
            **self._padded("replay_prompt", self._tokenize_prompts(prompts)[0], "left"),
            **self._padded("replay_completion", traces, "right"),
            "replay_weight": torch.tensor(weights, device=self.accelerator.device),
        }

    def _trace_ids(self, text: str) -> list[int]:
        return [*self._tokenizer(text, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]

    def _padded(self, name: str, rows: Sequence[Sequence[int]], side: str) -> dict[str, torch.Tensor]:
        """`<name>_ids` and `<name>_mask`, shape (batch, longest); at least one column."""
        if not any(rows):
            rows = [[self._tokenizer.pad_token_id]] * len(rows)
            masks = [torch.zeros(1, dtype=torch.long)] * len(rows)
        else:
            masks = [torch.ones(len(row), dtype=torch.long) for row in rows]
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        device = self.accelerator.device
        return {
            f"{name}_ids": pad(ids, self._tokenizer.pad_token_id, side).to(device),
            f"{name}_mask": pad(masks, 0, side).to(device),
        }

    # -- the kill switch -----------------------------------------------------------------------------------

    def _killswitch_is_due(self) -> bool:
        """Once per optimizer step, whatever the number of micro-batches, and never during evaluation."""
        step = self.state.global_step
        return step % self._logging_interval() == 0 and step != self._killswitch_step and self._is_training()

    def _logging_interval(self) -> float:
        """`logging_steps` in steps; a ratio below 1 was turned into steps by the Trainer, in its state."""
        steps = self.args.logging_steps
        return steps if steps >= 1 else max(self.state.logging_steps, 1)

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
        metrics = self._metrics["train"]
        reward = _newest(metrics, "reward")
        if reward is None:
            return None
        reward, score, kl = ranks.agree(
            (reward, self._heldout_score(), _newest(metrics, "kl")), getattr(self.args, "device", "cpu")
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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the parent does; an entry of the kill switch leaves the unfinished step's metrics alone.

        The parent's `log` would write out and clear them, and the user would find half a step twice.
        """
        if any(key.startswith(_LOG_PREFIX) for key in logs):
            super(GRPOTrainer, self).log(logs, start_time)
        else:
            super().log(logs, start_time)


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


def _newest(metrics: Mapping[str, Sequence[float]], key: str) -> float | None:
    """The newest value of a metric; None if there is none, or if it is not finite."""
    values = metrics.get(key)
    return float(values[-1]) if values and math.isfinite(values[-1]) else None


def _require_columns(rows: Sequence[Mapping[str, Any]], weight: str) -> None:
    for column in LOSS_COLUMNS[weight]:
        if any(column not in row for row in rows):
            raise ValueError(f"{weight} > 0 needs the data column {column!r} (None for rows without one)")
