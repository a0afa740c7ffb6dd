"""What an evaluation's processes have in common: none outlives the one that started it, to which it talks.

Each is the first of a session of its own, so that what it starts can be ended with it. What leaves its
process group, and a container that it starts, needs a limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from asyncio.subprocess import Process
from typing import BinaryIO

ENDING_SECONDS = 5.0


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


async def end_with_its_group(process: Process) -> None:
    """Kill it, and what it started in its group. What has left that is not waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Its ends may stay open in what it forked; `wait` comes back once ours are closed, too.
    for number in (0, 1):
        pipe = process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
        if pipe is not None:
            pipe.close()
    await ended_within(process, ENDING_SECONDS)


async def ended_within(process: Process, seconds: float) -> None:
    """Wait for its end, so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
