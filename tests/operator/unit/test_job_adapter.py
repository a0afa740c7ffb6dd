"""The adapter of batch/v1 Job: what can be guarded, which container trains, states, stops, and injection."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from guard_operator.adapters import TemplateError, WorkloadState, find_adapter
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.refusals import find_violations
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import Job

ADAPTER = find_adapter("batch/v1", "Job")
assert ADAPTER is not None
Json = dict[str, Any]
MOUNTS = [{"name": "ckpt", "mountPath": "/ckpt"}]


def template(*containers: str, **spec: Any) -> Json:
    pod = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": n, "image": "i", "volumeMounts": MOUNTS} for n in containers or ("main",)],
        "volumes": [{"name": "ckpt", "emptyDir": {}}],
    }
    return {"template": {"spec": pod}, **spec}


def indexed(**spec: Any) -> Json:
    return template(completionMode="Indexed", **{"parallelism": 3, "completions": 3, **spec})


def job(spec: Json) -> Job:
    body = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    parsed = Spec.model_validate({"template": body, "guard": guard})
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


BY_DEFAULT = template(managedBy="kubernetes.io/job-controller")


@pytest.mark.parametrize(
    ("containers", "trains"),
    [(("main",), "main"), (("trainer", "logger"), "trainer"), (("logger", "trainer"), "trainer")],
)
def test_which_container_trains(containers: tuple[str, ...], trains: str) -> None:
    (found,) = ADAPTER.pod_templates(template(*containers))
    assert (found.path, found.container, found.guarded) == (("template",), trains, True)


@pytest.mark.parametrize(
    "spec",
    [template(), template(parallelism=1), template(parallelism=None, completions=1), indexed(), BY_DEFAULT],
    ids=["defaults", "one", "one completion", "indexed", "its own controller"],
)
def test_what_can_be_guarded(spec: Json) -> None:
    one = job(spec)
    assert find_violations(ADAPTER, spec, one.spec.guard) == ()


BAD_SPECS: dict[str, tuple[Json, str]] = {
    "several pods without an index": (template(parallelism=2, completions=2), "parallelism"),
    "no pod for now": (template(parallelism=0), "parallelism"),
    "one after the other": (template(completions=3), "completions"),
    "indexed, not all at once": (indexed(parallelism=2), "completions"),
    "lists for numbers": (indexed(parallelism=[1], completions=[1]), "parallelism"),
    "a list for the number of completions": (indexed(parallelism=1, completions=[1]), "completions"),
    "two containers, none named trainer": (template("a", "b"), "template.spec.containers"),
    "in another cluster": (template(managedBy="kueue.x-k8s.io/multikueue"), "managedBy"),
    "no template": ({}, "template.spec.containers"),
    "containers of the wrong shape": (
        {"template": {"spec": {"containers": "x"}}},
        "template.spec.containers",
    ),
}


@pytest.mark.parametrize(("spec", "field"), BAD_SPECS.values(), ids=BAD_SPECS.keys())
def test_what_cannot_be_guarded_names_the_field(spec: Json, field: str) -> None:
    with pytest.raises(TemplateError) as error:
        ADAPTER.pod_templates(spec)
    assert error.value.field == field
    (finding,) = find_violations(ADAPTER, spec, job(spec).spec.guard)
    assert finding.field == f"spec.template.spec.{field}"


def test_refusals_name_the_field_of_the_jobs_pod() -> None:
    spec = template()
    spec["template"]["spec"]["hostPID"] = True
    (finding,) = review(ADAPTER, job(spec), OperatorConfig("guard:1")).findings
    assert finding.startswith("spec.template.spec.template.spec.hostPID ")


def test_the_guard_is_injected_and_the_template_left_as_it_is() -> None:
    spec = template("trainer", "logger")
    before = copy.deepcopy(spec)
    workload = build_workload(job(spec), ADAPTER, OperatorConfig("guard:1"))
    assert spec == before
    assert (workload["apiVersion"], workload["kind"]) == ("batch/v1", "Job")
    made = workload["spec"]["template"]
    assert made["metadata"]["labels"]["rlguard.dev/job-uid"] == "0123456789ab"
    (guard,) = made["spec"]["initContainers"]
    trainer, logger = made["spec"]["containers"]
    assert guard["name"] == "rlguard-guard" and "REPLICA_INDEX" not in str(guard["env"])
    assert {"RLGUARD_URL", "RLGUARD_TOKEN"} <= {variable["name"] for variable in trainer["env"]}
    assert "env" not in logger


def test_the_guards_of_an_indexed_job_know_their_index() -> None:
    workload = build_workload(job(indexed()), ADAPTER, OperatorConfig("guard:1"))
    (guard,) = workload["spec"]["template"]["spec"]["initContainers"]
    index = next(v for v in guard["env"] if v["name"].endswith("REPLICA_INDEX"))
    path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert index["valueFrom"]["fieldRef"]["fieldPath"] == path


def test_which_pod_holds_rank_0() -> None:
    def pod(**labels: str) -> Json:
        return {"metadata": {"labels": {"rlguard.dev/job": "run", **labels}}}

    assert ADAPTER.holds_rank0(pod(), {})
    assert ADAPTER.holds_rank0(pod(**{"batch.kubernetes.io/job-completion-index": "0"}), {})
    assert not ADAPTER.holds_rank0(pod(**{"batch.kubernetes.io/job-completion-index": "1"}), {})


def test_a_pod_is_replaced_only_once_it_has_ended_and_the_users_own_policy_wins() -> None:
    assert ADAPTER.prepared(template())["podReplacementPolicy"] == "Failed"
    own = template(podReplacementPolicy="TerminatingOrFailed")
    assert ADAPTER.prepared(own) == own


def condition(kind: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "reason": "Why", "message": f"{kind} it is"}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "pod not ready": ({"status": {"active": 1, "ready": 0}}, WorkloadState.PENDING),
    "running": ({"status": {"active": 1, "ready": 1}}, WorkloadState.RUNNING),
    "suspended": ({"spec": {"suspend": True}}, WorkloadState.SUSPENDED),
    "resumed": (
        {"spec": {"suspend": False}, "status": {"conditions": [condition("Suspended", "False")]}},
        WorkloadState.PENDING,
    ),
    "failing, pods still there": (
        {"status": {"ready": 1, "conditions": [condition("FailureTarget")]}},
        WorkloadState.RUNNING,
    ),
    "failed": (
        {"status": {"conditions": [condition("FailureTarget"), condition("Failed")]}},
        WorkloadState.FAILED,
    ),
    "succeeded": (
        {"status": {"conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}},
        WorkloadState.SUCCEEDED,
    ),
    "final wins over suspended": (
        {"spec": {"suspend": True}, "status": {"conditions": [condition("Failed")]}},
        WorkloadState.FAILED,
    ),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER.state(workload)[0] is state
