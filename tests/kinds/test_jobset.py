"""JobSets and the real JobSet controller, on a real API server.

- JobSet makes a Job for each part; rank 0's pods have the guard as it was injected.
- A fire deletes the JobSet in the foreground, with every Job and pod of it, although its policy would
  restart it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.runtime.client import BATCH_JOBS, MERGE, STATEFUL_SETS, Client
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import JOB_SETS, is_deleted, world

from .cluster import AttachedWorld, KindWorld

Json = dict[str, Any]
SECONDS = 120.0
WHEN = "2026-01-01T00:00:00Z"


class JobSetWorld(KindWorld):
    """A world whose workload is a JobSet."""

    workloads = JOB_SETS

    def jobs(self) -> dict[str, Json]:
        """The Jobs that are there and not on their way out."""
        found = self.items(BATCH_JOBS)
        return {one["metadata"]["name"]: one for one in found if "deletionTimestamp" not in one["metadata"]}

    def runs(self) -> None:
        """Pods of all Jobs run; the guard has reported once."""
        self.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
        eventually(lambda: len(self.jobs()) == 3, "a Job for each", SECONDS)
        assert sorted(self.job_controller_makes_pods()) == ["run-trainer-0", "run-workers-0", "run-workers-1"]
        self.kubelet_runs_pods()
        for name in self.jobs():
            self.job_status(name, {"startTime": WHEN, "active": 1, "ready": 1})
        self.guard_says(step=1)
        self.expect("Fired", "False", "NotFired", within=SECONDS)

    def job_status(self, name: str, status: Json) -> None:
        path = BATCH_JOBS.path(self.namespace, name, "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[JobSetWorld]:
    with world(plane, client, namespace, tmp_path, JobSetWorld) as made:
        yield made


def as_jobset(job: Json, **spec: Any) -> Json:
    """The same run as a JobSet that may be restarted, with workers beside it."""
    changed = copy.deepcopy(job)
    pod = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    template = {"spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", **pod}}}}
    parts = [{"name": "workers", "replicas": 2}, {"name": "trainer", "replicas": 1}]
    workload = {
        "failurePolicy": {"maxRestarts": 3, "rules": [{"name": "again", "action": "RestartJobSet"}]},
        "replicatedJobs": [{**part, "template": copy.deepcopy(template)} for part in parts],
        **spec,
    }
    workload = {key: value for key, value in workload.items() if value is not None}
    changed["spec"]["template"] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": workload,
    }
    return changed


@pytest.fixture
def start(
    here: JobSetWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> Callable[..., JobSetWorld]:
    """Makes a JobSet that runs."""

    def run(**spec: Any) -> JobSetWorld:
        controller("jobset")
        here.claim()
        job = as_jobset(make_job(), **spec)
        here.submit(job)
        here.operator()
        here.runs()
        return here

    return run


def test_rank_0_alone_has_the_guard_and_a_fire_deletes_all_of_it(start: Callable[..., JobSetWorld]) -> None:
    here = start()
    (guarded,) = (pod for pod in here.pods() if "rlguard-guard" in str(pod["spec"]))
    assert guarded["metadata"]["name"].startswith("run-trainer-0-")
    uid = here.job()["metadata"]["uid"]
    for one in (*here.pods(), *here.items(BATCH_JOBS)):
        assert one["metadata"]["labels"]["rlguard.dev/job-uid"] == uid
    eventually(lambda: here.phase() == "Running", "phase Running", SECONDS)
    here.fire()
    here.expect_workload(is_deleted, "the JobSet is deleted", within=SECONDS)
    here.ends()
    assert here.is_gone(), "it is not restarted"


def test_the_sample_is_one_that_jobset_takes(here: JobSetWorld, controller: Callable[[str], None]) -> None:
    controller("jobset")
    here.submit_sample("jobset")
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: [*here.jobs()] == ["run-trainer-0"], "its Job", SECONDS)


class SomebodysJobSet(AttachedWorld, JobSetWorld):
    """A world with a JobSet that exists, to which the job is attached."""

    owners = (BATCH_JOBS, STATEFUL_SETS)

    def workload(self) -> Json:
        return self.client.get(self.workloads, self.namespace, self.target) or {}


@pytest.fixture
def theirs(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[SomebodysJobSet]:
    with world(plane, client, namespace, tmp_path, SomebodysJobSet) as made:
        yield made


def test_one_that_exists_is_deleted_and_not_restarted(
    theirs: SomebodysJobSet, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    """Its pods are known by the label with its UID."""
    here = theirs
    controller("jobset")
    spec = as_jobset(make_job(), failurePolicy={"maxRestarts": 3})["spec"]["template"]["spec"]
    here.put(here.workloads, {"metadata": {"name": here.target}, "spec": spec})
    eventually(lambda: len(here.jobs()) == 3, "a Job for each", SECONDS)
    assert len(here.job_controller_makes_pods()) == 3
    here.kubelet_runs_pods()
    for name in here.jobs():
        here.job_status(name, {"startTime": WHEN, "active": 1, "ready": 1})
    here.attach(make_job)
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    here.is_deleted_by_a_fire()
