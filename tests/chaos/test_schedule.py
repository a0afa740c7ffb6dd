"""What a seed says is drawn: the same again, spread over every fault, and nothing is left broken."""

from __future__ import annotations

import pytest

from .schedule import MIXED, TWO_LEADERS, WINDOW, Fault, one_round, plan

SEEDS = range(20)


def test_the_same_seed_is_the_same_plan_and_another_is_another() -> None:
    assert plan(7, 100) == plan(7, 100)
    assert plan(7, 100) != plan(8, 100)


def test_a_round_alone_is_as_it_is_among_all() -> None:
    (among,) = (one for one in plan(7, 130) if one.name == MIXED)
    assert one_round(7, MIXED, 10) == among


@pytest.mark.parametrize("runs", [1, 13, 100])
def test_as_many_fires_and_healthy_runs_as_were_asked_for(runs: int) -> None:
    everyone = [run for one in plan(1, runs) for run in one.runs]
    assert sum(run.hacks for run in everyone) == sum(not run.hacks for run in everyone) == runs
    sizes = {len(one.runs) for one in plan(1, runs)}
    assert max(sizes) - min(sizes) <= 2


def test_every_fault_has_a_row_and_strikes() -> None:
    rounds = {one.name: one for one in plan(1, 100)}
    assert set(rounds) == {*Fault, TWO_LEADERS, MIXED}
    for fault in Fault:
        assert {strike.fault for strike in rounds[fault].strikes} == {fault}
    assert [name for name, one in rounds.items() if one.two_leaders] == [TWO_LEADERS]
    assert len({strike.fault for strike in rounds[MIXED].strikes}) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_strikes_of_one_fault_do_not_overlap_and_all_are_mended_soon_after(seed: int) -> None:
    for one in plan(seed, 13):
        assert list(one.strikes) == sorted(one.strikes, key=lambda strike: strike.at)
        for strike in one.strikes:
            later = [other for other in one.strikes if other.fault == strike.fault and other.at > strike.at]
            assert all(strike.at + strike.lasts <= other.at for other in later)
            assert strike.at >= 0 and strike.at + strike.lasts <= WINDOW + 1e-9 and 0 <= strike.pick < 1


def test_runs_hack_or_end_while_things_break() -> None:
    moments = [run.acts for seed in SEEDS for one in plan(seed, 13) for run in one.runs]
    assert min(moments) < WINDOW / 4 and WINDOW * 0.9 < max(moments) < WINDOW * 1.2
