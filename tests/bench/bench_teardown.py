"""From a latched fire to the last container gone, against `kubectl delete` of the same object, on kind.

    RLGUARD_E2E=cluster.json python tests/bench/bench_teardown.py [--rounds 8] [KIND...]

KIND is PyTorchJob, Job, JobSet or RayJob, or TrainJob or RayCluster, to which a guard is attached; PyTorchJob
if none is named. The file describes a cluster as tests/e2e/cluster/up.sh prints it, for JobSet, TrainJob and
Ray one with their controllers. Each round makes two runs of the same pods one after the other, with the real
guard and a scripted trainer; a guard that is attached reads a log in their volume. In one the guard fires,
and nobody but the operator stops it: its trainer does not listen. In the other the workload is deleted as
kubectl does it. One program watches both, so one clock tells all times. The kubelet removes a pod's object
only after its last container ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from e2e import given, jobs, then, timeouts, when, workloads  # noqa: E402
from e2e.conftest import EXISTING, fresh_namespace  # noqa: E402
from e2e.kube import JOBS, PYTORCHJOBS, Cluster, Job, Namespace, install  # noqa: E402
from e2e.then import eventually  # noqa: E402

from rlguard.operator.api.names import guard_name  # noqa: E402
from rlguard.operator.runtime.client import BATCH_JOBS, PODS, Client, Resource  # noqa: E402
from rlguard.operator.runtime.errors import ClusterError  # noqa: E402

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
    """Notes when the last pod of a run was told to end, and when it was gone.

    The pod that a guard has for itself is none of the run's: it ends after the evidence is written.
    """

    def __init__(self, job: Job) -> None:
        client, namespace = job.client, job.namespace.name
        items = client.list(PODS, namespace, {}).get("items") or []
        self._guard = f"{guard_name(job.name, job.uid)}-0"
        self._there = {pod["metadata"]["uid"] for pod in items if pod["metadata"]["name"] != self._guard}
        self._told: dict[str, float] = {}
        super().__init__(client, PODS, namespace, lambda _: False)

    def run(self) -> None:
        for event in self.events():
            metadata = event["object"]["metadata"]
            uid = metadata.get("uid")
            if metadata.get("name") == self._guard:
                continue
            if "deletionTimestamp" in metadata or event["type"] == "DELETED":
                self._told.setdefault(uid, time.monotonic())
            self._there = self._there - {uid} if event["type"] == "DELETED" else self._there | {uid}
            self.at = None if self._there else time.monotonic()

    def end(self, within: float) -> End:
        settled = lambda: (at := self.at) is not None and time.monotonic() - at > SETTLED and at  # noqa: E731
        return End(gone=float(eventually(settled, "no pod is left", within)), told=max(self._told.values()))


class Scripted:
    """A run with its guard in the pod of rank 0, whose trainer reports what it is told."""

    def storage(self, namespace: Namespace) -> AbstractContextManager[Sequence[Json]]:
        """What is applied first: its pods share nothing."""
        return nullcontext(())

    def manifests(self, kind: Kind, namespace: Namespace) -> Sequence[Json]:
        """What is applied."""
        cluster = namespace.cluster
        *others, job = jobs.scripted("run", cluster.images["trainer"], ("steps 8",), deaf=True)
        return [*others, *kind.rows(job, cluster)]

    def begin(self, job: Job) -> None:
        """It reports by itself."""
        then.the_guard_has_counted(job, 1, within=timeouts.RAY)

    def fire(self, job: Job) -> None:
        """Have the guard latch."""
        when.the_trainer_fires(job)


class Attached:
    """A run that knows of no guard. Its pods do nothing; the log that a guard reads is written from here."""

    TRAINER = ("sh", "-c", "trap exit TERM; sleep 100000 & wait")
    #: Beside the checkpoints, and below the root of their volume.
    FOLDER = "run"

    def storage(self, namespace: Namespace) -> AbstractContextManager[Sequence[Json]]:
        """What is applied first: the claim that its pods share with the guard's."""
        return given.a_claim_for_two_nodes(namespace, "checkpoints")

    def manifests(self, kind: Kind, namespace: Namespace) -> Sequence[Json]:
        """What is applied."""
        cluster, claim = namespace.cluster, {"persistentVolumeClaim": {"claimName": "checkpoints"}}
        *others, job = jobs.scripted("run", cluster.images["trainer"], checkpoints=claim)
        jobs.trainer_of(job)["command"] = list(self.TRAINER)
        *more, made = kind.rows(job, cluster)
        attached = workloads.attached(made, kind.resource, ATTACHED, f"{self.FOLDER}/metrics.jsonl")
        return [*others, *more, jobs.claim("state"), workloads.workload_of(made, ATTACHED), attached]

    def begin(self, job: Job) -> None:
        """Steps, until the guard counts one: what it finds in the log as it begins is another run's."""
        numbers = itertools.count(1)

        def counted() -> bool:
            self._write(job, next(numbers), 0.01)
            return bool(job.guard.get("steps"))

        eventually(counted, "the guard counts a step", timeouts.START)

    def fire(self, job: Job) -> None:
        """Steps whose KL is far beyond the KL stop."""
        last = job.guard["step"] + 100  # those that were not counted yet are before it
        self._write(job, last, 1000.0, 10)

    def _write(self, job: Job, first: int, kl: float, steps: int = 1) -> None:
        rows = ({"step": step, "reward": 0.5, "kl": kl} for step in range(first, first + steps))
        where = f"/checkpoints/{self.FOLDER}"
        script = f'mkdir -p {where} && echo "$0" >> {where}/metrics.jsonl'
        job.exec(job.trainer_container, "sh", "-c", script, "\n".join(map(json.dumps, rows)))


