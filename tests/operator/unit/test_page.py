"""The page of all jobs without a browser: its rows, who is let in, and what it withstands."""

from __future__ import annotations

import gzip
import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from guard_operator.page import server
from guard_operator.page.rows import DETAIL_TEXT, ROW_TEXT, details, row
from guard_operator.page.server import PageServer, Shown, TokenFile
from guard_operator.reconcile.slim import TREND_POINTS, slim_job

Json = dict[str, Any]
TOKEN = "a-token-of-some-length"
AT = "2026-01-01T00:00:00Z"
HEALTHY = {"level": "healthy", "code": "ok", "reason": "no rule found anything", "heartbeat": AT}


def condition(type_: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT
    }  # fmt: skip


NOT_FIRED = condition("Fired", "False", "NotFired", "The guard reports and has not fired.")


def a_job(number: int = 0, **status: Any) -> Json:
    metadata = {"name": f"run-{number}", "namespace": f"team-{number % 7}", "uid": f"u{number}"}
    return slim_job(
        {
            "metadata": {**metadata, "creationTimestamp": AT, "managedFields": [1]},
            "spec": {},
            "status": status,
        }
    )


# -- rows ---------------------------------------------------------------------------------------------------


def judged(*conditions: Json, **guard: Any) -> Json:
    """The status of a job whose guard has reported."""
    return {"guard": HEALTHY | guard, "conditions": list(conditions)}


SILENT = condition("GuardSilent", "True", "GuardSilent", "no heartbeat")
DONE = condition("Succeeded", "True", "WorkloadSucceeded", "all judged")


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        ({}, "unknown", "the operator has not looked at it yet"),
        (judged(NOT_FIRED), "healthy", "no rule found anything"),
        (judged(NOT_FIRED, level="warning", reason="KL"), "warning", "KL"),
        (judged(NOT_FIRED, level="splendid"), "unknown", "no rule"),
        (judged(condition("Fired", "Unknown", "GuardNotRunning", "none now")), "unknown", "none now"),
        (judged(NOT_FIRED, SILENT), "unknown", "no heartbeat"),
        (judged(SILENT, condition("Fired", "True", "HackingGap", "step 4: gap")), "fired", "step 4: gap"),
        (judged(condition("Halted", "True", "GuardHalt", "silent at step 3")), "halted", "silent at"),
        (judged(condition("Guarded", "False", "ClaimMissing", "claim h")), "unknown", "claim h"),
        (judged(NOT_FIRED, DONE), "healthy", "all judged"),
        (judged(NOT_FIRED, condition("Succeeded", "True", "NotJudged", "2 failed")), "unknown", "2 failed"),
        (judged(NOT_FIRED, condition("Failed", "True", "WorkloadFailed", "exit 1")), "unknown", "exit 1"),
    ],
)
def test_only_what_is_known_now_is_healthy(status: Json, state: str, said: str) -> None:
    shown = row(a_job(**status))
    assert shown["state"] == state and said in shown["verdict"]


def test_what_is_missing_stays_missing() -> None:
    shown = row(a_job())
    assert shown["phase"] == "Pending" and shown["trend"] == []
    assert [shown[key] for key in ("step", "reward", "heldout", "heartbeat", "evidence")] == [None] * 5
    more = details(a_job())
    assert more["best"] is None and more["conditions"] == [] and more["gap"] is None


@pytest.mark.parametrize("name", ["x; rm -rf ~", "$(id)", "A", "", "-x", "a" * 254, "a\nb"])
def test_a_name_that_is_pasted_into_a_shell_is_a_name(name: str) -> None:
    assert row(a_job(evidence=name))["evidence"] is None
    assert row(a_job(evidence="rlguard-run-evidence"))["evidence"] == "rlguard-run-evidence"


def test_a_row_is_bounded() -> None:
    rounds = [{"attempt": 0, "step": n, "reward": 0.123456789, "heldout": 0.987654321} for n in range(50)]
    guard = HEALTHY | {"reason": "x" * 4096, "historyTail": rounds}
    raw = a_job(guard=guard, conditions=[NOT_FIRED, condition("Isolated", "True", "x", "y" * 32768)])
    shown = row(raw)
    assert len(shown["trend"]) == TREND_POINTS and len(shown["verdict"]) == ROW_TEXT
    assert len(json.dumps(shown)) < 1200
    assert len(details(raw)["conditions"][1]["message"]) == DETAIL_TEXT


# -- the port -----------------------------------------------------------------------------------------------


