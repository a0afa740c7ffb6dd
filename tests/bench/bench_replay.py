"""`rlguard replay` on a log of 1,000,000 steps against a bare reader of it: JSON lines with items, and CSV.

    python tests/bench/bench_replay.py [STEPS]

Aim: 1,000,000 steps in 10 s. The reader parses every row and does nothing with it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ITEMS = 128
EVERY = 1000


def write_jsonl(path: Path, steps: int) -> None:
    """A history as the guard exports it, with an evaluation every 1,000 steps."""
    rng = random.Random(0)
    with path.open("w") as out:
        for step in range(1, steps + 1):
            row = {"step": step, "reward": round(rng.random(), 6), "kl": round(rng.random() / 20, 6)}
            row |= {"entropy": 1.2, "reward_std": 0.3}
            if step % EVERY == 0:
                row["items"] = [int(rng.random() < 0.5) for _ in range(ITEMS)]
            out.write(json.dumps(row) + "\n")


def write_csv(path: Path, steps: int) -> None:
    """What a W&B table exports."""
    rng = random.Random(0)
    with path.open("w") as out:
        out.write("_step,train/global_step,train/reward,train/kl,train/loss\n")
        for step in range(1, steps + 1):
            out.write(f"{step},{step},{rng.random():.6f},{rng.random() / 20:.6f},0.1\n")


READERS = {
    ".jsonl": "import json, sys\nfor line in open(sys.argv[1]): json.loads(line)",
    ".csv": "import csv, sys\nfor row in csv.DictReader(open(sys.argv[1])): float(row['train/reward'])",
}


def measure(*command: str) -> tuple[float, float]:
    """Processor seconds and MiB of a process."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) as process:
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = code
    assert code == 0, f"{command}: exit status {code}"
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print one line for each format."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("history.jsonl", write_jsonl), ("wandb.csv", write_csv)):
            path = Path(folder) / name
            write(path, steps)
            seconds, memory = measure("-m", "rlguard.cli.main", "replay", str(path), "--json")
            bare, _ = measure("-c", READERS[path.suffix], str(path))
            print(
                f"replay of {steps:,} steps, {name}: {seconds:.1f} s processor, {memory:.0f} MiB; "
                f"replay / reading it {seconds / bare:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
