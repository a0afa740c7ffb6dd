"""A process in which scorers run, for `guard_service.heldout.pool`, which starts it and ends it.

The first line of stdin names the scorers, and is responded to once they are loaded. Each further line asks
for a score. They are called one after the other in the main thread. What a scorer prints goes to the worker's
log.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any, BinaryIO

from guard_service.heldout.pool import ScoreRequest
from guard_service.heldout.processes import open_channel, supervise
from guard_service.heldout.scorers import NamedScorer


def _send(responses: BinaryIO, response: Mapping[str, Any]) -> None:
    responses.write(json.dumps(response).encode() + b"\n")
    responses.flush()


def main() -> None:
    """Run the process."""
    supervise()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as tools expect it that a scorer starts
    requests, responses = open_channel()
    setup = json.loads(requests.readline())
    scorers = {name: NamedScorer.of(name) for name in setup["scorers"]}
    _send(responses, {"ready": True})
    for line in requests:
        asked = json.loads(line)
        place, request = asked.pop("place"), ScoreRequest(**asked)
        _send(responses, {"place": place, "result": scorers[request.scorer].score(request)})


if __name__ == "__main__":
    main()
