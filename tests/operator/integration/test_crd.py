"""The CRD on a real API server.

- It is served, explains itself, and fills in the defaults of `guard_core.policy.Policy`.
- What is out of range or contradictory is refused with a message that names the field.
- spec.template and spec.guard cannot be changed, whatever the kind of patch; onFire and onSilence can.
- A fire cannot be un-latched through the status, by any patch, by anyone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from guard_core.feed import Feed
from guard_core.policy import Policy
from guard_operator.api.names import GROUP, GUARD_MANAGER, KIND, OPERATOR_MANAGER, PLURAL, VERSION
from guard_operator.api.types import GuardedTrainingJob
from guard_operator.runtime.client import APPLY, MERGE, Client, Resource
from guard_operator.runtime.errors import ApiError

pytestmark = pytest.mark.nightly

JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
MakeJob = Callable[..., dict[str, Any]]
JSON_PATCH = "application/json-patch+json"

FIRE = {
    "code": "kl_hard_stop",
    "reason": "KL 0.2 > 0.08",
    "attempt": 0,
    "step": 7,
    "at": "2026-01-01T00:00:00Z",
}


def test_defaults_are_those_of_the_policy(client: Client, namespace: str, make_job: MakeJob) -> None:
    created = client.create(JOBS, namespace, make_job(), "test")
    assert created["spec"]["onFire"] == "Stop"
    spec = GuardedTrainingJob.model_validate({"spec": created["spec"]}).spec
    assert spec.guard.policy == Policy()


def test_it_explains_itself(client: Client) -> None:
    schemas = client.request("GET", f"/openapi/v3/apis/{GROUP}/{VERSION}")["components"]["schemas"]
    properties = schemas[f"dev.rlguard.{VERSION}.{KIND}"]["properties"]["spec"]["properties"]
    assert "Immutable" in properties["template"]["description"]
    assert all(inner.get("description") for inner in properties["guard"]["properties"].values())


def evaluated(nearDuplicates: Any = ..., **evaluator: Any) -> dict[str, Any]:  # as in the API
    """The part of spec.guard with this evaluator."""
    more = {} if nearDuplicates is ... else {"nearDuplicates": nearDuplicates}
    return {"heldout": {"volume": {"claimName": "h"}, "evaluator": evaluator, **more}}


def followed(log: str, format_: str = "verl", **checkpoints: str) -> dict[str, Any]:
    """The part of spec.guard with this log."""
    return {"metrics": {"follow": {"path": log, "format": format_}, "checkpoints": checkpoints}}


ADMITTED = {
    "all as the trainer": ({"hf": {}}, {}),
    "many samples of what the trainer samples": ({"hf": {"samples": 4}}, {}),
    "a null, which is the same": (
        {"hf": {"samples": 4, "temperature": None, "maxNewTokens": None}},
        {},
    ),
    "greedy": (
        {"hf": {"temperature": 0, "maxNewTokens": 256, "device": "mps"}},
        {"temperature": 0.0},
    ),
    "a nucleus": ({"hf": {"temperature": 1.0, "topP": 0.9, "topK": 20}}, {"top_p": 0.9, "top_k": 20}),
}


@pytest.mark.parametrize(("evaluator", "read"), ADMITTED.values(), ids=ADMITTED.keys())
def test_how_evaluations_sample_is_read_as_it_was_written(
    client: Client, namespace: str, make_job: MakeJob, evaluator: dict[str, Any], read: dict[str, Any]
) -> None:
    job = make_job(**evaluated(**evaluator, nearDuplicates=False))
    job["spec"]["guard"]["heldout"]["scorer"] = "math"
    created = client.create(JOBS, namespace, job, "test")
    heldout = GuardedTrainingJob.model_validate({"spec": created["spec"]}).spec.guard.heldout
    assert heldout.near_duplicates is False
    found = heldout.evaluator.hf
    assert found is not None
    names = ("temperature", "top_p", "top_k")
    assert {name: getattr(found, name) for name in names} == dict.fromkeys(names) | {
        **({} if found.temperature is None else {"temperature": found.temperature}),
        **read,
    }


REFUSED = {
    "kl.hard_stop 0": ({"policy": {"kl": {"hardStop": 0}}}, "hardStop in body should be greater than 0"),
    "ema_alpha 1": ({"policy": {"heldoutGuard": {"emaAlpha": 1}}}, "emaAlpha in body should be less than 1"),
    "ema_alpha -0.1": ({"policy": {"heldoutGuard": {"emaAlpha": -0.1}}}, "greater than or equal to 0"),
    "decline_patience 0": ({"policy": {"heldoutGuard": {"declinePatience": 0}}}, "declinePatience"),
    "min_steps -1": ({"policy": {"heldoutGuard": {"minSteps": -1}}}, "minSteps"),
    "rise_eps -1": ({"policy": {"heldoutGuard": {"riseEps": -1}}}, "riseEps"),
    "silent 0 s": ({"policy": {"silent": {"afterSeconds": 0}}}, "silent.afterSeconds"),
    "stale 0 rounds": ({"policy": {"stale": {"afterRounds": 0}}}, "stale.afterRounds"),
    "0 failures": ({"policy": {"evaluationFailing": {"afterFailures": 0}}}, "afterFailures"),
    "unknown detector": ({"policy": {"detector": "x"}}, 'supported values: "HeldoutGuard"'),
    "unknown action": ({"policy": {"silent": {"action": "Shrug"}}}, 'supported values: "Warn", "Stop"'),
    "low port": ({"port": 80}, "guard.port"),
    "no evaluator": (
        {"heldout": {"volume": {"claimName": "h"}, "evaluator": {}}},
        "exactly one evaluator must be set",
    ),
    "two evaluators": (
        {"heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}, "vllm": {}}}},
        "exactly one evaluator must be set",
    ),
    "vllm beside the trainer": (
        {"heldout": {"volume": {"claimName": "h"}, "evaluator": {"vllm": {}}}},
        "the evaluator vllm needs placement: Pod",
    ),
    "two held-out volumes": (
        {"heldout": {"volume": {"claimName": "h", "secretName": "s"}, "evaluator": {"hf": {}}}},
        "exactly one of claimName, secretName and configMapName",
    ),
    "state in the held-out claim": (
        {
            "state": {"claimName": "h"},
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        },
        "state.claimName must not be the claim of the held-out split",
    ),
    "the best kept without a claim": (
        {"state": {"keepBest": True}},
        "state.keepBest needs state.claimName",
    ),
    "split climbs out": (
        {"heldout": {"volume": {"claimName": "h"}, "split": "a/../../b", "evaluator": {"hf": {}}}},
        "relative and without '..'",
    ),
    "a base model of the trainer's": (
        evaluated(hf={"baseModel": "/checkpoints/base"}),
        "relative and without '..'",
    ),
    "a base model that climbs out": (
        evaluated(vllm={"baseModel": "../../base"}),
        "relative and without '..'",
    ),
    "no checkpoints": ({"checkpoints": None}, "guard.checkpoints: Required value"),
    "greedy samples": (
        evaluated(hf={"samples": 2, "temperature": 0}),
        "samples above 1 need a temperature above 0",
    ),
    "wrong by no limit": (
        {"heldout": {**evaluated(hf={})["heldout"], "onScorerTimeout": "wrong"}},
        "set scorerTimeoutSeconds, too",
    ),
    "a limit of nothing": (
        {"heldout": {**evaluated(hf={})["heldout"], "scorerTimeoutSeconds": 0}},
        "heldout.scorerTimeoutSeconds",
    ),
    "unknown device": (evaluated(hf={"device": "tpu"}), "hf.device"),
    "temperature above 10": (evaluated(hf={"temperature": 11}), "hf.temperature"),
    "no token": (evaluated(hf={"maxNewTokensCeiling": 0}), "hf.maxNewTokensCeiling"),
    "unknown isolation": ({"isolation": "None"}, "isolation"),
    "the log of another place": (followed("/etc/metrics.jsonl"), "metrics.follow.path"),
    "a log that climbs out": (followed("a/../../metrics.jsonl"), "metrics.follow.path"),
    "nothing to follow": ({"metrics": {}}, "metrics.follow: Required value"),
    "checkpoints that climb out": (followed("m", path=".."), "metrics.checkpoints.path"),
    "a configuration of another place": (
        {"metrics": {"follow": {"path": "m", "runConfig": "../run.yaml"}}},
        "metrics.follow.runConfig",
    ),
    "unknown format": (followed("m", "varl"), "metrics.follow.format"),
    "checkpoints of no layout": (followed("m", "torchtune"), "set checkpoints.layout"),
}


@pytest.mark.parametrize(
    "guard",
    [
        followed("metrics.jsonl"),
        followed("..run/.logs/a..b", "torchtune", layout="trl"),
        followed(".", "tensorboard", path="run/1"),
        {"metrics": {"follow": {"path": "m.jsonl"}}},
        {"metrics": {"follow": {"path": "m.jsonl", "runConfig": "run/.hydra/config.yaml"}}},
    ],
)
def test_what_is_followed_is_read_as_it_was_written(
    client: Client, namespace: str, make_job: MakeJob, guard: dict[str, Any]
) -> None:
    created = client.create(JOBS, namespace, make_job(**guard), "test")
    said = GuardedTrainingJob.model_validate({"spec": created["spec"]}).spec.guard.metrics
    assert said == Feed.model_validate(guard["metrics"])


@pytest.mark.parametrize(("guard", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_specs_are_refused(
    client: Client, namespace: str, make_job: MakeJob, guard: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        client.create(JOBS, namespace, make_job(**guard), "test")
    assert refused.value.status == 422
    assert message in refused.value.message


@pytest.mark.parametrize("name", ["1run", "Run", "r" * 51, "a.b"])
def test_names_that_pods_cannot_carry_are_refused(
    client: Client, namespace: str, make_job: MakeJob, name: str
) -> None:
    with pytest.raises(ApiError, match=r"metadata\.name"):
        client.create(JOBS, namespace, make_job(name), "test")


IMMUTABLE = {
    "a value deep in the workload": {
        "template": {"spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 2}}}}
    },
    "a new key in the workload": {"template": {"spec": {"runPolicy": {}}}},
    "a removed key in the workload": {"template": {"spec": {"pytorchReplicaSpecs": None}}},
    "a renamed key in the workload": {"template": {"spec": {"pytorchReplicaSpecs": None, "other": {"a": 1}}}},
    "a label of the workload": {"template": {"metadata": {"labels": {"a": "b"}}}},
    "its kind": {"template": {"kind": "Job"}},
    "a threshold": {"guard": {"policy": {"kl": {"hardStop": 0.5}}}},
    "the image": {"guard": {"image": "other"}},
    "the isolation": {"guard": {"isolation": "Relaxed"}},
    "what the KL warns of": {"guard": {"policy": {"kl": {"warnAbove": 0.5}}}},
    "the detector": {"guard": {"policy": {"detector": "Both"}}},
    "the scorer": {"guard": {"heldout": {"scorer": "math"}}},
    "where it starts": {"resumedFrom": {"name": "other", "checkpoint": "/ckpt/1"}},
}


@pytest.mark.parametrize("spec", IMMUTABLE.values(), ids=IMMUTABLE.keys())
def test_template_and_guard_are_immutable(
    client: Client, namespace: str, make_job: MakeJob, spec: dict[str, Any]
) -> None:
    client.create(JOBS, namespace, make_job(), "test")
    with pytest.raises(ApiError, match="immutable"):
        client.merge(JOBS, namespace, "run", {"spec": spec}, "test")


def test_no_other_field_of_the_template_takes_the_place_of_one(
    client: Client, namespace: str, make_job: MakeJob
) -> None:
    """To CEL two objects are equal whose unknown fields are as many and have other names."""
    job = make_job()
    job["spec"]["template"] |= {"metadata": {"labels": {"a": "b"}}}
    made = client.create(JOBS, namespace, job, "test")
    del made["spec"]["template"]["metadata"]
    made["spec"]["template"]["other"] = 1
    with pytest.raises(ApiError, match=r"spec\.template.* must have at most 4 items"):
        client.request("PUT", JOBS.path(namespace, "run"), body=made)


def test_the_template_has_no_other_fields(client: Client, namespace: str, make_job: MakeJob) -> None:
    job = make_job()
    job["spec"]["template"]["other"] = 1
    with pytest.raises(ApiError, match=r"spec\.template.* must have at most 4 items"):
        client.create(JOBS, namespace, job, "test")


def test_what_is_switched_off_with_null_holds_up_no_status_and_stays_off(
    client: Client, namespace: str, make_job: MakeJob
) -> None:
    """An API server of 1.32 calls two objects different that have null in the same field."""
    job = make_job(policy={"kl": {"warnAbove": None}})
    job["spec"]["guard"]["heldout"]["nearDuplicates"] = False
    client.create(JOBS, namespace, job, "test")
    apply_status(client, namespace, GUARD_MANAGER, {"guard": {"step": 7}})
    for change in ({"policy": {"kl": {"warnAbove": 0.5}}}, {"heldout": {"nearDuplicates": True}}):
        with pytest.raises(ApiError, match="immutable"):
            client.merge(JOBS, namespace, "run", {"spec": {"guard": change}}, "test")


@pytest.mark.parametrize(
    ("field", "value"), [("policy/kl/warnAbove", None), ("heldout/nearDuplicates", False)]
)
def test_nothing_is_switched_off_later(
    client: Client, namespace: str, make_job: MakeJob, field: str, value: bool | None
) -> None:
    client.create(JOBS, namespace, make_job(), "test")
    off = [{"op": "replace", "path": f"/spec/guard/{field}", "value": value}]
    with pytest.raises(ApiError, match="immutable"):
        client.request(
            "PATCH", JOBS.path(namespace, "run"), body=off, content_type="application/json-patch+json"
        )


ORIGIN = {"name": "before", "uid": "u", "step": 20, "checkpoint": "/ckpt/20"}


@pytest.mark.parametrize("change", [{"checkpoint": "/ckpt/40"}, {"step": None}, None])
def test_a_run_begins_once(
    client: Client, namespace: str, make_job: MakeJob, change: dict[str, Any] | None
) -> None:
    job = make_job()
    job["spec"]["resumedFrom"] = ORIGIN
    client.create(JOBS, namespace, job, "test")
    client.merge(JOBS, namespace, "run", {"spec": {"onFire": "Report"}}, "test")
    with pytest.raises(ApiError, match="a run begins once"):
        client.merge(JOBS, namespace, "run", {"spec": {"resumedFrom": change}}, "test")


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


VARIABLES = {"enable_thinking": False, "effort": "low", "more": {"a": [1, 2.5, None]}}
OTHER_VARIABLES: list[dict[str, Any]] = [
    {"effort": "high"},
    {"enable_thinking": "False"},
    {"effort": None, "other": "low"},
    {"other": 1},
    {"effort": None},
    {"more": {"a": [1]}},
    {"more": {"a": None, "b": [1, 2.5, None]}},
]


def test_variables_of_the_chat_template_are_kept_as_they_are(
    client: Client, namespace: str, make_job: MakeJob
) -> None:
    wanted = {"chatTemplateKwargs": VARIABLES, "answerAfter": "</think>", "systemPrompt": "Think."}
    client.create(JOBS, namespace, make_job(**evaluated(hf=wanted)), "test")
    for change in OTHER_VARIABLES:
        spec = {"guard": {"heldout": {"evaluator": {"hf": {"chatTemplateKwargs": change}}}}}
        with pytest.raises(ApiError, match="immutable"):
            client.merge(JOBS, namespace, "run", {"spec": spec}, "test")
    created = client.get(JOBS, namespace, "run")
    found = GuardedTrainingJob.model_validate({"spec": created["spec"]}).spec.guard.heldout.evaluator.hf
    assert found is not None and found.chat_template_kwargs == VARIABLES
    assert (found.answer_after, found.system_prompt) == ("</think>", "Think.")


def test_on_fire_and_on_silence_can_be_changed(client: Client, namespace: str, make_job: MakeJob) -> None:
    client.create(JOBS, namespace, make_job(), "test")
    patch = {"spec": {"onFire": "Report", "onSilence": {"afterSeconds": 60, "action": "Stop"}}}
    changed = client.merge(JOBS, namespace, "run", patch, "test")
    assert changed["metadata"]["generation"] == 2


@pytest.fixture
def fired(client: Client, namespace: str, make_job: MakeJob) -> str:
    """The path of the status of a job whose guard has fired."""
    client.create(JOBS, namespace, make_job(), "test")
    apply_status(client, namespace, GUARD_MANAGER, {"guard": {"fire": FIRE, "step": 7}})
    return JOBS.path(namespace, "run", "status")


def apply_status(client: Client, namespace: str, manager: str, status: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": "run", "namespace": namespace}
    body = {"apiVersion": JOBS.api_version, "kind": KIND, "metadata": meta, "status": status}
    return client.apply(JOBS, body, manager, sub="status")


UNLATCH = {
    "remove fire": (MERGE, {"status": {"guard": {"fire": None}}}),
    "remove guard": (MERGE, {"status": {"guard": None}}),
    "remove status": (MERGE, {"status": None}),
    "change the step": (MERGE, {"status": {"guard": {"fire": {"step": 8}}}}),
    "change the reason": (MERGE, {"status": {"guard": {"fire": {"reason": "never mind"}}}}),
    "JSON patch of fire": (JSON_PATCH, [{"op": "remove", "path": "/status/guard/fire"}]),
    "JSON patch of guard": (JSON_PATCH, [{"op": "remove", "path": "/status/guard"}]),
    "JSON patch of status": (JSON_PATCH, [{"op": "remove", "path": "/status"}]),
}


@pytest.mark.always
@pytest.mark.parametrize(("kind", "patch"), UNLATCH.values(), ids=UNLATCH.keys())
def test_a_fire_cannot_be_unlatched(client: Client, fired: str, kind: str, patch: Any) -> None:
    with pytest.raises(ApiError, match="latched"):
        client.request("PATCH", fired, body=patch, content_type=kind)
    assert client.request("GET", fired)["status"]["guard"]["fire"] == FIRE


@pytest.mark.always
def test_replacing_the_status_does_not_unlatch(client: Client, fired: str) -> None:
    stored = client.request("GET", fired)
    for status in ({}, {"guard": {}}, None):
        replaced = copy.deepcopy(stored) | {"status": status}
        with pytest.raises(ApiError, match="latched"):
            client.request("PUT", fired, body=replaced)


@pytest.mark.always
def test_applying_without_the_fire_keeps_it(client: Client, namespace: str, fired: str) -> None:
    apply_status(client, namespace, OPERATOR_MANAGER, {"guard": {"step": 9}})
    status = client.request("GET", fired)["status"]
    assert status["guard"]["fire"] == FIRE
    assert status["guard"]["step"] == 9


@pytest.mark.always
def test_its_owner_must_repeat_the_fire(client: Client, namespace: str, fired: str) -> None:
    """For server-side apply, the owner of a field who leaves it out removes it: the latch refuses that."""
    with pytest.raises(ApiError, match="latched"):
        apply_status(client, namespace, GUARD_MANAGER, {"guard": {"step": 9}})
    apply_status(client, namespace, GUARD_MANAGER, {"guard": {"step": 9, "fire": FIRE}})
    assert client.request("GET", fired)["status"]["guard"]["step"] == 9


@pytest.mark.always
def test_the_main_resource_does_not_write_status(client: Client, namespace: str, fired: str) -> None:
    path = JOBS.path(namespace, "run")
    client.request("PATCH", path, body={"status": {"guard": None}}, content_type=MERGE)
    body = {"apiVersion": JOBS.api_version, "kind": KIND, "metadata": {"name": "run", "namespace": namespace}}
    client.request("PATCH", path, query={"fieldManager": "x", "force": "true"}, body=body, content_type=APPLY)
    assert client.request("GET", fired)["status"]["guard"]["fire"] == FIRE
