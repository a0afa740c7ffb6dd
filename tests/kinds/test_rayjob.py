"""RayJobs and the real KubeRay operator, on a real API server.

- A RayJob cannot be created before its CRD is there, and is found when that comes.
- KubeRay makes the pods of head and workers; the head has the guard as it was injected.
- A fire deletes the RayJob in the foreground. No pod of cluster or submitter is left, and nothing is retried.
- The same of one that exists (`spec.targetRef`), also after a retry.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.runtime.client import (
    BATCH_JOBS,
    MERGE,
    STATEFUL_SETS,
    Client,
)
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import RAY_CLUSTERS, RAY_JOBS, is_deleted, world

from .cluster import AttachedWorld, KindWorld

Json = dict[str, Any]
SECONDS = 120.0


class RayWorld(KindWorld):
    """A world whose workload is a RayJob."""

    workloads = RAY_JOBS
    owners = (RAY_CLUSTERS, BATCH_JOBS)

    def head(self) -> Json | None:
        return next((pod for pod in self.pods() if is_head(pod)), None)

    def deployment(self) -> tuple[str, str]:
        """The deployment status of the RayJob, and its reason."""
        status = self.workload().get("status") or {}
        return status.get("jobDeploymentStatus", ""), status.get("reason", "")

    def runs(self) -> None:
        """KubeRay's pods run, and then its submitter does; the guard has reported once."""
        self.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
        eventually(lambda: len(self.pods()) == 3, "head and two workers", SECONDS)
        self.kubelet_runs_pods()
        eventually(lambda: self.deployment()[0] == "Running", "the RayJob runs", SECONDS)
        assert self.job_controller_makes_pods() == ["run"]
        self.kubelet_runs_pods()
        self.guard_says(step=1)
        self.expect("Fired", "False", "NotFired", within=SECONDS)


