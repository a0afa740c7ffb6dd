"""A reflector: keeps a local copy of one collection, by a paged list and then a watch, while it runs.

- A watch resumes from the last resourceVersion, which bookmarks keep fresh; a 410 means a new list.
- Nothing waits for ever: the server ends each watch after a minute, and if it does not, no data for
  `READ_SECONDS` ends it here. A hung or cut connection is opened again.
- Failures are followed by a jittered backoff, also a 403, and a server's `Retry-After` is kept.
- A kind that the cluster does not have is an empty collection that is asked for again, slowly.
- Objects are kept as JSON and read into a copy: as Python objects they take six times the memory.
- Pages of a list are bounded by bytes: one of large objects takes no memory that the rest needs.

The copy can be late; `quiet_for` says how late at most. Whoever must not act on old news reads live (see
`reconcile/gather.py`).
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable

from rlguard.operator.runtime.backoff import Backoff
from rlguard.operator.runtime.client import Client, Json, Resource
from rlguard.operator.runtime.errors import ApiError, TransportError

log = logging.getLogger(__name__)

Key = tuple[str, str]
ChangeHandler = Callable[[Json | None, Json | None], None]

#: How large a page of a list is meant to be, bytes as they are sent; as Python objects it is six times that.
PAGE_BYTES = 2 << 20
#: How many objects the first page has, when nobody knows yet how large they are.
FIRST_PAGE = 20


#: And how many a page has at most.
MOST_OBJECTS = 500
#: After how long the server is to end a watch, and after how long without data it is taken for broken.
WATCH_SECONDS, READ_SECONDS = 60, 75.0
#: Between two tries: at first, and at most; and where the cluster has no such kind.
RETRY_SECONDS, MOST_RETRY_SECONDS, MISSING_SECONDS = 0.2, 30.0, 30.0


class _Expired(Exception):
    """The resourceVersion is too old: list again."""


class Reflector:
    """See the module. Call `run` in a thread of its own; `stop` ends it.

    Args:
        client: the transport.
        resource: the collection.
        namespace: of the collection; None: of all namespaces.
        handler: called with (old, new) for every change, from the reflector's thread; old is None for what
            is new, new is None for what is gone.
        slim: what to keep of each object.
        selector: label selector, "" for all.
        index: a second key of each object, for `indexed`.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None,
        handler: ChangeHandler,
        slim: Callable[[Json], Json],
        selector: str = "",
        index: Callable[[Json], str] | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._path = resource.path(namespace)
        self.namespace = namespace
        self._handler = handler
        self._slim = slim
        self._selector = {"labelSelector": selector} if selector else {}
        self._lock = threading.Lock()
        self._objects: dict[Key, bytes] = {}
        self._index = index
        self._indexed: dict[str, set[Key]] = {}
        self._stop = threading.Event()
        self._synced = threading.Event()
        self._version: str | None = None
        self._shown_at = time.monotonic()
        #: Whether the API server says that it has no such kind.
        self.missing = False

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        return self._synced.is_set()

    def quiet_for(self) -> float:
        """Seconds since the API server last showed something: a list, an event, a bookmark, a watch's end.

        It sends a bookmark or ends a watch within `WATCH_SECONDS`, so more means that the watch is broken.
        """
        return time.monotonic() - self._shown_at

    def get(self, namespace: str, name: str) -> Json | None:
        """The object as last seen."""
        with self._lock:
            content = self._objects.get((namespace, name))
        return None if content is None else _read(content)

    def items(self) -> list[Json]:
        """Every object as last seen."""
        with self._lock:
            content = list(self._objects.values())
        return [_read(one) for one in content]

    def indexed(self, value: str) -> list[Json]:
        """Every object with this index value, as last seen."""
        with self._lock:
            content = [self._objects[key] for key in self._indexed.get(value, ())]
        return [_read(one) for one in content]

    # -- running -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `run` at the next event or deadline."""
        self._stop.set()

    def run(self) -> None:
        """List and watch until stopped."""
        backoff = Backoff(RETRY_SECONDS, MOST_RETRY_SECONDS)
        while not self._stop.is_set():
            try:
                if self._version is None:
                    self._list()
                self._watch(backoff)
            except _Expired:
                self._version = None  # not an error of ours; a list mends it
                self._stop.wait(backoff.next())
            except ApiError as error:
                self._stop.wait(self._after(error, backoff))
            except TransportError as error:
                log.info("%s: %s", self._path, error)
                self._stop.wait(backoff.next())

    def _after(self, error: ApiError, backoff: Backoff) -> float:
        """Seconds to wait after a response that is an error."""
        self.missing = error.status == 404
        if self.missing:
            self._version, self._shown_at = None, time.monotonic()  # once it is there it is listed
            self._replace({})
            self._synced.set()
            return MISSING_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311
        if error.status == 410:
            self._version = None
        log.warning("%s: %s", self._path, error)
        return backoff.next(error.retry_after)

    def _list(self) -> None:
        """Every page; what is no longer there is reported as gone."""
        found: dict[Key, bytes] = {}
        query, limit = dict(self._selector), FIRST_PAGE
        while True:
            page, size = self._client.page(self._resource, self.namespace, {**query, "limit": str(limit)})
            items = page.get("items") or []
            for raw in items:
                # Items of a list do not carry their kind.
                found[_key(raw)] = _json(self._slim(raw))
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"], limit = token, min(MOST_OBJECTS, next_page(limit, len(items), size))
        self.missing = False
        self._replace(found)
        self._version = page["metadata"]["resourceVersion"]
        self._shown_at = time.monotonic()
        self._synced.set()

    def _replace(self, found: dict[Key, bytes]) -> None:
        with self._lock:
            before, self._objects, self._indexed = self._objects, {}, {}
            for key, new in found.items():
                self._put(key, new)
        for key in before.keys() - found.keys():
            self._handler(_read(before[key]), None)
        for key, new in found.items():
            old = before.get(key)
            if old != new:
                self._handler(None if old is None else _read(old), _read(new))

    def _watch(self, backoff: Backoff) -> None:
        seconds = WATCH_SECONDS * random.uniform(0.75, 1.0)  # noqa: S311
        query = {
            "watch": "true",
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(seconds))),
            **self._selector,
        }
        opened, quiet = time.monotonic(), True
        with self._client.stream(self._path, query, READ_SECONDS) as events:
            for event in events:
                if self._stop.is_set():
                    return
                self._fold(event)
                self._shown_at = time.monotonic()
                backoff.reset()  # only data shows that the connection works
                quiet = False
        if quiet and time.monotonic() - opened < 1.0:
            raise TransportError(f"watch {self._path}: ended at once")
        self._shown_at = time.monotonic()

    def _fold(self, event: Json) -> None:
        kind, raw = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            if raw.get("code") == 410:
                raise _Expired
            raise ApiError(int(raw.get("code") or 500), str(raw.get("reason")), str(raw.get("message")))
        if kind in {"ADDED", "MODIFIED", "DELETED"}:
            key, new = _key(raw), self._slim(raw)
            content = _json(new)
            with self._lock:
                old = self._drop(key)
                if kind != "DELETED":
                    self._put(key, content)
            self._handler(old or new, None) if kind == "DELETED" else self._handler(old, new)
        self._version = raw["metadata"]["resourceVersion"]

    def _put(self, key: Key, new: bytes) -> None:
        self._objects[key] = new
        if self._index is not None:
            self._indexed.setdefault(self._index(_read(new)), set()).add(key)

    def _drop(self, key: Key) -> Json | None:
        content = self._objects.pop(key, None)
        if content is None:
            return None
        old = _read(content)
        if self._index is not None:
            same = self._indexed[self._index(old)]
            same.discard(key)
            if not same:
                del self._indexed[self._index(old)]
        return old


def next_page(limit: int, found: int, size: int) -> int:
    """How many objects to ask for next, if so many of so many bytes came when `limit` were asked for. Pure.

    At most twice as many as before: the next ones may be larger.
    """
    fits = PAGE_BYTES * max(1, found) // max(1, size)
    return max(1, min(fits, 2 * limit))


def _json(raw: Json) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode()


def _read(content: bytes) -> Json:
    """A copy of the object."""
    found: Json = json.loads(content)
    return found


def _key(raw: Json) -> Key:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
