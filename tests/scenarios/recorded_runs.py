"""Replay every recorded run, and write the table anew: python -m tests.scenarios.recorded_runs."""

from __future__ import annotations

import csv
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.scenarios import interface

TABLE = Path(__file__).with_suffix(".csv")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def recordings() -> dict[str, Path]:
    """Each recorded run by its name."""
    return {path.stem: path for path in sorted((Path(__file__).parents[1] / "data" / "runs").glob("*.jsonl"))}


def judge(path: Path) -> tuple[str, str]:
    """Level and step of the stop, as the table has them."""
    done = subprocess.run(
        interface.replay(path),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=interface.RUN,
        check=False,
    )
    assert done.returncode == 0, f"{path}: {done.stderr}"
    level, step = interface.replayed(done.stdout)
    return level, "" if step is None else str(step)


def main() -> None:
    found = recordings()
    with ThreadPoolExecutor(os.cpu_count()) as pool, TABLE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("run", "level", "stopped at step"))
        rows.writerows((name, *row) for name, row in zip(found, pool.map(judge, found.values()), strict=True))


if __name__ == "__main__":
    main()
