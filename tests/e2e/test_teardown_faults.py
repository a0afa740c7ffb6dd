"""A fire stops the run whatever breaks at that moment: operators, training-operator, API server, guard.

In each case the trainer is deaf where the point is that the cluster stops it, and obeys where the point is
that it stops by the guard's answer.
"""

from __future__ import annotations

import time

import pytest

from . import faults, given, jobs, then, timeouts, when
from .kube import Namespace

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


# -- in the words of these tests -------------------------------------------------------------------------
