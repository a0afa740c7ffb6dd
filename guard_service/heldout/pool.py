"""Processes that score: what hangs in one, or ends it, costs one completion and holds up no other.

A scorer that is a plain function gets a process for each completion that is under way. One that reaches the
limit is killed with all that it started in its process group, and replaced. Async scorers share one process,
in which each call is cancelled at the limit. The processes are started for one round of questions and
end with it; where the evaluation process is killed, they are, too.

What leaves the process group of a scorer, such as a container that it starts, is nobody's here, and needs
a limit of its own. They are made anew (`python -m guard_service.heldout.scoring_process`) and not forked:
the evaluation process has threads, and may have a GPU. Lines of JSON go to and fro, and leave no machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.processes import ENDING_SECONDS, end_process, wait_for_end

PROGRAM = "guard_service.heldout.scoring_process"
#: How much later than its limit an async scorer may be cancelled before its event loop is taken for blocked.
GRACE_SECONDS = 30.0
#: Of a line from a process, bytes: a score, or a few words.
MAX_LINE = 1 << 16


class Limits(NamedTuple):
    """How long a scorer may take for one completion, seconds (None: any time), and how many are under way.

    `late_is_wrong`: what takes longer scores 0; else there is no score.
    """

    seconds: float | None = None
    late_is_wrong: bool = False
    at_once: int = 1


class Question(NamedTuple):
    """What a scorer is asked: how right is this `completion`, a part of `whole`, to the item?"""

    scorer: str
    item: str
    completion: str
    whole: str
    answer: str
    meta: Mapping[str, Any]


class Said(NamedTuple):
    """What came of a question.

    `score`: in [0, 1]; None: there is none. `did`, `so`: then what the scorer did, as words that the item
    follows, and what to do about it. `late`: it reached its limit.
    """

    score: float | None
    did: str = ""
    so: str = ""
    late: bool = False

    def words(self, question: Question) -> str:
        """Why there is no score: names scorer and item, and quotes nothing."""
        return f"scorer {question.scorer!r} {self.did} item {question.item!r}: {self.so}"


#: Takes what came of the question at this place. What it raises ends the round.
Take = Callable[[int, Said], None]


def late(seconds: float) -> Said:
    """Of a scorer that reached its limit."""
    return Said(
        None,
        f"took longer than scorer_timeout_seconds={seconds:g} on",
        "raise scorer_timeout_seconds, or, if what never ends is wrong, set on_scorer_timeout to wrong",
        late=True,
    )


def ask_one_by_one(questions: Sequence[tuple[int, Question]], limits: Limits, take: Take) -> None:
    """Ask scorers that are plain functions, each in a process of its own. Blocks.

    Raises:
        EvaluationError: a process could not be started.
    """
    asyncio.run(_one_by_one(questions, limits, take))


def ask_together(questions: Sequence[tuple[int, Question]], limits: Limits, take: Take) -> None:
    """Ask async scorers, all in one process. Blocks.

    Raises:
        EvaluationError: the process could not be started, ended, or a scorer blocked its event loop.
    """
    asyncio.run(_together(questions, limits, take))


async def _one_by_one(questions: Sequence[tuple[int, Question]], limits: Limits, take: Take) -> None:
    waiting = iter(questions)
    setup = _setup(questions, limits, together=False)

    async def seat() -> None:
        process: _ScoringProcess | None = None
        try:
            for place, question in waiting:
                process = process or await _ScoringProcess.start(setup)
                said = await _answer(process, place, question, limits)
                if process.over:
                    await process.end()
                    process = None
                take(place, said)
        finally:
            if process is not None:
                await process.end()

    try:
        async with asyncio.TaskGroup() as seats:
            for _ in range(min(limits.at_once, len(questions))):
                seats.create_task(seat())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _answer(process: _ScoringProcess, place: int, question: Question, limits: Limits) -> Said:
    process.send(question._asdict() | {"place": place})
    try:
        async with asyncio.timeout(limits.seconds):
            response = await process.receive()
    except TimeoutError:
        process.over = True
        return late(limits.seconds or 0.0)
    if response is None or response.get("place") != place:
        process.over = True
        how = await process.how_it_ended() if response is None else "another one answers in its place"
        return Said(
            None, f"ended its process ({how}) on", "it must return; what it runs needs a process of its own"
        )
    return Said(*response["said"])


async def _together(questions: Sequence[tuple[int, Question]], limits: Limits, take: Take) -> None:
    waiting, under_way = iter(questions), dict[int, tuple[float | None, Question]]()
    now = asyncio.get_running_loop().time
    process = await _ScoringProcess.start(_setup(questions, limits, together=True))
    try:
        while True:
            for place, question in islice(waiting, limits.at_once - len(under_way)):
                process.send(question._asdict() | {"place": place})
                by = None if limits.seconds is None else now() + limits.seconds + GRACE_SECONDS
                under_way[place] = by, question
            if not under_way:
                return
            try:
                async with asyncio.timeout_at(next(iter(under_way.values()))[0]):  # the oldest
                    response = await process.receive()
            except TimeoutError:
                raise EvaluationError(
                    f"{_those(under_way)} could not be cancelled within {GRACE_SECONDS:g} s of "
                    f"scorer_timeout_seconds={limits.seconds:g}: it blocks its event loop; await what takes "
                    "long there, or make it a plain function, which gets a process for each completion"
                ) from None
            if response is None:
                how = await process.how_it_ended()
                raise EvaluationError(f"{_those(under_way)} ended its process ({how}): it must return")
            if under_way.pop(response.get("place", -1), None) is not None:
                take(response["place"], Said(*response["said"]))
    finally:
        await process.end()


def _setup(questions: Sequence[tuple[int, Question]], limits: Limits, *, together: bool) -> dict[str, Any]:
    names = sorted({question.scorer for _, question in questions})
    return {"scorers": names, "seconds": limits.seconds, "together": together}


def _is_answer(response: Mapping[str, Any]) -> bool:
    said = response.get("said")
    return (
        isinstance(response.get("place"), int) and isinstance(said, list) and len(said) == len(Said._fields)
    )


def _those(under_way: Mapping[int, tuple[float | None, Question]]) -> str:
    questions = [question for _, question in under_way.values()]
    scorers = ", ".join(sorted({repr(question.scorer) for question in questions}))
    more = f" and {len(questions) - 1} more" if len(questions) > 1 else ""
    return f"async scorer {scorers} on item {questions[0].item!r}{more}"


class _ScoringProcess:
    """One of the processes. `over`: it is of no further use."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.over = False

    @classmethod
    async def start(cls, setup: Mapping[str, Any]) -> Self:
        """Start one, and have it load its scorers, for which it may take its time.

        Raises:
            EvaluationError: it could not.
        """
        names = ", ".join(map(repr, setup["scorers"]))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                PROGRAM,
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
                limit=MAX_LINE,
            )
        except OSError as error:
            raise EvaluationError(f"no process could be started for scorer {names}: {error}") from error
        started = cls(process)
        try:
            started.send(setup)
            if await started.receive() is None:
                how = await started.how_it_ended()
                raise EvaluationError(
                    f"the process of scorer {names} ended ({how}) before it had loaded it: the worker's log "
                    "has its last words"
                )
        except BaseException:
            await started.end()
            raise
        return started

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; that the process has ended is told by what it does not respond."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next line; None if the process has ended."""
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError, ValueError):  # what it runs may write there, too
            response = json.loads(await self._process.stdout.readline())
            if isinstance(response, dict) and ("ready" in response or _is_answer(response)):
                return response
        return None

    async def how_it_ended(self) -> str:
        """With which status, or by which signal, as words."""
        await wait_for_end(self._process, ENDING_SECONDS)
        status = self._process.returncode
        if status is None:
            return "it closed its pipes, or wrote into them"
        if status >= 0:
            return f"status {status}"
        hint = ", out of memory?" if -status == signal.SIGKILL else ""
        return f"{signal.Signals(-status).name}{hint}"

    async def end(self) -> None:
        """Kill it, and what it started in its group."""
        await end_process(self._process)
