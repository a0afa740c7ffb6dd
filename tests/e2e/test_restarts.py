"""What a run survives: its trainer, its guard and its pod may die at any moment, and nothing is forgotten.

And what is no fire: a run that the infrastructure ends, ends as Failed or Disrupted.
"""

from __future__ import annotations

from . import given, then, timeouts, when
from .kube import GUARD_CONTAINER, TRAINER_CONTAINER, Namespace


def test_a_trainer_that_crashes_is_a_new_attempt_under_the_same_guard(namespace: Namespace) -> None:
    job = given.a_run_with_one_round(namespace, restart="OnFailure")
    before = job.guard

    killed = when.the_trainer_is_killed(job)

    then.a_container_runs_again(job, TRAINER_CONTAINER, killed)
    after = then.the_guard_has_counted(job, 16)
    assert (before["attempt"], after["attempt"]) == (0, 1)
    assert after["bestCheckpoint"] == before["bestCheckpoint"]
    assert after["rounds"] == before["rounds"]
    assert job.container(GUARD_CONTAINER)["restartCount"] == 0
    then.the_job_never_fired(job)


def test_a_guard_that_is_killed_keeps_verdict_and_count(namespace: Namespace) -> None:
    job = given.a_run_with_one_round(namespace)
    before = job.guard

    killed = when.the_guard_is_killed(job)
    then.a_container_runs_again(job, GUARD_CONTAINER, killed)
    when.the_trainer_is_told(job, "steps 4")

    after = then.the_guard_has_counted(job, 12)
    assert after["steps"] == 12, "nothing twice, nothing lost"
    assert after["attempt"] == 0, "to the trainer it is the same guard"
    for kept in ("rounds", "bestCheckpoint", "lastEvaluation", "inLoopEma", "heldoutEma"):
        assert after[kept] == before[kept], kept
    assert job.container(TRAINER_CONTAINER)["restartCount"] == 0
    then.the_job_never_fired(job)


def test_an_evicted_run_is_disrupted_and_not_fired(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace)

    with when.the_pod_is_evicted(job):
        then.the_condition_is(job, "Disrupted", "True", "Evicted", within=timeouts.STOP)

    then.the_phase_is(job, "Disrupted")
    then.the_job_never_fired(job)


def test_a_trainer_that_runs_out_of_memory_has_failed_and_not_fired(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace)

    when.the_trainer_is_told(job, "eat")

    then.the_condition_is(job, "Failed", "True", "WorkloadFailed", within=timeouts.STOP)
    assert job.container(TRAINER_CONTAINER)["state"]["terminated"]["reason"] == "OOMKilled"
    then.the_phase_is(job, "Failed")
    then.the_job_never_fired(job)
