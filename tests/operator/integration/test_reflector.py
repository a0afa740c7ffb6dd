"""The reflector against a real API server with faults in between.

- Pages of a list, changes, deletions; what went while it was away is reported as gone.
- Connection cut, watch hung, 403, 410 on watch, as an event and in mid-list, 429 with Retry-After, 500: it
  recovers, misses nothing, and asks at a decent rate.
- It tells how long it has been shown nothing, and a quiet collection from a broken watch.
- A kind that the cluster lacks is empty and synced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from guard_operator.runtime.client import CONFIG_MAPS, Client, Resource, load_configuration
from guard_operator.runtime.reflector import Reflector, Timing

from .controlplane import ControlPlane
from .faults import Answer, Cut, Fault, FaultProxy, Hang, fault_proxy
from .waiting import eventually

pytestmark = pytest.mark.nightly

TIMING = Timing(watch_seconds=30, read_seconds=1.5, backoff_base=0.05, backoff_cap=0.4, missing_kind=0.2)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    with fault_proxy(plane) as proxy:
        yield proxy


@dataclass
class Watching:
    """A running reflector over the ConfigMaps of a namespace, and what its handler was told."""

    reflector: Reflector
    seen: list[tuple[str | None, str | None]] = field(default_factory=list)

    def names(self) -> set[str]:
        return {raw["metadata"]["name"] for raw in self.reflector.items()}

    def eventually(self, *names: str) -> None:
        eventually(lambda: self.names() == set(names) or None, f"the cache holds {names}, has {self.names()}")


def proxied(plane: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> Client:
    return Client(load_configuration(str(plane.kubeconfig(tmp_path / "kubeconfig", proxy.url))))


@pytest.fixture
def watching(plane: ControlPlane, proxy: FaultProxy, namespace: str, tmp_path: Path) -> Iterator[Watching]:
    """A reflector through the proxy, in a thread."""
    found: list[Watching] = []

    def handler(old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        found[0].seen.append(tuple(raw and raw["metadata"]["name"] for raw in (old, new)))  # type: ignore[arg-type]

    reflector = Reflector(
        proxied(plane, proxy, tmp_path), CONFIG_MAPS, namespace, handler, timing=TIMING, page=2
    )
    found.append(Watching(reflector))
    thread = threading.Thread(target=reflector.run, daemon=True)
    thread.start()
    yield found[0]
    reflector.stop()
    proxy.cut_streams()
    thread.join(30)
    assert not thread.is_alive()


def put(client: Client, namespace: str, *names: str) -> None:
    for name in names:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        client.create(CONFIG_MAPS, namespace, body, "test")


def drop(client: Client, namespace: str, name: str) -> None:
    raw = client.get(CONFIG_MAPS, namespace, name)
    assert raw is not None
    assert client.delete(CONFIG_MAPS, namespace, name, raw["metadata"]["uid"])


def is_watch(path: str) -> bool:
    return "watch=true" in path


@pytest.mark.always
def test_it_lists_in_pages_and_follows(
    client: Client, namespace: str, proxy: FaultProxy, watching: Watching
) -> None:
    watching.eventually()
    put(client, namespace, "a", "b", "c")
    watching.eventually("a", "b", "c")
    drop(client, namespace, "b")
    watching.eventually("a", "c")
    assert watching.seen == [(None, "a"), (None, "b"), (None, "c"), ("b", None)]
    assert watching.reflector.get(namespace, "a") is not None
    assert watching.reflector.synced


def test_a_long_list_comes_in_pages(
    plane: ControlPlane, client: Client, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    put(client, namespace, *"abcde")
    reflector = Reflector(
        proxied(plane, proxy, tmp_path),
        CONFIG_MAPS,
        namespace,
        lambda _old, _new: None,
        timing=TIMING,
        page=2,
    )
    threading.Thread(target=reflector.run, daemon=True).start()
    eventually(lambda: len(reflector.items()) == 5, "all pages")
    reflector.stop()
    assert proxy.count("continue=") == 2


def test_a_cut_watch_goes_on_where_it_was(
    client: Client, namespace: str, proxy: FaultProxy, watching: Watching
) -> None:
    put(client, namespace, "a")
    watching.eventually("a")
    for name in "bcd":
        eventually(proxy.cut_streams, "there is a watch to cut")
        put(client, namespace, name)
    watching.eventually("a", "b", "c", "d")
    assert [new for _, new in watching.seen] == ["a", "b", "c", "d"]
    assert watching.reflector.relists == 1


def test_a_hung_watch_is_left(client: Client, namespace: str, proxy: FaultProxy, watching: Watching) -> None:
    put(client, namespace, "a")
    watching.eventually("a")
    proxy.freeze_streams()
    put(client, namespace, "b")
    before = proxy.count("watch=true")
    eventually(lambda: proxy.count("watch=true") > before, "a new watch", within=5)
    proxy.heal()
    watching.eventually("a", "b")


def test_a_hung_list_is_left(client: Client, namespace: str, proxy: FaultProxy, watching: Watching) -> None:
    """Ordinary requests have a deadline too; here the connection is refused an answer and cut instead."""
    watching.eventually()
    proxy.break_watch(lambda _method, path: Cut() if not is_watch(path) else Answer(410, "Expired"))
    put(client, namespace, "a")
    eventually(lambda: proxy.count("limit=") >= 4, "it goes on asking")
    proxy.heal()
    watching.eventually("a")


def test_a_watch_that_shows_nothing_is_told_from_one_that_has_nothing_to_show(
    plane: ControlPlane, client: Client, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Without any change, bookmarks and the ends of watches show that it works."""
    timing = replace(TIMING, watch_seconds=4, read_seconds=60.0)
    behind = proxied(plane, proxy, tmp_path)
    reflector = Reflector(behind, CONFIG_MAPS, namespace, lambda _old, _new: None, timing=timing)
    threading.Thread(target=reflector.run, daemon=True).start()
    eventually(lambda: reflector.synced, "it is synced")
    for _ in range(2):
        eventually(lambda: reflector.quiet_for() > 1.0, "a while without a sign of life")
        eventually(lambda: reflector.quiet_for() < 0.5, "a sign of life")
    assert reflector.relists == 1

    proxy.break_watch(lambda _method, _path: Answer(500))
    eventually(lambda: reflector.quiet_for() > 3 * timing.watch_seconds, "no sign of life", within=60)
    proxy.heal()
    eventually(lambda: reflector.quiet_for() < 0.5, "a sign of life", within=60)
    reflector.stop()
    proxy.cut_streams()


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_an_error_on_the_watch_is_waited_out(
    client: Client, namespace: str, proxy: FaultProxy, watching: Watching, status: int
) -> None:
    put(client, namespace, "a")
    watching.eventually("a")
    proxy.break_watch(lambda _method, path: Answer(status) if is_watch(path) else None)
    put(client, namespace, "b")
    before, started = proxy.count("watch=true"), time.monotonic()
    eventually(lambda: proxy.count("watch=true") >= before + 3, "no standstill")
    time.sleep(max(0.0, 1.0 - (time.monotonic() - started)))
    asked = proxy.count("watch=true") - before
    assert asked <= 12 * (time.monotonic() - started), "no hot loop"
    proxy.heal()
    watching.eventually("a", "b")
    assert watching.reflector.relists == 1


