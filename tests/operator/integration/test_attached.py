"""A Job that exists, guarded by `spec.targetRef`, with the operator process on a real API server.

- The API server refuses a target without what its guard needs, and any change of it.
- A Job that is not there yet is waited for; once it is, its UID is written down and its guard comes.
- A fire ends that Job under its own name, and no pod of it is left. Another one of its name is left alone.
- The Job gets no owner and no label of ours, and stays when its GuardedTrainingJob is deleted.
- Pods that mount what is the guard's are told.
The tests play Job controller, StatefulSet controller and kubelet.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_core.policy import Policy
from guard_operator.api import names
from guard_operator.runtime.client import BATCH_JOBS, CONFIG_MAPS, MERGE, PODS, Client
from guard_operator.runtime.errors import ApiError

from .controlplane import ControlPlane
from .test_guard_pod import PodWorld
from .waiting import eventually
from .world import JOBS, Json, is_going, world

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
TARGET = "nightly"
DELETE: Json = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
REF = {"apiVersion": "batch/v1", "kind": "Job", "name": TARGET}
GUARD: Json = {
    "placement": "Pod",
    "state": {"claimName": "state"},
    "checkpoints": {"claimName": "shared"},
    "metrics": {"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
}


def attached(make_job: MakeJob, **guard: Any) -> Json:
    """A job that is attached; None leaves a part of its guard out."""
    raw = make_job(**{**GUARD, **guard})
    del raw["spec"]["template"]
    raw["spec"]["targetRef"] = dict(REF)
    raw["spec"]["guard"] = {key: value for key, value in raw["spec"]["guard"].items() if value is not None}
    return raw


class AttachedWorld(PodWorld):
    """A world with a Job of somebody else's."""

    workloads = BATCH_JOBS
    workload_name = TARGET

    def make_target(self, volume: Json | None = None) -> Json:
        """Somebody's Job, and its pod."""
        container = {"name": "main", "image": "trainer:1"}
        spec: Json = {"restartPolicy": "Never", "containers": [container]}
        if volume is not None:
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            spec["volumes"] = [{"name": "data", **volume}]
        body = {"metadata": {"name": TARGET}, "spec": {"backoffLimit": 3, "template": {"spec": spec}}}
        made = self.put(BATCH_JOBS, body)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": TARGET, "controller": True}
        labels = made["spec"]["template"]["metadata"]["labels"]
        meta = {
            "name": f"{TARGET}-{made['metadata']['uid'][:5]}",
            "labels": labels,
            "ownerReferences": [owner | {"uid": made["metadata"]["uid"]}],
        }
        self.put(PODS, {"metadata": meta, "spec": {**spec, "nodeName": "node"}})
        self.pod_status({"phase": "Running"}, meta["name"])
        self.target_status({"startTime": "2026-01-01T00:00:00Z", "active": 1, "ready": 1})
        return made

    def target(self) -> Json:
        raw = self.client.get(BATCH_JOBS, self.namespace, TARGET)
        assert raw is not None
        return raw

    def target_status(self, status: Json) -> None:
        path = BATCH_JOBS.path(self.namespace, TARGET, "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def delete_target(self) -> None:
        """With its pods, as the garbage collector would."""
        self.client.request("DELETE", BATCH_JOBS.path(self.namespace, TARGET), body=DELETE)
        for pod in self.pods_of_target():
            self.kubelet_ends(pod)

    def pods_of_target(self) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["name"].startswith(TARGET)]


@pytest.fixture
def here(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[AttachedWorld]:
    with world(plane, client, namespace, tmp_path, AttachedWorld) as made:
        for name in ("heldout", "state"):
            made.claim(name)
        made.claim("shared", "ReadWriteMany")
        yield made


@pytest.fixture
def guarded(here: AttachedWorld, make_job: MakeJob) -> AttachedWorld:
    here.make_target()
    here.submit(attached(make_job))
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached")
    here.start_guard()
    here.guard_says(step=1)
    here.expect("Fired", "False", "NotFired")
    return here


def test_the_guard_has_the_policy_of_its_job(here: AttachedWorld, make_job: MakeJob) -> None:
    """Which is written down after the job has become a run, of which the policy is not kept in mind."""
    here.make_target()
    job = attached(make_job)
    job["spec"]["guard"]["policy"] = {"detector": "Both", "kl": {"hardStop": 0.25}}
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadAttached")
    support = names.support_name("run", here.job()["metadata"]["uid"])
    made = eventually(
        lambda: here.client.get(CONFIG_MAPS, here.namespace, support), "the policy of its guard"
    )
    policy = Policy.model_validate(yaml.safe_load(made["data"]["policy.yaml"]))
    assert (policy.detector, policy.kl.hard_stop) == ("both", 0.25)


# -- the API server --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Json, Json, str]] = {
    "template and target": (
        {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}},
        {},
        "exactly one of template and targetRef",
    ),
    "neither": ({"targetRef": None}, {}, "exactly one of template and targetRef"),
    "a sidecar": ({}, {"placement": "Sidecar"}, "targetRef needs guard.placement: Pod"),
    "a trainer that reports": ({}, {"metrics": None}, "targetRef needs guard.placement: Pod"),
    "a volume": ({}, {"checkpoints": {"volume": "c"}}, "targetRef needs guard.placement: Pod"),
    "a volume and a claim": (
        {},
        {"checkpoints": {"volume": "c", "claimName": "shared"}},
        "exactly one of volume and claimName",
    ),
    "a start": (
        {"resumedFrom": {"name": "before", "checkpoint": "/checkpoints/9"}},
        {},
        "resumedFrom needs a template",
    ),
    "no name": ({"targetRef": {"apiVersion": "batch/v1", "kind": "Job"}}, {}, "targetRef.name"),
}


