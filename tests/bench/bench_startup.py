"""How long a guard takes to start, and its memory: without held-out evaluation, so without torch.

    python tests/bench/bench_startup.py [--runs 7] [--steps 0]

Time runs from `exec` to the first 200 of `/readyz`. As a ratio it stands beside an interpreter that imports
the same libraries and does nothing. `--steps` restarts on a store that holds so many steps.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IMPORTS = "import fastapi, prometheus_client, pydantic_settings, uvicorn, h11"


def start(directory: Path) -> tuple[float, subprocess.Popen[bytes], http.client.HTTPConnection]:
    """Start a guard; seconds until it is ready, the process, and a connection to it."""
    endpoint = directory / "state" / "endpoint.json"
    endpoint.unlink(missing_ok=True)
    settings = {
        "PORT": "0",
        "STATE_DIR": str(directory / "state"),
        "CHECKPOINT_ROOT": str(directory),
        "ALLOW_UNAUTHENTICATED_LOOPBACK": "true",
    }
    env = os.environ | {f"RLGUARD_GUARD_{name}": value for name, value in settings.items()}
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "guard_service"], env=env, stderr=subprocess.DEVNULL)
    while not endpoint.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the guard ended with status {process.returncode}")
        time.sleep(0.002)
    url = json.loads(endpoint.read_text())["url"]
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    while ask(connection, "GET", "/readyz")[0] != 200:
        time.sleep(0.002)
    return time.perf_counter() - started, process, connection


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, content: Any = None
) -> tuple[int, bytes]:
    connection.request(method, path, json.dumps(content), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def rss_mib(pid: int) -> float:
    """Resident memory now, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_seconds(pid: int) -> float:
    """Processor time so far, which other load on the machine stretches less than the wall time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(connection: http.client.HTTPConnection, steps: int) -> None:
    for first in range(0, steps, 1_000):
        reports = [
            {"attempt": 0, "step": i, "reward": 0.5, "kl": 0.01, "kl_kind": "ref_token_mean"}
            for i in range(first, min(first + 1_000, steps))
        ]
        status, body = ask(connection, "POST", "/v1/steps", reports)
        if status != 200:
            raise RuntimeError(body.decode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="starts; the median counts")
    parser.add_argument("--steps", type=int, default=0, help="steps in the store at the start")
    args = parser.parse_args()
    times, processor, imports, memory = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for run in range(args.runs + 1):
            seconds, process, connection = start(directory)
            if run == 0:
                fill(connection, args.steps)  # and the first start wrote the byte code
            else:
                times.append(seconds)
                processor.append(cpu_seconds(process.pid))
                memory.append(rss_mib(process.pid))
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", IMPORTS], check=True)
                imports.append(time.perf_counter() - began)
            connection.close()
            process.terminate()
            process.wait()
    ready, bare = statistics.median(times), statistics.median(imports)
    print(f"start to ready with {args.steps:,} steps on disk: median {ready:.2f} s (aim 1.5 s)")
    print(f"processor time of that: median {statistics.median(processor):.2f} s")
    print(f"its libraries alone: median {bare:.2f} s; ratio {ready / bare:.2f}")
    print(f"resident memory when ready: {statistics.median(memory):.0f} MiB (aim 120 MiB)")


if __name__ == "__main__":
    main()
