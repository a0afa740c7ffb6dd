"""The operator process and a batch/v1 Job on a real API server.

- What is created is a Job that the API server admits, with the guard in a pod that it admits.
- The deadline and `suspend` of a running Job may be patched, with the operator's own rights; a delete takes
  the pods with it.
- Pods that have ended stay behind a Job; the operator deletes them, and keeps the Job.
- What cannot be guarded, and what the API server refuses, is a condition that names the field.
The tests play Job controller and kubelet.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_operator.runtime.client import MERGE, PODS, Client, Resource

from .controlplane import ControlPlane
from .kubelet import kubelet_of_node
from .waiting import eventually
from .world import RUNNING, Json, World, world

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
WHEN = "2026-01-01T00:00:00Z"


class JobWorld(World):
    """A world whose workload is a Job."""

    workloads = Resource("batch", "v1", "jobs", "Job")

    def start_pod(self, role: str = "x7k2p", node: str = "node") -> Json:
        """What the Job controller and a kubelet do: a pod of the template, running on a node."""
        workload = self.workload()
        template = workload["spec"]["template"]
        name = f"run-{role}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": workload["metadata"]["uid"]}
        owner["controller"] = True
        meta = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        pod = self.put(PODS, {"metadata": meta, "spec": {**template["spec"], "nodeName": node}})
        self.pod_status(RUNNING, name)
        self.job_status({"startTime": WHEN, "active": 1, "ready": 1})
        return pod

    def job_status(self, status: Json) -> None:
        path = self.workloads.path(self.namespace, "run", "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def ends(self, kind: str, **status: Any) -> None:
        """The Job controller's two final conditions, which the API server wants in this order."""
        before = {"Failed": ["FailureTarget"], "Complete": ["SuccessCriteriaMet"]}[kind]
        if kind == "Complete" and int(self.client.request("GET", "/version")["minor"]) < 31:
            before = []  # it was for a Job with a success policy alone
        shared = {"status": "True", "lastTransitionTime": WHEN, "lastProbeTime": WHEN, "reason": "Because"}
        conditions = [{"type": t, "message": "over", **shared} for t in (*before, kind)]
        self.job_status({"active": 0, "ready": 0, "conditions": conditions, **status})


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[JobWorld]:
    with world(plane, client, namespace, tmp_path, JobWorld) as made:
        yield made


