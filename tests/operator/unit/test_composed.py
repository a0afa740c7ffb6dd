"""A kind whose pods are made of another object: what is read of it and when, what is tried and created first.

The cluster of these tests is a dictionary; its faults are what is missing, foreign or forbidden.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from guard_operator.adapters import at
from guard_operator.adapters.jobset import JOB_SETS
from guard_operator.adapters.trainjob import CLUSTER_RUNTIMES, RUNTIMES, TrainJobAdapter
from guard_operator.api.names import DIGEST_ANNOTATION
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.collector import EvidenceCollector
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.heartbeats import HeartbeatClock
from guard_operator.reconcile.parse import JOBS, parse_job
from guard_operator.reconcile.slim import slim_copy
from guard_operator.reconcile.snapshot import Job, Pod, Preparation, Snapshot
from guard_operator.runtime.client import BATCH_JOBS, CLAIMS, PODS, Client, Resource
from guard_operator.runtime.errors import ApiError, TransportError

Json = dict[str, Any]
ADAPTER = TrainJobAdapter()
TRAIN_JOBS = ADAPTER.resource
COPY = "run-01234567"
LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
MOUNT = {"name": "ckpt", "mountPath": "/ckpt"}
NODE = {
    "securityContext": {"runAsNonRoot": True},
    "containers": [{"name": "node", "image": "i", "volumeMounts": [MOUNT]}],
    "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}}],
}


def runtime(**pod: Any) -> Json:
    job = {"metadata": {"labels": LABELS}, "spec": {"template": {"spec": {**NODE, **pod}}}}
    return {
        "mlPolicy": {"numNodes": 3},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
    }


def raw_job(status: Json | None = None, ref: Json | None = None, **guard: Any) -> Json:
    template = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"runtimeRef": ref or {"name": "torch"}},
    }
    heldout = {"volume": {"secretName": "h"}, "evaluator": {"checkpoint": {}}}
    spec = {"template": template, "guard": {"heldout": heldout, "checkpoints": {"volume": "ckpt"}, **guard}}
    metadata = {"name": "run", "namespace": "ns", "uid": "0123456789", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


REF = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "run", "uid": "w"}
CREATED = {"workloadRef": REF, "guard": {"heartbeat": "2026-01-01T00:00:00Z"}}


def thing(name: str, uid: str, controller: str, **content: Any) -> Json:
    owners = [{"uid": controller, "controller": True}]
    labels = {"rlguard.dev/job-uid": "0123456789", "rlguard.dev/job": "run"}
    return {"metadata": {"name": name, "uid": uid, "labels": labels, "ownerReferences": owners}, **content}


def own_copy(controller: str = "0123456789") -> Json:
    return thing(COPY, "c", controller, spec=runtime(nodeName="copied"))


class Cluster:
    """What is there, what caches hold of it, and what was asked; `tried` and `applied` in their order."""

    def __init__(self, there: dict[tuple[Resource, str | None, str], Json] | None = None) -> None:
        self.there = there or {}
        self.cached: dict[Resource, list[Json]] = {}
        self.refuses: ApiError | None = None
        self.asked: list[str] = []
        self.tried: list[Json] = []
        self.defaulted: Json = {}
        self.applied: list[tuple[str, Json]] = []
        self.gatherer = Gatherer(
            cast(Client, self), OperatorConfig("guard:1"), cast(Caches, self), HeartbeatClock()
        )

    def look(self, raw: Json | None = None) -> Snapshot:
        snapshot = self.gatherer.gather(parse_job(raw or raw_job()))
        assert snapshot is not None
        return snapshot

    def prepare(self, raw: Json | None = None) -> Preparation:
        preparation = self.look(raw).preparation
        assert preparation is not None
        return preparation

    # Caches
    def quiet_for(self, _namespace: str) -> float:
        return 0.0

    def workload(self, resource: Resource, _namespace: str, _name: str) -> Json | None:
        return next(iter(self.cached.get(resource, [])), None)

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return self.cached.get(PODS, [])

    def between(self, resource: Resource, _namespace: str, _uid: str) -> list[Json]:
        return self.cached.get(resource, [])

    # Client
    def get(self, resource: Resource, namespace: str | None, name: str, **_how: object) -> Json | None:
        self.asked.append(f"get {resource.kind} {namespace} {name}")
        if self.refuses is not None and resource in (RUNTIMES, CLUSTER_RUNTIMES):
            raise self.refuses
        return {} if resource is CLAIMS else self.there.get((resource, namespace, name))

    def list(self, resource: Resource, _namespace: str, _query: Json) -> Json:
        self.asked.append(f"list {resource.kind}")
        return {"items": self.cached.get(resource, [])}

    def create(
        self, resource: Resource, namespace: str, body: Json, _manager: str, dry_run: bool = False
    ) -> Json:
        if (resource, namespace, body["metadata"]["name"]) in self.there:
            raise ApiError(409, "AlreadyExists", "it is there")
        if dry_run:
            self.tried.append(body)
        return {**body, "spec": {**body.get("spec", {}), **self.defaulted}}

    def apply(self, resource: Resource, body: Json, _manager: str, dry_run: bool = False) -> None:
        if not dry_run:
            self.applied.append((resource.kind, body))


def with_runtime(**pod: Any) -> Cluster:
    return Cluster({(CLUSTER_RUNTIMES, None, "torch"): {"spec": runtime(**pod)}})


# -- before there is a workload --------------------------------------------------------------------------


def test_the_runtime_is_read_and_both_are_tried_as_they_are_asked_for() -> None:
    cluster = with_runtime()
    snapshot = cluster.look()
    assert snapshot.preparation == Preparation()
    assert "get ClusterTrainingRuntime None torch" in cluster.asked
    copied, workload = (one for one in cluster.tried if "Train" in one["kind"])
    assert [one["kind"] for one in cluster.tried[2:]] == ["ServiceAccount", "Role", "Secret", "ConfigMap"]
    assert (copied["kind"], copied["metadata"]["name"]) == ("TrainingRuntime", COPY)
    assert "rlguard-guard" in str(copied["spec"])
    assert workload["spec"] == {"runtimeRef": {"name": "torch"}}, "the copy is not there yet"
    assert "runtime" in snapshot.job.spec.template.spec, "what is created is what was checked"
    (node,) = (one for one in copied["spec"]["template"]["spec"]["replicatedJobs"] if one["name"] == "node")
    pod = node["template"]["spec"]["template"]
    assert snapshot.guard_digest == pod["metadata"]["annotations"][DIGEST_ANNOTATION]


@pytest.mark.parametrize("managed", [{"managedBy": "x"}, {"runPolicy": {"managedBy": "x"}}])
def test_one_that_a_webhook_gives_to_another_cluster_is_refused(managed: Json) -> None:
    """Its template says nothing of that: Kueue's webhook writes it as the workload is created."""
    elsewhere = "kueue.x-k8s.io/multikueue"
    for path in managed:
        cluster = with_runtime()
        cluster.defaulted = {path: elsewhere if path == "managedBy" else {"managedBy": elsewhere}}
        found = cluster.look().preparation
        assert found is not None and found.reason == "WorkloadRefused" and elsewhere in found.message
        cluster.defaulted = managed
        assert cluster.look().preparation == Preparation()


