"""What is read of a job, and what is refused of it without a cluster, also before anybody created it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, KlPolicy, Policy
from rlguard.operator.api.guard import policy_to_api
from rlguard.operator.reconcile.parse import parse_job
from rlguard.operator.reconcile.review import Review, review_manifest
from rlguard.operator.reconcile.snapshot import guard_of

from .given import CONFIG, FIRE, REF, job, manifest, pytorchjob, template

Json = dict[str, Any]
WHERE = "spec.template.spec.pytorchReplicaSpecs.Master.template.spec"


def named(**metadata: Any) -> Json:
    return {"metadata": metadata, "spec": manifest()["spec"]}


def heldout(**fields: Any) -> Json:
    given = manifest()
    given["spec"]["guard"]["heldout"] |= fields
    return given


def starting(checkpoint: str) -> Json:
    return manifest(resumedFrom={"name": "before", "checkpoint": checkpoint})


IN_VOLUME = "spec.guard.heldout.{}: must be a path inside the volume: relative and without '..'"
PLAIN = "must have no quotation mark, backslash, dollar"
ELSEWHERE = "resumedFrom.checkpoint must be in the volume ckpt, which is mounted at /ckpt"
VLLM = {"heldout": {"volume": {"claimName": "h"}, "evaluator": {"vllm": {}}}}
INVALID = "InvalidSpec"
REFUSED: dict[str, tuple[Json, str, str]] = {
    **{
        f"name {name!r}": (named(name=name), INVALID, "metadata.name must be a DNS-1035 label")
        for name in ("1run", "Run", "a.b", "a\n", "a-", "", "r" * 48)
    },
    **{
        f"namespace {name!r}": (named(name="a", namespace=name), INVALID, "metadata.namespace must be a")
        for name in ("a.b", "A", "-a", "a" * 64, "a; b", "a\n")
    },
    **{
        f"split {path!r}": (heldout(split=path), INVALID, IN_VOLUME.format("split"))
        for path in ("/a", "a/../b", "..", "../b", "a/..")
    },
    "training prompts outside": (heldout(trainPrompts="../b"), INVALID, IN_VOLUME.format("trainPrompts")),
    # By it the admission policy knows that a guard has the split of its job.
    **{
        f"split {path!r}": (heldout(split=path), INVALID, PLAIN)
        for path in ('a"b', "a\\b", "a$(HOME)", "a\tb", "a\nb", "a\x7f")
    },
    **{
        f"start at {path}": (starting(path), "TemplateRefused", ELSEWHERE)
        for path in ("/ckpt2/20", "/ckpt/../etc", "/c", "/data/ckpt/20", "/ckpt/a/..")
    },
    "an unknown kind": (manifest(kind="Deployment"), "UnsupportedKind", "v1 Deployment cannot be guarded"),
    "sockets beside the trainer": (manifest(guard=VLLM), INVALID, "vllm needs placement: Pod"),
    "a copy that would go": (manifest(guard={"state": {"keepBest": True}}), INVALID, "state.keepBest needs"),
    "state in the split's claim": (
        manifest(guard={"state": {"claimName": "heldout"}}), INVALID, "state.claimName must not be",
    ),
    "a bad policy": (manifest(guard={"policy": {"kl": {"hardStop": 0}}}), INVALID, "policy.kl.hardStop"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "reason", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_is_named(given: Json, reason: str, words: str) -> None:
    said = review_manifest(given, CONFIG)
    assert said.reason == reason and words in said.findings[0] and not said.workload


@pytest.mark.parametrize(
    "given",
    [
        manifest(),
        named(name="r" * 47, namespace="team", labels={"a": "b"}),
        heldout(split="a/..b/c"),
        heldout(split="it's für/held out.jsonl"),
        *map(starting, ("/ckpt", "/ckpt/20", "/ckpt/a/b c")),
    ],
)
def test_what_can_be_guarded_is_not_refused(given: Json) -> None:
    assert review_manifest(given, CONFIG) == Review()


def test_each_finding_is_a_sentence_and_relaxed_lists_them() -> None:
    pod = template(hostPID=True, shareProcessNamespace=True)
    said = review_manifest(manifest(pytorchjob(pod)), CONFIG)
    assert said.reason == "TemplateRefused"
    rows = [f"{WHERE}.hostPID", f"{WHERE}.shareProcessNamespace"]
    assert [one.split(" must")[0] for one in said.findings] == rows
    relaxed = review_manifest(manifest(pytorchjob(pod), guard={"isolation": "Relaxed"}), CONFIG)
    assert (relaxed.reason, relaxed.findings, relaxed.broken) == (None, (), said.findings)


POLICIES = [
    Policy(),
    Policy(detector="heldout_guard", kl=KlPolicy(warn_above=None, hard_stop=0.5)),
    Policy(calibrated=CalibratedPolicy(alpha=0.1), heldout_guard=HeldOutGuardPolicy(min_steps=3)),
    Policy.model_validate(Policy().model_dump()),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_read_as_it_was_written(policy: Policy) -> None:
    written = policy_to_api(policy)
    assert job(guard={"policy": copy.deepcopy(written)}).spec.guard.policy == policy
    assert policy_to_api(Policy(detector="calibrated")) == {"detector": "Calibrated"}, "and no default"


# -- what another version, or anybody, wrote -------------------------------------------------------------


def test_a_field_of_a_status_that_another_version_wrote_is_left_out() -> None:
    read = job(status={"guard": {"step": 3, "novelty": 1}, "another": {"x": 1}})
    assert guard_of(read).step == 3
    with pytest.raises(ValidationError, match="novelty"):
        job(novelty=1)


@pytest.mark.parametrize(
    "time", ["2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99"]
)
@pytest.mark.parametrize("latch", ["fire", "halt"])
def test_a_time_that_only_the_api_server_takes_hides_no_latch(latch: str, time: str) -> None:
    """Whoever may write a status chooses what is in it."""
    status = REF | {"guard": {latch: FIRE | {"at": time}}, "stop": {"requestedAt": time}}
    found = getattr(guard_of(parse_job(manifest(status=status))), latch)
    assert found is not None and found.code == "hacking_gap"
