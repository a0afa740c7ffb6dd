"""What a run survives: its trainer, its guard and its pod may die at any moment, and nothing is forgotten.

And what is no fire: a run that the infrastructure ends, ends as Failed or Disrupted.
"""

from __future__ import annotations

import pytest

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


def test_a_lost_pod_leaves_its_guards_state_to_the_next(namespace: Namespace) -> None:
    """Once because the trainer dies (ExitCode makes a new pod of it), once because the pod is deleted."""
    checkpoints = given.a_claim(namespace, "checkpoints")
    job = given.a_run_with_one_round(namespace, restart="ExitCode", checkpoints=checkpoints)
    first = job.guard

    lost = str(job.pod["metadata"]["uid"])
    when.the_trainer_is_killed(job)

    then.the_pod_was_replaced(job, lost)
    second = then.the_guard_has_counted(job, 16, within=timeouts.REPLACE)
    assert second["attempt"] == 1
    assert second["bestCheckpoint"] == first["bestCheckpoint"]
    assert second["rounds"] == first["rounds"]

    lost = when.the_pod_is_deleted(job)

    then.the_pod_was_replaced(job, lost)
    third = then.the_guard_has_counted(job, 24, within=timeouts.REPLACE)
    assert third["attempt"] == 2
    assert third["bestCheckpoint"] == first["bestCheckpoint"]
    then.the_job_never_fired(job)


def test_a_claim_for_the_guards_state_outlives_the_pod(namespace: Namespace) -> None:
    """The calibrated detector's baseline holds the outcome of each item, so no status carries it."""
    checkpoints, claim = given.a_claim(namespace, "checkpoints"), given.a_claim(namespace, "guards")
    policy = {"detector": "Calibrated", "calibrated": {"baselinePasses": 2, "bootstrapRuns": 100}}
    job = given.a_run_with_one_round(
        namespace,
        restart="ExitCode",
        checkpoints=checkpoints,
        policy=policy,
        state=claim["persistentVolumeClaim"],
    )
    when.the_trainer_is_told(job, "steps 4", "checkpoint")
    before = then.the_calibrated_detector_judges(job)

    lost = when.the_pod_is_deleted(job)

    then.the_pod_was_replaced(job, lost)
    assert then.the_calibrated_detector_judges(job) == before
    assert then.the_guard_has_counted(job, 20)["attempt"] == 1
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


def test_a_trainer_that_takes_the_ports_of_a_dead_guard_gains_nothing(namespace: Namespace) -> None:
    """It listens there while the guard's container is down, and tells whoever asks that all is well."""
    job = given.a_scripted_run(namespace, deaf=True)
    guard = next(c for c in job.pod["spec"]["initContainers"] if c["name"] == GUARD_CONTAINER)
    ports = [
        v["value"] for v in guard["env"] if v["name"] in {"RLGUARD_GUARD_PORT", "RLGUARD_GUARD_METRICS_PORT"}
    ]
    when.the_trainer_is_told(job, f"steal {' '.join(ports)}")
    then.the_log_says(job, TRAINER_CONTAINER, f"done: steal {' '.join(ports)}")

    killed = when.the_guard_is_killed(job)
    when.the_trainer_is_told(job, "steps 4")

    then.the_log_says(job, TRAINER_CONTAINER, *(f"stole: {port}" for port in ports))
    then.a_container_runs_again(job, GUARD_CONTAINER, killed)
    after = then.the_guard_has_counted(job, 12)
    assert (after["steps"], after["attempt"]) == (12, 0), "what was reported while no guard ran is taken"
    said = then.the_guard_answers(job)["conditions"]
    assert [one["advice"] for one in said if one["code"] == "port_taken"] == [True]
    assert "port_taken" in after["advice"]
    then.eventually(lambda: job.container(GUARD_CONTAINER)["ready"], "its probes reach it", timeouts.RESTART)
    assert job.container(GUARD_CONTAINER)["restartCount"] == 1
    assert "robbed" not in job.log(TRAINER_CONTAINER), "neither a token nor a step went to the thief"

    when.the_trainer_fires(job)

    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)


@pytest.mark.alone
def test_a_guard_that_is_killed_after_it_fired_says_so_again(namespace: Namespace) -> None:
    """Without an operator, which would stop the run; it does when it is back."""
    job = given.a_scripted_run(namespace, deaf=True)
    with when.the_operator_is_away(namespace.cluster):
        when.the_trainer_fires(job)
        latch = then.the_guard_has_latched(job)

        killed = when.the_guard_is_killed(job)

        then.a_container_runs_again(job, GUARD_CONTAINER, killed)
        verdict = then.the_guard_answers(job)
        assert verdict["fire"]
        assert verdict["latch_step"] == latch["step"]
        assert job.guard["fire"] == latch
    then.the_job_is_stopped(job)
    assert job.guard["fire"] == latch


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
