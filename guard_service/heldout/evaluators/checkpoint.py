"""Evaluator of local Hugging Face checkpoints: stage, load, generate in batches. The only user of torch here.

Sampling is by the Gumbel-max trick with a random stream of its own for each completion: a draw from
softmax(logits) is argmax(logits + Gumbel noise), where the logits were divided by the temperature and cut by
top_k, top_p and min_p. So a completion depends on weights, seed, pass and item, and not on what shares its
batch; and two checkpoints meet the same noise, which takes noise out of their difference (common random
numbers).
"""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guard_core.adapter import AdapterError
from guard_core.wire import EvaluationSampling, FailureKind
from guard_service.heldout.asking import (
    answer_after,
    answer_in,
    messages,
    refuse_without_template,
    template_kwargs,
)
from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.config import CheckpointEvaluatorSettings
from guard_service.heldout.errors import EvaluationError, SplitError, failing_as
from guard_service.heldout.evaluators import Completion, Completions, sample_seed
from guard_service.heldout.evaluators.lora import apply_adapter
from guard_service.heldout.fitness import without_tokenizer
from guard_service.heldout.identity import pinned, refuse_others
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import Staged, stage
from guard_service.heldout.worker import STAGE_PREFIX, EvaluationRequest

#: Below this, logits divided by the temperature leave the range of float32.
LEAST_TEMPERATURE = 0.01


@dataclass(frozen=True, slots=True)
class _Job:
    """One completion to make: of item number `item`, its `sample`-th, from these prompt tokens.

    `mark`: after which the answer begins; None: all of it is the answer.
    """

    item: int
    sample: int
    tokens: list[int]
    seed: int
    mark: str | None


@dataclass(frozen=True, slots=True)
class _Made:
    """One completion. `silent`: it ended at once, which is allowed."""

    completion: Completion
    silent: bool


class _BrokenGenerationError(Exception):
    """What the model made is no completion of the policy; the message goes after the checkpoint's name."""


