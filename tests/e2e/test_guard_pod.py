"""A guard in a pod of its own: real StatefulSet, Service and TLS, and a volume that both pods mount."""

from __future__ import annotations

from typing import Any

from rlguard.operator.runtime.client import STATEFUL_SETS

from . import given, jobs, then, timeouts, when
from .kube import TRAINER_CONTAINER, Json, Namespace
from .workloads import PodRun


def test_a_guard_in_its_own_pod_outlives_its_pod_and_stops_the_run(
    namespace: Namespace, shared: list[Json]
) -> None:
    job = a_run(namespace, shared)
    before = then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
    assert job.guard_pod is not None and job.pod["metadata"]["uid"] != job.guard_pod["metadata"]["uid"]

    job.loses_its_guard()
    when.the_trainer_is_told(job, "steps 4")
    after = then.the_guard_has_counted(job, 12, within=timeouts.REPLACE)
    assert (after["steps"], after["attempt"]) == (12, before["attempt"]), "nothing twice, nothing lost"
    then.the_job_never_fired(job)

    name = job.set_name
    when.the_trainer_fires(job)
    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)
    log = then.evidence(job)["guard.log"]
    assert log.strip() and not log.startswith("not available")
    no_guard_is_left(job, name)


def test_a_trainer_that_crashes_and_then_ends_is_judged_by_one_guard_to_the_end(
    namespace: Namespace, shared: list[Json]
) -> None:
    job = a_run(namespace, shared, restart="OnFailure")
    before, guard = then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES), the_pod_of_the_guard(job)

    killed = when.the_trainer_is_killed(job)

    then.a_container_runs_again(job, TRAINER_CONTAINER, killed)
    after = then.the_guard_has_counted(job, 16)
    assert (before["attempt"], after["attempt"]) == (0, 1)
    assert the_pod_of_the_guard(job)["metadata"]["uid"] == guard["metadata"]["uid"]

    name = job.set_name
    when.the_trainer_is_told(job, "checkpoint", "steps 1", "exit 0")

    then.the_phase_is(job, "Judging", within=timeouts.REPORT)
    then.the_condition_is(job, "Succeeded", "True", within=timeouts.EVALUATION)
    assert job.guard["rounds"] == 1, "its trainer was gone when it judged"
    then.the_job_never_fired(job)
    no_guard_is_left(job, name)


def no_guard_is_left(job: PodRun, name: str) -> None:
    """Its StatefulSet, of this name, is gone."""
    then.eventually(
        lambda: job.client.get(STATEFUL_SETS, job.namespace.name, name) is None,
        "no StatefulSet",
        timeouts.STOP,
    )


def the_pod_of_the_guard(job: PodRun) -> Json:
    """It is there."""
    pod = job.guard_pod
    assert pod is not None
    return pod


def a_run(namespace: Namespace, shared: list[Json], **spec: Any) -> PodRun:
    *others, job = jobs.scripted(
        "run",
        namespace.cluster.images["trainer"],
        ("steps 8",),
        deaf=True,
        checkpoints={"persistentVolumeClaim": {"claimName": "checkpoints"}},
        state={"claimName": "state"},
        **spec,
    )
    job["spec"]["guard"]["placement"] = "Pod"
    given.objects(namespace, [*shared, jobs.claim("state"), *others, job])
    return PodRun(namespace, "run")
