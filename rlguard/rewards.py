"""Reward functions for the entrypoint, named as `rlguard.rewards:exact_match` in its configuration.

Each takes what TRL passes (`completions` and the data columns as keywords) and returns one reward per
completion. They compare with the column `answer`. Your own functions work the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["exact_match", "last_number"]

_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")

TrlCompletion = str | Sequence[dict[str, Any]]


def exact_match(completions: Sequence[TrlCompletion], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where the completion is the answer, but for space around it; else 0.0."""
    return [float(_text(c).strip() == str(a).strip()) for c, a in zip(completions, answer, strict=True)]


def last_number(completions: Sequence[TrlCompletion], answer: Sequence[str | float], **_: Any) -> list[float]:
    """1.0 where the last number of the completion equals the answer; else 0.0.

    Only the last one counts, so that a list of guesses earns nothing. An answer that is no number raises
    ValueError.
    """
    return [
        float(_last_number(_text(c)) == _to_float(str(a))) for c, a in zip(completions, answer, strict=True)
    ]


def _text(completion: TrlCompletion) -> str:
    """The text of a completion: itself, or the content of a conversation's last message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return _to_float(numbers[-1]) if numbers else None


def _to_float(number: str) -> float:
    return float(number.replace(",", ""))
