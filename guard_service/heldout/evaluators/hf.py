"""Evaluator of local Hugging Face checkpoints: load, generate in batches with transformers.

Sampling is by the Gumbel-max trick with a random stream of its own for each completion: a draw from
softmax(logits) is argmax(logits + Gumbel noise), where the logits were divided by the temperature and cut by
top_k, top_p and min_p. So a completion depends on weights, seed, pass and item, and not on what shares its
batch; and two checkpoints meet the same noise, which takes noise out of their difference (common random
numbers).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guard_core.wire import EvaluationSampling, FailureKind
from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.config import HfEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
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
from guard_service.heldout.evaluators.tokenization import CompletionJob, Tokenization
from guard_service.heldout.staging import Staged

#: Below this, logits divided by the temperature leave the range of float32.
LEAST_TEMPERATURE = 0.01


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

        width = max(len(job.tokens) for job in batch)
        padding = [width - len(job.tokens) for job in batch]
        ids = [[self.tokenization.pad] * pad + job.tokens for job, pad in zip(batch, padding, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self.model.device
        watch = _logits_watch(device)
        seeds = [job.seed for job in batch]
        processors = [watch, *_sampler(sampling, padding, seeds, device)]
        try:
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=self.model.generation_config,
                    logits_processor=LogitsProcessorList(processors),
                    stopping_criteria=StoppingCriteriaList(
                        [_stopping(self.tokenization, width)] if self.tokenization.stops.texts else []
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


def _logits_watch(device: Any) -> Any:
    """A logits processor that changes nothing and remembers in `broken` whether a row had no finite maximum.

    Single logits may well be -inf. It stays on the device, so that no step waits for it.
    """
    import torch
    from transformers import LogitsProcessor

    class LogitsWatch(LogitsProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.broken = torch.zeros((), dtype=torch.bool, device=device)

        def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
            self.broken |= ~scores.amax(dim=-1).isfinite().all()
            return scores

    return LogitsWatch()


def _stopping(tokenization: Tokenization, width: int) -> Any:
    """End a row whose completion, after `width` tokens of prompt, has a stop text."""
    import torch
    from transformers import StoppingCriteria

    class Stops(StoppingCriteria):  # type: ignore[misc]
        def __init__(self) -> None:
            self._ended: set[int] = set()

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
            made = input_ids[:, width:].tolist()
            self._ended |= {
                row
                for row, written in enumerate(made)
                if row not in self._ended and tokenization.stopped(written)
            }
            return torch.tensor([row in self._ended for row in range(len(made))], device=input_ids.device)

    return Stops()


def _sampler(
    sampling: EvaluationSampling, padding: Sequence[int], seeds: Sequence[int], device: Any
) -> Iterator[Any]:
    """Logits processors after which greedy decoding is sampling as wanted, in the order of `generate`.

    Args:
        sampling: how the completions are wanted.
        padding: how many tokens of each row's prompt are padding, on the left.
        seeds: of the stream of each row.
        device: of the logits.
    """
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    if sampling.repetition_penalty is not None:
        penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        yield _without_padding(penalty, padding, device)
    if sampling.temperature == 0:
        return
    yield TemperatureLogitsWarper(max(float(sampling.temperature), LEAST_TEMPERATURE))
    if sampling.top_k is not None:
        yield TopKLogitsWarper(sampling.top_k)
    if sampling.top_p is not None:
        yield TopPLogitsWarper(float(sampling.top_p))
    if sampling.min_p is not None:
        yield MinPLogitsWarper(float(sampling.min_p))
    yield _gumbel_noise(seeds, device)


def _without_padding(processor: Any, padding: Sequence[int], device: Any) -> Any:
    """The processor with each row's first token in the place of its padding.

    What pads a row is the batch's business: without this a completion would depend on what shares its batch.
    """
    import torch
    from transformers import LogitsProcessor

    class WithoutPadding(LogitsProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            self._padding = torch.tensor(padding, device=device)[:, None]

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            places = torch.arange(input_ids.shape[1], device=device)[None, :]
            first = input_ids.gather(1, self._padding)
            return processor(torch.where(places < self._padding, first, input_ids), scores)

    return WithoutPadding()


def _gumbel_noise(seeds: Sequence[int], device: Any) -> Any:
    """A logits processor after which greedy decoding is sampling, from a stream of its own for each row."""
    import torch
    from transformers import LogitsProcessor

    class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            self._streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

        def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
            noise = torch.empty_like(scores, dtype=torch.float32)
            for row, stream in zip(noise, self._streams, strict=True):
                row.exponential_(generator=stream)
            # -log of an exponential variate is a Gumbel variate; the clamp keeps log away from 0.
            return scores.float() - noise.clamp_min_(torch.finfo(torch.float32).tiny).log_()

    return GumbelNoise()
