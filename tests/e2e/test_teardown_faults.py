"""A fire stops the run whatever breaks at that moment: operators, training-operator, API server, guard.

In each case the trainer is deaf where the point is that the cluster stops it, and obeys where the point is
that it stops by the guard's answer.
"""

from __future__ import annotations

import json
import time

import pytest

from . import faults, given, jobs, then, timeouts, when
from .kube import GUARD_CONTAINER, TRAINER_CONTAINER, Job, Namespace

#: Once each, whoever acts and however often.
STORY = ("WorkloadCreated", "KlHardStop", "StopRequested", "EvidenceCaptured", "NoPodsLeft")


# -- what the operator needs -----------------------------------------------------------------------------


@pytest.mark.alone
def test_the_training_operator_is_away(namespace: Namespace) -> None:
    """Its webhook refuses every patch, and a delete passes; nothing of the run comes back."""
    job = given.a_scripted_run(namespace, deaf=True)
    with faults.the_training_operator_is_away(namespace.cluster):
        late = given.a_submitted_run(namespace, "steps 8", name="late")
        refused = then.the_condition_is(late, "Guarded", "False", "WorkloadRefused")
        assert "failed calling webhook" in refused, "a user reads why nothing happens"

        when.the_trainer_fires(job)

        then.the_job_has_fired(job, "KlHardStop")
        then.the_job_is_stopped(job)
        then.it_was_told_once(job, *STORY)

    then.the_guard_has_counted(late, 8, within=timeouts.START)
    assert job.workload is None
    assert job.pods == []


@pytest.mark.alone
def test_the_api_server_is_away(namespace: Namespace) -> None:
    """One trainer stops by the guard's answer, and its guard ends with it and leaves its last word.

    The other goes on, with a guard that says so when an operator is back, and with it the training-operator,
    whose cache is from before and which may make the pod again.
    """
    cluster = namespace.cluster
    obedient = given.a_scripted_run(namespace, name="obedient")
    deaf = given.a_scripted_run(namespace, name="deaf", deaf=True)
    pods = obedient.pod, deaf.pod
    with faults.the_api_server_is_away(cluster):
        for pod in pods:
            faults.tell_from_the_node(cluster, pod, "fire")
        then.eventually(
            lambda: faults.running_on_the_node(cluster, pods[0]) == [],
            "the obedient trainer has stopped, and its guard",
            timeouts.STOP,
        )
        assert len(faults.running_on_the_node(cluster, pods[1])) == 2

    for job in (obedient, deaf):
        fire = then.the_job_has_fired(job, "KlHardStop", within=timeouts.REPORT)
        assert fire["code"] == "kl_hard_stop"
        then.the_job_is_stopped(job, timeouts.STOP_AFTER_OUTAGE)
    evidence = then.evidence(obedient)
    assert "stopped: kl_hard_stop" in evidence["trainer.log"]
    assert "Failed" not in obedient.conditions, "a run that the guard ended has not failed by itself"
    # For longer than until the operator looks again, nothing comes back and nothing is said twice.
    end = time.monotonic() + timeouts.LATER
    while time.monotonic() < end:
        for job in (obedient, deaf):
            assert job.conditions["Stopped"]["status"] == "True" and job.pods == []
        time.sleep(1.0)
    for job in (obedient, deaf):
        then.it_was_told_once(job, *STORY)


# -- the guard -------------------------------------------------------------------------------------------


def test_a_guard_that_hangs_is_told_and_comes_back(namespace: Namespace) -> None:
    """With the policy Warn: nobody stops anything. A scenario has what Stop does."""
    job = given.a_scripted_run(namespace, onSilence={"afterSeconds": 30, "action": "Warn"})

    with faults.the_guard_is_frozen(job):
        then.the_condition_is(job, "GuardSilent", "True", "GuardSilent", within=timeouts.SILENCE)
        then.the_condition_is(job, "Fired", "Unknown", "GuardSilent", says="its last verdict")
        assert job.status["phase"] == "Running"
        assert "running" in job.container(TRAINER_CONTAINER)["state"], "a warning stops nothing"

    then.the_condition_is(job, "GuardSilent", "False", "GuardReports", within=timeouts.REPORT)
    assert "Halted" not in job.conditions
    then.the_job_never_fired(job)


def test_a_guard_that_has_nothing_to_judge_by_halts_the_run(namespace: Namespace) -> None:
    """`stale` with the policy Stop: steps, and no checkpoint for the guard to score."""
    policy = {"stale": {"afterSteps": 5, "action": "Stop"}}
    job = given.a_submitted_run(namespace, "steps 8", policy=policy)

    message = then.the_condition_is(job, "Halted", "True", "GuardHalt", within=timeouts.START)
    assert message.startswith("stale at step ")
    then.the_job_is_stopped(job)
    assert job.conditions["Fired"]["status"] == "False"
    then.it_was_told_once(job, "GuardHalt", "StopRequested", "NoPodsLeft")


# -- ways of stopping ------------------------------------------------------------------------------------