def test_a_copy_that_was_made_before_its_workload_was_refused_holds_up_nothing() -> None:
    """Trainer's webhook may not know it at once: then the TrainJob is refused, and tried again."""
    cluster = with_runtime()
    cluster.there[RUNTIMES, "ns", COPY] = thing(COPY, "c", "0123456789")
    assert cluster.look().preparation == Preparation()
    assert [one["kind"] for one in cluster.tried][:1] == ["TrainJob"]


def test_one_of_the_namespace_is_read_there() -> None:
    cluster = Cluster({(RUNTIMES, "ns", "own"): {"spec": runtime()}})
    assert cluster.prepare(raw_job(ref={"name": "own", "kind": "TrainingRuntime"})).reason is None


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ({"name": "torch"}, "ClusterTrainingRuntime torch does not exist: create it"),
        ({"name": "own", "kind": "TrainingRuntime"}, "TrainingRuntime own does not exist in ns: create it"),
    ],
)
def test_one_that_is_not_there_is_waited_for(ref: Json, said: str) -> None:
    cluster = Cluster()
    found = cluster.prepare(raw_job(ref=ref))
    assert (found.reason, found.message) == ("SourceMissing", f"spec.template.spec.runtimeRef: {said}")
    assert found.ask_again and not cluster.tried


