"""The operator process and a batch/v1 Job on a real API server.

- What is created is a Job that the API server admits, with the guard in a pod that it admits.
- A fire deletes it, with the operator's own rights.
- What cannot be guarded, and what the API server refuses, is a condition that names the field.
The tests play Job controller and kubelet.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_operator.runtime.client import MERGE, PODS, Client, Resource

from .controlplane import ControlPlane
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

    def finishes(self, kind: str, **status: Any) -> None:
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

    def run() -> JobWorld:
        here.claim()
        here.submit(as_job(make_job()))
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


@pytest.mark.parametrize(
    ("kind", "condition", "reason", "said"),
    [("Complete", "Succeeded", "NotJudged", "NOT JUDGED"), ("Failed", "Failed", "WorkloadFailed", "over")],
)
def test_ends_that_are_no_fires(
    start: Callable[..., JobWorld], kind: str, condition: str, reason: str, said: str
) -> None:
    here = start()
    ending = {"completionTime": WHEN, "succeeded": 1} if kind == "Complete" else {"failed": 1}
    here.finishes(kind, **ending)
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