def as_job(job: Json, **spec: Any) -> Json:
    """The same run as a Job."""
    changed = copy.deepcopy(job)
    pod = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    pod["containers"][0]["name"] = "main"
    template = {"spec": {"restartPolicy": "Never", **pod}}
    workload = {"backoffLimit": 3, "template": template, **spec}
    changed["spec"]["template"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": workload}
    return changed


@pytest.fixture
def start(here: JobWorld, make_job: MakeJob) -> Callable[..., JobWorld]:
    """Makes a job that runs, with its guard reporting."""

    def run(on_fire: str = "Stop") -> JobWorld:
        here.claim()
        job = as_job(make_job())
        job["spec"]["onFire"] = on_fire
        here.submit(job)
        here.operator()
        here.start()
        return here

    return run


def test_given_a_job_then_it_has_its_guard(start: Callable[..., JobWorld]) -> None:
    here = start()
    eventually(lambda: here.phase() == "Running", "phase Running")
    workload = here.workload()
    assert workload["spec"]["podReplacementPolicy"] == "Failed"
    assert workload["metadata"]["ownerReferences"][0]["uid"] == here.job()["metadata"]["uid"]
    ref = here.job()["status"]["workloadRef"]
    assert (ref["kind"], ref["uid"]) == ("Job", workload["metadata"]["uid"])
    (pod,) = here.pods()
    (guard,) = pod["spec"]["initContainers"]
    assert guard["name"] == "rlguard-guard" and guard["restartPolicy"] == "Always"
    assert {"RLGUARD_URL", "RLGUARD_TOKEN"} <= {v["name"] for v in pod["spec"]["containers"][0]["env"]}


def test_a_cluster_without_kueue_may_have_it_switched_on(here: JobWorld, make_job: MakeJob) -> None:
    here.allow_kueue()
    here.claim()
    here.submit(as_job(make_job()))
    operator = here.operator("--kueue")
    here.start()
    here.fire()
    here.expect_workload(lambda job: job["spec"].get("activeDeadlineSeconds") == 1, "the deadline")
    here.delete_pods()
    here.kubelet_ends_pods()
    here.ends("Failed")
    here.expect("Stopped", "True", "NoPodsLeft")
    assert "queue" not in operator.log.read_text(), "nothing is complained about"


@pytest.mark.always
def test_given_a_fire_then_the_job_ends_by_its_deadline_and_no_pod_is_left(
    start: Callable[..., JobWorld], plane: ControlPlane, client: Client
) -> None:
    here = start()
    here.pod_status({"phase": "Failed"}, "run-x7k2p")  # an attempt that has crashed, and stays
    time.sleep(1.0)  # the age of a pod has a resolution of a second
    here.start_pod("b9w4q")
    with kubelet_of_node(plane, client, "node") as kubelet:
        kubelet.logs |= {"run-x7k2p/main": "first", "run-b9w4q/main": "second", "rlguard-guard": "fired"}
        here.fire()
        here.expect_workload(lambda w: w["spec"].get("activeDeadlineSeconds") == 1, "the deadline is set")
        here.expect("Stopped", "False", "PodsTerminating")
        assert here.evidence()["trainer.log"] == "second"

    def left() -> list[str]:
        return [pod["metadata"]["name"] for pod in here.pods()]

    eventually(lambda: left() == ["run-b9w4q"], "the operator deletes the pod that has ended")
    # The Job controller deletes what runs, and only that.
    here.client.request("DELETE", PODS.path(here.namespace, "run-b9w4q"))
    here.kubelet_ends_pods()
    assert here.conditions()["Stopped"][0] == "False", "the Job could still make a pod"
    here.ends("Failed", failed=2)
    here.expect("Stopped", "True", "NoPodsLeft")
    assert here.workload()["metadata"].get("deletionTimestamp") is None, "the Job is kept"
    here.expect_events("NoPodsLeft")
    assert "StopEscalated" not in here.events() and "Failed" not in here.conditions()


def test_suspend_by_choice(start: Callable[..., JobWorld]) -> None:
    here = start("Suspend")
    here.fire()
    here.expect_workload(lambda w: w["spec"].get("suspend") is True, "suspended")
    here.delete_pods()
    here.kubelet_ends_pods()
    here.expect("Stopped", "True", "NoPodsLeft")


def test_delete_by_choice_takes_the_pods_too(start: Callable[..., JobWorld]) -> None:
    here = start("Delete")
    seen: list[Json] = []
    # Of itself, a Job leaves its pods: what is deleted then has the finalizer `orphan` for a moment.
    here.client.merge(
        here.workloads, here.namespace, "run", {"metadata": {"finalizers": ["test/look"]}}, "test"
    )
    here.fire()

    def going() -> bool:
        seen.append(here.workload())
        return "deletionTimestamp" in seen[-1]["metadata"]

    eventually(going, "the Job is deleted")
    assert seen[-1]["metadata"]["finalizers"] == ["test/look"]
    here.client.merge(here.workloads, here.namespace, "run", {"metadata": {"finalizers": []}}, "test")
    here.delete_pods()
    here.kubelet_ends_pods()
    here.expect("Stopped", "True", "NoPodsLeft")


@pytest.mark.parametrize(
    ("kind", "condition", "reason", "said"),
    [("Complete", "Succeeded", "NotJudged", "NOT JUDGED"), ("Failed", "Failed", "WorkloadFailed", "over")],
)
def test_ends_that_are_no_fires(
    start: Callable[..., JobWorld], kind: str, condition: str, reason: str, said: str
) -> None:
    here = start()
    ending = {"completionTime": WHEN, "succeeded": 1} if kind == "Complete" else {"failed": 1}
    here.ends(kind, **ending)
    assert said in here.expect(condition, "True", reason)
    assert here.conditions()["Fired"][0] == "False" and "Stopped" not in here.conditions()


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"parallelism": 2}, "TemplateRefused", "spec.template.spec.parallelism must be 1"),
        ({"completions": 2}, "TemplateRefused", "spec.template.spec.completions must be as many"),
        ({"backoffLimit": -1}, "WorkloadRefused", "spec.backoffLimit"),
        ({"paralelism": 1}, "WorkloadRefused", "paralelism"),
    ],
)
def test_what_cannot_be_created_is_a_condition(
    here: JobWorld, make_job: MakeJob, spec: Json, reason: str, said: str
) -> None:
    here.claim()
    here.submit(as_job(make_job(), **spec))
    here.operator()
    assert said in here.expect("Guarded", "False", reason)
    assert here.client.get(here.workloads, here.namespace, "run") is None
