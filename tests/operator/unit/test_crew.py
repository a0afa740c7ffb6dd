"""The workers: what hangs holds up nothing else, and there are no more of them than are needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from guard_operator.runtime import crew
from guard_operator.runtime.crew import (
    HANGS_SECONDS,
    MOST_FOR_FIRES,
    MOST_WORKERS,
    URGENT_SECONDS,
    Crew,
    for_fires,
    stand_ins,
)
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue

LONG = HANGS_SECONDS
WORKERS = 4


@pytest.mark.parametrize(
    ("ages", "waiting", "more"),
    [
        ([0.0] * 4, 0, 0),
        ([0.0] * 4, 100, 0),
        ([LONG - 0.1] * 4, 100, 0),  # busy
        ([LONG] * 4, 0, 0),  # nothing waits
        ([LONG] * 4, 1, 1),
        ([LONG] * 4, 100, 4),
        ([LONG] * 3 + [0.0], 100, 3),
        ([LONG] * 8, 100, 4),
        ([LONG] * 4 + [0.0] * 4, 100, 0),
        ([0.0] * 20, 100, 0),
        ([LONG] * (MOST_WORKERS - 1), 100, 1),
        ([LONG] * MOST_WORKERS, 100, 0),
    ],
)
def test_one_more_stands_in_for_each_that_hangs(ages: list[float], waiting: int, more: int) -> None:
    assert stand_ins(WORKERS, ages, waiting) == more


def test_more_workers_than_the_limit_are_wanted() -> None:
    assert stand_ins(64, [LONG] * 64, 100) == 0


@pytest.mark.parametrize(
    ("waits", "there", "more"),
    [
        ([], 0, 0),
        ([URGENT_SECONDS - 0.1], 0, 0),
        ([URGENT_SECONDS] * 3 + [0.0], 0, 3),
        ([URGENT_SECONDS], 100, 1),
        ([URGENT_SECONDS] * 1000, 100, MOST_FOR_FIRES - 100),
        ([URGENT_SECONDS], MOST_FOR_FIRES, 0),
    ],
)
def test_a_fire_that_waits_gets_a_worker(waits: list[float], there: int, more: int) -> None:
    assert for_fires(waits, there) == more


class Room:
    """A crew of four and its queue; work on a key that starts with "hangs" ends when the test says so."""

    def __init__(self) -> None:
        self.queue: WorkQueue[str] = WorkQueue(OperatorMetrics())
        self.begun: dict[str, float] = {}
        self.released = threading.Event()
        self.threads: list[threading.Thread] = []
        self.crew = Crew(WORKERS, self.queue, self._work, self._thread)

    def _work(self, key: str) -> None:
        self.begun[key] = time.monotonic()
        if key.startswith("hangs"):
            self.released.wait(60)
        self.queue.done(key)

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def until(self, condition: Callable[[], bool]) -> None:
        """Look, as a manager does, until this holds."""
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, (sorted(self.begun), self.there())
            self.crew.look()
            time.sleep(0.01)

    def there(self) -> int:
        return sum(one.is_alive() for one in self.threads)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(crew, "HANGS_SECONDS", 0.2)
    room = Room()
    room.crew.start()
    yield room
    room.released.set()
    room.queue.close()
    for one in room.threads:
        one.join(30)
    assert not room.crew.alive() and room.there() == 0


def test_no_fire_waits_behind_those_that_hang(room: Room) -> None:
    hang = [f"hangs-{number}" for number in range(100)]
    for key in hang:
        room.queue.add(key, urgent=True)
    room.until(lambda: len(room.begun) == 100)
    room.queue.add("another", urgent=True)
    room.until(lambda: "another" in room.begun)


def test_a_fire_waits_for_no_more_than_a_moment(room: Room) -> None:
    for number in range(MOST_WORKERS):
        room.queue.add(f"hangs-{number}")
    room.until(lambda: len(room.begun) == MOST_WORKERS)
    room.queue.add("fired", urgent=True)
    room.queue.add("another")
    asked = time.monotonic()
    room.until(lambda: "fired" in room.begun)
    assert room.begun["fired"] - asked < URGENT_SECONDS + 2.0
    time.sleep(0.5)
    assert "another" not in room.begun, "a worker for fires takes nothing else"


def test_of_workers_for_fires_there_are_no_more_than_the_limit(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "MOST_WORKERS", WORKERS)
    monkeypatch.setattr(crew, "MOST_FOR_FIRES", 3)
    for number in range(WORKERS + 5):
        room.queue.add(f"hangs-{number}", urgent=True)
    room.until(lambda: len(room.begun) == WORKERS + 3)
    end = time.monotonic() + 2 * URGENT_SECONDS
    room.until(lambda: time.monotonic() > end)
    assert len(room.begun) == WORKERS + 3


def test_without_threads_those_that_are_there_go_on(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the limit of a container's processes, in the middle of many fires."""

    def refuse(*_of: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(room.crew, "_thread", refuse)
    for number in range(WORKERS + 2):
        room.queue.add(f"hangs-{number}", urgent=True)
    end = time.monotonic() + 2 * URGENT_SECONDS
    room.until(lambda: time.monotonic() > end)
    assert len(room.begun) == WORKERS
    monkeypatch.setattr(room.crew, "_thread", room._thread)
    room.until(lambda: len(room.begun) == WORKERS + 2)


def test_what_hangs_holds_up_no_other_job_for_long(room: Room) -> None:
    for number in range(12):
        room.queue.add(f"hangs-{number}")
    room.queue.add("another")
    room.until(lambda: "another" in room.begun)


def test_what_comes_due_while_all_hang_is_worked_on(room: Room) -> None:
    for number in range(WORKERS):
        room.queue.add(f"hangs-{number}")
    room.until(lambda: len(room.begun) == WORKERS)
    room.queue.add_after("later", 0.1)
    room.until(lambda: "later" in room.begun)


def test_who_is_not_needed_any_more_ends(room: Room) -> None:
    for number in range(12):
        room.queue.add(f"hangs-{number}", urgent=True)
    room.until(lambda: len(room.begun) == 12)
    room.released.set()
    room.until(lambda: room.there() == WORKERS)
    room.queue.add("another")
    room.until(lambda: "another" in room.begun)
    assert room.there() == WORKERS and room.crew.alive()


def test_a_worker_without_a_key_does_not_hang(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def note(_workers: int, ages: list[float], _waiting: int) -> int:
        seen.append(ages)
        return 0

    room.queue.add("a")
    room.until(lambda: "a" in room.begun)
    monkeypatch.setattr(crew, "stand_ins", note)
    room.until(lambda: seen[-1:] == [[0.0] * WORKERS])
