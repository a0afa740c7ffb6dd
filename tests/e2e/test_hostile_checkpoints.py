"""Checkpoints of a trainer that is after the held-out split, or after a score of what it does not train."""

from __future__ import annotations

import json

import pytest

from guard_core.wire import FailureKind

from . import given, then, timeouts, when
from .kube import GUARD_CONTAINER, TRAINER_CONTAINER, Job, Namespace

#: What the guard tells this token: its verdict, and what it responds to a step that it has.
EVERYTHING_TOLD = """
import http.client, json, os, socket
guard = http.client.HTTPConnection("guard")
guard.sock = socket.socket(socket.AF_UNIX)
guard.sock.settimeout(10)
guard.sock.connect(os.environ["RLGUARD_URL"].removeprefix("unix://"))
headers = {"Authorization": f"Bearer {os.environ['RLGUARD_TOKEN']}", "Content-Type": "application/json"}
step = [{"attempt": 0, "step": 1, "reward": 0.5, "kl": 0.01, "kl_kind": "ref_token_mean"}]
for method, path, body in (("GET", "/v1/verdict", None), ("POST", "/v1/steps", json.dumps(step))):
    guard.request(method, path, body, headers)
    print(guard.getresponse().read().decode())
"""


@pytest.mark.parametrize(
    ("order", "chat"), [("checkpoint", False), ("chat", True)], ids=["tokenizer", "chat-template"]
)
def test_what_fails_at_an_item_is_not_told(namespace: Namespace, order: str, chat: bool) -> None:
    """Two of each fail at a digit, by a thousand tokens or in the template: that of item 1, and of item 7."""
    told = {}
    for digit in "17":
        job = given.a_scripted_run(namespace, name=f"fails-at-{digit}", chat=chat)
        when.the_trainer_is_told(job, f"{order} 0 {digit}")
        then.eventually(lambda job=job: job.guard.get("failed") == 1, "it failed", timeouts.EVALUATION)
        assert f"item-{digit}" in job.log(GUARD_CONTAINER), "the guard itself knows at which item"
        told[digit] = job.exec(TRAINER_CONTAINER, "python", "-c", EVERYTHING_TOLD)
        assert "item" not in job.log(TRAINER_CONTAINER)
        assert "item" not in json.dumps(job.guard), "the status can be read by whoever may read the job"
        prompt = f"0{digit}+0{digit}="
        assert prompt not in job.log(GUARD_CONTAINER) + json.dumps(job.raw), "what a template says is its own"

    assert told["1"] == told["7"] and f'"failure":"{FailureKind.UNDERWAY}"' in told["1"]
    assert "item" not in told["1"] and "1000" not in told["1"]


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
