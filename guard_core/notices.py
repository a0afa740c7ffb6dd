"""What people are told by a webhook, in Slack's shape and in Alertmanager's. Pure.

What a guard says of a run may hold anything: in Slack's shape it can neither name a link nor call a channel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

#: Characters of a sentence: Slack cuts a text at 40,000, and people read the first line.
MOST_TEXT = 2000
#: How long Alertmanager shows an alert that comes once; without an end it would take it back after minutes.
SHOWN_FOR = timedelta(hours=1)


class Event(StrEnum):
    """What is told."""

    FIRED = "fired"
    HALTED = "halted"
    STOPPED = "stopped"


class Shape(StrEnum):
    """Who is told: an incoming webhook of Slack, or `POST /api/v2/alerts` of an Alertmanager."""

    SLACK = "slack"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of one run. `namespace` is "" on one machine; `command` shows more."""

    event: Event
    namespace: str
    name: str
    reason: str
    sentence: str
    command: str
    at: datetime

    @property
    def run(self) -> str:
        """The run by its full name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def body(shape: Shape, notice: Notice) -> bytes:
    """The body of the request, JSON."""
    made = _slack(notice) if shape is Shape.SLACK else _alerts(notice)
    return json.dumps(made).encode()


def _slack(notice: Notice) -> dict[str, str]:
    title = f"RLGuard: {notice.run} {notice.event} ({notice.reason})"
    return {"text": _escaped(f"{title}\n{notice.sentence[:MOST_TEXT]}\nMore: {notice.command}")}


def _escaped(text: str) -> str:
    """Slack's three control characters as text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alerts(notice: Notice) -> list[dict[str, Any]]:
    labels = {
        "alertname": f"RLGuardRun{notice.event.capitalize()}",
        "name": notice.name,
        "reason": notice.reason,
        "severity": "info" if notice.event is Event.STOPPED else "critical",
    }
    if notice.namespace:
        labels["namespace"] = notice.namespace
    annotations = {
        "summary": f"{notice.run} {notice.event}",
        "description": notice.sentence[:MOST_TEXT],
        "command": notice.command,
    }
    start = notice.at.astimezone(UTC)
    return [
        {
            "labels": labels,
            "annotations": annotations,
            "startsAt": start.isoformat(),
            "endsAt": (start + SHOWN_FOR).isoformat(),
        }
    ]
