"""RayClusters that exist, guarded by `spec.targetRef`, and the real KubeRay operator on a real API server.

- A RayCluster that comes after its guard's job is attached by its UID, and KubeRay's pods are seen.
- Deleted by a fire, it is gone and KubeRay makes no pod again.
- One that somebody deletes has ended, and one that is made anew under its name is left alone.
- The RayCluster of a RayJob is refused: KubeRay would make it again.
The tests play kubelet, StatefulSet controller and garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_operator.adapters.ray import RAY_CLUSTERS
from guard_operator.runtime.client import STATEFUL_SETS, Client, Resource
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import is_deleted, world

from .cluster import AttachedWorld

Json = dict[str, Any]
SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]
TARGET = "shared"
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")


def group(**more: Any) -> Json:
    container = {"name": "ray", "image": "rayproject/ray:2.46.0"}
    return {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}, **more}


def cluster_spec() -> Json:
    workers = group(groupName="gpu", replicas=2, minReplicas=0, maxReplicas=4)
    return {"rayVersion": "2.46.0", "headGroupSpec": group(), "workerGroupSpecs": [workers]}


class ClusterWorld(AttachedWorld):
    """A world with a RayCluster of somebody else's."""

    workloads = RAY_CLUSTERS
    target = TARGET
    owners = (RAY_CLUSTERS, STATEFUL_SETS)

    def make_cluster(self) -> Json:
        """Somebody's RayCluster, whose pods run."""
        made = self.put(RAY_CLUSTERS, {"metadata": {"name": TARGET}, "spec": cluster_spec()})
        self.cluster_runs()
        return made

    def cluster_runs(self) -> None:
        eventually(lambda: len(self.pods_of_cluster()) == 3, "head and two workers", SECONDS)
        self.kubelet_runs_pods()
        eventually(lambda: self.cluster_state() == "ready", "the RayCluster is ready", SECONDS)

    def cluster(self) -> Json | None:
        return self.client.get(RAY_CLUSTERS, self.namespace, TARGET)

    def cluster_state(self) -> str:
        return str(((self.cluster() or {}).get("status") or {}).get("state") or "")

    def pods_of_cluster(self) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get("ray.io/cluster") == TARGET]

    def cluster_goes(self) -> None:
        eventually(lambda: self.cluster() is None, "the RayCluster is deleted", SECONDS)


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[ClusterWorld]:
    with world(plane, client, namespace, tmp_path, ClusterWorld) as made:
        yield made


@pytest.fixture
def start(
    here: ClusterWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> Callable[[], ClusterWorld]:
    """Makes a RayCluster that runs under guard."""

    def run() -> ClusterWorld:
        controller("kuberay")
        here.make_cluster()
        here.attach(make_job)
        here.operator()
        here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
        here.start_guard()
        return here

    return run


def test_one_that_comes_later_is_guarded_and_left_as_it_is(
    here: ClusterWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    here.attach(make_job)
    here.operator()
    assert TARGET in here.expect("Waiting", "True", "TargetMissing", within=SECONDS)
    made = here.make_cluster()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    eventually(lambda: here.phase() == "Running", "phase Running", SECONDS)
    here.expect("Isolated", "False", "Attached")
    assert here.job()["status"]["workloadRef"]["uid"] == made["metadata"]["uid"]
    cluster = here.cluster()
    assert cluster is not None and cluster["spec"] == made["spec"]
    for pod in here.pods_of_cluster():
        kept = {key: pod["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
        assert "rlguard" not in str(kept)


def test_a_fire_deletes_it_and_nothing_of_it_is_left(start: Callable[[], ClusterWorld]) -> None:
    here = start()
    here.fire()
    eventually(lambda: is_deleted(here.cluster()), "the RayCluster is deleted", SECONDS)
    here.ends()
    assert here.is_gone()


def test_given_one_made_anew_under_its_name_then_it_is_left_alone(
    start: Callable[[], ClusterWorld],
) -> None:
    here = start()
    here.client.request("DELETE", RAY_CLUSTERS.path(here.namespace, TARGET))
    here.cluster_goes()
    for pod in here.pods_of_cluster():
        here.kubelet_ends(pod)
    other = here.make_cluster()
    here.expect("Disrupted", "True", "WorkloadDeleted", within=SECONDS)
    now = here.cluster()
    assert now is not None and now["metadata"]["uid"] == other["metadata"]["uid"]
    assert now["spec"] == other["spec"] and len(here.pods_of_cluster()) == 3


def test_the_cluster_of_a_rayjob_is_refused(
    here: ClusterWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    spec = {"entrypoint": "python train.py", "rayClusterSpec": cluster_spec()}
    here.put(RAY_JOBS, {"metadata": {"name": "nightly"}, "spec": spec})
    made = eventually(lambda: here.items(RAY_CLUSTERS), "KubeRay makes its cluster", SECONDS)[0]
    here.target = made["metadata"]["name"]
    here.attach(make_job)
    here.operator()
    said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
    assert "RayJob nightly controls it: name that" in said


def test_the_sample_names_one_that_kuberay_makes(
    here: ClusterWorld, controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    documents = list(yaml.safe_load_all((ROOT / "k8s/samples/attached-raycluster.yaml").read_text("utf-8")))
    job = next(one for one in documents if one["kind"] == "GuardedTrainingJob")
    job["metadata"]["name"] = here.name
    for claim in ("heldout", "attached-raycluster-state"):
        here.claim(claim)
    here.claim("verl-checkpoints", "ReadWriteMany")
    here.put(RAY_CLUSTERS, {"metadata": {"name": "verl"}, "spec": cluster_spec()})
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    eventually(lambda: here.items(STATEFUL_SETS), "the guard's StatefulSet", SECONDS)
