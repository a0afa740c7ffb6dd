"""What the operator's caches take for many jobs: objects like the real ones, as an API server sends them.

    python tests/bench/bench_memory.py [--jobs 5000] [--pods 16]

No server is needed: every job, workload and pod goes as JSON through the same decoding, slimming and storing
as in the operator. Shown is the memory of the process without them and with them.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
from pathlib import Path
from typing import Any, cast

from fleet import IMAGE, Json, a_job, a_pod, a_workload
from guard_operator.reconcile.heartbeats import HeartbeatClock
from kubernetes.client import Configuration

from guard_operator.app import _Caches
from guard_operator.config import OperatorConfig
from guard_operator.runtime.client import Client
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key, Reflector, Timing


def memory() -> float:
    """Resident memory of this process, MiB."""
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def show(reflector: Reflector, raw: Json) -> None:
    """As a watch does."""
    reflector._fold({"type": "ADDED", "object": json.loads(json.dumps(raw))})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=16)
    parser.add_argument(
        "--ended", type=int, default=0, help="jobs beside these that have ended, with their pods"
    )
    options = parser.parse_args()
    queue: WorkQueue[Key] = WorkQueue(OperatorMetrics())
    caches = _Caches(
        Client(cast(Any, Configuration())), (None,), OperatorConfig(IMAGE), queue, HeartbeatClock(), Timing()
    )
    (jobs,), (pods,) = caches._jobs, caches._pods
    workloads = next(r for r in caches.reflectors if r.state()["path"] == "/apis/kubeflow.org/v1/pytorchjobs")
    before = memory()
    print(f"operator without jobs    {before:7.1f} MiB")
    size = 0
    for number in range(options.jobs + options.ended):
        over = number >= options.jobs
        job = a_job(number, over)
        workload = a_workload(job, number, over)
        show(jobs, job)
        show(workloads, workload)
        for index in range(options.pods):
            pod = a_pod(workload, number, index, over)
            size += len(json.dumps(pod)) if number == 0 else 0
            show(pods, pod)
    print(f"a pod as JSON            {size / options.pods / 1024:7.1f} KiB")
    ended = f" and {options.ended} ended" if options.ended else ""
    print(f"with {options.jobs} jobs of {options.pods} pods{ended} {memory():7.1f} MiB")


if __name__ == "__main__":
    main()
