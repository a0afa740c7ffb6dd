"""How much a trainer may write: a hostile one fills its share, and an honest one notices nothing."""

from __future__ import annotations

from guard_service.event_log import BURST, MAX_BYTES, RATE, Allowance

MIB = 1 << 20


def test_an_honest_run_of_a_million_steps_is_not_touched() -> None:
    some = Allowance(MAX_BYTES)
    per_step = 300
    for number in range(1_000_000):
        assert some.refuses_steps(1, number * per_step, now=number / 10) is None


def test_steps_that_waited_for_an_hour_may_come_at_once() -> None:
    some = Allowance(MAX_BYTES)
    assert all(some.refuses_steps(1_000, 0, now=5.0) is None for _ in range(36))


def test_a_log_of_a_hundred_thousand_steps_may_come_at_once_and_a_longer_one_soon() -> None:
    some, taken, now = Allowance(MAX_BYTES), 0, 5.0
    while taken < 200_000:
        if some.refuses_steps(1_000, 0, now) is None:
            taken += 1_000
        else:
            now += 1.0
    assert now == 105.0


def test_what_comes_at_once_takes_no_more_however_much_a_store_may_have() -> None:
    """At 205 bytes for a step a million took 215 MB, before anything was refused."""
    some = Allowance(1_000 * MAX_BYTES)
    taken = 0
    while some.refuses_steps(1_000, taken * 300, now=5.0) is None:
        taken += 1_000
    assert taken * 300 <= 30_000_000


def test_a_flood_is_told_when_to_come_again() -> None:
    some = Allowance(MIB)
    assert all(some.refuses_steps(1_000, 0, now=0.0) is None for _ in range(BURST // 1_000))
    refused = some.refuses_steps(1_000, 0, now=0.5)
    assert refused is not None and refused.status == 429 and refused.headers == {"Retry-After": "1"}
    assert some.refuses_steps(1_000, 0, now=1.0) is None
    assert some.refuses_steps(1_000, 0, now=1.0 + 999 / RATE) is not None


def test_a_share_is_left_for_announcements_and_more_for_the_guard() -> None:
    some = Allowance(100 * MIB)
    for size, steps, announcements in (
        (79, False, False),
        (80, True, False),
        (89, True, False),
        (90, True, True),
    ):
        refused = some.refuses_steps(1, size * MIB, now=0.0)
        assert (refused is not None) == steps, size
        assert some.is_full(size * MIB) == steps, size
        assert (some.refuses_announcement(size * MIB) is not None) == announcements, size
        assert refused is None or (refused.status, "100 MiB" in str(refused)) == (507, True)


def test_a_trainer_is_not_told_how_much_of_its_store_is_used() -> None:
    """What is kept of an evaluation is longer the more items are solved in part."""
    some = Allowance(100 * MIB)
    told = {str(some.refuses_steps(1, size * MIB, now=0.0)) for size in (91, 92)}
    assert len(told) == 1 and told == {str(some.refuses_steps(1, 93 * MIB, now=0.0))}
    assert str(some.refuses_announcement(91 * MIB)) == str(some.refuses_announcement(92 * MIB))
