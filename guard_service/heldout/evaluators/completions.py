"""How an item is put to the policy, what the policy writes to it, and which part of that is the answer. Pure.

The settings say it for all items, and an item for itself. An empty text of an item's own means "none": null
is what a table writes where a column has no value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from guard_core.evaluation import Generation
from guard_core.wire import EvaluationSampling
from guard_service.heldout.errors import SplitError
from guard_service.heldout.split import HeldoutItem


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
