"""TrainJobs and the real controllers of Kubeflow Trainer and JobSet, on a real API server.

- Its JobSet is made of the operator's copy of the runtime: rank 0 has the guard as it was injected, the
  trainer what its job and its patches say, and what Trainer itself adds.
- A fire deletes the TrainJob in the foreground, and nothing comes back.
- A runtime that is changed later changes no run, also not one that is suspended meanwhile.
- The same stop of one that exists (`spec.targetRef`).
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_operator import rbac
from guard_operator.adapters import ADAPTERS
from guard_operator.adapters.jobset import JOB_SETS
from guard_operator.adapters.trainjob import CLUSTER_RUNTIMES, NODE, PART_LABEL, RUNTIMES
from guard_operator.runtime.client import BATCH_JOBS, MERGE, STATEFUL_SETS, Client, Resource, controller_of
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import CLUSTER_ROLES, JOBS, ROLE_BINDINGS, is_deleted, world

from .cluster import AttachedWorld, KindWorld

Json = dict[str, Any]
SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]
WHEN = "2026-01-01T00:00:00Z"
BINDINGS = Resource(ROLE_BINDINGS.group, "v1", "clusterrolebindings", "ClusterRoleBinding")


class TrainWorld(KindWorld):
    """A world whose workload is a TrainJob, on a runtime of the cluster's that has the namespace's name."""

    workloads = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")

    def allow_runtimes(self) -> None:
        """What the chart grants besides where the operator watches single namespaces."""
        name = f"{self.namespace}-shared"
        rules = [rule for one in ADAPTERS for rule in rbac.shared_rules(one)]
        subject = {"kind": "ServiceAccount", "name": "operator", "namespace": self.namespace}
        ref = {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": name}
        for kind, body in (
            (CLUSTER_ROLES, {"rules": rules}),
            (BINDINGS, {"roleRef": ref, "subjects": [subject]}),
        ):
            typed = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **body}
            self.client.request("POST", kind.path(), body=typed)

    def runtime(self, **jobset: Any) -> None:
        """One like Trainer's own `torch-distributed`, with a node that has no volume."""
        container = {"name": NODE, "image": "runtime:1", "env": [{"name": "FROM", "value": "runtime"}]}
        pod = {"securityContext": {"runAsNonRoot": True}, "containers": [container]}
        job = {"metadata": {"labels": {PART_LABEL: "trainer"}}, "spec": {"template": {"spec": pod}}}
        spec = {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": NODE, "template": job}], **jobset}},
        }
        typed = {"apiVersion": CLUSTER_RUNTIMES.api_version, "kind": CLUSTER_RUNTIMES.kind}
        body = {**typed, "metadata": {"name": self.namespace}, "spec": spec}
        # Its webhook answers a moment after its port does.
        eventually(lambda: self.client.request("POST", CLUSTER_RUNTIMES.path(), body=body), "made", SECONDS)

    def change_runtime(self, patch: Json) -> None:
        path = CLUSTER_RUNTIMES.path(None, self.namespace)
        self.client.request("PATCH", path, body={"spec": patch}, content_type=MERGE)

    def change(self, spec: Json, name: str = "prodded") -> None:
        """Change the TrainJob; with no change of its spec its controller looks at it again."""
        body = {"metadata": {"annotations": {name: str(time.monotonic())}}, "spec": spec}
        path = self.workloads.path(self.namespace, self.name)
        self.client.request("PATCH", path, body=body, content_type=MERGE)

    def there(self, resource: Resource) -> list[str]:
        """What is there of a kind and not on its way out."""
        found = (one["metadata"] for one in self.items(resource))
        return [one["name"] for one in found if "deletionTimestamp" not in one]

    def told(self) -> dict[str, str]:
        """The conditions of the TrainJob that hold, with their reasons."""
        found = (self.workload().get("status") or {}).get("conditions") or []
        return {one["type"]: one["reason"] for one in found if one["status"] == "True"}

    def runs(self) -> Json:
        """Its pod runs and the guard has reported once; that pod."""
        self.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
        eventually(lambda: self.there(BATCH_JOBS) == [f"{self.name}-node-0"], "its Job", SECONDS)
        eventually(self.job_controller_makes_pods, "its pod", SECONDS)
        self.kubelet_runs_pods()
        self.job_status({"startTime": WHEN, "active": 1, "ready": 1})
        self.guard_says(step=1)
        self.expect("Fired", "False", "NotFired", within=SECONDS)
        (pod,) = self.pods()
        return pod

    def job_status(self, status: Json) -> None:
        path = BATCH_JOBS.path(self.namespace, f"{self.name}-node-0", "status")
        self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

    def job_controller_fails(self) -> None:
        """What it does when the trainer of a Job has failed for the last time."""
        shared = {"status": "True", "lastTransitionTime": WHEN, "lastProbeTime": WHEN}
        why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        conditions = [{"type": kind, **shared, **why} for kind in ("FailureTarget", "Failed")]
        self.job_status({"active": 0, "ready": 0, "failed": 1, "conditions": conditions})

    def collect_garbage(self) -> None:
        """JobSets, Jobs and pods of which the controller is gone."""
        for above, kind in ((self.workloads, JOB_SETS), (JOB_SETS, BATCH_JOBS)):
            left = {one["metadata"]["uid"] for one in self.items(above)}
            for one in self.items(kind):
                if controller_of(one) not in left:
                    path = kind.path(self.namespace, one["metadata"]["name"])
                    self.client.request("DELETE", path, body={"propagationPolicy": "Background"})
        super().collect_garbage()

    def nothing_comes_back(self, seconds: float) -> None:
        """Whatever its controller does in this time when it is asked to look again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.client.get(self.workloads, self.namespace, self.name) is not None:
                self.change({})
            assert (self.items(JOB_SETS), self.items(BATCH_JOBS), self.pods()) == ([], [], [])
            time.sleep(2)


@pytest.fixture
def here(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    controller: Callable[[str], None],
) -> Iterator[TrainWorld]:
    for name in ("jobset", "trainer"):
        controller(name)
    with world(plane, client, namespace, tmp_path, TrainWorld) as made:
        made.allow_runtimes()
        made.claim()
        yield made


def as_trainjob(job: Json, runtime: str, **spec: Any) -> Json:
    """The same run as a TrainJob; volumes and mounts come by a patch, as in a runtime without any."""
    changed = copy.deepcopy(job)
    pod = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    patched = {
        "volumes": pod["volumes"],
        "containers": [{"name": NODE, "volumeMounts": pod["containers"][0]["volumeMounts"]}],
    }
    replicated = [{"name": NODE, "template": {"spec": {"template": {"spec": patched}}}}]
    patch = {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    workload = {
        "runtimeRef": {"name": runtime},
        "trainer": {"image": "trainer:1", "command": ["train"], "env": [{"name": "FROM", "value": "job"}]},
        "runtimePatches": [{"manager": "example.com/me", **patch}],
        **spec,
    }
    changed["spec"]["template"] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": workload,
    }
    return changed


Start = Callable[..., TrainWorld]


@pytest.fixture
def start(here: TrainWorld, make_job: Callable[..., Json]) -> Start:
    """Makes a TrainJob; with `runs` its pod runs."""

    def made(runs: bool = True, jobset: Json | None = None, **spec: Any) -> TrainWorld:
        here.runtime(**(jobset or {}))
        job = as_trainjob(make_job(), here.namespace, **spec)
        here.submit(job)
        here.operator()
        if runs:
            here.runs()
        return here

    return made


def test_rank_0_has_the_guard_and_what_job_patches_and_trainer_say(start: Start) -> None:
    here = start()
    (pod,) = here.pods()
    uid = here.job()["metadata"]["uid"]
    assert pod["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] == NODE
    for one in (pod, *here.items(BATCH_JOBS), *here.items(JOB_SETS), *here.items(RUNTIMES)):
        assert one["metadata"]["labels"]["rlguard.dev/job-uid"] == uid
    (trainer,) = pod["spec"]["containers"]
    assert (trainer["image"], trainer["command"]) == ("trainer:1", ["train"])
    env = {one["name"]: one.get("value") for one in trainer["env"]}
    assert env["FROM"] == "job" and env["RLGUARD_URL"].startswith("https://127.0.0.1:")
    assert env["PET_NNODES"] == "1" and env["PET_MASTER_ADDR"] == "run-node-0-0.run"
    assert pod["spec"]["automountServiceAccountToken"] is False
    named = here.workload()["spec"]["runtimeRef"]
    assert (named["kind"], [named["name"]]) == ("TrainingRuntime", here.there(RUNTIMES))
    eventually(lambda: here.phase() == "Running", "phase Running", SECONDS)


def test_a_fire_deletes_it_and_nothing_of_it_is_left(start: Start) -> None:
    here = start()
    here.fire()
    here.expect_workload(is_deleted, "the TrainJob is deleted", within=SECONDS)
    here.ends()
    here.nothing_comes_back(10)


def test_one_that_fired_goes_on_as_another_with_the_runtime_of_the_cluster(
    start: Start, kubeconfig: Path
) -> None:
    here = start()
    here.fire()
    here.ends()
    command = [sys.executable, "-m", "guard_cli.main", "resume", "run", f"--namespace={here.namespace}"]
    command.append(f"--kubeconfig={kubeconfig}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "guardedtrainingjob.rlguard.dev/run-2 created\n"
    there = lambda: "run-2-node-0" in here.there(BATCH_JOBS)  # noqa: E731
    eventually(there, "the Job of another JobSet", SECONDS)
    (own,) = (one for one in here.items(BATCH_JOBS) if one["metadata"]["name"] == "run-2-node-0")
    env = own["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "RLGUARD_RESUME_FROM", "value": "/ckpt/20"} in env


def test_one_that_is_suspended_waits_and_runs_as_it_was_checked(start: Start) -> None:
    here = start(runs=False, suspend=True)
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: here.phase() == "Suspended", "phase Suspended", SECONDS)
    assert here.conditions()["GuardSilent"][0] == "Unknown"
    assert here.pods() == [] and here.job_controller_makes_pods() == []
    here.change_runtime({"template": {"spec": {"replicatedJobs": []}}})
    here.change({"suspend": False})
    here.runs()


def test_one_that_failed_by_itself_is_not_started_again(start: Start) -> None:
    """Trainer v2.2 starts a failed run again once its JobSet is gone, so that must not go by itself."""
    here = start(jobset={"ttlSecondsAfterFinished": 1})
    here.job_controller_fails()
    here.expect("Failed", "True", "WorkloadFailed", within=SECONDS)
    uids = [one["metadata"]["uid"] for one in here.items(JOB_SETS)]
    for _ in range(5):
        here.change({})
        time.sleep(2)
        assert [one["metadata"]["uid"] for one in here.items(JOB_SETS)] == uids
    assert "Failed" in here.told()
    # That is why: if this fails, the copy may have its author's time to live again.
    here.client.request("DELETE", JOB_SETS.path(here.namespace, "run"))
    again = lambda: [one["metadata"]["uid"] for one in here.items(JOB_SETS)] not in ([], uids)  # noqa: E731
    eventually(again, "Trainer starts it again", SECONDS)


def test_what_its_webhooks_refuse_is_a_condition(start: Start) -> None:
    here = start(runs=False, trainer={"env": [{"name": "PET_NNODES", "value": "7"}]})
    assert "reserved envs" in here.expect("Guarded", "False", "WorkloadRefused", within=SECONDS)
    assert here.there(RUNTIMES) == []


def test_one_without_its_runtime_waits_for_it(here: TrainWorld, make_job: Callable[..., Json]) -> None:
    here.submit(as_trainjob(make_job(), here.namespace))
    here.operator()
    message = here.expect("Guarded", "False", "SourceMissing", within=SECONDS)
    assert message.startswith("spec.template.spec.runtimeRef: ClusterTrainingRuntime test-")
    here.runtime()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)


def test_a_guard_in_a_pod_of_its_own(here: TrainWorld, make_job: Callable[..., Json]) -> None:
    here.runtime()
    for name in ("state", "checkpoints"):
        here.claim(name, "ReadWriteMany")
    job = as_trainjob(make_job(placement="Pod", state={"claimName": "state"}), here.namespace)
    patch = job["spec"]["template"]["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pod = patch["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: len(here.there(STATEFUL_SETS)) == 1, "the guard's StatefulSet", SECONDS)
    eventually(lambda: here.there(BATCH_JOBS) == ["run-node-0"], "its Job", SECONDS)
    (own,) = here.items(BATCH_JOBS)
    spec = own["spec"]["template"]["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["wait-for-guard"]
    assert "heldout" not in str(spec)
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert str(env["RLGUARD_URL"]).startswith("https://run-")


def test_the_sample_is_one_that_trainer_takes(here: TrainWorld) -> None:
    documents = [*yaml.safe_load_all((ROOT / "k8s/samples/trainjob.yaml").read_text("utf-8"))]
    job = next(one for one in documents if one["kind"] == JOBS.kind)
    runtime = next(one for one in documents if one["kind"] == RUNTIMES.kind)
    job["metadata"]["name"] = here.name
    eventually(lambda: here.put(RUNTIMES, runtime), "its runtime is taken", SECONDS)
    for claim in ("models", "trainjob-checkpoints"):
        here.claim(claim)
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated", within=SECONDS)
    eventually(lambda: here.there(BATCH_JOBS) == ["run-node-0"], "its Job", SECONDS)


class SomebodysTrainJob(AttachedWorld, TrainWorld):
    """A world with a TrainJob that exists, to which the job is attached: both are called `run`."""

    target = "run"
    owners = (BATCH_JOBS, STATEFUL_SETS)

    def make_target(self, **spec: Any) -> None:
        """Somebody's TrainJob, whose pod runs."""
        self.runtime()
        body = {"metadata": {"name": self.target}, "spec": {"runtimeRef": {"name": self.namespace}, **spec}}
        eventually(lambda: self.put(self.workloads, body), "the TrainJob is taken", SECONDS)
        eventually(lambda: self.there(BATCH_JOBS) == [f"{self.name}-node-0"], "its Job", SECONDS)
        eventually(self.job_controller_makes_pods, "its pod", SECONDS)
        self.kubelet_runs_pods()
        self.job_status({"startTime": WHEN, "active": 1, "ready": 1})

    def of_run(self) -> list[Json]:
        return [pod for pod in self.pods() if "rlguard" not in str(pod["metadata"].get("labels"))]

    def guarded(self, make_job: Callable[..., Json]) -> None:
        """It is attached, and its guard reports."""
        before = self.workload()["spec"]
        self.attach(make_job)
        self.operator()
        self.expect("Guarded", "True", "WorkloadAttached", within=SECONDS)
        self.start_guard()
        assert self.workload()["spec"] == before, "it is left as it is"


