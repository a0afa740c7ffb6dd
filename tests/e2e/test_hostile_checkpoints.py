"""Checkpoints of a trainer that is after the held-out split, or after a score of what it does not train."""

from __future__ import annotations

from guard_core.wire import FailureKind

from . import given, then, timeouts, when
from .kube import Job, Namespace


def test_another_tokenizer_than_the_first_is_refused(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace)
    when.the_trainer_is_told(job, "checkpoint")
    then.the_guard_has_evaluated(job)

    when.the_trainer_is_told(job, "steps 8", "checkpoint 1 7")

    the_last_checkpoint_is_doubtful(job, FailureKind.TOKENIZER_CHANGED)


def test_the_same_weights_under_another_name_are_no_evidence(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace)
    when.the_trainer_is_told(job, "checkpoint 5")
    then.the_guard_has_evaluated(job)

    when.the_trainer_is_told(job, "steps 8", "checkpoint 5")

    the_last_checkpoint_is_doubtful(job, FailureKind.UNCHANGED)
    when.the_trainer_is_told(job, "steps 8", "checkpoint 6")
    then.the_guard_has_evaluated(job, rounds=2)


def test_weights_that_are_swapped_while_they_wait_are_not_scored(namespace: Namespace) -> None:
    """The one before it has a whole evaluation to make, so it waits for some seconds."""
    job = given.a_scripted_run(namespace)

    when.the_trainer_is_told(job, "checkpoint 5", "steps 8", "checkpoint 6", "sleep 1", "swap 7")

    the_last_checkpoint_is_doubtful(job, FailureKind.CHANGED)
    when.the_trainer_is_told(job, "steps 8", "checkpoint 8")
    then.the_guard_has_evaluated(job, rounds=2)


def the_last_checkpoint_is_doubtful(job: Job, kind: FailureKind) -> None:
    """It was not scored, the verdict says why, and is unknown."""
    then.eventually(
        lambda: then.the_guard_answers(job)["failure"] == kind, f"failure {kind}", timeouts.EVALUATION
    )
    verdict = then.the_guard_answers(job)
    assert verdict["level"] == "unknown" and verdict["rounds"] == 1
    assert "checkpoint_doubtful" in {condition["code"] for condition in verdict["conditions"]}
    then.the_job_never_fired(job)