class CheckpointEvaluator:
    """Loads one checkpoint at a time. Its weights are on the device only while it is scored."""

    def __init__(
        self, settings: CheckpointEvaluatorSettings, scratch: Path, base: BaseModel | None = None
    ) -> None:
        self._settings = settings
        self._scratch = scratch
        self._base = base

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """See `Evaluator.check`: torch and transformers are found, and not yet imported."""
        for package in ("torch", "transformers", "safetensors", *(("peft",) if self._base else ())):
            if find_spec(package) is None:
                raise SplitError(f"evaluator 'checkpoint' needs {package}: pip install 'rlguard[eval-hf]'")
        refuse_without_template(items, self._settings, chat=self._settings.chat)

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`: importing torch and transformers takes seconds."""
        import torch  # noqa: F401
        from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel  # noqa: F401

        if self._base is not None:
            import peft  # noqa: F401

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """See `Evaluator.complete`."""
        sampling = self._settings.sampling_with(request.sampling)
        base = self._base
        with failing_as(FailureKind.CHECKPOINT):
            target = self._scratch / f"{STAGE_PREFIX}{uuid.uuid4().hex}"
            announced = request.expected.manifest
            staged = stage(request.path, target, None if base is None else base.path, announced)
            refuse_others(request.path, pinned(staged.path), staged.sha256, request.expected)
        if staged.adapter is not None and base is not None and base.changed():
            raise EvaluationError(
                f"the base model in {base.path} is no longer the one that the guard started with: "
                f"restore it, or "
                "start a new run",
                FailureKind.EVALUATOR,
            )
        loaded = _load(staged, request.path, base, self._settings, sampling)
        try:
            made = self._generate(loaded, items, request.pass_index)
        except _BrokenGenerationError as error:
            raise EvaluationError(f"checkpoint {request.path}: {error}") from error
        finally:
            loaded.release()
        return Completions(made, sampling, staged.sha256, staged.path)

    def _generate(
        self, loaded: _Loaded, items: Sequence[HeldoutItem], pass_index: int
    ) -> list[list[Completion]]:
        """Completions, shape (n_items, samples)."""
        settings, samples = self._settings, loaded.sampling.samples
        encoded = [loaded.encode(item, settings) for item in items]
        marks = [answer_after(item, settings) for item in items]
        jobs = [
            _Job(i, k, encoded[i], sample_seed(settings.seed, pass_index, item.id, k), marks[i])
            for i, item in enumerate(items)
            for k in range(samples)
        ]
        # Longest first: least padding, and a batch that does not fit in memory fails at once.
        jobs.sort(key=lambda job: -len(job.tokens))
        completions: dict[tuple[int, int], Completion] = {}
        silent = True
        for start in range(0, len(jobs), settings.batch_size):
            batch = jobs[start : start + settings.batch_size]
            for job, made in zip(batch, loaded.complete(batch, settings), strict=True):
                completions[job.item, job.sample] = made.completion
                silent = silent and made.silent
        if not silent and not any(completion.text for completion in completions.values()):
            raise _BrokenGenerationError(
                "tokens were generated, and no completion has a text: the tokenizer is not of this model"
            )
        return [[completions[i, k] for k in range(samples)] for i in range(len(items))]


@dataclass(slots=True)
class _Loaded:
    model: Any
    tokenizer: Any
    eos: frozenset[int]
    pad: int
    sampling: EvaluationSampling

    def encode(self, item: HeldoutItem, settings: CheckpointEvaluatorSettings) -> list[int]:
        """Prompt tokens of an item, through the chat template where it is asked for."""
        if isinstance(item.prompt, str) and not settings.chat:
            ids: list[int] = self.tokenizer(item.prompt)["input_ids"]
        else:
            if not self.tokenizer.chat_template:
                raise EvaluationError(
                    f"item {item.id!r} needs a chat template, and the checkpoint's tokenizer has none: save "
                    "one with the tokenizer, or write the prompt as text and set chat to false",
                    FailureKind.TOKENIZER,
                )
            ids = self.tokenizer(self._templated(item, settings), add_special_tokens=False)["input_ids"]
        if not ids:
            raise EvaluationError(
                f"item {item.id!r}: the checkpoint's tokenizer makes no token of its prompt"
            )
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        length = self.sampling.max_new_tokens
        if context is not None and len(ids) + length > context:
            raise EvaluationError(
                f"item {item.id!r}: {len(ids)} prompt tokens and max_new_tokens={length} exceed the model's "
                f"{context} positions: set a lower max_new_tokens, or shorten the item"
            )
        return ids

    def _templated(self, item: HeldoutItem, settings: CheckpointEvaluatorSettings) -> str:
        """The item's prompt by the chat template, whose errors may quote it: their type is told."""
        kwargs = template_kwargs(item, settings)
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages(item, settings), tokenize=False, add_generation_prompt=True, **kwargs
            )
        except Exception as error:
            raise EvaluationError(
                f"item {item.id!r}: the chat template fails with {type(error).__name__}: see whether it "
                "takes such messages, and chat_template_kwargs if they are set"
            ) from error
        return text

    def complete(self, batch: Sequence[_Job], settings: CheckpointEvaluatorSettings) -> Iterator[_Made]:
        """Completions of a batch, in its order."""
        import torch
        from transformers import LogitsProcessorList

        width = max(len(job.tokens) for job in batch)
        padding = [width - len(job.tokens) for job in batch]
        ids = [[self.pad] * pad + job.tokens for job, pad in zip(batch, padding, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self.model.device
        watch = _logits_watch(device)
        seeds = [job.seed for job in batch]
        processors = [watch, *_sampler(self.sampling, padding, seeds, device)]
        try:
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=torch.tensor(ids, device=device),
                    attention_mask=torch.tensor(mask, device=device),
                    generation_config=self.model.generation_config,
                    logits_processor=LogitsProcessorList(processors),
                )
        except torch.OutOfMemoryError as error:
            raise EvaluationError(
                f"the device ran out of memory at batch_size={settings.batch_size}: lower it"
            ) from error
        if watch.broken.item():
            raise _BrokenGenerationError(
                "its logits are infinite or not a number: the weights are damaged, or overflow in "
                f"{self.model.dtype}"
            )
        return map(self._decode, out[:, width:].tolist(), [job.mark for job in batch])

    def _decode(self, tokens: list[int], mark: str | None) -> _Made:
        end = next((i for i, token in enumerate(tokens) if token in self.eos), len(tokens))
        text: str = self.tokenizer.decode(tokens[:end], skip_special_tokens=True)
        answer = answer_in(text, mark)
        if answer is None and mark is not None:
            answer = self._after_special(tokens[:end], mark)
        return _Made(Completion(text, answer, truncated=end == len(tokens)), silent=end == 0)

    def _after_special(self, tokens: list[int], mark: str) -> str | None:
        """The answer after a mark that is made of special tokens, which a text for people leaves out."""
        answer = answer_in(self.tokenizer.decode(tokens, skip_special_tokens=False), mark)
        if answer is None:
            return None
        for token in self.tokenizer.added_tokens_decoder.values():
            answer = answer.replace(token.content, "") if token.special else answer
        return answer

    def release(self) -> None:
        """Give the device's memory back."""
        import torch

        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


#: No code and no file but those of the directory.
_SAFELY = {"local_files_only": True, "trust_remote_code": False}


def _load(
    staged: Staged,
    shown: Path,
    base: BaseModel | None,
    settings: CheckpointEvaluatorSettings,
    sampling: EvaluationSampling,
) -> _Loaded:
    """The policy on its device: the checkpoint itself, or the guard's base model with the adapter on it."""
    from transformers import AutoTokenizer, GenerationConfig

    tokens = staged.path
    if staged.adapter is None:
        model = _load_whole(staged.path, f"checkpoint {shown}", settings)
    else:
        assert base is not None, "an adapter is not staged without a base model"
        model = _load_whole(base.path, f"the base model {base.path}", settings)
        with _loading(f"checkpoint {shown}", FailureKind.WEIGHTS):
            model = apply_adapter(model, staged.path, staged.adapter)
        if without_tokenizer(os.listdir(staged.path)):
            tokens = base.path
    with _loading(f"checkpoint {shown}", FailureKind.TOKENIZER):
        tokenizer = AutoTokenizer.from_pretrained(tokens, **_SAFELY)
    if wrong := sorted(_not_finite(model)):
        raise EvaluationError(
            f"checkpoint {shown}: {len(wrong)} of the model's weights hold values that are infinite or not a "
            f"number, the first: {wrong[0]}; the training has diverged, or the checkpoint is damaged",
            FailureKind.WEIGHTS,
        )
    ends = model.generation_config.eos_token_id
    eos = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(eos, default=0)
    # A config of our own: the checkpoint's may bring top_p, penalties or a length of its own.
    model.generation_config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(eos) or None,
        pad_token_id=pad,
    )
    return _Loaded(model, tokenizer, frozenset(eos), pad, sampling)


def _load_whole(path: Path, shown: str, settings: CheckpointEvaluatorSettings) -> Any:
    """The model in a directory, whole and on its device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    device, dtype = _placement(settings)
    with _loading(shown, FailureKind.CHECKPOINT):
        AutoConfig.from_pretrained(path, **_SAFELY)
    with _loading(shown, FailureKind.WEIGHTS):
        model, info = AutoModelForCausalLM.from_pretrained(
            path, **_SAFELY, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
        model = model.to(device).eval()
    if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
        raise EvaluationError(
            f"{shown}: {len(wrong)} of the model's weights are missing or have another shape, the "
            f"first: {wrong[0]}; it was not saved whole",
            FailureKind.WEIGHTS,
        )
    return model


@contextmanager
def _loading(shown: str, kind: FailureKind) -> Iterator[None]:
    """Whatever a library raises at a checkpoint's files, told as a failure of this kind."""
    import torch

    try:
        yield
    except AdapterError as error:
        raise EvaluationError(f"{shown}: {error}", kind) from error
    except Exception as error:
        memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        raise EvaluationError(
            f"{shown} cannot be loaded: {type(error).__name__}: {_one_line(error)}",
            FailureKind.OUT_OF_MEMORY if memory else kind,
        ) from error


def _not_finite(model: Any) -> Iterator[str]:
    """Names of the parameters with a value that is infinite or NaN, without a copy of any."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.numel():
            low, high = parameter.detach().aminmax()
            if not (low.isfinite() & high.isfinite()).item():
                yield name


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
