"""The HTTP API over a real guard process: acknowledgements, refusals, tokens, and the one shape of errors."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_service.app import MAX_BODY_BYTES
from guard_service.errors import ProblemDetails
from rlguard.core.wire import CheckpointResponse, EndResponse, StepsResponse, Verdict

Step = Callable[..., dict[str, Any]]


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem that `response` must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    ProblemDetails.model_validate(body)
    assert body["status"] == status and body["type"].startswith("urn:rlguard:problem:")
    return body


def fields(body: dict[str, Any]) -> set[str]:
    return {error["field"] for error in body["errors"]}


def steps_on_disk(guard: Any) -> list[tuple[int, int, float | None]]:
    lines = guard.get("/v1/history").text.splitlines()
    return [(line["attempt"], line["step"], line["reward"]) for line in map(json.loads, lines)]


@pytest.fixture(scope="module")
def shared_guard(zygote: Any, tmp_path_factory: Any, guard_type: Any) -> Any:
    """A guard for tests that change nothing."""
    guard = guard_type(zygote, tmp_path_factory.mktemp("shared")).start()
    yield guard
    guard.end()


# -- steps -------------------------------------------------------------------------------------------------


def test_a_step_is_acknowledged_once_and_a_repeat_is_not_folded(guard: Any, step: Step) -> None:
    first = StepsResponse.model_validate_json(guard.post("/v1/steps", step(1)).content)
    again = StepsResponse.model_validate_json(guard.post("/v1/steps", step(1)).content)
    assert (first.accepted, first.duplicates, first.verdict.steps) == (1, 0, 1)
    assert (again.accepted, again.duplicates, again.verdict.steps) == (0, 1, 1)


def test_the_same_step_with_other_values_is_a_conflict(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    for field, other in {
        "reward": {"reward": 0.6},
        "kl": {"kl": 0.1, "kl_kind": "behaviour"},
        "entropy": {"entropy": 1.0},
        "reward_std": {"reward_std": 0.0},
    }.items():
        assert field in fields(problem(guard.post("/v1/steps", step(1, **other)), 409))
    assert steps_on_disk(guard) == [(0, 1, 0.5)]


def test_a_list_is_kept_in_any_order_and_its_repeats_are_counted(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(1), step(2)])
    answer = guard.post("/v1/steps", [step(4), step(3), step(3), step(1), step(4, attempt=1)]).json()
    assert (answer["accepted"], answer["duplicates"], answer["verdict"]["steps"]) == (3, 2, 5)
    assert [(a, s) for a, s, _ in steps_on_disk(guard)] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 4)]


def test_a_list_with_a_conflict_or_an_invalid_item_is_refused_whole(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    wrong = step(1, reward=0.9)
    for status, named, content in (
        (409, "0.reward", [wrong, step(2), step(3)]),
        (409, "2.reward", [step(2), step(3), wrong]),
        (409, "1.reward", [step(2), step(2, reward=0.7)]),
        (422, "1.nope", [step(2), step(3, nope=1)]),
    ):
        assert fields(problem(guard.post("/v1/steps", content), status)) == {named}
    after = guard.get("/v1/verdict").json()
    assert (after["steps"], after["step"], after["code"]) == (1, 1, "reports_refused")
    assert steps_on_disk(guard) == [(0, 1, 0.5)]
    # Nothing of it was half kept: the rest can be sent again, with other values even.
    assert guard.post("/v1/steps", [step(2, reward=0.1), step(3)]).json()["accepted"] == 2


def test_a_list_of_1000_is_taken_and_of_1001_is_not(guard: Any, step: Step) -> None:
    assert guard.post("/v1/steps", [step(i) for i in range(1000)]).json()["accepted"] == 1000
    assert fields(problem(guard.post("/v1/steps", [step(i) for i in range(1001)]), 422)) == {"body"}
    assert guard.post("/v1/steps", []).json()["accepted"] == 0


def test_steps_without_a_finite_reward_are_kept_and_said_to_be_so(guard: Any, step: Step) -> None:
    verdict = guard.post("/v1/steps", [step(n, reward=None) for n in range(5)]).json()["verdict"]
    assert steps_on_disk(guard) == [(0, n, None) for n in range(5)]
    assert "no_reward" in {condition["code"] for condition in verdict["conditions"]}
    assert verdict["level"] == "unknown"


STEP = b'{"attempt":0,"step":1,"reward":%s}'
REFUSED_BODIES = [
    *((body, 400, None) for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe{}", STEP % b"1" + b"{}")),
    (STEP % (b"[" * 5_000 + b"]" * 5_000), 400, None),
    (STEP % (b"9" * 5_000), 400, None),
    (b'{"attempt":0,"step":1,"reward":1,"\\ud800":1}', 400, None),
    *((body, 422, "body") for body in (b"null", b'"steps"')),
    (b"[5]", 422, "0"),
    *(
        (STEP % value, 422, "reward")
        for value in (b"NaN", b"Infinity", b"1e999", b"1e300", b"9" * 400, b'"0.5"', b"true")
    ),
    *(
        (b'{"attempt":0,"step":%s,"reward":1}' % value, 422, "step")
        for value in (b"9" * 400, b"1.0", b"NaN", b"-1", b"9007199254740992")
    ),
    *((b'{"attempt":%s,"step":1,"reward":1}' % value, 422, "attempt") for value in (b"-1", b"2147483648")),
    *(
        (STEP % (b"1,%s" % more), 422, field)
        for more, field in (
            (b'"kl":-0.1,"kl_kind":"ref_token_mean"', "kl"),
            (b'"kl":0.1', "kl_kind"),
            (b'"kl":0.1,"kl_kind":"ppo_kl"', "kl_kind"),
            (b'"reward_std":-1', "reward_std"),
            (b'"loss":2', "loss"),
        )
    ),
]


def test_bodies_that_are_refused_name_the_field_and_keep_nothing(guard: Any) -> None:
    headers = {"Content-Type": "application/json"}
    with guard.client() as client:
        for content, status, field in REFUSED_BODIES:
            body = problem(client.post("/v1/steps", content=content, headers=headers), status)
            if field is not None:
                assert field in fields(body), (content[:80], body)
    assert guard.get("/v1/verdict").json()["steps"] == 0
    assert steps_on_disk(guard) == []


def test_the_largest_admitted_values_give_a_verdict(guard: Any, step: Step) -> None:
    """Sums of finite values must not overflow into an answer that is no JSON."""
    report = step(0, kl=1e100, kl_kind="ref_token_mean", entropy=-1e100, reward_std=1e100)
    answers = [
        guard.post("/v1/steps", report | {"step": i, "reward": (-1) ** i * 1e100, "kl": 1e100 * (i > 0)})
        for i in range(8)
    ]
    assert answers[-1].json()["verdict"]["code"] == "kl_hard_stop"


# -- bodies and clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/steps", "/v1/checkpoints"])
def test_a_body_of_another_type_or_too_large_is_refused_told_or_chunked(shared_guard: Any, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    chunks = (b" " * (MAX_BODY_BYTES // 32) for _ in range(40))
    for content, given, status in (
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b"{}", headers, 422),
        (b" " * (MAX_BODY_BYTES + 1), headers, 413),
        (chunks, headers, 413),
    ):
        with shared_guard.client() as client:
            problem(client.post(path, content=content, headers=given), status)
    content = STEP % b"1" + b" " * (MAX_BODY_BYTES - len(STEP % b"1"))
    with shared_guard.client() as client:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        assert client.post("/v1/steps", content=content, headers=headers).is_success


def test_a_client_that_goes_away_does_no_harm(guard: Any, step: Step) -> None:
    host, port = guard.url.removeprefix("http://").split(":")
    head = (
        b"POST /v1/steps HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer ingest-token-0123456789\r\nContent-Length: 100\r\n\r\n"
    )
    for sent in (b"GARBAGE\r\n\r\n", head, head + b'{"attempt":0', head + b"x" * 100):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
    assert guard.post("/v1/steps", step(1)).json()["verdict"]["steps"] == 1
    assert "Traceback" not in guard.log


def test_concurrent_clients_share_flushes_and_lose_nothing(guard: Any, step: Step) -> None:
    """Interleaved on one thread: every request is sent before the first answer is read."""
    host, port = guard.url.removeprefix("http://").split(":")
    connections = [http.client.HTTPConnection(host, int(port), timeout=60) for _ in range(40)]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer ingest-token-0123456789"}
    for i, connection in enumerate(connections):
        connection.request("POST", "/v1/steps", json.dumps(step(i // 2, reward=float(i % 4))), headers)
    statuses = sorted(connection.getresponse().status for connection in connections)
    # Steps come in pairs with other rewards: one of each pair wins, whoever was first.
    assert statuses == [200] * 20 + [409] * 20
    assert [s for _, s, _ in steps_on_disk(guard)] == list(range(20))
    for connection in connections:
        connection.close()


def test_unknown_routes_and_methods_are_problems_and_what_is_long_is_quoted_in_part(guard: Any) -> None:
    with guard.client() as client:
        for path in ("/v1/nothing", "/v1/steps/", "/metrics", f"/{'x' * 15_000}"):
            assert len(problem(client.get(path), 404)["detail"]) < 100
        response = client.delete("/v1/steps")
        problem(response, 405)
        assert response.headers["allow"] == "POST"
    long = "x" * 400_000
    for report in ([figures(1, **{long: 1.0})], {long: 1}):
        refused = guard.post("/v1/steps", report)
        assert "xxx…" in problem(refused, 422)["detail"] and len(refused.content) < 2_000


# -- the end and checkpoints ---------------------------------------------------------------------------------


def test_the_end_is_of_the_newest_attempt(guard: Any, step: Step) -> None:
    early = problem(guard.post("/v1/end", {"attempt": 0}), 409)
    assert early["detail"] == "attempt 0 has reported no step yet, so it cannot have ended"
    guard.post("/v1/steps", step(1))
    for told in (9, 2, None):  # a lower one takes nothing back
        answer = EndResponse.model_validate_json(guard.post("/v1/end", {"attempt": 0, "step": told}).content)
        assert answer.verdict.steps_since_evaluation == 1 + 8, told
    guard.post("/v1/steps", step(2) | {"attempt": 1})
    assert fields(problem(guard.post("/v1/end", {"attempt": 0}), 409)) == {"attempt"}
    for wrong in ({"steps": 1}, {"step": -1}, {"step": 2**53}, {"step": "9"}):
        assert fields(problem(guard.post("/v1/end", {"attempt": 1} | wrong), 422)) == set(wrong)


def checkpoint(guard: Any, name: str, number: int = 1) -> dict[str, Any]:
    path = guard.directory / "checkpoints" / name
    path.mkdir(exist_ok=True)
    return {"attempt": 0, "step": number, "path": str(path)}


def test_a_checkpoint_is_queued_once_by_whatever_link_and_also_when_it_is_gone(guard: Any) -> None:
    report = checkpoint(guard, "c1")
    (guard.directory / "checkpoints" / "latest").symlink_to(report["path"])
    linked = report | {"path": str(guard.directory / "checkpoints" / "latest")}
    assert CheckpointResponse.model_validate_json(guard.post("/v1/checkpoints", linked).content).queued
    assert not guard.post("/v1/checkpoints", report).json()["queued"]
    assert fields(problem(guard.post("/v1/checkpoints", checkpoint(guard, "c2")), 409)) == {"path"}
    Path(report["path"]).rmdir()
    assert guard.post("/v1/checkpoints", report).json()["queued"] is False, "rotated away, and known"


def test_checkpoint_paths_stay_under_the_root(guard: Any, tmp_path: Path) -> None:
    root = guard.directory / "checkpoints"
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "escape").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "file").write_text("x")
    (guard.directory / "checkpoints-evil").mkdir()
    below = [
        root / "escape",
        root / ".." / "checkpoints-evil",
        root / "missing",
        root / "file",
        root / "loop",
    ]
    for path in map(str, [outside, guard.directory / "checkpoints-evil", root, *below]):
        assert fields(
            problem(guard.post("/v1/checkpoints", {"attempt": 0, "step": 1, "path": path}), 422)
        ) == {"path"}
    for path in ("../..", "a\x00b", "x" * 4096, "", 7, None):
        body = {"attempt": 0, "step": 1} | ({} if path is None else {"path": path})
        assert fields(problem(guard.post("/v1/checkpoints", body), 422)) == {"path"}


# -- reading -------------------------------------------------------------------------------------------------


def test_the_history_has_every_step_in_order(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(i, entropy=1.5) for i in (3, 1, 2)])
    response = guard.get("/v1/history")
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    known = {"attempt": 0, "step": 1, "reward": 0.5, "kl": None, "kl_kind": "absent", "entropy": 1.5}
    assert lines[0] == known | {"reward_std": None, "step_event": 3}


def test_a_thinned_history_is_even_and_keeps_both_ends(guard: Any, step: Step) -> None:
    for start in range(0, 3_000, 1_000):
        assert guard.post("/v1/steps", [step(start + i) for i in range(1_000)]).is_success
    for points in (2, 3, 7, 100, 2_999, 3_000, 5_000):
        body = guard.get(f"/v1/history?max_points={points}").json()
        numbers = [s["step"] for s in body["steps"]]
        assert body["total_steps"] == 3_000 and len(numbers) == min(points, 3_000)
        assert (numbers[0], numbers[-1]) == (0, 2_999)
        gaps = {b - a for a, b in itertools.pairwise(numbers)}
        assert max(gaps) - min(gaps) <= 1
    for value in ("1", "-5", "x", "10001", "1e3", ""):
        assert fields(problem(guard.get(f"/v1/history?max_points={value}"), 422)) == {"max_points"}


# -- tokens --------------------------------------------------------------------------------------------------

ROUTES = [
    # method, path, ingest token, read token, no token
    ("POST", "/v1/steps", 200, 403, 401),
    ("POST", "/v1/checkpoints", 422, 403, 401),
    ("POST", "/v1/end", 422, 403, 401),
    ("GET", "/v1/verdict", 200, 200, 401),
    *(("GET", f"/v1/{name}", 403, 200, 401) for name in ("history", "rollouts", "figures", "run")),
    *(("GET", path, 200, 200, 200) for path in ("/healthz", "/readyz", "/", "/openapi.json")),
]


@pytest.mark.parametrize(("method", "path", "ingest", "read", "none"), ROUTES)
def test_each_route_takes_its_own_token(
    shared_guard: Any, method: str, path: str, ingest: int, read: int, none: int
) -> None:
    content = {"attempt": 0, "step": 1, "reward": 1} if path == "/v1/steps" else {}
    given = {
        "Bearer ingest-token-0123456789": ingest,
        "bearer ingest-token-0123456789": ingest,
        "Bearer read-token-0123456789": read,
        None: none,
        "Bearer ingest-token-012345678": none,
        "Bearer ingest-token-01234567890": none,
        "Bearer": none,
        "Bearer \xff\xff": none,
        "Basic aW5nZXN0": none,
        "ingest-token-0123456789": none,
    }
    with shared_guard.client(None) as client:
        for authorization, status in given.items():
            headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
            body = content if method == "POST" else None
            response = client.request(method, path, headers=headers, json=body)
            assert response.status_code == status, (authorization, response.text)
            if status in (401, 403):
                problem(response, status)
            if status == 401:
                assert response.headers["www-authenticate"].startswith("Bearer")


def test_no_token_is_needed_on_loopback_with_the_flag(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard(INGEST_TOKEN="", READ_TOKEN="", ALLOW_UNAUTHENTICATED_LOOPBACK="true").start()
    with guard.client(None) as client:
        assert client.post("/v1/steps", json=step(1)).status_code == 200
        assert client.get("/v1/history").status_code == 200
        Verdict.model_validate_json(client.get("/v1/verdict").content)


# -- what of a step is for people ----------------------------------------------------------------------------


def rollouts(step: int, *texts: str, attempt: int = 0) -> dict[str, Any]:
    rows = [{"prompt": "6*7=", "completion": text, "reward": 0.5} for text in texts or ("42",)]
    return {"attempt": attempt, "step": step, "reward": 0.5, "rollouts": rows}


def figures(step: int, attempt: int = 0, **values: float) -> dict[str, Any]:
    found = values or {"rewards/format/mean": step / 10}
    return {"attempt": attempt, "step": step, "reward": 0.5, "figures": found}


def shown(guard: Any) -> list[tuple[list[str], int, int, list[str]]]:
    rows = guard.get("/v1/rollouts").json()
    return [(r["moments"], r["attempt"], r["step"], [x["completion"] for x in r["rollouts"]]) for r in rows]


def test_what_is_for_people_is_shown_and_nothing_is_judged_by_it(guard: Any) -> None:
    assert shown(guard) == [] == guard.get("/v1/figures").json()
    told = [figures(n, **{"a": -1e100, "__proto__": 1e100, "reward": n}) for n in range(1, 6)]
    guard.post("/v1/steps", [told[0] | rollouts(1, "a", "b"), *told[1:4], told[4] | rollouts(5)])
    seen = [{name: one[name] for name in ("attempt", "step", "figures")} for one in told]
    assert shown(guard) == [(["start"], 0, 1, ["a", "b"]), (["newest"], 0, 5, ["42"])]
    assert guard.get("/v1/figures").json() == seen
    again = guard.post("/v1/steps", [rollouts(1, "other"), figures(1)]).json()  # the first report counts
    assert (again["accepted"], again["duplicates"]) == (0, 2)
    assert shown(guard)[0][3] == ["a", "b"] and guard.get("/v1/figures").json() == seen
    assert "__proto__" not in guard.get("/v1/history").text + guard.get("/v1/verdict").text


def test_what_is_shown_is_there_after_a_restart_and_a_damaged_file_costs_it_alone(guard: Any) -> None:
    guard.post("/v1/steps", [rollouts(1, "<b>\u202e\0\x1f\x1e"), figures(2, reward=0.5)])
    before = shown(guard), guard.get("/v1/figures").json()
    guard.end()
    guard.start()
    assert (shown(guard), guard.get("/v1/figures").json()) == before
    assert before[0][0][3] == ["<b>\u202e\0\x1f\x1e"]
    guard.end()
    file = guard.state / "display.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(file.read_bytes()[:-5])
    guard.start()
    assert shown(guard) == guard.get("/v1/figures").json() == []
    assert "display.json is not read" in guard.log
    assert guard.get("/v1/verdict").json()["steps"] == 2


def test_rollouts_that_cannot_be_kept_are_shown_all_the_same(guard: Any) -> None:
    (guard.state / "display.new").mkdir()
    guard.post("/v1/steps", rollouts(1))
    end = time.monotonic() + 60
    while "rollouts and figures cannot be kept" not in guard.log:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(shown(guard)) == 1


ONE = {"prompt": "", "completion": "", "reward": 1}
NOT_SHOWN = [
    *({"rollouts": [ONE | wrong]} for wrong in ({"reward": None}, {"prompt": 1}, {"answer": ""})),
    *({"rollouts": wrong} for wrong in ([], {"0": {}}, [ONE] * 5, [ONE | {"completion": "x" * 2001}])),
    *({"figures": wrong} for wrong in ({}, {"a": None}, {"a": {"b": 1}}, {"": 1}, {"x" * 101: 1.0})),
    {"figures": {f"n{i}": 1.0 for i in range(17)}},
]


def test_a_step_with_what_cannot_be_shown_is_refused_with_a_sentence(shared_guard: Any) -> None:
    with shared_guard.client() as client:
        for more in NOT_SHOWN:
            report = {"attempt": 0, "step": 9, "reward": 0.5} | more
            assert len(problem(client.post("/v1/steps", json=report), 422)["detail"]) > 10
    assert shared_guard.get("/v1/figures").json() == [] == shared_guard.get("/v1/rollouts").json()


def test_a_flood_of_what_is_shown_fills_no_disk(guard: Any) -> None:
    worst = "\x01" * 2000  # six bytes each in JSON
    names = [f"{i:04}" + "\x01" * 96 for i in range(1016)]
    for first in range(0, 1000, 5):  # other names each time: those of the first stay
        posted = [
            figures(step, **dict.fromkeys(names[first : first + 16], 1 / 3))
            for step in range(first, first + 5)
        ]
        posted[0] |= {"rollouts": rollouts(first, *[worst] * 4)["rollouts"]}
        assert guard.post("/v1/steps", posted).status_code == 200
    assert len(guard.get("/v1/rollouts").json()) == 2
    assert len({name for one in guard.get("/v1/figures").json() for name in one["figures"]}) == 16
    guard.end()
    assert (guard.state / "display.json").stat().st_size < 10 << 20
