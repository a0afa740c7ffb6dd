"""What an evaluation's processes have in common: none outlives the one that started it, to which it talks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import BinaryIO


def die_with_parent() -> None:
    """Linux: SIGKILL when the thread that started this process ends, even in a call that holds the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def channel() -> tuple[BinaryIO, BinaryIO]:
    """Stdin and stdout, to be read and written by the caller alone.

    What a scorer or a library prints must not get between the responses: it goes to stderr from now on.
    """
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, responses
