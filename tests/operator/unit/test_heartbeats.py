"""How silence is counted, and when it is taken for the fault of others than the guards.

Aspects: age from when a heartbeat was seen; one silent guard among others that report, whatever the moment;
one fault that silences most; guards that come back one by one; guards that fell silent at
different times; few; news that comes late, of guards whose clocks differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from guard_operator.reconcile.heartbeats import HeartbeatClock

LIMIT = 30.0


class Fleet:
    """Guards that report every 15 s, each at a moment of its own, to a clock that looks every second."""

    def __init__(self, guards: int, seed: int = 0) -> None:
        self.now = 0.0
        self.beats = HeartbeatClock(lambda: self.now)
        offsets = random.Random(seed)
        self._next = {str(n): offsets.uniform(0, 15) for n in range(guards)}
        self._beat = dict.fromkeys(self._next, 0)

    def run(self, seconds: int, silent: Callable[[str], bool] = lambda _name: False) -> None:
        for _ in range(seconds):
            self.now += 1
            for name, due in self._next.items():
                if due <= self.now:
                    self._next[name] = self.now + 15
                    self._beat[name] += not silent(name)
                self.age(name)

    def age(self, name: str) -> float:
        return self.beats.age(name, self._beat[name])

    def stopped(self, limit: float = LIMIT) -> set[str]:
        """Whose silence would end their run now."""
        return {n for n in self._next if self.age(n) > limit and not self.beats.with_most(n, limit)}

    def ever_stopped(self, seconds: int, silent: Callable[[str], bool]) -> set[str]:
        found: set[str] = set()
        for _ in range(seconds):
            self.run(1, silent)
            found |= self.stopped()
        return found


def test_heartbeats_age_from_when_they_were_seen() -> None:
    now = [100.0]
    beats = HeartbeatClock(lambda: now[0])
    assert beats.age("job", "a") == 0
    now[0] += 7
    assert beats.age("job", "a") == 7
    assert beats.age("other", "a") == 0
    assert beats.age("job", "b") == 0
    beats.forget("job")
    now[0] += 7
    assert beats.age("job", "b") == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("guards", [1, 2, 3, 5, 20])
def test_one_silent_guard_is_met_soon(guards: int, seed: int) -> None:
    fleet = Fleet(guards, seed)
    fleet.run(60)
    assert fleet.ever_stopped(50, lambda name: name == "0") == {"0"}
    assert fleet.age("0") < 66, "15 s since the last report, the limit, and no long hesitation"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("guards", [3, 5, 20])
def test_most_that_fall_silent_at_once_are_not_stopped(guards: int, seed: int) -> None:
    fleet = Fleet(guards, seed)
    fleet.run(60)
    most = {str(n) for n in range(guards // 2 + 1)}
    assert fleet.ever_stopped(200, lambda name: name in most if len(most) >= 3 else True) == set()


@pytest.mark.parametrize("seed", range(5))
def test_those_that_come_back_last_have_their_time_too(seed: int) -> None:
    fleet = Fleet(20, seed)
    fleet.run(60)
    assert fleet.ever_stopped(100, lambda _name: True) == set()
    # All report again within 15 s; until then some are silent although most are back.
    assert fleet.ever_stopped(60, lambda _name: False) == set()


def test_a_guard_that_stays_away_after_the_others_are_back_is_met() -> None:
    fleet = Fleet(20)
    fleet.run(60)
    fleet.run(100, lambda _name: True)
    assert fleet.ever_stopped(60, lambda name: name == "0") == {"0"}


class Late:
    """Three guards that report every 15 s, by clocks of their own, and whose news takes its time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.beats = HeartbeatClock(lambda: self.now)
        self.clocks = {"a": 0.0, "b": 3_600.0, "c": -86_400.0}
        for name in self.clocks:
            self.age(name, self.now)
            self.report(name, self.now + 1)

    def beat(self, name: str, at: float) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at + self.clocks[name])

    def age(self, name: str, at: float) -> float:
        return self.beats.age(name, self.beat(name, at), "pod")

    def report(self, name: str, at: float, *, late: float = 0.0) -> None:
        self.now = max(self.now, at + late)
        self.beats.heard(name, self.beat(name, at))


def test_what_came_in_later_was_not_said_later() -> None:
    """All fell silent at 1,060; the last of `a` came in at once, that of the others when it is silent."""
    fleet = Late()
    for at in (1_016, 1_031, 1_046, 1_060):
        fleet.report("a", at)
    for at in (1_016, 1_031):
        fleet.report("b", at, late=35)
        fleet.report("c", at, late=35)
    fleet.now = 1_091
    assert fleet.beats.with_most("a", LIMIT), "nobody knows that b and c have said more"
    for at in (1_046, 1_060):
        fleet.report("b", at, late=39)
        fleet.report("c", at, late=39)
    fleet.now = 1_105
    assert fleet.beats.with_most("a", LIMIT), "they had said it when a did"
    fleet.report("b", 1_106)
    fleet.report("c", 1_107)
    assert fleet.beats.with_most("a", LIMIT), "they were silent until just now"
    fleet.now += LIMIT
    assert not fleet.beats.with_most("a", LIMIT), "it has had its time to follow"


def test_one_silent_guard_is_met_while_news_of_the_others_is_late() -> None:
    fleet = Late()
    fleet.report("a", 1_016)
    for at in range(1_016, 1_120, 15):
        fleet.report("b", at, late=30)
        fleet.report("c", at, late=30)
    assert not fleet.beats.with_most("a", LIMIT), "they have said more than 20 s later than it"
