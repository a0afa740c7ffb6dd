"""The adapter of TrainJob: what it is composed of, what is checked and created, states, stops, injection."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from guard_operator.adapters import ComposedAdapter, TemplateError, WorkloadState, at, find_adapter
from guard_operator.adapters.trainjob import CLUSTER_RUNTIMES, RUNTIMES, TrainJobAdapter
from guard_operator.api.reasons import Reason
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.rbac import shared_rules, workload_rules
from guard_operator.reconcile.inject import build_workload, created_for
from guard_operator.reconcile.refusals import find_violations
from guard_operator.reconcile.review import review, review_manifest
from guard_operator.reconcile.snapshot import Job

ADAPTER = TrainJobAdapter()
CONFIG = OperatorConfig("guard:1")
Json = dict[str, Any]
PART = "trainer.kubeflow.org/trainjob-ancestor-step"
JOBS = "runtime.template.spec.replicatedJobs"
CONTAINERS = ("template", "spec", "template", "spec", "containers")
MOUNT = {"name": "ckpt", "mountPath": "/ckpt"}


def part(name: str, *containers: str, label: str | None = None, pod: Json | None = None, **spec: Any) -> Json:
    made = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": one, "image": "i"} for one in containers or (name,)],
        **(pod or {}),
    }
    labels = {"metadata": {"labels": {PART: label}}} if label else {}
    return {"name": name, "template": {**labels, "spec": {"template": {"spec": made}, **spec}}}


def node(**spec: Any) -> Json:
    return part("node", label="trainer", **spec)


def runtime(*parts: Json, policy: Json | None = None, **jobset: Any) -> Json:
    inner = {"replicatedJobs": list(parts or (node(),)), **jobset}
    mine = {"torch": {}} if policy is None else policy
    return {"spec": {"mlPolicy": mine, "template": {"spec": inner}}}


def patched(name: str = "node", template: Json | None = None, **pod: Any) -> Json:
    """A patch of a replicatedJob's pods."""
    change = template or {"spec": {"template": {"spec": pod}}}
    inner = {"template": {"spec": {"replicatedJobs": [{"name": name, "template": change}]}}}
    return {"manager": "example.com/me", "trainingRuntimeSpec": inner}


#: Where a runtime has no volumes, a job brings its own.
VOLUME = patched(
    volumes=[{"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}}],
    containers=[{"name": "node", "volumeMounts": [MOUNT]}],
)


def trainjob(*patches: Json, **spec: Any) -> Json:
    return {"runtimeRef": {"name": "torch"}, "runtimePatches": [VOLUME, *patches], **spec}


def composed(spec: Json | None = None, of: Json | None = None) -> Json:
    return ADAPTER.composed(spec or trainjob(), of or runtime())


def job(spec: Json, **guard: Any) -> Job:
    body = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    given = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}, **guard}
    parsed = Spec.model_validate({"template": body, "guard": given})
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


def pod(spec: Json, place: int = 0) -> Json:
    found: Json = at(spec, "runtime", "template", "spec", "replicatedJobs", place, *CONTAINERS[:-1])
    return found


def found_in(spec: Json, **guard: Any) -> list[str]:
    return [*review(ADAPTER, job(spec, **guard), CONFIG).findings]


def test_it_is_found_by_its_kind() -> None:
    found = find_adapter("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert isinstance(found, TrainJobAdapter) and isinstance(found, ComposedAdapter)
    assert not isinstance(find_adapter("batch/v1", "Job"), ComposedAdapter)


# -- what it is made of ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "kind", "namespaced"),
    [
        ({"name": "a"}, CLUSTER_RUNTIMES, False),
        (
            {"name": "a", "kind": "ClusterTrainingRuntime", "apiGroup": "trainer.kubeflow.org"},
            CLUSTER_RUNTIMES,
            False,
        ),
        ({"name": "a", "kind": "TrainingRuntime"}, RUNTIMES, True),
    ],
)
def test_what_it_names(ref: Json, kind: Any, namespaced: bool) -> None:
    source = ADAPTER.source({"runtimeRef": ref})
    assert (source.resource, source.name, source.namespaced) == (kind, "a", namespaced)


