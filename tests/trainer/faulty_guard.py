"""A guard that fails on demand. It only injects faults; the healthy guard of the tests is the real one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlguard.core.codes import Code, Level
from rlguard.core.wire import (
    CheckpointReport,
    CheckpointResponse,
    EndReport,
    EndResponse,
    EvaluationSummary,
    PostedStep,
    StepsResponse,
    Verdict,
)

HEALTHY = Verdict(level=Level.HEALTHY, code=Code.OK, reason="nothing", fire=False, halt=False, stop=False)
#: One checkpoint waits for its score, and the starting policy has had its own.
BUSY = HEALTHY.model_copy(
    update={
        "waiting": 1,
        "last_evaluation": EvaluationSummary(attempt=0, step=0, score=0.5, items=4, path="/start"),
    }
)
FIRED = Verdict(
    level=Level.FIRED,
    code=Code.HACKING_GAP,
    reason="Hacking Gap +0.5",
    fire=True,
    halt=False,
    stop=True,
    step=3,
)
STOPPED = Verdict(
    level=Level.WARNING, code=Code.STALE, reason="no evaluation", fire=False, halt=True, stop=True
)


class FaultyGuard:
    """Listens on a free loopback port; `fault`, if set, answers instead of the guard.

    `steps` and `checkpoints` hold what was acknowledged, in order. `verdict_after(n)` is the verdict once n
    steps are acknowledged.
    """

    def __init__(self) -> None:
        self.steps: list[PostedStep] = []
        self.checkpoints: list[CheckpointReport] = []
        self.ends: list[EndReport] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.verdict_after: Callable[[int], Verdict] = lambda _: HEALTHY
        self.fault: Callable[[BaseHTTPRequestHandler, Any], bool] | None = None
        guard = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                guard.connections += 1
                super().setup()

            def do_GET(self) -> None:
                guard._answer(self, None)

            def do_POST(self) -> None:
                guard._answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def rollouts(self) -> list[PostedStep]:
        """The steps with rollouts."""
        return [step for step in self.steps if step.rollouts]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        self.requests.append((handler.command, handler.path))
        self.headers.append(dict(handler.headers))
        if self.fault is not None and self.fault(handler, body):
            return
        if handler.path == "/v1/steps":
            reports = [PostedStep.model_validate(report) for report in body]
            self.steps += reports
            answer = StepsResponse(
                accepted=len(reports), duplicates=0, verdict=self.verdict_after(len(self.steps))
            )
        elif handler.path == "/v1/checkpoints":
            self.checkpoints.append(CheckpointReport.model_validate(body))
            answer = CheckpointResponse(queued=True, verdict=self.verdict_after(len(self.steps)))
        elif handler.path == "/v1/end":
            self.ends.append(EndReport.model_validate(body))
            answer = EndResponse(verdict=self.verdict_after(len(self.steps)))
        else:
            answer = self.verdict_after(len(self.steps))
        reply(handler, 200, answer.model_dump_json())


def reply(handler: BaseHTTPRequestHandler, status: int, body: str) -> bool:
    """Answer; True, so that a fault can end with it."""
    payload = body.encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)
    return True


def problem(status: int, detail: str) -> Callable[[BaseHTTPRequestHandler, Any], bool]:
    """A fault that answers every request with an RFC 9457 problem."""
    text = json.dumps({"type": "about:blank", "title": "no", "status": status, "detail": detail})
    return lambda handler, _: reply(handler, status, text)


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.005)
