"""The guard's HTTP API as the trainer sees it: one kept-alive connection, no retry policy, no threads.

Standard library only, so that the callback adds no dependency to a training image. Not thread-safe.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from rlguard.client.errors import GuardConfigError, GuardUnavailableError, ReportRefusedError
from rlguard.core import __version__
from rlguard.core.codes import Code
from rlguard.core.wire import CheckpointReport, EndReport, EvaluationsNeeded, FailureKind, StepReport
from rlguard.core.wording import message as error_message

#: Responses of the guard are a few KiB; more than this is not the guard.
_MAX_RESPONSE_BYTES = 1 << 20
_REFUSALS = frozenset({400, 409, 413, 422})
#: What a server that closed an idle connection looks like to the next request on it.
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)

Response = TypeVar("Response", bound=BaseModel)


class _Lenient(BaseModel):
    # What is sent is closed; what is read is open. A guard that was upgraded under a running trainer may say
    # more than this trainer knows, and that must not look like a lost guard and stop a good run.
    model_config = ConfigDict(frozen=True, extra="ignore")


class ConditionView(_Lenient):
    """The part of `rlguard.core.wire.Condition` on which a trainer acts."""

    code: str


class NeededView(EvaluationsNeeded):
    """`rlguard.core.wire.EvaluationsNeeded`, of whatever release."""

    model_config = ConfigDict(extra="ignore")


class EvaluationView(_Lenient):
    """The part of `rlguard.core.wire.EvaluationSummary` that a trainer acts on or shows."""

    step: int
    score: float


class VerdictView(_Lenient):
    """What of `rlguard.core.wire.Verdict` a trainer acts on or shows; `fire` and `stop` must be there."""

    fire: bool
    stop: bool
    code: str = "unknown"
    reason: str = ""
    level: str | None = None
    attempt: int | None = None
    step: int | None = None
    latch_step: int | None = None
    waiting: int = 0
    baseline_passes: int = 0
    baseline_planned: int = 0
    next_pass: str | None = None
    evaluated: int = 0
    failed: int = 0
    skipped: int = 0
    failure: str | None = None
    adapters: str | None = None
    checkpoint_root: str | None = None
    needed: NeededView | None = None
    proxy_real_gap: float | None = None
    max_proxy_real_gap: float | None = None
    in_loop_ema: float | None = None
    heldout_ema: float | None = None
    kl_ema: float | None = None
    kl_hard_stop: float | None = None
    last_evaluation: EvaluationView | None = None
    best_path: str = ""
    conditions: tuple[ConditionView, ...] = ()

    @property
    def failure_words(self) -> str:
        """Why the newest evaluation failed, for a log; the kind of a newer guard by its name."""
        if self.failure is None:
            return "the guard's log says why"
        known = self.failure in list(FailureKind)
        return FailureKind(self.failure).words if known else self.failure

    @property
    def wants_the_start(self) -> bool:
        """Whether the guard compares with the starting policy and has not seen any checkpoint yet."""
        return self.attempt is None and any(c.code == Code.NO_BASELINE.value for c in self.conditions)


class Acknowledgement(_Lenient):
    """What a trainer reads of the response to a POST. What it acknowledges is on the guard's disk."""

    verdict: VerdictView
    accepted: int = 0
    duplicates: int = 0


