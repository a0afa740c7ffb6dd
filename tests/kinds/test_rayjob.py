"""RayJobs and the real KubeRay operator, on a real API server.

- A RayJob cannot be created before its CRD is there, and is found when that comes.
- KubeRay makes the pods of head and workers; the head has the guard as it was injected.
- A fire is a deadline: KubeRay fails the job, retries it not, and deletes the cluster; the operator deletes
  the submitter. No pod of any of them is left.
- The same of one that exists (`spec.targetRef`), whose cluster goes before its pods do, also after a retry.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.reconcile.digest import is_as_injected
from guard_operator.runtime.client import (
    BATCH_JOBS,
    MERGE,
    STATEFUL_SETS,
    Client,
    Resource,
    controller_of,
)
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import BEAT, world

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
        self.guard_says(heartbeat=BEAT, step=1)
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
    assert here.phase() == "Running"


@pytest.fixture
def start(
    here: RayWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> Callable[..., RayWorld]:
    """Makes a RayJob that runs."""

    def run(on_fire: str = "Stop") -> RayWorld:
        controller("kuberay")
        here.claim()
        job = as_rayjob(make_job())
        job["spec"]["onFire"] = on_fire
        here.submit(job)
        here.operator()
        here.runs()
        return here

    return run


@pytest.fixture
def running(start: Callable[..., RayWorld]) -> RayWorld:
    return start()


def test_the_head_has_the_guard_as_it_was_injected(running: RayWorld) -> None:
    pods = running.pods()
    assert [pod for pod in pods if "rlguard-guard" in str(pod["spec"])] == [running.head()]
    head = running.head()
    assert head is not None and is_as_injected(head) is True
    uid = running.job()["metadata"]["uid"]
    assert len(pods) == 4 and all(pod["metadata"]["labels"]["rlguard.dev/job-uid"] == uid for pod in pods)
    for pod in pods:  # the submitter's is not a node of Ray
        soon = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "3"}
        is_node = "ray.io/node-type" in pod["metadata"]["labels"]
        assert (soon in pod["spec"]["containers"][0]["env"]) is is_node
    eventually(lambda: running.phase() == "Running", "phase Running")
    assert running.conditions()["Guarded"][:2] == ("True", "WorkloadCreated")


def test_given_a_fire_then_nothing_of_the_run_is_left(running: RayWorld) -> None:
    here = running
    here.fire()
    eventually(lambda: here.deployment() == ("Failed", "DeadlineExceeded"), "the RayJob has failed", SECONDS)
    eventually(lambda: not here.items(RAY_CLUSTERS), "its cluster is deleted", SECONDS)
    eventually(lambda: not here.items(BATCH_JOBS), "its submitter is deleted", SECONDS)
    assert here.conditions()["Stopped"][0] == "False", "the pods are still there"
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    assert here.deployment() == ("Failed", "DeadlineExceeded"), "it is not retried"
    assert here.job()["status"]["stop"]["method"] == "Stop" and not here.items(RAY_CLUSTERS)


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

    here.fire()

    eventually(lambda: here.deployment() == ("Failed", "DeadlineExceeded"), "the RayJob has failed", SECONDS)
    eventually(lambda: not here.items(RAY_CLUSTERS), "its cluster is deleted", SECONDS)
    eventually(lambda: not here.items(BATCH_JOBS), "its submitter is deleted", SECONDS)
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
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
    eventually(here.head, "the head", SECONDS)
    here.fire()
    eventually(lambda: here.deployment() == ("Failed", "DeadlineExceeded"), "the RayJob has failed", SECONDS)
    eventually(lambda: not here.items(RAY_CLUSTERS), "its cluster is deleted", SECONDS)
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)


def test_a_fire_by_suspend(start: Callable[..., RayWorld]) -> None:
    here = start("Suspend")
    here.fire()
    eventually(lambda: here.deployment()[0] == "Suspended", "the RayJob is suspended", SECONDS)
    assert not here.items(RAY_CLUSTERS) and not here.items(BATCH_JOBS)
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)


def test_given_a_fire_while_something_holds_the_rayjob_then_its_cluster_makes_no_pods_again(
    start: Callable[..., RayWorld],
) -> None:
    """What is to be deleted and has somebody's finalizer keeps what it made."""
    here = start("Delete")
    held = [*here.workload()["metadata"].get("finalizers", []), "example.com/held"]
    patch = {"metadata": {"finalizers": held}}
    here.client.merge(here.workloads, here.namespace, "run", patch, "somebody")
    here.fire()
    eventually(lambda: not here.items(RAY_CLUSTERS), "its cluster is deleted", SECONDS)
    going = lambda: all("deletionTimestamp" in pod["metadata"] for pod in here.pods())  # noqa: E731
    eventually(going, "its pods are deleted", SECONDS)
    here.kubelet_ends_pods()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    assert "deletionTimestamp" in here.workload()["metadata"], "it is still held"