@pytest.mark.parametrize(
    "ref",
    [None, "a", {}, {"name": ""}, {"name": 5}, {"name": "a", "kind": "Pod"}, {"name": "a", "apiGroup": "x"}],
)
def test_what_names_no_runtime(ref: Any) -> None:
    with pytest.raises(TemplateError, match="runtimeRef"):
        ADAPTER.source({"runtimeRef": ref})


def test_a_runtime_that_the_author_wrote_into_the_job_is_not_taken() -> None:
    evil = runtime(node(pod={"hostPID": True}))["spec"]
    assert composed(trainjob(runtime=evil))["runtime"] == composed()["runtime"]


# -- what can be guarded ---------------------------------------------------------------------------------


def test_the_node_is_guarded_and_everything_is_checked() -> None:
    made = composed(of=runtime(part("data", "dataset-initializer", label="dataset-initializer"), node()))
    data, trainer = ADAPTER.pod_templates(made)
    assert (data.guarded, data.container) == (False, "")
    assert (trainer.guarded, trainer.container) == (True, "node")
    assert trainer.index_field == "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert found_in(made) == []
    pod(made)["hostPID"] = True
    pod(made, 1)["hostIPC"] = True
    first, second = found_in(made)
    assert first.startswith(f"spec.template.spec.{JOBS}[0].template.spec.template.spec.hostPID ")
    assert second.startswith(f"spec.template.spec.{JOBS}[1].template.spec.template.spec.hostIPC ")


def test_before_its_runtime_was_read_nothing_is_known_of_its_pods() -> None:
    with pytest.raises(TemplateError, match="the runtime torch was not read") as error:
        ADAPTER.pod_templates(trainjob())
    assert error.value.field == "runtimeRef"
    said = review(ADAPTER, job(trainjob()), CONFIG)
    assert said.reason is Reason.TEMPLATE_REFUSED and said.workload == {}


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (patched(volumes=[{"name": "x", "persistentVolumeClaim": {"claimName": "heldout"}}]), "held-out"),
        (patched(volumes=[{"name": "x", "hostPath": {"path": "/"}}]), "hostPath"),
        (patched(containers=[{"name": "node", "securityContext": {"privileged": True}}]), "privileged"),
        (patched(securityContext={"windowsOptions": {}}), "windowsOptions"),
        (
            patched(containers=[{"name": "node", "env": [{"name": "RLGUARD_URL", "value": "x"}]}]),
            "RLGUARD_URL",
        ),
    ],
    ids=["held-out", "host", "privileged", "Windows", "address"],
)
def test_what_a_patch_opens_is_refused(patch: Json, why: str) -> None:
    assert any(why in one for one in found_in(composed(trainjob(patch))))


@pytest.mark.parametrize(
    "spec",
    [
        {"trainer": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "heldout", "key": "k"}}}]}},
        {"initializer": {"dataset": {"secretRef": {"name": "heldout"}}}},
    ],
    ids=["trainer", "initializer"],
)
def test_environment_of_the_job_is_checked_like_a_template(spec: Json) -> None:
    of = runtime(node(), part("data", "dataset-initializer", label="dataset-initializer"))
    guard = {"heldout": {"volume": {"secretName": "heldout"}, "evaluator": {"hf": {}}}}
    (finding,) = found_in(composed(trainjob(**spec), of), **guard)
    assert "held-out" in finding


def test_the_address_of_the_guard_is_not_the_jobs_to_give() -> None:
    spec = trainjob(trainer={"env": [{"name": "RLGUARD_TOKEN", "value": "x"}]})
    (finding,) = found_in(composed(spec))
    assert "RLGUARD_TOKEN: the operator sets it" in finding