class GuardClient:
    """Talks to one guard.

    Args:
        url: base URL of the guard, http or https.
        token: the ingest token, or None if the guard runs without one.
        timeout: seconds for connecting and for each read.
        ca: certificates, PEM, of which one must have signed the guard's; None: those that the system trusts.

    Raises:
        GuardConfigError: `url` is no http(s) URL with a host, or `ca` cannot be used with it.
    """

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 10.0, ca: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._new_connection, self._prefix = _connector(url, timeout, ca)
        self._headers = {"Accept": "application/json", "User-Agent": f"rlguard-trainer/{__version__}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None

    def verdict(self) -> VerdictView:
        """`GET /v1/verdict`."""
        return self._exchange("GET", "/v1/verdict", None, VerdictView)

    def post_steps(self, reports: Sequence[StepReport]) -> Acknowledgement:
        """`POST /v1/steps`, at most `MAX_STEPS_PER_POST` reports; all are on disk when this returns."""
        body = [report.model_dump(mode="json", exclude_defaults=True) for report in reports]
        return self._exchange("POST", "/v1/steps", body, Acknowledgement)

    def post_checkpoint(self, report: CheckpointReport) -> Acknowledgement:
        """`POST /v1/checkpoints`."""
        body = report.model_dump(mode="json", exclude_none=True)
        return self._exchange("POST", "/v1/checkpoints", body, Acknowledgement)

    def post_end(self, report: EndReport) -> Acknowledgement:
        """`POST /v1/end`."""
        body = report.model_dump(mode="json", exclude_defaults=True)
        return self._exchange("POST", "/v1/end", body, Acknowledgement)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: Any, expected: type[Response]) -> Response:
        status, payload = self._request(method, path, body)
        if status == 200:
            try:
                return expected.model_validate_json(payload)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"])) or "the body"
                raise GuardUnavailableError(
                    f"{method} {self.url}{path}: what responds is not a guard that this trainer understands "
                    f"({error.error_count()} errors: {where}: {error_message(first)})"
                ) from error
        message = f"{method} {self.url}{path} responded {status}: {_problem_text(payload)}"
        if status in _REFUSALS:
            raise ReportRefusedError(message)
        if status in (401, 403):
            message += "; set RLGUARD_TOKEN to the guard's ingest token"
        raise GuardUnavailableError(message, status=status)

    def _request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Send once; a kept-alive connection that the server closed meanwhile is replaced once.

        Sending twice is safe: the guard acknowledges a repeated report without folding it again.
        """
        payload = None if body is None else json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
        headers = self._headers if payload is None else {**self._headers, "Content-Type": "application/json"}
        reused = self._connection is not None
        if self._connection is None:
            self._connection = self._new_connection()
        try:
            self._connection.request(method, self._prefix + path, payload, headers)
            response = self._connection.getresponse()
            content = response.read(_MAX_RESPONSE_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if reused and isinstance(error, _STALE):
                return self._request(method, path, body)
            text = str(error) or type(error).__name__
            raise GuardUnavailableError(f"{method} {self.url}{path}: {text}") from error
        if len(content) > _MAX_RESPONSE_BYTES:
            self.close()
            raise GuardUnavailableError(f"{method} {self.url}{path}: over {_MAX_RESPONSE_BYTES} bytes")
        return response.status, content


def _connector(
    url: str, timeout: float, ca: str | None
) -> tuple[Callable[[], http.client.HTTPConnection], str]:
    """What connects to a guard, and what stands before the paths of its API.

    Raises:
        GuardConfigError: the URL or the certificates are wrong.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in ("http", "https") or not host:
        raise GuardConfigError(f"the guard's URL {url!r} (RLGUARD_URL) must look like http://127.0.0.1:8470")
    if ca is not None and scheme != "https":
        raise GuardConfigError(f"RLGUARD_CA is set, but RLGUARD_URL {url!r} does not begin with https://")
    prefix = parts.path.rstrip("/")
    if scheme == "http":
        return partial(http.client.HTTPConnection, host, port, timeout=timeout), prefix
    try:
        context = ssl.create_default_context(cadata=ca)
    except (OSError, TypeError) as error:  # TypeError: it is not ASCII
        raise GuardConfigError(f"RLGUARD_CA must be certificates, PEM: {error}") from error
    return partial(http.client.HTTPSConnection, host, port, timeout=timeout, context=context), prefix


def _problem_text(payload: bytes) -> str:
    """The `detail` of an RFC 9457 problem with its field errors, or the start of whatever came instead."""
    try:
        problem = json.loads(payload)
        text = str(problem.get("detail") or problem.get("title") or problem)
        fields = [f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or ()]
        return f"{text} ({'; '.join(fields)})" if fields else text
    except (ValueError, AttributeError, TypeError, RecursionError):
        return payload[:200].decode("utf-8", "replace") or "no body"
