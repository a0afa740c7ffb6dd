"""The guard's HTTP API as the trainer sees it: one kept-alive connection, no retry policy, no threads.

Standard library only, so that the callback adds no dependency to a training image. Not thread-safe.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from guard_core import __version__
from guard_core.wire import CheckpointReport, Code, StepReport
from trainer_image.errors import GuardConfigError, GuardUnavailableError, ReportRefusedError

#: Most steps in one `POST /v1/steps`; the guard refuses longer lists.
MAX_STEPS_PER_POST = 1000
#: Answers of the guard are a few KiB; more than this is not the guard.
_MAX_ANSWER_BYTES = 1 << 20
_REFUSALS = frozenset({400, 409, 413, 422})
#: What a server that closed an idle connection looks like to the next request on it.
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)

Answer = TypeVar("Answer", bound=BaseModel)


class _Lenient(BaseModel):
    # What is sent is closed; what is read is open. A guard that was upgraded under a running trainer may say
    # more than this trainer knows, and that must not look like a lost guard and stop a good run.
    model_config = ConfigDict(frozen=True, extra="ignore")


class ConditionView(_Lenient):
    """The part of `guard_core.wire.Condition` on which a trainer acts."""

    code: str


class VerdictView(_Lenient):
    """The part of `guard_core.wire.Verdict` on which a trainer acts; `fire` and `halt` must be there."""

    fire: bool
    halt: bool
    code: str = "unknown"
    reason: str = ""
    attempt: int | None = None
    step: int | None = None
    latch_step: int | None = None
    waiting: int = 0
    proxy_real_gap: float | None = None
    in_loop_ema: float | None = None
    heldout_ema: float | None = None
    kl_ema: float | None = None
    conditions: tuple[ConditionView, ...] = ()

    @property
    def wants_the_start(self) -> bool:
        """Whether the guard compares with the starting policy and has not seen any checkpoint yet."""
        return self.attempt is None and any(c.code == Code.NO_BASELINE.value for c in self.conditions)


class Acknowledgement(_Lenient):
    """The part of the answers to a POST that a trainer reads. What it acknowledges is on the guard's disk."""

    verdict: VerdictView
    accepted: int = 0
    duplicates: int = 0


class GuardClient:
    """Talks to one guard.

    Args:
        url: base URL of the guard, http or https.
        token: the ingest token, or None if the guard runs without one.
        timeout: seconds for connecting and for each read.

    Raises:
        GuardConfigError: `url` is not an http(s) URL with a host.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            self._address = (parts.hostname or "", parts.port)
        except ValueError as error:
            raise GuardConfigError(f"RLGUARD_URL {url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GuardConfigError(f"RLGUARD_URL {url!r} must look like http://127.0.0.1:8470")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        secure = parts.scheme == "https"
        self._connection_type = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._timeout = timeout
        self._headers = {"Accept": "application/json", "User-Agent": f"rlguard-trainer/{__version__}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None

    def verdict(self) -> VerdictView:
        """`GET /v1/verdict`."""
        return self._exchange("GET", "/v1/verdict", None, VerdictView)

    def post_steps(self, reports: Sequence[StepReport]) -> Acknowledgement:
        """`POST /v1/steps`, at most `MAX_STEPS_PER_POST` reports; all are on disk when this returns."""
        body = [report.model_dump(mode="json", exclude_none=True) for report in reports]
        return self._exchange("POST", "/v1/steps", body, Acknowledgement)

    def post_checkpoint(self, report: CheckpointReport) -> Acknowledgement:
        """`POST /v1/checkpoints`."""
        return self._exchange("POST", "/v1/checkpoints", report.model_dump(mode="json"), Acknowledgement)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: Any, answer: type[Answer]) -> Answer:
        status, payload = self._request(method, path, body)
        if status == 200:
            try:
                return answer.model_validate_json(payload)
            except ValidationError as error:
                raise GuardUnavailableError(
                    f"{method} {self.url}{path}: what answers is no guard that this trainer understands "
                    f"({error.error_count()} errors: "
                    f"{error.errors(include_url=False)[0]['msg']})"
                ) from error
        message = f"{method} {self.url}{path} answered {status}: {_problem_text(payload)}"
        if status in _REFUSALS:
            raise ReportRefusedError(message)
        if status in (401, 403):
            message += "; set RLGUARD_TOKEN to the guard's ingest token"
        raise GuardUnavailableError(message, unauthorised=status in (401, 403))

    def _request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Send once; a kept-alive connection that the server closed meanwhile is replaced once.

        Sending twice is safe: the guard acknowledges a repeated report without folding it again.
        """
        payload = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = self._headers if payload is None else {**self._headers, "Content-Type": "application/json"}
        reused = self._connection is not None
        if self._connection is None:
            host, port = self._address
            self._connection = self._connection_type(host, port, timeout=self._timeout)
        try:
            self._connection.request(method, self._prefix + path, payload, headers)
            response = self._connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if reused and isinstance(error, _STALE):
                return self._request(method, path, body)
            text = str(error) or type(error).__name__
            raise GuardUnavailableError(f"{method} {self.url}{path}: {text}") from error
        if len(answer) > _MAX_ANSWER_BYTES:
            self.close()
            raise GuardUnavailableError(
                f"{method} {self.url}{path}: answer of over {_MAX_ANSWER_BYTES} bytes"
            )
        return response.status, answer


def _problem_text(payload: bytes) -> str:
    """The `detail` of an RFC 9457 problem with its field errors, or the start of whatever came instead."""
    try:
        problem = json.loads(payload)
        text = str(problem.get("detail") or problem.get("title") or problem)
        fields = [f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or ()]
        return f"{text} ({'; '.join(fields)})" if fields else text
    except (ValueError, AttributeError, TypeError):
        return payload[:200].decode("utf-8", "replace") or "no body"
