"""RayClusters that exist, guarded by `spec.targetRef`, and the real KubeRay operator on a real API server.

- A RayCluster that comes after its guard's job is attached by its UID, and KubeRay's pods are seen.
- Deleted by a fire, it is gone and KubeRay makes no pod again.
- The RayCluster of a RayJob is refused: KubeRay would make it again.
The tests play kubelet, StatefulSet controller and garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.runtime.client import STATEFUL_SETS, Client
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import RAY_CLUSTERS, RAY_JOBS, world

from .cluster import AttachedWorld

Json = dict[str, Any]
SECONDS = 120.0
TARGET = "shared"


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


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[ClusterWorld]:
    with world(plane, client, namespace, tmp_path, ClusterWorld) as made:
        yield made


def test_one_that_comes_later_is_guarded_and_left_as_it_is_until_a_fire_deletes_it(
    here: ClusterWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    here.attach(make_job)
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
    here.is_deleted_by_a_fire()


def test_the_cluster_of_a_rayjob_is_refused(
    here: ClusterWorld, make_job: Callable[..., Json], controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    spec = {"entrypoint": "python train.py", "rayClusterSpec": cluster_spec()}
    here.put(RAY_JOBS, {"metadata": {"name": "nightly"}, "spec": spec})
    made = eventually(lambda: here.items(RAY_CLUSTERS), "KubeRay makes its cluster", SECONDS)[0]
    here.target = made["metadata"]["name"]
    here.attach(make_job)
    said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
    assert "RayJob nightly controls it: name that" in said


def test_the_sample_names_one_that_kuberay_makes(
    here: ClusterWorld, controller: Callable[[str], None]
) -> None:
    controller("kuberay")
    here.put(RAY_CLUSTERS, {"metadata": {"name": "verl"}, "spec": cluster_spec()})
    here.submit_sample("attached-raycluster")
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    eventually(here.guards_set, "the guard's StatefulSet", SECONDS)
