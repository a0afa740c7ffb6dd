"""TrainJobs that exist (`spec.targetRef`) and the real controllers of Kubeflow Trainer and JobSet.

A fire deletes the TrainJob in the foreground, with the JobSet, the Job and the pods that were made of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.runtime.client import BATCH_JOBS, MERGE, STATEFUL_SETS, Client, Resource
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import JOB_SETS, world

from .cluster import AttachedWorld, sample

Json = dict[str, Any]
SECONDS = 120.0
WHEN = "2026-01-01T00:00:00Z"
RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime")


class TrainWorld(AttachedWorld):
    """A world with a TrainJob of somebody else's, on a runtime of the cluster."""

    workloads = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
    target = "run"
    owners = (JOB_SETS, BATCH_JOBS, STATEFUL_SETS)

    def runtime(self, name: str, node: str = "node") -> None:
        """One like Trainer's own `torch-distributed`. `node`: what trains is called so there."""
        pod = {"containers": [{"name": "node", "image": "runtime:1"}]}
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        job = {
            "name": node,
            "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}},
        }
        spec = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}}
        typed = {"apiVersion": RUNTIMES.api_version, "kind": RUNTIMES.kind}
        body = {**typed, "metadata": {"name": name}, "spec": spec}
        # Its webhook answers a moment after its port does.
        eventually(lambda: self.client.request("POST", RUNTIMES.path(), body=body), "made", SECONDS)

    def make_target(self, body: Json) -> None:
        """Somebody's TrainJob; its JobSet is there."""
        eventually(lambda: self.put(self.workloads, body), "the TrainJob is taken", SECONDS)
        eventually(lambda: self.items(JOB_SETS), "its JobSet", SECONDS)

    def its_pods_run(self) -> None:
        job = f"{self.target}-node-0"
        eventually(lambda: [one["metadata"]["name"] for one in self.items(BATCH_JOBS)] == [job], job, SECONDS)
        eventually(self.job_controller_makes_pods, "its pod", SECONDS)
        self.kubelet_runs_pods()
        path = BATCH_JOBS.path(self.namespace, job, "status")
        body = {"status": {"startTime": WHEN, "active": 1, "ready": 1}}
        self.client.request("PATCH", path, body=body, content_type=MERGE)

    def nothing_comes_back(self, seconds: float) -> None:
        """Whatever the controllers do in this time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert (self.items(JOB_SETS), self.items(BATCH_JOBS)) == ([], [])
            time.sleep(2)


@pytest.fixture
def here(
    plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, controller: Callable[[str], None]
) -> Iterator[TrainWorld]:
    for name in ("jobset", "trainer"):
        controller(name)
    with world(plane, client, namespace, tmp_path, TrainWorld) as made:
        yield made


def trainjob(runtime: str) -> Json:
    return {"metadata": {"name": TrainWorld.target}, "spec": {"runtimeRef": {"name": runtime}}}


def test_it_is_left_as_it_is_until_a_fire_deletes_it_with_all_of_its_pods(
    here: TrainWorld, make_job: Callable[..., Json]
) -> None:
    here.runtime(here.namespace)
    here.make_target(trainjob(here.namespace))
    here.its_pods_run()
    before = here.workload()["spec"]
    here.attach(make_job)
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    here.start_guard()
    assert here.workload()["spec"] == before
    here.is_deleted_by_a_fire()
    here.nothing_comes_back(10)


def test_one_without_a_node_is_refused(here: TrainWorld, make_job: Callable[..., Json]) -> None:
    here.runtime(here.namespace, node="launcher")
    here.make_target(trainjob(here.namespace))
    here.attach(make_job)
    said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
    assert "its JobSet has no replicatedJob node" in said


def test_the_sample_is_one_that_trainer_takes(here: TrainWorld) -> None:
    theirs = next(one for one in sample("attached-trainjob") if one["kind"] == here.workloads.kind)
    here.target = theirs["metadata"]["name"]
    here.submit_sample("attached-trainjob")
    here.operator()
    here.expect("Waiting", "True", "TargetMissing", within=SECONDS)
    here.runtime(theirs["spec"]["runtimeRef"]["name"])
    here.make_target(theirs)
    here.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
    [own] = eventually(lambda: here.items(BATCH_JOBS), "its Job", SECONDS)
    assert own["spec"]["template"]["spec"]["serviceAccountName"] == "grpo"
