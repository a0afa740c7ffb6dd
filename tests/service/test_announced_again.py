"""A checkpoint that waits and is announced again: what its files are now is written, if there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from guard_core.policy import Policy
from guard_core.wire import CheckpointReport
from guard_service.engine import Engine
from guard_service.errors import Problem

MIB = 1 << 20


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A checkpoint with a thousand files, of which each is a line for the store."""
    directory = tmp_path / "checkpoints" / "one"
    directory.mkdir(parents=True)
    for number in range(1_000):
        (directory / f"vocab{number}").touch()
    return directory


def with_engine(root: Path, size: int, act: Callable[[Engine], Awaitable[Any]]) -> None:
    engine = Engine(
        state_dir=root / "state",
        checkpoint_root=root / "checkpoints",
        policy=Policy(),
        max_store_bytes=size,
    )

    async def run() -> None:
        await engine.start()
        try:
            await act(engine)
        finally:
            await engine.close()

    asyncio.run(run())


def report(path: Path, number: int) -> CheckpointReport:
    return CheckpointReport(attempt=0, step=number, path=str(path))


async def refused(engine: Engine, announced: CheckpointReport) -> bool:
    """Whether the store is full for it."""
    try:
        await engine.add_checkpoint(announced)
    except Problem as problem:
        return problem.status == 507
    return False


def test_it_is_no_way_to_fill_the_disk(one: Path, tmp_path: Path) -> None:
    async def flood(engine: Engine) -> None:
        number = 0
        while not await refused(engine, report(one, number)):
            number += 1
        before = engine.run.store_bytes
        assert number > 10 and not await engine.add_checkpoint(report(one, 0)), (
            "as it was: nothing is written"
        )
        (one / "vocab0").write_text("other")
        assert all([await refused(engine, report(one, again)) for again in range(number)])
        assert engine.run.store_bytes == before

    async def with_room(engine: Engine) -> None:
        sizes = [engine.run.store_bytes]
        for _ in range(2):
            assert not await engine.add_checkpoint(report(one, 0)), "known, and taken"
            sizes.append(engine.run.store_bytes)
        assert sizes[0] < sizes[1] == sizes[2]

    with_engine(tmp_path, 1 * MIB, flood)
    with_engine(tmp_path, 8 * MIB, with_room)
