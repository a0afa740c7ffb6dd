"""A Job, a guard in a pod of its own, and a workload that is somebody else's, with the operator as a process.

The tests play Job controller, training-operator, StatefulSet controller, garbage collector and kubelet.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.runtime.client import (
    BATCH_JOBS,
    MERGE,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Client,
)

from .conftest import attached
from .controlplane import ControlPlane
from .waiting import eventually
from .world import BEAT, JOBS, PYTORCHJOBS, RUNNING, Json, World, is_deleted, is_going, world

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
SECRET_KEYS = {"tls.crt", "tls.key", "ingest-token", "read-token", "supervisor-token"}
JUDGED = {"level": "healthy", "code": "ok", "reason": "fine", "announced": 3, "evaluated": 3, "waiting": 0}


# -- a Job -----------------------------------------------------------------------------------------------


class JobWorld(World):
    """A world whose workload is a Job."""

    workloads = BATCH_JOBS

    def start_pod(self, role: str = "x7k2p", node: str = "node", *, guarded: bool = True) -> Json:
        """What the Job controller and a kubelet do: a pod of the template, running on a node."""
        workload = self.workload()
        template = workload["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": workload["metadata"]["uid"]}
        name, labels = f"run-{role}", template["metadata"]["labels"]
        meta = {"name": name, "labels": labels, "ownerReferences": [owner | {"controller": True}]}
        pod = self.put(PODS, {"metadata": meta, "spec": {**template["spec"], "nodeName": node}})
        self.pod_status(self.with_guard(RUNNING), name)
        self.job_status({"startTime": BEAT, "active": 1, "ready": 1})
        return pod

    def job_status(self, status: Json) -> None:
        path = BATCH_JOBS.path(self.namespace, self.workload_name, "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)


def as_job(job: Json, **spec: Any) -> Json:
    """The same run as a Job."""
    changed = copy.deepcopy(job)
    pod = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    pod["containers"][0]["name"] = "main"
    workload = {"backoffLimit": 3, "template": {"spec": {"restartPolicy": "Never", **pod}}, **spec}
    changed["spec"]["template"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": workload}
    return changed


def test_a_job_has_its_guard_and_a_fire_deletes_it(
    plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, make_job: MakeJob
) -> None:
    with world(plane, client, namespace, tmp_path, JobWorld) as here:
        here.claim()
        here.submit(as_job(make_job()))
        here.operator()
        here.start()
        eventually(lambda: here.phase() == "Running", "phase Running")
        workload = here.workload()
        assert workload["spec"]["podReplacementPolicy"] == "Failed"
        assert here.job()["status"]["workloadRef"]["uid"] == workload["metadata"]["uid"]
        (pod,) = here.pods()
        (guard,) = pod["spec"]["initContainers"]
        assert guard["name"] == "rlguard-guard" and guard["restartPolicy"] == "Always"
        assert {"RLGUARD_URL", "RLGUARD_TOKEN"} <= {v["name"] for v in pod["spec"]["containers"][0]["env"]}
        here.fire()
        here.expect_workload(is_deleted, "the Job is deleted")
        here.ends()
        assert not here.pods()


# -- a guard in a pod of its own -------------------------------------------------------------------------


class PodWorld(World):
    """A world in which the guard has a pod of its own."""

    def submit_with(self, make_job: MakeJob, mode: str = "ReadWriteMany", **guard: Any) -> None:
        """Submit such a job, with the claims that it names."""
        for name in ("heldout", "state"):
            self.claim(name)
        self.claim("checkpoints", mode)
        job = make_job(state={"claimName": "state"}, placement="Pod", **guard)
        pod = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        pod["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
        self.submit(job)

    def trainer_succeeds(self) -> None:
        """It ends and its pod is cleaned up, while its guard has a checkpoint to judge."""
        self.guard_says(step=9, **JUDGED | {"waiting": 1, "evaluated": 2})
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.client.request("DELETE", PODS.path(self.namespace, "run-master-0"), body=options)
        self.workload_condition("Succeeded")
        self.expect("Succeeded", "Unknown", "GuardJudges")
        assert self.phase() == "Judging" and self.guards_set() is not None


@pytest.fixture
def apart(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[PodWorld]:
    with world(plane, client, namespace, tmp_path, PodWorld) as made:
        yield made


@pytest.fixture
def guarded(apart: PodWorld, make_job: MakeJob) -> PodWorld:
    """A run with its guard beside it, which reports."""
    apart.submit_with(make_job)
    apart.operator()
    apart.expect("Guarded", "True", "WorkloadCreated")
    apart.start_guard()
    apart.start_pod(guarded=False)
    apart.expect("Fired", "False", "NotFired")
    return apart


@pytest.mark.always
def test_a_fire_stops_trainer_and_guard_and_is_told(guarded: PodWorld) -> None:
    made = guarded.guards_set()
    assert made is not None
    namespace, name = guarded.namespace, made["metadata"]["name"]
    secret = guarded.client.get(SECRETS, namespace, name)
    assert secret is not None and secret["data"].keys() == SECRET_KEYS
    assert guarded.client.get(SERVICES, namespace, name) is not None
    guarded.fire()
    guarded.expect("Fired", "True", "HackingGap")
    eventually(
        lambda: is_deleted(guarded.client.get(PYTORCHJOBS, namespace, "run")), "the workload is deleted"
    )
    guarded.collect_garbage()
    guarded.guard_goes()
    guarded.expect("Stopped", "True", "NoPodsLeft")
    assert guarded.evidence()["verdict.json"] and not guarded.pods()


def test_the_guard_judges_after_the_trainer_and_then_it_ends(guarded: PodWorld) -> None:
    guarded.trainer_succeeds()
    guarded.client.request("DELETE", PYTORCHJOBS.path(guarded.namespace, "run"))  # as a TTL does
    guarded.guard_says(step=10, **JUDGED | {"waiting": 1, "evaluated": 2})
    eventually(lambda: guarded.job()["status"]["guard"].get("step") == 10, "it reports")
    assert guarded.phase() == "Judging" and guarded.guards_set() is not None
    guarded.guard_says(step=10, attempt=0, ended={"attempt": 0, "step": 10}, **JUDGED)
    guarded.expect("Succeeded", "True", "WorkloadSucceeded")
    guarded.guard_goes()


def test_a_fire_after_the_end_of_the_trainer_is_a_fire(guarded: PodWorld) -> None:
    guarded.trainer_succeeds()
    guarded.fire()
    guarded.guard_goes()
    guarded.ends()
    assert guarded.conditions()["Fired"][:2] == ("True", "HackingGap")


def test_a_trainer_that_waited_in_vain_is_stopped_and_told(apart: PodWorld, make_job: MakeJob) -> None:
    """Its `restartPolicy` would have it wait again and again."""
    apart.submit_with(make_job)
    apart.operator()
    apart.expect("Guarded", "True", "WorkloadCreated")
    (waiting,) = apart.start_pod()["spec"]["initContainers"]
    words, gave_up = "the guard was not ready after 1800 s: no guard responds", int(waiting["command"][-1])
    (status,) = RUNNING["initContainerStatuses"]
    again = status | {"name": waiting["name"], "ready": False, "restartCount": 1}
    again["lastState"] = {"terminated": {"exitCode": gave_up, "message": words}}
    apart.pod_status({"phase": "Pending", "initContainerStatuses": [again]})
    assert words in apart.expect("Halted", "True", "GuardNotReady")
    apart.ends()
    assert apart.guards_set() is None and not apart.pods()


def test_a_set_that_somebody_deleted_is_made_again(guarded: PodWorld) -> None:
    before = guarded.guards_set()
    assert before is not None
    guarded.client.request("DELETE", STATEFUL_SETS.path(guarded.namespace, before["metadata"]["name"]))

    def again() -> bool:
        now = guarded.guards_set()
        return now is not None and now["metadata"]["uid"] != before["metadata"]["uid"]

    eventually(again, "it is back")


def test_a_claim_that_two_nodes_cannot_share_is_refused(apart: PodWorld, make_job: MakeJob) -> None:
    apart.submit_with(make_job, "ReadWriteOnce")
    apart.operator()
    said = apart.expect("Guarded", "False", "TemplateRefused")
    assert "checkpoints: its access modes are" in said and "ReadWriteOnce" in said
    assert apart.guards_set() is None and apart.phase() == "Refused"


def test_a_guard_that_the_api_server_refuses_is_said_before_there_is_a_run(
    apart: PodWorld, make_job: MakeJob
) -> None:
    """Found out later, it is a healthy run that is stopped for the silence of a guard that nobody made."""
    apart.submit_with(make_job, resources={"limits": {"memory": "16GB"}})
    apart.operator()
    said = apart.expect("Guarded", "False", "GuardRefused")
    assert "the StatefulSet run-" in said and "quantities must match" in said
    assert apart.phase() == "Refused" and apart.client.get(PYTORCHJOBS, apart.namespace, "run") is None


# -- a workload that is somebody else's -------------------------------------------------------------------

TARGET = "nightly"


class AttachedWorld(JobWorld):
    """A world with a Job of somebody else's."""

    workload_name = TARGET

    def make_target(self, volume: Json | None = None) -> Json:
        """Somebody's Job, and its pod."""
        container: Json = {"name": "main", "image": "trainer:1"}
        spec: Json = {"restartPolicy": "Never", "containers": [container]}
        if volume is not None:
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            spec["volumes"] = [{"name": "data", **volume}]
        body = {"metadata": {"name": TARGET}, "spec": {"backoffLimit": 3, "template": {"spec": spec}}}
        made = self.put(BATCH_JOBS, body)
        uid = made["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": TARGET, "uid": uid, "controller": True}
        labels = made["spec"]["template"]["metadata"]["labels"]
        meta = {"name": f"{TARGET}-{uid[:5]}", "labels": labels, "ownerReferences": [owner]}
        self.put(PODS, {"metadata": meta, "spec": {**spec, "nodeName": "node"}})
        self.pod_status({"phase": "Running"}, meta["name"])
        self.job_status({"startTime": BEAT, "active": 1, "ready": 1})
        return made

    def target(self) -> Json:
        raw = self.client.get(BATCH_JOBS, self.namespace, TARGET)
        assert raw is not None
        return raw

    def pods_of_target(self) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["name"].startswith(TARGET)]