def test_a_grace_period_of_a_day_is_cut_to_what_the_job_allows(namespace: Namespace) -> None:
    """Of a trainer that ignores SIGTERM, after a hook that takes long."""
    manifests = jobs.scripted("run", namespace.cluster.images["trainer"], ["steps 8"], deaf=True)
    jobs.pod_spec_of(manifests[-1])["terminationGracePeriodSeconds"] = 24 * 3600
    trainer = jobs.trainer_of(manifests[-1])
    # Not `exec`: a signal that is ignored stays so.
    trainer["command"] = ["sh", "-c", "trap '' TERM; \"$@\"; true", "sh", *trainer["command"]]
    trainer["lifecycle"] = {"preStop": {"sleep": {"seconds": 3600}}}
    given.objects(namespace, manifests)
    job = namespace.job("run")
    then.the_guard_has_counted(job, 8, within=timeouts.START)

    when.the_trainer_fires(job)

    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)
    then.it_was_told_once(job, *STORY)


@pytest.mark.alone
def test_a_pod_on_a_node_that_does_not_answer_is_named_with_it(namespace: Namespace) -> None:
    """Nobody can end it; it is not called stopped, and whoever can help is told where to look."""
    job = given.a_scripted_run(namespace, deaf=True)
    pod = job.pod
    node = pod["spec"]["nodeName"]
    with faults.the_kubelet_is_away(namespace.cluster, node):
        faults.tell_from_the_node(namespace.cluster, pod, "fire")
        then.the_job_has_fired(job, "KlHardStop")

        def left() -> str:
            return str(job.conditions["Stopped"]["message"])

        then.eventually(lambda: f"look at node {node}" in left(), "the node is named", timeouts.OVERDUE)
        stopped = job.conditions["Stopped"]
        assert (stopped["status"], stopped["reason"]) == ("False", "StopBlocked")
        assert pod["metadata"]["name"] in left()
        assert job.status["phase"] != "Stopped" and "NoPodsLeft" not in then.events(job)

    then.the_job_is_stopped(job)
    then.it_was_told_once(job, *STORY, "StopBlocked")


@pytest.mark.alone
def test_a_pod_that_runs_without_its_guard_is_told_and_then_stopped(namespace: Namespace) -> None:
    """Where no policy is asked, somebody may take the guard out of the workload, and lose the pod."""
    job = given.a_scripted_run(
        namespace, restart="ExitCode", deaf=True, onSilence={"afterSeconds": 30, "action": "Stop"}
    )
    with faults.the_admission_policies_are_away(namespace.cluster):
        take_the_guard_out(job)
        when.the_pod_is_deleted(job)

        without = then.the_condition_is(job, "Guarded", "False", "GuardMissing", within=timeouts.REPLACE)
        assert job.pod_name in without
        then.the_condition_is(job, "Halted", "True", "GuardSilent", within=timeouts.SILENCE)
        then.the_job_is_stopped(job)

    then.it_was_told_once(job, "GuardMissing", "GuardSilent", "StopRequested", "NoPodsLeft")
    assert "fire" not in job.guard


def test_workers_without_a_master(namespace: Namespace) -> None:
    """Each Worker has a guard beside it, and the guard of index 0 alone speaks for the run."""
    image = namespace.cluster.images["trainer"]
    manifests = jobs.scripted("run", image, ["steps 8"], deaf=True)
    replicas = manifests[-1]["spec"]["template"]["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"] = replicas.pop("Master") | {"replicas": 2}
    given.objects(namespace, manifests)
    job = namespace.job("run")
    then.the_guard_has_counted(job, 8, within=timeouts.START)

    tell(namespace, "run-worker-1", "fire")
    then.eventually(
        lambda: "fire latched" in namespace.kubectl("logs", "run-worker-1", "--container=rlguard-guard"),
        "the other guard sees a fire",
        timeouts.REPORT,
    )
    tell(namespace, "run-worker-0", "steps 8")
    then.the_guard_has_counted(job, 16)
    assert job.guard["steps"] == 16 and "fire" not in job.guard

    tell(namespace, "run-worker-0", "fire")
    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)


# -- in the words of these tests -------------------------------------------------------------------------


def take_the_guard_out(job: Job) -> None:
    """Of the workload's template, so that the next pod has none."""
    workload = job.workload
    assert workload is not None
    where = "/spec/pytorchReplicaSpecs/Master/template/spec/initContainers"
    pod = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (place,) = (n for n, one in enumerate(pod["initContainers"]) if one["name"] == GUARD_CONTAINER)
    patch = json.dumps([{"op": "remove", "path": f"{where}/{place}"}])
    job.namespace.kubectl("patch", "pytorchjob", job.name, "--type=json", f"--patch={patch}")


def tell(namespace: Namespace, pod: str, order: str) -> None:
    """Give the scripted trainer of any pod an order."""
    write = ("sh", "-c", 'echo "$0" >> /scratch/orders', order)
    namespace.kubectl("exec", pod, f"--container={TRAINER_CONTAINER}", "--", *write)
