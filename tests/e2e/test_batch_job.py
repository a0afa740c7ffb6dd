"""A Job of Kubernetes itself, with its own controller: the training-operator has no part in it."""

from __future__ import annotations

from . import given, jobs, then, timeouts
from .kube import Namespace
from .workloads import BatchRun, as_batch_job


def a_batch_run(namespace: Namespace, *orders: str) -> BatchRun:
    *others, job = jobs.scripted("run", namespace.cluster.images["trainer"], orders)
    given.objects(namespace, [*others, as_batch_job(job)])
    return BatchRun(namespace, "run")


def test_a_hacking_batch_job_is_deleted(namespace: Namespace) -> None:
    """The trainer stops by itself, too: a Job would keep its pod, and start another one."""
    job = a_batch_run(namespace, "steps 8", "fire")

    then.the_job_has_fired(job, "KlHardStop", within=timeouts.START)
    then.the_job_is_stopped(job)

    assert job.workload is None
    then.it_was_told_once(job, "KlHardStop", "StopRequested", "NoPodsLeft", "EvidenceCaptured")
    assert "StopBlocked" not in then.events(job)
    assert "attempt 0" in then.evidence(job)["trainer.log"]


def test_a_lost_pod_of_a_batch_job_leaves_its_guards_state_to_the_next(namespace: Namespace) -> None:
    job = a_batch_run(namespace, "steps 8")
    then.the_guard_has_counted(job, 8, within=timeouts.START)
    (lost,) = job.pods

    namespace.kubectl("delete", "pod", lost["metadata"]["name"], "--wait=false")

    assert then.the_guard_has_counted(job, 16, within=timeouts.REPLACE)["attempt"] == 1
    (pod,) = job.pods
    assert pod["metadata"]["uid"] != lost["metadata"]["uid"]
    then.the_job_never_fired(job)
