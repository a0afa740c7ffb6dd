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
import yaml

from guard_operator.adapters.ray import RAY_CLUSTERS
from guard_operator.runtime.client import (
    BATCH_JOBS,
    MERGE,
    STATEFUL_SETS,
    Client,
    Resource,
)
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import is_deleted, world

from .cluster import AttachedWorld, KindWorld

Json = dict[str, Any]
SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]


class RayWorld(KindWorld):
    """A world whose workload is a RayJob."""

    workloads = Resource("ray.io", "v1", "rayjobs", "RayJob")
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
def test_the_kind_is_found_when_its_crd_comes(
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


@pytest.fixture
def start(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> Callable[..., RayWorld]:
    """Makes a RayJob that runs."""

    def run() -> RayWorld:
        controller("kuberay")
        here.claim()
        job = as_rayjob(make_job())
        here.submit(job)
        here.operator()
        here.runs()
        return here

    return run


@pytest.fixture
def running(start: Callable[..., RayWorld]) -> RayWorld:
    return start()


def test_the_head_alone_has_the_guard(running: RayWorld) -> None:
    pods = running.pods()
    assert [pod for pod in pods if "rlguard-guard" in str(pod["spec"])] == [running.head()]
    assert running.head() is not None
    uid = running.job()["metadata"]["uid"]
    assert len(pods) == 4 and all(pod["metadata"]["labels"]["rlguard.dev/job-uid"] == uid for pod in pods)
    for pod in pods:  # the submitter's is not a node of Ray
        soon = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "3"}
        is_node = "ray.io/node-type" in pod["metadata"]["labels"]
        assert (soon in pod["spec"]["containers"][0]["env"]) is is_node
    eventually(lambda: running.phase() == "Running", "phase Running")
    assert running.conditions()["Guarded"][:2] == ("True", "WorkloadCreated")


def test_a_fire_deletes_it_and_nothing_of_the_run_is_left(running: RayWorld) -> None:
    running.fire()
    running.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    running.ends()
    assert running.is_gone(), "it is not retried"


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


def test_the_sample_is_one_that_kuberay_takes(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    documents = yaml.safe_load_all((ROOT / "k8s/samples/rayjob.yaml").read_text("utf-8"))
    job = next(one for one in documents if one["kind"] == "GuardedTrainingJob")
    job["metadata"]["name"] = here.name
    for claim in ("heldout", "models", "rayjob-checkpoints"):
        here.claim(claim)
    here.submit(job)
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


def guarded(here: SomebodysRayJob, make_job: Callable[..., Json]) -> None:
    """It is attached, and its guard reports."""
    before = here.workload()["spec"]
    here.attach(make_job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    assert len(here.there()) == 2
    assert here.workload()["spec"] == before, "it is left as it is"


@pytest.mark.parametrize("retried", [False, True], ids=["first try", "second try"])
def test_one_that_exists_is_deleted_with_all_of_its_pods(
    theirs: SomebodysRayJob, make_job: Callable[..., Json], retried: bool
) -> None:
    here = theirs
    guarded(here, make_job)
    if retried:
        first = here.there()
        here.submitter_fails()
        eventually(lambda: here.there() and here.there() != first, "KubeRay makes another cluster", SECONDS)
        here.runs_once()
    here.fire()
    here.expect_workload(is_deleted, "the RayJob is deleted", within=SECONDS)
    here.ends()
    assert not here.of_run() and not here.there()


def test_the_sample_is_attached(theirs: SomebodysRayJob) -> None:
    here = theirs
    text = (ROOT / "k8s/samples/attached-rayjob.yaml").read_text("utf-8")
    job = next(one for one in yaml.safe_load_all(text) if one["kind"] == "GuardedTrainingJob")
    job["metadata"]["name"], job["spec"]["targetRef"]["name"] = here.name, here.target
    for claim in ("heldout", "attached-rayjob-state"):
        here.claim(claim)
    here.claim("verl-checkpoints", "ReadWriteMany")
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    eventually(lambda: here.items(STATEFUL_SETS), "the guard's StatefulSet", SECONDS)


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
        here.operator()
        said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
        assert "spec.clusterSelector: must not be set" in said
