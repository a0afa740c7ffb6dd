"""The CRD on a real API server.

- It is served, explains itself, and fills in the defaults of `rlguard.core.policy.Policy`.
- What is out of range or contradictory is refused with a message that names the field.
- spec.template, spec.targetRef and spec.guard cannot be changed; onFire and onSilence can.
- A latch cannot be opened through the status, by any patch, by anyone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rlguard.core.feed import Feed
from rlguard.core.policy import Policy
from rlguard.operator.api.names import GROUP, KIND, OPERATOR_MANAGER, PLURAL, VERSION
from rlguard.operator.api.types import GuardedTrainingJob
from rlguard.operator.runtime.client import APPLY, MERGE, Client, Resource
from rlguard.operator.runtime.errors import ApiError

pytestmark = pytest.mark.nightly

JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
Json = dict[str, Any]
MakeJob = Callable[..., Json]
JSON_PATCH = "application/json-patch+json"


def read(created: Json) -> Any:
    """`spec.guard` as the operator reads it."""
    return GuardedTrainingJob.model_validate({"spec": created["spec"]}).spec.guard


# -- what is kept as it was written -----------------------------------------------------------------------


@pytest.mark.always
def test_defaults_are_those_of_the_policy(client: Client, namespace: str, make_job: MakeJob) -> None:
    created = client.create(JOBS, namespace, make_job(), "test")
    assert created["spec"]["onFire"] == "Stop"
    assert read(created).policy == Policy()


def test_it_explains_itself(client: Client) -> None:
    schemas = client.request("GET", f"/openapi/v3/apis/{GROUP}/{VERSION}")["components"]["schemas"]
    properties = schemas[f"dev.rlguard.{VERSION}.{KIND}"]["properties"]["spec"]["properties"]
    assert "Immutable" in properties["template"]["description"]
    assert all(inner.get("description") for inner in properties["guard"]["properties"].values())


def evaluated(**evaluator: Any) -> Json:  # as in the API
    """The part of spec.guard with this evaluator."""
    return {"heldout": {"volume": {"claimName": "h"}, "evaluator": evaluator}}


def followed(log: str, format_: str = "verl", **checkpoints: str) -> Json:
    """The part of spec.guard with this log."""
    return {"metrics": {"follow": {"path": log, "format": format_}, "checkpoints": checkpoints}}


SAMPLING: dict[str, tuple[Json, Json]] = {
    "all as the trainer": ({}, {}),
    "a null, which is the same": ({"samples": 4, "temperature": None, "maxNewTokens": None}, {"samples": 4}),
    "greedy": ({"temperature": 0, "device": "mps"}, {"temperature": 0.0}),
    "a nucleus": ({"temperature": 1.0, "topP": 0.9, "topK": 20}, {"top_p": 0.9, "top_k": 20}),
}


@pytest.mark.parametrize(("written", "kept"), SAMPLING.values(), ids=SAMPLING.keys())
def test_how_evaluations_sample_is_read_as_it_was_written(
    client: Client, namespace: str, make_job: MakeJob, written: Json, kept: Json
) -> None:
    found = read(client.create(JOBS, namespace, make_job(**evaluated(hf=written)), "test"))
    assert found.heldout.evaluator.hf is not None
    said = found.heldout.evaluator.hf.model_dump()
    assert {name: said[name] for name in kept} == kept
    assert written.get("temperature") is not None or said["temperature"] is None


VARIABLES = {"enable_thinking": False, "effort": "low", "more": {"a": [1, 2.5, None]}}


def test_variables_of_the_chat_template_are_kept_as_they_are(
    client: Client, namespace: str, make_job: MakeJob
) -> None:
    created = client.create(
        JOBS, namespace, make_job(**evaluated(hf={"chatTemplateKwargs": VARIABLES})), "test"
    )
    found = read(created).heldout.evaluator.hf
    assert found is not None and found.chat_template_kwargs == VARIABLES
    for change in ({"effort": "high"}, {"other": 1}, {"effort": None}, {"more": {"a": [1]}}):
        spec = {"guard": {"heldout": {"evaluator": {"hf": {"chatTemplateKwargs": change}}}}}
        with pytest.raises(ApiError, match="immutable"):
            client.merge(JOBS, namespace, "run", {"spec": spec}, "test")


@pytest.mark.parametrize(
    "guard",
    [
        followed("..run/.logs/a..b", "torchtune", layout="trl"),
        followed(".", "tensorboard", path="run/1"),
        {"metrics": {"follow": {"path": "m.jsonl", "runConfig": "run/.hydra/config.yaml"}}},
    ],
)
def test_what_is_followed_is_read_as_it_was_written(
    client: Client, namespace: str, make_job: MakeJob, guard: Json
) -> None:
    created = client.create(JOBS, namespace, make_job(**guard), "test")
    assert read(created).metrics == Feed.model_validate(guard["metrics"])


# -- what is refused -------------------------------------------------------------------------------------

INSIDE = "relative and without '..'"
ONE_EVALUATOR = "exactly one evaluator must be set"
FOR_TARGETS = "targetRef needs guard.placement: Pod"
CLAIM: Json = {"volume": {"claimName": "h"}}
REFUSED: dict[str, tuple[Json, str]] = {
    "kl.hard_stop 0": ({"policy": {"kl": {"hardStop": 0}}}, "hardStop in body should be greater than 0"),
    "ema_alpha 1": ({"policy": {"heldoutGuard": {"emaAlpha": 1}}}, "emaAlpha in body should be less than 1"),
    "decline_patience 0": ({"policy": {"heldoutGuard": {"declinePatience": 0}}}, "declinePatience"),
    "silent 0 s": ({"policy": {"silent": {"afterSeconds": 0}}}, "silent.afterSeconds"),
    "0 failures": ({"policy": {"evaluationFailing": {"afterFailures": 0}}}, "afterFailures"),
    "unknown detector": ({"policy": {"detector": "x"}}, 'supported values: "HeldoutGuard"'),
    "unknown action": ({"policy": {"silent": {"action": "Shrug"}}}, 'supported values: "Warn", "Stop"'),
    "low port": ({"port": 80}, "guard.port"),
    "no evaluator": (evaluated(), ONE_EVALUATOR),
    "two evaluators": (evaluated(hf={}, vllm={}), ONE_EVALUATOR),
    "vllm beside the trainer": (evaluated(vllm={}), "the evaluator vllm needs placement: Pod"),
    "two held-out volumes": (
        {"heldout": {"volume": {"claimName": "h", "secretName": "s"}, "evaluator": {"hf": {}}}},
        "exactly one of claimName, secretName and configMapName",
    ),
    "state in the held-out claim": (
        {"state": {"claimName": "h"}, **evaluated(hf={})},
        "state.claimName must not be the claim of the held-out split",
    ),
    "the best kept without a claim": ({"state": {"keepBest": True}}, "state.keepBest needs state.claimName"),
    "split climbs out": (
        {"heldout": {**CLAIM, "split": "a/../../b", "evaluator": {"hf": {}}}},
        INSIDE,
    ),
    "a base model of the trainer's": (evaluated(hf={"baseModel": "/checkpoints/base"}), INSIDE),
    "no checkpoints": ({"checkpoints": None}, "guard.checkpoints: Required value"),
    "greedy samples": (
        evaluated(hf={"samples": 2, "temperature": 0}),
        "samples above 1 need a temperature above 0",
    ),
    "wrong by no limit": (
        {"heldout": {**CLAIM, "evaluator": {"hf": {}}, "onScorerTimeout": "wrong"}},
        "set scorerTimeoutSeconds, too",
    ),
    "unknown device": (evaluated(hf={"device": "tpu"}), "hf.device"),
    "temperature above 10": (evaluated(hf={"temperature": 11}), "hf.temperature"),
    "unknown isolation": ({"isolation": "None"}, "isolation"),
    "the log of another place": (followed("/etc/metrics.jsonl"), "metrics.follow.path"),
    "a log that climbs out": (followed("a/../../metrics.jsonl"), "metrics.follow.path"),
    "nothing to follow": ({"metrics": {}}, "metrics.follow: Required value"),
    "checkpoints that climb out": (followed("m", path=".."), "metrics.checkpoints.path"),
    "unknown format": (followed("m", "varl"), "metrics.follow.format"),
    "checkpoints of no layout": (followed("m", "torchtune"), "set checkpoints.layout"),
    "a pod beside the trainer": (
        {"pod": {"readySeconds": 60}, "placement": "Sidecar"},
        "pod means nothing without placement",
    ),
    "a claim without a target": ({"checkpoints": {"claimName": "c"}}, "claimName is for targetRef"),
}


@pytest.mark.parametrize(("guard", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_specs_are_refused(
    client: Client, namespace: str, make_job: MakeJob, guard: Json, message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        client.create(JOBS, namespace, make_job(**guard), "test")
    assert refused.value.status == 422
    assert message in refused.value.message


TARGET: Json = {
    "placement": "Pod",
    "state": {"claimName": "state"},
    "checkpoints": {"claimName": "shared"},
    "metrics": {"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
}
TEMPLATE = {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}


def attached(make_job: MakeJob, **guard: Any) -> Json:
    """A job that is attached; None leaves a part of its guard out."""
    raw = make_job(**{key: value for key, value in (TARGET | guard).items() if value is not None})
    del raw["spec"]["template"]
    raw["spec"]["targetRef"] = {"apiVersion": "batch/v1", "kind": "Job", "name": "nightly"}
    return raw


REFUSED_TARGETS: dict[str, tuple[Json, Json, str]] = {
    "template and target": ({"template": TEMPLATE}, {}, "exactly one of template and targetRef"),
    "neither": ({"targetRef": None}, {}, "exactly one of template and targetRef"),
    "a sidecar": ({}, {"placement": "Sidecar"}, FOR_TARGETS),
    "a trainer that reports": ({}, {"metrics": None}, FOR_TARGETS),
    "a volume": ({}, {"checkpoints": {"volume": "c"}}, FOR_TARGETS),
    "a start": ({"resumedFrom": {"name": "b", "checkpoint": "/c/9"}}, {}, "resumedFrom needs a template"),
    "no name": ({"targetRef": {"apiVersion": "batch/v1", "kind": "Job"}}, {}, "targetRef.name"),
}


@pytest.mark.parametrize(("spec", "guard", "message"), REFUSED_TARGETS.values(), ids=REFUSED_TARGETS.keys())
def test_what_a_guard_of_a_target_needs_is_asked_for(
    client: Client, namespace: str, make_job: MakeJob, spec: Json, guard: Json, message: str
) -> None:
    raw = attached(make_job, **guard)
    raw["spec"] = {key: value for key, value in (raw["spec"] | spec).items() if value is not None}
    with pytest.raises(ApiError, match=message):
        client.create(JOBS, namespace, raw, "test")


@pytest.mark.parametrize("name", ["1run", "Run", "r" * 48, "a.b"])
def test_names_that_pods_cannot_carry_are_refused(
    client: Client, namespace: str, make_job: MakeJob, name: str
) -> None:
    with pytest.raises(ApiError, match=r"metadata\.name"):
        client.create(JOBS, namespace, make_job(name), "test")


ORIGIN = {"name": "before", "uid": "u", "step": 20, "checkpoint": "/ckpt/20"}


@pytest.mark.parametrize(
    "checkpoint",
    ["", "/", "ckpt/20", "//ckpt", "/ckpt/\n20", "/ckpt/\x9b2J", "/ckpt/\ufeff", "/" + "x" * 4096],
)
def test_a_start_that_is_no_path_is_refused(
    client: Client, namespace: str, make_job: MakeJob, checkpoint: str
) -> None:
    job = make_job()
    job["spec"]["resumedFrom"] = ORIGIN | {"checkpoint": checkpoint}
    with pytest.raises(ApiError, match=r"resumedFrom\.checkpoint"):
        client.create(JOBS, namespace, job, "test")


def test_the_template_has_no_other_fields(client: Client, namespace: str, make_job: MakeJob) -> None:
    """To CEL two objects are equal whose unknown fields are as many and have other names."""
    few = r"spec\.template.* must have at most 4 items"
    job = make_job()
    job["spec"]["template"]["other"] = 1
    with pytest.raises(ApiError, match=few):
        client.create(JOBS, namespace, job, "test")
    del job["spec"]["template"]["other"]
    job["spec"]["template"] |= {"metadata": {"labels": {"a": "b"}}}
    made = client.create(JOBS, namespace, job, "test")
    del made["spec"]["template"]["metadata"]
    made["spec"]["template"]["other"] = 1
    with pytest.raises(ApiError, match=few):
        client.request("PUT", JOBS.path(namespace, "run"), body=made)


# -- what cannot be changed --------------------------------------------------------------------------------

WORKLOAD = "pytorchReplicaSpecs"
IMMUTABLE: dict[str, Json] = {
    "a value deep in the workload": {"template": {"spec": {WORKLOAD: {"Master": {"replicas": 2}}}}},
    "a new key in the workload": {"template": {"spec": {"runPolicy": {}}}},
    "a removed key in the workload": {"template": {"spec": {WORKLOAD: None}}},
    "a renamed key in the workload": {"template": {"spec": {WORKLOAD: None, "other": {"a": 1}}}},
    "a label of the workload": {"template": {"metadata": {"labels": {"a": "b"}}}},
    "its kind": {"template": {"kind": "Job"}},
    "a threshold": {"guard": {"policy": {"kl": {"hardStop": 0.5}}}},
    "the image": {"guard": {"image": "other"}},
    "the isolation": {"guard": {"isolation": "Relaxed"}},
    "the detector": {"guard": {"policy": {"detector": "HeldoutGuard"}}},
    "the scorer": {"guard": {"heldout": {"scorer": "math"}}},
    "where it starts": {"resumedFrom": {"name": "other", "checkpoint": "/ckpt/1"}},
}


@pytest.mark.parametrize("spec", IMMUTABLE.values(), ids=IMMUTABLE.keys())
def test_template_and_guard_are_immutable(
    client: Client, namespace: str, make_job: MakeJob, spec: Json
) -> None:
    client.create(JOBS, namespace, make_job(), "test")
    with pytest.raises(ApiError, match="immutable"):
        client.merge(JOBS, namespace, "run", {"spec": spec}, "test")


@pytest.mark.parametrize(
    "change",
    [{"targetRef": {"name": "other"}}, {"targetRef": None, "template": TEMPLATE}],
    ids=["another", "none"],
)
def test_a_target_is_for_good(client: Client, namespace: str, make_job: MakeJob, change: Json) -> None:
    client.create(JOBS, namespace, attached(make_job), "test")
    with pytest.raises(ApiError, match="targetRef"):
        client.merge(JOBS, namespace, "run", {"spec": change}, "test")


def test_what_is_switched_off_with_null_holds_up_no_status_and_stays_off(
    client: Client, namespace: str, make_job: MakeJob
) -> None:
    """An API server of 1.32 calls two objects different that have null in the same field."""
    client.create(JOBS, namespace, make_job(policy={"kl": {"warnAbove": None}}), "test")
    apply_status(client, namespace, OPERATOR_MANAGER, {"guard": {"step": 7}})
    with pytest.raises(ApiError, match="immutable"):
        client.merge(
            JOBS, namespace, "run", {"spec": {"guard": {"policy": {"kl": {"warnAbove": 0.5}}}}}, "test"
        )
    client.create(JOBS, namespace, make_job("other"), "test")
    off = [{"op": "replace", "path": "/spec/guard/policy/kl/warnAbove", "value": None}]
    with pytest.raises(ApiError, match="immutable"):
        client.request("PATCH", JOBS.path(namespace, "other"), body=off, content_type=JSON_PATCH)


@pytest.mark.parametrize("change", [{"checkpoint": "/ckpt/40"}, {"step": None}, None])
def test_a_run_begins_once(client: Client, namespace: str, make_job: MakeJob, change: Json | None) -> None:
    job = make_job()
    job["spec"]["resumedFrom"] = ORIGIN
    client.create(JOBS, namespace, job, "test")
    with pytest.raises(ApiError, match="a run begins once"):
        client.merge(JOBS, namespace, "run", {"spec": {"resumedFrom": change}}, "test")


def test_on_fire_and_on_silence_can_be_changed(client: Client, namespace: str, make_job: MakeJob) -> None:
    client.create(JOBS, namespace, make_job(), "test")
    patch = {"spec": {"onFire": "Report", "onSilence": {"afterSeconds": 60, "action": "Stop"}}}
    assert client.merge(JOBS, namespace, "run", patch, "test")["metadata"]["generation"] == 2


# -- latches ---------------------------------------------------------------------------------------------

LATCH = {"code": "kl_hard_stop", "reason": "KL 0.2", "attempt": 0, "step": 7, "at": "2026-01-01T00:00:00Z"}


def apply_status(client: Client, namespace: str, manager: str, status: Json) -> Json:
    meta = {"name": "run", "namespace": namespace}
    body = {"apiVersion": JOBS.api_version, "kind": KIND, "metadata": meta, "status": status}
    return client.apply(JOBS, body, manager, sub="status")


@pytest.fixture(params=["fire", "halt"])
def latched(request: pytest.FixtureRequest, client: Client, namespace: str, make_job: MakeJob) -> str:
    """Which latch of a job has closed."""
    client.create(JOBS, namespace, make_job(), "test")
    apply_status(client, namespace, OPERATOR_MANAGER, {"guard": {request.param: LATCH, "step": 7}})
    return str(request.param)


def is_latched(client: Client, namespace: str, latch: str) -> bool:
    status = client.request("GET", JOBS.path(namespace, "run"))["status"]
    return bool(status["guard"][latch] == LATCH)


UNLATCH = {
    "remove latch": (MERGE, {"status": {"guard": {"LATCH": None}}}),
    "remove guard": (MERGE, {"status": {"guard": None}}),
    "remove status": (MERGE, {"status": None}),
    "change the step": (MERGE, {"status": {"guard": {"LATCH": {"step": 8}}}}),
    "change the reason": (MERGE, {"status": {"guard": {"LATCH": {"reason": "never mind"}}}}),
    "JSON patch of latch": (JSON_PATCH, [{"op": "remove", "path": "/status/guard/LATCH"}]),
    "JSON patch of status": (JSON_PATCH, [{"op": "remove", "path": "/status"}]),
}


def named(patch: Any, latch: str) -> Any:
    """The patch for this latch."""
    if isinstance(patch, dict):
        return {key.replace("LATCH", latch): named(value, latch) for key, value in patch.items()}
    if isinstance(patch, list):
        return [named(one, latch) for one in patch]
    return patch.replace("LATCH", latch) if isinstance(patch, str) else patch


@pytest.mark.always
def test_a_fire_cannot_be_unlatched(client: Client, namespace: str, latched: str) -> None:
    """Nor a halt: by no patch, by no other status, and not by its owner, who leaves it out of an apply."""
    path = JOBS.path(namespace, "run", "status")
    for kind, patch in UNLATCH.values():
        with pytest.raises(ApiError, match="latched"):
            client.request("PATCH", path, body=named(patch, latched), content_type=kind)
    stored = client.request("GET", path)
    for status in ({}, {"guard": {}}, None):
        with pytest.raises(ApiError, match="latched"):
            client.request("PUT", path, body=copy.deepcopy(stored) | {"status": status})
    with pytest.raises(ApiError, match="latched"):
        apply_status(client, namespace, OPERATOR_MANAGER, {"guard": {"step": 9}})
    assert is_latched(client, namespace, latched)


@pytest.mark.always
def test_a_latch_holds_up_no_other_change_of_the_status(client: Client, namespace: str, latched: str) -> None:
    apply_status(client, namespace, "another", {"guard": {"step": 9}})
    apply_status(client, namespace, OPERATOR_MANAGER, {"guard": {"step": 9, latched: LATCH}})
    assert client.request("GET", JOBS.path(namespace, "run"))["status"]["guard"]["step"] == 9
    assert is_latched(client, namespace, latched)


@pytest.mark.always
def test_the_main_resource_does_not_write_status(client: Client, namespace: str, latched: str) -> None:
    path = JOBS.path(namespace, "run")
    client.request("PATCH", path, body={"status": {"guard": None}}, content_type=MERGE)
    body = {"apiVersion": JOBS.api_version, "kind": KIND, "metadata": {"name": "run", "namespace": namespace}}
    client.request("PATCH", path, query={"fieldManager": "x", "force": "true"}, body=body, content_type=APPLY)
    assert is_latched(client, namespace, latched)
