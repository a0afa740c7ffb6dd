"""Guarded runs in a queue of the real Kueue controller, on a real API server.

- A run that waits is not silent, says for what, and is admitted when there is quota.
- A fire deletes it, while it runs or waits. Its quota is free for the next one, and nothing admits it again.
- A run that was preempted and admitted again has its guard, and what that had reported.

Job and RayJob have the same tests. The Job controller is played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_operator.adapters.ray import RAY_CLUSTERS
from guard_operator.api.names import QUEUE_LABEL
from guard_operator.runtime.client import (
    BATCH_JOBS,
    MERGE,
    Client,
    Resource,
    controller_of,
)
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.test_batch_job import as_job
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import JOBS, is_deleted, world

from .cluster import KindWorld
from .test_rayjob import as_rayjob

Json = dict[str, Any]
SECONDS = 90.0
WHEN = "2026-01-01T00:00:00Z"
FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, PRIORITIES = (
    Resource("kueue.x-k8s.io", "v1beta1", f"{kind.lower()}{'es' if kind.endswith('s') else 's'}", kind)
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass")
)
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


class QueueWorld(KindWorld):
    """A world with a queue that has room for one run, which is a Job."""

    workloads = BATCH_JOBS

    @staticmethod
    def made_of(job: Json) -> Json:
        """The same run as this kind."""
        return as_job(job)

    def queue(self, name: str = "gpus") -> None:
        """Quota for 600m: a guard alone asks for 500m."""
        flavor, shared = f"{self.namespace}-flavor", {"kind": "", "apiVersion": ""}
        quota = [{"name": "cpu", "nominalQuota": "600m"}, {"name": "memory", "nominalQuota": "100Gi"}]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": flavor, "resources": quota}]}
        cluster_queue = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        }
        for kind, named, body in (
            (FLAVORS, flavor, {"spec": {"nodeLabels": {"pool": "gpus"}}}),
            (CLUSTER_QUEUES, self.namespace, {"spec": cluster_queue}),
            (PRIORITIES, f"{self.namespace}-high", {"value": 1000}),
        ):
            typed = {**shared, **body, "kind": kind.kind, "apiVersion": kind.api_version}
            self.client.request("POST", kind.path(), body={**typed, "metadata": {"name": named}})
        spec = {"clusterQueue": self.namespace}
        self.put(LOCAL_QUEUES, {"metadata": {"name": name}, "spec": spec})

    def quota_in_use(self) -> str:
        """CPU that the queue has given away."""
        raw = self.client.request("GET", CLUSTER_QUEUES.path(None, self.namespace))
        (flavor,) = (raw.get("status") or {}).get("flavorsReservation") or [{"resources": []}]
        return str(next((one["total"] for one in flavor["resources"] if one["name"] == "cpu"), "?"))

    def entry(self) -> Json:
        """What Kueue has of the run's workload."""
        uid = self.workload()["metadata"]["uid"]

        def found() -> Json | None:
            return next((one for one in self.items(KUEUE_WORKLOADS) if controller_of(one) == uid), None)

        return eventually(found, "Kueue has a Workload of it", SECONDS)

    def told(self) -> dict[str, str]:
        """The conditions that hold of that, with their reasons."""
        found = (self.entry().get("status") or {}).get("conditions") or []
        return {one["type"]: one["reason"] for one in found if one["status"] == "True"}

    def policy(self) -> Json:
        """The part of the workload's spec in which it is suspended."""
        found: Json = self.workload()["spec"]
        return found

    def is_suspended(self) -> bool:
        return self.policy().get("suspend") is True

    def admitted(self) -> None:
        eventually(lambda: not self.is_suspended(), f"{self.name} is admitted", SECONDS)
        assert "Admitted" in self.told()

    def waits(self) -> None:
        """Suspended, and says so."""
        assert "waits in queue gpus" in self.expect("Waiting", "True", "Queued", within=SECONDS)
        assert self.phase() == "Suspended" and self.is_suspended()
        conditions = self.conditions()
        assert conditions["GuardSilent"][0] == "Unknown"
        assert not conditions.keys() & {"Halted", "Failed", "Disrupted", "Stopped"}

    def own_pods(self) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"]["rlguard.dev/job"] == self.name]

    def own_job(self) -> str:
        """The Job of rank 0."""
        return self.name

    def job_status(self, status: Json) -> None:
        path = BATCH_JOBS.path(self.namespace, self.own_job(), "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def runs(self, step: int = 1) -> None:
        """Admitted, its pod runs, and its guard has reported."""
        self.admitted()
        self.controller_runs()
        self.guard_says(step=step)
        self.expect("Fired", "False", "NotFired", within=SECONDS)

    def controller_runs(self) -> None:
        """What it does with a run that is admitted: its pod runs."""
        self.job_controller_makes_pods()
        self.kubelet_runs_pods()
        self.job_status({"startTime": WHEN, "active": 1, "ready": 1})

    def own_pods_end(self) -> None:
        for pod in self.own_pods():
            self.delete(pod)
        self.kubelet_ends_pods()

    def controller_suspends(self) -> None:
        """What it does with a run that was suspended: its pods go, and it is not active."""
        self.own_pods_end()
        self.job_status({"active": 0, "ready": 0})

    def goes(self) -> None:
        """Somebody deletes the run, and what was collected with it is gone."""
        entry = self.entry()["metadata"]["name"]
        for kind, name in (
            (JOBS, self.name),
            (self.workloads, self.name),
            (KUEUE_WORKLOADS, entry),
            (BATCH_JOBS, self.own_job()),
        ):
            if self.client.get(kind, self.namespace, name) is not None:
                query = {"propagationPolicy": "Background"}
                self.client.request("DELETE", kind.path(self.namespace, name), query=query)
        self.own_pods_end()


class RayQueueWorld(QueueWorld):
    """The same with a RayJob, which has a head alone. KubeRay is real."""

    workloads = Resource("ray.io", "v1", "rayjobs", "RayJob")

    @staticmethod
    def made_of(job: Json) -> Json:
        """Without a submitter, which would need more quota than there is."""
        made = as_rayjob(job, submissionMode="HTTPMode", backoffLimit=0)
        made["spec"]["template"]["spec"]["rayClusterSpec"]["workerGroupSpecs"] = []
        return made

    def clusters(self) -> list[Json]:
        uid = self.workload()["metadata"]["uid"]
        return [one for one in self.items(RAY_CLUSTERS) if controller_of(one) == uid]

    def is_deployed(self, as_: str) -> bool:
        return bool((self.workload().get("status") or {}).get("jobDeploymentStatus") == as_)

    def controller_runs(self) -> None:
        eventually(self.own_pods, "its head", SECONDS)
        self.kubelet_runs_pods()
        eventually(lambda: self.is_deployed("Running"), "it runs", SECONDS)

    def controller_suspends(self) -> None:
        eventually(lambda: not self.clusters(), "its cluster is deleted", SECONDS)
        self.own_pods_end()
        eventually(lambda: self.is_deployed("Suspended"), "it is suspended", SECONDS)

    def goes(self) -> None:
        clusters = self.clusters()
        super().goes()
        for one in clusters:
            self.client.request("DELETE", RAY_CLUSTERS.path(self.namespace, one["metadata"]["name"]))

        def gone() -> bool:
            self.own_pods_end()
            return not self.items(RAY_CLUSTERS) and not self.own_pods()

        eventually(gone, "all of it is collected", SECONDS)


def start_kueue(controller: Callable[[str], None]) -> None:
    """After KubeRay, for whose CRDs Kueue asks ever more seldom."""
    controller("kuberay")
    controller("kueue")


WORLDS = {
    "Job": QueueWorld,
    "RayJob": RayQueueWorld,
}


@pytest.fixture(params=WORLDS.values(), ids=WORLDS.keys())
def here(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    controller: Callable[[str], None],
) -> Iterator[QueueWorld]:
    with world(plane, client, namespace, tmp_path, request.param) as made:
        start_kueue(controller)
        made.queue()
        made.claim()
        yield made


@pytest.fixture
def submit(here: QueueWorld, make_job: Callable[..., Json]) -> Callable[..., QueueWorld]:
    """Submits a run to the queue."""

    def run(name: str = "run", priority: str = "") -> QueueWorld:
        job = here.made_of(make_job())
        job["metadata"]["name"] = name
        job["metadata"]["labels"] = {QUEUE_LABEL: "gpus"}
        job["spec"]["onSilence"] = {"afterSeconds": 60, "action": "Stop"}
        if priority:
            job["spec"]["template"]["metadata"] = {"labels": {PRIORITY_LABEL: f"{here.namespace}-{priority}"}}
        here.submit(job)
        return here.another(name)

    return run


def test_a_run_waits_is_admitted_and_fires_and_the_next_one_has_its_quota(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    here.operator()
    first = submit()
    first.runs()
    (pod,) = first.own_pods()
    assert pod["spec"]["nodeSelector"] == {"pool": "gpus"}
    assert "Waiting" not in first.conditions() and first.conditions()["Guarded"][0] == "True"
    second = submit("second")
    second.waits()
    first.fire()
    first.expect_workload(is_deleted, "it is deleted", within=SECONDS)
    first.ends()
    second.runs()


def preempted(here: QueueWorld, submit: Callable[..., QueueWorld]) -> tuple[QueueWorld, QueueWorld]:
    """A run whose quota another one has taken."""
    here.operator()
    first = submit()
    first.runs(step=7)
    other = submit("other", priority="high")
    eventually(first.is_suspended, "it is preempted", SECONDS)
    return first, other


def test_a_preempted_run_that_is_admitted_again_has_its_guard_and_what_that_had_reported(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    first, other = preempted(here, submit)
    uid = first.own_pods()[0]["metadata"]["uid"]
    first.controller_suspends()
    first.waits()
    other.runs()
    other.goes()
    first.admitted()
    first.controller_runs()
    (pod,) = first.own_pods()
    assert pod["metadata"]["uid"] != uid
    assert first.job()["status"]["guard"]["step"] == 7
    assert first.conditions()["Guarded"][0] == "True"
    first.runs(step=8)
    assert "Waiting" not in first.conditions()


def test_a_run_that_fires_as_it_is_preempted_is_never_admitted_again(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    first, other = preempted(here, submit)
    first.fire()
    first.expect_workload(is_deleted, "it is deleted", within=SECONDS)
    first.ends()
    other.runs()
    assert not first.own_pods() and first.client.get(first.workloads, first.namespace, first.name) is None
