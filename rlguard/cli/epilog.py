"""The end of a help text: examples that can be copied into a shell, and a note below them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

#: Longest line of an example. With the indent of a help text it fits a terminal of 60 columns.
_WIDTH = 56
#: A long command continues on the next line only before an option, or before the trainer's own command.
_BREAK = re.compile(r" (?=--?[a-z]|-- )")


def epilog(*examples: str, note: str = "", codes: Mapping[Any, str] | None = None) -> str:
    """The epilog of a command: its examples, a note, and what its exit codes mean, one on each line.

    A paragraph that starts with a backspace is printed as it stands, the others are filled to the terminal.
    """
    lines = [f"  {line}" for example in examples for line in _folded(example)]
    title = "Example:" if len(examples) == 1 else "Examples:"
    parts = [title, "", "\b", *lines]
    if note:
        parts += ["", note]
    if codes:
        width = 2 + max(len(str(code)) for code in codes)
        parts += ["", "Exit codes:", "", "\b"]
        parts += [line for code, meaning in codes.items() for line in _hanging(f"  {code:<{width}}", meaning)]
    return "\n".join(parts)


def _hanging(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _folded(command: str) -> list[str]:
    """A command on one line, or on several that a backslash joins."""
    start, *parts = _BREAK.split(command)
    lines = [start]
    for part in parts:
        longer = f"{lines[-1]} {part}"
        if len(f"{longer} \\") <= _WIDTH:
            lines[-1] = longer
        else:
            lines.append(f"    {part}")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
