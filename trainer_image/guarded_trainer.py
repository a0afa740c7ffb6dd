"""`GuardedGRPOTrainer`: TRL's GRPO with a kill switch inside the training process, and two auxiliary losses.

The kill switch needs no guard service, but it does not protect against a hostile trainer process: whoever can
change the trainer can change the guard in it. `GuardCallback` and a guard beside the trainer do.
"""

# ruff: noqa: ARG002 (the signature of an event is the Trainer's, whatever the event needs of it)

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer, is_conversational
from trl.trainer.utils import pad

from guard_core import CollapseStopError, HeldOutGuard, TripwireStatus
from trainer_image import ranks
from trainer_image.config import LOSS_COLUMNS
from trainer_image.losses import Logits, distillation_loss, replay_loss

log = logging.getLogger(__name__)

_LOG_PREFIX = "killswitch/"
#: Under this name the kill switch's state is in `trainer_state.json`, among the states of callbacks.
_STATE_KEY = "rlguard-killswitch"
_STATE_VERSION = 1


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
        alpha_sdpo: weight of the self-distillation loss, >= 0; 0 computes nothing. Data column
            `privileged_prompt`: the prompt with the privileged context, in the format of `prompt`; None for
            rows without one, which then distil nothing.
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
    temperature: float = 1.0
    current_gradient_accumulation_steps: int = 1
    #: Whether the model must make all logits at once; None until the first forward of a loss.
    _whole_logits: bool | None = None
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
        names = ("use_liger_kernel", "use_liger_loss")
        if not hasattr(self, "compute_liger_loss"):
            return
        for name in names:
            if getattr(getattr(self, "args", None), name, False):
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
    ) -> Logits:
        """Logits that predict the completion, at the sampling temperature.

        The forward goes through the wrapped model, as the parent's does, but makes the logits of one position
        only; `losses` makes the others in chunks of the hidden states. Where the head cannot be applied by
        itself, the model makes them all.
        """
        inputs = {
            "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
            "attention_mask": torch.cat([prompt_mask, completion_mask], dim=1),
            "use_cache": False,
        }
        if self._whole_logits is None:
            sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
            self._hold_all_logits(sharded or not _has_plain_head(self.model))
        if not self._whole_logits:
            with _last_hidden_state(self.model.get_decoder()) as seen:
                output = model(**inputs, logits_to_keep=1)
            head = self.model.get_output_embeddings()
            with torch.no_grad():
                own = head(seen[0][:, -1:]).float()
            if torch.allclose(own, output.logits.float(), rtol=2e-2, atol=1e-2):  # bfloat16 has three digits
                hidden = seen[0][:, -completion_ids.size(1) - 1 : -1]
                return Logits(hidden, lambda h: head(h) / self.temperature, output.logits.size(-1))
            self._hold_all_logits(True)
        logits = model(**inputs, logits_to_keep=completion_ids.size(1) + 1).logits[:, :-1]
        return Logits(logits, lambda chunk: chunk / self.temperature, logits.size(-1))

    def _hold_all_logits(self, whole: bool) -> None:
        self._whole_logits = whole
        if whole:
            log.warning(
                "the auxiliary losses hold all logits of a batch at once: the output layer of %s cannot be "
                "applied by itself",
                type(self.model).__name__,
            )

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
        """Token ids of text prompts, as the parent makes those of `prompt`; older TRL does it elsewhere."""
        if hasattr(self, "_tokenize_prompts"):
            return self._tokenize_prompts(prompts)[0]
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
        """`<name>_ids` and `<name>_mask`, shape (batch, longest); at least one column."""
        padding = self._text_tokenizer.pad_token_id
        if not any(rows):
            rows = [[padding]] * len(rows)
            masks = [torch.zeros(1, dtype=torch.long)] * len(rows)
        else:
            masks = [torch.ones(len(row), dtype=torch.long) for row in rows]
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        device = self.accelerator.device
        return {
            f"{name}_ids": pad(ids, padding, side).to(device),
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
        metrics = self._metrics["train"]
        found = {key: _newest(metrics, key) for key in ("reward", "kl") if metrics.get(key)}
        self._newest_values = {**self._newest_values, **found}

    # -- the kill switch's state ---------------------------------------------------------------------------

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save as the parent does, with the kill switch in `trainer_state.json`."""
        if self.heldout_guard is not None:
            self.state.stateful_callbacks[_STATE_KEY] = {
                "version": _STATE_VERSION,
                "guard": self.heldout_guard.to_state(),
            }
        super()._save_checkpoint(*args, **kwargs)

    def _restore_killswitch(self) -> None:
        """Go on from the state in the checkpoint that training resumes from.

        Raises:
            CollapseStopError: the guard had fired, and `strict_killswitch` is set.
            ValueError: the state is of another version of this program.
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
        if saved.get("version") != _STATE_VERSION:
            raise ValueError(
                f"the kill switch's state in the checkpoint has version {saved.get('version')!r}"
            )
        thresholds = {f.name: getattr(guard, f.name) for f in fields(guard) if f.init}
        vars(guard).update(vars(HeldOutGuard.from_state(saved["guard"] | thresholds)))
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


@contextmanager
def _last_hidden_state(decoder: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """A list that holds, after a forward inside, what the decoder hands to the head."""
    seen: list[torch.Tensor] = []
    handle = decoder.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    try:
        yield seen
    finally:
        handle.remove()


def _has_plain_head(model: Any) -> bool:
    """Whether logits are just the output layer's; capped logits look like it only where they are small."""
    config = model.config.get_text_config()
    capped = getattr(config, "final_logit_softcapping", None) is not None
    return not capped and hasattr(model, "get_decoder") and model.get_output_embeddings() is not None


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


def _newest(metrics: Mapping[str, Sequence[float]], key: str) -> float | None:
    """The newest value of a metric; None if there is none, or if it is not finite."""
    values = metrics.get(key)
    return float(values[-1]) if values and math.isfinite(values[-1]) else None


def _require_columns(rows: Sequence[Mapping[str, Any]], weight: str) -> None:
    for column in LOSS_COLUMNS[weight]:
        if any(column not in row for row in rows):
            raise ValueError(f"{weight} > 0 needs the data column {column!r} (None for rows without one)")
