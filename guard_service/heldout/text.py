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


def whole_text(prompt: Prompt) -> str:
    """The text that identifies a prompt: every turn with its role; of what only users say, what they say."""
    if isinstance(prompt, str):
        return prompt
    alone = all(m["role"] == "user" for m in prompt)
    return "\n".join(m["content"] if alone else f"{m['role']}: {m['content']}" for m in prompt)


def prompt_text(prompt: Prompt) -> str:
    """The text that a prompt asks: of chat messages what the user said; system messages are mostly shared."""
    if isinstance(prompt, str):
        return prompt
    said = [m["content"] for m in prompt if m["role"] == "user"]
    return "\n".join(said or [m["content"] for m in prompt])


def tokens(text: str) -> list[str]:
    """Case-folded, NFKC-normalised words, numbers and symbols, without sentence punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    return [t for t in _TOKEN.findall(folded) if t not in _SENTENCE_PUNCTUATION]


def normalised(prompt: Prompt) -> str:
    """Two prompts are the same if this is, of the whole of each."""
    return _joined(whole_text(prompt))


def asked(prompt: Prompt) -> str:
    """Two prompts ask the same if this is, whatever stands around it."""
    return _joined(prompt_text(prompt))


def _joined(text: str) -> str:
    """Tokens joined by one space."""
    return " ".join(tokens(text) or text.split())
