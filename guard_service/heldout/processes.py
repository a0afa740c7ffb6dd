"""The processes of an evaluation: they answer lines of JSON, and none outlives the one that started it.

Each has a supervisor, which is small and waits for nothing but an end: that of what it supervises, that of
whoever started it, or a SIGTERM. It then kills all that was started there, also what has left its group and
its session, for Linux gives orphans to the nearest subreaper above them. A container that a scorer starts has
another parent, and needs a limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

ENDING_SECONDS = 5.0
NUMBER = "number"  # of a request, and of the response to it
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


def respond(responses: BinaryIO, request: Mapping[str, Any], response: Mapping[str, Any]) -> None:
    """Write the response to a request."""
    responses.write(json.dumps({**response, NUMBER: request[NUMBER]}).encode() + b"\n")
    responses.flush()


class LineProcess:
    """A supervised process, which answers one request after the other."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked = 0

    @classmethod
    async def start(
        cls, module: str, most: int, stderr: int | None = None, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Start `python -m module`, whose lines have at most so many bytes; raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            start_new_session=True,
            limit=most,
            env=environment,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Of its supervisor."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    async def ask(self, request: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any] | None:
        """Send a request and await its response; None: the process ended first.

        Whatever else is written into the pipe is passed over.

        Raises:
            TimeoutError: there is no response within so many seconds.
        """
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None and responses is not None
        self._asked += 1
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # a dead process is told by its missing response
                requests.write(json.dumps({**request, NUMBER: self._asked}).encode() + b"\n")
                await requests.drain()
            while not responses.at_eof():
                with contextlib.suppress(ValueError):  # no JSON, or a line that is too long
                    response = json.loads(await responses.readline())
                    if isinstance(response, dict) and response.get(NUMBER) == self._asked:
                        return response
        await self._wait()  # so that the reason is its own, and not our signal
        return None

    def how_it_ended(self) -> str:
        """With which status, or by which signal, as words."""
        status = self.exit_code
        if status is None:
            return "it closed its pipes"
        if status >= 0:
            return f"status {status}"
        hint = ", out of memory?" if -status == signal.SIGKILL else ""
        return f"{signal.Signals(-status).name}{hint}"

    async def end(self) -> None:
        """End it, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        # Its ends may stay open in what it forked; `wait` comes back once ours are closed, too.
        for number in (0, 1):
            pipe = self._process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
            if pipe is not None:
                pipe.close()
        await self._wait()
        # Where its supervisor was killed, or is no Linux's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await self._process.wait()
