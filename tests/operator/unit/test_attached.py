"""A workload that exists and that its job does not own (`spec.targetRef`), of every kind.

What is refused, which pods are its own, that only the one of the recorded UID is ever acted on, and what is
said of what nobody checked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlguard.operator.api.reasons import Reason
from rlguard.operator.api.status import Phase
from rlguard.operator.rbac import workload_rules
from rlguard.operator.reconcile.controller import guard_to_ask
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.guard_pod import guard_objects
from rlguard.operator.reconcile.parse import parse_job
from rlguard.operator.reconcile.review import Review, review_manifest
from rlguard.operator.reconcile.snapshot import Between, Doomed, Job, Pod, Preparation, Snapshot
from rlguard.operator.reconcile.targets import UNPROTECTED
from rlguard.operator.runtime.client import STATEFUL_SETS
from rlguard.operator.runtime.errors import ApiError

from .given import (
    ADAPTER,
    CONFIG,
    FIRE,
    NOW,
    STOP,
    SUPPORT,
    Cluster,
    deleted,
    manifest,
    message,
    reference,
    says,
    template,
    thing,
    workload,
)

Json = dict[str, Any]

# -- workloads, and what belongs to them -----------------------------------------------------------------


def raw_pod(name: str, by: str, labels: Json) -> Json:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return thing("Pod", name, f"uid-{name}", by, labels=labels, spec=spec, status={"phase": "Running"})


def ray_pods(cluster: str, by: str) -> list[Json]:
    labels = {"ray.io/cluster": cluster}
    return [raw_pod(kind, by, labels | {"ray.io/node-type": kind}) for kind in ("head", "worker")]


def job_set(name: str, uid: str) -> list[Json]:
    """The Job of a JobSet of this UID, and its pods, of which the first one holds rank 0."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "run-7",
        "jobset.sigs.k8s.io/jobset-uid": uid,
        "jobset.sigs.k8s.io/replicatedjob-name": name,
    }
    index = "batch.kubernetes.io/job-completion-index"
    made = [raw_pod(f"node-{number}", "n", labels | {index: str(number)}) for number in range(2)]
    return [thing("Job", f"run-7-{name}-0", "n", uid, labels=labels), *made]


RAY = {"headGroupSpec": {"template": template("ray")}, "workerGroupSpecs": [{"replicas": 1}]}
OF_A_JOB = {"template": template("trainer")}
SPECS: dict[str, Json] = {
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": {"template": template()}}},
    "Job": OF_A_JOB,
    "JobSet": {"replicatedJobs": [{"name": "only", "template": {"spec": OF_A_JOB}}]},
    "RayCluster": RAY,
    "RayJob": {"rayClusterSpec": RAY, "entrypoint": "train"},
    "TrainJob": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
}
RUNNING: dict[str, Json] = {
    "RayJob": {"jobDeploymentStatus": "Running", "rayClusterName": "run-7-abcde"},
    "TrainJob": {"jobsStatus": [{"name": "node", "ready": 1}]},
    "JobSet": {"replicatedJobsStatus": [{"ready": 1}]},
}
MASTER = {
    "training.kubeflow.org/job-name": "run-7",
    "training.kubeflow.org/replica-type": "master",
    "training.kubeflow.org/replica-index": "0",
}
UID_OF_JOB = "batch.kubernetes.io/controller-uid"
OF: dict[str, list[Json]] = {
    "PyTorchJob": [raw_pod("master", "w", MASTER)],
    "Job": [raw_pod("only", "w", {UID_OF_JOB: "w"})],
    "JobSet": job_set("only", "w"),
    "RayCluster": ray_pods("run-7", "w"),
    "RayJob": [
        thing("RayCluster", "run-7-abcde", "c", "w"),
        thing("Job", "run-7", "j", "w"),
        *ray_pods("run-7-abcde", "c"),
        raw_pod("submitter", "j", {UID_OF_JOB: "j"}),
    ],
    "TrainJob": [
        thing("JobSet", "run-7", "s", "w", spec={"replicatedJobs": [{"name": "node"}]}),
        *job_set("node", "s"),
    ],
}
#: The pod of rank 0, and its container that trains.
RANK0 = {
    "PyTorchJob": ("master", "pytorch"),
    "Job": ("only", "trainer"),
    "JobSet": ("node-0", "trainer"),
    "RayCluster": ("head", "ray"),
    "RayJob": ("head", "ray"),
    "TrainJob": ("node-0", "node"),
}
#: Those whose pods are of what they make.
OUTER = ("RayJob", "TrainJob")
ALL = tuple(OF)
DIRECT = tuple(kind for kind in ALL if kind not in OUTER)


