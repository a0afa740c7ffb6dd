"""A trainer that floods its guard: what it may write is bounded, what was kept stays, the guard goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from guard_core.codes import Code, Level
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, StepReport
from guard_service.engine import Engine
from guard_service.errors import Problem
from guard_service.event_log import BURST

MIB = 1 << 20


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "checkpoints" / "one").mkdir(parents=True)

    @asynccontextmanager
    async def run(size: int) -> AsyncIterator[Engine]:
        engine = Engine(
            state_dir=tmp_path / "state",
            checkpoint_root=tmp_path / "checkpoints",
            policy=Policy.model_validate({"kl": {"hard_stop": 0.5}}),
            max_store_bytes=size,
        )
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    return run


def steps(first: int, count: int = 1_000) -> list[StepReport]:
    return [StepReport(attempt=0, step=n, reward=0.5) for n in range(first, first + count)]


async def fill(engine: Engine, first: int = 1) -> tuple[int, Problem]:
    """Report steps until they are refused: how many are acknowledged, and why no more."""
    taken = 0
    while True:
        try:
            taken += len((await engine.run.add_steps(steps(first + taken))).new)
        except Problem as problem:
            return taken, problem


@pytest.mark.asyncio
async def test_a_store_that_is_full_keeps_what_it_has_and_says_so(engine: Any, tmp_path: Path) -> None:
    async with engine(4 * MIB) as guard:
        taken, refused = await fill(guard)
        assert refused.status == 507 and refused.headers["Retry-After"]
        assert "RLGUARD_GUARD_MAX_STORE_MIB" in str(refused)
        size = sum(file.stat().st_size for file in (tmp_path / "state").iterdir())
        assert guard.run.store_bytes < 4 * MIB and size < 10 * MIB, "with its write-ahead log"
        assert guard.run.verdict.level is Level.UNKNOWN
        assert [c.code for c in guard.run.verdict.conditions if c.code is Code.REPORTS_REFUSED]
        assert guard.run.verdict.steps == taken > 1_000

        await guard.add_checkpoint(checkpoint(tmp_path))  # there is room left for announcements
    async with engine(4 * MIB) as guard:
        assert guard.run.verdict.steps == taken and guard.run.queue_length == 1
        assert (await fill(guard, taken + 1))[0] == 0
    async with engine(8 * MIB) as guard:
        more, refused = await fill(guard, taken + 1)
        assert more > 1_000 and refused.status == 507


@pytest.mark.asyncio
async def test_the_guard_itself_still_writes_and_its_fire_counts(engine: Any, tmp_path: Path) -> None:
    async with engine(2 * MIB) as guard:
        for number in range(1, 40):  # a KL beyond its limit, and then nothing but a flood
            await guard.run.add_steps([kl_step(number)])
        assert guard.run.verdict.fire
        taken, _ = await fill(guard, 100)
        assert taken and guard.run.verdict.fire
    async with engine(2 * MIB) as guard:
        assert guard.run.verdict.fire


@pytest.mark.asyncio
async def test_announcements_end_too_and_are_no_way_to_fill_the_disk(engine: Any, tmp_path: Path) -> None:
    async with engine(1 * MIB) as guard:
        assert guard.run.store_full is False
        await fill(guard)
        assert guard.run.store_full is True
        number = 0
        refused: Problem | None = None
        while refused is None:
            number += 1
            try:
                await guard.add_checkpoint(checkpoint(tmp_path, number))
            except Problem as problem:
                refused = problem
        assert refused.status == 507
        before = guard.run.store_bytes
        for missing in range(50):  # what is refused is not remembered without end
            with pytest.raises(Problem):
                await guard.add_checkpoint(checkpoint(tmp_path, 10_000 + missing, "missing"))
        assert guard.run.store_bytes == before


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_flood_is_no_refusal_for_good(engine: Any) -> None:
    async with engine(64 * MIB) as guard:
        taken, refused = await fill(guard)
        assert refused.status == 429 and BURST <= taken < 3 * BURST
        assert guard.run.store_bytes < 300 * taken
        assert not [c for c in guard.run.verdict.conditions if c.code is Code.REPORTS_REFUSED]


def checkpoint(root: Path, number: int = 1, name: str = "one") -> CheckpointReport:
    return CheckpointReport(attempt=0, step=number, path=str(root / "checkpoints" / name))


def kl_step(number: int) -> StepReport:
    return StepReport.model_validate(
        {"attempt": 0, "step": number, "reward": 0.5, "kl": 0.01 if number < 3 else 9.0,
         "kl_kind": "ref_token_mean"}
    )  # fmt: skip
