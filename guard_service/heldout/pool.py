"""Processes that score: what hangs in one, or ends it, costs one completion and holds up no other.

Each takes one completion at a time. One that reaches the limit is killed with all that it started, and
replaced. They are started for one round and end with it, and with the evaluation process.
A container that a scorer starts has another parent, and needs a limit of its own.

They are made anew (`python -m guard_service.heldout.scoring_process`) and not forked: the evaluation process
has threads, and may have a GPU. Lines of JSON go to and fro, and leave no machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.processes import ENDING_SECONDS, end_process, wait_for_end

PROGRAM = "guard_service.heldout.scoring_process"
#: Of a line from a process, bytes: a score, or a few words.
MAX_LINE = 1 << 16


class Limits(NamedTuple):
    """How long a scorer may take for one completion, seconds (None: any time), and how many are under way.

    `late_is_wrong`: what takes longer scores 0; else there is no score.
    """

    seconds: float | None = None
    late_is_wrong: bool = False
    at_once: int = 1


class ScoreRequest(NamedTuple):
    """How right is this `completion`, a part of `whole`, to the item?

    `answers`: those that are accepted. `prompt`: a text, or chat messages.
    """

    scorer: str
    item: str
    completion: str
    whole: str
    answers: Sequence[str]
    meta: Mapping[str, Any]
    prompt: str | Sequence[Mapping[str, str]] = ""


class ScoreResult(NamedTuple):
    """What came of a request.

    `score`: in [0, 1]; None: there is none. `problem`, `remedy`: then what the scorer did, as words that the
    item follows, and what to do about it. `late`: it reached its limit.
    """

    score: float | None
    problem: str = ""
    remedy: str = ""
    late: bool = False

    def message(self, request: ScoreRequest) -> str:
        """Say why there is no score: names scorer and item, and quotes nothing."""
        return f"scorer {request.scorer!r} {self.problem} item {request.item!r}: {self.remedy}"


#: Takes the result of the request at this place. What it raises ends the round.
Take = Callable[[int, ScoreResult], None]


def score_in_processes(requests: Sequence[tuple[int, ScoreRequest]], limits: Limits, take: Take) -> None:
    """Have each request scored, `limits.at_once` at a time, each in a process. Blocks.

    Raises:
        EvaluationError: a process could not be started.
    """
    asyncio.run(_score_all(requests, limits, take))


async def _score_all(requests: Sequence[tuple[int, ScoreRequest]], limits: Limits, take: Take) -> None:
    waiting = iter(requests)
    scorers = sorted({request.scorer for _, request in requests})

    async def work() -> None:
        process: _ScoringProcess | None = None
        try:
            for place, request in waiting:
                process = process or await _ScoringProcess.start(scorers)
                result = await process.score(place, request, limits)
                if process.over:
                    await process.end()
                    process = None
                take(place, result)
        finally:
            if process is not None:
                await process.end()

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(limits.at_once, len(requests))):
                workers.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class _ScoringProcess:
    """One of the processes. `over`: it is of no further use."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.over = False

    @classmethod
    async def start(cls, scorers: Sequence[str]) -> Self:
        """Start one, and have it load its scorers, for which it may take its time.

        Raises:
            EvaluationError: it could not.
        """
        names = ", ".join(map(repr, scorers))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", PROGRAM, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MAX_LINE
            )
        except OSError as error:
            raise EvaluationError(f"no process could be started for scorer {names}: {error}") from error
        started = cls(process)
        try:
            started._send({"scorers": scorers})
            if not await started._receive():
                how = await started._how_it_ended()
                raise EvaluationError(
                    f"the process of scorer {names} ended ({how}) before it had loaded it: the worker's log "
                    "has its last words"
                )
        except BaseException:
            await started.end()
            raise
        return started

    async def score(self, place: int, request: ScoreRequest, limits: Limits) -> ScoreResult:
        """Have one completion scored within its limit."""
        self._send(request._asdict() | {"place": place})
        try:
            async with asyncio.timeout(limits.seconds):
                response = await self._receive()
        except TimeoutError:
            self.over = True
            return ScoreResult(
                None,
                f"took longer than scorer_timeout_seconds={limits.seconds:g} on",
                "raise scorer_timeout_seconds, or set on_scorer_timeout to wrong if what never ends is wrong",
                late=True,
            )
        if response is not None and response.get("place") == place:
            return ScoreResult(*response["result"])
        self.over = True
        how = await self._how_it_ended() if response is None else "another one answers in its place"
        return ScoreResult(
            None, f"ended its process ({how}) on", "it must return; what it runs needs a process of its own"
        )

    def _send(self, message: Mapping[str, Any]) -> None:
        """Send one line; that the process has ended is told by what it does not respond."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> dict[str, Any] | None:
        """Read the next line; None if the process has ended, {} if something else wrote it."""
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError, ValueError):  # what it runs may write there, too
            line = await self._process.stdout.readline()
            if not line:
                return None
            response = json.loads(line)
            if isinstance(response, dict) and ("ready" in response or _is_result(response)):
                return response
        return {}

    async def _how_it_ended(self) -> str:
        """With which status, or by which signal, as words."""
        await wait_for_end(self._process, ENDING_SECONDS)
        status = self._process.returncode
        if status is None:
            return "it closed its pipes"
        if status >= 0:
            return f"status {status}"
        hint = ", out of memory?" if -status == signal.SIGKILL else ""
        return f"{signal.Signals(-status).name}{hint}"

    async def end(self) -> None:
        """Kill it, and all that it started."""
        await end_process(self._process)


def _is_result(response: Mapping[str, Any]) -> bool:
    result = response.get("result")
    known = isinstance(result, list) and len(result) == len(ScoreResult._fields)
    return known and isinstance(response.get("place"), int)
