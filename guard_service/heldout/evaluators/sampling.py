"""How completions are sampled with transformers: what is done to the logits of every step.

Imported when the first checkpoint is scored: torch takes seconds.

Sampling is by the Gumbel-max trick with a random stream of its own for each completion: a draw from
softmax(logits) is argmax(logits + Gumbel noise), where the logits were divided by the temperature and cut by
top_k, top_p and min_p. So a completion depends on weights, seed, pass and item, and not on what shares its
batch; and two checkpoints meet the same noise, which takes noise out of their difference (common random
numbers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from guard_service.heldout.evaluators.completions import Tokenization
from rlguard.core.wire import EvaluationSampling

#: Below this, logits divided by the temperature leave the range of float32.
LEAST_TEMPERATURE = 0.01


def sampler(
    sampling: EvaluationSampling, padding: Sequence[int], seeds: Sequence[int], device: Any
) -> Iterator[Any]:
    """Logits processors after which greedy decoding is sampling as wanted, in the order of `generate`.

    Args:
        sampling: how the completions are wanted.
        padding: how many tokens of each row's prompt are padding, on the left.
        seeds: of the stream of each row.
        device: of the logits.
    """
    if sampling.repetition_penalty is not None:
        yield WithoutPadding(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty), padding, device)
    if sampling.temperature == 0:
        return
    yield TemperatureLogitsWarper(max(float(sampling.temperature), LEAST_TEMPERATURE))
    if sampling.top_k is not None:
        yield TopKLogitsWarper(sampling.top_k)
    if sampling.top_p is not None:
        yield TopPLogitsWarper(float(sampling.top_p))
    if sampling.min_p is not None:
        yield MinPLogitsWarper(float(sampling.min_p))
    yield GumbelNoise(seeds, device)


class LogitsWatch(LogitsProcessor):  # type: ignore[misc]
    """Changes nothing and remembers in `broken` whether a row had no finite maximum.

    Single logits may well be -inf. It stays on the device, so that no step waits for it.
    """

    def __init__(self, device: Any) -> None:
        self.broken = torch.zeros((), dtype=torch.bool, device=device)

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002, D102
        self.broken |= ~scores.amax(dim=-1).isfinite().all()
        return scores


class WithoutPadding(LogitsProcessor):  # type: ignore[misc]
    """A processor that sees each row's first token in the place of its padding.

    What pads a row is the batch's business: without this a completion would depend on what shares its batch.
    """

    def __init__(self, processor: Any, padding: Sequence[int], device: Any) -> None:
        self._processor, self._padding = processor, torch.tensor(padding, device=device)[:, None]

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: D102
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None, :]
        first = input_ids.gather(1, self._padding)
        return self._processor(torch.where(places < self._padding, first, input_ids), scores)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Makes greedy decoding a draw, from a stream of its own for each row."""

    def __init__(self, seeds: Sequence[int], device: Any) -> None:
        self._streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002, D102
        noise = torch.empty_like(scores, dtype=torch.float32)
        for row, stream in zip(noise, self._streams, strict=True):
            row.exponential_(generator=stream)
        # -log of an exponential variate is a Gumbel variate; the clamp keeps log away from 0.
        return scores.float() - noise.clamp_min_(torch.finfo(torch.float32).tiny).log_()


class StopAtTexts(StoppingCriteria):  # type: ignore[misc]
    """Ends a row whose completion, after `width` tokens of prompt, has a stop text."""

    def __init__(self, tokenization: Tokenization, width: int) -> None:
        self._tokenization, self._width = tokenization, width
        self._ended: set[int] = set()

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002, D102
        made = input_ids[:, self._width :].tolist()
        going = [row for row in range(len(made)) if row not in self._ended]
        self._ended |= {row for row in going if self._tokenization.stopped(made[row])}
        return torch.tensor([row in self._ended for row in range(len(made))], device=input_ids.device)
