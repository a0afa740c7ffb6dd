"""One job's `status.guard` on the API server: read it, apply it. It never retries; the reporter does.

Fenced by the job's UID: a read of another object of the same name is an error. An apply carries the UID too,
but API servers do not look at it on the status of a custom resource, so it also carries the resourceVersion
of the last read or write: any other object, and any change since, is refused with 409.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Mapping

import httpx

from guard_core.apply_body import apply_body
from guard_core.job_api import API_VERSION, GUARD_MANAGER, KIND, PLURAL
from guard_service.cluster.mapping import Json, trainer_has_ended
from guard_service.cluster.settings import ClusterSettings
from guard_service.errors import GuardError, SettingsError

APPLY = "application/apply-patch+yaml"

REQUEST_SECONDS = 5.0  # one request from its start to the last byte of its response
CONFLICT = 409
MAX_MESSAGE = 500  # characters of the API server's own message that are repeated


class JobStatusError(GuardError):
    """The API server could not be asked, or refused.

    Attributes:
        status: HTTP status of the response; None if there was none.
        retry_after: seconds after which it asks to be tried again; None if it did not say.
    """

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class JobStatus:
    """`status.guard` of one job. Use it on one event loop.

    Raises:
        SettingsError: it is not said where the API server is.
    """

    def __init__(self, settings: ClusterSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._url = settings.url or in_cluster_url(environ)
        self._path = f"/apis/{API_VERSION}/namespaces/{settings.namespace}/{PLURAL}/{settings.name}"
        self._version: str | None = None  # resourceVersion of the last read or accepted write
        #: Whether the operator had said so, as of then.
        self.trainer_ended = False
        self._connection: httpx.AsyncClient | None = None

    @property
    def job(self) -> str:
        """The job for people: namespace/name."""
        return f"{self._settings.namespace}/{self._settings.name}"

    async def read(self) -> Json:
        """`status.guard` of the job, {} if nothing was written yet.

        Raises:
            JobStatusError: it cannot be read, or an object of another UID has the name.
        """
        found = await self._request("GET", self._path)
        uid = (found.get("metadata") or {}).get("uid")
        if uid != self._settings.uid:
            raise JobStatusError(
                f"{KIND} {self.job} has the UID {uid}, this guard's job has {self._settings.uid}: the job "
                "was deleted and another one took its name; this guard's pod should be deleted"
            )
        self._version = found["metadata"]["resourceVersion"]
        self.trainer_ended = trainer_has_ended(found.get("status") or {})
        return dict((found.get("status") or {}).get("guard") or {})

    async def apply(self, guard: Json) -> None:
        """Make `guard` the whole of `status.guard`. `read` must have been called.

        Raises:
            JobStatusError: it was not accepted, or it is not known whether it was. With status `CONFLICT`,
                the object is not as it was read or written last: read it again.
        """
        job = self._settings
        fence = {"uid": job.uid, "resourceVersion": self._version}
        metadata = {"namespace": job.namespace, "name": job.name, **fence}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": {"guard": guard}}
        # `force`: whoever else wrote a field here, the guard owns it. The latch rule holds for all of them.
        query = {"fieldManager": GUARD_MANAGER, "force": "true"}
        written = await self._request("PATCH", f"{self._path}/status", query, apply_body(body))
        self._version = (written.get("metadata") or {}).get("resourceVersion")
        self.trainer_ended = trainer_has_ended(written.get("status") or {})

    def leave(self, word: str) -> None:
        """Leave `word` for the kubelet, which puts it into the pod's status when this container has ended."""
        with contextlib.suppress(OSError), self._settings.last_word_file.open("r+", encoding="ascii") as file:
            file.write(word)
            file.truncate()

    async def close(self) -> None:
        """Drop the connection; the next request opens another one, with the authority as it is then."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, content: str | None = None
    ) -> Json:
        try:
            token = self._settings.token_file.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if content is not None:
                headers["Content-Type"] = APPLY
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._open().request(
                    method, path, params=query, content=content, headers=headers
                )
        except (OSError, ValueError, TimeoutError, httpx.HTTPError) as error:
            await self.close()
            raise JobStatusError(f"{self._url} cannot be asked: {_words(error)}") from None
        return self._content(method, response)

    def _open(self) -> httpx.AsyncClient:
        if self._connection is None:
            tls = ssl.create_default_context(cafile=str(self._settings.ca_file))
            self._connection = httpx.AsyncClient(
                base_url=self._url, verify=tls, trust_env=False, timeout=REQUEST_SECONDS
            )
        return self._connection

    def _content(self, method: str, response: httpx.Response) -> Json:
        try:
            content = response.json()
        except ValueError:
            content = None
        if not response.is_success:
            message = content.get("message") if isinstance(content, dict) else None
            raise JobStatusError(
                f"the API server refused {method} of {KIND} {self.job} with {response.status_code}: "
                f"{str(message or response.text)[:MAX_MESSAGE]}",
                response.status_code,
                _seconds(response.headers.get("Retry-After")),
            )
        if not isinstance(content, dict):
            raise JobStatusError(
                f"{self._url} responded to {method} of {KIND} {self.job} with no JSON object"
            )
        return content


def in_cluster_url(environ: Mapping[str, str]) -> str:
    """The API server's URL from what the kubelet puts into every container.

    Raises:
        SettingsError: it is not there.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError(
            "RLGUARD_GUARD_CLUSTER__* is set, but KUBERNETES_SERVICE_HOST is not: outside of a cluster set "
            "RLGUARD_GUARD_CLUSTER__URL too"
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return f"no response within {REQUEST_SECONDS:g} s"
    if isinstance(error, UnicodeDecodeError):
        return "the token file is not ASCII"
    return str(error) or type(error).__name__


def _seconds(header: str | None) -> float | None:
    """`Retry-After` in seconds; its other form, a date, is not used by API servers."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
