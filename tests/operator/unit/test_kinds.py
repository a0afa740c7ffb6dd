"""The table of kinds: what of each can be guarded, where the guard sits, and how it stands with a workload.

What a template may not have is held against `review_manifest`, which `rlguard wrap` and the operator ask.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.reconcile.review import Review, review_manifest

from .given import ADAPTER, CONFIG, manifest

Json = dict[str, Any]
OWN_LABEL = "rlguard.dev/job-uid"
ELSEWHERE = "kueue.x-k8s.io/multikueue"


def pod(*containers: str, **container: Any) -> Json:
    """A pod template in which each container mounts the checkpoints."""
    mounts = [{"name": "ck", "mountPath": "/ck"}]
    made = [{"name": name, "image": "i", "volumeMounts": mounts, **container} for name in containers]
    return {"spec": {"containers": made, "volumes": [{"name": "ck", "emptyDir": {}}]}}


def pytorchjob(**roles: Any) -> Json:
    replicas = roles or {"Master": {"template": pod("pytorch")}, "Worker": {"template": pod("pytorch")}}
    return {"pytorchReplicaSpecs": replicas}


def batch_job(*containers: str, **spec: Any) -> Json:
    return {"template": pod(*(containers or ("main",))), **spec}


def indexed(**spec: Any) -> Json:
    return batch_job(**{"completionMode": "Indexed", "parallelism": 3, "completions": 3, **spec})


def part(name: str, *containers: str, replicas: int = 1, **spec: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": {"spec": batch_job(*containers, **spec)}}


def jobset(*parts: Json, **spec: Any) -> Json:
    return {"replicatedJobs": list(parts or (part("only"),)), **spec}


def coordinated(part_: str, **more: int) -> Json:
    return jobset(part("leader"), part("trainer"), coordinator={"replicatedJob": part_, **more})


def rayjob(head: Json | None = None, cluster: Json | None = None, **spec: Any) -> Json:
    workers = {"groupName": "gpu", "replicas": 2, "template": pod("worker")}
    groups = {
        "headGroupSpec": {"template": pod("head", "logger"), **(head or {})},
        "workerGroupSpecs": [workers],
    }
    return {"entrypoint": "train", "rayClusterSpec": groups | (cluster or {}), **spec}


def reviewed(kind: str, spec: Json, **metadata: Any) -> Review:
    given = manifest(spec, kind, guard={"checkpoints": {"volume": "ck"}})
    given["spec"]["template"]["metadata"] = metadata
    return review_manifest(given, CONFIG)


# -- what can be guarded, and where the guard sits -------------------------------------------------------

MASTER = ("pytorchReplicaSpecs", "Master", "template")
WORKER = ("pytorchReplicaSpecs", "Worker", "template")
JOB = ("template",)
HEAD = ("rayClusterSpec", "headGroupSpec", "template")
INDEX = "metadata.labels['batch.kubernetes.io/job-completion-index']"
JOB_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"
REPLICA_INDEX = "metadata.labels['training.kubeflow.org/replica-index']"


def of_set(number: int) -> tuple[str | int, ...]:
    return ("replicatedJobs", number, "template", "spec", "template")


#: (kind, template, place of the guard, container that trains, field with the pod's index).
GUARDED: dict[str, tuple[str, Json, tuple[str | int, ...], str, str | None]] = {
    "a master": ("PyTorchJob", pytorchjob(), MASTER, "pytorch", None),
    "workers alone": (
        "PyTorchJob", pytorchjob(Worker={"replicas": 3, "template": pod("pytorch")}), WORKER, "pytorch",
        REPLICA_INDEX,
    ),
    "a Job": ("Job", batch_job(), JOB, "main", None),
    "an indexed Job": ("Job", indexed(), JOB, "main", INDEX),
    "the container trainer": ("Job", batch_job("logger", "trainer"), JOB, "trainer", None),
    "the only Job": ("JobSet", jobset(), of_set(0), "main", INDEX),
    "a Job without an index": (
        "JobSet", jobset(part("only", completionMode="NonIndexed")), of_set(0), "main", None,
    ),
    "several Jobs": ("JobSet", jobset(part("only", replicas=4)), of_set(0), "main", JOB_INDEX),
    "the Job trainer": (
        "JobSet", jobset(part("server"), part("trainer", "log", "trainer")), of_set(1), "trainer", INDEX,
    ),
    "the coordinator": ("JobSet", coordinated("leader", jobIndex=0), of_set(0), "main", INDEX),
    "a head": ("RayJob", rayjob(), HEAD, "head", None),
    "submitted by HTTP": (
        "RayJob", rayjob(submissionMode="HTTPMode", entrypointNumCpus=0, entrypointResources=""), HEAD,
        "head", None,
    ),
    "a submitter": ("RayJob", rayjob(submitterPodTemplate=pod("submit")), HEAD, "head", None),
}  # fmt: skip


@pytest.mark.parametrize("case", GUARDED.values(), ids=GUARDED.keys())
def test_the_guard_is_beside_rank_0_and_every_pod_is_known_by_its_labels(case: Any) -> None:
    kind, spec, place, container, index = case
    before = copy.deepcopy(spec)
    said = reviewed(kind, spec)
    assert said.reason is None and spec == before, said.findings
    made = said.workload["spec"]
    for template in ADAPTER[kind].pod_templates(made):
        for path in (template.path, *template.between):
            assert OWN_LABEL in reduce(getitem, path, made)["metadata"]["labels"]
        own = reduce(getitem, template.path, made)["spec"]
        assert own["automountServiceAccountToken"] is False
        told = {one["name"] for one in own["containers"] if "RLGUARD_TOKEN" in str(one.get("env"))}
        if template.path != place:
            assert "initContainers" not in own and not told
            continue
        assert told == {container}
        [guard] = own["initContainers"]
        fields = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in guard["env"] if "valueFrom" in one]
        assert fields == ([index] if index else [])
    for template in ADAPTER[kind].pod_templates(spec):
        broken = copy.deepcopy(spec)
        reduce(getitem, template.path, broken)["spec"]["hostPID"] = True
        [finding] = reviewed(kind, broken).findings
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in template.path)
        assert finding.startswith(f"spec.template.spec{where}.spec.hostPID "), "every pod is checked"


# -- what cannot be guarded ------------------------------------------------------------------------------

FIRST, CLUSTER = "replicatedJobs[0]", "rayClusterSpec"
RAY_HEAD = f"{CLUSTER}.headGroupSpec"
OURS = {"rlguard.dev/job-uid": "x"}
#: (kind, template, field that is named, words).
REFUSED: dict[str, tuple[str, Json, str, str]] = {
    "no replicas": ("PyTorchJob", {}, "pytorchReplicaSpecs", "must have"),
    "another role": ("PyTorchJob", pytorchjob(Chief={}), "pytorchReplicaSpecs.Chief", "Master or Worker"),
    "a PyTorchJob elsewhere": (
        "PyTorchJob", pytorchjob() | {"runPolicy": {"managedBy": ELSEWHERE}}, "runPolicy.managedBy",
        "not stopped",
    ),
    "elastic": (
        "PyTorchJob", pytorchjob() | {"elasticPolicy": {"maxReplicas": 4}}, "elasticPolicy", "placement: Pod",
    ),
    "no container pytorch": (
        "PyTorchJob", pytorchjob(Master={"template": pod("main")}),
        "pytorchReplicaSpecs.Master.template.spec.containers", "named pytorch",
    ),
    "pods without an index": (
        "Job", batch_job(parallelism=2, completions=2), "parallelism", "no pod is rank 0",
    ),
    "one pod after the other": ("Job", batch_job(completions=3), "completions", "one run"),
    "not all ranks at once": ("Job", indexed(parallelism=2), "completions", "one run"),
    "which container": ("Job", batch_job("a", "b"), "template.spec.containers", "name the one"),
    "a Job elsewhere": ("Job", batch_job(managedBy=ELSEWHERE), "managedBy", "not stopped"),
    "no Jobs": ("JobSet", {"replicatedJobs": {"a": 1}}, "replicatedJobs", "must have"),
    "a Job without a template": ("JobSet", {"replicatedJobs": [{"name": "x"}]}, FIRST, "a template"),
    "nobody knows which Job": ("JobSet", jobset(part("a"), part("b")), "coordinator", "must name"),
    "not the first Job": ("JobSet", coordinated("leader", jobIndex=1), "coordinator.jobIndex", "first pod"),
    "several Jobs of several pods": (
        "JobSet", jobset(part("only", replicas=2, parallelism=2)), f"{FIRST}.replicas", "no field tells",
    ),
    "a Job's pods without an index": (
        "JobSet", jobset(part("only", parallelism=2, completionMode="NonIndexed")),
        f"{FIRST}.template.spec.parallelism", "no pod is rank 0",
    ),
    "a JobSet elsewhere": ("JobSet", jobset(managedBy=ELSEWHERE), "managedBy", "not stopped"),
    "its Jobs elsewhere": (
        "JobSet", jobset(part("only", managedBy=ELSEWHERE)), f"{FIRST}.template.spec.managedBy",
        "not stopped",
    ),
    "volumes that come later": (
        "JobSet", jobset(volumeClaimPolicies=[{}]), "volumeClaimPolicies", "after the check",
    ),
    "a cluster that is there": (
        "RayJob", rayjob(clusterSelector={"a": "b"}), "clusterSelector", "not its own",
    ),
    "autoscaled": (
        "RayJob", rayjob(cluster={"enableInTreeAutoscaling": True}), f"{CLUSTER}.enableInTreeAutoscaling",
        "token",
    ),
    "fault tolerance": (
        "RayJob", rayjob(cluster={"gcsFaultToleranceOptions": {"a": 1}}),
        f"{CLUSTER}.gcsFaultToleranceOptions",
        "like the head",
    ),
    "a driver with a GPU": ("RayJob", rayjob(entrypointNumGpus=1), "entrypointNumGpus", "on a worker"),
    "a submitter's command": (
        "RayJob", rayjob(submitterPodTemplate=pod("s", command=["ray"])),
        "submitterPodTemplate.spec.containers[0].command", "on a worker",
    ),
    "a sidecar that submits": (
        "RayJob", rayjob(submissionMode="SidecarMode"), "submissionMode", "nobody has checked",
    ),
    "a RayJob elsewhere": ("RayJob", rayjob(managedBy=ELSEWHERE), "managedBy", "not stopped"),
    "its cluster elsewhere": (
        "RayJob", rayjob(cluster={"managedBy": ELSEWHERE}), f"{CLUSTER}.managedBy", "not stopped",
    ),
    "our labels in the head": ("RayJob", rayjob(head={"labels": OURS}), f"{RAY_HEAD}.labels", "must stop"),
    "our labels in workers": (
        "RayJob", rayjob(cluster={"workerGroupSpecs": [{"template": pod("w"), "labels": OURS}]}),
        f"{CLUSTER}.workerGroupSpecs[0].labels", "must stop",
    ),
    "workers of the wrong shape": (
        "RayJob", rayjob(cluster={"workerGroupSpecs": {"a": 1}}), f"{CLUSTER}.workerGroupSpecs", "list",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "field", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_guarded_names_the_field(kind: str, spec: Json, field: str, why: str) -> None:
    [finding] = reviewed(kind, spec).findings
    assert finding.startswith(f"spec.template.spec.{field} ") and why in finding


def test_fault_tolerance_of_ray_is_refused_by_its_annotation_too() -> None:
    [finding] = reviewed("RayJob", rayjob(), annotations={"ray.io/ft-enabled": "true"}).findings
    assert finding.startswith(
        "spec.template.metadata.annotations['ray.io/ft-enabled'] must not be set: after"
    )
    assert reviewed("RayJob", rayjob(), annotations={"team": "a"}).reason is None


@pytest.mark.parametrize("kind", ["TrainJob", "RayCluster"])
def test_a_kind_that_takes_no_other_container_is_guarded_where_it_exists(kind: str) -> None:
    said = reviewed(kind, {})
    assert said.reason == "UnsupportedKind" and "name it in spec.targetRef" in said.findings[0]


ODD: tuple[Any, ...] = (None, 1, "x", [], [None], {}, {"x": None})
WHOLE: dict[str, Json] = {
    "PyTorchJob": pytorchjob() | {"runPolicy": {"suspend": False}},
    "Job": indexed(),
    "JobSet": coordinated("leader") | {"failurePolicy": {"rules": [{"name": "x"}]}},
    "RayJob": rayjob(submitterPodTemplate=pod("submit"), head={"labels": {"a": "b"}}),
    "TrainJob": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
    "RayCluster": rayjob()["rayClusterSpec"],
}


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths to everything in a value, but to the whole."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, *path, key)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_template_of_any_shape_is_built_or_refused_in_words(kind: str) -> None:
    """The CRD knows nothing of a template. What is asked before the review has an answer, too."""
    adapter = ADAPTER[kind]
    for path in places(WHOLE[kind]):
        for odd in ODD:
            spec = copy.deepcopy(WHOLE[kind])
            reduce(getitem, path[:-1], spec)[path[-1]] = odd  # type: ignore[index]
            said = reviewed(kind, spec)
            assert (said.reason is None) == bool(said.workload) and (
                said.reason is None or all(said.findings)
            )
            adapter.holds_rank0({"metadata": {"labels": {}}}, spec)
            adapter.assigned({"metadata": {"uid": "a"}, "spec": spec})
            adapter.state({"metadata": {}, "spec": spec})


# -- defaults that would hurt ----------------------------------------------------------------------------


def made_of(kind: str, spec: Json, *path: str | int) -> Any:
    """What the workload has at a path in its spec; None: nothing."""
    node = reviewed(kind, spec).workload["spec"]
    for key in path:
        node = node.get(key) if isinstance(node, dict) else node[key] if key < len(node) else None
    return node


SET_JOBS = jobset(part("trainer", parallelism=4), part("others", parallelism=2, completionMode="NonIndexed"))
TRAINER, OTHERS = (("replicatedJobs", number, "template", "spec") for number in (0, 1))
DEFAULTS: dict[str, tuple[str, Json, tuple[str | int, ...], Any]] = {
    "workers go with their master": ("PyTorchJob", pytorchjob(), ("runPolicy", "cleanPodPolicy"), "Running"),
    "one rank 0 at a time": ("Job", batch_job(), ("podReplacementPolicy",), "Failed"),
    "unless its author wants two": (
        "Job", batch_job(podReplacementPolicy="TerminatingOrFailed"), ("podReplacementPolicy",),
        "TerminatingOrFailed",
    ),
    "one rank 0 of a set": ("JobSet", SET_JOBS, (*TRAINER, "podReplacementPolicy"), "Failed"),
    "of others its default": ("JobSet", SET_JOBS, (*OTHERS, "podReplacementPolicy"), None),
    "indexes": ("JobSet", SET_JOBS, (*TRAINER, "completionMode"), "Indexed"),
    "unless its author wants none": ("JobSet", SET_JOBS, (*OTHERS, "completionMode"), "NonIndexed"),
    "names that are not cut": ("JobSet", SET_JOBS, (*TRAINER, "completions"), 4),
    "no restart counts": ("JobSet", SET_JOBS, (*TRAINER, "template", "spec", "restartPolicy"), "Never"),
    "the Ray cluster goes": ("RayJob", rayjob(), ("shutdownAfterJobFinishes",), True),
    "unless a strategy says how": (
        "RayJob", rayjob(deletionStrategy={"deletionRules": []}), ("shutdownAfterJobFinishes",), None,
    ),
    "no submitter by HTTP": ("RayJob", rayjob(submissionMode="HTTPMode"), ("submitterPodTemplate",), None),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "path", "value"), DEFAULTS.values(), ids=DEFAULTS.keys())
def test_a_default_that_would_hurt_is_made_explicit(
    kind: str, spec: Json, path: tuple[str | int, ...], value: Any
) -> None:
    assert made_of(kind, spec, *path) == value


def test_the_driver_stays_in_the_head_and_no_node_waits_long_for_its_program() -> None:
    """`env` wins over `envFrom`. tests/on_ray has a real node end by the second one."""
    driver, drain = "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    theirs = [{"name": "A", "value": "1"}, {"name": driver, "value": "1"}, {"name": drain, "value": "9"}]
    for own in ([], theirs):
        head = {"template": pod("h", env=own, envFrom=[{"configMapRef": {"name": "c"}}])}
        made = made_of("RayJob", rayjob(head=head), CLUSTER)
        groups = (made["headGroupSpec"], *made["workerGroupSpecs"])
        told = [group["template"]["spec"]["containers"][0]["env"] for group in groups]
        values = [{one["name"]: one.get("value") for one in env} for env in told]
        assert [one[driver] for one in values] == ["0", "0"]
        assert [one[drain] for one in values] == ["9" if own else "3", "3"]
        assert len(values[0]) == len(told[0]), "each once"


def test_the_submitter_is_the_one_of_kuberay_as_the_user_of_the_head() -> None:
    head = {"template": pod("h")}
    head["template"]["spec"]["securityContext"] = {"runAsUser": 1000}
    submitter = made_of("RayJob", rayjob(head=head), "submitterPodTemplate")
    assert submitter["spec"]["securityContext"] == {"runAsUser": 1000}
    [container] = submitter["spec"]["containers"]
    assert (container["name"], container["image"]) == ("ray-job-submitter", "i")
    assert "volumeMounts" not in container
    own = made_of("RayJob", rayjob(submitterPodTemplate=pod("mine")), "submitterPodTemplate")
    assert own["spec"]["containers"][0]["name"] == "mine"
    for one in (submitter, own):
        assert one["metadata"]["labels"]["rlguard.dev/submitter"] == "true"


# -- what a workload says --------------------------------------------------------------------------------

POD_INDEX = "batch.kubernetes.io/job-completion-index"
PART, JOB_NUMBER = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"
ROLE, REPLICA = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
RAY = "ray.io/node-type"
NODES = {PART: "node", JOB_NUMBER: "0"}


@pytest.mark.parametrize(
    ("kind", "spec", "first", "others"),
    [
        ("PyTorchJob", pytorchjob(), [{ROLE: "master", REPLICA: "0"}], [{ROLE: "worker", REPLICA: "0"}, {}]),
        (
            "PyTorchJob", pytorchjob(Worker={}),
            [{ROLE: "worker", REPLICA: "0"}], [{ROLE: "worker", REPLICA: "1"}],
        ),
        ("Job", {}, [{}, {POD_INDEX: "0"}], [{POD_INDEX: "1"}]),
        (
            "JobSet", jobset(part("trainer"), part("others")),
            [{PART: "trainer", JOB_NUMBER: "0", POD_INDEX: "0"}, {PART: "trainer", JOB_NUMBER: "0"}],
            [{PART: "trainer", JOB_NUMBER: "1"}, {PART: "others", JOB_NUMBER: "0", POD_INDEX: "0"}, {}],
        ),
        ("RayJob", {}, [{RAY: "head"}], [{RAY: "worker"}, {}]),
        ("RayCluster", {}, [{RAY: "head"}], [{RAY: "worker"}, {}]),
        (
            "TrainJob", {}, [NODES | {POD_INDEX: "0"}], [NODES | {POD_INDEX: "1"}, {PART: "other",
            JOB_NUMBER: "0"}, {}],
        ),
    ],
)  # fmt: skip
def test_which_pod_holds_rank_0(kind: str, spec: Json, first: list[Json], others: list[Json]) -> None:
    def holds(labels: Json) -> bool:
        return ADAPTER[kind].holds_rank0({"metadata": {"labels": labels}}, spec)

    assert all(map(holds, first)) and not any(map(holds, others))


LATER = part("later", replicas=8) | {"dependsOn": [{"name": "trainer", "status": "Ready"}]}


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("PyTorchJob", pytorchjob(Master={}, Worker={"replicas": 3}), 4),
        ("Job", indexed(), 3),
        ("JobSet", jobset(part("trainer"), part("others", replicas=3, parallelism=2), LATER), 1 + 3 * 2),
        ("RayJob", rayjob(submitterPodTemplate=pod("submit")), 3),
    ],
)
def test_how_many_pods_a_run_has_at_once(kind: str, spec: Json, pods: int) -> None:
    assert sum(one.pods for one in ADAPTER[kind].pod_templates(spec)) == pods


PENDING, RUNNING, SUSPENDED = WorkloadState.PENDING, WorkloadState.RUNNING, WorkloadState.SUSPENDED
SUCCEEDED, FAILED = WorkloadState.SUCCEEDED, WorkloadState.FAILED
WAITS: Json = {"spec": {"suspend": True}}


def true(*kinds: str, **status: Any) -> Json:
    conditions = [{"type": kind, "status": "True", "reason": "Why", "message": "so"} for kind in kinds]
    return {"status": {"conditions": conditions, **status}}


def ray(deployment: str, **more: Any) -> Json:
    return {"status": {"jobDeploymentStatus": deployment, **more}}


@pytest.mark.parametrize(
    ("kind", "workload", "state"),
    [
        *((kind, {}, PENDING) for kind in ADAPTER),
        *((kind, WAITS, SUSPENDED) for kind in ADAPTER if kind != "PyTorchJob"),
        *((kind, WAITS | true("Failed"), FAILED) for kind in ("Job", "JobSet", "TrainJob")),
        ("PyTorchJob", {"spec": {"runPolicy": {"suspend": True}}}, SUSPENDED),
        ("PyTorchJob", true("Created", "Running"), RUNNING),
        ("PyTorchJob", true("Running", "Failed"), FAILED),
        ("PyTorchJob", true("Succeeded"), SUCCEEDED),
        ("Job", true(active=1, ready=0), PENDING),
        ("Job", true(active=1, ready=1), RUNNING),
        ("Job", true("FailureTarget", ready=1), RUNNING),
        ("Job", true("SuccessCriteriaMet", "Complete"), SUCCEEDED),
        ("JobSet", true(replicatedJobsStatus=[{"ready": 0}]), PENDING),
        ("JobSet", true(replicatedJobsStatus=[{"ready": 0}, {"ready": 1}]), RUNNING),
        ("JobSet", true("Completed"), SUCCEEDED),
        ("TrainJob", true(jobsStatus=[{"name": "dataset-initializer", "ready": 1}]), PENDING),
        ("TrainJob", true(jobsStatus=[{"name": "node", "ready": 1}]), RUNNING),
        ("TrainJob", true("Complete"), SUCCEEDED),
        ("RayJob", ray("Running", jobStatus="RUNNING"), RUNNING),
        ("RayJob", ray("Retrying"), PENDING),
        ("RayJob", WAITS | ray("Suspended"), SUSPENDED),
        ("RayJob", WAITS | ray("Running"), RUNNING),
        ("RayJob", ray("Failed", reason="AppFailed"), FAILED),
        ("RayJob", ray("Complete", jobStatus="SUCCEEDED"), SUCCEEDED),
        ("RayJob", ray("Complete", jobStatus="STOPPED"), FAILED),
        ("RayJob", ray("ValidationFailed"), FAILED),
        ("RayJob", ray("ValidationFailed", rayClusterName="c"), RUNNING),
        ("RayCluster", {"status": {"state": "ready"}}, RUNNING),
        ("RayCluster", WAITS | {"status": {"state": "ready"}}, SUSPENDED),
    ],
    ids=str,
)
def test_state(kind: str, workload: Json, state: WorkloadState) -> None:
    assert ADAPTER[kind].state(workload)[0] is state


def test_a_condition_counts_while_it_is_true_and_is_told_with_its_reason() -> None:
    assert ADAPTER["Job"].state(true("Failed")) == (FAILED, "Why: so")
    not_so = {"status": {"conditions": [{"type": "Failed", "status": "False"}]}}
    assert ADAPTER["Job"].state(not_so) == (PENDING, "")


# -- what a cluster wrote --------------------------------------------------------------------------------

DEFAULT = {"podReplacementPolicy": "TerminatingOrFailed", "manualSelector": True}


def test_what_a_cluster_wrote_into_a_template_is_not_kept() -> None:
    """Also where it hurts: a restart of the guard would count against the backoffLimit of a Job."""

    def assigned(kind: str, spec: Json, **metadata: str) -> set[str]:
        return {".".join(path) for path in ADAPTER[kind].assigned({"metadata": metadata, "spec": spec})}

    labels = "spec.template.metadata.labels"
    assert {"spec.selector", f"{labels}.controller-uid"} < assigned("Job", {}, uid="a")
    assert assigned("Job", DEFAULT, uid="a") == {"spec.podReplacementPolicy"}
    assert assigned("Job", DEFAULT) == set(), "an author's own choice"
    spec = jobset(part("server"), part("trainer"))
    for one in spec["replicatedJobs"]:
        one["template"]["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    restart = "spec.replicatedJobs.1.template.spec.template.spec.restartPolicy"
    assert assigned("JobSet", spec, uid="a") == {restart}, "of rank 0 alone"
    assert assigned("JobSet", spec) == set(), "an author's own choice"
