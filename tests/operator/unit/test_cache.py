"""What a reflector keeps, without a server: packed, in pages by bytes, and not what is not worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard_operator.runtime.client import PODS, Client, Resource
from guard_operator.runtime.errors import ApiError
from guard_operator.runtime.packing import Packer, compact_json
from guard_operator.runtime.reflector import FIRST_PAGE, PAGE_BYTES, Reflector, Timing, next_page

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("limit", "found", "size", "wanted"),
    [
        (20, 20, 20_000, 40),  # small objects: twice as many
        (20, 20, 10 * PAGE_BYTES, 2),
        (20, 20, 100 * PAGE_BYTES, 1),  # one object larger than a page: still one
        (20, 0, 0, 40),
        (400, 400, 2 * PAGE_BYTES, 200),
    ],
)
def test_how_many_objects_are_asked_for(limit: int, found: int, size: int, wanted: int) -> None:
    assert next_page(limit, found, size) == wanted


def pod(name: str, phase: str = "Running", job: str = "a") -> Json:
    meta = {"name": name, "namespace": "ns", "labels": {"job": job}, "resourceVersion": "1"}
    return {"metadata": meta, "status": {"phase": phase}}


class Server:
    """Serves a list of pods, of as many bytes as it is told, and notes how many were asked for."""

    def __init__(self, pods: list[Json], each: int) -> None:
        self._pods, self._each, self.limits = pods, each, list[int]()

    def page(self, _resource: Resource, _namespace: str | None, query: Mapping[str, str]) -> tuple[Json, int]:
        limit, start = int(query["limit"]), int(query.get("continue", "0"))
        self.limits.append(limit)
        items = self._pods[start : start + limit]
        more = {"continue": str(start + limit)} if start + limit < len(self._pods) else {}
        return {"items": items, "metadata": {"resourceVersion": "7", **more}}, self._each * len(items)


def reflector(server: Server, **more: Any) -> Reflector:
    told: list[tuple[Json | None, Json | None]] = []
    made = Reflector(
        cast(Client, server),
        PODS,
        None,
        lambda old, new: told.append((old, new)),
        index=lambda raw: str(raw["metadata"]["labels"]["job"]),
        **more,
    )
    made.told = told  # type: ignore[attr-defined]
    return made


def names(of: list[Json]) -> list[str]:
    return sorted(raw["metadata"]["name"] for raw in of)


@pytest.mark.parametrize(
    ("each", "most", "limits"),
    [
        (1000, 500, [FIRST_PAGE, 40, 80, 160]),
        (1000, 50, [FIRST_PAGE, 40, 50, 50, 50, 50]),
        (1000, 10, [10] * 25),
        (PAGE_BYTES, 500, [FIRST_PAGE, *[1] * 230]),
    ],
)
def test_a_page_is_as_large_as_its_bytes_allow(each: int, most: int, limits: list[int]) -> None:
    server = Server([pod(f"p{n}") for n in range(250)], each)
    one = reflector(server, page=most)
    one._list()
    assert len(one.items()) == 250 and server.limits == limits


def test_what_is_not_worth_keeping_is_not_kept_and_told_all_the_same() -> None:
    server = Server([pod("runs"), pod("ended", "Succeeded")], 1000)
    one = reflector(server, keeps=lambda raw: raw["status"]["phase"] == "Running")
    one._list()
    assert names(one.items()) == ["runs"]
    one._fold({"type": "MODIFIED", "object": pod("runs", "Succeeded")})
    assert one.items() == [] and one.indexed("a") == []
    assert names([new or old for old, new in one.told]) == ["runs", "runs"]  # type: ignore[attr-defined]
    one._fold({"type": "MODIFIED", "object": pod("runs")})
    assert names(one.indexed("a")) == ["runs"]


def test_what_is_no_longer_worth_keeping_goes() -> None:
    over = set[str]()
    server = Server([pod("a1", job="a"), pod("a2", "Failed", job="a"), pod("b1", "Failed", job="b")], 1000)
    keeps = lambda raw: raw["status"]["phase"] == "Running" or raw["metadata"]["labels"]["job"] not in over  # noqa: E731
    one = reflector(server, keeps=keeps)
    one._list()
    over |= {"a", "b"}
    one.sort_out("a")
    assert names(one.items()) == ["a1", "b1"] and names(one.indexed("a")) == ["a1"]
    one.sort_out("nobody")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(), of, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(st.text(), anything, max_size=4), min_size=1, max_size=5))
def test_what_was_packed_is_had_again(objects: list[Json]) -> None:
    packer = Packer()
    packed = [packer.pack(one) for one in objects]
    assert [packer.unpack(one) for one in packed] == objects
    assert [packer.pack(one) for one in objects] == packed, "bytes can be compared"


def test_half_a_character_is_kept() -> None:
    packer = Packer()
    assert packer.unpack(packer.pack({"a": "\ud800"})) == {"a": "\ud800"}


def test_what_is_alike_takes_next_to_nothing() -> None:
    packer = Packer()
    first, second = (len(packer.pack(pod(f"run-{n}"))) for n in range(2))
    assert max(first, second) < len(compact_json(pod("run-0"))) / 8


class Unserved:
    """A server of one pod whose second watch says that it has no such kind, and the list after it nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.missing: list[bool] = []
        self.state: Callable[[], bool] = lambda: False

    def page(self, *_query: object) -> tuple[Json, int]:
        self.asked.append("list")
        self.missing.append(self.state())
        if self.asked.count("list") == 2:
            raise ApiError(500, "InternalError", "its webhook does not respond")
        return {"metadata": {"resourceVersion": "7"}, "items": [pod("x")]}, 100

    @contextmanager
    def stream(self, *_query: object) -> Iterator[Iterator[Json]]:
        self.asked.append("watch")
        assert len(self.asked) < 9, "it is listed again"
        if self.asked.count("watch") == 2:
            raise ApiError(404, "", "404 page not found")
        yield iter([{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}])


def test_a_kind_that_is_served_again_is_listed_again() -> None:
    """What is there would be taken for gone for as long as the version of before is watched."""
    server, states = Unserved(), list[tuple[bool, int]]()

    def note(*_change: object) -> None:
        states.append((made.missing, len(made.items())))
        if len(states) == 3:
            made.stop()

    timing = Timing(missing_kind=0.0, backoff_base=0.0)
    made = Reflector(cast(Client, server), PODS, None, note, timing=timing)
    server.state = lambda: made.missing
    made.run()
    assert server.asked[:5] == ["list", "watch", "watch", "list", "list"]
    assert states == [(False, 1), (True, 0), (False, 1)], "there, not served, there"
    assert server.missing == [False, True, False], "as it was before each list: an error is no such answer"