class Site:
    """A page of some jobs on a port of its own."""

    def __init__(self, directory: Path) -> None:
        self.jobs = [a_job(n, phase="Running") for n in range(3)]
        self.unread: list[tuple[str, bool]] = [("", True)]
        self.made = 0
        self.token = directory / "token"
        self.token.write_text(TOKEN + "\n")
        shown = Shown(self._all, self._one, lambda: self.unread, lambda: 3.2)
        self.server = PageServer(("127.0.0.1", 0), TokenFile(self.token), shown)

    def _all(self) -> list[Json]:
        self.made += 1
        return self.jobs

    def _one(self, key: tuple[str, str]) -> Json | None:
        named = [j for j in self.jobs if (j["metadata"]["namespace"], j["metadata"]["name"]) == key]
        return named[0] if named else None

    def ask(self, path: str, token: str | None = TOKEN, method: str = "GET", **headers: str) -> Any:
        given = headers | ({} if token is None else {"Authorization": f"Bearer {token}"})
        url = f"http://127.0.0.1:{self.server.port}{path}"
        return urllib.request.urlopen(urllib.request.Request(url, headers=given, method=method), timeout=30)

    def refused(self, path: str, **given: Any) -> tuple[int, str]:
        with pytest.raises(HTTPError) as caught:
            self.ask(path, **given)
        return caught.value.code, json.loads(caught.value.read())["detail"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.server.close()


def test_the_list(site: Site) -> None:
    answer = site.ask("/v1/jobs")
    body = json.loads(answer.read())
    assert [job["name"] for job in body["jobs"]] == ["run-0", "run-1", "run-2"]
    assert (body["unread"], body["quiet_seconds"]) == ([], 3)
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Server"] == "rlguard"
    packed = site.ask("/v1/jobs", **{"Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(packed.read())) == body
    assert site.ask("/v1/jobs", method="HEAD").read() == b""


def test_it_is_made_once_however_many_look(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIST_SECONDS", 600.0)
    for _ in range(5):
        site.ask("/v1/jobs")
    assert site.made == 1
    monkeypatch.setattr(server, "LIST_SECONDS", 0.0)
    site.ask("/v1/jobs")
    assert site.made == 2


@pytest.mark.parametrize(
    "token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "a-token-of-some-lengt\u00fc"]
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/team-0/run-0"])
def test_nobody_sees_a_job_without_the_token(site: Site, path: str, token: str | None) -> None:
    code, said = site.refused(path, token=token and token.encode().decode("latin-1"))
    assert code == 401 and "Authorization: Bearer" in said and "run-0" not in said


def test_no_token_is_taken_from_an_address(site: Site) -> None:
    assert site.refused(f"/v1/jobs?token={TOKEN}", token=None)[0] == 401


def test_a_token_that_was_changed_counts_at_once(site: Site) -> None:
    site.token.write_text("another-token-of-some-length")
    assert site.refused("/v1/jobs")[0] == 401
    assert site.ask("/v1/jobs", token="another-token-of-some-length").status == 200
    site.token.write_text("")
    assert site.refused("/v1/jobs", token="")[0] == 401, "an empty file is no token"
    site.token.unlink()
    assert site.refused("/v1/jobs", token="")[0] == 401


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 32])
def test_a_token_that_is_none_is_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="--page-token-file"):
        TokenFile(path)
    with pytest.raises(ValueError, match="cannot be read"):
        TokenFile(tmp_path / "none")


def test_no_list_is_not_an_empty_list(site: Site) -> None:
    site.unread = [("a", False), ("b", False)]
    assert site.refused("/v1/jobs")[0] == 503
    site.unread = [("a", False), ("b", True)]
    assert json.loads(site.ask("/v1/jobs").read())["unread"] == ["a"]


def test_one_job(site: Site) -> None:
    assert json.loads(site.ask("/v1/jobs/team-0/run-0").read())["name"] == "run-0"
    assert site.refused("/v1/jobs/team-0/run-1")[0] == 404
    assert site.refused("/v1/jobs/%2e%2e/etc%2fpasswd")[0] == 404
    assert site.refused("/v1/jobs/")[0] == 404
    assert site.refused("//[")[0] == 404
    assert site.refused("/v1/jobs/%ff/%00")[0] == 404


def test_it_is_read_only(site: Site) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert site.refused("/v1/jobs", method=method)[0] == 405


def test_the_page_itself_needs_no_token_and_holds_no_job(site: Site) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/icon.svg"):
        answer = site.ask(path, token=None)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert b"run-0" not in answer.read()
    assert site.refused("/page/../server.py")[0] == 404


def test_connections_that_are_left_open_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 600.0)  # what ends, ends to make room
    site = Site(tmp_path)
    with ExitStack() as stack:
        stack.callback(site.server.close)
        idle = [connected(stack, site) for _ in range(200)]
        assert site.ask("/v1/jobs").status == 200
        assert idle[0].recv(1) == b"", "the oldest made room"


def test_an_idle_connection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    site = Site(tmp_path)
    with ExitStack() as stack:
        stack.callback(site.server.close)
        assert connected(stack, site).recv(1) == b""


def connected(stack: ExitStack, site: Site) -> socket.socket:
    """A connection that began a request."""
    made = stack.enter_context(socket.create_connection(("127.0.0.1", site.server.port), timeout=30))
    made.sendall(b"GET /v1/jobs HTT")
    return made


# -- its manner ---------------------------------------------------------------------------------------------


def test_scripts_set_text_and_never_markup() -> None:
    """Every value may come from a job's status."""
    script = (files("guard_operator.page") / "static" / "app.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|srcdoc", script)


def test_its_colours_are_those_of_the_dashboard() -> None:
    ours, theirs = (
        (files(room) / "static" / "style.css").read_text()
        for room in ("guard_operator.page", "guard_service.dashboard")
    )
    parts = [re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2] for style in (ours, theirs)]
    for mine, dashboards in zip(*parts, strict=True):
        variables = set(re.findall(r"--[\w-]+: [^;]+", mine))
        assert len(variables) > 10 and variables <= set(re.findall(r"--[\w-]+: [^;]+", dashboards))