BAD_SPECS: dict[str, tuple[Json, Json | None, str, str]] = {
    "in another cluster": (trainjob(managedBy="kueue.x-k8s.io/multikueue"), None, "managedBy", "not stopped"),
    "a JobSet in another cluster": (
        trainjob(), runtime(managedBy="kueue.x-k8s.io/multikueue"),
        "runtime.template.spec.managedBy", "not stopped",
    ),
    "volumes that come later": (
        trainjob(), runtime(volumeClaimPolicies=[{}]),
        "runtime.template.spec.volumeClaimPolicies", "after the check",
    ),
    "what Trainer v2.1 had": (
        trainjob(podTemplateOverrides=[{}]), None, "podTemplateOverrides", "does not know",
    ),
    "a trainer of tomorrow": (trainjob(trainer={"sidecar": {}}), None, "trainer.sidecar", "does not know"),
    "an initializer of tomorrow": (
        trainjob(initializer={"cache": {}}), None, "initializer.cache", "does not know",
    ),
    "a part of it": (
        trainjob(initializer={"model": {"volume": "x"}}), None, "initializer.model.volume", "does not know",
    ),
    "a policy of tomorrow": (
        trainjob(), runtime(policy={"ray": {}}), "runtime.mlPolicy.ray", "does not know",
    ),
    "a trainer of no shape": (trainjob(trainer=5), None, "trainer", "must be an object"),
    "mpi": (trainjob(), runtime(policy={"mpi": {}}), "runtime.mlPolicy.mpi", "after the check"),
    "flux": (trainjob(), runtime(policy={"flux": {}}), "runtime.mlPolicy.flux", "after the check"),
    "no trainer": (trainjob(), runtime(part("node")), JOBS, "must have one with the label"),
    "of another name": (
        trainjob(), runtime(part("main", "node", label="trainer"), part("node")),
        JOBS, "named node, not main",
    ),
    "two": (trainjob(), runtime(node(), node()), JOBS, "not node, node"),
    "several of it": (trainjob(), runtime({**node(), "replicas": 2}), f"{JOBS}[0].replicas", "numNodes"),
    "without an index": (
        trainjob(), runtime(node(completionMode="NonIndexed")),
        f"{JOBS}[0].template.spec.completionMode", "rank 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "of", "field", "why"), BAD_SPECS.values(), ids=BAD_SPECS.keys())
def test_what_cannot_be_guarded_names_the_field(spec: Json, of: Json | None, field: str, why: str) -> None:
    made = composed(spec, of)
    with pytest.raises(TemplateError, match=why) as error:
        ADAPTER.pod_templates(made)
    assert error.value.field == field
    (finding,) = find_violations(ADAPTER, made, job(made).spec.guard)
    assert finding.field == f"spec.template.spec.{field}"


# -- what is created -------------------------------------------------------------------------------------


def created(made: Json, **guard: Any) -> tuple[Json, Json]:
    """The copy of the runtime, and the TrainJob."""
    one = job(made, **guard)
    (first, runtime_), (second, workload) = created_for(one, ADAPTER, build_workload(one, ADAPTER, CONFIG))
    assert (first, second) == (RUNTIMES, ADAPTER.resource)
    return runtime_, workload


def test_the_copy_has_the_guard_and_the_labels_of_the_job_at_every_level() -> None:
    made = composed(trainjob(trainer={"env": [{"name": "A", "value": "1"}]}), runtime(node(), part("data")))
    before = copy.deepcopy(made)
    copied, workload = created(made)
    assert made == before
    for thing in (copied, workload):
        assert thing["metadata"]["labels"]["rlguard.dev/job-uid"] == "0123456789ab"
        assert thing["metadata"]["ownerReferences"][0]["controller"] is True
    assert workload["spec"]["runtimeRef"]["name"] == copied["metadata"]["name"] == "run-01234567"
    assert "runtimePatches" not in workload["spec"] and "runtime" not in workload["spec"]
    template = copied["spec"]["template"]
    jobs = template["spec"]["replicatedJobs"]
    for one in (
        template,
        *(job_["template"] for job_ in jobs),
        *(job_["template"]["spec"]["template"] for job_ in jobs),
    ):
        assert one["metadata"]["labels"]["rlguard.dev/job-uid"] == "0123456789ab"
    trainer, other = (job_["template"]["spec"]["template"]["spec"] for job_ in jobs)
    assert trainer["automountServiceAccountToken"] is other["automountServiceAccountToken"] is False
    (guard,) = trainer["initContainers"]
    assert guard["restartPolicy"] == "Always"
    assert {"A", "RLGUARD_URL", "RLGUARD_TOKEN"} <= {one["name"] for one in trainer["containers"][0]["env"]}
    assert "initContainers" not in other and "RLGUARD" not in str(other)


APART = {"placement": "Pod", "state": {"claimName": "state"}}


def test_a_guard_in_a_pod_of_its_own() -> None:
    copied, _ = created(composed(), **APART)
    trainer = copied["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert [one["name"] for one in trainer["initContainers"]] == ["wait-for-guard"]
    assert "heldout" not in str(trainer)
    env = {one["name"]: one for one in trainer["containers"][0]["env"]}
    assert (
        env["RLGUARD_URL"]["value"].startswith("https://") and {"RLGUARD_CA", "RLGUARD_TOKEN"} <= env.keys()
    )


def test_a_manifest_is_reviewed_with_its_runtime() -> None:
    template = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": trainjob()}
    guard = {
        "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "ckpt"},
    }
    manifest = {
        "apiVersion": "rlguard.dev/v1alpha1",
        "kind": "GuardedTrainingJob",
        "metadata": {"name": "run"},
        "spec": {"template": template, "guard": guard},
    }
    assert review_manifest(manifest, CONFIG, runtime()).reason is None
    (finding,) = review_manifest(manifest, CONFIG, runtime(node(pod={"hostPID": True}))).findings
    assert "hostPID" in finding
    assert review_manifest(manifest, CONFIG, {}).reason is Reason.TEMPLATE_REFUSED
    assert "was not read" in review_manifest(manifest, CONFIG).findings[0]


# -- what runs -------------------------------------------------------------------------------------------

NAME, JOB, POD = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "batch.kubernetes.io/job-completion-index",
)


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ({NAME: "node", JOB: "0", POD: "0"}, True),
        ({NAME: "node", JOB: "0", POD: "1"}, False),
        ({NAME: "node", JOB: "1", POD: "0"}, False),
        ({NAME: "node", JOB: "0"}, False),
        ({NAME: "launcher", JOB: "0", POD: "0"}, False),
        ({}, False),
    ],
)
def test_which_pod_holds_rank_0(labels: Json, first: bool) -> None:
    assert ADAPTER.holds_rank0({"metadata": {"labels": labels}}, {}) is first
    assert ADAPTER.holds_rank0({"metadata": {}}, {}) is False


