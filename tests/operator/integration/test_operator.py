"""The operator process against a real API server; the tests play kubelet and training-operator.

- Creating: child, support objects, rights; refusals as conditions; the claim that comes later.
- What is ours: pods, workloads, namespaces; jobs that are being deleted, or that a newer version wrote.
- Evidence; ends that are no fires; graceful shutdown, readiness, metrics.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rlguard.operator.api.schema import crd
from rlguard.operator.runtime.client import (
    CONFIG_MAPS,
    PODS,
    Client,
)

from .conftest import install
from .controlplane import ControlPlane
from .faults import Hang, fault_proxy
from .kubelet import Kubelet, kubelet_of_node
from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, Json, World, is_deleted, is_going

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]


# -- creating --------------------------------------------------------------------------------------------


@pytest.mark.always
def test_given_a_job_then_the_workload_has_its_guard(here: World, make_job: MakeJob) -> None:
    here.claim()
    job = make_job()
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpu"}
    here.submit(job)
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    workload = here.workload()
    assert workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    assert workload["metadata"]["ownerReferences"][0]["uid"] == here.job()["metadata"]["uid"]
    pod = here.start_pod()
    (guard,) = pod["spec"]["initContainers"]
    assert guard["name"] == "rlguard-guard" and guard["restartPolicy"] == "Always" and guard["startupProbe"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    eventually(lambda: here.phase() == "Starting", "phase Starting: no step was reported yet")
    here.guard_says(step=1)
    eventually(lambda: here.phase() == "Running", "phase Running")
    assert here.job()["status"]["workloadRef"]["uid"] == workload["metadata"]["uid"]
    here.expect_events("WorkloadCreated")
    assert here.events() == ["WorkloadCreated"]


@pytest.mark.always
def test_a_template_that_breaks_the_isolation_is_refused(here: World, make_job: MakeJob) -> None:
    """By the operator alone: nothing here has the chart's admission policies."""
    here.claim()
    job = make_job()
    pod = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    pod["hostPID"] = True
    pod["containers"][0]["volumeMounts"].append({"name": "rlguard-heldout", "mountPath": "/mine"})
    here.submit(job)
    here.operator()
    message = here.expect("Guarded", "False", "TemplateRefused")
    for said in ("hostPID", "containers[0].volumeMounts[1].name must not be rlguard-heldout"):
        assert f"pytorchReplicaSpecs.Master.template.spec.{said}" in message
    assert here.client.get(PYTORCHJOBS, here.namespace, "run") is None
    here.expect_events("TemplateRefused")
    assert here.phase() == "Refused" and here.events() == ["TemplateRefused"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"replicas": "one"}, "replicas"), ({"replica": 1}, "replica")],
    ids=["wrong type", "unknown field"],
)
def test_what_the_workloads_schema_refuses_is_a_condition(
    here: World, make_job: MakeJob, changes: Json, said: str
) -> None:
    here.claim()
    job = make_job()
    job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"] |= changes
    here.submit(job)
    operator = here.operator()
    assert said in here.expect("Guarded", "False", "WorkloadRefused")
    time.sleep(1.0)
    assert here.events() == ["WorkloadRefused"], "no retry loop"
    assert "again in" not in operator.log.read_text()


def test_one_that_nests_too_deeply_is_a_condition_and_holds_up_no_other(
    here: World, make_job: MakeJob
) -> None:
    """The API server keeps it. Python reads a thousand levels, so every operator ended with it."""
    here.claim()
    deep = make_job()
    deep["metadata"]["name"] = "deep"
    inner: Json = {}
    for _ in range(2_000):
        inner = {"a": inner}
    deep["spec"]["template"]["spec"]["deep"] = inner
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # of the one who writes it
    try:
        here.submit(deep)
    finally:
        sys.setrecursionlimit(limit)
    here.submit(make_job())
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    said = here.another("deep").expect("Guarded", "False", "InvalidSpec")
    assert "more than 100 objects and lists are in one another" in said


def test_a_missing_claim_is_a_condition_until_it_is_there(here: World, make_job: MakeJob) -> None:
    here.submit(make_job())
    here.operator()
    assert "heldout" in here.expect("Guarded", "False", "ClaimMissing")
    here.claim()
    here.expect("Guarded", "True", "WorkloadCreated")


