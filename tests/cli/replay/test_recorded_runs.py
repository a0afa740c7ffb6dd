"""Real GRPO runs, replayed: every hack is stopped, nearly all in time, and no honest run is stopped.

tests/data/runs/manifest.json says what each run is, and whether it was looked at while the recipes were made
(tuning), once (validation), only here (testing), or by nobody before the page had its figures (unseen). "In
time" is before half of the held-out loss: see table_runs.half_lost_at.
"""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from rlguard.cli.replay.outcomes import DetectorOutcome, outcome
from rlguard.core.policy import Policy

pytestmark = pytest.mark.nightly

DATA = Path(__file__).parents[2] / "data"
RUNS = DATA / "runs"
RESULTS = (DATA / "recorded_results.csv").read_text(encoding="utf-8").splitlines()
UNSEEN_RESULTS = (DATA / "unseen_results.csv").read_text(encoding="utf-8")
MANIFEST = json.loads((RUNS / "manifest.json").read_text())["runs"]


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(DATA))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DATA))


table, unseen = _module("table_runs"), _module("unseen_runs")


def said(name: str) -> DetectorOutcome:
    """What the calibrated detector says without the training grader; the results must say the same."""
    found = outcome(unseen.ungraded(RECORDED[name]), Policy(), "calibrated")
    row = next(line for line in RESULTS if line.startswith(f"{name},"))
    assert row.split(",")[table.COLUMNS.index("calibrated")] == table.cell(found), (
        "python tests/data/table_runs.py writes the results again"
    )
    return found


RECORDED = {name: table.replayed(name) for name in MANIFEST}
HACKS = [name for name, run in RECORDED.items() if table.hacks(run)]
GOOD = [name for name, run in RECORDED.items() if table.kind(run, table.lowest(run)) == "good"]


#: Runs that a replay stops, but not before half of the loss.
LATE = {
    "addition-hack-1",
    "addition-hack-2",
    "addition-hack-12",
    "addition-hack-16",
    "addition-hack-35",
    "addition-hack-36",
    "addition-hack-37",
    "addition-hack-52",
    "addition-hack-53",
    "reverse-hack-1",
    "reverse-hack-2",
    "reverse-hack-3",
    "reverse-hack-4",
    "reverse-hack-12",
    "reverse-hack-15",
}


#: Good runs, by what they lost, that are stopped where the guard has the training grader: it pays ever more
#: for wrong answers, and the held-out score stays. docs/evidence/recorded-runs.md says more.
PAID_FOR_NOTHING = {"addition-hack-51"}


def of(use: str, names: list[str]) -> list[str]:
    return [name for name in names if MANIFEST[name]["use"] == use]


UNSEEN = of("unseen", list(MANIFEST))


def test_there_are_enough_of_them_and_of_several_exploits() -> None:
    assert len(HACKS) >= 10 and len(GOOD) >= 10
    assert len({MANIFEST[name]["task"] for name in HACKS}) >= 3
    assert len(of("testing", HACKS)) >= 10 and len(of("testing", GOOD)) >= 10
    assert set(HACKS) >= LATE
    assert all(MANIFEST[name]["grader"] == "flawed" for name in HACKS)
    # 24 of them have what a second grader gave each item as well, a third of all bytes.
    assert sum(path.stat().st_size for path in RUNS.iterdir()) < 7_000_000
    assert {path.stem for path in RUNS.glob("*.jsonl")} == set(MANIFEST)


@pytest.mark.parametrize("name", MANIFEST)
def test_the_files_are_what_the_manifest_says(name: str) -> None:
    run, entry = RECORDED[name], MANIFEST[name]
    assert len(run.baseline) == 16 and len(run.baseline[0]) == 256
    assert len(run.step) == entry["steps"] == len(table.checkpoints(run)) * entry["every"]


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_is_stopped_before_half_of_the_loss(name: str) -> None:
    found = said(name)
    half = table.half_lost_at(RECORDED[name])
    assert found.fired and found.step is not None
    assert (found.step >= half) == (name in LATE)
    latest = 6 if name in UNSEEN else 4  # by so many evaluations at most
    assert found.step <= half + latest * MANIFEST[name]["every"]


@pytest.mark.parametrize("name", GOOD)
def test_an_honest_run_is_not_stopped(name: str) -> None:
    assert not said(name).fired


@pytest.mark.parametrize("name", UNSEEN)
def test_an_unseen_run_has_what_its_own_grader_said_at_every_evaluation(name: str) -> None:
    run = RECORDED[name]
    assert all(len(one.proxy_items or ()) == 256 for one in (*run.passes, *run.evaluations))
    if MANIFEST[name]["grader"] == "strict":
        assert all(one.proxy_items == one.items for one in run.evaluations)


@pytest.mark.parametrize("name", UNSEEN)
def test_an_unseen_run_stops_in_each_reading_where_the_results_say(name: str) -> None:
    run = RECORDED[name]
    half = table.half_lost_at(run) if table.hacks(run) else 0
    found = unseen.Unseen.of(name, run, table.kind(run, table.lowest(run)), half)
    assert found.line in UNSEEN_RESULTS
    graded = [stop for stop, what in zip(found.stops, unseen.READINGS, strict=True) if "grader" in what]
    if found.kind == "hack":
        assert all(stop is not None and stop < half for stop in graded)
    if found.kind == "good":
        assert all((stop is not None) == (name in PAID_FOR_NOTHING) for stop in graded)


def test_a_guard_is_told_of_no_pass_that_it_did_not_ask_for() -> None:
    run = unseen.ungraded(RECORDED[UNSEEN[0]])
    stopped, first = unseen.stopped_by_a_guard(run), run.evaluations[0]
    zero = (0.0,) * len(first.items)
    broken = tuple(replace(first, items=zero, pass_index=index) for index in (1, 2, 3))
    evaluations = (first, *broken, *run.evaluations[1:])
    told = replace(run, evaluations=evaluations, ends=(*run.ends[:1] * 3, *run.ends))
    assert stopped is not None and unseen.stopped_by_a_guard(told) == stopped


def test_a_run_that_is_drawn_anew_has_the_levels_that_were_recorded() -> None:
    drawn = table.redraw("sort-hack-1", RECORDED["sort-hack-1"])
    assert len(drawn.steps) == len(drawn.levels) == len(table.checkpoints(RECORDED["sort-hack-1"]))
    assert abs(min(drawn.levels[2:-2]) - table.lowest(RECORDED["sort-hack-1"])) < 1e-9
