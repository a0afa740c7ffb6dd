"""Processes that score: what hangs in one, or ends it, costs one completion and holds up no other.

Each takes one completion at a time. One that reaches the limit is killed with all that it started, and
replaced. They are started for one round and end with it, and with the evaluation process.
A container that a scorer starts has another parent, and needs a limit of its own.

They are made anew (`python -m guard_service.heldout.scoring_process`) and not forked: the evaluation process
has threads, and may have a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.processes import LineProcess

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
        process: LineProcess | None = None
        try:
            for place, request in waiting:
                process = process or await _start(scorers)
                response = None
                try:
                    response = await process.ask(request._asdict(), limits.seconds)
                    result = _ended(process) if response is None else ScoreResult(*response["result"])
                except TimeoutError:
                    result = _late(limits)
                if response is None:
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


async def _start(scorers: Sequence[str]) -> LineProcess:
    """Start a process, and have it load its scorers, for which it may take its time.

    Raises:
        EvaluationError: it could not.
    """
    names = ", ".join(map(repr, scorers))
    try:
        process = await LineProcess.start(PROGRAM, MAX_LINE)
    except OSError as error:
        raise EvaluationError(f"no process could be started for scorer {names}: {error}") from error
    response = None
    try:
        response = await process.ask({"scorers": scorers})
    finally:
        if response is None:
            await process.end()
    if response is None:
        raise EvaluationError(
            f"the process of scorer {names} ended ({process.how_it_ended()}) before it had loaded it: the "
            "worker's log has its last words"
        )
    return process


def _late(limits: Limits) -> ScoreResult:
    return ScoreResult(
        None,
        f"took longer than scorer_timeout_seconds={limits.seconds:g} on",
        "raise scorer_timeout_seconds, or set on_scorer_timeout to wrong if what never ends is wrong",
        late=True,
    )


def _ended(process: LineProcess) -> ScoreResult:
    problem = f"ended its process ({process.how_it_ended()}) on"
    return ScoreResult(None, problem, "it must return; what it runs needs a process of its own")