def target(kind: str, uid: str = "w", **spec: Any) -> Json:
    full = {**copy.deepcopy(SPECS[kind]), **spec}
    return thing(kind, "run-7", uid, spec=full, status=RUNNING.get(kind, {}))


def belongings(kind: str) -> list[Json]:
    return copy.deepcopy(OF[kind])


FEED = {"follow": {"path": "run/metrics.jsonl", "format": "verl"}}


def raw_job(kind: str = "RayCluster", status: Json | None = None, **guard: Any) -> Json:
    """A job that is attached; `guard`: fields of it, or None to leave one out."""
    own = {
        "checkpoints": {"claimName": "shared"},
        "state": {"claimName": "state"},
        "placement": "Pod",
        "metrics": FEED,
        **guard,
    }
    found = manifest({}, kind, status, {name: value for name, value in own.items() if value is not None})
    made = found["spec"].pop("template")
    found["spec"]["targetRef"] = {"apiVersion": made["apiVersion"], "kind": kind, "name": "run-7"}
    return found


def attached(kind: str = "RayCluster", **status: Any) -> Json:
    return raw_job(kind, reference(kind, "run-7") | status)


def found_before(cluster: Cluster, kind: str) -> Preparation:
    """What is found out before anything is attached."""
    found = cluster.gather(raw_job(kind)).preparation
    assert found is not None
    return found


# -- the spec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_what_exists_is_guarded_by_a_pod_that_follows(kind: str) -> None:
    assert review_manifest(raw_job(kind), CONFIG) == Review()


@pytest.mark.parametrize(
    ("guard", "reason", "words"),
    [
        ({"placement": None}, "InvalidSpec", "guard.placement: Pod, guard.metrics"),
        ({"metrics": None}, "InvalidSpec", "guard.placement: Pod, guard.metrics"),
        ({"checkpoints": {"volume": "ckpt"}}, "InvalidSpec", "checkpoints.claimName"),
        ({"checkpoints": {"claimName": "heldout"}}, "TargetRefused", "checkpoints.claimName: must not be"),
        ({"checkpoints": {"claimName": "state"}}, "TargetRefused", "checkpoints.claimName: must not be"),
    ],
)
def test_what_a_guard_beside_it_needs_is_said(guard: Json, reason: str, words: str) -> None:
    said = review_manifest(raw_job(**guard), CONFIG)
    assert said.reason == reason and words in " ".join(said.findings)


def test_what_only_one_of_template_and_target_can_have() -> None:
    raw = raw_job("Job")
    raw["spec"]["resumedFrom"] = {"name": "before", "checkpoint": "/checkpoints/step_9"}
    assert "resumedFrom" in review_manifest(raw, CONFIG).findings[0], "nobody tells a target where to start"
    of_template = manifest(OF_A_JOB, "Job", guard={"checkpoints": {"claimName": "c"}})
    assert "is for targetRef" in review_manifest(of_template, CONFIG).findings[0]
    raw["spec"] |= {"template": of_template["spec"]["template"]}
    with pytest.raises(ValidationError, match="exactly one of template and targetRef"):
        parse_job(raw)


# -- its pods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_its_pods_are_found_by_its_own_labels(kind: str) -> None:
    seen = Cluster(target(kind), *belongings(kind), cached=[]).gather(attached(kind))
    assert seen.workload is not None and seen.workload.ours
    names = {one["metadata"]["name"] for one in OF[kind] if one["kind"] == "Pod"}
    assert {one.name for one in seen.pods} == names
    name, container = RANK0[kind]
    assert [one.name for one in seen.pods if one.rank0] == [name]
    assert seen.trainer == container and not any(one.guarded for one in seen.pods)
    if kind in DIRECT:
        assert Cluster(*belongings(kind), cached=[]).gather(attached(kind)).pods, "also when it is gone"


@pytest.mark.parametrize("kind", ALL)
def test_what_somebody_else_controls_is_not_its_own(kind: str) -> None:
    """Anybody may give a pod such a label, or something the name of what it makes, or of itself."""
    theirs = belongings(kind)
    for one in theirs:
        one["metadata"]["ownerReferences"] = [{"uid": "somebody", "controller": True}]
    seen = Cluster(target(kind), *theirs, cached=[]).gather(attached(kind))
    assert (seen.pods, seen.between) == ((), ())
    another = Cluster(target(kind, uid="new"), cached=[]).gather(attached(kind))
    assert another.workload is not None and not another.workload.ours and another.pods == ()


