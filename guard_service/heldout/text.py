"""Prompts as text and tokens: the one notion of "the same prompt" for the split and its disjointness."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

#: A prompt is text, or chat messages `{"role": ..., "content": ...}` in order.
Prompt = str | Sequence[Mapping[str, str]]

# Numbers stay whole ("3.5"), scripts written without spaces (CJK, kana, Thai) give one token a character, and
# every other symbol is a token, because "3 - 4" and "3 + 4" are different problems.
_NO_SPACES = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"\d+(?:[.,:]\d+)*|[{_NO_SPACES}]|[^\W\d{_NO_SPACES}]+|[^\w\s]")
_SENTENCE_PUNCTUATION = frozenset('.,;:?"`\u201c\u201d\u00ab\u00bb\u3001\u3002')
_APOSTROPHES = str.maketrans("\u2018\u2019", "''")


def prompt_text(prompt: Prompt) -> str:
    """The text that identifies a prompt: of chat messages what the user said; system messages are shared."""
    if isinstance(prompt, str):
        return prompt
    said = [m["content"] for m in prompt if m["role"] == "user"]
    return "\n".join(said or [m["content"] for m in prompt])


def tokens(text: str) -> list[str]:
    """Case-folded, NFKC-normalised words, numbers and symbols, without sentence punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return [t for t in _TOKEN.findall(folded) if t not in _SENTENCE_PUNCTUATION]


def normalised(prompt: Prompt) -> str:
    """Two prompts are the same if this is: tokens joined by one space."""
    text = prompt_text(prompt)
    return " ".join(tokens(text) or text.split())
