"""From a latched fire to the last container gone, against `kubectl delete` of the same object, on kind.

    RLGUARD_E2E=cluster.json python tests/bench/bench_teardown.py [--rounds 8] [KIND...]

KIND is PyTorchJob, Job, JobSet, TrainJob or RayJob; PyTorchJob if none is named. What a guard is attached to,
a RayCluster among it, is not measured. The file describes a cluster as tests/e2e/cluster/up.sh prints it, for
the last three one with their controllers. Each round makes two runs of the same pods one after the other,
with the real guard and a scripted trainer. In one the guard fires, and nobody but the operator stops it: its
trainer does not listen. In the other the workload is deleted as kubectl does it. One program watches both, so
one clock tells all times. The kubelet removes a pod's object only after its last container has ended.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from e2e import given, jobs, then, timeouts, when, workloads  # noqa: E402
from e2e.conftest import EXISTING, fresh_namespace  # noqa: E402
from e2e.kube import JOBS, PYTORCHJOBS, Cluster, Job, Namespace, install  # noqa: E402
from e2e.then import eventually  # noqa: E402

from guard_operator.runtime.client import BATCH_JOBS, PODS, Client, Resource  # noqa: E402
from guard_operator.runtime.errors import ClusterError  # noqa: E402

Json = dict[str, Any]
#: What this project aims at.
AIM_RATIO, AIM_REQUEST_SECONDS = 1.2, 1.0
#: For so long no pod may come after the last one, seconds: a controller might make one again.
SETTLED = 5.0


class Sight(threading.Thread):
    """Notes when a watch first shows what it waits for. Made before it happens, so it misses nothing."""

    def __init__(
        self, client: Client, resource: Resource, namespace: str, seen: Callable[[Json], bool]
    ) -> None:
        super().__init__(daemon=True)
        version = client.list(resource, namespace, {"limit": "1"})["metadata"]["resourceVersion"]
        self._path, self._version = resource.path(namespace), version
        self._client, self._seen = client, seen
        self.at: float | None = None
        self.start()

    def run(self) -> None:
        for event in self.events():
            if self.at is None and self._seen(event):
                self.at = time.monotonic()

    def events(self) -> Iterator[Json]:
        query = {"watch": "true", "resourceVersion": self._version, "timeoutSeconds": "900"}
        # The namespace goes, and with it what is watched, before this thread ends.
        with suppress(ClusterError), self._client.stream(self._path, query, 900) as events:
            yield from events

    def wait(self, what: str, within: float) -> float:
        eventually(lambda: self.at is not None, what, within)
        assert self.at is not None
        return self.at


@dataclass(frozen=True)
class End:
    """When the last pod was told to end, and when it was gone. After the first all is the kubelet's."""

    told: float
    gone: float

    def since(self, start: float) -> End:
        return End(self.told - start, self.gone - start)


class LastPod(Sight):
    """Notes when the last pod of a namespace was told to end, and when it was gone."""

    def __init__(self, client: Client, namespace: str) -> None:
        items = client.list(PODS, namespace, {}).get("items") or []
        self._there = {pod["metadata"]["uid"] for pod in items}
        self._told: dict[str, float] = {}
        super().__init__(client, PODS, namespace, lambda _: False)

    def run(self) -> None:
        for event in self.events():
            metadata = event["object"]["metadata"]
            uid = metadata.get("uid")
            if "deletionTimestamp" in metadata or event["type"] == "DELETED":
                self._told.setdefault(uid, time.monotonic())
            self._there = self._there - {uid} if event["type"] == "DELETED" else self._there | {uid}
            self.at = None if self._there else time.monotonic()

    def end(self, within: float) -> End:
        settled = lambda: (at := self.at) is not None and time.monotonic() - at > SETTLED and at  # noqa: E731
        return End(gone=float(eventually(settled, "no pod is left", within)), told=max(self._told.values()))


@dataclass(frozen=True)
class Kind:
    """How runs of a kind are made, and how it is seen that one was asked to stop."""

    run: type[Job]
    made: Callable[[Json, Cluster], Sequence[Json]]
    resource: Resource
    #: What the stop is written into, and where in its spec the deadline is.
    asked: Resource
    deadline: tuple[str, ...] = ("activeDeadlineSeconds",)
    pods: int = 1

    def is_asked(self, event: Json) -> bool:
        """The stop is requested."""
        value: Any = event["object"].get("spec", {})
        for field in self.deadline:
            value = (value or {}).get(field)
        return bool(value == 1)


