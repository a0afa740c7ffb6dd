"""What the API server sends is read, however deeply it nests: one object hides no other.

Aspects: depth that Python's reader cannot take; what is beside the cut stays as it is; texts with brackets;
no JSON is an error as before; a watch and a list; a job of it is refused, and what runs is still stopped.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from guard_operator.reconcile.parse import parse_job
from guard_operator.runtime.client import PODS, Client, _api_error
from guard_operator.runtime.decoding import _TEXT_OR_BRACKET, MAX_DEPTH, decoded, depth_of
from guard_operator.runtime.errors import ApiError
from tests.operator.unit.test_parse import raw_job, run

Json = dict[str, Any]


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [100, 201, 1_000, 9_999])
def test_what_is_deep_is_cut_and_what_is_beside_it_stays(levels: int) -> None:
    found = decoded(b'{"before":[1],"deep":[%s,"[{"],"after":{"b":"}"}}' % nested(levels))
    assert found["before"] == [1] and found["after"] == {"b": "}"} and found["deep"][1] == "[{"
    assert depth_of(found, 10_000) == min(levels + 2, MAX_DEPTH)


@pytest.mark.parametrize(
    "text",
    [
        '"\\"[[["',
        '"\\\\"',
        "[[],{}]",
        '{"a":[{"b":[]}]}',
        '"\\ud800"',
        "NaN",
        str(10**30),
        '"[é"',
        json.dumps("[" * 300),
    ],
)
def test_what_is_not_deep_is_read_as_python_reads_it(text: str) -> None:
    both = (decoded(b"[%s,%s]" % (text.encode(), nested(2_000)))[0], decoded(text.encode()))
    assert repr(both) == repr((json.loads(text),) * 2)


@pytest.mark.parametrize("data", [b"", b"{", b"[1,]", b"<html>", b'{"a":' * 300, b"}" * 300, b"\xff"])
def test_what_is_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decoded(data)


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_text_that_does_not_end_is_looked_through_once(end: bytes) -> None:
    """Its length squared would be minutes, in the thread that reads all jobs."""
    open_ = b'{"a": "' + b'\\"' * 5_000 + end
    found = list(_TEXT_OR_BRACKET.finditer(open_))
    assert [one[0][:3] for one in found] == [b"{", b'"a"', b'"\\"'] and found[-1].end() == len(open_)
    with pytest.raises(ValueError, match="Unterminated string"):
        decoded(open_)


@pytest.mark.parametrize(
    ("value", "depth"), [(1, 0), ([], 1), ({"a": 1}, 1), ({"a": [{}]}, 3), ([[], [[]]], 3)]
)
def test_how_deep_a_value_is(value: object, depth: int) -> None:
    assert depth_of(value, 10) == depth


def test_no_more_is_looked_at_than_is_asked_for() -> None:
    value: list[Any] = []
    value.append(value)
    assert depth_of(value, 7) == 8


class _Pool:
    """Answers everything with one body; a watch gets it a piece at a time."""

    def __init__(self, body: bytes) -> None:
        self.data, self.status, self.headers = body, 200, dict[str, str]()

    def request(self, *_args: object, **_options: object) -> _Pool:
        return self

    def stream(self, size: int, decode_content: bool) -> list[bytes]:
        return [self.data[i : i + 1000] for i in range(0, len(self.data), 1000)]

    def close(self) -> None: ...

    def release_conn(self) -> None: ...


def of(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client.__new__(Client)
    monkeypatch.setattr(client, "_open", lambda *_args: _Pool(body), raising=False)
    return client


def test_a_watch_and_an_answer_with_a_deep_object_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b'{"type":"ADDED","object":{"metadata":{"name":"deep"},"spec":%s}}' % nested(2_000)
    flat = b'{"type":"ADDED","object":{"metadata":{"name":"flat"}}}'
    with of(deep + b"\n" + flat + b"\n", monkeypatch).stream("/x", {}, 1.0) as events:
        assert [event["object"]["metadata"]["name"] for event in events] == ["deep", "flat"]
    assert of(deep, monkeypatch).request("GET", "/x")["object"]["metadata"] == {"name": "deep"}


GONE, UNSERVED = b'{"kind": "Status", "reason": "NotFound", "message": "x"}', b"404 page not found\n"


@pytest.mark.parametrize(("body", "was_there"), [(GONE, True), (GONE, False), (UNSERVED, False)])
def test_what_is_not_there_is_none(body: bytes, was_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusing(body, monkeypatch).get(PODS, "ns", "x", was_there=was_there) is None


def test_a_kind_that_is_not_served_says_nothing_of_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError, match="404: 404 page not found"):
        refusing(UNSERVED, monkeypatch).get(PODS, "ns", "x", was_there=True)


def refusing(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Client:
    def refuse(*_args: object) -> None:
        raise _api_error(404, None, body)

    client = Client.__new__(Client)
    monkeypatch.setattr(client, "_open", refuse, raising=False)
    return client


@pytest.mark.parametrize("levels", [101, 1_000])
def test_a_job_that_nests_too_deeply_is_refused_in_words(levels: int) -> None:
    raw = raw_job()
    raw["spec"]["template"]["spec"] = decoded(nested(levels))
    with pytest.raises(ValidationError, match="more than 100 objects and lists are in one another"):
        parse_job(raw)


def test_one_that_runs_is_read_all_the_same() -> None:
    raw = run(
        guard={"fire": {"code": "x", "reason": "y", "attempt": 0, "step": 1, "at": "2026-01-01T00:00:00Z"}}
    )
    raw["spec"]["template"]["spec"] = decoded(nested(1_000))
    job = parse_job(raw)
    assert job.status.guard is not None and job.status.guard.fire is not None
