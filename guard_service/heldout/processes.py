"""The processes of an evaluation: none outlives the one that started it.

Each has a supervisor, which is small and waits for nothing but an end: that of what it supervises, that of
whoever started it, or a SIGTERM. It then kills all that was started there, also what has left its group and
its session, for Linux gives orphans to the nearest subreaper above them. A container that a scorer starts has
another parent, and needs a limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import BinaryIO

ENDING_SECONDS = 5.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Linux: this signal when the thread that started this process ends, also in a call with the GIL."""
    _prctl(_PR_SET_PDEATHSIG, by)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def supervise() -> None:
    """Fork: the child returns, and this process ends as the child does, with all that it has started."""
    if sys.platform != "linux":
        return
    awaited = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    die_with_parent(signal.SIGTERM)
    child = os.fork()
    if not child:
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        return
    for pipe in (0, 1):
        os.close(pipe)
    status = None
    while status is None and signal.sigwait(awaited) is not signal.SIGTERM:
        status = _reap(os.WNOHANG).get(child)
    while children := Path("/proc/thread-self/children").read_text().split():
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        status = _reap(0).get(child, status)  # whose own children are ours now
    _end_as(1 if status is None else os.waitstatus_to_exitcode(status))


def _reap(options: int) -> dict[int, int]:
    """Status of each child that has ended, by its process id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, options))[0]:
            ended[one[0]] = one[1]
            options = os.WNOHANG
    return ended


def _end_as(code: int) -> None:
    """End with this exit code, or by this signal if it is negative."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def open_channel() -> tuple[BinaryIO, BinaryIO]:
    """Stdin and stdout, to be read and written by the caller alone.

    What a scorer or a library prints must not get between the responses: it goes to stderr from now on.
    """
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, responses


async def end_process(process: Process) -> None:
    """End a supervised process, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    # Its ends may stay open in what it forked; `wait` comes back once ours are closed, too.
    for number in (0, 1):
        pipe = process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
        if pipe is not None:
            pipe.close()
    await wait_for_end(process, ENDING_SECONDS)
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # its supervisor was killed, or is no Linux's
        os.killpg(process.pid, signal.SIGKILL)


async def wait_for_end(process: Process, seconds: float) -> None:
    """Wait for its end, so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