def test_a_workload_of_someone_else_is_left_alone(here: World, make_job: MakeJob) -> None:
    here.claim()
    job = make_job()
    foreign = here.put(PYTORCHJOBS, {"metadata": {"name": "run"}, "spec": job["spec"]["template"]["spec"]})
    here.submit(job)
    here.operator()
    here.expect("Guarded", "False", "NameTaken")
    assert here.workload()["metadata"]["uid"] == foreign["metadata"]["uid"]
    assert "ownerReferences" not in here.workload()["metadata"]


# -- stopping --------------------------------------------------------------------------------------------


def test_evidence_with_a_pod_whose_log_cannot_be_read(running: World) -> None:
    """No kubelet is behind these pods: the stop does not wait, and the evidence says what is missing."""
    running.fire()
    running.expect_workload(is_deleted, "the workload is deleted")
    running.ends()
    assert running.evidence()["trainer.log"].startswith("not available: ")
    maps = running.client.list(CONFIG_MAPS, running.namespace, {"labelSelector": "rlguard.dev/job=run"})
    owners = {raw["metadata"]["ownerReferences"][0]["kind"] for raw in maps["items"]}
    assert owners == {"GuardedTrainingJob"}


#: What a guard that fired while nobody could reach it leaves.
LAST_WORD = {
    **{"sequence": 99, "level": "fired", "code": "hacking_gap", "reason": "gap", "fire": True, "halt": False},
    **{"stop": True, "latch_attempt": 0, "latch_step": 40, "latched_at": "2026-01-01T00:00:07Z"},
    **{"attempt": 0, "step": 41, "steps": 41, "evaluated": 3},
}


def ended_with(message: Json) -> Json:
    """The status of a pod whose guard has ended with these words."""
    guard = {"name": "rlguard-guard", "image": "guard:1", "imageID": "", "ready": False, "restartCount": 0}
    state = {"terminated": {"exitCode": 0, "message": json.dumps(message)}}
    return {"phase": "Failed", "initContainerStatuses": [{**guard, "state": state}]}


def test_a_fire_that_only_the_kubelet_has_is_acted_on(running: World) -> None:
    """The trainer stopped by itself and took its guard along before anybody had heard of the fire."""
    running.guards["run"].end()
    running.pod_status(ended_with(LAST_WORD))
    running.workload_condition("Failed")
    running.expect("Fired", "True", "HackingGap")
    running.ends()
    status = running.job()["status"]
    assert status["guard"]["fire"]["step"] == 40
    eventually(lambda: running.job()["status"]["guard"].get("step") == 41, "its figures are told, too")
    assert status["guard"]["fire"]["at"].startswith("2026-01-01T00:00:07")
    assert status["phase"] == "Stopped" and "Failed" not in running.conditions()


def test_the_last_words_of_a_pod_that_is_not_ours_are_not_heard(running: World) -> None:
    """Anyone who may create a pod can give it our labels, a guard of that name, and a message to end with."""
    ours = running.pods()[0]
    for name, owners in {"stranger": [], "adopted": [foreign_owner(ours)]}.items():
        meta = {"name": name, "labels": ours["metadata"]["labels"], "ownerReferences": owners}
        init = {"name": "rlguard-guard", "image": "guard:1", "restartPolicy": "Always"}
        spec = {"initContainers": [init], "containers": [{"name": "pytorch", "image": "trainer:1"}]}
        running.put(PODS, {"metadata": meta, "spec": {**spec, "nodeName": "node"}})
        running.pod_status(ended_with(LAST_WORD), name)
    time.sleep(3.0)
    status = running.job()["status"]
    assert "fire" not in status["guard"] and "halt" not in status["guard"] and "stop" not in status
    # When the run must end, they must go all the same: who knows what runs in them.
    running.fire()
    running.ends()


def foreign_owner(pod: Json) -> Json:
    return {**pod["metadata"]["ownerReferences"][0], "name": "other", "uid": "other"}


# -- a job that is not as it should be -------------------------------------------------------------------


def test_a_deleted_job_that_a_finalizer_keeps_is_torn_down(here: World, make_job: MakeJob) -> None:
    here.claim()
    job = make_job()
    job["metadata"]["finalizers"] = ["example.com/keep"]
    here.submit(job)
    here.operator()
    here.start()
    here.client.delete(JOBS, here.namespace, "run", here.job()["metadata"]["uid"])
    assert "deletionTimestamp" in here.job()["metadata"]
    here.fire()
    here.expect_workload(is_deleted, "the workload is deleted")
    here.ends()
    here.client.merge(JOBS, here.namespace, "run", {"metadata": {"finalizers": []}}, "test")
    eventually(lambda: here.client.get(JOBS, here.namespace, "run") is None, "nothing of ours holds it back")


