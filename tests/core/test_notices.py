"""What is told by a webhook, in the shape that each side documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from guard_core.notices import MOST_TEXT, Event, Notice, Shape, body

AT = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=1)))


def notice(**changed: Any) -> Notice:
    given = {
        "event": Event.FIRED, "namespace": "team-a", "name": "grpo", "reason": "HackingGap",
        "sentence": "step 40: the gap of 0.3 is above 0.1", "command": "rlguard status grpo -n team-a",
        "at": AT,
    }  # fmt: skip
    return Notice(**given | changed)


def slack(**changed: Any) -> str:
    """The text of an incoming webhook; it is all that such a request needs."""
    made = json.loads(body(Shape.SLACK, notice(**changed)))
    assert made.keys() == {"text"} and isinstance(made["text"], str)
    return made["text"]


def alert(**changed: Any) -> dict[str, Any]:
    """The alert, checked as Alertmanager's API v2 describes a `postableAlert`."""
    (made,) = json.loads(body(Shape.ALERTMANAGER, notice(**changed)))
    assert made.keys() == {"labels", "annotations", "startsAt", "endsAt"} and "alertname" in made["labels"]
    for labels in (made["labels"], made["annotations"]):
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in labels.items())
    starts, ends = (datetime.fromisoformat(made[key]) for key in ("startsAt", "endsAt"))
    assert starts.tzinfo is not None and ends > starts
    return made


def test_slack_is_told_what_happened_and_where_to_look() -> None:
    assert slack() == (
        "RLGuard: team-a/grpo fired (HackingGap)\nstep 40: the gap of 0.3 is above 0.1\n"
        "More: rlguard status grpo -n team-a"
    )
    assert slack(namespace="").startswith("RLGuard: grpo fired")


@pytest.mark.parametrize("evil", ["<!channel>", "<https://example.com|click>", "&lt;!here&gt;", "<@U123>"])
def test_nothing_of_a_verdict_is_a_command_to_slack(evil: str) -> None:
    for field in ("sentence", "reason", "name", "command"):
        text = slack(**{field: evil})
        assert "<" not in text and ">" not in text
        assert text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").count(evil) == 1


def test_alertmanager_gets_an_alert_that_it_shows_for_a_while() -> None:
    made = alert()
    assert made["labels"] == {
        "alertname": "RLGuardRunFired", "namespace": "team-a", "name": "grpo", "reason": "HackingGap",
        "severity": "critical",
    }  # fmt: skip
    assert made["annotations"]["description"] == "step 40: the gap of 0.3 is above 0.1"
    assert made["annotations"]["command"] == "rlguard status grpo -n team-a"
    assert datetime.fromisoformat(made["startsAt"]) == AT.astimezone(UTC)
    assert made["startsAt"].endswith("+00:00")


def test_a_stop_is_told_as_information_and_a_run_without_a_namespace_has_none() -> None:
    made = alert(event=Event.STOPPED, namespace="")
    assert made["labels"]["alertname"] == "RLGuardRunStopped" and made["labels"]["severity"] == "info"
    assert "namespace" not in made["labels"]


def test_a_long_verdict_is_cut() -> None:
    assert len(slack(sentence="x" * 100_000)) < MOST_TEXT + 200
    assert len(alert(sentence="x" * 100_000)["annotations"]["description"]) == MOST_TEXT