@pytest.fixture
def theirs(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    controller: Callable[[str], None],
) -> Iterator[SomebodysTrainJob]:
    for name in ("jobset", "trainer"):
        controller(name)
    with world(plane, client, namespace, tmp_path, SomebodysTrainJob) as made:
        yield made


def test_one_that_exists_is_deleted_with_all_of_its_pods(
    theirs: SomebodysTrainJob, make_job: Callable[..., Json]
) -> None:
    here = theirs
    here.make_target()
    here.guarded(make_job)
    here.fire()
    here.expect_workload(is_deleted, "the TrainJob is deleted", within=SECONDS)
    here.ends()
    assert not here.of_run()
    here.nothing_comes_back(10)


def test_one_without_a_node_is_refused(theirs: SomebodysTrainJob, make_job: Callable[..., Json]) -> None:
    here = theirs
    here.runtime()
    here.change_runtime({"template": {"spec": {"replicatedJobs": [launcher()]}}})
    body = {"metadata": {"name": "run"}, "spec": {"runtimeRef": {"name": here.namespace}}}
    eventually(lambda: here.put(here.workloads, body), "the TrainJob is taken", SECONDS)
    eventually(lambda: here.items(JOB_SETS), "its JobSet", SECONDS)
    here.attach(make_job)
    here.operator()
    said = here.expect("Guarded", "False", "TargetRefused", within=SECONDS)
    assert "its JobSet has no replicatedJob node" in said


def launcher() -> Json:
    """A replicatedJob that trains and is not called `node`."""
    pod = {"containers": [{"name": NODE, "image": "runtime:1"}]}
    labels = {"labels": {PART_LABEL: "trainer"}}
    return {"name": "launcher", "template": {"metadata": labels, "spec": {"template": {"spec": pod}}}}
