"""How much a trainer may write: a hostile one fills its share, an honest one notices nothing, and the guard
itself still writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guard_service.engine import Engine
from guard_service.errors import Problem
from guard_service.event_log import BURST, MAX_BYTES, RATE, Allowance
from rlguard.core.codes import Code, Level
from rlguard.core.wire import StepReport
from tests.service.engines import Run, step

MIB = 1 << 20


# -- the decision --------------------------------------------------------------------------------------------


def test_an_honest_run_of_a_million_steps_is_not_touched() -> None:
    some = Allowance(MAX_BYTES)
    per_step = 300
    for number in range(0, 1_000_000, 10):
        assert some.refuses_steps(10, number * per_step, now=number / 10) is None


def test_steps_that_waited_for_an_hour_may_come_at_once_and_a_flood_is_told_when_to_come_again() -> None:
    """However much the store may have: a million steps at once took 215 MB, before anything was refused."""
    some = Allowance(1_000 * MAX_BYTES)
    taken = 0
    while (refused := some.refuses_steps(1_000, taken * 300, now=5.0)) is None:
        taken += 1_000
    assert 36_000 <= taken == BURST and taken * 300 <= 30_000_000
    assert refused.status == 429 and refused.headers == {"Retry-After": "1"}
    assert some.refuses_steps(1_000, 0, now=5.5) is not None
    assert some.refuses_steps(1_000, 0, now=6.0) is None
    assert some.refuses_steps(1_000, 0, now=6.0 + 999 / RATE) is not None


def test_a_share_is_left_for_announcements_and_more_for_the_guard() -> None:
    """And a trainer is not told how much is used: of an evaluation more is kept the more items are solved."""
    some = Allowance(100 * MIB)
    told = set()
    for size, steps, announcements in (
        (79, False, False),
        (80, True, False),
        (89, True, False),
        (90, True, True),
        (95, True, True),
    ):
        refused = some.refuses_steps(1, size * MIB, now=0.0)
        assert (refused is not None) == steps, size
        assert (some.refuses_announcement(size * MIB) is not None) == announcements, size
        told |= {(refused.status, str(refused))} if refused else set()
    [(status, words)] = told
    assert status == 507 and "100 MiB" in words and "RLGUARD_GUARD_MAX_STORE_MIB" in words


# -- a store that is full ------------------------------------------------------------------------------------


def engine(run: Run, size: int) -> Any:
    return run.engine(of_run={"max_store_bytes": size})


async def fill(engine: Engine, first: int) -> tuple[int, Problem]:
    """Report steps until they are refused: how many are acknowledged, and why no more."""
    taken = 0
    while True:
        at = first + taken
        reports = [StepReport(attempt=0, step=n, reward=0.5) for n in range(at, at + 1_000)]
        try:
            taken += len((await engine.run.add_steps(reports)).new)
        except Problem as problem:
            return taken, problem


async def refused(engine: Engine, run: Run, number: int, name: str = "one") -> bool:
    """Whether an announcement finds the store full."""
    try:
        await engine.add_checkpoint(run.checkpoint(number, name))
    except Problem as problem:
        return problem.status == 507
    return False


def on_disk(run: Run) -> int:
    return sum(file.stat().st_size for file in run.state.iterdir())


@pytest.mark.asyncio
async def test_a_store_that_is_full_keeps_what_it_has_and_says_so_and_a_fire_counts(run: Run) -> None:
    async with engine(run, 4 * MIB) as guard:
        await guard.run.add_steps([step(number, kl=0.01 if number < 3 else 9.0) for number in range(1, 40)])
        assert guard.run.verdict.fire
    async with engine(run, 4 * MIB) as guard:
        taken, why = await fill(guard, 100)
        assert why.status == 507 and why.headers["Retry-After"] and taken > 1_000
        assert on_disk(run) < 10 * MIB, "with its write-ahead log"
        assert guard.run.verdict.fire and guard.run.verdict.steps == taken + 39
        assert [c.level for c in guard.run.verdict.conditions if c.code is Code.REPORTS_REFUSED] == [
            Level.UNKNOWN
        ]
        assert not await refused(guard, run, 1), "there is room left for announcements"
    async with engine(run, 4 * MIB) as guard:
        assert guard.run.verdict.fire and len(guard.run.queue) == 1
        assert (await fill(guard, 100 + taken))[0] == 0
    async with engine(run, 8 * MIB) as guard:
        assert (await fill(guard, 100 + taken))[0] > 1_000


@pytest.mark.asyncio
async def test_announcements_end_too_and_neither_repeats_nor_refusals_fill_the_disk(run: Run) -> None:
    files = Path(run.checkpoint(0, "one").path)
    for number in range(1_000):  # each is a line for the store
        (files / f"vocab{number}").touch()
    async with engine(run, 1 * MIB) as guard:
        number = 0
        while not await refused(guard, run, number):
            number += 1
        before = on_disk(run)
        assert number > 10 and not await guard.add_checkpoint(run.checkpoint(0, "one")), "as it was: known"
        (files / "vocab0").write_text("other")
        assert all([await refused(guard, run, again) for again in range(number)])
        assert all([await refused(guard, run, 10_000 + missing, "other") for missing in range(50)])
        assert on_disk(run) == before
    async with engine(run, 8 * MIB) as guard:
        sizes = []
        for _ in range(2):
            assert not await guard.add_checkpoint(run.checkpoint(0, "one")), "known, and taken"
            sizes.append(on_disk(run))
        assert sizes[0] == sizes[1]


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_flood_is_no_refusal_for_good(run: Run) -> None:
    async with engine(run, 64 * MIB) as guard:
        taken, why = await fill(guard, 1)
        assert why.status == 429 and BURST <= taken < 3 * BURST
        assert not [c for c in guard.run.verdict.conditions if c.code is Code.REPORTS_REFUSED]
