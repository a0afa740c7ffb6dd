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

from guard_core.wire import CheckpointResponse, EndResponse, StepsResponse, Verdict
from guard_service.app import MAX_BODY_BYTES
from guard_service.errors import ProblemDetails

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


# -- steps -------------------------------------------------------------------------------------------------


def test_a_step_is_acknowledged_once_and_a_repeat_is_not_folded(guard: Any, step: Step) -> None:
    first = StepsResponse.model_validate_json(guard.post("/v1/steps", step(1)).content)
    again = StepsResponse.model_validate_json(guard.post("/v1/steps", step(1)).content)
    assert (first.accepted, first.duplicates, first.verdict.steps) == (1, 0, 1)
    assert (again.accepted, again.duplicates, again.verdict.steps) == (0, 1, 1)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"reward": 0.6}, "reward"),
        ({"kl": 0.1, "kl_kind": "behaviour"}, "kl"),
        ({"entropy": 1.0}, "entropy"),
        ({"reward_std": 0.0}, "reward_std"),
    ],
)
def test_the_same_step_with_other_values_is_a_conflict(
    guard: Any, step: Step, other: dict[str, Any], field: str
) -> None:
    guard.post("/v1/steps", step(1))
    body = problem(guard.post("/v1/steps", step(1, **other)), 409)
    assert field in fields(body)
    assert steps_on_disk(guard) == [(0, 1, 0.5)]


def test_steps_without_a_finite_reward_are_kept_and_said_to_be_so(guard: Any, step: Step) -> None:
    verdict = guard.post("/v1/steps", [step(n, reward=None) for n in range(5)]).json()["verdict"]
    assert steps_on_disk(guard) == [(0, n, None) for n in range(5)]
    assert "no_reward" in {condition["code"] for condition in verdict["conditions"]}
    assert verdict["level"] == "unknown"


def test_a_list_keeps_its_order_and_counts_its_repeats(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(1), step(2)])
    answer = guard.post("/v1/steps", [step(2), step(3), step(3), step(1), step(4, attempt=1)]).json()
    assert (answer["accepted"], answer["duplicates"]) == (2, 3)
    assert answer["verdict"]["steps"] == 4
    assert [(a, s) for a, s, _ in steps_on_disk(guard)] == [(0, 1), (0, 2), (0, 3), (1, 4)]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_list_with_a_conflict_is_refused_whole(guard: Any, step: Step, position: int) -> None:
    guard.post("/v1/steps", step(1))
    content = [step(2), step(3)]
    content.insert(position, step(1, reward=0.9))
    body = problem(guard.post("/v1/steps", content), 409)
    assert fields(body) == {f"{position}.reward"}
    after = guard.get("/v1/verdict").json()
    assert (after["steps"], after["step"], after["code"]) == (1, 1, "reports_refused")
    assert steps_on_disk(guard) == [(0, 1, 0.5)]
    # Nothing of it was half kept: the rest can be sent again, with other values even.
    assert guard.post("/v1/steps", [step(2, reward=0.1), step(3)]).json()["accepted"] == 2


def test_a_list_that_contradicts_itself_is_refused_whole(guard: Any, step: Step) -> None:
    body = problem(guard.post("/v1/steps", [step(1), step(1, reward=0.7)]), 409)
    assert fields(body) == {"1.reward"}
    assert steps_on_disk(guard) == []


def test_a_list_with_an_invalid_item_is_refused_whole(guard: Any, step: Step) -> None:
    body = problem(guard.post("/v1/steps", [step(1), {"attempt": 0, "step": 2}, step(3, nope=1)]), 422)
    assert fields(body) == {"1.reward", "2.nope"}
    assert steps_on_disk(guard) == []


def test_a_list_of_1000_is_taken_and_of_1001_is_not(guard: Any, step: Step) -> None:
    assert guard.post("/v1/steps", [step(i) for i in range(1000)]).json()["accepted"] == 1000
    assert fields(problem(guard.post("/v1/steps", [step(i) for i in range(1001)]), 422)) == {"body"}
    assert guard.post("/v1/steps", []).json()["accepted"] == 0


def test_steps_out_of_order_are_kept(guard: Any, step: Step) -> None:
    for number in (5, 3, 4):
        assert guard.post("/v1/steps", step(number)).json()["accepted"] == 1
    assert guard.post("/v1/steps", step(3)).json()["duplicates"] == 1
    assert guard.get("/v1/verdict").json()["step"] == 5


