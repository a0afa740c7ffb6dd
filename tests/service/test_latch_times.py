"""When a latch closed: the guard that is started after it knows, although it was told to nobody."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from guard_core.judge import Latch
from guard_core.policy import Policy
from guard_service.engine import Engine


async def lived(root: Path, *latches: Latch) -> dict[bool, datetime]:
    """A guard in which these latches close; when its latches closed, as far as it knows."""
    engine = Engine(state_dir=root / "state", checkpoint_root=root, policy=Policy(), worker=None)
    await engine.start()
    for latch in latches:
        await engine.adopt_latch(latch)
    await engine.close()
    return dict(engine.latched_at)


def test_a_guard_that_is_started_again_knows_when_its_latches_closed(tmp_path: Path) -> None:
    halt, fire = Latch(False, "silent", "silence", 0, 1), Latch(True, "hacking_gap", "gap", 0, 2)
    told = asyncio.run(lived(tmp_path, halt, fire))
    known = asyncio.run(lived(tmp_path))
    assert known.keys() == told.keys() == {True, False}
    assert all(abs((known[fire] - told[fire]).total_seconds()) < 1.0 for fire in told)
