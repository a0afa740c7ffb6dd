"""The adapter of JobSet: what can be guarded, where the guard sits, states, stops, and injection."""

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

ADAPTER = find_adapter("jobset.x-k8s.io/v1alpha2", "JobSet")
assert ADAPTER is not None
CONFIG = OperatorConfig("guard:1")
Json = dict[str, Any]


def part(name: str, *containers: str, replicas: int | None = None, **spec: Any) -> Json:
    mounts = [{"name": "ckpt", "mountPath": "/ckpt"}]
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": n, "image": "i", "volumeMounts": mounts} for n in containers or ("main",)],
        "volumes": [{"name": "ckpt", "emptyDir": {}}],
    }
    many = {} if replicas is None else {"replicas": replicas}
    return {"name": name, "template": {"spec": {"template": {"spec": pod}, **spec}}, **many}


def jobset(*parts: Json, **spec: Any) -> Json:
    return {"replicatedJobs": list(parts or (part("only"),)), **spec}


def named(part: str, **more: int) -> Json:
    return {"replicatedJob": part, **more}


def job(spec: Json) -> Job:
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    parsed = Spec.model_validate({"template": body, "guard": guard})
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


INDEX = "metadata.labels['batch.kubernetes.io/job-completion-index']"
JOB_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"
GUARDED: dict[str, tuple[Json, int, str, str | None]] = {
    "the only one": (jobset(), 0, "main", INDEX),
    "without an index": (jobset(part("only", completionMode="NonIndexed")), 0, "main", None),
    "several pods": (jobset(part("only", parallelism=4, completions=4)), 0, "main", INDEX),
    "several Jobs": (jobset(part("only", replicas=4)), 0, "main", JOB_INDEX),
    "named trainer": (jobset(part("server"), part("trainer", "log", "trainer")), 1, "trainer", INDEX),
    "the coordinator": (
        jobset(part("leader"), part("trainer", replicas=2), coordinator=named("leader", jobIndex=0)),
        0,
        "main",
        INDEX,
    ),
    "others of any shape": (
        jobset(part("trainer"), part("workers", "a", "b", replicas=2, parallelism=8)),
        0,
        "main",
        INDEX,
    ),
}


@pytest.mark.parametrize(("spec", "place", "container", "index"), GUARDED.values(), ids=GUARDED.keys())
def test_what_is_guarded(spec: Json, place: int, container: str, index: str | None) -> None:
    templates = ADAPTER.pod_templates(spec)
    assert [one.path for one in templates] == [
        ("replicatedJobs", number, "template", "spec", "template")
        for number in range(len(spec["replicatedJobs"]))
    ]
    (found,) = (one for one in templates if one.guarded)
    assert found == templates[place]
    assert (found.container, found.index_field) == (container, index)
    assert find_violations(ADAPTER, spec, job(spec).spec.guard) == ()
    build_workload(job(spec), ADAPTER, CONFIG)


FIRST = "replicatedJobs[0]"
BAD_SPECS: dict[str, tuple[Json, str, str]] = {
    "nothing": ({}, "replicatedJobs", "must have"),
    "a mapping": ({"replicatedJobs": {"a": 1}}, "replicatedJobs", "must have"),
    "of the wrong shape": ({"replicatedJobs": ["x"]}, FIRST, "a name"),
    "without a name": ({"replicatedJobs": [{"template": {"spec": {}}}]}, FIRST, "a name"),
    "without a template": ({"replicatedJobs": [{"name": "x"}]}, FIRST, "a template"),
    "nobody knows which": (jobset(part("a"), part("b")), "coordinator", "must name"),
    "a coordinator that is not there": (jobset(coordinator=named("x")), "coordinator", "must name"),
    "a coordinator of no name": (jobset(coordinator={}), "coordinator", "must name"),
    "another Job of it": (jobset(coordinator=named("only", jobIndex=1)), "coordinator", "first pod"),
    "another pod of it": (jobset(coordinator=named("only", podIndex=1)), "coordinator", "first pod"),
    "several of both": (
        jobset(part("only", replicas=2, parallelism=2)),
        f"{FIRST}.replicas",
        "no field tells",
    ),
    "pods without an index": (
        jobset(part("only", parallelism=2, completionMode="NonIndexed")),
        f"{FIRST}.template.spec.parallelism",
        "no pod is rank 0",
    ),
    "one after the other": (
        jobset(part("only", parallelism=1, completions=3)),
        f"{FIRST}.template.spec.completions",
        "one run",
    ),
    "which container": (
        jobset(part("only", "a", "b")),
        f"{FIRST}.template.spec.template.spec.containers",
        "name the one",
    ),
    "in another cluster": (jobset(managedBy="kueue.x-k8s.io/multikueue"), "managedBy", "not stopped"),
    "Jobs in another cluster": (
        jobset(part("only"), managedBy=None) | {"replicatedJobs": [part("only", managedBy="else.where/x")]},
        f"{FIRST}.template.spec.managedBy",
        "not stopped",
    ),
    "volumes that come later": (
        jobset(volumeClaimPolicies=[{"templates": []}]),
        "volumeClaimPolicies",
        "after the check",
    ),
}


@pytest.mark.parametrize(("spec", "field", "why"), BAD_SPECS.values(), ids=BAD_SPECS.keys())
def test_what_cannot_be_guarded_names_the_field(spec: Json, field: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why) as error:
        ADAPTER.pod_templates(spec)
    assert error.value.field == field
    (finding,) = find_violations(ADAPTER, spec, job(spec).spec.guard)
    assert finding.field == f"spec.template.spec.{field}"


