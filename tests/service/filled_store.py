"""A store with every kind of content, and what a reader of it goes by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_service.event_log import EventLog, restore
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, StepReport, Verdict

POLICY = Policy()
FIRE = Latch(True, "kl_hard_stop", "the policy moved too far", 0, 39)


def steps(first: int, last: int) -> list[StepReport]:
    return [StepReport(attempt=0, step=n, reward=0.5 + n / 1000) for n in range(first, last)]


def fill(directory: Path, *, fire: bool) -> EventLog:
    """A log with every kind of content, left open."""
    log = EventLog(directory, POLICY)
    log.check_evaluation("d" * 64, {"scorer": "exact"})
    for first in range(0, 40, 4):
        log.append(steps(first, first + 4))
    log.append([CheckpointReport(attempt=0, step=20, path="/checkpoints/20")])
    log.append([Evaluation(0, 20, "/checkpoints/20", (0.25, 0.75) * 50, "e" * 64)])
    log.append(steps(40, 44))
    if fire:
        log.append([FIRE])
    return log


@dataclass(frozen=True)
class Content:
    """What a reader of the store goes by."""

    events: list[Any]
    verdict: Verdict


def content(directory: Path) -> Content:
    """Raises `StoreError` as a guard would meet it."""
    log = EventLog(directory, POLICY)
    try:
        events = list(log.events(0))
    finally:
        log.close()
    return Content(events, folded(directory, POLICY).verdict())


def folded(directory: Path, policy: Policy) -> Judge:
    """The judge of a log that is folded from its first event."""
    store, found = restore(directory, policy, None)
    store.close()
    return found.judge
