"""How an item is put to the policy, what the policy writes to it, and which part of that is the answer.

The settings say it for all items, and an item for itself. An empty text of an item's own means "none": null
is what a table writes where a column has no value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators.loading import SAFELY, loading
from guard_service.heldout.split import HeldoutItem
from rlguard.core.evaluation import Generation, LocalEvaluation
from rlguard.core.wire import EvaluationSampling, FailureKind

#: Tokens without a text of their own that may stand in a text of `stop`.
_BESIDE_A_STOP = 8


def messages(item: HeldoutItem, settings: Generation) -> list[dict[str, str]]:
    """The prompt as chat messages, with the system message of the settings where it has none of its own."""
    own = item.conversation
    if settings.system_prompt is None or item.system_prompt is not None or own[0]["role"] == "system":
        return own
    return [{"role": "system", "content": settings.system_prompt}, *own]


def template_kwargs(item: HeldoutItem, settings: Generation) -> dict[str, Any]:
    """Variables of the chat template for this item."""
    return {**(settings.chat_template_kwargs or {}), **(item.chat_template_kwargs or {})}


def answer_after(item: HeldoutItem, settings: Generation) -> str | None:
    """The mark after which this item's answer begins; None: all that is written is the answer."""
    own = settings.answer_after if item.answer_after is None else item.answer_after
    return own or None


def answer_in(text: str, mark: str | None) -> str | None:
    """What follows the last mark; None: there is no answer. What was written before is thought."""
    if mark is None:
        return text
    _, found, answer = text.rpartition(mark)
    return answer if found else None


@dataclass(frozen=True, slots=True)
class Stops:
    """Texts that end a completion; `kept`: what ends it is a part of it, as for the trainer's reward."""

    texts: tuple[str, ...] = ()
    kept: bool = False

    @classmethod
    def of(cls, settings: Generation, sampling: EvaluationSampling) -> Self:
        """Those of the settings are left out of what is scored; those that a trainer says are kept."""
        return cls(sampling.stop or (), kept=not settings.stop)

    def cut(self, text: str) -> str | None:
        """What was written up to the first of the texts; None: none of them comes."""
        found = [(place, one) for one in self.texts if (place := text.find(one)) >= 0]
        ends = [place + len(one) if self.kept else place for place, one in found]
        return text[: min(ends)] if ends else None


def refuse_without_template(items: Sequence[HeldoutItem], settings: Generation, *, chat: bool) -> None:
    """Refuse what only a chat template reads, for a prompt that goes to the policy as it is.

    Raises:
        SplitError: names the first such item.
    """
    for item in () if chat else items:
        if isinstance(item.prompt, str):
            talk = len(messages(item, settings)) > 1
            if talk or template_kwargs(item, settings):
                what = "system_prompt" if talk else "chat_template_kwargs"
                raise SplitError(
                    f"item {item.id!r} is a text that goes to the policy as it is, and {what} needs a chat: "
                    "set chat to true"
                )


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy wrote to a prompt.

    `text`: all of it.
    `answer`: the part that is scored, which may be empty; None: there is no answer.
    `truncated`: it ended at the length limit.
    """

    text: str
    answer: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of one evaluation.

    `rows`: those of each item in the given order; shape (n_items, samples).
    `sampling`: how they were sampled.
    `sha256`, `staged`: digest and directory of the scored weights.
    `seconds`: wall time of each part of the work, by its name.
    """

    rows: Sequence[Sequence[Completion]]
    sampling: EvaluationSampling
    sha256: str
    staged: Path
    seconds: Mapping[str, float]

    @property
    def texts(self) -> list[list[str]]:
        """All that was written, shape (n_items, samples)."""
        return [[completion.text for completion in row] for row in self.rows]

    @property
    def truncated(self) -> float:
        """Share that ended at the length limit, in [0, 1]."""
        ends = [completion.truncated for row in self.rows for completion in row]
        return ends.count(True) / len(ends)

    def unanswered(self, items: Sequence[HeldoutItem], settings: Generation) -> float | None:
        """Share without an answer among those whose answer begins after a mark; None if there are none."""
        rows = [row for item, row in zip(items, self.rows, strict=True) if answer_after(item, settings)]
        answers = [completion.answer for row in rows for completion in row]
        return answers.count(None) / len(answers) if answers else None


