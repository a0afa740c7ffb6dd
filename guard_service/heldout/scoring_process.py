"""A process in which scorers run, for `guard_service.heldout.pool`, which starts it and ends it.

The first line of stdin names the scorers, and is responded to once they are loaded. Each further line is a
question. Plain functions are called one after the other in the main thread; async ones run together,
each within its limit. What a scorer prints goes to the worker's log.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from typing import Any, BinaryIO

from guard_service.heldout.pool import Said, late
from guard_service.heldout.processes import open_channel, supervise
from guard_service.heldout.scorers import NamedScorer

MAX_LINE = 1 << 28  # bytes


def _send(responses: BinaryIO, response: Mapping[str, Any]) -> None:
    responses.write(json.dumps(response).encode() + b"\n")
    responses.flush()


def _told(question: Mapping[str, Any]) -> tuple[str, str, dict[str, Any], str]:
    """What a scorer is told of a question."""
    return question["completion"], question["answer"], question["meta"], question["whole"]


def _one_by_one(scorers: Mapping[str, NamedScorer], requests: BinaryIO, responses: BinaryIO) -> None:
    for line in requests:
        question = json.loads(line)
        said = scorers[question["scorer"]].ask(*_told(question))
        _send(responses, {"place": question["place"], "said": said})


async def _together(
    scorers: Mapping[str, NamedScorer], seconds: float | None, requests: BinaryIO, responses: BinaryIO
) -> None:
    async def one(question: Mapping[str, Any]) -> None:
        said = await _within(seconds, scorers[question["scorer"]], question)
        _send(responses, {"place": question["place"], "said": said})

    lines = asyncio.StreamReader(limit=MAX_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), requests)
    async with asyncio.TaskGroup() as under_way:
        while line := await lines.readline():
            under_way.create_task(one(json.loads(line)))


async def _within(seconds: float | None, scorer: NamedScorer, question: Mapping[str, Any]) -> Said:
    """What it says within its limit. What it says after it was cancelled does not count."""
    said = None
    try:
        async with asyncio.timeout(seconds) as limit:
            said = await scorer.ask_async(*_told(question))
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        if not limit.expired():
            return Said(
                None, "was cancelled on", "see what it shares with other calls, which may be cancelled"
            )
    return late(seconds or 0.0) if said is None or limit.expired() else said


def main() -> None:
    """Run the process."""
    supervise()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as tools expect it that a scorer starts
    requests, responses = open_channel()
    setup = json.loads(requests.readline())
    scorers = {name: NamedScorer.of(name) for name in setup["scorers"]}
    _send(responses, {"ready": True})
    if setup["together"]:
        asyncio.run(_together(scorers, setup["seconds"], requests, responses))
    else:
        _one_by_one(scorers, requests, responses)


if __name__ == "__main__":
    main()