@pytest.mark.parametrize("kind", DIRECT)
def test_a_pod_that_nothing_controls_is_its_own_if_a_label_has_its_uid(kind: str) -> None:
    """It may have been orphaned, and trains on."""
    orphans = [one for one in belongings(kind) if one["kind"] == "Pod"]
    for one in orphans:
        one["metadata"]["ownerReferences"] = []
    found = Cluster(target(kind), *orphans, cached=[]).gather(attached(kind)).pods
    assert bool(found) is (kind in {"Job", "JobSet"})


def test_a_rank_0_whose_template_lost_the_operators_label_is_one_without_its_guard() -> None:
    """Whoever may change a suspended workload may change its template, too."""

    def own(**status: Any) -> Json:
        raw = manifest(SPECS["RayJob"], "RayJob", reference("RayJob", "run-7") | status)
        raw["metadata"]["name"] = "run-7"
        return raw

    there = (target("RayJob"), *belongings("RayJob"))
    runs = decide(Cluster(*there).gather(own(phase="Running")), NOW)
    assert says(runs)["Guarded"] == ("False", "GuardMissing")
    stopping = decide(Cluster(*there).gather(own(guard={"fire": FIRE}, stop=STOP)), NOW)
    assert says(stopping)["Stopped"] == ("False", "PodsTerminating")


# -- what is found before it is guarded ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_one_that_runs_is_written_down_before_anything_is_done(kind: str) -> None:
    decision = decide(Cluster(target(kind), *belongings(kind)).gather(raw_job(kind)), NOW)
    noted = decision.report.workload_ref
    assert decision.actions == () and noted is not None
    assert (noted.kind, noted.name, noted.uid) == (kind, "run-7", "w")
    assert says(decision)["Guarded"] == ("True", "WorkloadAttached")


@pytest.mark.parametrize("kind", OUTER)
def test_one_that_has_made_nothing_is_waited_for_unless_a_queue_holds_it_back(kind: str) -> None:
    found = found_before(Cluster(target(kind)), kind)
    assert found.reason == "TargetMissing"
    assert found.message == f"spec.targetRef: {kind} run-7 has made nothing yet that has pods"
    held = target(kind, suspend=True) | {"status": {}}
    assert found_before(Cluster(held), kind).reason is None


def with_metadata(**metadata: Any) -> Callable[[Json], None]:
    return lambda raw: raw["metadata"].update(metadata)


def with_spec(**spec: Any) -> Callable[[Json], None]:
    return lambda raw: raw["spec"].update(spec)


def ended(raw: Json) -> None:
    raw["status"] = {"conditions": [{"type": "Complete", "status": "True", "reason": "Done"}]}


ELSEWHERE = with_spec(managedBy="kueue.x-k8s.io/multikueue")
FLOW = [{"kind": "Workflow", "name": "flow", "controller": True}]
NO_CONTAINERS = "headGroupSpec.template.spec.containers"


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("Job", with_metadata(deletionTimestamp=NOW.isoformat()), "it is being deleted"),
        ("Job", ended, "it has ended already (Succeeded: Done)"),
        ("Job", with_metadata(ownerReferences=FLOW), "Workflow flow controls it: name that"),
        ("Job", with_spec(manualSelector=True), "spec.manualSelector"),
        ("Job", with_spec(parallelism=2), "spec.parallelism"),
        ("RayCluster", ELSEWHERE, "spec.managedBy"),
        ("RayCluster", with_spec(headGroupSpec={}), f"spec.{NO_CONTAINERS}"),
        ("RayJob", ELSEWHERE, "spec.managedBy"),
        ("RayJob", with_spec(clusterSelector={"a": "b"}), "spec.clusterSelector"),
        ("RayJob", with_spec(rayClusterSpec={}), f"spec.rayClusterSpec.{NO_CONTAINERS}"),
        ("TrainJob", ELSEWHERE, "spec.managedBy"),
    ],
)
def test_what_no_stop_would_end_is_refused(kind: str, change: Callable[[Json], None], why: str) -> None:
    raw = target(kind)
    change(raw)
    found = found_before(Cluster(raw, *belongings(kind)), kind)
    assert found.reason == "TargetRefused"
    assert found.message.startswith(f"spec.targetRef: {kind} run-7: {why}")


