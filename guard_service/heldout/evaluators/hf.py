"""Evaluator of local Hugging Face checkpoints: load, generate in batches with transformers."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.config import HfEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.completions import CompletionJob, Tokenization
from guard_service.heldout.evaluators.evaluator import BrokenGenerationError, Evaluator
from guard_service.heldout.evaluators.loading import (
    loading,
    not_finite,
    on_cuda,
    precision,
    refuse_not_finite,
    whole_model,
)
from guard_service.heldout.evaluators.lora import apply_adapter
from guard_service.heldout.staging import Staged
from rlguard.core.wire import EvaluationSampling, FailureKind


class HfEvaluator(Evaluator):
    """Loads one checkpoint at a time. Its weights are on the device only while it is scored."""

    def __init__(self, settings: HfEvaluatorSettings, scratch: Path, base: BaseModel | None = None) -> None:
        super().__init__(settings, scratch, base)
        self._own = settings

    def _missing(self) -> str | None:
        for package in ("torch", "transformers", "safetensors", *(("peft",) if self._base else ())):
            if find_spec(package) is None:
                return f"evaluator 'hf' needs {package}: pip install 'rlguard[eval-hf]'"
        return None

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`: importing torch and transformers takes seconds."""
        import torch  # noqa: F401
        from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel  # noqa: F401

        if self._base is not None:
            import peft  # noqa: F401

    def _load(self, staged: Staged, tokenization: Tokenization, shown: str) -> Loaded:
        """The checkpoint itself, or the guard's base model with the adapter on it."""
        if staged.adapter is None:
            model = self._placed(staged.path, shown)
        else:
            assert self._base is not None, "an adapter is not staged without a base model"
            model = self._placed(self._base.path, f"the base model {self._base.path}")
            with loading(shown, FailureKind.WEIGHTS):
                model = apply_adapter(model, staged.path, staged.adapter)
        refuse_not_finite(not_finite(model.named_parameters()), shown)
        return Loaded(model, tokenization, self._own.batch_size)

    def _placed(self, path: Path, shown: str) -> Any:
        """The model in a directory, whole and on its device."""
        import torch

        automatic = "cuda" if on_cuda() else "cpu"
        device = torch.device(automatic if self._own.device == "auto" else self._own.device)
        dtype = getattr(torch, precision(self._own.dtype, cuda=device.type == "cuda"))
        model = whole_model(path, shown, dtype=dtype)
        with loading(shown, FailureKind.WEIGHTS):
            return model.to(device).eval()


@dataclass(slots=True)
class Loaded:
    """A policy on its device, which generates in batches."""

    model: Any
    tokenization: Tokenization
    batch_size: int

    def generate(self, jobs: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        """See `LoadedPolicy.generate`."""
        from transformers import GenerationConfig

        # A config of our own: the checkpoint's may bring top_p, penalties or a length of its own.
        self.model.generation_config = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(self.tokenization.ends) or None,
            pad_token_id=self.tokenization.pad,
        )
        made: list[list[int]] = []
        for start in range(0, len(jobs), self.batch_size):
            made += self._batch(jobs[start : start + self.batch_size], sampling)
        return made

    def _batch(self, batch: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        from guard_service.heldout.evaluators.sampling import LogitsWatch, StopAtTexts, sampler

        width = max(len(job.tokens) for job in batch)
        padding = [width - len(job.tokens) for job in batch]
        ids = [[self.tokenization.pad] * pad + job.tokens for job, pad in zip(batch, padding, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self.model.device
        watch = LogitsWatch(device)
        processors = [watch, *sampler(sampling, padding, [job.seed for job in batch], device)]
        try:
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=self.model.generation_config,
                    logits_processor=LogitsProcessorList(processors),
                    stopping_criteria=StoppingCriteriaList(
                        [StopAtTexts(self.tokenization, width)] if self.tokenization.stops.texts else []
                    ),
                )
        except torch.OutOfMemoryError as error:
            raise EvaluationError(
                f"the device ran out of memory at batch_size={self.batch_size}: lower it"
            ) from error
        if watch.broken.item():
            raise BrokenGenerationError(
                "its logits are infinite or not a number: the weights are damaged, or overflow in "
                f"{self.model.dtype}"
            )
        made: list[list[int]] = out[:, width:].tolist()
        return made

    def release(self) -> None:
        """Give the device's memory back."""
        import torch

        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
