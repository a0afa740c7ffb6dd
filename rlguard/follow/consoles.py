"""What trainers print, in the forms of `frameworks.Console`, as records. No I/O.

No line can make an expression slow: `re` lets no other thread run, not the one that ends the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pydantic_core import from_json

from rlguard.follow.decoders import MAX_KEYS, MAX_NAME, Lines, Record, cut_name, flatten
from rlguard.follow.frameworks import FRAMEWORKS, Console

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _printed(form: str) -> list[Console]:
    return [one for framework in FRAMEWORKS for one in framework.console if one.form == form]


#: A number may stand before it, of a line that was cut off there.
_PAIRS = re.compile(r"(?<![^\s\d])step:(\d{1,15}) - ")
_TAGS = [tag for console in _printed("json") for tag in console.after]
_WORDS = "|".join(word for one in _printed("dict") for word in one.after)
_DICT = re.compile(rf"\b(?:{_WORDS}) (\d{{1,15}}): \{{")
_ITEM = re.compile(r"'([^'\n]{1,200})': '?([^',}\s]{1,40})'?[,}]")
_FIELDS = re.compile(r"\bStep (\d{1,15}) +\|")
_FIELD = re.compile(r"([A-Za-z][A-Za-z ()/-]{0,40}?) +(-?\d{1,12}(?:\.\d{1,12})?)(%?)")
_NAMES = {printed: logged for one in _printed("fields") for printed, logged in one.names.items()}
_TWO_LINES = "it has the metrics of two lines: the first was cut short while it was written?"


class ConsoleLines(Lines):
    """Lines of metrics, and JSON objects, among other lines. Ray's prefix and colours are taken off."""

    def _records(self, line: bytes) -> Iterable[Record]:
        text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
        if found := list(islice(_PAIRS.finditer(text), MAX_KEYS)):
            if len(found) > 1:  # the last one is whole
                self._leave_out(_TWO_LINES)
            return [_of_pairs(int(found[-1][1]), text[found[-1].end() :])]
        if step := _DICT.search(text):
            return [{"step": int(step[1])} | dict(_ITEM.findall(text[step.end() :])[:MAX_KEYS])]
        if step := _FIELDS.search(text):
            return [{"step": int(step[1])} | _of_fields(text[step.end() :])]
        tag = next((tag for tag in _TAGS if tag + "{" in text), "")
        return self._of_json(text, tag) if tag or text.startswith("{") else []

    def _of_json(self, text: str, tag: str) -> Iterable[Record]:
        """An object after a tag, which must be whole; any other line in braces need not be JSON."""
        tagged = _after_tag(text, tag) if tag else ""
        if tag and text.count(tag + "{") > 1:  # the last one is whole
            self._leave_out(_TWO_LINES)
        try:
            row = from_json(tagged or text)
        except ValueError:
            if tagged:
                raise ValueError(f"what follows `{tag.strip()}` is not JSON") from None
            return []
        return [flatten(row)] if isinstance(row, dict) else []


class CountedLines(Lines):
    """Dictionaries without a step, as Hugging Face's trainer prints them; the steps are counted.

    `{'loss': 0.01, 'reward': 0.5, 'kl': 0.002, 'epoch': 0.1}`, since transformers 5 with the numbers in
    quotation marks. A progress bar has no line end, so it stands in the same line. The summary at the end has
    no loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def _records(self, line: bytes) -> Iterator[Record]:
        for part in line.decode("utf-8", "replace").split("{'loss': ")[1:]:
            inside, end, _ = part.partition("}")
            if not end:
                raise ValueError("what its trainer logged has no end")
            self.steps += 1
            yield {"step": self.steps, **dict(_ITEM.findall(f"'loss': {inside}{end}")[:MAX_KEYS])}


def _of_fields(text: str) -> dict[str, Any]:
    """The numbers between bars, under the names by which they are logged; a percentage is a share."""
    found = (_FIELD.fullmatch(part.strip()) for part in text.split("|")[:MAX_KEYS])
    return {_NAMES[m[1]]: float(m[2]) / (100 if m[3] else 1) for m in found if m and m[1] in _NAMES}


def _of_pairs(step: int, metrics: str) -> Record:
    """Read `name:value - name:value`.

    Raises:
        ValueError: a metric is there twice, so they are two lines.
    """
    record: dict[str, Any] = {"step": step}
    for part in metrics.split(" - ")[:MAX_KEYS]:
        name, colon, value = part.rpartition(":")
        name = name.strip()
        if colon and name:
            if name in record and len(name) <= MAX_NAME:
                raise ValueError(_TWO_LINES)
            record[cut_name(name)] = _without_type(value.strip())
    return record


def _without_type(value: str) -> str:
    """`np.float64(0.5)` as `0.5`."""
    kind, opened, inner = value.partition("(")
    return inner[:-1] if opened and kind.startswith("np.") and inner.endswith(")") else value


def _after_tag(text: str, tag: str) -> str:
    """The JSON object after the last tag, or what is there of one that was cut short."""
    start, end = text.rfind(tag + "{"), text.rfind("}")
    return text[start + len(tag) : end + 1 if end > start else None]