def test_one_that_breaks_the_isolation_is_refused() -> None:
    cluster = with_runtime(hostPID=True)
    found = cluster.prepare()
    assert found.reason == "TemplateRefused" and "hostPID must not be set" in found.message
    assert found.ask_again, "it may be mended without a change of the job"
    assert not cluster.tried


def test_one_that_mounts_a_copy_of_the_held_out_claim_is_looked_at_too() -> None:
    volumes = [*NODE["volumes"], {"name": "x", "persistentVolumeClaim": {"claimName": "copied"}}]
    cluster = with_runtime(volumes=volumes)
    cluster.prepare()
    assert "get PersistentVolumeClaim ns copied" in cluster.asked


def test_one_that_may_not_be_read_is_said() -> None:
    cluster = Cluster()
    cluster.refuses = ApiError(403, "Forbidden", "may not get clustertrainingruntimes")
    found = cluster.prepare()
    assert found.reason == "WorkloadRefused" and found.message.endswith("may not get clustertrainingruntimes")
    assert found.ask_again


def test_a_copy_that_cannot_be_read_holds_up_no_stop() -> None:
    cluster = Cluster()
    cluster.refuses = ApiError(503, "Unavailable", "later")
    cluster.cached[TRAIN_JOBS] = [thing("run", "w", "0123456789")]
    cluster.cached[PODS] = [{"metadata": {"name": "p", "uid": "p"}}]
    seen = cluster.look(raw_job(CREATED | {"guard": {"fire": FIRE}}))
    assert seen.workload is not None and seen.workload.ours


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    cluster = Cluster()
    cluster.refuses = ApiError(503, "Unavailable", "later")
    with pytest.raises(ApiError):
        cluster.prepare()


@pytest.mark.parametrize(
    "change",
    [{"runtimeRef": {"name": "torch", "kind": "Pod"}}, {"runtimePatches": [1]}],
    ids=["kind", "patch"],
)
def test_what_cannot_be_composed_is_refused(change: Json) -> None:
    raw = raw_job()
    raw["spec"]["template"]["spec"] |= change
    found = with_runtime().prepare(raw)
    assert found.reason == "TemplateRefused" and found.message.startswith("spec.template.spec.runtime")


# -- what is created -------------------------------------------------------------------------------------


def actuator(cluster: Cluster) -> Actuator:
    none = cast(Any, None)
    return Actuator(cast(Client, cluster), OperatorConfig("guard:1"), none, none, none)


def test_the_copy_comes_first_and_the_workload_names_it() -> None:
    cluster = with_runtime()
    job = cluster.look().job
    cluster.there[JOBS, "ns", "run"] = {"metadata": {"uid": job.uid}}
    actuator(cluster)._create(job)
    (first, copied), (second, workload) = cluster.applied
    assert (first, second) == ("TrainingRuntime", "TrainJob")
    assert workload["spec"]["runtimeRef"]["name"] == copied["metadata"]["name"] == COPY
    assert "rlguard-guard" in str(copied) and "rlguard-guard" not in str(workload["spec"])


# -- while it runs ---------------------------------------------------------------------------------------


def running(*copies: Json) -> Cluster:
    cluster = Cluster()
    cluster.cached = {TRAIN_JOBS: [thing("run", "w", "0123456789")], RUNTIMES: [*copies]}
    return cluster


def copied_from(job: Job) -> Any:
    path = ("runtime", "template", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec")
    return at(job.spec.template.spec, *path, "nodeName")


def test_a_run_is_known_by_its_copy_and_costs_no_request() -> None:
    cluster = running(slim_copy(own_copy()))
    snapshot = cluster.look(raw_job(CREATED))
    assert copied_from(snapshot.job) == "copied" and cluster.asked == []


def test_a_copy_that_no_cache_has_yet_is_asked_for() -> None:
    cluster = running()
    cluster.there = {(RUNTIMES, "ns", COPY): own_copy()}
    assert copied_from(cluster.look(raw_job(CREATED)).job) == "copied"
    assert cluster.asked == [f"get TrainingRuntime ns {COPY}"]


def test_a_copy_of_somebody_else_is_none() -> None:
    cluster = running(slim_copy(own_copy("somebody")))
    assert "runtime" not in cluster.look(raw_job(CREATED)).job.spec.template.spec


FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 1, "at": "2026-01-01T00:00:00Z"}


