"""A short round on a control plane of its own, so that the suite keeps running; `make chaos` is long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operator.integration.controlplane import BUILD_SECONDS

from .act import play, stage
from .counts import wrong
from .schedule import Fault, Round, Run, Strike

QUICK = Round(
    "quick",
    (
        Run("hacks-0", 0.0, 4.0, hacks=True),
        Run("healthy-1", 0.0, 9.0, hacks=False),
        Run("hacks-2", 1.0, 6.0, hacks=True),
        Run("healthy-3", 1.0, 10.0, hacks=False),
    ),
    (
        Strike(2.0, 0.8, Fault.WATCHES_FROZEN, 0.1, both=True),
        Strike(3.0, 0.5, Fault.GUARDS_KILLED, 0.1),
        Strike(4.5, 0.5, Fault.OPERATOR_KILLED, 0.1),
        Strike(5.5, 1.5, Fault.DISK_FULL, 0.5),
        Strike(6.5, 1.0, Fault.API_SERVER_KILLED, 0.5),
    ),
)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS + 300)
def test_a_quick_round_ends_as_it_must(tmp_path: Path) -> None:
    with stage(tmp_path, clocks=False) as made:
        played = play(made, QUICK, seed=1)
    assert [one for facts in played for one in wrong(facts)] == []
    assert all(facts.acknowledged and facts.stored for facts in played), "steps were reported"
    assert all(any(facts.verdicts) for facts in played if facts.run.hacks), "what hacks fired"
