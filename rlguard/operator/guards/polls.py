"""Asks every guard how its run is: one long poll each, on one asyncio loop in a thread of its own.

A response comes as soon as the verdict differs: a fire is seen within milliseconds, and the API server sees
no step. Before the first poll a guard is told what is known of its run (`adoption`), and its state is kept
after each evaluation (`keeper`). Guards are known by their key: TLS with the certificate of the job.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp

from rlguard.core.wire import Verdict
from rlguard.operator.api import names
from rlguard.operator.guards.adoption import Kept, what_is_known
from rlguard.operator.guards.keeper import Keeper
from rlguard.operator.guards.reading import Reading, understood
from rlguard.operator.runtime.backoff import Backoff
from rlguard.operator.runtime.client import Json
from rlguard.operator.runtime.errors import ClusterError
from rlguard.operator.runtime.reflector import Key

log = logging.getLogger(__name__)

#: How long a guard may hold a response back, and how long one is waited for beyond that, seconds.
WAIT_SECONDS, MARGIN_SECONDS = 30, 10
#: Between two tries to reach a guard: at first, and at most, seconds.
RETRY_SECONDS, MOST_RETRY_SECONDS = 0.5, 5.0
CONNECT_SECONDS = 5.0
#: Fewer guards than this are no majority that says anything.
FEWEST = 3
#: A guard that could be reached until so long before it ended has left out nothing, seconds.
FOLLOWED_SECONDS = WAIT_SECONDS + MARGIN_SECONDS
#: How many calls of the API server are under way for guards at once.
KEEPERS = 16
MAX_BODY = 1 << 20

# asyncio fills a buffer of 256 KiB for each TLS connection; a TLS record has 16.
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024


@dataclass(frozen=True, slots=True)
class PolledGuard:
    """Where one guard is, and of which job.

    Fields:
        job: (namespace, name) of its job.
        uid: of its job.
        pod: UID of its pod.
        pod_name: name of it.
        address, port: of the pod.
        host: the name in the certificate.
        latches: those in the job's status, as a guard knows them.
        words: what the guards of its other pods left when they ended, by the UID of the pod.
        heard: whether the job's status says that any guard of it was heard.
    """

    job: Key
    uid: str
    pod: str
    pod_name: str
    address: str
    port: int
    host: str
    latches: tuple[Json, ...] = ()
    words: Mapping[str, Verdict] = field(default_factory=dict)
    heard: bool = False

    @property
    def url(self) -> str:
        """Where it is asked."""
        at = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{at}:{self.port}"

    @property
    def target(self) -> str:
        """The same for people."""
        return f"pod {self.pod_name} at {self.url.removeprefix('https://')}"


class GuardPolls:
    """See the module. Every method is safe for any number of threads, and none of them waits.

    Args:
        keeper: of what is kept of each run.
        changed: told which job to look at, and whether that is urgent.
    """

    def __init__(self, keeper: Keeper, changed: Callable[[Key, bool], None]) -> None:
        self._keeper, self._changed = keeper, changed
        self._lock = threading.Lock()
        self._readings: dict[str, Reading] = {}
        self._first_seen: dict[str, tuple[str, float]] = {}
        self._ended: dict[str, dict[str, str]] = {}
        self._followed: dict[str, str] = {}
        self._marks: dict[str, str] = {}  # of what was kept; on the loop alone
        self._tasks: dict[str, tuple[PolledGuard, asyncio.Task[None]]] = {}
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._calls = asyncio.Semaphore(KEEPERS)

    # -- the thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ask, until `stop`."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # -- what the reconciles ask ---------------------------------------------------------------------------

    def reading(self, uid: str) -> Reading | None:
        """What is known of the guard of this job; None: it was not asked."""
        with self._lock:
            return self._readings.get(uid)

    def evidence(self, uid: str) -> Mapping[str, str]:
        """What the guard told for the evidence, as files by name; empty where it did not."""
        with self._lock:
            return self._ended.get(uid, {})

    def silent_for(self, uid: str, pod: str) -> float:
        """Seconds for which the guard that is to be in this pod could not be heard; 0: it can be."""
        now = time.monotonic()
        with self._lock:
            known = self._readings.get(uid)
            if known is not None and known.pod == pod and known.verdict is not None:
                return 0.0 if known.unreached_since is None else now - known.unreached_since
            if self._first_seen.get(uid, ("",))[0] != pod:
                self._first_seen[uid] = pod, now
            return now - self._first_seen[uid][1]

    def most_are_unreached(self) -> bool:
        """Whether more than half of the guards that are asked cannot be reached: no fault of theirs."""
        with self._lock:
            asked = [one for uid, one in self._readings.items() if uid in self._tasks]
        away = sum(one.unreached_since is not None for one in asked)
        return away >= FEWEST and 2 * away > len(asked)

    def follow(self, guard: PolledGuard) -> None:
        """Ask this guard from now on, and no other one of its job."""
        self._loop.call_soon_threadsafe(self._follow, guard)

    def leave(self, uid: str) -> None:
        """Ask the guard of this job no longer; what it has said stays known."""
        self._loop.call_soon_threadsafe(self._leave, uid)

    def forget(self, uid: str) -> None:
        """The job is gone, or over: nothing of it need be known."""
        self.leave(uid)
        with self._lock:
            for known in (self._readings, self._first_seen, self._ended, self._followed):
                known.pop(uid, None)

    # -- on the loop ---------------------------------------------------------------------------------------

    def _follow(self, guard: PolledGuard) -> None:
        known = self._tasks.get(guard.uid)
        if known is not None and _same_place(known[0], guard) and not known[1].done():
            return
        self._leave(guard.uid)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        with self._lock:
            if (before := self._readings.get(guard.uid)) is None or before.pod != guard.pod:
                self._readings[guard.uid] = Reading(guard.pod, guard.target)
        self._tasks[guard.uid] = guard, self._loop.create_task(self._ask(guard))

    def _leave(self, uid: str) -> None:
        self._marks.pop(uid, None)
        if (known := self._tasks.pop(uid, None)) is None:
            return
        guard, task = known
        task.cancel()
        with self._lock:
            if (reading := self._readings.get(uid)) is not None and _was_followed(reading, guard):
                self._followed[uid] = guard.pod

    async def _ask(self, guard: PolledGuard) -> None:
        """Ask until cancelled; whatever fails is tried again."""
        backoff = Backoff(RETRY_SECONDS, MOST_RETRY_SECONDS)
        while True:
            try:
                line = await self._adopt(guard)
                etag = ""
                while True:
                    etag = await self._poll(guard, line, etag)
                    backoff.reset()
            except (aiohttp.ClientError, ClusterError, OSError, ValueError, TimeoutError) as error:
                self._failed(guard, error)
            except Exception as error:
                log.exception("%s/%s: its guard", *guard.job)
                self._failed(guard, error)
            await asyncio.sleep(backoff.next())

    async def _adopt(self, guard: PolledGuard) -> Line:
        """Tell it what is known of its run. One that knows of a run already keeps what it has."""
        credentials, kept = await self._call(self._keeper.run, guard.uid)
        assert self._session is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=credentials[names.CERTIFICATE_KEY])
        line = Line(self._session, guard, context, credentials[names.SUPERVISOR_TOKEN_KEY])
        if kept is not None and kept.pod == self._followed.get(guard.uid):
            kept = replace(kept, closed=True)
        told = what_is_known(guard.pod, kept, guard.words, guard.latches, heard=guard.heard)
        answer = await line.json("PUT", "/v1/state", body=told)
        if answer.get("adopted") and told.get("lost"):
            with self._lock:
                self._readings[guard.uid] = Reading(guard.pod, guard.target, lost=str(told["lost"]))
            self._changed(guard.job, False)
        if kept is not None:
            self._marks.setdefault(guard.uid, kept.mark)
        return line

    async def _poll(self, guard: PolledGuard, line: Line, etag: str) -> str:
        """One poll: note what it says, and keep its state where that has changed; its ETag."""
        asked, before = time.monotonic(), self.reading(guard.uid)
        content, new = await line.verdict(etag, 0 if not etag else WAIT_SECONDS)
        verdict = understood(content)
        lost = "" if before is None or before.pod != guard.pod else before.lost
        reading = Reading(guard.pod, guard.target, verdict, datetime.now(UTC), lost=lost)
        with self._lock:
            self._readings[guard.uid] = reading
        back = before is not None and before.unreached_since is not None
        if new != etag or back:
            self._changed(guard.job, verdict.stop)
        ends = new == etag and time.monotonic() - asked < WAIT_SECONDS / 2  # it was told to end
        if ends or self._marks.get(guard.uid) != _mark(guard, verdict):
            await self._keep(guard, line, verdict, ends)
        if ends:
            await asyncio.sleep(RETRY_SECONDS)
        return new

    async def _keep(self, guard: PolledGuard, line: Line, verdict: Verdict, ends: bool) -> None:
        """Keep its state, and the evidence if it is over; what cannot be kept now is kept after a poll."""
        try:
            if ends or verdict.stop or verdict.ended:
                evidence = await line.json("GET", "/v1/evidence")
                with self._lock:
                    self._ended[guard.uid] = {str(name): str(text) for name, text in evidence.items()}
            state, mark = await line.json("GET", "/v1/state"), _mark(guard, verdict)
            await self._call(
                self._keeper.keep, guard.uid, Kept(state, verdict.evaluated, guard.pod, mark, ends)
            )
            self._marks[guard.uid] = mark
        except (ClusterError, ValueError) as error:
            log.warning("%s/%s: the state of its guard was not kept: %s", *guard.job, _words(error))

    def _failed(self, guard: PolledGuard, error: Exception) -> None:
        """Note that it cannot be reached, and since when."""
        with self._lock:
            before = self._readings.get(guard.uid) or Reading(guard.pod, guard.target)
            if before.pod != guard.pod:
                return
            since = before.unreached_since or time.monotonic()
            reading = replace(before, unreached_since=since, error=_words(error))
            self._readings[guard.uid] = reading
        if before.unreached_since is None:
            log.info("%s/%s: %s: %s", *guard.job, guard.target, reading.error)
            self._changed(guard.job, False)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call of the API server, which takes a thread."""
        async with self._calls:
            return await asyncio.to_thread(function, *arguments)