def test_retry_after_is_kept(client: Client, namespace: str, proxy: FaultProxy, watching: Watching) -> None:
    watching.eventually()
    times: list[float] = []

    def rule(_method: str, path: str) -> Fault | None:
        if is_watch(path):
            times.append(time.monotonic())
            if len(times) == 1:
                return Answer(429, "TooManyRequests", {"Retry-After": "1"})
        return None

    proxy.break_watch(rule)
    eventually(lambda: len(times) >= 2, "it asks again")
    assert times[1] - times[0] >= 1.0


@pytest.mark.always
def test_after_410_it_lists_again_and_reports_what_is_gone(
    client: Client, namespace: str, proxy: FaultProxy, watching: Watching
) -> None:
    put(client, namespace, "a", "b")
    watching.eventually("a", "b")
    proxy.break_watch(lambda _method, path: Answer(410, "Expired") if is_watch(path) else None)
    drop(client, namespace, "a")
    put(client, namespace, "c")
    watching.eventually("b", "c")
    proxy.heal()
    assert ("a", None) in watching.seen
    assert watching.reflector.relists >= 2


def test_after_a_410_event_it_lists_again(
    client: Client, namespace: str, proxy: FaultProxy, watching: Watching
) -> None:
    put(client, namespace, "a")
    watching.eventually("a")
    error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    eventually(lambda: proxy.say_to_streams({"type": "ERROR", "object": error}), "there is a watch")
    eventually(lambda: watching.reflector.relists == 2, "a second list")
    put(client, namespace, "b")
    watching.eventually("a", "b")
    assert [new for _, new in watching.seen] == ["a", "b"], "a list of the same objects is no news"


def test_410_in_mid_list_starts_the_list_again(
    plane: ControlPlane, client: Client, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    put(client, namespace, *"abcde")
    failures = iter([True])

    def rule(_method: str, path: str) -> Fault | None:
        return Answer(410, "Expired") if "continue=" in path and next(failures, False) else None

    proxy.inject(rule)
    reflector = Reflector(
        proxied(plane, proxy, tmp_path),
        CONFIG_MAPS,
        namespace,
        lambda _old, _new: None,
        timing=TIMING,
        page=2,
    )
    threading.Thread(target=reflector.run, daemon=True).start()
    eventually(lambda: len(reflector.items()) == 5, "the whole list")
    reflector.stop()


def test_a_kind_that_the_cluster_lacks_is_empty(client: Client, namespace: str) -> None:
    missing = Resource("no.such.group", "v1", "things", "Thing")
    reflector = Reflector(client, missing, namespace, lambda _old, _new: None, timing=TIMING)
    threading.Thread(target=reflector.run, daemon=True).start()
    eventually(lambda: reflector.synced, "synced")
    reflector.stop()
    assert reflector.items() == []


def test_a_hung_server_does_not_hang_a_request(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.inject(lambda _method, _path: Hang())
    started = time.monotonic()
    with pytest.raises(Exception, match="timed out"):
        proxied(plane, proxy, tmp_path).get(CONFIG_MAPS, namespace, "a", timeout=0.5)
    assert time.monotonic() - started < 15.0
