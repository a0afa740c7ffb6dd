"""What is refused without a cluster: of a job, and of a manifest that nobody created."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from guard_core.policy import CalibratedPolicy, HeldOutGuardPolicy, KlPolicy, Policy
from guard_operator.api.types import Spec, policy_to_api
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.review import Review, review_manifest

Json = dict[str, Any]
CONFIG = OperatorConfig("guard:1")
POD = {
    "securityContext": {"runAsNonRoot": True},
    "containers": [{"name": "pytorch", "volumeMounts": [{"name": "ck", "mountPath": "/ck"}]}],
    "volumes": [{"name": "ck", "persistentVolumeClaim": {"claimName": "saved"}}],
}
MANIFEST = {
    "metadata": {"name": "run"},
    "spec": {
        "template": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "spec": {"pytorchReplicaSpecs": {"Master": {"template": {"spec": POD}}}},
        },
        "guard": {
            "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "ck"},
        },
    },
}


def changed(value: Any, *path: str) -> Json:
    """The manifest with another value there."""
    manifest = copy.deepcopy(MANIFEST)
    node: Json = manifest
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return manifest


def test_what_can_be_guarded_is_not_refused() -> None:
    assert review_manifest(MANIFEST, CONFIG) == Review()
    named = {"name": "r" * 50, "namespace": "team", "labels": {"a": "b"}}
    assert review_manifest(changed(named, "metadata"), CONFIG) == Review()


@pytest.mark.parametrize("name", ["1run", "Run", "r" * 51, "a.b", "a\n", "a-", ""])
def test_a_name_that_the_api_server_refuses(name: str) -> None:
    said = review_manifest(changed(name, "metadata", "name"), CONFIG)
    assert said.reason == "InvalidSpec"
    assert said.findings[0].startswith("metadata.name must be a DNS-1035 label of at most 50 characters")


@pytest.mark.parametrize("name", ["a.b", "A", "-a", "a" * 64, "a; b", "a\n"])
def test_a_namespace_that_the_api_server_refuses(name: str) -> None:
    said = review_manifest(changed({"name": "run", "namespace": name}, "metadata"), CONFIG)
    assert (said.reason, said.findings[0][:38]) == ("InvalidSpec", "metadata.namespace must be a DNS label")


@pytest.mark.parametrize("path", ["/a", "a/../b", "..", "../b", "a/.."])
def test_a_split_outside_of_its_volume(path: str) -> None:
    for field in ("split", "trainPrompts"):
        said = review_manifest(changed(path, "spec", "guard", "heldout", field), CONFIG)
        (finding,) = said.findings
        rule = f"spec.guard.heldout.{field}: must be a path inside the volume: relative and without '..'"
        assert finding.startswith(rule) and path in finding and said.reason == "InvalidSpec"
    inside = changed("a/..b/c", "spec", "guard", "heldout", "split")
    assert review_manifest(inside, CONFIG) == Review()


@pytest.mark.parametrize("path", ['a"b', "a\\b", "a$(HOME)", "a\tb", "a\nb", "a\x7f"])
def test_a_path_that_the_guard_would_be_told_otherwise_than_it_is_written(path: str) -> None:
    """By it the admission policy knows that a guard has the split of its job."""
    said = review_manifest(changed(path, "spec", "guard", "heldout", "split"), CONFIG)
    assert (
        said.reason == "InvalidSpec" and "must have no quotation mark, backslash, dollar" in said.findings[0]
    )
    usual = changed("it's für/held out.jsonl", "spec", "guard", "heldout", "split")
    assert review_manifest(usual, CONFIG) == Review()


def test_each_finding_is_a_sentence_of_its_own() -> None:
    pod = {**POD, "hostPID": True, "shareProcessNamespace": True}
    spec = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod}}}}
    said = review_manifest(changed(spec, "spec", "template", "spec"), CONFIG)
    where = "spec.template.spec.pytorchReplicaSpecs.Master.template.spec"
    assert said.reason == "TemplateRefused"
    assert [one.split(" must")[0] for one in said.findings] == [
        f"{where}.hostPID",
        f"{where}.shareProcessNamespace",
    ]


def test_what_relaxed_admits_is_not_refused() -> None:
    pod = {**POD, "hostPID": True}
    manifest = changed(
        {"Master": {"template": {"spec": pod}}}, "spec", "template", "spec", "pytorchReplicaSpecs"
    )
    assert review_manifest(manifest, CONFIG).reason == "TemplateRefused"
    manifest["spec"]["guard"]["isolation"] = "Relaxed"
    said = review_manifest(manifest, CONFIG)
    assert (said.reason, said.findings) == (None, ())
    [broken] = said.broken
    assert broken.startswith("spec.template.spec.pytorchReplicaSpecs.Master.template.spec.hostPID must")


def starting(checkpoint: str) -> Json:
    return changed({"name": "before", "checkpoint": checkpoint}, "spec", "resumedFrom")


@pytest.mark.parametrize("checkpoint", ["/ck", "/ck/20", "/ck/a/b c"])
def test_a_start_in_the_checkpoint_volume(checkpoint: str) -> None:
    assert review_manifest(starting(checkpoint), CONFIG) == Review()


@pytest.mark.parametrize("checkpoint", ["/ck2/20", "/ck/../etc", "/c", "/data/ck/20", "/ck/a/.."])
def test_a_start_elsewhere_is_refused(checkpoint: str) -> None:
    said = review_manifest(starting(checkpoint), CONFIG)
    assert said.reason == "TemplateRefused" and not said.workload
    assert "resumedFrom.checkpoint must be in the volume ck, which is mounted at /ck" in said.findings[0]


def test_a_kind_without_an_adapter() -> None:
    said = review_manifest(changed("Deployment", "spec", "template", "kind"), CONFIG)
    assert said.reason == "UnsupportedKind"
    assert said.findings == ("spec.template: kubeflow.org/v1 Deployment cannot be guarded",)


POLICIES = [
    Policy(),
    Policy(detector="both", kl=KlPolicy(warn_above=None, hard_stop=0.5)),
    Policy(calibrated=CalibratedPolicy(alpha=0.1), heldout_guard=HeldOutGuardPolicy(min_steps=3)),
    Policy.model_validate(Policy().model_dump()),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_read_as_it_was_written(policy: Policy) -> None:
    spec = copy.deepcopy(MANIFEST["spec"])
    spec["guard"]["policy"] = policy_to_api(policy)
    assert Spec.model_validate(spec).guard.policy == policy
    assert policy_to_api(Policy()) == {}
    assert policy_to_api(Policy(detector="calibrated")) == {"detector": "Calibrated"}, "as it was written"