def sample_seed(seed: int, pass_index: int, item_id: str, sample: int) -> int:
    """Seed of one completion, in [0, 2**31): it depends on no other item, nor on how they are batched."""
    digest = hashlib.sha256(f"{seed}/{pass_index}/{item_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


# -- by a checkpoint's own tokenizer, the same for both engines --------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """One completion to make: of item number `item`, its `sample`-th, from these prompt tokens.

    `mark`: after which the answer begins; None: all of it is the answer.
    """

    item: int
    sample: int
    tokens: list[int]
    seed: int
    mark: str | None


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokenizer of a checkpoint, and what its configuration says of texts.

    `ends`: tokens that end a completion; `stops`: texts that do.
    `positions`: tokens of the longest sequence; None: not known. `limit`: what so many are, for a message.
    """

    tokenizer: Any
    ends: frozenset[int]
    positions: int | None
    stops: Stops
    limit: str = "the model's {} positions"

    @classmethod
    def load(cls, model: Path, tokens: Path, shown: str, stops: Stops) -> Self:
        """Read it from the directories of the model and of the tokenizer.

        Raises:
            EvaluationError: what cannot be read.
        """
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        with loading(shown, FailureKind.CHECKPOINT):
            config = AutoConfig.from_pretrained(model, **SAFELY)
            try:
                generation = GenerationConfig.from_pretrained(model, local_files_only=True)
            except OSError:  # there is none
                generation = GenerationConfig.from_model_config(config)
            positions = _positions(config)
            ends = _ends(generation.eos_token_id)
        with loading(shown, FailureKind.TOKENIZER):
            tokenizer = AutoTokenizer.from_pretrained(tokens, **SAFELY)
            ends |= _ends(tokenizer.eos_token_id)
        return cls(tokenizer, ends, positions, stops)

    @property
    def pad(self) -> int:
        """A token to fill up with."""
        own: int | None = self.tokenizer.pad_token_id
        return min(self.ends, default=0) if own is None else own

    def jobs(
        self,
        items: Sequence[HeldoutItem],
        settings: LocalEvaluation,
        sampling: EvaluationSampling,
        pass_index: int,
    ) -> list[CompletionJob]:
        """All completions to make, those with the longest prompts first.

        So there is least padding in a batch, and one that does not fit in memory fails at once.

        Raises:
            EvaluationError: names an item that cannot be asked.
        """
        jobs = []
        for number, item in enumerate(items):
            tokens, mark = self._encode(item, settings, sampling), answer_after(item, settings)
            for sample in range(sampling.samples):
                seed = sample_seed(settings.seed, pass_index, item.id, sample)
                jobs.append(CompletionJob(number, sample, tokens, seed, mark))
        return sorted(jobs, key=lambda job: -len(job.tokens))

    def _encode(
        self, item: HeldoutItem, settings: LocalEvaluation, sampling: EvaluationSampling
    ) -> list[int]:
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
        length = sampling.max_new_tokens
        if self.positions is not None and len(ids) + length > self.positions:
            raise EvaluationError(
                f"item {item.id!r}: {len(ids)} prompt tokens and max_new_tokens={length} exceed "
                f"{self.limit.format(self.positions)}: set a lower max_new_tokens, or shorten the item"
            )
        return ids

    def _templated(self, item: HeldoutItem, settings: LocalEvaluation) -> str:
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

    def before_end(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut what was generated before a token that ends it."""
        end = next((i for i, token in enumerate(tokens) if token in self.ends), len(tokens))
        return tokens[:end]

    def stopped(self, written: Sequence[int]) -> bool:
        """Whether a text of `stops` ends with the newest of these tokens, or did a few before."""
        longest = max(len(one.encode()) for one in self.stops.texts)
        newest = written[-longest - _BESIDE_A_STOP :]  # a token has a byte or more
        return all(self.stops.cut(self._text(tokens)) is not None for tokens in (newest, written))

    def decode(self, written: Sequence[int], mark: str | None, *, truncated: bool) -> Completion:
        """The completion of these tokens up to a text of `stops`, and the answer in it after `mark`."""
        whole = self._text(written)
        ended = self.stops.cut(whole)
        text = whole if ended is None else ended
        answer = answer_in(text, mark)
        if answer is None and mark is not None:
            answer = self._after_special(written, mark)
        return Completion(text, answer, truncated and ended is None)

    def _text(self, written: Sequence[int], *, special: bool = False) -> str:
        text: str = self.tokenizer.decode(written, skip_special_tokens=not special)
        return text

    def _after_special(self, written: Sequence[int], mark: str) -> str | None:
        """The answer after a mark that is made of special tokens, which a text for people leaves out."""
        text = self._text(written, special=True)
        ended = self.stops.cut(text)
        answer = answer_in(text if ended is None else ended, mark)
        if answer is None:
            return None
        for token in self.tokenizer.added_tokens_decoder.values():
            answer = answer.replace(token.content, "") if token.special else answer
        return answer


def _ends(said: Any) -> frozenset[int]:
    """The tokens that end a completion, by a configuration, which names one, several or none (null).

    Raises:
        ValueError: it names something else.
    """
    ends = [one for one in (said if isinstance(said, list) else [said]) if one is not None]
    if wrong := [one for one in ends if type(one) is not int]:
        raise ValueError(f"eos_token_id is {said!r:.200}, and {wrong[0]!r:.200} is no token's number")
    return frozenset(ends)


def _positions(config: Any) -> int | None:
    """Tokens of the longest sequence, by a configuration; None: it does not say.

    Raises:
        ValueError: it is no number.
    """
    said = getattr(config.get_text_config(), "max_position_embeddings", None)
    if said is not None and type(said) is not int:
        raise ValueError(f"max_position_embeddings is {said!r:.200}, which is no number of tokens")
    return said
