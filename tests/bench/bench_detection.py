"""`make bench-detection`: false stops, delays, over-optimisation, into docs/detection.md and docs/img/.

Seeds are fixed: the tables are the same on every machine up to the last digits of its floating point. About
ten minutes of one core. `--quick` runs a small version to a temporary page, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from detection import report
from detection.cells import PASSES, Cell, rules_at_defaults
from detection.composite import CURVES, Composite, cost_of_an_update, over_optimisation
from detection.truth import ALPHA, Scenario

from guard_core.policy import CalibratedPolicy

ROOT = Path(__file__).resolve().parents[2]

#: Tolerance 0: every decline counts, so that no detector is excused from a part of the drop.
CONFIG = CalibratedPolicy(alpha=ALPHA, tolerance=0.0, bootstrap_runs=600)

NULL = Scenario()
IMPROVING = Scenario(gain=0.15)
DROPS = [
    Scenario(start, shape, drop)
    for start in ("start", "flat", "plateau")
    for shape in ("sudden", "ramp")
    for drop in (0.02, 0.05, 0.10)
]
PASSES_COMPARED = (1, 4, 16, 64)


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure_cells(sizes: tuple[int, ...], baselines: int, runs: int) -> list[report.CellResult]:
    """Every cell: false stops in null and benign runs, delays of every drop."""
    results = []
    for n in sizes:
        for mixed in (False, True):
            cell = Cell(n, mixed, baselines, CONFIG)
            say(f"n={n} {'mixed' if mixed else 'homogeneous'}: {baselines} baselines calibrated")
            result = report.CellResult(n, mixed, cell.means, baselines)
            for name, scenario in (("null", NULL), ("improving", IMPROVING)):
                result.false_stops[name] = cell.fires(scenario, runs if name == "null" else runs // 2, seed=2)
                result.at_defaults[name] = rules_at_defaults(cell, scenario, baselines * runs // 8, seed=3)
            for k, scenario in enumerate(DROPS):
                result.delays[scenario] = cell.fires(scenario, max(1, runs // 16), seed=10 + k)
            results.append(result)
    return results


def measure_passes(baselines: int) -> list[report.CellResult]:
    """What fewer and more baseline passes cost, at 128 mixed items."""
    results = []
    for passes in PASSES_COMPARED:
        cell = Cell(128, True, baselines, CONFIG, passes)
        result = report.CellResult(128, True, cell.means, baselines, passes)
        result.false_stops["null"] = cell.fires(NULL, 8, seed=2)
        for k, scenario in enumerate(DROPS):
            if scenario.shape == "sudden" and scenario.start != "plateau" and scenario.drop > 0.02:
                result.delays[scenario] = cell.fires(scenario, 4, seed=10 + k)
        results.append(result)
    say("baseline passes compared")
    return results


def measure_composite(runs: int) -> report.CompositeResult:
    """The whole calibrated detector as it ships, parts sharing alpha."""
    composite = Composite(128, True, CalibratedPolicy(bootstrap_runs=600), max(2, runs // 20))
    result = report.CompositeResult(composite.n, composite.means)
    for name, scenario in (("null", NULL), ("improving", IMPROVING)):
        result.false_stops[name] = composite.scenario(scenario, runs if name == "null" else runs // 2, seed=4)
        say(f"calibrated detector: {name} runs")
    for k, scenario in enumerate(s for s in DROPS if s.shape == "sudden" and s.drop > 0.02):
        result.delays[scenario] = composite.scenario(scenario, runs // 10, seed=20 + k)
    say("calibrated detector: drops")
    larger = Composite(256, True, CalibratedPolicy(bootstrap_runs=600), max(2, runs // 50))
    for curve in CURVES:
        result.curves[curve] = over_optimisation(larger, curve, max(4, runs // 12))
    say("over-optimisation curves")
    return result


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, written to a temporary folder")
    quick = parser.parse_args().quick
    began = time.perf_counter()
    cells = measure_cells((64,), 4, 4) if quick else measure_cells((64, 128, 256, 512), 40, 50)
    passes = measure_passes(4 if quick else 24)
    composite = measure_composite(20 if quick else 600)
    cost = cost_of_an_update(CalibratedPolicy(bootstrap_runs=200))
    docs = Path(tempfile.mkdtemp()) if quick else ROOT / "docs"
    report.write(docs, cells, passes, composite, cost, PASSES)
    say(f"{docs / 'detection.md'} written after {(time.perf_counter() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
