"""What Hugging Face's trainer prints each time it logs: a Python dictionary of numbers, without a step. Pure.

`{'loss': 0.01, 'reward': 0.5, 'kl': 0.002, 'epoch': 0.1}`, since transformers 5 with the numbers in
quotation marks. A progress bar has no line end, so it stands in the same line. What is read is hostile:
nothing of it is evaluated as Python.
"""

from __future__ import annotations

import re

#: With what each begins: the trainer's own figures stand before TRL's. Its summary at the end has no loss.
BEGINS = b"{'loss': "
_ITEM = re.compile(rb"'([^'\n]{1,200})': '?([^',}\s]{1,40})'?[,}]")


def records(line: bytes) -> list[dict[str, str]]:
    """The dictionaries in one line, whatever stands around them; the values as they are written.

    Raises:
        ValueError: one of them has no end.
    """
    found = []
    for part in line.split(BEGINS)[1:]:
        inside, end, _ = (BEGINS + part).partition(b"}")
        if not end:
            raise ValueError("no end")
        items = _ITEM.findall(inside + end)
        found.append(
            {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in items}
        )
    return found
