"""How an item is put to the policy, and which part of what the policy writes is the answer. Pure.

The settings say it for all items, and an item for itself. An empty text of an item's own means "none": null
is what a table writes where a column has no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