ATTACHED = workloads.AttachedRun.target


@dataclass(frozen=True)
class Kind:
    """How runs of a kind are made, and how it is seen that one was asked to stop."""

    run: type[Job]
    made: Callable[[Json, Cluster], Sequence[Json]]
    resource: Resource
    pods: int = 1
    guarded: Scripted | Attached = Scripted()  # noqa: RUF009


KINDS = {
    "PyTorchJob": Kind(Job, lambda job, _: [job], PYTORCHJOBS),
    "Job": Kind(workloads.BatchRun, lambda job, _: [workloads.as_batch_job(job)], BATCH_JOBS),
    "JobSet": Kind(
        workloads.JobSetRun,
        lambda job, _: [workloads.as_jobset(job)],
        workloads.JobSetRun.resource,
        pods=2,
    ),
    "TrainJob": Kind(
        workloads.AttachedTrainRun,
        lambda job, _: workloads.as_trainjob(job),
        workloads.AttachedTrainRun.resource,
        guarded=Attached(),
    ),
    "RayJob": Kind(
        workloads.RayRun,
        lambda job, cluster: [workloads.as_rayjob(job, cluster.images["ray"])],
        workloads.RayRun.resource,
        pods=3,
    ),
    "RayCluster": Kind(
        workloads.AttachedRayClusterRun,
        lambda job, cluster: [workloads.as_raycluster(job, cluster.images["ray"])],
        workloads.AttachedRayClusterRun.resource,
        pods=2,
        guarded=Attached(),
    ),
}


def a_fire_is_latched(event: Json) -> bool:
    return "fire" in ((event["object"].get("status") or {}).get("guard") or {})


def is_going(event: Json) -> bool:
    """The workload is being deleted."""
    return event["type"] == "DELETED" or "deletionTimestamp" in event["object"]["metadata"]


def fired(kind: Kind, job: Job) -> tuple[float, End]:
    """Seconds from the latch in the status to the stop request and to the end of the pods."""
    client, namespace = job.client, job.namespace.name
    latch = Sight(client, JOBS, namespace, a_fire_is_latched)
    request = Sight(client, kind.resource, namespace, is_going)
    gone = LastPod(job)
    kind.guarded.fire(job)
    latched = latch.wait("the latch is in the status", timeouts.REPORT)
    requested = request.wait("the stop is requested", timeouts.STOP)
    return requested - latched, gone.end(timeouts.STOP).since(latched)


def deleted(kind: Kind, job: Job) -> End:
    """Seconds from the delete of the workload to the end of the pods."""
    workload = job.workload
    assert workload is not None
    gone = LastPod(job)
    started = time.monotonic()
    metadata = workload["metadata"]
    job.client.delete(kind.resource, job.namespace.name, metadata["name"], metadata["uid"])
    return gone.end(timeouts.STOP).since(started)


@contextmanager
def running(cluster: Cluster, kind: Kind, where: str) -> Iterator[Job]:
    """A run whose trainer goes on when the guard says stop; all its pods run."""
    with ExitStack() as stack:
        namespace = stack.enter_context(fresh_namespace(cluster, where))
        shared = stack.enter_context(kind.guarded.storage(namespace))
        given.objects(namespace, [*shared, *kind.guarded.manifests(kind, namespace)])
        run = kind.run(namespace, "run")
        eventually(
            lambda: [pod["status"].get("phase") for pod in run.pods] == ["Running"] * kind.pods,
            f"{kind.pods} running pods",
            timeouts.RAY,
        )
        kind.guarded.begin(run)
        yield run


def measure(cluster: Cluster, name: str, rounds: int) -> None:
    kind = KINDS[name]
    requests, stops, deletes = [], [], []
    for number in range(rounds):
        where = f"bench-{name.lower()}-{number}"
        with running(cluster, kind, f"{where}-fired") as run:
            request, stop = fired(kind, run)
        with running(cluster, kind, f"{where}-deleted") as run:
            delete = deleted(kind, run)
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
