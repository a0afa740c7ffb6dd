"""What a seed says is drawn: the same again, spread over every fault, and nothing is left broken."""

from __future__ import annotations

from itertools import pairwise

import pytest

from .cluster import SILENCE
from .schedule import (
    MIXED,
    OUTLASTING,
    TWO_LEADERS,
    WINDOW,
    Fault,
    Round,
    Run,
    one_round,
    plan,
)

SEEDS = range(20)
SILENT = SILENCE["afterSeconds"]


def short(seed: int) -> list[Round]:
    """The rounds whose strikes are over before a silence counts."""
    return [one for one in plan(seed, 14) if one.name != OUTLASTING]


def healthy(runs: tuple[Run, ...]) -> list[Run]:
    return [one for one in runs if not one.hacks]


def test_the_same_seed_is_the_same_plan_and_another_is_another() -> None:
    assert plan(7, 100) == plan(7, 100)
    assert plan(7, 100) != plan(8, 100)


@pytest.mark.parametrize("runs", [1, 14, 100])
def test_as_many_fires_and_healthy_runs_as_were_asked_for(runs: int) -> None:
    everyone = [run for one in plan(1, runs) for run in one.runs]
    assert sum(run.hacks for run in everyone) == sum(not run.hacks for run in everyone) == runs
    sizes = {len(one.runs) for one in plan(1, runs)}
    assert max(sizes) - min(sizes) <= 2


def test_every_fault_has_a_row_and_strikes() -> None:
    rounds = {one.name: one for one in plan(1, 100)}
    assert set(rounds) == {*Fault, TWO_LEADERS, OUTLASTING, MIXED}
    for fault in Fault:
        assert {strike.fault for strike in rounds[fault].strikes} == {fault}
    assert [name for name, one in rounds.items() if one.two_leaders] == [TWO_LEADERS]
    assert len({strike.fault for strike in rounds[MIXED].strikes}) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_strikes_of_one_fault_do_not_overlap_and_all_are_mended_soon_after(seed: int) -> None:
    for one in short(seed):
        assert list(one.strikes) == sorted(one.strikes, key=lambda strike: strike.at)
        for strike in one.strikes:
            later = [other for other in one.strikes if other.fault == strike.fault and other.at > strike.at]
            assert all(strike.at + strike.lasts <= other.at for other in later)
            assert strike.at >= 0 and strike.at + strike.lasts <= WINDOW + 1e-9 and 0 <= strike.pick < 1


@pytest.mark.parametrize("seed", SEEDS)
def test_strikes_outlast_silence_in_turn_and_hit_whatever_might_speak(seed: int) -> None:
    one = one_round(seed, OUTLASTING, 7)
    assert one.reported_first, "a guard that was never heard is not silent"
    strikes = one.strikes
    assert all(strike.lasts > 2 * one.lease_seconds for strike in strikes), "who leads ends"
    faults = [Fault.WATCHES_FROZEN, Fault.OPERATOR_CUT_OFF, Fault.GUARDS_CUT_OFF]
    assert [strike.fault for strike in strikes] == faults
    assert all(strike.both for strike in strikes), "an operator that is well would take over"
    # A guard reports every 15 s, so its last report may be that old when a strike ends.
    assert all(SILENT + 10 <= strike.lasts <= 50 for strike in strikes)
    for before, after in pairwise(strikes):
        assert before.at + before.lasts + 5 <= after.at
