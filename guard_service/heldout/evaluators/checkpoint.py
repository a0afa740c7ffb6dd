"""Evaluator of local Hugging Face checkpoints: stage, load, generate in batches. The only user of torch here.

Sampling is by the Gumbel-max trick with a random stream of its own for each completion: a draw from
softmax(logits / temperature) is argmax(logits / temperature + Gumbel noise). So a completion depends on
weights, seed, pass and item, and not on what shares its batch; and two checkpoints meet the same noise, which
takes noise out of their difference (common random numbers).
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guard_service.heldout.config import CheckpointEvaluatorSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import Completions, sample_seed
from guard_service.heldout.evaluators.staging import stage
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import STAGE_PREFIX, EvaluationRequest


@dataclass(frozen=True, slots=True)
class _Job:
    """One completion to make: of item number `item`, its `sample`-th, from these prompt tokens."""

    item: int
    sample: int
    tokens: list[int]
    seed: int


class CheckpointEvaluator:
    """Loads one checkpoint at a time. Its weights are on the device only while it is scored."""

    def __init__(self, settings: CheckpointEvaluatorSettings, scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch

    def check(self, items: Sequence[HeldoutItem]) -> None:  # noqa: ARG002  # the Evaluator protocol
        """See `Evaluator.check`: torch and transformers are found, and not yet imported."""
        for package in ("torch", "transformers", "safetensors"):
            if find_spec(package) is None:
                raise SplitError(f"evaluator 'checkpoint' needs {package}: pip install 'rlguard[eval-hf]'")

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`: importing torch and transformers takes seconds."""
        import torch  # noqa: F401
        from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel  # noqa: F401

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """See `Evaluator.complete`."""
        staged = stage(request.path, self._scratch / f"{STAGE_PREFIX}{uuid.uuid4().hex}")
        loaded = _load(staged.path, request.path, self._settings)
        try:
            texts = self._generate(loaded, items, request)
        finally:
            loaded.release()
        return Completions(texts, staged.sha256, staged.path)

    def _generate(
        self, loaded: _Loaded, items: Sequence[HeldoutItem], request: EvaluationRequest
    ) -> list[list[str]]:
        settings = self._settings
        encoded = [loaded.encode(item, settings) for item in items]
        jobs = [
            _Job(i, k, encoded[i], sample_seed(settings.seed, request.pass_index, item.id, k))
            for i, item in enumerate(items)
            for k in range(settings.samples)
        ]
        # Longest first: least padding, and a batch that does not fit in memory fails at once.
        jobs.sort(key=lambda job: -len(job.tokens))
        texts = [[""] * settings.samples for _ in items]
        for start in range(0, len(jobs), settings.batch_size):
            batch = jobs[start : start + settings.batch_size]
            for job, text in zip(batch, loaded.complete(batch, settings), strict=True):
                texts[job.item][job.sample] = text
        return texts


@dataclass(slots=True)
class _Loaded:
    model: Any
    tokenizer: Any
    eos: frozenset[int]
    pad: int

    def encode(self, item: HeldoutItem, settings: CheckpointEvaluatorSettings) -> list[int]:
        """Prompt tokens of an item, through the chat template where it is asked for."""
        if isinstance(item.prompt, str) and not settings.chat:
            ids: list[int] = self.tokenizer(item.prompt)["input_ids"]
        else:
            if not self.tokenizer.chat_template:
                raise EvaluationError(
                    f"item {item.id!r} needs a chat template, and the checkpoint's tokenizer has none: save "
                    "one with the tokenizer, or write the prompt as text and set chat to false"
                )
            text = self.tokenizer.apply_chat_template(
                item.conversation, tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise EvaluationError(
                f"item {item.id!r}: the checkpoint's tokenizer makes no token of its prompt"
            )
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if context is not None and len(ids) + settings.max_new_tokens > context:
            raise EvaluationError(
                f"item {item.id!r}: {len(ids)} prompt tokens and max_new_tokens={settings.max_new_tokens} "
                f"exceed the model's {context} positions: lower max_new_tokens, or shorten the item"
            )
        return ids

    def complete(self, batch: Sequence[_Job], settings: CheckpointEvaluatorSettings) -> Iterator[str]:
        """Texts of a batch, in its order."""
        import torch
        from transformers import LogitsProcessorList

        width = max(len(job.tokens) for job in batch)
        padding = [width - len(job.tokens) for job in batch]
        ids = [[self.pad] * pad + job.tokens for job, pad in zip(batch, padding, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self.model.device
        noise = [_gumbel_sampler([job.seed for job in batch], settings.temperature, device)]
        try:
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=self.model.generation_config,
                    logits_processor=LogitsProcessorList(noise if settings.temperature > 0 else []),
                )
        except torch.OutOfMemoryError as error:
            raise EvaluationError(
                f"the device ran out of memory at batch_size={settings.batch_size}: lower it"
            ) from error
        return map(self._decode, out[:, width:].tolist())

    def _decode(self, tokens: list[int]) -> str:
        end = next((i for i, token in enumerate(tokens) if token in self.eos), len(tokens))
        text: str = self.tokenizer.decode(tokens[:end], skip_special_tokens=True)
        return text

    def release(self) -> None:
        """Give the device's memory back."""
        import torch

        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _load(staged: Path, shown: Path, settings: CheckpointEvaluatorSettings) -> _Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    device, dtype = _placement(settings)
    safely = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(staged, **safely)
        model, info = AutoModelForCausalLM.from_pretrained(
            staged, **safely, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
        model = model.to(device).eval()
    except Exception as error:
        raise EvaluationError(
            f"checkpoint {shown} cannot be loaded: {type(error).__name__}: {_one_line(error)}"
        ) from error
    if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
        raise EvaluationError(
            f"checkpoint {shown}: {len(wrong)} of the model's weights are missing or have another shape, the "
            f"first: {wrong[0]}; it was not saved whole"
        )
    ends = model.generation_config.eos_token_id
    eos = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(eos, default=0)
    # A config of our own: the checkpoint's may bring top_p, penalties or a length of its own.
    model.generation_config = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(eos) or None,
        pad_token_id=pad,
    )
    return _Loaded(model, tokenizer, frozenset(eos), pad)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def _placement(settings: CheckpointEvaluatorSettings) -> tuple[Any, Any]:
    """Device and dtype."""
    import torch

    device = torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    )
    if settings.dtype != "auto":
        return device, getattr(torch, settings.dtype)
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return device, torch.bfloat16 if half else torch.float32


def _gumbel_sampler(seeds: Sequence[int], temperature: float, device: Any) -> Any:
    """A logits processor after which greedy decoding is sampling at `temperature`, a stream for each row."""
    import torch
    from transformers import LogitsProcessor

    class GumbelSampler(LogitsProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            self._streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

        def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
            noise = torch.empty_like(scores, dtype=torch.float32)
            for row, stream in zip(noise, self._streams, strict=True):
                row.exponential_(generator=stream)
            # -log of an exponential variate is a Gumbel variate; the clamp keeps log away from 0.
            return scores.float() / temperature - noise.clamp_min_(torch.finfo(torch.float32).tiny).log_()

    return GumbelSampler()
