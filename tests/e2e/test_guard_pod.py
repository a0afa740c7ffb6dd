"""A guard in a pod of its own: real StatefulSet, Service and TLS, and a volume that both pods mount."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guard_operator.runtime.client import STATEFUL_SETS

from . import faults, given, jobs, then, timeouts, when
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


@pytest.mark.alone
def test_a_guard_in_its_own_pod_that_is_killed_after_it_fired_says_so_again(
    namespace: Namespace, shared: list[Json]
) -> None:
    """Without an operator, which would stop the run; it does when it is back."""
    job = a_run(namespace, shared)
    then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
    name = job.set_name
    with when.the_operator_is_away(namespace.cluster):
        when.the_trainer_is_told(job, "fire", "note")
        assert the_notes(job, 1)[-1]["fire"]

        job.loses_its_guard()

        when.the_trainer_is_told(job, "steps 1", "note")
        assert the_notes(job, 2)[-1]["fire"], "it says so again"
        assert "fire" not in job.guard, "nobody is there to write it"
    then.the_job_is_stopped(job)
    assert job.guard["fire"]["code"] == "kl_hard_stop"
    no_guard_is_left(job, name)


def test_a_silent_guard_in_its_own_pod_is_met_with_the_jobs_policy(
    namespace: Namespace, shared: list[Json]
) -> None:
    job = a_run(namespace, shared, onSilence={"afterSeconds": 30, "action": "Stop"})
    then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
    name = job.set_name

    with faults.the_guard_is_frozen(job):
        then.the_condition_is(job, "Halted", "True", "GuardSilent", within=timeouts.SILENCE)
        then.the_job_is_stopped(job)

    then.it_was_told_once(job, "GuardSilent", "StopRequested", "NoPodsLeft")
    then.the_job_never_fired(job)
    no_guard_is_left(job, name)


def test_two_operators_that_both_lead_make_one_guard_and_one_stop(
    namespace: Namespace, shared: list[Json]
) -> None:
    with faults.a_second_release(namespace.cluster, namespace.name):
        job = a_run(namespace, shared)
        then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
        name = job.set_name
        sets = job.client.list(STATEFUL_SETS, namespace.name, {})["items"]
        assert [one["metadata"]["name"] for one in sets] == [name]

        when.the_trainer_fires(job)

        then.the_job_has_fired(job, "KlHardStop")
        then.the_job_is_stopped(job)
        then.it_was_told_once(job, "WorkloadCreated", "KlHardStop", "StopRequested", "NoPodsLeft")
        no_guard_is_left(job, name)


def the_notes(job: PodRun, count: int) -> list[Json]:
    """What the trainer has noted beside its checkpoints, once it has so often."""

    def noted() -> list[Json]:
        lines = job.exec(job.trainer_container, "sh", "-c", "cat /checkpoints/*.notes").splitlines()
        return [json.loads(line) for line in lines] if len(lines) == count else []

    return then.eventually(noted, f"{count} notes", timeouts.REPLACE)


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
