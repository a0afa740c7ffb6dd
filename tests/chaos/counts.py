"""What went wrong in a run, by what was seen of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from .schedule import Run


class Count(StrEnum):
    """What is counted; the aim of each is 0."""

    FIRE_LEFT = "fires not torn down"
    HEALTHY_STOPPED = "healthy runs stopped"
    LATCH_OPENED = "latches opened"
    STEP_LOST = "acknowledged steps lost"
    DOUBLE_EVENT = "double Events"


#: Events of a story that is told once. Others, such as those of a guard that is back, may come again.
ONCE = {
    "WorkloadCreated",
    "KlHardStop",
    "StopRequested",
    "EvidenceCaptured",
    "NoPodsLeft",
    "WorkloadSucceeded",
    "CheckpointsLeft",
    "NotJudged",
    "FinishedWithWarning",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The job and its workload at one moment. `told`: the workload was told to end, or is gone."""

    fire: bool = False
    fired: bool = False
    halted: bool = False
    stop: bool = False
    told: bool = False


def seen_of(job: Mapping[str, Any], told: bool) -> Seen:
    """What a GuardedTrainingJob says of itself. `told`: its workload was told to end, or is not there."""
    status = job.get("status") or {}
    held = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
    return Seen(
        fire=bool((status.get("guard") or {}).get("fire")),
        fired="Fired" in held,
        halted="Halted" in held,
        stop="stop" in status,
        told=told and "workloadRef" in status,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen of a run.

    `verdicts`: whether the guard's answers to the trainer said "fire", without repetitions; `seen`: the same
    of the cluster; `acknowledged` and `stored`: reports by their step; `phase`, `pods` left and `events`
    (reason, message): as they were in the end; `stop_seconds`: from the first answer that said "fire" to the
    last pod's end, None if that was not seen; `refused`: answers that acknowledged nothing.
    """

    run: Run
    verdicts: tuple[bool, ...] = ()
    seen: tuple[Seen, ...] = ()
    acknowledged: Mapping[int, Mapping[str, Any]] | None = None
    stored: Mapping[int, Mapping[str, Any]] | None = None
    stored_latch: bool = False
    phase: str = ""
    pods: int = 0
    events: tuple[tuple[str, str], ...] = ()
    stop_seconds: float | None = None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that must not be."""

    count: Count
    run: str
    what: str


def wrong(facts: Facts) -> tuple[Wrong, ...]:
    """Everything that went wrong in this run."""
    checks = (_fire_left, _healthy_stopped, _latch_opened, _steps_lost, _double_events)
    return tuple(Wrong(count, facts.run.name, what) for check in checks for count, what in check(facts))


def totals(everything: Iterable[Facts]) -> Counter[Count]:
    """How often each went wrong in all of these runs."""
    return Counter(one.count for facts in everything for one in wrong(facts))


def _fire_left(facts: Facts) -> Iterator[tuple[Count, str]]:
    """A run that hacks must end torn down, also if its guard never came to fire."""
    if not facts.run.hacks:
        return
    told = bool(facts.seen) and facts.seen[-1].told
    if facts.phase != "Stopped" or facts.pods or not told:
        fired = "fired" if any(facts.verdicts) or facts.stored_latch else "never fired"
        yield Count.FIRE_LEFT, f"{fired}; phase {facts.phase}, {facts.pods} pods left, workload told: {told}"


def _healthy_stopped(facts: Facts) -> Iterator[tuple[Count, str]]:
    if facts.run.hacks:
        return
    touched = [one for one in facts.seen if one.fire or one.fired or one.halted or one.stop or one.told]
    if touched:
        yield Count.HEALTHY_STOPPED, f"stopped, or about to be: {touched[0]}"
    elif facts.phase != "Succeeded":
        yield Count.HEALTHY_STOPPED, f"its trainer finished, and its phase is {facts.phase}"


def _latch_opened(facts: Facts) -> Iterator[tuple[Count, str]]:
    series = {
        "the guard's answers": facts.verdicts,
        "status.guard.fire": [one.fire for one in facts.seen],
        "the condition Fired": [one.fired for one in facts.seen],
        "the condition Halted": [one.halted for one in facts.seen],
    }
    for where, values in series.items():
        if any(before and not after for before, after in pairwise(values)):
            yield Count.LATCH_OPENED, f"in {where}"
    if any(facts.verdicts) and not facts.stored_latch:
        yield Count.LATCH_OPENED, "the store has no latch, and the trainer was told of one"


def _steps_lost(facts: Facts) -> Iterator[tuple[Count, str]]:
    stored = facts.stored or {}
    for step, report in (facts.acknowledged or {}).items():
        kept = stored.get(step, {})
        if any(kept.get(name) != value for name, value in report.items()):
            yield Count.STEP_LOST, f"step {step} is {dict(kept) or 'not there'}, not {dict(report)}"


def _double_events(facts: Facts) -> Iterator[tuple[Count, str]]:
    once = Counter(reason for reason, _ in facts.events if reason in ONCE)
    for told, times in once.items():
        for _ in range(times - 1):
            yield Count.DOUBLE_EVENT, f"{told} was told {times} times"