def test_a_deleted_job_that_a_finalizer_keeps_gets_no_workload(here: World, make_job: MakeJob) -> None:
    job = make_job()
    job["metadata"]["finalizers"] = ["example.com/keep"]
    here.submit(job)
    here.client.delete(JOBS, here.namespace, "run", here.job()["metadata"]["uid"])
    here.claim()
    here.operator()
    eventually(here.leader, "it leads")
    time.sleep(3.0)
    assert here.client.get(PYTORCHJOBS, here.namespace, "run") is None
    here.client.merge(JOBS, here.namespace, "run", {"metadata": {"finalizers": []}}, "test")


@pytest.fixture
def installed(client: Client) -> Iterator[Callable[[Json], None]]:
    """Installs a CRD in the place of ours, which is there again afterwards."""
    yield partial(install, client)
    install(client, crd())


def a_newer_crd() -> Json:
    """Of a release with a choice more."""
    definition = crd()
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"]["properties"]["onFire"]["enum"].append("Drain")
    return definition


def test_a_run_that_this_version_cannot_read_is_named_and_left_alone(
    running: World, installed: Callable[[Json], None]
) -> None:
    """An operator that was rolled back, or two releases on one CRD."""
    installed(a_newer_crd())

    def changed() -> bool:
        running.client.merge(JOBS, running.namespace, "run", {"spec": {"onFire": "Drain"}}, "test")
        return running.job()["spec"]["onFire"] == "Drain"

    eventually(changed, "the API server has the newer schema")
    assert "onFire" in running.expect("Guarded", "False", "InvalidSpec")
    assert running.phase() == "Running" and not is_going(running.workload())


@pytest.fixture
def kubelet(plane: ControlPlane, client: Client, namespace: str) -> Iterator[Kubelet]:
    with kubelet_of_node(plane, client, f"node-of-{namespace}") as kubelet:
        yield kubelet


def start_on(here: World, kubelet: Kubelet, make_job: MakeJob) -> None:
    """A running job whose pod is on the node of this kubelet."""
    here.claim()
    here.submit(make_job())
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    here.start_pod(node=f"node-of-{here.namespace}")
    here.guard_says()
    here.expect("Fired", "False", "NotFired")


def test_evidence_has_the_ends_of_the_logs(here: World, kubelet: Kubelet, make_job: MakeJob) -> None:
    kubelet.logs = {"pytorch": "x" * 200_000 + "\nlast words", "rlguard-guard": "fired at step 40"}
    start_on(here, kubelet, make_job)
    here.fire()
    here.expect("Stopped", "False", "PodsTerminating")
    assert here.pods(), "the pod is still there"
    data = here.evidence()
    assert data["trainer.log"].endswith("last words") and len(data["trainer.log"]) == 64 * 1024
    assert data["guard.log"] == "fired at step 40"


def test_a_log_that_hangs_does_not_hold_up_the_stop(here: World, kubelet: Kubelet, make_job: MakeJob) -> None:
    kubelet.hangs.set()
    start_on(here, kubelet, make_job)
    here.fire()
    here.expect_workload(is_deleted, "the workload is deleted")
    # The pod is still there: once its log can be read, it is.
    kubelet.logs = {"pytorch": "late", "rlguard-guard": "too"}
    kubelet.hangs.clear()
    assert here.evidence()["trainer.log"] == "late"


@pytest.mark.always
def test_a_halt_stops_without_a_fire(running: World) -> None:
    halt = {
        "code": "stale",
        "reason": "4 checkpoints wait",
        "attempt": 0,
        "step": 9,
        "at": "2026-01-01T00:00:00Z",
    }
    running.guard_says(halt=halt)
    running.expect_workload(is_deleted, "the workload is deleted")
    assert "4 checkpoints wait" in running.expect("Halted", "True", "GuardHalt")
    running.ends()
    assert running.conditions()["Fired"][0] == "False"


#: The last word of a guard that has judged all of a run.
JUDGED = {
    **{"level": "healthy", "code": "ok", "reason": "fine"},
    **{"announced": 3, "evaluated": 3, "failed": 0, "skipped": 0, "waiting": 0},
}


# -- ends that are no fires ------------------------------------------------------------------------------