REFUSED_BODIES = [
    (b"", 400, None),
    (b"{", 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"attempt":0,"step":1,"reward":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, None),
    (b"\xff\xfe{}", 400, None),
    (b'{"attempt":0,"step":1,"reward":1,"kl_kind":"\xff"}', 400, None),
    (b'\xef\xbb\xbf{"attempt":0,"step":1,"reward":1}', 400, None),
    (b'{"attempt":0,"step":1,"reward":1}{}', 400, None),
    (b'{"attempt":0,"step":1,"reward":1,"\\ud800":1}', 400, None),
    (b"null", 422, "body"),
    (b'"steps"', 422, "body"),
    (b"[5]", 422, "0"),
    (b'{"attempt":0,"step":1}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":NaN}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":Infinity}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":-Infinity}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":1e999}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":1e300}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":%s}' % (b"9" * 400), 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":%s}' % (b"9" * 5_000), 400, None),
    (b'{"attempt":0,"step":1,"reward":"0.5"}', 422, "reward"),
    (b'{"attempt":0,"step":1,"reward":true}', 422, "reward"),
    (b'{"attempt":0,"step":%s,"reward":1}' % (b"9" * 400), 422, "step"),
    (b'{"attempt":0,"step":%s,"reward":1}' % (b"9" * 5_000), 400, None),
    (b'{"attempt":0,"step":1.0,"reward":1}', 422, "step"),
    (b'{"attempt":0,"step":NaN,"reward":1}', 422, "step"),
    (b'{"attempt":0,"step":-1,"reward":1}', 422, "step"),
    (b'{"attempt":0,"step":9007199254740992,"reward":1}', 422, "step"),
    (b'{"attempt":-1,"step":1,"reward":1}', 422, "attempt"),
    (b'{"attempt":2147483648,"step":1,"reward":1}', 422, "attempt"),
    (b'{"attempt":0,"step":1,"reward":1,"kl":-0.1,"kl_kind":"ref_token_mean"}', 422, "kl"),
    (b'{"attempt":0,"step":1,"reward":1,"kl":0.1}', 422, "kl_kind"),
    (b'{"attempt":0,"step":1,"reward":1,"kl":0.1,"kl_kind":"ppo_kl"}', 422, "kl_kind"),
    (b'{"attempt":0,"step":1,"reward":1,"reward_std":-1}', 422, "reward_std"),
    (b'{"attempt":0,"step":1,"reward":1,"loss":2}', 422, "loss"),
    (b'[{"attempt":0,"step":1,"reward":1},{"attempt":0,"step":2,"reward":NaN}]', 422, "1.reward"),
]


@pytest.mark.parametrize("route", ["/v1/steps", "/v1/checkpoints", "/v1/end"])
@pytest.mark.parametrize(
    "body",
    [b'{"step":' + b"[" * 100_000, b'{"step":' + b"[" * 300 + b"]" * 300 + b"}", b'{"a\\ud800":1}'],
    ids=["deep", "deep and whole", "half of a surrogate pair"],
)
def test_a_body_that_is_read_by_no_parser_is_a_bad_request(guard: Any, route: str, body: bytes) -> None:
    with guard.client() as client:
        response = client.post(route, content=body, headers={"Content-Type": "application/json"})
    assert "not JSON" in problem(response, 400)["detail"]


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
    report = step(0, reward=1e100, kl=1e100, kl_kind="ref_token_mean", entropy=-1e100, reward_std=1e100)
    answers = [
        guard.post(
            "/v1/steps", report | {"step": i, "reward": (-1) ** i * 1e100, "kl": 1e100 * (i > 0)}
        ).json()
        for i in range(8)
    ]
    assert answers[-1]["verdict"]["code"] == "kl_hard_stop"


# -- bodies and content types --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/steps", "/v1/checkpoints"])
def test_a_body_of_another_type_is_refused(guard: Any, path: str) -> None:
    with guard.client() as client:
        problem(client.post(path, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
        problem(client.post(path, content=b"{}"), 415)
        gzip = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        problem(client.post(path, content=b"{}", headers=gzip), 415)


@pytest.mark.parametrize("path", ["/v1/steps", "/v1/checkpoints"])
def test_an_oversized_body_is_413_told_or_chunked(guard: Any, path: str) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b" " * (MAX_BODY_BYTES // 32)

    headers = {"Content-Type": "application/json"}
    with guard.client() as client:
        problem(client.post(path, content=b" " * (MAX_BODY_BYTES + 1), headers=headers), 413)
    with guard.client() as client:
        problem(client.post(path, content=chunks(), headers=headers), 413)
    assert guard.get("/healthz").status_code == 200


def test_a_body_of_exactly_the_limit_is_read(guard: Any) -> None:
    content = b'{"attempt":0,"step":1,"reward":1}'.ljust(MAX_BODY_BYTES)
    with guard.client() as client:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        assert client.post("/v1/steps", content=content, headers=headers).json()["accepted"] == 1


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
    connections = [http.client.HTTPConnection(host, int(port), timeout=20) for _ in range(40)]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer ingest-token-0123456789"}
    for i, connection in enumerate(connections):
        connection.request("POST", "/v1/steps", json.dumps(step(i // 2, reward=float(i % 4))), headers)
    statuses = sorted(connection.getresponse().status for connection in connections)
    # Steps come in pairs with other rewards: one of each pair wins, whoever was first.
    assert statuses == [200] * 20 + [409] * 20
    assert [s for _, s, _ in steps_on_disk(guard)] == list(range(20))
    for connection in connections:
        connection.close()


# -- the end -------------------------------------------------------------------------------------------------


def test_the_end_is_of_the_newest_attempt(guard: Any, step: Step) -> None:
    early = problem(guard.post("/v1/end", {"attempt": 0}), 409)
    assert fields(early) == {"attempt"}
    assert early["detail"] == "attempt 0 has reported no step yet, so it cannot have ended"
    guard.post("/v1/steps", step(1))
    EndResponse.model_validate_json(guard.post("/v1/end", {"attempt": 0}).content)
    guard.post("/v1/steps", step(2) | {"attempt": 1})
    assert fields(problem(guard.post("/v1/end", {"attempt": 0}), 409)) == {"attempt"}
    for end, wrong in (
        ({"attempt": 1, "steps": 1}, "steps"),
        ({"attempt": 1, "step": -1}, "step"),
        ({"attempt": 1, "step": 2**53}, "step"),
        ({"attempt": 1, "step": "9"}, "step"),
        ({"step": 9}, "attempt"),
    ):
        assert fields(problem(guard.post("/v1/end", end), 422)) == {wrong}
    with guard.client(None) as stranger:
        problem(stranger.post("/v1/end", json={"attempt": 0}), 401)


def test_the_last_step_of_the_end_counts_and_a_lower_one_takes_nothing_back(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    for told in (9, 2, None):
        answer = guard.post("/v1/end", {"attempt": 0, "step": told}).json()
        assert answer["verdict"]["steps_since_evaluation"] == 1 + 8, told


# -- checkpoints ---------------------------------------------------------------------------------------------


def checkpoint(guard: Any, name: str, number: int = 1, **values: Any) -> dict[str, Any]:
    path = guard.directory / "checkpoints" / name
    path.mkdir(exist_ok=True)
    return {"attempt": 0, "step": number, "path": str(path)} | values


def test_a_checkpoint_is_queued_once(guard: Any) -> None:
    report = checkpoint(guard, "c1")
    assert CheckpointResponse.model_validate_json(guard.post("/v1/checkpoints", report).content).queued
    assert not guard.post("/v1/checkpoints", report).json()["queued"]
    body = problem(guard.post("/v1/checkpoints", checkpoint(guard, "c2")), 409)
    assert fields(body) == {"path"}


def test_a_repeated_announcement_of_a_rotated_checkpoint_is_no_error(guard: Any) -> None:
    report = checkpoint(guard, "c1")
    guard.post("/v1/checkpoints", report)
    Path(report["path"]).rmdir()
    assert guard.post("/v1/checkpoints", report).json()["queued"] is False


def test_checkpoint_paths_stay_under_the_root(guard: Any, tmp_path: Path) -> None:
    root = guard.directory / "checkpoints"
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "escape").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "file").write_text("x")
    (guard.directory / "checkpoints-evil").mkdir()
    paths = [
        str(outside),
        str(root / "escape"),
        str(root / ".." / "checkpoints-evil"),
        str(guard.directory / "checkpoints-evil"),
        str(root),
        "../..",
        str(root / "missing"),
        str(root / "file"),
        str(root / "loop"),
        "a\x00b",
        "x" * 4096,
        "",
    ]
    for number, path in enumerate(paths):
        body = problem(
            guard.post("/v1/checkpoints", {"attempt": 0, "step": number, "path": path}),
            422,
        )
        assert fields(body) == {"path"}, path


def test_a_link_inside_the_root_is_followed_to_its_target(guard: Any) -> None:
    report = checkpoint(guard, "real")
    (guard.directory / "checkpoints" / "latest").symlink_to(report["path"])
    linked = report | {"path": str(guard.directory / "checkpoints" / "latest")}
    assert guard.post("/v1/checkpoints", linked).json()["queued"]
    assert guard.post("/v1/checkpoints", report).json()["queued"] is False


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b'{"attempt":0,"step":1}', "path"),
        (b'{"attempt":0,"step":1,"path":7}', "path"),
        (b'[{"attempt":0,"step":1,"path":"a"}]', "body"),
    ],
)
def test_bad_checkpoint_bodies(guard: Any, content: bytes, field: str) -> None:
    with guard.client() as client:
        headers = {"Content-Type": "application/json"}
        body = problem(client.post("/v1/checkpoints", content=content, headers=headers), 422)
    assert field in fields(body)


# -- reading -------------------------------------------------------------------------------------------------


def test_the_history_has_every_step_in_order(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(i, entropy=1.5) for i in (3, 1, 2)])
    response = guard.get("/v1/history")
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0] == {
        "attempt": 0,
        "step": 1,
        "reward": 0.5,
        "kl": None,
        "kl_kind": "absent",
        "entropy": 1.5,
        "reward_std": None,
        "step_event": 3,
    }


@pytest.mark.parametrize("points", [2, 3, 7, 100, 2_999, 3_000, 5_000])
def test_a_thinned_history_is_even_and_keeps_both_ends(long_history: Any, step: Step, points: int) -> None:
    body = long_history.get(f"/v1/history?max_points={points}").json()
    numbers = [s["step"] for s in body["steps"]]
    assert body["total_steps"] == 3_000
    assert len(numbers) == min(points, 3_000)
    assert (numbers[0], numbers[-1]) == (0, 2_999)
    gaps = {b - a for a, b in itertools.pairwise(numbers)}
    assert max(gaps) - min(gaps) <= 1


@pytest.fixture(scope="module")
def long_history(zygote: Any, tmp_path_factory: Any, guard_type: Any) -> Any:
    guard = guard_type(zygote, tmp_path_factory.mktemp("long")).start()
    for start in range(0, 3_000, 1_000):
        guard.post(
            "/v1/steps", [{"attempt": 0, "step": start + i, "reward": 0.5} for i in range(1_000)]
        ).raise_for_status()
    yield guard
    guard.end()


@pytest.mark.parametrize("value", ["1", "0", "-5", "x", "10001", "1e3", ""])
def test_max_points_out_of_range_is_422(guard: Any, value: str) -> None:
    assert fields(problem(guard.get(f"/v1/history?max_points={value}"), 422)) == {"max_points"}


def test_unknown_routes_and_methods_are_problems(guard: Any) -> None:
    with guard.client() as client:
        problem(client.get("/v1/nothing"), 404)
        problem(client.get("/v1/steps/"), 404)
        response = client.delete("/v1/steps")
        problem(response, 405)
        assert response.headers["allow"] == "POST"
        problem(client.post("/v1/verdict"), 405)


# -- tokens --------------------------------------------------------------------------------------------------

ROUTES = [
    # method, path, ingest token, read token, no token
    ("POST", "/v1/steps", 200, 403, 401),
    ("POST", "/v1/checkpoints", 422, 403, 401),
    ("GET", "/v1/verdict", 200, 200, 401),
    ("GET", "/v1/history", 403, 200, 401),
    ("GET", "/v1/rollouts", 403, 200, 401),
    ("GET", "/v1/figures", 403, 200, 401),
    ("GET", "/metrics", 403, 200, 401),
    ("GET", "/healthz", 200, 200, 200),
    ("GET", "/readyz", 200, 200, 200),
    ("GET", "/", 200, 200, 200),
]


@pytest.mark.parametrize(("method", "path", "ingest", "read", "none"), ROUTES)
def test_each_route_takes_its_own_token(
    shared_guard: Any, method: str, path: str, ingest: int, read: int, none: int
) -> None:
    content = {"attempt": 0, "step": 1, "reward": 0.5} if path == "/v1/steps" else {}
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


@pytest.fixture(scope="module")
def shared_guard(zygote: Any, tmp_path_factory: Any, guard_type: Any) -> Any:
    guard = guard_type(zygote, tmp_path_factory.mktemp("shared")).start()
    yield guard
    guard.end()


def test_no_token_is_needed_on_loopback_with_the_flag(new_guard: Callable[..., Any], step: Step) -> None:
    guard = new_guard(INGEST_TOKEN="", READ_TOKEN="", ALLOW_UNAUTHENTICATED_LOOPBACK="true").start()
    with guard.client(None) as client:
        assert client.post("/v1/steps", json=step(1)).status_code == 200
        for path in ("/v1/verdict", "/v1/history", "/metrics"):
            assert client.get(path).status_code == 200
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


def test_rollouts_of_the_start_and_the_newest_are_shown(guard: Any) -> None:
    assert shown(guard) == []
    guard.post("/v1/steps", [rollouts(1, "a", "b"), rollouts(5), rollouts(9)])
    assert shown(guard) == [(["start"], 0, 1, ["a", "b"]), (["newest"], 0, 9, ["42"])]


def test_a_repeated_step_is_a_repeat_whatever_people_are_shown_of_it(guard: Any) -> None:
    guard.post("/v1/steps", rollouts(1, "first"))
    again = guard.post("/v1/steps", [rollouts(1, "other"), figures(1)]).json()
    assert (again["accepted"], again["duplicates"]) == (0, 2)
    assert shown(guard)[0][3] == ["first"]


def test_what_is_shown_is_there_after_a_restart_and_a_damaged_file_costs_it_alone(guard: Any) -> None:
    guard.post("/v1/steps", [rollouts(1, "<b>\u202e\0\x1f\x1e"), figures(2, reward=0.5)])
    before = shown(guard), guard.get("/v1/figures").json()
    guard.end()
    guard.start()
    assert (shown(guard), guard.get("/v1/figures").json()) == before
    assert before[0][0][3] == ["<b>\u202e\0\x1f\x1e"]
    guard.end()
    for name in ("rollouts.json", "figures.json"):
        file = guard.state / name
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(file.read_bytes()[:-5])
    guard.start()
    assert shown(guard) == guard.get("/v1/figures").json() == []
    assert "rollouts.json is not read" in guard.log and "figures.json is not read" in guard.log
    assert guard.get("/v1/verdict").json()["steps"] == 2


def test_rollouts_that_cannot_be_kept_are_shown_all_the_same(guard: Any) -> None:
    (guard.state / "rollouts.new").mkdir()
    guard.post("/v1/steps", rollouts(1))
    end = time.monotonic() + 60
    while "rollouts cannot be kept" not in guard.log:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(shown(guard)) == 1


ONE = {"prompt": "", "completion": "", "reward": 1}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"rollouts": [ONE | {"reward": None}]}, 422),
        ({"rollouts": [ONE | {"prompt": 1}]}, 422),
        ({"rollouts": [ONE | {"answer": ""}]}, 422),
        ({"rollouts": []}, 422),
        ({"rollouts": {"0": {}}}, 422),
        ({"rollouts": [ONE | {"completion": "x" * 2001}]}, 422),
        ({"rollouts": [ONE] * 5}, 422),
        ({"rollouts": [ONE | {"completion": "x" * (MAX_BODY_BYTES + 1)}]}, 413),
        ({"figures": {}}, 422),
        ({"figures": {"a": None}}, 422),
        ({"figures": {"a": {"b": 1}}}, 422),
        ({"figures": {"": 1}}, 422),
        ({"figures": {"x" * 101: 1.0}}, 422),
        ({"figures": {f"n{i}": 1.0 for i in range(17)}}, 422),
    ],
)
def test_a_step_with_what_cannot_be_shown_is_refused_with_a_sentence(
    shared_guard: Any, more: dict[str, Any], status: int
) -> None:
    with shared_guard.client() as client:
        told = problem(client.post("/v1/steps", json={"attempt": 0, "step": 1, "reward": 0.5} | more), status)
    assert len(told["detail"]) > 10
    assert shared_guard.get("/v1/figures").json() == [] == shared_guard.get("/v1/rollouts").json()


