"""The adapter of RayJob: what can be guarded, where the guard sits, states, stops, and injection."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from guard_operator.adapters import TemplateError, WorkloadState, find_adapter
from guard_operator.api.reasons import Reason
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.refusals import find_violations
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import Job

ADAPTER = find_adapter("ray.io/v1", "RayJob")
assert ADAPTER is not None
CONFIG = OperatorConfig("guard:1")
Json = dict[str, Any]


def pod(name: str, **container: Any) -> Json:
    mounts = [{"name": "ckpt", "mountPath": "/ckpt"}]
    return {
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
            "containers": [{"name": name, "image": "ray:1", "volumeMounts": mounts, **container}],
            "volumes": [{"name": "ckpt", "emptyDir": {}}],
        }
    }


def rayjob(head: Json | None = None, cluster: Json | None = None, **spec: Any) -> Json:
    workers = {"groupName": "gpu", "replicas": 2, "template": pod("ray-worker")}
    return {
        "entrypoint": "python train.py",
        "rayClusterSpec": {
            "headGroupSpec": {"template": pod("ray-head"), **(head or {})},
            "workerGroupSpecs": [workers],
            **(cluster or {}),
        },
        **spec,
    }


def job(spec: Json, annotations: Json | None = None) -> Job:
    metadata = {"annotations": annotations or {}}
    body = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    parsed = Spec.model_validate({"template": body, "guard": guard})
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


def test_the_head_is_guarded_and_its_first_container_trains() -> None:
    spec = rayjob()
    spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"].append({"name": "logger"})
    head, workers = ADAPTER.pod_templates(spec)
    assert head.path == ("rayClusterSpec", "headGroupSpec", "template")
    assert (head.container, head.guarded, head.index_field) == ("ray-head", True, None)
    assert workers.path == ("rayClusterSpec", "workerGroupSpecs", 0, "template") and not workers.guarded


@pytest.mark.parametrize(
    "spec",
    [
        rayjob(),
        rayjob(cluster={"workerGroupSpecs": None}),
        rayjob(submissionMode="HTTPMode", backoffLimit=2, entrypointNumCpus=0, entrypointResources=""),
        rayjob(deletionStrategy={"deletionRules": []}, managedBy="ray.io/kuberay-operator"),
        rayjob(submitterPodTemplate=pod("submit")),
    ],
    ids=["defaults", "no workers", "http", "deletion strategy", "own submitter"],
)
def test_what_can_be_guarded(spec: Json) -> None:
    assert find_violations(ADAPTER, spec, job(spec).spec.guard) == ()
    build_workload(job(spec), ADAPTER, CONFIG)


HEAD, WORKERS = "rayClusterSpec.headGroupSpec", "rayClusterSpec.workerGroupSpecs"
ANYWHERE = {"name": "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES", "value": "1"}
BAD_SPECS: dict[str, tuple[Json, str, str]] = {
    "a cluster that is there": (
        rayjob(clusterSelector={"ray.io/cluster": "c"}),
        "clusterSelector",
        "not its own",
    ),
    "autoscaled": (
        rayjob(cluster={"enableInTreeAutoscaling": True}),
        "rayClusterSpec.enableInTreeAutoscaling",
        "token",
    ),
    "driver with a CPU": (rayjob(entrypointNumCpus=0.5), "entrypointNumCpus", "on a worker"),
    "driver with a GPU": (rayjob(entrypointNumGpus=1), "entrypointNumGpus", "on a worker"),
    "driver with a resource": (rayjob(entrypointResources='{"a": 1}'), "entrypointResources", "on a worker"),
    "driver anywhere": (
        rayjob(head={"template": pod("h", env=[ANYWHERE])}),
        f"{HEAD}.template.spec.containers[0].env",
        "on a worker",
    ),
    "driver where a Secret says": (
        rayjob(head={"template": pod("h", env=[{"name": ANYWHERE["name"], "valueFrom": {}}])}),
        f"{HEAD}.template.spec.containers[0].env",
        "on a worker",
    ),
    "a submitter's own command": (
        rayjob(submitterPodTemplate=pod("s", command=["ray", "job", "submit"])),
        "submitterPodTemplate.spec.containers[0].command",
        "resources of its own",
    ),
    "a submitter's own arguments": (
        rayjob(submitterPodTemplate=pod("s", args=["--entrypoint-num-gpus=1"])),
        "submitterPodTemplate.spec.containers[0].args",
        "resources of its own",
    ),
    "credentials of Redis": (
        rayjob(cluster={"gcsFaultToleranceOptions": {"redisPassword": {"valueFrom": {}}}}),
        "rayClusterSpec.gcsFaultToleranceOptions",
        "any Secret",
    ),
    "a cluster elsewhere": (
        rayjob(cluster={"managedBy": "kueue.x-k8s.io/multikueue"}),
        "rayClusterSpec.managedBy",
        "not stopped",
    ),
    "sidecar": (rayjob(submissionMode="SidecarMode"), "submissionMode", "nobody has checked"),
    "interactive": (rayjob(submissionMode="InteractiveMode"), "submissionMode", "somebody else"),
    "in another cluster": (rayjob(managedBy="kueue.x-k8s.io/multikueue"), "managedBy", "not stopped"),
    "the operator's labels, taken from the head": (
        rayjob(head={"labels": {"rlguard.dev/job-uid": "x"}}),
        f"{HEAD}.labels",
        "must stop",
    ),
    "the operator's labels, taken from workers": (
        rayjob(cluster={"workerGroupSpecs": [{"template": pod("w"), "labels": {"rlguard.dev/job": "x"}}]}),
        f"{WORKERS}[0].labels",
        "must stop",
    ),
    "no cluster": ({"entrypoint": "x"}, f"{HEAD}.template.spec.containers", "first one"),
    "no container": (
        rayjob(head={"template": {"spec": {}}}),
        f"{HEAD}.template.spec.containers",
        "first one",
    ),
    "containers of the wrong shape": (
        rayjob(head={"template": {"spec": {"containers": "x"}}}),
        f"{HEAD}.template.spec.containers",
        "first one",
    ),
    "workers of the wrong shape": (rayjob(cluster={"workerGroupSpecs": {"a": 1}}), WORKERS, "list"),
    "a worker of the wrong shape": (
        rayjob(cluster={"workerGroupSpecs": ["x"]}),
        f"{WORKERS}[0].template.spec.containers",
        "first one",
    ),
}


@pytest.mark.parametrize(("spec", "field", "why"), BAD_SPECS.values(), ids=BAD_SPECS.keys())
def test_what_cannot_be_guarded_names_the_field(spec: Json, field: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why) as error:
        ADAPTER.pod_templates(spec)
    assert error.value.field == field
    (finding,) = review(ADAPTER, job(spec), CONFIG).findings
    assert finding.startswith(f"spec.template.spec.{field} ")


@pytest.mark.parametrize("value", ["true", "False", ""])
def test_fault_tolerance_is_refused_by_its_annotation_too(value: str) -> None:
    refused = review(ADAPTER, job(rayjob(), {"ray.io/ft-enabled": value, "team": "a"}), CONFIG)
    assert refused.reason is Reason.TEMPLATE_REFUSED and not refused.workload
    [finding] = refused.findings
    assert finding.startswith(
        "spec.template.metadata.annotations['ray.io/ft-enabled'] must not be set: after"
    )
    assert review(ADAPTER, job(rayjob(), {"team": "a"}), CONFIG).reason is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            lambda s: s["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
            f"{WORKERS}[0].template.spec.hostPID",
        ),
        (lambda s: s["rayClusterSpec"]["headGroupSpec"]["template"], f"{HEAD}.template.spec.hostPID"),
        (lambda s: s["submitterPodTemplate"], "submitterPodTemplate.spec.hostPID"),
    ],
    ids=["worker", "head", "submitter"],
)
def test_every_pod_of_the_run_is_checked(change: Any, field: str) -> None:
    spec = rayjob(submitterPodTemplate=pod("submit"))
    change(spec)["spec"]["hostPID"] = True
    (finding,) = review(ADAPTER, job(spec), CONFIG).findings
    assert finding.startswith(f"spec.template.spec.{field} ")


def test_the_guard_is_injected_and_every_pod_is_labelled() -> None:
    spec = rayjob()
    before = copy.deepcopy(spec)
    made = build_workload(job(spec), ADAPTER, CONFIG)["spec"]
    assert spec == before
    head = made["rayClusterSpec"]["headGroupSpec"]["template"]
    worker = made["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    submitter = made["submitterPodTemplate"]
    for one in (head, worker, submitter):
        assert one["metadata"]["labels"]["rlguard.dev/job-uid"] == "0123456789ab"
        assert one["spec"]["automountServiceAccountToken"] is False
    assert [c["name"] for c in head["spec"]["initContainers"]] == ["rlguard-guard"]
    assert {"RLGUARD_URL", "RLGUARD_TOKEN"} <= {v["name"] for v in head["spec"]["containers"][0]["env"]}
    for other in (worker, submitter):
        assert "initContainers" not in other["spec"] and "RLGUARD" not in str(other["spec"])


def test_the_submitter_is_the_one_of_kuberay_as_the_user_of_the_head() -> None:
    submitter = ADAPTER.prepared(rayjob())["submitterPodTemplate"]
    assert submitter["spec"]["restartPolicy"] == "Never"
    assert submitter["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000}
    (container,) = submitter["spec"]["containers"]
    assert (container["name"], container["image"]) == ("ray-job-submitter", "ray:1")
    assert "volumeMounts" not in container
    own = ADAPTER.prepared(rayjob(submitterPodTemplate=pod("mine")))["submitterPodTemplate"]
    assert own["spec"] == pod("mine")["spec"]
    for one in (submitter, own):
        assert one["metadata"]["labels"] == {"rlguard.dev/submitter": "true"}
    assert "submitterPodTemplate" not in ADAPTER.prepared(rayjob(submissionMode="HTTPMode"))


def test_the_driver_stays_in_the_head_whatever_a_config_map_says() -> None:
    """`env` wins over `envFrom`."""
    stays = {"name": "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES", "value": "0"}
    own = {"name": "A", "value": "1"}
    for env in (None, [own], [stays, own]):
        spec = rayjob(head={"template": pod("h", env=env, envFrom=[{"configMapRef": {"name": "c"}}])})
        made = ADAPTER.prepared(spec)["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        assert made["env"] == [*([own] if env else []), stays, SOON]
        build_workload(job(spec), ADAPTER, CONFIG)


SOON = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "3"}


def containers_of(spec: Json) -> list[Json]:
    """Those that run Ray, head first."""
    cluster = ADAPTER.prepared(spec)["rayClusterSpec"]
    groups = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    return [group["template"]["spec"]["containers"][0] for group in groups]


def test_no_node_waits_longer_for_its_program_than_for_one_that_ray_stops() -> None:
    """tests/on_ray has a real node end by it."""
    for env in (None, [], [{"name": "A", "value": "1"}]):
        workers = [{"groupName": name, "template": pod("ray-worker", env=env)} for name in ("a", "b")]
        nodes = containers_of(rayjob(cluster={"workerGroupSpecs": workers}))
        assert len(nodes) == 3 and all(node["env"].count(SOON) == 1 for node in nodes)
        assert nodes[1]["env"] == [*(env or []), SOON]


def test_which_pod_holds_rank_0() -> None:
    def labelled(**labels: str) -> Json:
        return {"metadata": {"labels": {"rlguard.dev/job": "run", **labels}}}

    assert ADAPTER.holds_rank0(labelled(**{"ray.io/node-type": "head"}), {})
    assert not ADAPTER.holds_rank0(labelled(**{"ray.io/node-type": "worker"}), {})
    assert not ADAPTER.holds_rank0(labelled(), {}) and not ADAPTER.holds_rank0({}, {})


@pytest.mark.parametrize(
    ("groups", "pods"),
    [
        (None, 1),
        ([{"replicas": 2}], 3),
        ([{"replicas": 2, "numOfHosts": 2}, {"replicas": 1}], 6),
        ([{"replicas": 1, "minReplicas": 3}], 4),
        ([{"replicas": 9, "maxReplicas": 4}], 5),
        ([{"replicas": 9, "suspend": True}], 1),
        ([{}, "x"], 1),
        (5, 1),
    ],
)
def test_pods_wanted(groups: Any, pods: int) -> None:
    assert ADAPTER.pods_wanted(rayjob(cluster={"workerGroupSpecs": groups})) == pods


def status(deployment: str, **more: Any) -> Json:
    return {"status": {"jobDeploymentStatus": deployment, **more}}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "initializing": (status("Initializing"), WorkloadState.PENDING),
    "running": (status("Running", jobStatus="RUNNING"), WorkloadState.RUNNING),
    "retrying": (status("Retrying"), WorkloadState.PENDING),
    "made suspended": ({"spec": {"suspend": True}}, WorkloadState.SUSPENDED),
    "suspended": ({"spec": {"suspend": True}, **status("Suspended")}, WorkloadState.SUSPENDED),
    "resumed": ({"spec": {"suspend": False}, **status("Suspended")}, WorkloadState.PENDING),
    "to be suspended": ({"spec": {"suspend": True}, **status("Running")}, WorkloadState.RUNNING),
    "being suspended": ({"spec": {"suspend": True}, **status("Suspending")}, WorkloadState.RUNNING),
    "failed": (status("Failed", reason="AppFailed"), WorkloadState.FAILED),
    "succeeded": (status("Complete", jobStatus="SUCCEEDED"), WorkloadState.SUCCEEDED),
    "stopped in Ray": (status("Complete", jobStatus="STOPPED"), WorkloadState.FAILED),
    "invalid from the start": (status("ValidationFailed"), WorkloadState.FAILED),
    "made invalid while it runs": (status("ValidationFailed", rayClusterName="c"), WorkloadState.RUNNING),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER.state(workload)[0] is state