def test_a_run_whose_copy_is_gone_is_stopped_all_the_same() -> None:
    cluster = running()
    cluster.there = {(TRAIN_JOBS, "ns", "run"): thing("run", "w", "0123456789")}
    assert cluster.look(raw_job(CREATED | {"guard": {"fire": FIRE}})).workload is not None
    # Its guard cannot be started and its log not be found; neither holds anything up.
    apart = raw_job(CREATED, placement="Pod", state={"claimName": "s"})
    actuator(cluster)._start_guard(cluster.look(apart).job)
    assert not cluster.applied
    pods = (Pod("run-0", "p", guarded=True, phase="Running", rank0=True),)
    collector = EvidenceCollector(cast(Client, cluster))
    logs = collector._logs(Snapshot(parse_job(raw_job(CREATED)), pods=pods), 1.0)
    assert isinstance(logs["trainer.log"], TransportError), "which container trains is not known"


RANK0 = {
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "jobset.sigs.k8s.io/job-index": "0",
    "batch.kubernetes.io/job-completion-index": "0",
}


@pytest.mark.parametrize(
    ("jobset_of", "job_of", "pod_of", "heard"),
    [
        ("w", "js", "j", True),
        ("somebody", "js", "j", False),
        ("w", "somebody", "j", False),
        ("w", "js", "somebody", False),
    ],
    ids=["the whole chain", "a foreign JobSet", "a foreign Job", "a foreign pod"],
)
@pytest.mark.parametrize("live", [False, True])
def test_only_the_whole_chain_of_controllers_makes_a_pod_one_of_the_run(
    jobset_of: str, job_of: str, pod_of: str, heard: bool, live: bool
) -> None:
    pod = thing("run-node-0-0-x", "p", pod_of, spec={"initContainers": [{"name": "rlguard-guard"}]})
    pod["metadata"]["labels"] |= RANK0
    cluster = running(own_copy())
    cluster.cached |= {
        JOB_SETS: [thing("run", "js", jobset_of)],
        BATCH_JOBS: [thing("run-node-0", "j", job_of)],
        PODS: [pod | {"status": {"phase": "Running"}}],
    }
    cluster.there = {(TRAIN_JOBS, "ns", "run"): thing("run", "w", "0123456789")}
    cluster.there[RUNTIMES, "ns", COPY] = own_copy()
    stop = {"stop": {"requestedAt": "2026-01-01T00:00:00Z", "method": "Stop"}}
    (seen,) = cluster.look(raw_job(CREATED | (stop if live else {}))).pods
    assert seen.rank0 is heard and seen.guarded is heard


def test_what_is_slim_of_a_copy_composes_as_the_whole() -> None:
    whole = own_copy()
    given = {"runtimeRef": {"name": "torch"}}
    assert ADAPTER.recomposed(given, slim_copy(copy.deepcopy(whole))) == ADAPTER.recomposed(given, whole)


def test_a_transport_that_fails_is_no_missing_runtime() -> None:
    cluster = with_runtime()
    cluster.get = lambda *_args, **_how: (_ for _ in ()).throw(TransportError("cut"))  # type: ignore[method-assign]
    with pytest.raises(TransportError):
        cluster.look()


def test_while_a_run_is_stopped_its_copy_is_read_live() -> None:
    cluster = running(slim_copy(own_copy()))
    cluster.there = {(TRAIN_JOBS, "ns", "run"): thing("run", "w", "0123456789")}
    stop = {"stop": {"requestedAt": "2026-01-01T00:00:00Z", "method": "Stop"}}
    assert "runtime" not in cluster.look(raw_job(CREATED | stop)).job.spec.template.spec
    assert f"get TrainingRuntime ns {COPY}" in cluster.asked
