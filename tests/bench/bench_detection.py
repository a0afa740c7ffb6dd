"""`make bench-detection`: print false stops and delays of the default detector, and write its page.

Every run is live: a fresh evaluation of the same checkpoint follows wherever the detector asks for one. Seeds
are fixed. Two processes take about a quarter of an hour; `--quick` runs a small part to see that it works.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from detection.verdicts import BASELINES, CASES, DELAYS, Delay, Found, delay, measure

ROOT = Path(__file__).resolve().parents[2]


def measure_case(kind: str, number: int, baselines: int) -> Found:
    """False stops of one case; a case does not travel to a worker."""
    return measure(CASES[kind][number], baselines)


def measure_delay(number: int, runs: int) -> Delay:
    """Delay of one fall."""
    return delay(DELAYS[number], runs)


def replay_recorded_runs() -> str:
    """Write docs/evidence/recorded-runs.md; its summary."""
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    import table_runs

    return str(table_runs.main())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    baselines, runs, most = (2, 4, 1) if arguments.quick else (BASELINES, 40, None)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        stops = {
            kind: [pool.submit(measure_case, kind, i, baselines) for i in range(len(cases[:most]))]
            for kind, cases in CASES.items()
        }
        delays = [pool.submit(measure_delay, i, runs) for i in range(len(DELAYS[:most]))]
        recorded = None if arguments.quick else pool.submit(replay_recorded_runs)
        for kind, found in stops.items():
            print(f"\n## {kind}\n\n| runs | stopped | fresh evaluations per 100 |\n|---|---|---|")
            for case, future in zip(CASES[kind], found, strict=False):
                one = future.result()
                print(
                    f"| {case.name} | {one.stopped:.1%} ± {one.error:.1%} of {one.runs} | {one.fresh:.1f} |",
                    flush=True,
                )
        print("\n## Delays\n\n| fall | stopped | median evaluations |\n|---|---|---|")
        for fall, waits in zip(DELAYS, delays, strict=False):
            waited = waits.result()
            print(f"| {fall.name} | {waited.stopped:.0%} | {waited.median:g} |", flush=True)
        if recorded is not None:
            print(f"\n{recorded.result()}")


if __name__ == "__main__":
    main()
