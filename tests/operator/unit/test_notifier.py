"""Webhooks of the operator against a real HTTP server: bounded, told once, and never in the way of a stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from guard_core.notices import Event, Notice, Shape
from guard_operator.api.types import Spec, Status
from guard_operator.reconcile import notifier
from guard_operator.reconcile.notifier import TELL_WITHIN, Notifications, Notifier, due
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime import webhook
from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import ApiError, TransportError
from guard_operator.runtime.webhook import Webhook, WebhookError, deliver, send, webhooks
from tests.receiver import Receiver

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
ALL = frozenset(Event)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}


def condition(type_: str, status: str = "True", age: float = 5.0, reason: str = "HackingGap") -> Json:
    at = (NOW - timedelta(seconds=age)).isoformat()
    said = {"Fired": "step 4: gap", "Stopped": "no pod of the run is left"}.get(type_, "m")
    return {"type": type_, "status": status, "reason": reason, "message": said, "lastTransitionTime": at}


def job(*conditions: Json, uid: str = "uid", **status: Any) -> Job:
    raw = {"conditions": list(conditions), **status}
    return Job("run", "ns", uid, 1, "1", {}, Spec.model_validate(SPEC), Status.model_validate(raw))


def notices(one: Job, events: frozenset[Event] = ALL) -> list[Notice]:
    return list(due(one, events, NOW))


# -- what is due --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "status", "told"),
    [
        ([], {}, []),
        ([condition("Fired", "False")], {}, []),
        ([condition("Fired")], {}, ["fired"]),
        ([condition("Halted")], {}, ["halted"]),
        ([condition("Fired"), condition("Stopped", "False")], {}, ["fired"]),
        ([condition("Fired"), condition("Stopped")], {}, ["fired", "stopped"]),
        ([condition("Fired"), condition("Stopped")], {"notified": {"fired": NOW}}, ["stopped"]),
        ([condition("Fired")], {"notified": {"fired": NOW}}, []),
        ([condition("Fired", age=TELL_WITHIN.total_seconds() + 1)], {}, []),
        ([condition("Fired", age=TELL_WITHIN.total_seconds() - 1)], {}, ["fired"]),
    ],
)
def test_what_stands_in_the_status_is_told_once_and_while_it_is_news(
    conditions: list[Json], status: Json, told: list[str]
) -> None:
    assert [notice.event for notice in notices(job(*conditions, **status))] == told


def test_a_notice_says_why_and_where_to_look() -> None:
    fired, stopped = notices(job(condition("Fired"), condition("Stopped", reason="NoPodsLeft")))
    assert (fired.reason, fired.sentence) == ("HackingGap", "step 4: gap")
    assert fired.command == "rlguard status run -n ns"
    assert (stopped.reason, stopped.sentence) == ("HackingGap", "no pod of the run is left; step 4: gap")
    (known,) = notices(job(condition("Fired"), evidence="anything; at all"))
    assert known.command.startswith("kubectl -n ns get configmap run-") and ";" not in known.command
    assert notices(job(condition("Fired")), frozenset({Event.STOPPED})) == []


# -- the URL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks.slack.com/SECRET", "ftp://h/SECRET", "http://hooks.slack.com/SECRET", "https:///SECRET",
        "https://user:SECRET@host/", "https://host/SECRET\r\nX: y", "https://host/SECRET x", "https://host:x/SECRET",
        "https://höst/SECRET", "https://[::1/SECRET",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(ValueError, match="slack") as refused:
        webhooks({"slack": url}, "here")
    assert "SECRET" not in str(refused.value)


def test_who_may_be_asked_in_the_clear() -> None:
    """An Alertmanager of the cluster has no secret in its address; Slack's address is one."""
    assert webhooks({"alertmanager": "http://alertmanager.monitoring:9093/api/v2/alerts"}, "here")
    assert webhooks({"slack": "http://127.0.0.1:1/x"}, "here")
    (made,) = webhooks({"slack": " https://hooks.slack.com/services/SECRET\n"}, "here")
    assert made.url.endswith("SECRET") and "SECRET" not in repr(made)
    with pytest.raises(ValueError, match="there is no shape 'teams': use slack or alertmanager"):
        webhooks({"teams": "https://x/"}, "here")