def test_pods_wanted_are_those_that_wait_for_no_other() -> None:
    later = {**part("later", parallelism=8), "dependsOn": [{"name": "data", "status": "Complete"}]}
    of = runtime(part("data", parallelism=2), node(), later, policy={"numNodes": 4})
    assert ADAPTER.pods_wanted(composed(of=of)) == 2 + 4
    assert ADAPTER.pods_wanted(composed(trainjob(trainer={"numNodes": 3}), of)) == 2 + 3
    assert ADAPTER.pods_wanted(trainjob(trainer={"numNodes": 3})) == 3
    assert ADAPTER.pods_wanted({}) == 1


def condition(kind: str, status: str = "True") -> Json:
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "Why", "message": "so"}]}}


def failed(reason: str) -> Json:
    return {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]}}


def ready(name: str, number: int) -> Json:
    return {"status": {"jobsStatus": [{"name": name, "ready": number}]}}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "not ready": (ready("node", 0), WorkloadState.PENDING),
    "only its data": (ready("dataset-initializer", 1), WorkloadState.PENDING),
    "running": (ready("node", 1), WorkloadState.RUNNING),
    "suspended": ({"spec": {"suspend": True}}, WorkloadState.SUSPENDED),
    "resumed": ({"spec": {"suspend": False}, **condition("Suspended", "False")}, WorkloadState.PENDING),
    "failed": (condition("Failed"), WorkloadState.FAILED),
    "succeeded": (condition("Complete"), WorkloadState.SUCCEEDED),
    "final wins": ({"spec": {"suspend": True}, **condition("Failed")}, WorkloadState.FAILED),
    "not yet failed": (condition("Failed", "False"), WorkloadState.PENDING),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER.state(workload)[0] is state


def test_rights_reach_down_to_the_pods_and_no_runtime_of_others_is_changed() -> None:
    verbs = {rule["resources"][0]: rule["verbs"] for rule in workload_rules(ADAPTER)}
    assert verbs["jobs"] == ["delete", "list", "watch"]
    assert verbs["jobsets"] == ["delete", "get", "list", "watch"]
    assert verbs["trainingruntimes"] == ["create", "get", "list", "patch", "watch"]
    assert verbs["clustertrainingruntimes"] == ["get"]
    (shared,) = shared_rules(ADAPTER)
    assert (shared["resources"], shared["verbs"]) == (["clustertrainingruntimes"], ["get"])
    other = find_adapter("batch/v1", "Job")
    assert other is not None and shared_rules(other) == []
