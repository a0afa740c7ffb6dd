"""Following a trainer that does not report: a process beside the guard reads what it writes.

That process (`python -m rlguard.follow`) reports as a trainer does, with the ingest token, so that whatever
bounds and checks a trainer's reports holds for it, too. What a trainer writes is hostile: what hangs, crashes
or swells on it is not the guard, which starts another one. It keeps no place in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from typing import Any

from rlguard.core.codes import Code
from rlguard.core.feed import FollowOrder
from rlguard.core.terminal import plain
from rlguard.core.wire import Condition

log = logging.getLogger("rlguard.guard")

#: The follower tells every five seconds how it is; after so long without a word it reads nothing.
SILENT_SECONDS = 60.0
#: So long the guard waits, before it serves, until it is known what lay there before the run.
BEGIN_SECONDS = 60.0
#: So long for the last reports, when the trainer has ended.
FINISH_SECONDS = 20.0
END_SECONDS = 1.0  # for a follower to end that has closed its output
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0
MAX_MESSAGE = 1 << 16
MAX_TOLD = 2_000  # characters of why a follower ended, which may quote names that a trainer chose


class FollowerHealth:
    """Health of the follower process, from its start on.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = clock()
        self._trouble = ""

    def hear(self, trouble: str) -> None:
        """The follower says why it reads nothing, or "": it reads."""
        self._heard, self._trouble = self._clock(), trouble

    def lose(self, why: str) -> None:
        """The follower ended, and why."""
        self._trouble = why

    def condition(self) -> Condition | None:
        """`not_followed`, if it holds: what is not read is not judged."""
        trouble, quiet = self._trouble, self._clock() - self._heard
        if not trouble and quiet > SILENT_SECONDS:
            trouble = f"the follower has said nothing for {quiet:.0f} s"
        if not trouble:
            return None
        return Condition.of(Code.NOT_FOLLOWED, f"what the trainer writes is not read: {trouble}")


class FollowerProcess:
    """The process that follows, started again whenever it ends.

    Args:
        order: what it is told.
        following: where its health is noted.
    """

    def __init__(self, order: FollowOrder, following: FollowerHealth) -> None:
        self._order, self._following = order, following
        self._process: Process | None = None
        self._began = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and wait until it knows what lay there before the run, or that it cannot."""
        self._task = asyncio.create_task(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                await self._began.wait()

    async def finish(self) -> None:
        """The trainer has ended: the rest is reported, for a bounded time."""
        self._ending = True
        if self._task is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await asyncio.wait([self._task], timeout=FINISH_SECONDS)

    async def close(self) -> None:
        """End it at once, if it has not ended."""
        self._ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._kill()

    async def _run(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while not self._ending:
            began = time.monotonic()
            why = await self._follow()
            self._began.set()
            if self._ending:
                return
            self._following.lose(why)
            log.error("what the trainer writes is not read: %s. It is tried again", why)
            delay = FIRST_RETRY_SECONDS if time.monotonic() - began > LAST_RETRY_SECONDS else 2 * delay
            await asyncio.sleep(min(delay, LAST_RETRY_SECONDS))

    async def _follow(self) -> str:
        """One follower, to its end; returns why it ended."""
        # Without the guard's settings, and without its stderr: a traceback may quote what was read.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RLGUARD_")}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "rlguard.follow"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=True,
                limit=MAX_MESSAGE,
                env=kept,
            )
        except OSError as error:
            return f"the follower cannot be started: {error.strerror or error}"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(self._order.model_dump_json().encode() + b"\n")
        why = ""
        try:
            while line := await self._process.stdout.readline():
                why = self._hear(json.loads(line)) or why
        except (ValueError, LookupError, TypeError, AttributeError):
            why = "the follower said what is no message"
        # One that has ended is waited for first: to kill it would take its exit code from who waits.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        self._kill()
        code = await self._process.wait()
        return why or f"the follower ended with exit code {code}"

    def _hear(self, message: dict[str, Any]) -> str:
        """Take a message; returns why the follower ends, if it says so."""
        if "began" in message:
            self._began.set()
        if "say" in message:
            log.info("follower: %s", message["say"])
        if "state" in message:
            self._following.hear(plain(message["state"]["trouble"], MAX_TOLD))
        return plain(str(message.get("lost", "")), MAX_TOLD)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