def is_head(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"].get("ray.io/node-type") == "head")


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[RayWorld]:
    with world(plane, client, namespace, tmp_path, RayWorld) as made:
        yield made


def as_rayjob(job: Json, **spec: Any) -> Json:
    """The same run as a RayJob that may be retried."""
    changed = copy.deepcopy(job)
    pod = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    pod["spec"]["containers"][0]["name"] = "ray"
    groups = [
        {
            "groupName": "gpu",
            "replicas": 2,
            "minReplicas": 0,
            "maxReplicas": 4,
            "template": copy.deepcopy(pod),
        }
    ]
    cluster = {"rayVersion": "2.46.0", "headGroupSpec": {"template": pod}, "workerGroupSpecs": groups}
    for group in (cluster["headGroupSpec"], groups[0]):
        group["rayStartParams"] = {}
    workload = {"entrypoint": "python train.py", "backoffLimit": 2, "rayClusterSpec": cluster, **spec}
    changed["spec"]["template"] = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": workload}
    return changed


@pytest.mark.before_crds
def test_the_kind_is_found_when_its_crd_comes_and_a_fire_deletes_all_of_it(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    here.claim()
    here.submit(as_rayjob(make_job()))
    here.operator()
    said = here.expect("Guarded", "False", "WorkloadRefused")
    assert "the cluster has no RayJob (ray.io/v1): install it" in said
    controller("kuberay")
    here.runs()
    eventually(lambda: here.phase() == "Running", "phase Running", SECONDS)
    pods, uid = here.pods(), here.job()["metadata"]["uid"]
    assert [pod for pod in pods if "rlguard-guard" in str(pod["spec"])] == [here.head()], "the head alone"
    assert len(pods) == 4 and all(pod["metadata"]["labels"]["rlguard.dev/job-uid"] == uid for pod in pods)
    for pod in pods:  # the submitter's is not a node of Ray
        soon = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "3"}
        is_node = "ray.io/node-type" in pod["metadata"]["labels"]
        assert (soon in pod["spec"]["containers"][0]["env"]) is is_node
    here.fire()
    here.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    here.ends()
    assert here.is_gone(), "it is not retried"


def test_a_guard_in_a_pod_of_its_own_ends_all_of_it(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    """The head waits for it and has its address; nothing of Ray has what is the guard's."""
    controller("kuberay")
    here.claim()
    for name in ("state", "checkpoints"):
        here.claim(name, "ReadWriteMany")
    job = as_rayjob(make_job(placement="Pod", state={"claimName": "state"}))
    cluster = job["spec"]["template"]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        claim = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
        group["template"]["spec"]["volumes"] = [claim]
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: len(here.items(STATEFUL_SETS)) == 1, "the guard's StatefulSet", SECONDS)
    eventually(lambda: len(here.pods()) == 3, "head and two workers", SECONDS)
    head = here.head()
    assert head is not None and "heldout" not in str([pod["spec"] for pod in here.pods()])
    assert [one["name"] for one in head["spec"]["initContainers"]] == ["wait-for-guard"]
    env = {one["name"]: one.get("value") for one in head["spec"]["containers"][0]["env"]}
    assert str(env["RLGUARD_URL"]).startswith("https://run-")
    here.kubelet_runs_pods()
    eventually(lambda: here.deployment()[0] == "Running", "the RayJob runs", SECONDS)
    here.start_guard()

    here.fire()

    here.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    here.ends()
    eventually(lambda: not here.items(STATEFUL_SETS), "nor its guard", SECONDS)


def test_a_fire_before_the_cluster_is_ready(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    """The guard of the head may fire while workers are still waited for; then there is no submitter yet."""
    controller("kuberay")
    here.claim()
    here.submit(as_rayjob(make_job(), shutdownAfterJobFinishes=False))
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    here.kubelet_runs(eventually(here.head, "the head", SECONDS))
    here.fire()
    here.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    here.ends()
    assert here.is_gone()


def test_the_sample_is_one_that_kuberay_takes(here: RayWorld, controller: Callable[[str], None]) -> None:
    controller("kuberay")
    here.submit_sample("rayjob")
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: len(here.pods()) == 2, "head and worker", SECONDS)


class SomebodysRayJob(AttachedWorld, RayWorld):
    """A world with a RayJob that exists, to which the job is attached: both are called `run`."""

    target = "run"
    owners = (RAY_CLUSTERS, BATCH_JOBS, STATEFUL_SETS)

    def make_target(self, make_job: Callable[..., Json]) -> None:
        """Somebody's RayJob, whose pods run."""
        spec = as_rayjob(make_job())["spec"]["template"]["spec"]
        self.put(self.workloads, {"metadata": {"name": self.target}, "spec": spec})
        self.runs_once()

    def runs_once(self) -> None:
        """The pods of this try run, and then its submitter does."""
        eventually(lambda: len(self.nodes()) == 3, "head and two workers", SECONDS)
        self.kubelet_runs_pods()
        eventually(lambda: self.deployment()[0] == "Running", "the RayJob runs", SECONDS)
        assert self.job_controller_makes_pods() == [self.target]
        self.kubelet_runs_pods()

    def nodes(self) -> list[Json]:
        """The pods of head and workers of the cluster that it has now."""
        name = (self.workload().get("status") or {}).get("rayClusterName")
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get("ray.io/cluster") == name]

    def of_run(self) -> list[Json]:
        """All of its pods, of whatever try."""
        return [pod for pod in self.pods() if "rlguard" not in str(pod["metadata"].get("labels"))]

    def there(self) -> list[tuple[str, str]]:
        """The clusters and submitters that are there."""
        kinds = (RAY_CLUSTERS, BATCH_JOBS)
        return sorted((kind.kind, one["metadata"]["uid"]) for kind in kinds for one in self.items(kind))

    def submitter_fails(self) -> None:
        """Which has KubeRay make another cluster."""
        when = "2026-01-01T00:00:00Z"
        shared = {"status": "True", "lastTransitionTime": when, "lastProbeTime": when}
        why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        conditions = [{"type": kind, **shared, **why} for kind in ("FailureTarget", "Failed")]
        status = {"startTime": when, "active": 0, "ready": 0, "failed": 1, "conditions": conditions}
        path = BATCH_JOBS.path(self.namespace, self.target, "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)


@pytest.fixture
def theirs(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    make_job: Callable[..., Json],
    controller: Callable[[str], None],
) -> Iterator[SomebodysRayJob]:
    controller("kuberay")
    with world(plane, client, namespace, tmp_path, SomebodysRayJob) as made:
        made.make_target(make_job)
        yield made


def test_one_that_exists_is_deleted_with_all_of_its_pods_also_after_a_retry(
    theirs: SomebodysRayJob, make_job: Callable[..., Json]
) -> None:
    here = theirs
    before = here.workload()["spec"]
    here.attach(make_job)
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    assert here.workload()["spec"] == before, "it is left as it is"
    first = here.there()
    assert len(first) == 2
    here.submitter_fails()
    eventually(lambda: here.there() and here.there() != first, "KubeRay makes another cluster", SECONDS)
    here.runs_once()
    here.fire()
    here.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    here.ends()
    assert not here.of_run() and not here.there()


def test_the_sample_of_a_ray_cluster_does_for_a_ray_job(theirs: SomebodysRayJob) -> None:
    change = {"kind": "RayJob", "name": theirs.target}
    theirs.submit_sample("attached-raycluster", lambda job: job["spec"]["targetRef"].update(change))
    theirs.operator()
    theirs.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    eventually(theirs.guards_set, "the guard's StatefulSet", SECONDS)


def test_one_on_somebodys_cluster_is_refused(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    make_job: Callable[..., Json],
    controller: Callable[[str], None],
) -> None:
    """No stop of it would delete that."""
    controller("kuberay")
    with world(plane, client, namespace, tmp_path, SomebodysRayJob) as here:
        spec = {"entrypoint": "python train.py", "clusterSelector": {"ray.io/cluster": "shared"}}
        here.put(here.workloads, {"metadata": {"name": "run"}, "spec": spec})
        here.attach(make_job)
        said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
        assert "spec.clusterSelector: must not be set" in said
