"""Standard output and standard error, where what is written only shows: that it cannot be ends nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TextIO


class StandardStream:
    """A standard stream that gives itself up once it takes no more: a full disk, a closed terminal, `| head`.

    Args:
        stream: None, as Python has it, if it was closed before this program started.
        lost: told once why nothing more is shown there.
    """

    def __init__(self, stream: TextIO | None, lost: Callable[[str], None] = lambda _: None) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> None:
        """Show it at once; what the stream's encoding does not have as `?`."""
        stream = self._stream
        if stream is None:
            return
        try:
            stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
            stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._stream = None
            lead_nowhere(stream)
            self._lost(getattr(error, "strerror", None) or str(error))

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()


def say(sentence: str) -> None:
    """A line for people, on standard error."""
    StandardStream(sys.stderr).write(f"{sentence}\n")


def lead_nowhere(stream: TextIO) -> None:
    """What its buffer holds would fail once more when Python ends, and make the exit code 120."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