def test_every_pod_of_the_run_is_checked() -> None:
    spec = jobset(part("trainer"), part("workers"))
    spec["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["hostPID"] = True
    (finding,) = review(ADAPTER, job(spec), CONFIG).findings
    assert finding.startswith("spec.template.spec.replicatedJobs[1].template.spec.template.spec.hostPID ")


def test_the_guard_is_injected_and_every_job_and_pod_is_labelled() -> None:
    spec = jobset(part("trainer"), part("workers"))
    spec["replicatedJobs"][1]["template"]["metadata"] = {"labels": {"a": "b"}}
    before = copy.deepcopy(spec)
    made = build_workload(job(spec), ADAPTER, CONFIG)["spec"]["replicatedJobs"]
    assert spec == before
    for one in made:
        pod = one["template"]["spec"]["template"]
        for template in (one["template"], pod):
            assert template["metadata"]["labels"]["rlguard.dev/job-uid"] == "0123456789ab"
        assert pod["spec"]["automountServiceAccountToken"] is False
    assert made[1]["template"]["metadata"]["labels"]["a"] == "b"
    trainer, worker = (one["template"]["spec"]["template"]["spec"] for one in made)
    (guard,) = trainer["initContainers"]
    index = next(v for v in guard["env"] if v["name"].endswith("REPLICA_INDEX"))
    assert index["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
    assert {"RLGUARD_URL", "RLGUARD_TOKEN"} <= {v["name"] for v in trainer["containers"][0]["env"]}
    assert "initContainers" not in worker and "RLGUARD" not in str(worker)


def test_the_index_is_made_explicit() -> None:
    spec = jobset(part("trainer"), part("x", completionMode="NonIndexed"))
    modes = [one["template"]["spec"]["completionMode"] for one in ADAPTER.prepared(spec)["replicatedJobs"]]
    assert modes == ["Indexed", "NonIndexed"]


NAME, JOB, POD = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "batch.kubernetes.io/job-completion-index",
)


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ({NAME: "trainer", JOB: "0", POD: "0"}, True),
        ({NAME: "trainer", JOB: "0"}, True),
        ({NAME: "trainer", JOB: "0", POD: "1"}, False),
        ({NAME: "trainer", JOB: "1", POD: "0"}, False),
        ({NAME: "workers", JOB: "0", POD: "0"}, False),
        ({}, False),
    ],
)
def test_which_pod_holds_rank_0(labels: Json, first: bool) -> None:
    spec = jobset(part("trainer"), part("workers"))
    assert ADAPTER.holds_rank0({"metadata": {"labels": labels}}, spec) is first
    assert ADAPTER.holds_rank0({"metadata": {}}, spec) is False
    assert ADAPTER.holds_rank0({"metadata": {}}, {}) is False


def test_pods_wanted_are_those_that_wait_for_no_other() -> None:
    later = {**part("later", replicas=8), "dependsOn": [{"name": "trainer", "status": "Ready"}]}
    spec = jobset(part("trainer"), part("workers", replicas=3, parallelism=2), later)
    assert ADAPTER.pods_wanted(spec) == 1 + 3 * 2
    assert ADAPTER.pods_wanted({}) == 0 and ADAPTER.pods_wanted({"replicatedJobs": 5}) == 0


def condition(kind: str, status: str = "True") -> Json:
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "Why", "message": "so"}]}}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "not ready": ({"status": {"replicatedJobsStatus": [{"ready": 0, "active": 1}]}}, WorkloadState.PENDING),
    "running": ({"status": {"replicatedJobsStatus": [{"ready": 0}, {"ready": 1}]}}, WorkloadState.RUNNING),
    "suspended": ({"spec": {"suspend": True}}, WorkloadState.SUSPENDED),
    "resumed": ({"spec": {"suspend": False}, **condition("Suspended", "False")}, WorkloadState.PENDING),
    "failed": (condition("Failed"), WorkloadState.FAILED),
    "succeeded": (condition("Completed"), WorkloadState.SUCCEEDED),
    "final wins": ({"spec": {"suspend": True}, **condition("Failed")}, WorkloadState.FAILED),
    "something else is so": (condition("StartupPolicyCompleted"), WorkloadState.PENDING),
    "not yet failed": (condition("Failed", "False"), WorkloadState.PENDING),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER.state(workload)[0] is state


def test_defaults_that_would_hurt_are_written_for_the_job_with_the_guard() -> None:
    made = ADAPTER.prepared(jobset(part("trainer", parallelism=4), part("workers", parallelism=2)))
    guarded, other = (one["template"]["spec"] for one in made["replicatedJobs"])
    assert (guarded["completions"], other["completions"]) == (4, 2), "or the pods' names may be cut"
    assert guarded["podReplacementPolicy"] == "Failed" and "podReplacementPolicy" not in other
    assert guarded["template"]["spec"]["restartPolicy"] == "Never"
    assert "restartPolicy" not in other["template"]["spec"]


def test_the_restart_policy_that_its_webhook_wrote_is_not_kept() -> None:
    """A restart of the guard would count against the Job's backoffLimit."""
    spec = jobset(part("server"), part("trainer", "trainer"))
    for one in spec["replicatedJobs"]:
        one["template"]["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    place = ("spec", "replicatedJobs", "1", "template", "spec", "template", "spec", "restartPolicy")
    assert ADAPTER.assigned({"metadata": {"uid": "a"}, "spec": spec}) == (place,), "of rank 0 alone"
    assert ADAPTER.assigned({"metadata": {}, "spec": spec}) == (), "an author's own choice"
    spec["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    assert ADAPTER.assigned({"metadata": {"uid": "a"}, "spec": spec}) == ()
    for hostile in (None, [], {"replicatedJobs": None}, {"replicatedJobs": [3, {"name": {}}]}):
        assert ADAPTER.assigned({"metadata": {"uid": "a"}, "spec": hostile}) == ()