def test_a_directory_without_a_webhook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a file slack nor one alertmanager"):
        Notifications(tmp_path, ALL).webhooks()
    with pytest.raises(ValueError, match="cannot be read"):
        Notifications(tmp_path / "none", ALL).webhooks()
    (tmp_path / "..data").write_text("of the kubelet")
    (tmp_path / "slack").write_text("https://hooks.slack.com/services/x\n")
    assert [one.shape for one in Notifications(tmp_path, ALL).webhooks()] == [Shape.SLACK]


# -- sending ------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "SECONDS", 0.3)


def a_notice() -> Notice:
    return notices(job(condition("Fired")))[0]


def to(receiver: Receiver) -> Webhook:
    return Webhook(Shape.SLACK, receiver.url + "?a=b")


@pytest.mark.parametrize(
    ("answers", "asked", "trouble"),
    [
        ((200,), 1, ""),
        ((500, 429, 200), 3, ""),
        ((500,), 3, "HTTP 500"),
        ((404,), 1, "HTTP 404"),
        ((302,), 1, "it redirects (HTTP 302), which is not followed"),
        ((307,), 1, "it redirects (HTTP 307), which is not followed"),
        (("hang",), 3, "no response"),
        (("drip",), 3, "no response"),
    ],
    ids=str,
)
def test_tries_are_bounded_and_no_redirect_is_followed(
    quick: None, answers: tuple[int | str, ...], asked: int, trouble: str
) -> None:
    begun = time.monotonic()
    with Receiver(*answers) as receiver:
        said = deliver(to(receiver), a_notice(), pauses=(0.0, 0.0))
    assert time.monotonic() - begun < 20
    assert (said == "") is (trouble == "") and trouble in said and "SECRET" not in said
    assert receiver.paths == ["/services/SECRET?a=b"] * asked


def test_nobody_there_is_tried_again(quick: None) -> None:
    with Receiver() as receiver:
        pass
    with pytest.raises(WebhookError) as refused:
        send(to(receiver), a_notice())
    assert refused.value.again and "SECRET" not in str(refused.value)


def test_https_goes_through_the_proxy_of_the_environment(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "inside.example.com")
    hosts = ("a.example.com", "inside.example.com")
    made = [webhook._connection(webhook.urlsplit(f"https://{host}/x")) for host in hosts]
    assert [(one.host, one.port) for one in made] == [("127.0.0.1", 9), ("inside.example.com", 443)]


# -- the operator -------------------------------------------------------------------------------------------