KINDS = {
    "PyTorchJob": Kind(
        Job, lambda job, _: [job], PYTORCHJOBS, PYTORCHJOBS, ("runPolicy", "activeDeadlineSeconds")
    ),
    "Job": Kind(workloads.BatchRun, lambda job, _: [workloads.as_batch_job(job)], BATCH_JOBS, BATCH_JOBS),
    "JobSet": Kind(
        workloads.JobSetRun,
        lambda job, _: [workloads.as_jobset(job)],
        workloads.JobSetRun.resource,
        BATCH_JOBS,
        pods=2,
    ),
    "TrainJob": Kind(
        workloads.TrainRun,
        lambda job, _: workloads.as_trainjob(job),
        workloads.TrainRun.resource,
        workloads.TrainRun.resource,
    ),
    "RayJob": Kind(
        workloads.RayRun,
        lambda job, cluster: [workloads.as_rayjob(job, cluster.images["ray"])],
        workloads.RayRun.resource,
        workloads.RayRun.resource,
        pods=3,
    ),
}


def a_fire_is_latched(event: Json) -> bool:
    return "fire" in ((event["object"].get("status") or {}).get("guard") or {})


def fired(kind: Kind, job: Job) -> tuple[float, End]:
    """Seconds from the latch in the status to the stop request and to the end of the pods."""
    client, namespace = job.client, job.namespace.name
    latch = Sight(client, JOBS, namespace, a_fire_is_latched)
    request = Sight(client, kind.asked, namespace, kind.is_asked)
    gone = LastPod(client, namespace)
    when.the_trainer_fires(job)
    latched = latch.wait("the latch is in the status", timeouts.REPORT)
    requested = request.wait("the stop is requested", timeouts.STOP)
    return requested - latched, gone.end(timeouts.STOP).since(latched)


def deleted(kind: Kind, job: Job) -> End:
    """Seconds from the delete of the workload to the end of the pods."""
    workload = job.workload
    assert workload is not None
    gone = LastPod(job.client, job.namespace.name)
    started = time.monotonic()
    job.client.delete(kind.resource, job.namespace.name, job.name, workload["metadata"]["uid"])
    return gone.end(timeouts.STOP).since(started)


def run_in(namespace: Namespace, kind: Kind) -> Job:
    """A run whose trainer goes on when the guard says stop; all its pods run."""
    image = namespace.cluster.images["trainer"]
    *others, job = jobs.scripted("run", image, ("steps 8",), deaf=True)
    given.objects(namespace, [*others, *kind.made(job, namespace.cluster)])
    run = kind.run(namespace, "run")
    then.the_guard_has_counted(run, 1, within=timeouts.RAY)
    eventually(
        lambda: [pod["status"].get("phase") for pod in run.pods] == ["Running"] * kind.pods,
        f"{kind.pods} running pods",
        timeouts.START,
    )
    return run


def measure(cluster: Cluster, name: str, rounds: int) -> None:
    kind = KINDS[name]
    requests, stops, deletes = [], [], []
    for number in range(rounds):
        where = f"bench-{name.lower()}-{number}"
        with fresh_namespace(cluster, f"{where}-fired") as namespace:
            request, stop = fired(kind, run_in(namespace, kind))
        with fresh_namespace(cluster, f"{where}-deleted") as namespace:
            delete = deleted(kind, run_in(namespace, kind))
        requests.append(request)
        stops.append(stop)
        deletes.append(delete)
        print(
            f"{name} {number + 1}: stop request {request:.3f} s, pods told to end {stop.told:.2f} s, gone "
            f"{stop.gone:.2f} s; deleted: told {delete.told:.2f} s, gone {delete.gone:.2f} s"
        )
    for what, took in (
        ("latched fire to stop request", requests),
        ("latched fire to last pod told to end", [one.told for one in stops]),
        ("latched fire to last container gone", [one.gone for one in stops]),
        ("delete to last pod told to end", [one.told for one in deletes]),
        ("delete to last container gone", [one.gone for one in deletes]),
    ):
        print(f"{name}: {what:37s} median {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    ratio = statistics.median(one.gone for one in stops) / statistics.median(one.gone for one in deletes)
    print(
        f"{name}: fire / delete, medians {ratio:.2f} (aim {AIM_RATIO:g}); "
        f"stop request aim {AIM_REQUEST_SECONDS:g} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    kinds = arguments.kinds or ["PyTorchJob"]
    if unknown := [name for name in kinds if name not in KINDS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    if EXISTING not in os.environ:
        parser.error(f"set {EXISTING} to the file that describes a cluster; `make kind-up` makes one")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    cluster = Cluster.from_json(Path(os.environ[EXISTING]).read_text())
    install(cluster)
    for name in kinds:
        measure(cluster, name, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
