"""Requests to the API server, as plain JSON, each with a deadline. The `kubernetes` client is the transport.

It reads the configuration (in-cluster or kubeconfig), does TLS and refreshes tokens. Its typed API, retries,
`watch`, `informer` and `leaderelection` are not used: see `runtime/reflector.py` and `runtime/lease.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from urllib3.exceptions import HTTPError

from rlguard.core.apply_body import apply_body
from rlguard.operator.runtime.decoding import decoded
from rlguard.operator.runtime.errors import ApiError, TransportError

Json = dict[str, Any]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"

#: Longest that an ordinary request may take, seconds.
REQUEST_SECONDS = 10.0
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as the API server's paths know it. `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """The path of the collection, of one object, or of its subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, sub) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


def controller_of(raw: Json) -> str | None:
    """UID of the controller of an object; None if nothing controls it."""
    return controller_ref(raw).get("uid")


def controller_ref(raw: Json) -> Json:
    """What an object says of its controller; empty if nothing controls it."""
    owners = raw["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def of_uid(raw: Json | None, uid: str | None) -> Json | None:
    """The object, or None where there is none, or another one has its name by now."""
    return raw if raw is not None and raw["metadata"]["uid"] == uid else None


PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

# The `kubernetes` package has no types for these two.
_LOAD_FILE: Callable[..., None] = kubernetes_config.load_kube_config
_LOAD_POD: Callable[..., None] = kubernetes_config.load_incluster_config


def load_configuration(kubeconfig: str | None) -> kubernetes_client.Configuration:
    """The configuration: from `kubeconfig`, else the pod's own service account, else ~/.kube/config.

    Raises:
        kubernetes.config.ConfigException: none of them is usable.
    """
    configuration = kubernetes_client.Configuration()
    if kubeconfig is not None:
        _LOAD_FILE(kubeconfig, client_configuration=configuration)
        return configuration
    try:
        _LOAD_POD(client_configuration=configuration)
    except kubernetes_config.ConfigException:
        _LOAD_FILE(client_configuration=configuration)
    return configuration


class Client:
    """Sends requests. Safe to share between threads.

    Args:
        configuration: of the `kubernetes` client.
        observe: called with (method, status code or "<error>") after every request, for metrics.
    """

    def __init__(
        self,
        configuration: kubernetes_client.Configuration,
        observe: Callable[[str, str], None] = lambda _method, _code: None,
    ) -> None:
        configuration.connection_pool_maxsize = 256  # watches hold one each, and so does what hangs
        self._configuration = configuration
        self._pool: urllib3.PoolManager = kubernetes_client.ApiClient(configuration).rest_client.pool_manager
        self._observe = observe

    def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        timeout: float = REQUEST_SECONDS,
        was_there: bool = False,
    ) -> Json | None:
        """The object, or None if there is none (or no such resource).

        `was_there`: whether it is known to have been there. Then a kind that is no longer served says nothing
        of it, and is an error.
        """
        try:
            return self.request("GET", resource.path(namespace, name), timeout=timeout)
        except ApiError as error:
            if error.status == 404 and (error.reason == "NotFound" or not was_there):
                return None
            raise

    def list(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> Json:
        """One page of a list, straight from the server's quorum unless `query` says otherwise."""
        return self.request("GET", resource.path(namespace), query=query)

    def page(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> tuple[Json, int]:
        """The same, and how many bytes the response had."""
        path = resource.path(namespace)
        data = self._bytes("GET", path, query=query)
        return _object("GET", path, data), len(data)

    def create(
        self, resource: Resource, namespace: str, body: Json, manager: str, dry_run: bool = False
    ) -> Json:
        """Create the object; unknown fields are refused. With `dry_run`, only find out what would happen.

        Raises:
            ApiError: 409 if it exists.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        return self.request("POST", resource.path(namespace), query=query, body=body)

    def apply(
        self, resource: Resource, body: Json, manager: str, sub: str | None = None, dry_run: bool = False
    ) -> Json:
        """Server-side apply; fields of other managers are taken over only in a status."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        query |= {"force": "true"} if sub == "status" else {}
        query |= {"dryRun": "All"} if dry_run else {}
        path = resource.path(body["metadata"]["namespace"], body["metadata"]["name"], sub)
        return self.request("PATCH", path, query=query, body=body, content_type=APPLY)

    def merge(
        self, resource: Resource, namespace: str, name: str, patch: Json, manager: str, sub: str | None = None
    ) -> Json:
        """JSON merge patch. A `metadata.uid` in it fences it: another UID is a 409."""
        return self.request(
            "PATCH",
            resource.path(namespace, name, sub),
            query={"fieldManager": manager},
            body=patch,
            content_type=MERGE,
        )

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str,
        grace: int | None = None,
        foreground: bool = False,
    ) -> None:
        """Delete the object with this UID, if there is one.

        `grace`: seconds that a pod has to end; None: as many as it says itself. `foreground`: it goes once
        what it owns is gone; else that goes later.
        """
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", resource.path(namespace, name), body=options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = JSON,
        timeout: float = REQUEST_SECONDS,
    ) -> Json:
        """One request; the JSON of its response.

        Raises:
            ApiError: the server responded with an error.
            TransportError: it did not respond within `timeout` seconds, or not with JSON.
        """
        how = {"query": query, "body": body, "content_type": content_type, "timeout": timeout}
        return _object(method, path, self._bytes(method, path, **how))

    def log_tail(self, namespace: str, pod: str, container: str, limit_bytes: int, timeout: float) -> str:
        """The end of a container's log, at most `limit_bytes` bytes."""
        # limitBytes counts from the start, so lines are limited by the server and bytes here.
        query = {"container": container, "tailLines": "200"}
        data = self._bytes("GET", PODS.path(namespace, pod, "log"), query=query, timeout=timeout)
        return data[-limit_bytes:].decode("utf-8", "replace")

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], read_timeout: float) -> Iterator[Iterator[Json]]:
        """A watch: an iterator of its events, which ends when the server ends it.

        Raises:
            ApiError, TransportError: on opening, or while iterating (cut, or no data for `read_timeout` s).
        """
        response = self._open("GET", path, query, timeout=read_timeout)
        try:
            yield self._events(path, response)
        finally:
            response.close()  # an unread watch must not go back to the pool
            response.release_conn()

    def _events(self, path: str, response: urllib3.BaseHTTPResponse) -> Iterator[Json]:
        buffer = b""
        try:
            for chunk in response.stream(65536, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                yield from (decoded(line) for line in lines if line.strip())
        except (HTTPError, OSError, ValueError) as error:
            raise TransportError(f"watch {path}: {error}") from error

    def _bytes(self, method: str, path: str, **how: Any) -> bytes:
        """The body of a response; `how`: as in `_open`."""
        response = self._open(method, path, **how)
        try:
            return bytes(response.data)
        except (HTTPError, OSError) as error:
            raise TransportError(f"{method} {path}: {error}") from error
        finally:
            response.release_conn()

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = JSON,
        timeout: float = REQUEST_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "rlguard-operator"}
        settings: dict[str, Any] = dict(self._configuration.auth_settings())
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else apply_body(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(total=timeout, connect=min(CONNECT_SECONDS, timeout), read=timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            self._observe(method, str(response.status))
            if response.status >= 300:
                raise _api_error(response.status, response.headers.get("Retry-After"), response.data)
        except (HTTPError, OSError) as error:
            self._observe(method, "<error>")
            raise TransportError(f"{method} {path}: {error}") from error
        return response


def _object(method: str, path: str, data: bytes) -> Json:
    """The JSON object of a response."""
    try:
        content = decoded(data)
    except ValueError as error:
        raise TransportError(f"{method} {path}: the response is not JSON: {data[:200]!r}") from error
    if not isinstance(content, dict):
        raise TransportError(f"{method} {path}: the response is no JSON object: {data[:200]!r}")
    return content


def _api_error(status: int, retry_after: str | None, data: bytes) -> ApiError:
    """The error for a response; a Status object if it is one, else the start of its text."""
    try:
        body = decoded(data)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    message = str(body.get("message") or data[:500].decode("utf-8", "replace").strip())
    seconds = retry_after or str((body.get("details") or {}).get("retryAfterSeconds") or "")
    return ApiError(
        status, str(body.get("reason") or ""), message, float(seconds) if seconds.isdigit() else None
    )
