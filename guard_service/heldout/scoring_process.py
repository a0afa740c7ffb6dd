"""A process in which scorers run, for `guard_service.heldout.pool`, which starts it and ends it.

The first request names the scorers, and is responded to once they are loaded. Each further one asks for a
score. They are called one after the other in the main thread. What a scorer prints goes to the worker's log.
"""

from __future__ import annotations

import json
import signal

from guard_service.heldout.pool import ScoreRequest
from guard_service.heldout.processes import NUMBER, open_channel, respond, supervise
from guard_service.heldout.scorers import NamedScorer


def main() -> None:
    """Run the process."""
    supervise()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as tools expect it that a scorer starts
    requests, responses = open_channel()
    first = json.loads(requests.readline())
    scorers = {name: NamedScorer.of(name) for name in first["scorers"]}
    respond(responses, first, {})
    for line in requests:
        request = json.loads(line)
        score = ScoreRequest(**{name: value for name, value in request.items() if name != NUMBER})
        respond(responses, request, {"result": scorers[score.scorer].score(score)})


if __name__ == "__main__":
    main()