def test_further_figures_are_shown_and_no_verdict_comes_of_them(guard: Any) -> None:
    told = [
        figures(n, **{"rewards/format/mean": -1e100, "__proto__": 1e100, "reward": n}) for n in range(1, 6)
    ]
    guard.post("/v1/steps", told)
    shown = [{name: one[name] for name in ("attempt", "step", "figures")} for one in told]
    assert guard.get("/v1/figures").json() == shown
    guard.post("/v1/steps", figures(3, reward=0.5))  # the first report counts
    assert guard.get("/v1/figures").json() == shown
    assert "__proto__" not in guard.get("/v1/history").text + guard.get("/v1/verdict").text


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
    assert (guard.state / "rollouts.json").stat().st_size < 4 << 20
    assert (guard.state / "figures.json").stat().st_size < 6 << 20


def test_what_is_too_long_is_quoted_in_part(guard: Any) -> None:
    name = "x" * 400_000
    for report in ([figures(1, **{name: 1.0})], {name: 1}):
        refused = guard.post("/v1/steps", report)
        assert refused.status_code == 422 and len(refused.content) < 2_000
        assert "xxx…" in refused.json()["detail"]
    refused = guard.get(f"/{name[:15_000]}")
    assert refused.status_code == 404 and len(refused.json()["detail"]) < 100
