"""`make bench-detection`: false stops, delays, over-optimisation, into docs/detection.md and docs/img/.

Seeds are fixed: the tables are the same on every machine up to the last digits of its floating point. Two
processes (`--jobs`) work on the cells, the verdicts, the composite and the recorded runs: about half
an hour on two cores. It writes docs/real-runs.md too. `--quick` runs a small version to a temporary page, to
see that it works; `--cost` only prints what an update costs here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from detection import report
from detection.bounds import informed_delay
from detection.cells import PASSES, Cell, rules_at_defaults
from detection.composite import CURVES, Composite, cost_of_an_update, over_optimisation
from detection.truth import ALPHA, Scenario
from detection.verdicts import BASELINES as VERDICT_BASELINES
from detection.verdicts import CASES, Found, measure

from guard_core.policy import CalibratedPolicy

ROOT = Path(__file__).resolve().parents[2]

#: No decline is accepted: every one counts, so that no detector is excused from a part of the drop.
CONFIG = CalibratedPolicy(alpha=ALPHA, max_decline=0.0, bootstrap_runs=600)

NULL = Scenario()
IMPROVING = Scenario(gain=0.15)
DROPS = [
    Scenario(start, shape, drop)
    for start in ("start", "flat", "plateau")
    for shape in ("sudden", "ramp")
    for drop in (0.02, 0.05, 0.10)
]
PASSES_COMPARED = (1, 4, 16)


SIZES = (128, 256)

#: Baselines of a cell, and null runs after each.
BASELINES, NULL_RUNS = 12, 50

#: Null runs of the whole detector; every other kind of run there is a share of these.
COMPOSITE_RUNS = 100

#: Runs of each drop after each baseline.
DROP_RUNS = 8


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure_cell(n: int, mixed: bool, baselines: int, runs: int) -> report.CellResult:
    """False stops in null and benign runs, delays of every drop, and what an informed rule could reach."""
    cell = Cell(n, mixed, baselines, CONFIG)
    result = report.CellResult(n, mixed, cell.means, baselines)
    result.false_stops["null"] = cell.fires(NULL, runs, seed=2)
    result.false_stops["improving"] = cell.fires(IMPROVING, runs // 2, seed=2)
    for name, rise in report.RISEN.items():
        result.false_stops[name] = cell.fires(Scenario("plateau", plateau=rise), runs // 2, seed=4)
    for name, scenario in (("null", NULL), ("improving", IMPROVING)):
        result.at_defaults[name] = rules_at_defaults(cell, scenario, baselines * runs // 10, seed=3)
    for k, scenario in enumerate(DROPS):
        result.delays[scenario] = cell.fires(scenario, min(runs, DROP_RUNS), seed=10 + k)
        if scenario.drop > 0.02:
            result.bounds[scenario] = informed_delay(scenario, cell.means, PASSES)
    say(f"{result.name}: {baselines} baselines")
    return result


def measure_passes(passes: int, mixed: bool, baselines: int) -> report.CellResult:
    """What fewer and more baseline passes cost, at 128 items."""
    cell = Cell(128, mixed, baselines, CONFIG, passes)
    result = report.CellResult(128, mixed, cell.means, baselines, passes)
    result.false_stops["null"] = cell.fires(NULL, 25, seed=2)
    for k, scenario in enumerate(DROPS):
        if scenario.shape == "sudden" and scenario.start != "plateau" and scenario.drop > 0.02:
            result.delays[scenario] = cell.fires(scenario, 8, seed=10 + k)
    say(f"{passes} baseline passes, {result.name}")
    return result


def measure_composite(runs: int) -> report.CompositeResult:
    """The whole calibrated detector as it ships, parts sharing alpha; run as it is live, not in batch."""
    composite = Composite(128, True, CalibratedPolicy(bootstrap_runs=600), min(BASELINES, runs))
    result = report.CompositeResult(composite.n, composite.means)
    for name, scenario in (("null", NULL), ("improving", IMPROVING)):
        result.false_stops[name] = composite.scenario(scenario, runs if name == "null" else runs // 2, seed=4)
        say(f"calibrated detector: {name} runs")
    for k, scenario in enumerate(s for s in DROPS if s.shape == "sudden" and s.drop > 0.02):
        result.delays[scenario] = composite.scenario(scenario, max(4, runs // 8), seed=20 + k)
    larger = Composite(256, True, CalibratedPolicy(bootstrap_runs=600), min(12, runs))
    for curve in CURVES:
        result.curves[curve] = over_optimisation(larger, curve, max(4, runs // 10))
    say("calibrated detector: drops and over-optimisation curves")
    return result


def measure_verdict(kind: str, number: int, baselines: int) -> Found:
    """False stops of the whole default verdict in one kind of run; a case does not travel to a worker."""
    case = CASES[kind][number]
    found = measure(case, baselines)
    say(f"default verdict, {case.name}: {found.stopped:.1%}")
    return found


def measure_real_runs() -> str:
    """Writes docs/real-runs.md; its summary."""
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    import table_runs

    found = table_runs.main()
    say("recorded runs replayed")
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, written to a temporary folder")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cost", action="store_true", help="only print milliseconds of CPU of an update")
    arguments = parser.parse_args()
    if arguments.cost:
        print({name: round(ms, 2) for name, ms in cost_of_an_update(CalibratedPolicy()).items()})
        return
    quick, began = arguments.quick, time.perf_counter()
    sizes, baselines, runs = ((64,), 4, 8) if quick else (SIZES, BASELINES, NULL_RUNS)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        composite = pool.submit(measure_composite, 20 if quick else COMPOSITE_RUNS)
        verdicts = {
            case: pool.submit(measure_verdict, kind, number, 2 if quick else VERDICT_BASELINES)
            for kind, cases in CASES.items()
            for number, case in enumerate(cases[: 1 if quick else None])
        }
        larger_first = [(n, mixed) for n in reversed(sizes) for mixed in (False, True)]
        waiting = {key: pool.submit(measure_cell, *key, baselines, runs) for key in larger_first}
        real_runs = None if quick else pool.submit(measure_real_runs)
        by_passes = [(r, mixed) for r in PASSES_COMPARED for mixed in (False, True)]
        passes = [pool.submit(measure_passes, *key, baselines) for key in by_passes]
        cells = [waiting[n, mixed].result() for n in sizes for mixed in (False, True)]
        said = real_runs.result() if real_runs else "Not replayed."
        found = composite.result(), [p.result() for p in passes]
    docs = Path(tempfile.mkdtemp()) if quick else ROOT / "docs"
    stopped = {case: verdict.result() for case, verdict in verdicts.items()}
    report.write(docs, cells, found[1], found[0], PASSES, said, stopped)
    say(f"{docs / 'detection.md'} written after {(time.perf_counter() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
