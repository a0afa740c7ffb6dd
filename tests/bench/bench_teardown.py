"""From a latched fire to the last container gone, against `kubectl delete` of the same PyTorchJob, on kind.

    RLGUARD_E2E=cluster.json python tests/bench/bench_teardown.py [--rounds 8]

The file describes a cluster as tests/e2e/cluster/up.sh prints it. Each round makes two runs of the same pod
one after the other, with the real guard and a scripted trainer. In one the guard fires, and nobody but the
operator stops it: its trainer does not listen. In the other the PyTorchJob is deleted as kubectl does it.
One program watches both, so one clock tells all times. The kubelet removes a pod's object only after its last
container has ended.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from e2e import given, timeouts, when  # noqa: E402
from e2e.conftest import EXISTING, fresh_namespace  # noqa: E402
from e2e.kube import JOBS, PYTORCHJOBS, Cluster, Job, Namespace, install  # noqa: E402
from e2e.then import eventually  # noqa: E402

from guard_operator.runtime.client import PODS, Client, Resource  # noqa: E402
from guard_operator.runtime.errors import ClusterError  # noqa: E402

#: What this project aims at.
AIM_RATIO, AIM_REQUEST_SECONDS = 1.2, 1.0


class Sight(threading.Thread):
    """Notes when a watch first shows what it waits for. Made before it happens, so it misses nothing."""

    def __init__(
        self, client: Client, resource: Resource, namespace: str, seen: Callable[[dict[str, Any]], bool]
    ) -> None:
        super().__init__(daemon=True)
        version = client.list(resource, namespace, {"limit": "1"})["metadata"]["resourceVersion"]
        self._path, self._version = resource.path(namespace), version
        self._client, self._seen = client, seen
        self.at: float | None = None
        self.start()

    def run(self) -> None:
        query = {"watch": "true", "resourceVersion": self._version, "timeoutSeconds": "600"}
        # The namespace goes, and with it what is watched, before this thread ends.
        with suppress(ClusterError), self._client.stream(self._path, query, 600) as events:
            for event in events:
                if self._seen(event):
                    self.at = time.monotonic()
                    return

    def wait(self, what: str, within: float) -> float:
        eventually(lambda: self.at is not None, what, within)
        assert self.at is not None
        return self.at


def a_pod_is_gone(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "DELETED")


def a_fire_is_latched(event: dict[str, Any]) -> bool:
    return "fire" in ((event["object"].get("status") or {}).get("guard") or {})


def the_stop_is_requested(event: dict[str, Any]) -> bool:
    policy = event["object"].get("spec", {}).get("runPolicy") or {}
    return policy.get("activeDeadlineSeconds") == 1


def fired(job: Job) -> tuple[float, float]:
    """Seconds from the latch in the status to the stop request and to the last container gone."""
    client, namespace = job.client, job.namespace.name
    latch = Sight(client, JOBS, namespace, a_fire_is_latched)
    request = Sight(client, PYTORCHJOBS, namespace, the_stop_is_requested)
    gone = Sight(client, PODS, namespace, a_pod_is_gone)
    when.the_trainer_fires(job)
    latched = latch.wait("the latch is in the status", timeouts.REPORT)
    requested = request.wait("the stop is requested", timeouts.STOP)
    return requested - latched, gone.wait("the pod is gone", timeouts.STOP) - latched


def deleted(job: Job) -> float:
    """Seconds from the answered delete of the PyTorchJob to the last container gone."""
    workload = job.workload
    assert workload is not None
    gone = Sight(job.client, PODS, job.namespace.name, a_pod_is_gone)
    started = time.monotonic()
    job.client.delete(PYTORCHJOBS, job.namespace.name, job.name, workload["metadata"]["uid"])
    return gone.wait("the pod is gone", timeouts.STOP) - started


def run_in(namespace: Namespace) -> Job:
    """A run whose trainer goes on when the guard says stop."""
    return given.a_scripted_run(namespace, deaf=True)


def measure(cluster: Cluster, rounds: int) -> None:
    requests, stops, deletes = [], [], []
    for number in range(rounds):
        with fresh_namespace(cluster, f"bench-fired-{number}") as namespace:
            request, stop = fired(run_in(namespace))
        with fresh_namespace(cluster, f"bench-deleted-{number}") as namespace:
            delete = deleted(run_in(namespace))
        requests.append(request)
        stops.append(stop)
        deletes.append(delete)
        print(f"round {number + 1}: stop request {request:.3f} s, gone {stop:.2f} s; deleted {delete:.2f} s")
    for what, took in (
        ("latched fire to stop request", requests),
        ("latched fire to last container gone", stops),
        ("delete to last container gone", deletes),
    ):
        print(f"{what:37s} median {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    ratio = statistics.median(stops) / statistics.median(deletes)
    print(
        f"fire / delete, medians {ratio:.2f} (aim {AIM_RATIO:g}); stop request aim {AIM_REQUEST_SECONDS:g} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    if EXISTING not in os.environ:
        parser.error(f"set {EXISTING} to the file that describes a cluster; `make kind-up` makes one")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    cluster = Cluster.from_json(Path(os.environ[EXISTING]).read_text())
    install(cluster)
    measure(cluster, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