@pytest.fixture
def theirs(
    plane: ControlPlane, client: Client, namespace: str, tmp_path: Path, make_job: MakeJob
) -> Iterator[AttachedWorld]:
    """A job that is attached to a Job that need not be there."""
    with world(plane, client, namespace, tmp_path, AttachedWorld) as made:
        for name in ("heldout", "state"):
            made.claim(name)
        made.claim("shared", "ReadWriteMany")
        made.submit(attached(make_job(), BATCH_JOBS, TARGET))
        yield made


def is_attached(here: AttachedWorld) -> None:
    here.expect("Guarded", "True", "WorkloadAttached")
    here.start_guard()
    here.expect("Fired", "False", "NotFired")


@pytest.mark.always
def test_a_fire_deletes_a_target_also_when_somebody_recreates_it(theirs: AttachedWorld) -> None:
    theirs.operator()
    said = theirs.expect("Waiting", "True", "TargetMissing")
    assert f"Job {TARGET} (batch/v1) does not exist" in said and theirs.phase() == "Pending"
    made = theirs.make_target()
    is_attached(theirs)
    noted = theirs.job()["status"]["workloadRef"]
    assert (noted["name"], noted["uid"]) == (TARGET, made["metadata"]["uid"])
    assert "Waiting" not in theirs.conditions()
    assert "the admission policy does not see the pods" in theirs.expect("Isolated", "False", "Attached")

    theirs.fire()
    theirs.expect("Fired", "True", "HackingGap")
    eventually(lambda: is_going(theirs.target()), "the Job is deleted")
    ours = [label for label in theirs.target()["metadata"].get("labels") or {} if "rlguard" in label]
    assert ours == [] and "ownerReferences" not in theirs.target()["metadata"]
    theirs.guard_goes()
    theirs.ends()
    assert theirs.evidence()["verdict.json"] and not theirs.pods()

    # As Argo CD does: what is in its repository is to be in the cluster.
    spec = {"template": {"spec": made["spec"]["template"]["spec"]}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": TARGET}, "spec": spec}
    theirs.client.create(BATCH_JOBS, theirs.namespace, body, "argocd-controller")
    eventually(lambda: is_going(theirs.target()), "it is deleted again")
    recreated = theirs.expect("Stopped", "False", "TargetRecreated")
    assert "argocd-controller recreated Job nightly" in recreated
    theirs.ends()
    theirs.expect_events("TargetRecreated")


def test_a_target_stays_when_its_guard_is_deleted(theirs: AttachedWorld) -> None:
    theirs.make_target()
    theirs.operator()
    is_attached(theirs)
    before, namespace = theirs.target(), theirs.namespace
    theirs.client.request("DELETE", JOBS.path(namespace, "run"))
    eventually(lambda: theirs.client.get(JOBS, namespace, "run") is None, "the GuardedTrainingJob is gone")
    after = theirs.target()
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"] == before["spec"]
    assert not is_going(after) and theirs.pods_of_target()


def test_another_of_its_name_is_left_alone(theirs: AttachedWorld) -> None:
    theirs.make_target()
    operator = theirs.operator().process
    is_attached(theirs)
    operator.send_signal(signal.SIGSTOP)  # else it may look at a moment at which none has the name
    options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    theirs.client.request("DELETE", BATCH_JOBS.path(theirs.namespace, TARGET), body=options)
    for pod in theirs.pods_of_target():
        theirs.kubelet_ends(pod)
    other = theirs.make_target()
    operator.send_signal(signal.SIGCONT)
    said = theirs.expect("Disrupted", "True", "WorkloadDeleted")
    assert "another one has its name now" in said
    theirs.guard_goes()
    theirs.noted(fire={"code": "x", "reason": "r", "attempt": 0, "step": 9, "at": BEAT})
    theirs.expect("Stopped", "True", "NoPodsLeft")
    now, (pod,) = theirs.target(), theirs.pods_of_target()
    assert now["metadata"]["uid"] == other["metadata"]["uid"] and now["spec"] == other["spec"]
    assert not is_going(now) and not is_going(pod)


def test_a_pod_of_a_target_that_mounts_the_split_is_told(theirs: AttachedWorld) -> None:
    theirs.make_target({"persistentVolumeClaim": {"claimName": "heldout"}})
    theirs.operator()
    broken = "volumes[0].persistentVolumeClaim.claimName must not be heldout"
    assert broken in theirs.expect("Isolated", "False", "GuardDataExposed")
    assert broken in theirs.expect("Guarded", "False", "TargetRefused"), "and its guard is told of no run"


def test_a_target_that_has_ended_is_refused(theirs: AttachedWorld) -> None:
    theirs.make_target()
    shared = {"status": "True", "lastTransitionTime": BEAT, "reason": "Because"}
    over = [{"type": kind, "message": "over", **shared} for kind in ("FailureTarget", "Failed")]
    theirs.job_status({"active": 0, "ready": 0, "conditions": over})
    theirs.operator()
    assert "has ended already" in theirs.expect("Guarded", "False", "TargetRefused")
    assert theirs.guards_set() is None and theirs.phase() == "Refused"
