"""Guarded runs in a queue of the real Kueue controller, on a real API server.

- A run that waits is not silent, says for what, and is admitted when there is quota.
- A fire ends it: by its deadline while it runs, by leaving the queue while it is suspended. Its quota is free
  for the next one, and nothing admits it again.
- A run that was preempted and admitted again has its guard, and what that had reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_operator.api.names import QUEUE_LABEL
from guard_operator.reconcile.digest import is_as_injected
from guard_operator.runtime.client import (
    BATCH_JOBS,
    KUEUE_WORKLOADS,
    MERGE,
    Client,
    Resource,
    controller_of,
)
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.test_batch_job import as_job
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import BEAT, JOBS, world

from .cluster import KindWorld
from .test_jobset import as_jobset

Json = dict[str, Any]
SECONDS = 90.0
WHEN = "2026-01-01T00:00:00Z"
FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, PRIORITIES = (
    Resource("kueue.x-k8s.io", "v1beta1", f"{kind.lower()}{'es' if kind.endswith('s') else 's'}", kind)
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass")
)
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


class QueueWorld(KindWorld):
    """A world with a queue that has room for one run. `workloads` is a Job."""

    workloads = BATCH_JOBS

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

    def is_suspended(self) -> bool:
        return self.workload()["spec"].get("suspend") is True

    def admitted(self) -> None:
        eventually(lambda: not self.is_suspended(), f"{self.name} is admitted", SECONDS)
        assert "Admitted" in self.told()

    def waits(self, reason: str) -> str:
        """Suspended, and says so with Kueue's reason; its message."""
        eventually(lambda: reason in self.conditions().get("Waiting", ("", "", ""))[2], reason, SECONDS)
        status, why, message = self.conditions()["Waiting"]
        assert (status, why) == ("True", "Queued") and "waits in queue gpus" in message
        assert self.phase() == "Suspended" and self.is_suspended()
        conditions = self.conditions()
        assert conditions["GuardSilent"][0] == "Unknown"
        assert not conditions.keys() & {"Halted", "Failed", "Disrupted", "Stopped"}
        return message

    def own_pods(self) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"]["rlguard.dev/job"] == self.name]

    def own_job(self) -> str:
        """The Job of rank 0."""
        return self.name

    def job_status(self, status: Json, name: str | None = None) -> None:
        path = BATCH_JOBS.path(self.namespace, name or self.own_job(), "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def runs(self, step: int = 1) -> None:
        """Admitted, its pod runs, and its guard has reported."""
        self.admitted()
        self.job_controller_makes_pods()
        self.kubelet_runs_pods()
        self.job_status({"startTime": WHEN, "active": 1, "ready": 1})
        self.guard_says(heartbeat=BEAT, step=step)
        self.expect("Fired", "False", "NotFired", within=SECONDS)

    def job_controller_suspends(self) -> None:
        """What it does with a Job that was suspended: its pods go, and it is not active."""
        for pod in self.own_pods():
            self.delete(pod)
        self.kubelet_ends_pods()
        self.job_status({"active": 0, "ready": 0})

    def job_controller_ends(self, name: str | None = None) -> None:
        """What it does once the deadline is over."""
        for pod in self.own_pods():
            self.delete(pod)
        self.kubelet_ends_pods()
        shared = {"status": "True", "lastTransitionTime": WHEN, "lastProbeTime": WHEN}
        why = {"reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}
        conditions = [{"type": kind, **shared, **why} for kind in ("FailureTarget", "Failed")]
        self.job_status({"active": 0, "ready": 0, "failed": 1, "conditions": conditions}, name)

    def goes(self) -> None:
        """Somebody deletes the run, and what was collected with it is gone."""
        entry, pods = self.entry()["metadata"]["name"], self.own_pods()
        for kind, name in ((JOBS, self.name), (BATCH_JOBS, self.name), (KUEUE_WORKLOADS, entry)):
            query = {"propagationPolicy": "Background"}
            self.client.request("DELETE", kind.path(self.namespace, name), query=query)
        for pod in pods:
            self.delete(pod)
        self.kubelet_ends_pods()

    def sets_active(self, active: bool) -> None:
        """What somebody with the rights does."""
        path = KUEUE_WORKLOADS.path(self.namespace, self.entry()["metadata"]["name"])
        self.client.request("PATCH", path, body={"spec": {"active": active}}, content_type=MERGE)


class JobSetQueueWorld(QueueWorld):
    """The same with a JobSet, which has a Job of one pod."""

    workloads = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")

    def own_job(self) -> str:
        return f"{self.name}-trainer-0"

    def deadline(self) -> int | None:
        raw = self.client.get(BATCH_JOBS, self.namespace, self.own_job()) or {}
        found: int | None = (raw.get("spec") or {}).get("activeDeadlineSeconds")
        return found

    def runs(self, step: int = 1) -> None:
        job = lambda: self.client.get(BATCH_JOBS, self.namespace, self.own_job())  # noqa: E731
        self.admitted()
        eventually(
            lambda: (job() or {"spec": {"suspend": True}})["spec"].get("suspend") is not True, "its Job"
        )
        super().runs(step)


def start_kueue(controller: Callable[[str], None]) -> None:
    """After JobSet, whose CRD Kueue asks for ever more seldom."""
    controller("jobset")
    controller("kueue")


@pytest.fixture
def here(
    plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, controller: Callable[[str], None]
) -> Iterator[QueueWorld]:
    with world(plane, client, namespace, tmp_path, QueueWorld) as made:
        start_kueue(controller)
        made.queue()
        made.allow_kueue()
        made.claim()
        yield made


@pytest.fixture
def submit(here: QueueWorld, make_job: Callable[..., Json]) -> Callable[..., QueueWorld]:
    """Submits a run to the queue."""

    def run(name: str = "run", on_fire: str = "Stop", priority: str = "") -> QueueWorld:
        job = as_job(make_job())
        job["metadata"]["name"] = name
        job["metadata"]["labels"] = {QUEUE_LABEL: "gpus"}
        job["spec"]["onFire"] = on_fire
        job["spec"]["onSilence"] = {"afterSeconds": 60, "action": "Stop"}
        if priority:
            job["spec"]["template"]["metadata"] = {"labels": {PRIORITY_LABEL: f"{here.namespace}-{priority}"}}
        here.submit(job)
        return here.another(name)

    return run


def test_a_run_waits_is_admitted_and_fires_and_the_next_one_has_its_quota(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    here.operator("--kueue")
    first = submit()
    first.runs()
    assert first.workload()["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpus"}
    (pod,) = first.own_pods()
    assert is_as_injected(pod) is True, "what an admission writes is no change of the guard"
    assert "Waiting" not in first.conditions() and first.conditions()["Guarded"][0] == "True"
    second = submit("second")
    assert "insufficient" in second.waits("Pending")
    first.fire()
    deadline = lambda: first.workload()["spec"].get("activeDeadlineSeconds") == 1  # noqa: E731
    eventually(deadline, "the deadline", SECONDS)
    assert first.entry()["spec"].get("active", True), "a run that runs ends by its deadline"
    first.job_controller_ends()
    first.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    eventually(lambda: first.told().get("Finished") == "Failed", "its Workload is finished", SECONDS)
    second.runs()


def preempted(here: QueueWorld, submit: Callable[..., QueueWorld]) -> tuple[QueueWorld, QueueWorld]:
    """A run whose quota another one has taken."""
    here.operator("--kueue")
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
    first.job_controller_suspends()
    assert "taken back (Preempted" in first.waits("Preempted")
    other.runs()
    other.goes()
    first.admitted()
    first.job_controller_makes_pods()
    (pod,) = first.own_pods()
    assert pod["metadata"]["uid"] != uid and is_as_injected(pod) is True
    assert first.job()["status"]["guard"]["step"] == 7
    assert first.conditions()["Guarded"][0] == "True"
    first.runs(step=8)
    assert "Waiting" not in first.conditions()


def test_a_run_that_fires_as_it_is_preempted_is_never_admitted_again(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    first, other = preempted(here, submit)
    first.fire()
    eventually(lambda: first.entry()["spec"].get("active") is False, "it leaves the queue", SECONDS)
    first.job_controller_suspends()
    first.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    assert first.job()["status"]["stop"]["method"] == "Stop", "it was not deleted"
    assert first.is_suspended()
    other.runs()
    other.fire()
    eventually(lambda: other.workload()["spec"].get("activeDeadlineSeconds") == 1, "the deadline", SECONDS)
    other.job_controller_ends()
    other.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    eventually(lambda: here.quota_in_use() == "0", "all quota is free", SECONDS)
    assert first.is_suspended() and not first.own_pods(), "although there is room"
    third = submit("third")
    third.runs()
    first.sets_active(True)
    eventually(lambda: first.entry()["spec"]["active"] is False, "it is taken out again", SECONDS)
    assert first.is_suspended() and not first.own_pods()
    first.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)


def test_a_fire_by_suspend_is_not_undone_by_the_queue(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    here.operator("--kueue")
    first = submit(on_fire="Suspend")
    first.runs()
    first.fire()
    eventually(lambda: "Evicted" in first.told() and first.is_suspended(), "evicted", SECONDS)
    first.job_controller_suspends()
    first.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    eventually(lambda: here.quota_in_use() == "0", "its quota is free", SECONDS)
    assert first.is_suspended() and first.entry()["spec"]["active"] is False


def test_without_the_flag_a_run_that_fires_as_it_is_preempted_is_deleted(
    here: QueueWorld, submit: Callable[..., QueueWorld]
) -> None:
    here.operator()
    first = submit()
    first.runs()
    other = submit("other", priority="high")
    eventually(first.is_suspended, "it is preempted", SECONDS)
    first.job_controller_suspends()
    first.waits("nothing is known")
    first.admin_says(fire={"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": BEAT})
    gone = lambda: here.client.get(BATCH_JOBS, here.namespace, "run") is None  # noqa: E731
    eventually(gone, "deleted", SECONDS)
    other.runs()


def test_a_jobset_waits_fires_and_leaves_its_quota(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    controller: Callable[[str], None],
    make_job: Callable[..., Json],
) -> None:
    start_kueue(controller)
    with world(plane, client, namespace, tmp_path, JobSetQueueWorld) as here:
        here.queue()
        here.allow_kueue()
        here.claim()
        here.operator("--kueue")

        def submit(name: str) -> JobSetQueueWorld:
            job = as_jobset(make_job())
            parts = job["spec"]["template"]["spec"]["replicatedJobs"]
            job["spec"]["template"]["spec"]["replicatedJobs"] = [copy.deepcopy(parts[1])]
            job["metadata"] = {**job["metadata"], "name": name, "labels": {QUEUE_LABEL: "gpus"}}
            here.submit(job)
            return here.another(name)

        first = submit("run")
        first.runs()
        second = submit("second")
        second.waits("Pending")
        first.fire()
        eventually(lambda: first.deadline() == 1, "its Job has its deadline", SECONDS)
        first.job_controller_ends()
        first.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
        eventually(lambda: first.told().get("Finished") == "Failed", "its Workload is finished", SECONDS)
        second.runs()
