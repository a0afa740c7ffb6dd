"""Which rollouts of a step people get to see: a few, and shortened. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlguard.client.samples import LARGEST, number_of
from rlguard.core.wire import MAX_ROLLOUT_TEXT, MAX_ROLLOUTS, Rollout

#: So many with the highest reward, and one of the others at random: the best alone do not show what is usual.
BEST = MAX_ROLLOUTS - 1
#: Characters of a shortened text for saying that it is.
ROOM_FOR_NOTE = 60


class Candidate(NamedTuple):
    """One completion of a step. A prompt or completion is a text, or the messages of a conversation."""

    prompt: Any
    completion: Any
    reward: Any


def selected(candidates: Sequence[Candidate], step: int) -> tuple[Rollout, ...]:
    """The best-rewarded that differ, and one of the others at random; the same ones for the same step.

    Of equal rewards those on different prompts come first: a group of one prompt shows less. One without a
    finite reward is left out. Texts are shortened to what a report may carry.
    """
    rewards = [number_of(candidate.reward) for candidate in candidates]
    known = {i: r for i, r in enumerate(rewards) if r is not None and abs(r) <= LARGEST}
    before: Counter[tuple[str, float]] = Counter()  # equals on the same prompt
    order: dict[int, tuple[float, int]] = {}
    for i, reward in known.items():
        equals = shown_text(candidates[i].prompt), reward
        order[i] = -reward, before[equals]
        before[equals] += 1
    ranked = sorted(order, key=order.__getitem__)
    chosen: dict[tuple[str, str], float] = {}
    seen = 0
    for i in ranked:
        if len(chosen) == BEST:
            break
        chosen.setdefault(_texts(candidates[i]), known[i])
        seen += 1
    if others := ranked[seen:]:
        i = random.Random(step).choice(others)  # noqa: S311 (no secret)
        chosen.setdefault(_texts(candidates[i]), known[i])
    return tuple(
        Rollout(prompt=shortened(prompt), completion=shortened(completion), reward=reward)
        for (prompt, completion), reward in chosen.items()
    )


def shortened(text: str, limit: int = MAX_ROLLOUT_TEXT) -> str:
    """The text; of a longer one its beginning and its end, with how much is left out between them."""
    if len(text) <= limit:
        return text
    half = (limit - ROOM_FOR_NOTE) // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _texts(candidate: Candidate) -> tuple[str, str]:
    return shown_text(candidate.prompt), shown_text(candidate.completion)


def shown_text(value: Any) -> str:
    """As a text that UTF-8 can hold: a conversation with its roles, a completion without."""
    match value:
        case str():
            text = value
        case [{"role": "assistant", "content": content}]:
            text = _content(content)
        case [*messages] if messages and all(isinstance(message, Mapping) for message in messages):
            text = "\n".join(f"{m.get('role')}: {_content(m.get('content'))}" for m in messages)
        case _:
            text = str(value)
    return text.encode("utf-8", "replace").decode()


def _content(content: Any) -> str:
    """The text of a message; of one in parts, the parts that are text."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return " ".join(part for part in parts if isinstance(part, str))
    return "" if content is None else str(content)