@pytest.mark.parametrize(("spec", "guard", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_guard_of_a_target_needs_is_asked_for(
    client: Client, namespace: str, make_job: MakeJob, spec: Json, guard: Json, message: str
) -> None:
    raw = attached(make_job, **guard)
    raw["spec"] |= spec
    raw["spec"] = {key: value for key, value in raw["spec"].items() if value is not None}
    with pytest.raises(ApiError, match=message) as refused:
        client.create(JOBS, namespace, raw, "test")
    assert refused.value.status == 422


def test_a_claim_is_for_a_target(client: Client, namespace: str, make_job: MakeJob) -> None:
    with pytest.raises(ApiError, match="claimName is for targetRef"):
        client.create(JOBS, namespace, make_job(checkpoints={"claimName": "shared"}), "test")


@pytest.mark.parametrize(
    "change",
    [
        {"targetRef": {"name": "another"}},
        {"targetRef": {"kind": "PyTorchJob"}},
        {"targetRef": None, "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}},
    ],
    ids=str,
)
def test_a_target_is_for_good(client: Client, namespace: str, make_job: MakeJob, change: Json) -> None:
    client.create(JOBS, namespace, attached(make_job), "test")
    path = JOBS.path(namespace, "run")
    with pytest.raises(ApiError, match="targetRef"):
        client.request("PATCH", path, body={"spec": change}, content_type=MERGE)


# -- with the operator -----------------------------------------------------------------------------------


@pytest.mark.always
def test_a_fire_deletes_a_target_also_when_somebody_recreates_it(
    here: AttachedWorld, make_job: MakeJob
) -> None:
    here.submit(attached(make_job))
    here.operator()
    said = here.expect("Waiting", "True", "TargetMissing", within=60)
    assert f"Job {TARGET} (batch/v1) does not exist" in said and here.phase() == "Pending"
    made = here.make_target()
    spec = {"template": {"spec": made["spec"]["template"]["spec"]}}
    here.expect("Guarded", "True", "WorkloadAttached", within=30)
    noted = here.job()["status"]["workloadRef"]
    assert (noted["name"], noted["uid"]) == (TARGET, made["metadata"]["uid"])
    assert "Waiting" not in here.conditions()
    here.start_guard()
    here.guard_says(step=1)
    here.expect("Fired", "False", "NotFired")
    assert "the admission policy does not see the pods" in here.expect("Isolated", "False", "Attached")

    here.fire()
    here.expect("Fired", "True", "HackingGap")
    eventually(lambda: is_going(here.target()), "the Job is deleted")
    ours = [label for label in here.target()["metadata"].get("labels") or {} if "rlguard" in label]
    assert ours == [] and "ownerReferences" not in here.target()["metadata"]
    here.goes()
    here.ends()
    assert here.evidence()["verdict.json"] and not here.pods()

    # As Argo CD does: what is in its repository is to be in the cluster.
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": TARGET}, "spec": spec}
    here.client.create(BATCH_JOBS, here.namespace, body, "argocd-controller")
    eventually(lambda: is_going(here.target()), "it is deleted again", within=60)
    assert "argocd-controller recreated Job nightly" in here.expect("Stopped", "False", "TargetRecreated")
    here.ends()
    here.expect_events("TargetRecreated")


def test_it_stays_when_its_guard_is_deleted(guarded: AttachedWorld) -> None:
    before = guarded.target()
    guarded.client.request("DELETE", JOBS.path(guarded.namespace, "run"))
    eventually(
        lambda: guarded.client.get(JOBS, guarded.namespace, "run") is None, "the GuardedTrainingJob is gone"
    )
    after = guarded.target()
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"] == before["spec"]
    assert "deletionTimestamp" not in after["metadata"] and guarded.pods_of_target()


def test_another_of_its_name_is_left_alone(guarded: AttachedWorld) -> None:
    operator = guarded.operators[-1].process
    operator.send_signal(signal.SIGSTOP)  # else it may look at a moment at which none has the name
    guarded.delete_target()
    other = guarded.make_target()
    operator.send_signal(signal.SIGCONT)
    said = guarded.expect("Disrupted", "True", "WorkloadDeleted", within=30)
    assert "another one has its name now" in said
    guarded.goes()
    guarded.noted(fire={"code": "x", "reason": "r", "attempt": 0, "step": 9, "at": "2026-01-01T00:00:00Z"})
    guarded.expect("Stopped", "True", "NoPodsLeft", within=60)
    now = guarded.target()
    assert now["metadata"]["uid"] == other["metadata"]["uid"] and now["spec"] == other["spec"]
    assert all("deletionTimestamp" not in pod["metadata"] for pod in guarded.pods_of_target())
    assert len(guarded.pods_of_target()) == 1


def test_a_pod_that_mounts_the_split_is_told(here: AttachedWorld, make_job: MakeJob) -> None:
    here.make_target({"persistentVolumeClaim": {"claimName": "heldout"}})
    here.submit(attached(make_job))
    here.operator()
    broken = "volumes[0].persistentVolumeClaim.claimName must not be heldout"
    assert broken in here.expect("Isolated", "False", "GuardDataExposed")
    assert broken in here.expect("Guarded", "False", "TargetRefused"), "and its guard is told of no run"


def test_one_that_has_ended_is_refused(here: AttachedWorld, make_job: MakeJob) -> None:
    here.make_target()
    shared = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Because"}
    over = [{"type": kind, "message": "over", **shared} for kind in ("FailureTarget", "Failed")]
    here.target_status({"active": 0, "ready": 0, "conditions": over})
    here.submit(copy.deepcopy(attached(make_job)))
    here.operator()
    assert "has ended already" in here.expect("Guarded", "False", "TargetRefused")
    assert here.set_() is None and here.phase() == "Refused"