def test_a_train_job_of_which_nothing_tells_rank_0_is_refused() -> None:
    theirs = belongings("TrainJob")
    theirs[0]["spec"]["replicatedJobs"][0]["name"] = "launcher"
    found = found_before(Cluster(target("TrainJob"), *theirs), "TrainJob")
    assert found.reason == "TargetRefused"
    assert "has no replicatedJob node: nothing tells which pod is rank 0" in found.message


@pytest.mark.parametrize(
    "spec",
    [
        {"rayClusterSpec": {**RAY, "enableInTreeAutoscaling": True}},
        {"submissionMode": "SidecarMode"},
        {"entrypointNumGpus": 1},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_what_a_template_may_not_have_for_its_guards_sake_is_admitted(spec: Json) -> None:
    cluster = Cluster(target("RayJob", **spec), *belongings("RayJob"))
    assert found_before(cluster, "RayJob").reason is None


def test_two_nodes_must_share_the_checkpoints() -> None:
    cluster = Cluster(target("RayCluster"))
    cluster.claims = {"shared": {"spec": {"accessModes": ["ReadWriteOnce"]}}}
    found = found_before(cluster, "RayCluster")
    assert found.reason == "TargetRefused"
    assert found.message.startswith("spec.guard.checkpoints.claimName: PersistentVolumeClaim shared: ")


WORKLOAD = workload()
MAKER = Between(STATEFUL_SETS, SUPPORT, "s")
HEAD = Pod("head", "p", guarded=False, phase="Running", rank0=True)


def of_head(status: Json, *others: Pod, **more: Any) -> Snapshot:
    job = parse_job(raw_job(status=reference("RayCluster", "run-7") | status, **more.pop("guard", {})))
    return Snapshot(job, WORKLOAD, (HEAD, *others), guard_maker=MAKER, **more)


def test_a_claim_that_it_owns_is_warned_of_and_that_stays() -> None:
    """A fire deletes its checkpoints with it."""
    cluster = Cluster(target("RayCluster"))
    owned = {"metadata": {"ownerReferences": [{"uid": "w"}]}, "spec": {"accessModes": ["ReadWriteMany"]}}
    cluster.claims = {"shared": owned}
    decision = decide(cluster.gather(raw_job()), NOW)
    assert says(decision)["Guarded"] == ("True", "ClaimOwned")
    assert "PersistentVolumeClaim shared" in message(decision, "Guarded")
    told = [one.model_dump(mode="json", by_alias=True) for one in decision.report.conditions]
    assert says(decide(of_head({"conditions": told}), NOW))["Guarded"] == ("True", "ClaimOwned")


@pytest.mark.parametrize(
    ("kind", "status"), [("Secret", 400), ("ConfigMap", 403), ("Service", 403), ("StatefulSet", 500)]
)
def test_what_the_server_refuses_of_its_guard_is_known_before_it_is_attached(kind: str, status: int) -> None:
    """It would be a healthy run, said to have a guard, that is stopped for the silence of one nobody made."""
    cluster = Cluster(target("Job"), *belongings("Job"))
    cluster.refuses = {kind: ApiError(status, "Refused", "exceeded quota: pods")}
    decision = decide(cluster.gather(raw_job("Job")), NOW)
    assert decision.report.phase is Phase.REFUSED and decision.report.workload_ref is None
    assert says(decision)["Guarded"] == ("False", Reason.GUARD_REFUSED) and decision.look_again is not None
    said = message(decision, "Guarded")
    assert f"the {kind} " in said and "exceeded quota: pods" in said


# -- what its pods have ----------------------------------------------------------------------------------


def test_what_its_pods_have_of_the_guards_is_told_and_then_nobody_waits_for_a_word_of_it() -> None:
    """`test_isolation.py` has each row of the table."""
    head, _ = theirs = belongings("RayCluster")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "heldout"}}
    head["spec"] |= {"serviceAccountName": "scorer", "volumes": [volume]}
    raw = raw_job(status=reference("RayCluster", "run-7"), pod={"serviceAccountName": "scorer"})
    seen = Cluster(target("RayCluster"), *theirs).gather(raw)
    fields = ["serviceAccountName", "volumes[0].persistentVolumeClaim.claimName"]
    assert [one.split(" must not")[0] for one in seen.broken] == [f"pod head: {field}" for field in fields]
    assert seen.silent_for is None