def test_a_namesake_of_the_submitter_is_left_alone(running: RayWorld) -> None:
    """Anybody may make a Job of the run's name; it has to be the RayJob's own."""
    here = running
    job = here.items(BATCH_JOBS)[0]
    path = BATCH_JOBS.path(here.namespace, "run")
    here.client.request(
        "PATCH",
        path,
        body={"metadata": {"ownerReferences": None}},
        content_type="application/merge-patch+json",
    )
    here.fire()
    eventually(lambda: here.deployment() == ("Failed", "DeadlineExceeded"), "the RayJob has failed", SECONDS)
    here.expect("Stopped", "False", "PodsTerminating")
    assert [one["metadata"]["uid"] for one in here.items(BATCH_JOBS)] == [job["metadata"]["uid"]]


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

    def noted(self) -> list[tuple[str, str]]:
        """What is known of what it has made: kind and UID."""
        made = self.job()["status"].get("workloadRef", {}).get("made") or []
        return sorted((one["kind"], one["uid"]) for one in made)

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

    def collects_makers(self) -> None:
        """Clusters and submitters of which the RayJob is gone."""
        left = {one["metadata"]["uid"] for one in self.items(self.workloads)}
        for kind in (RAY_CLUSTERS, BATCH_JOBS):
            for one in self.items(kind):
                if controller_of(one) not in left and "deletionTimestamp" not in one["metadata"]:
                    path = kind.path(self.namespace, one["metadata"]["name"])
                    self.client.request("DELETE", path, body={"propagationPolicy": "Background"})

    def collects_garbage(self) -> None:
        """And then pods."""
        self.collects_makers()
        super().collects_garbage()


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


def guarded(here: SomebodysRayJob, make_job: Callable[..., Json], on_fire: str) -> None:
    """It is attached, and its guard reports."""
    before = here.workload()["spec"]
    here.attach(make_job, on_fire)
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    assert here.noted() == here.there() and len(here.there()) == 2
    assert here.workload()["spec"] == before, "it is left as it is"


@pytest.mark.parametrize("on_fire", ["Stop", "Suspend", "Delete"])
def test_one_that_exists_is_stopped_and_its_pods_are_known_without_its_cluster(
    theirs: SomebodysRayJob, make_job: Callable[..., Json], on_fire: str
) -> None:
    here = theirs
    guarded(here, make_job, on_fire)
    here.fire()
    gone = lambda: not here.items(RAY_CLUSTERS) and not here.items(BATCH_JOBS)  # noqa: E731
    if on_fire == "Delete":
        there = lambda: here.client.get(here.workloads, here.namespace, "run")  # noqa: E731
        eventually(lambda: there() is None, "the RayJob is deleted", SECONDS)
        here.collects_makers()  # but not yet their pods
    eventually(gone, "its cluster and its submitter are deleted", SECONDS)
    assert len(here.of_run()) == 4, "their pods are there"
    said = here.expect("Stopped", "False", "PodsTerminating", within=SECONDS)
    assert "5 pods are left" in said, "they are known, and the guard's"
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)
    assert here.job()["status"]["stop"]["method"] == on_fire and not here.of_run()
    if on_fire == "Stop":
        assert here.deployment() == ("Failed", "DeadlineExceeded")
    if on_fire == "Suspend":
        here.client.merge(here.workloads, here.namespace, "run", {"spec": {"suspend": False}}, "somebody")
        eventually(here.nodes, "KubeRay makes its pods again", SECONDS)
        here.expect("Stopped", "False", "PodsTerminating", within=SECONDS)
        eventually(lambda: not here.items(RAY_CLUSTERS), "it is suspended again", SECONDS)
        here.collects_garbage()
        here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)


def test_one_that_is_retried_is_stopped_with_what_is_left_of_its_first_try(
    theirs: SomebodysRayJob, make_job: Callable[..., Json]
) -> None:
    here = theirs
    guarded(here, make_job, "Stop")
    first = here.noted()
    here.submitter_fails()
    eventually(lambda: here.there() and here.there() != first, "KubeRay makes another cluster", SECONDS)
    here.runs_once()
    both = sorted({*first, *here.there()})
    eventually(lambda: here.noted() == both, "what both tries have made is noted", SECONDS)
    here.fire()
    eventually(lambda: here.deployment() == ("Failed", "DeadlineExceeded"), "the RayJob has failed", SECONDS)
    eventually(lambda: not here.there(), "all that made pods is deleted", SECONDS)
    said = here.expect("Stopped", "False", "PodsTerminating", within=SECONDS)
    assert "9 pods are left" in said, "those of both tries are known, and the guard's"
    here.collects_garbage()
    here.expect("Stopped", "True", "NoPodsLeft", within=SECONDS)


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
        here.attach(make_job, "Stop")
        here.operator()
        said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
        assert "spec.clusterSelector: must not be set" in said
