"""What a seed says is drawn for the kind cluster: the same again, and spread over every fault."""

from __future__ import annotations

import pytest

from .plan import ENDS_AFTER, HACKS_AFTER, MIXED, WINDOW, Fault, one_round, plan


def test_the_same_seed_is_the_same_plan_and_a_round_alone_is_as_among_all() -> None:
    assert plan(7, 14) == plan(7, 14) != plan(8, 14)
    assert one_round(7, MIXED, 2) in plan(7, 14)


@pytest.mark.parametrize("runs", [1, 7, 10])
def test_as_many_fires_and_healthy_runs_as_were_asked_for(runs: int) -> None:
    everyone = [run for one in plan(1, runs) for run in one.runs]
    assert sum(run.hacks for run in everyone) == sum(not run.hacks for run in everyone) == runs


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_has_a_row_and_strikes_in_order(seed: int) -> None:
    rounds = {one.name: one for one in plan(seed, 7)}
    assert set(rounds) == {*Fault, MIXED}
    for name, one in rounds.items():
        times = [strike.at for strike in one.strikes]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= WINDOW
        assert name == MIXED or {strike.fault for strike in one.strikes} == {Fault(name)}
    for run in (run for one in rounds.values() for run in one.runs):
        least, most = HACKS_AFTER if run.hacks else ENDS_AFTER
        assert least <= run.acts <= most