@pytest.mark.parametrize("exposed", [(), ("pod head has it",)])
def test_what_is_not_protected_is_said(exposed: tuple[str, ...]) -> None:
    decision = decide(of_head({}, broken=exposed), NOW)
    assert says(decision)["Isolated"] == ("False", "GuardDataExposed" if exposed else "Attached")
    assert all(words in message(decision, "Isolated") for words in (*exposed, *UNPROTECTED))


HEARD = {"guard": {"level": "healthy", "code": "ok", "reason": "fine"}}


@pytest.mark.parametrize(
    ("status", "isolation", "asked"),
    [({}, "Strict", False), ({}, "Relaxed", True), (HEARD, "Strict", True)],
    ids=["strict", "relaxed", "judged already"],
)
def test_a_guard_is_told_of_its_run_only_if_the_pods_of_its_target_pass(
    status: Json, isolation: str, asked: bool
) -> None:
    guard = Pod("g", "g", guarded=True, phase="Running", address="10.0.0.1")
    seen = of_head(status, guard, broken=("pod head has it",), guard={"isolation": isolation})
    assert (guard_to_ask(seen) is not None) is asked
    decision = decide(seen, NOW)
    assert (says(decision)["Guarded"][1] == "TargetRefused") is not asked
    assert asked or "pod head has it" in message(decision, "Guarded")


# -- the stop --------------------------------------------------------------------------------------------


def test_a_fire_of_before_it_was_attached_deletes_nothing() -> None:
    fired: Job = parse_job(raw_job(status={"guard": {"fire": FIRE}}))
    assert deleted(decide(Snapshot(fired, replace(WORKLOAD, uid="new", ours=False)), NOW)) == []


@pytest.mark.parametrize("kind", ALL)
def test_the_first_stop_is_asked_for_although_nothing_can_be_read(kind: str) -> None:
    cluster = Cluster(refused=(*ALL, "Pod", "StatefulSet"))
    decision = decide(cluster.gather(attached(kind, guard={"fire": FIRE})), NOW)
    assert deleted(decision) == [Doomed(ADAPTER[kind].resource, "run-7", "w")]
    assert cluster.asked == [], "each may hang for as long as a request may"


@pytest.mark.parametrize(("kind", "refused"), [("Job", "hidden"), ("RayJob", "RayCluster")])
def test_what_cannot_be_read_is_not_taken_for_gone(kind: str, refused: str) -> None:
    there = [one for one in (target(kind), *belongings(kind)) if one["kind"] != "Pod"]
    cluster = Cluster(*there, cached=[], refused=(refused,))
    seen = cluster.gather(attached(kind, guard={"fire": FIRE}, stop=STOP))
    assert not seen.pods and says(decide(seen, NOW))["Stopped"] == ("False", "StopBlocked")
    with pytest.raises(ApiError, match=refused):
        cluster.gather(attached(kind))


# -- rights, and the guard's own pod ---------------------------------------------------------------------


def test_the_operator_may_read_and_delete_what_belongs_to_it_and_creates_nothing_of_it() -> None:
    def rights(kind: str) -> dict[str, list[str]]:
        return {rule["resources"][0]: rule["verbs"] for rule in workload_rules(ADAPTER[kind])}

    assert rights("RayCluster") == {"rayclusters": ["delete", "get"]}
    of_a_train_job = {
        "trainjobs": ["delete", "get"],
        "jobsets": ["delete", "get"],
        "jobs": ["delete", "list"],
    }
    assert rights("TrainJob") == of_a_train_job
    assert {"delete", "get"} <= set(rights("RayJob")["rayclusters"]) & set(rights("RayJob")["jobs"])


def test_the_guard_reads_all_of_the_claim() -> None:
    of = parse_job(raw_job())
    own = of.spec.guard.own_pod
    assert own is not None
    made = {resource.kind: body for resource, body in guard_objects(of, own, ADAPTER["RayCluster"], CONFIG)}
    spec = made["StatefulSet"]["spec"]["template"]["spec"]
    claim = {"claimName": "shared", "readOnly": True}
    assert {"name": "checkpoints", "persistentVolumeClaim": claim} in spec["volumes"]
    [guard] = spec["containers"]
    assert {"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True} in guard["volumeMounts"]
    assert {"name": "RLGUARD_GUARD_CHECKPOINT_ROOT", "value": "/checkpoints"} in guard["env"]
