"""The work queue: duplicates, keys under work, delays, backoff of each key, closing; on its own clock."""

from __future__ import annotations

import threading

import pytest

from rlguard.operator.runtime.backoff import Backoff
from rlguard.operator.runtime.metrics import OperatorMetrics
from rlguard.operator.runtime.queue import BASE_SECONDS, CAP_SECONDS, HANGS_SECONDS, WorkQueue


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(OperatorMetrics(), clock, workers=9)


def test_a_waiting_key_is_there_once_and_in_order(queue: WorkQueue[str]) -> None:
    for key in "abab":
        queue.add(key)
    assert queue.depth() == 2
    assert [queue.take(), queue.take()] == ["a", "b"]
    queue.add("a")
    assert queue.depth() == 0, "nobody else gets a key that is being worked on"
    queue.done("a")
    assert queue.take() == "a", "it comes again"


def test_what_is_urgent_goes_first_after_a_failure_and_at_its_time_too(
    queue: WorkQueue[str], clock: Clock
) -> None:
    """Until it is said to be so no more. A fire whose stop was refused must not wait behind 5,000 jobs."""
    queue.add("another")
    queue.add("fired")
    queue.add("fired", urgent=True)
    assert (queue.depth(), queue.take()) == (2, "fired"), "also if it waited already"
    queue.retry("fired")
    queue.done("fired")
    clock.now += CAP_SECONDS
    assert queue.take() == "fired"
    queue.done("fired")
    queue.add_after("fired", 2)
    clock.now += 2
    assert queue.take() == "fired"
    queue.add("fired", urgent=False)
    queue.done("fired")
    assert [queue.take(), queue.take()] == ["another", "fired"]


def test_what_hangs_holds_up_nothing(clock: Clock) -> None:
    """Neither what waits for a worker nor a fire."""
    queue: WorkQueue[str] = WorkQueue(OperatorMetrics(), clock, workers=1)
    queue.add("hangs")
    assert queue.take() == "hangs"
    queue.add("waits")
    queue.add("fired", urgent=True)
    assert queue.take() == "fired", "though the one worker is busy"
    queue.done("fired")
    clock.now += HANGS_SECONDS
    assert queue.take() == "waits"


def test_each_key_backs_off_by_itself(queue: WorkQueue[str]) -> None:
    slow = [queue.retry("a") for _ in range(20)]
    assert all(CAP_SECONDS / 2 <= delay <= CAP_SECONDS for delay in slow[12:])
    assert queue.retry("b") <= BASE_SECONDS
    queue.forget("a")
    assert queue.retry("a") <= BASE_SECONDS
    assert queue.retry("b", at_least=7.0) >= 7.0


def test_closing_wakes_every_worker() -> None:
    queue: WorkQueue[str] = WorkQueue(OperatorMetrics())
    results: list[str | None] = []
    workers = [threading.Thread(target=lambda: results.append(queue.take())) for _ in range(3)]
    for worker in workers:
        worker.start()
    queue.close()
    for worker in workers:
        worker.join(30)
    assert results == [None, None, None]


def test_backoff_doubles_jitters_and_starts_again() -> None:
    backoff = Backoff(1.0, 8.0)
    for full in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert full / 2 <= backoff.next() <= full
    assert 7.0 <= backoff.next(at_least=7.0) <= 8.0
    assert backoff.next(at_least=20.0) == 20.0, "a server knows better than our own cap"
    assert backoff.next(at_least=86400.0) == 60.0, "but may not say what it likes"
    backoff.reset()
    assert backoff.next() <= 1.0