@dataclass(frozen=True, slots=True)
class Line:
    """The connection to one guard."""

    session: aiohttp.ClientSession
    guard: PolledGuard
    context: ssl.SSLContext
    token: str

    async def verdict(self, since: str, wait: int) -> tuple[Json, str]:
        """The verdict once it is another than that of `since`, or after `wait` seconds; and its ETag."""
        query = {"since": since, "wait": str(wait)} if since else {}
        async with self._request("GET", "/v1/verdict", wait, params=query) as response:
            return await _content(response), response.headers.get("ETag", "").strip('"')

    async def json(self, method: str, path: str, body: Json | None = None) -> Json:
        """The content of a response."""
        async with self._request(method, path, 0, json=body) as response:
            return await _content(response)

    def _request(self, method: str, path: str, wait: int, **more: Any) -> Any:
        return self.session.request(
            method,
            self.guard.url + path,
            headers={"Authorization": f"Bearer {self.token}"},
            ssl=self.context,
            server_hostname=self.guard.host,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=wait + MARGIN_SECONDS, sock_connect=CONNECT_SECONDS),
            **more,
        )


async def _content(response: aiohttp.ClientResponse) -> Json:
    """The JSON object of a response.

    Raises:
        ValueError: it is something else, or too large.
    """
    text = bytearray()
    async for part in response.content.iter_chunked(65_536):
        text += part
        if len(text) > MAX_BODY:
            raise ValueError(f"its response has more than {MAX_BODY} bytes")
    if response.status >= 300:
        raise ValueError(f"{response.method} {response.url.path}: {response.status} {bytes(text[:300])!r}")
    content = json.loads(bytes(text))
    if not isinstance(content, dict):
        raise ValueError(f"{response.url.path} is no JSON object")
    return content


def _mark(guard: PolledGuard, verdict: Verdict) -> str:
    """It changes with what the next guard of this run must know, too."""
    return f"{guard.pod} {verdict.evaluated} {verdict.kl_start} {verdict.stop} {verdict.ended}"


def _same_place(one: PolledGuard, other: PolledGuard) -> bool:
    return (one.pod, one.address, one.port) == (other.pod, other.address, other.port)


def _was_followed(reading: Reading, guard: PolledGuard) -> bool:
    """Whether this guard, which is asked no more, was heard until it ended, as far as that can be told."""
    since = reading.unreached_since
    heard = since is None or time.monotonic() - since < FOLLOWED_SECONDS
    return heard and reading.pod == guard.pod and reading.verdict is not None


def _words(error: Exception) -> str:
    """What is wrong, in one line."""
    return " ".join((str(error) or type(error).__name__).split())[:300]