@pytest.mark.always
def test_a_run_that_succeeds(running: World) -> None:
    round_ = {"attempt": 0, "step": 7, "reward": 0.5, "heldout": 0.4}
    running.guards["run"].evidence = {"history.jsonl": json.dumps(round_), "steps.jsonl": "{}\n" * 9}
    running.guard_says(**JUDGED, attempt=0, step=7, ended={"attempt": 0, "step": 7})
    eventually(lambda: running.job()["status"]["guard"].get("evaluated") == 3, "it is read")
    running.workload_condition("Succeeded")
    running.expect("Succeeded", "True", "WorkloadSucceeded")
    assert running.conditions()["Fired"][0] == "False" and running.phase() == "Succeeded"
    evidence = running.evidence()
    assert json.loads(evidence["history.jsonl"])["step"] == 7 and evidence["steps.jsonl"] == "{}\n" * 9
    running.expect_events("EvidenceCaptured")
    # Cleaning up afterwards changes nothing.
    uid = running.workload()["metadata"]["uid"]
    running.client.delete(PYTORCHJOBS, running.namespace, "run", uid)
    time.sleep(1.0)
    assert running.phase() == "Succeeded"


def test_an_evicted_run(running: World) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    running.pod_status({"phase": "Failed", "conditions": [target]})
    running.expect("Disrupted", "False", "Preempted")
    running.workload_condition("Failed")
    running.expect("Disrupted", "True", "Preempted")
    assert "Failed" not in running.conditions() and running.conditions()["Fired"][0] == "False"


@pytest.mark.always
def test_a_workload_that_someone_deletes_is_not_made_again(running: World) -> None:
    running.client.delete(PYTORCHJOBS, running.namespace, "run", running.workload()["metadata"]["uid"])
    running.expect("Disrupted", "True", "WorkloadDeleted")
    time.sleep(1.0)
    assert running.client.get(PYTORCHJOBS, running.namespace, "run") is None


# -- the process -----------------------------------------------------------------------------------------


def test_it_is_ready_measures_and_ends_gracefully(here: World, make_job: MakeJob) -> None:
    here.claim()
    here.submit(make_job())
    operator = here.operator()
    here.start()
    assert operator.page("/readyz") == "ok\n" and operator.page("/healthz") == "ok\n"
    page = operator.page("/metrics")
    assert 'leader_election_master_status{name="guardedtrainingjob"} 1.0' in page
    assert 'rlguard_jobs{phase="' in page
    here.fire()
    here.expect("Fired", "True", "HackingGap")
    here.ends()
    # What is counted is counted after the condition was written.
    counted = lambda: "rlguard_teardown_seconds_count 1.0" in operator.page("/metrics")  # noqa: E731
    eventually(counted, "the teardown is measured")
    page = operator.page("/metrics")
    assert 'rlguard_fires_total{reason="HackingGap"} 1.0' in page
    assert 'leader_election_master_status{name="guardedtrainingjob"} 1.0' in page
    reconciles = 'controller_runtime_reconcile_total{controller="guardedtrainingjob",result="requeue_after"}'
    assert reconciles in page
    assert here.leader()
    assert operator.terminate() == 0
    assert here.leader() == ""


def test_nobody_else_leads_while_an_operator_that_ends_still_works(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """Its work takes longer than a Lease lasts: the Lease is renewed until the work is done."""
    with fault_proxy(plane) as proxy:
        here.claim()
        here.submit(make_job())
        first = here.operator(server=proxy.url, lease_seconds=4)
        here.start()
        mine = here.leader()
        here.operator("--lease-seconds=4")
        # The stop request hangs until its time-out of 10 s.
        proxy.inject(lambda method, path: Hang() if method == "PATCH" and "/pytorchjobs/" in path else None)
        here.fire()
        eventually(lambda: proxy.count("PATCH /apis/kubeflow.org") > 0, "the stop is under way")
        first.process.send_signal(signal.SIGTERM)
        while (leader := here.leader()) == mine and first.process.poll() is None:
            time.sleep(0.05)
        # It gives the Lease back itself, at its end; one that is not renewed is taken 4 s after SIGTERM.
        assert leader in {"", mine} or first.process.wait(2) == 0, "another one leads while it still works"
        assert first.process.wait(30) == 0
    eventually(lambda: here.leader() not in {"", mine}, "another one leads")
    here.expect_workload(is_deleted, "the workload is deleted")