class Api:
    """Takes the note that something was told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.patches = list(errors), list[Json]()

    def merge(self, _resource: Any, _namespace: str, _name: str, patch: Json, *_: Any, sub: str) -> Json:
        assert sub == "status"
        if self.errors:
            raise self.errors.pop(0)
        self.patches.append(patch)
        return {}


Make = Callable[..., tuple[Notifier, Api]]


@pytest.fixture
def counted() -> list[tuple[str, str, bool]]:
    return []


@pytest.fixture
def make(tmp_path: Path, counted: list[tuple[str, str, bool]], monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(webhook, "SECONDS", 0.3)
    monkeypatch.setattr(notifier, "NOTE_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(
        notifier, "deliver", lambda hook, notice: deliver(hook, notice, (0.0, 0.0), lambda _: None)
    )

    def made(receiver: Receiver, *errors: Exception) -> tuple[Notifier, Api]:
        (tmp_path / "slack").write_text(receiver.url)
        (tmp_path / "alertmanager").write_text(receiver.url)
        api = Api(*errors)
        told = Notifications(tmp_path, ALL)
        return Notifier(cast(Client, api), told, lambda *seen: counted.append(seen), lambda: NOW), api

    return made


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_both_are_told_and_it_is_noted(make: Make, counted: list[tuple[str, str, bool]]) -> None:
    with Receiver() as receiver:
        some, api = make(receiver)
        some.tell(job(condition("Fired")), NOW)
        until(lambda: api.patches)
    assert sorted(isinstance(body, list) for body in receiver.bodies) == [False, True]
    assert api.patches == [
        {"metadata": {"uid": "uid"}, "status": {"notified": {"fired": "2026-01-02T12:00:00.000000Z"}}}
    ]
    assert sorted(counted) == [("fired", "alertmanager", True), ("fired", "slack", True)]


def test_each_event_is_told_once(make: Make) -> None:
    """However often it is seen: by this process, and after its note by the next one."""
    with Receiver() as receiver:
        some, api = make(receiver)
        for _ in range(20):
            some.tell(job(condition("Fired")), NOW)
        until(lambda: api.patches)
        for _ in range(20):
            some.tell(job(condition("Fired")), NOW)  # a cache that is behind does not show the note yet
        noted = job(condition("Fired"), notified={"fired": NOW})
        some.tell(noted, NOW)
        assert some._begun == set(), "nothing is kept of what is noted"
        another, _ = make(receiver)
        another.tell(noted, NOW)
        some.tell(job(condition("Fired"), condition("Stopped"), notified={"fired": NOW}), NOW)
        until(lambda: len(api.patches) == 2)
    assert len(receiver.bodies) == 4, "fired and stopped, each to both"


@pytest.mark.parametrize("answer", ["hang", "drip", 500, 302])
def test_no_webhook_delays_a_reconcile(make: Make, answer: int | str) -> None:
    with Receiver(answer) as receiver:
        some, _ = make(receiver)
        begun = time.monotonic()
        for number in range(200):
            some.tell(job(condition("Fired"), uid=str(number)), NOW)
        assert time.monotonic() - begun < 4.0


def test_what_is_given_up_is_counted_logged_and_noted(
    make: Make, counted: list[tuple[str, str, bool]], caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver(404) as receiver, caplog.at_level(logging.INFO):
        some, api = make(receiver)
        some.tell(job(condition("Fired")), NOW)
        until(lambda: api.patches)
    assert sorted(counted) == [("fired", "alertmanager", False), ("fired", "slack", False)]
    assert "ns/run fired, and slack was not notified: HTTP 404" in caplog.text
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("error", [TransportError("away"), ApiError(500, "", "broken", None)])
def test_the_note_is_tried_again(make: Make, error: Exception) -> None:
    with Receiver() as receiver:
        some, api = make(receiver, error)
        some.tell(job(condition("Fired")), NOW)
        until(lambda: api.patches)


def test_a_job_that_is_gone_ends_it(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with Receiver() as receiver:
        some, api = make(receiver, ApiError(404, "", "gone", None), TransportError("never asked"))
        some.tell(job(condition("Fired")), NOW)
        until(lambda: "not noted" in caplog.text)
    assert len(api.errors) == 1 and api.patches == []
    assert some._begun == set(), "nothing is kept of it"


def test_urls_that_went_bad_are_said_and_nothing_dies(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as receiver:
        some, api = make(receiver)
        (tmp_path / "slack").write_text("http://elsewhere/SECRET")
        some.tell(job(condition("Fired")), NOW)
        until(lambda: api.patches)
        assert "nobody was notified" in caplog.text and "SECRET" not in caplog.text
        (tmp_path / "slack").write_text(receiver.url)
        some.tell(job(condition("Fired"), uid="next"), NOW)
        until(lambda: len(api.patches) == 2)
    assert len(receiver.bodies) == 2


def test_without_webhooks_nobody_is_told_and_nothing_runs() -> None:
    some = Notifier(cast(Client, None), None, lambda *_: None)
    some.tell(job(condition("Fired")), NOW)
    assert some._begun == set()
