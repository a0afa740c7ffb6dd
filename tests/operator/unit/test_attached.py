"""A workload that exists and that its job does not own (`spec.targetRef`), of every kind.

What is refused, which pods are its own, that only the one of the recorded UID is ever acted on, and what is
said of what nobody checked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from guard_operator.adapters import ADAPTERS, WorkloadState
from guard_operator.api import names
from guard_operator.api.reasons import Reason
from guard_operator.api.types import ConditionStatus, Phase
from guard_operator.config import OperatorConfig
from guard_operator.rbac import workload_rules
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.decision import Decision, Delete, Doomed
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.review import Review, review_manifest
from guard_operator.reconcile.snapshot import Between, Job, OwnGuard, Pod, Preparation, Snapshot, Workload
from guard_operator.reconcile.targets import UNPROTECTED
from guard_operator.runtime.client import STATEFUL_SETS, Client, Resource
from guard_operator.runtime.errors import ApiError

Json = dict[str, Any]
#: Guards of which nothing was read.
UNHEARD_OF = cast(
    Any,
    SimpleNamespace(
        reading=lambda _uid: None, silent_for=lambda _uid, _pod: 0.0, most_are_unreached=lambda: False
    ),
)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
UID = "0123456789ab"
CONFIG = OperatorConfig(guard_image="guard:1")
ADAPTER = {one.resource.kind: one for one in ADAPTERS}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": "2026-01-01T00:00:00Z"}
STOP = {"requestedAt": NOW.isoformat()}

# -- workloads, and what belongs to them -----------------------------------------------------------------


def pods(*containers: str) -> Json:
    return {"template": {"spec": {"containers": [{"name": name, "image": "i"} for name in containers]}}}


def thing(kind: str, name: str, uid: str, owner: str | None = None, **more: Any) -> Json:
    labels = {key.replace("_", "/", 1): value for key, value in more.pop("labels", {}).items()}
    owners = [] if owner is None else [{"uid": owner, "controller": True}]
    metadata = {"name": name, "namespace": "ns", "uid": uid, "ownerReferences": owners, "labels": labels}
    return {"kind": kind, "metadata": metadata, "spec": {}, "status": {}, **more}


def pod(name: str, owner: str | None, **labels: str) -> Json:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return thing("Pod", name, f"uid-{name}", owner, labels=labels, spec=spec, status={"phase": "Running"})


def ray_pods(cluster: str, owner: str) -> list[Json]:
    kinds = {"head": "head", "worker": "worker"}
    labels = {"ray.io_cluster": cluster}
    return [pod(name, owner, **labels, **{"ray.io_node-type": kind}) for name, kind in kinds.items()]


def job_set(name: str, uid: str) -> list[Json]:
    """The Job of a JobSet of this UID, and its pods, of which the first one holds rank 0."""
    labels = {"jobset.sigs.k8s.io_jobset-uid": uid, "jobset.sigs.k8s.io_replicatedjob-name": name}
    index = "batch.kubernetes.io_job-completion-index"
    made = [pod(f"node-{number}", "n", **labels, **{index: str(number)}) for number in range(2)]
    return [thing("Job", f"run-7-{name}-0", "n", uid, labels=labels), *made]


RAY = {"headGroupSpec": pods("ray"), "workerGroupSpecs": [{"replicas": 1}]}
SPECS: dict[str, Json] = {
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": pods("pytorch")}},
    "Job": pods("trainer"),
    "JobSet": {"replicatedJobs": [{"name": "only", "template": {"spec": pods("trainer")}}]},
    "RayCluster": RAY,
    "RayJob": {"rayClusterSpec": RAY, "entrypoint": "train"},
    "TrainJob": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
}
RUNNING: dict[str, Json] = {
    "RayJob": {"jobDeploymentStatus": "Running", "rayClusterName": "run-7-abcde"},
    "TrainJob": {"jobsStatus": [{"name": "node", "ready": 1}]},
    "JobSet": {"replicatedJobsStatus": [{"ready": 1}]},
}
MASTER = {"training.kubeflow.org_replica-type": "master", "training.kubeflow.org_replica-index": "0"}
SUBMITTER = pod("submitter", "j", **{"batch.kubernetes.io_controller-uid": "j"})
OF: dict[str, list[Json]] = {
    "PyTorchJob": [pod("master", "w", **{"training.kubeflow.org_job-name": "run-7"}, **MASTER)],
    "Job": [pod("only", "w", **{"batch.kubernetes.io_controller-uid": "w"})],
    "JobSet": job_set("only", "w"),
    "RayCluster": ray_pods("run-7", "w"),
    "RayJob": [
        thing("RayCluster", "run-7-abcde", "c", "w"),
        thing("Job", "run-7", "j", "w"),
        *ray_pods("run-7-abcde", "c"),
        SUBMITTER,
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
    return thing(
        kind, "run-7", uid, spec={**copy.deepcopy(SPECS[kind]), **spec}, status=RUNNING.get(kind, {})
    )


def belongings(kind: str) -> list[Json]:
    return copy.deepcopy(OF[kind])


def manifest(kind: str = "RayCluster", status: Json | None = None, **more: Any) -> Json:
    """A job that is attached; `more`: fields of the guard, or None to leave one out."""
    guard = {
        "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
        "checkpoints": {"claimName": "shared"},
        "state": {"claimName": "state"},
        "placement": "Pod",
        "metrics": {"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
        **more,
    }
    return {
        "metadata": {"name": "watch", "namespace": "ns", "uid": UID, "resourceVersion": "7"},
        "spec": {
            "targetRef": {"apiVersion": ADAPTER[kind].resource.api_version, "kind": kind, "name": "run-7"},
            "guard": {key: value for key, value in guard.items() if value is not None},
            "onSilence": {"afterSeconds": 300, "action": "Stop"},
        },
        "status": status or {},
    }


def job(kind: str = "RayCluster", status: Json | None = None, **more: Any) -> Job:
    return parse_job(manifest(kind, status, **more))


def ref(kind: str = "RayCluster") -> Json:
    version = ADAPTER[kind].resource.api_version
    return {"workloadRef": {"apiVersion": version, "kind": kind, "name": "run-7", "uid": "w"}}


def attached(kind: str, **status: Any) -> Job:
    return job(kind, ref(kind) | status)


class Cluster:
    """The API server; of a target nothing is cached. `refused`: kinds of which nothing can be read."""

    def __init__(self, *there: Json, refused: tuple[str, ...] = ()) -> None:
        self.there, self.refused = list(there), refused
        self.claim_modes, self.claim_owner = "ReadWriteMany", "nobody"
        self.refuses: dict[str, ApiError] = {}
        self.claims: list[str] = []
        self.reads = 0
        self.job: Json | None = None

    def gather(self, given: Job) -> Snapshot:
        kind = given.spec.workload.kind
        self.job = manifest(kind, ref(kind))
        caches = SimpleNamespace(
            quiet_for=lambda _namespace: 0.0,
            workload=lambda *_place: None,
            pods=lambda _namespace, _uid: [],
            between=lambda _resource, _namespace, _uid: [],
        )
        gatherer = Gatherer(cast(Client, self), CONFIG, cast(Caches, caches), UNHEARD_OF, lambda: NOW)
        found = gatherer.gather(given)
        assert found is not None
        return found

    def create(self, resource: Resource, _namespace: str, _body: Json, _manager: str, dry_run: bool) -> None:
        assert dry_run, "to look changes nothing"
        if resource.kind in self.refuses:
            raise self.refuses[resource.kind]

    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        self._may(resource)
        if resource.kind == names.KIND:
            return self.job
        if resource.kind == "PersistentVolumeClaim":
            self.claims.append(name)
            metadata = {"name": name, "ownerReferences": [{"uid": self.claim_owner}]}
            return {"metadata": metadata, "spec": {"accessModes": [self.claim_modes]}}
        found = (one for one in self.there if (one["kind"], one["metadata"]["name"]) == (resource.kind, name))
        return next(found, None)

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        self._may(resource)
        label, _, value = str(query.get("labelSelector", "none=")).partition("=")
        of_kind = (one for one in self.there if one["kind"] == resource.kind)
        return {"items": [one for one in of_kind if one["metadata"]["labels"].get(label) == value]}

    def _may(self, resource: Resource) -> None:
        self.reads += 1
        if resource.kind in self.refused:
            raise ApiError(403, "Forbidden", resource.kind)


def found_before(cluster: Cluster, kind: str) -> Preparation:
    """What is found out before anything is attached."""
    found = cluster.gather(job(kind)).preparation
    assert found is not None
    return found


def condition(decision: Decision, kind: str) -> ConditionStatus:
    (found,) = (one for one in decision.report.conditions if one.type == kind)
    return found


def says(decision: Decision, kind: str) -> tuple[str, str]:
    return condition(decision, kind).status, condition(decision, kind).reason


# -- the spec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_what_exists_is_guarded_by_a_pod_that_follows(kind: str) -> None:
    assert review_manifest(manifest(kind), CONFIG) == Review()


@pytest.mark.parametrize("given", [{}, {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}}])
def test_a_job_has_a_template_or_a_target(given: Json) -> None:
    raw = manifest()
    ref_ = raw["spec"].pop("targetRef")
    raw["spec"] |= given | ({"targetRef": ref_} if given else {})
    with pytest.raises(ValidationError, match="exactly one of template and targetRef"):
        parse_job(raw)


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ({"placement": None}, "guard.placement: Pod, guard.metrics"),
        ({"metrics": None}, "guard.placement: Pod, guard.metrics"),
        ({"checkpoints": {"volume": "ckpt"}}, "checkpoints.claimName"),
        ({"checkpoints": {"claimName": "heldout"}}, "spec.guard.checkpoints.claimName: must not be"),
        ({"checkpoints": {"claimName": "state"}}, "spec.guard.checkpoints.claimName: must not be"),
    ],
)
def test_what_a_guard_beside_it_needs_is_said(guard: Json, words: str) -> None:
    said = review_manifest(manifest(**guard), CONFIG)
    assert said.reason == "TargetRefused"
    assert words in " ".join(said.findings)


def test_nobody_tells_it_where_to_start() -> None:
    raw = manifest("Job")
    raw["spec"]["resumedFrom"] = {"name": "before", "checkpoint": "/checkpoints/step_9"}
    said = review_manifest(raw, CONFIG)
    assert said.reason == "TargetRefused" and "resumedFrom" in said.findings[0]


def test_a_claim_of_a_target_is_no_volume_of_a_template() -> None:
    raw = manifest("Job")
    del raw["spec"]["targetRef"]
    raw["spec"]["template"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": SPECS["Job"]}
    said = review_manifest(raw, CONFIG)
    assert said.reason == "TemplateRefused" and "is for targetRef" in said.findings[0]


def test_an_unknown_kind_is_named_with_its_field() -> None:
    raw = manifest()
    raw["spec"]["targetRef"]["kind"] = "Deployment"
    [sentence] = review_manifest(raw, CONFIG).findings
    assert sentence == "spec.targetRef: ray.io/v1 Deployment cannot be guarded"


# -- its pods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_its_pods_are_found_by_its_own_labels(kind: str) -> None:
    seen = Cluster(target(kind), *belongings(kind)).gather(attached(kind))
    assert seen.workload is not None and seen.workload.ours
    assert {one.name for one in seen.pods} == {
        one["metadata"]["name"] for one in OF[kind] if one["kind"] == "Pod"
    }
    name, container = RANK0[kind]
    assert [one.name for one in seen.pods if one.rank0] == [name]
    assert seen.trainer == container and not any(one.guarded for one in seen.pods)


@pytest.mark.parametrize("kind", ALL)
def test_what_somebody_else_controls_is_not_its_own(kind: str) -> None:
    """Anybody may give a pod such a label, or something the name of what it makes."""
    theirs = belongings(kind)
    for one in theirs:
        one["metadata"]["ownerReferences"] = [{"uid": "somebody", "controller": True}]
    seen = Cluster(target(kind), *theirs).gather(attached(kind))
    assert (seen.pods, seen.between) == ((), ())


@pytest.mark.parametrize("kind", DIRECT)
def test_a_pod_that_nothing_controls_is_its_own_if_a_label_has_its_uid(kind: str) -> None:
    """It may have been orphaned, and trains on."""
    orphans = [one for one in belongings(kind) if one["kind"] == "Pod"]
    for one in orphans:
        one["metadata"]["ownerReferences"] = []
    found = Cluster(target(kind), *orphans).gather(attached(kind)).pods
    assert bool(found) is (kind in {"Job", "JobSet"})


@pytest.mark.parametrize("kind", DIRECT)
def test_pods_are_found_when_it_is_gone(kind: str) -> None:
    seen = Cluster(*belongings(kind)).gather(attached(kind))
    assert seen.workload is None and seen.pods


@pytest.mark.parametrize("kind", ALL)
def test_another_of_its_name_is_not_its_own(kind: str) -> None:
    seen = Cluster(target(kind, uid="new")).gather(attached(kind))
    assert seen.workload is not None and not seen.workload.ours
    assert seen.pods == () and (seen.trainer == "" or kind == "TrainJob")


def test_a_rank_0_whose_template_lost_the_operators_label_is_one_without_its_guard() -> None:
    """Whoever may change a suspended workload may change its template, too."""

    def own(**status: Any) -> Job:
        raw = manifest("RayJob", ref("RayJob") | status)
        version = ADAPTER["RayJob"].resource.api_version
        raw["metadata"]["name"] = "run-7"
        raw["spec"] |= {"template": {"apiVersion": version, "kind": "RayJob", "spec": SPECS["RayJob"]}}
        del raw["spec"]["targetRef"], raw["spec"]["guard"]["metrics"], raw["spec"]["guard"]["placement"]
        return parse_job(raw)

    there = (target("RayJob"), *belongings("RayJob"))
    runs = Cluster(*there).gather(own(phase="Running"))
    assert len(runs.pods) == 3 and says(decide(runs, NOW), "Guarded") == ("False", "GuardMissing")
    stopping = Cluster(*there).gather(own(guard={"fire": FIRE}, stop=STOP, phase="Stopping"))
    assert says(decide(stopping, NOW), "Stopped") == ("False", "PodsTerminating")


# -- what is found before it is guarded ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_one_that_runs_is_written_down_before_anything_is_done(kind: str) -> None:
    seen = Cluster(target(kind), *belongings(kind)).gather(job(kind))
    assert seen.preparation == Preparation()
    decision = decide(seen, NOW)
    noted = decision.report.workload_ref
    assert decision.actions == () and noted is not None
    assert (noted.kind, noted.name, noted.uid) == (kind, "run-7", "w")
    assert says(decision, "Guarded") == ("True", "WorkloadAttached")


@pytest.mark.parametrize("kind", OUTER)
def test_one_that_has_made_nothing_is_waited_for_unless_a_queue_holds_it_back(kind: str) -> None:
    found = found_before(Cluster(target(kind)), kind)
    assert found.reason == "TargetMissing"
    assert found.message == f"spec.targetRef: {kind} run-7 has made nothing yet that has pods"
    held = target(kind, suspend=True) | {"status": {}}
    assert found_before(Cluster(held), kind).reason is None


def going(raw: Json) -> None:
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def ended(raw: Json) -> None:
    raw["status"] = {"conditions": [{"type": "Complete", "status": "True", "reason": "Done"}]}


def controlled(raw: Json) -> None:
    raw["metadata"]["ownerReferences"] = [{"kind": "Workflow", "name": "flow", "controller": True}]


def with_spec(**spec: Any) -> Callable[[Json], None]:
    return lambda raw: raw["spec"].update(spec)


ELSEWHERE = with_spec(managedBy="kueue.x-k8s.io/multikueue")


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("Job", going, "it is being deleted"),
        ("Job", ended, "it has ended already (Succeeded: Done)"),
        ("Job", controlled, "Workflow flow controls it: name that"),
        ("Job", with_spec(manualSelector=True), "spec.manualSelector"),
        ("Job", with_spec(parallelism=2), "spec.parallelism"),
        ("RayCluster", ELSEWHERE, "spec.managedBy"),
        ("RayCluster", with_spec(headGroupSpec={}), "spec.headGroupSpec.template.spec.containers"),
        ("RayJob", ELSEWHERE, "spec.managedBy"),
        ("RayJob", with_spec(clusterSelector={"a": "b"}), "spec.clusterSelector"),
        (
            "RayJob",
            with_spec(rayClusterSpec={}),
            "spec.rayClusterSpec.headGroupSpec.template.spec.containers",
        ),
        ("TrainJob", ELSEWHERE, "spec.managedBy"),
    ],
)
def test_what_no_stop_would_end_is_refused(kind: str, change: Callable[[Json], None], why: str) -> None:
    raw = target(kind)
    change(raw)
    found = found_before(Cluster(raw, *belongings(kind)), kind)
    assert found.reason == "TargetRefused" and found.message.startswith(
        f"spec.targetRef: {kind} run-7: {why}"
    )


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_one_whose_pods_cannot_be_known_is_refused(kind: str) -> None:
    """JobSet before v0.9 gives pods no label with its UID: "no pod is left" would be said of none."""
    theirs = [one for one in belongings(kind) if one["kind"] == "JobSet"]
    found = found_before(Cluster(target(kind), *theirs), kind)
    assert found.reason == "TargetRefused"
    assert "nothing of it has the label jobset.sigs.k8s.io/jobset-uid" in found.message


def test_a_trainjob_of_which_nothing_tells_rank_0_is_refused() -> None:
    theirs = belongings("TrainJob")
    theirs[0]["spec"]["replicatedJobs"][0]["name"] = "launcher"
    found = found_before(Cluster(target("TrainJob"), *theirs), "TrainJob")
    assert found.reason == "TargetRefused"
    assert "has no replicatedJob node: nothing tells which pod is rank 0" in found.message


@pytest.mark.parametrize(
    "spec",
    [
        {"rayClusterSpec": {**RAY, "enableInTreeAutoscaling": True}},
        {"rayClusterSpec": {**RAY, "gcsFaultToleranceOptions": {"redisAddress": "r"}}},
        {"submissionMode": "SidecarMode"},
        {"entrypointNumGpus": 1},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_what_a_template_may_not_have_for_its_guards_sake_is_admitted(spec: Json) -> None:
    cluster = Cluster(target("RayJob", **spec), *belongings("RayJob"))
    assert found_before(cluster, "RayJob").reason is None


def test_all_claims_of_the_guard_are_looked_for_and_two_nodes_must_share_the_checkpoints() -> None:
    cluster = Cluster(target("RayCluster"))
    assert found_before(cluster, "RayCluster") == Preparation()
    assert set(cluster.claims) == {"heldout", "state", "shared"}
    cluster.claim_modes = "ReadWriteOnce"
    found = found_before(cluster, "RayCluster")
    assert found.reason == "TargetRefused"
    assert found.message.startswith("spec.guard.checkpoints.claimName: PersistentVolumeClaim shared: ")


def test_a_claim_that_it_owns_is_warned_of_and_that_stays() -> None:
    """A fire deletes its checkpoints with it."""
    cluster = Cluster(target("RayCluster"))
    cluster.claim_owner = "w"
    told = condition(decide(cluster.gather(job()), NOW), "Guarded")
    assert (told.status, told.reason) == ("True", "ClaimOwned")
    assert "PersistentVolumeClaim shared" in told.message
    later = attached("RayCluster", conditions=[told.model_dump(mode="json", by_alias=True)])
    again = decide(Snapshot(later, WORKLOAD, (HEAD,), own_guard=MAKER), NOW)
    assert says(again, "Guarded") == ("True", "ClaimOwned")


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap", "Service", "StatefulSet"])
@pytest.mark.parametrize("status", [400, 403, 500])
def test_what_the_server_refuses_of_its_guard_is_known_before_it_is_attached(kind: str, status: int) -> None:
    """It would be a healthy run, said to have a guard, that is stopped for the silence of one nobody made."""
    cluster = Cluster(target("Job"), *belongings("Job"))
    cluster.refuses = {kind: ApiError(status, "Refused", "exceeded quota: pods")}
    decision = decide(cluster.gather(job("Job")), NOW)
    assert decision.report.phase is Phase.REFUSED and decision.report.workload_ref is None
    told = condition(decision, "Guarded")
    assert (told.status, told.reason) == ("False", Reason.GUARD_REFUSED) and decision.look_again is not None
    assert f"the {kind} " in told.message and "exceeded quota: pods" in told.message


# -- what its pods have ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "exposed"),
    [
        ({"persistentVolumeClaim": {"claimName": "heldout"}}, "persistentVolumeClaim.claimName"),
        ({"persistentVolumeClaim": {"claimName": "shared"}}, ""),
        ({"secret": {"secretName": f"watch-{UID[:8]}"}}, "secret.secretName"),
        ({"emptyDir": {}}, ""),
    ],
    ids=str,
)
def test_what_its_pods_have_of_the_guards_is_told(source: Json, exposed: str) -> None:
    """`test_isolation.py` has each row of the table."""
    head, _ = theirs = belongings("RayCluster")
    head["spec"] |= {"serviceAccountName": "scorer", "volumes": [{"name": "data", **source}]}
    seen = Cluster(target("RayCluster"), *theirs).gather(
        job(status=ref(), pod={"serviceAccountName": "scorer"})
    )
    fields = ["serviceAccountName", *([f"volumes[0].{exposed}"] if exposed else [])]
    assert [one.split(" must not")[0] for one in seen.exposed] == [f"pod head: {field}" for field in fields]


WORKLOAD = Workload("w", ours=True, state=WorkloadState.RUNNING)
MAKER = OwnGuard(Between(STATEFUL_SETS, "guard", "s"))
HEAD = Pod("head", "p", guarded=False, phase="Running", rank0=True)


@pytest.mark.parametrize("exposed", [(), ("pod head has it",)])
def test_what_is_not_protected_is_said(exposed: tuple[str, ...]) -> None:
    seen = Snapshot(attached("RayCluster"), WORKLOAD, (HEAD,), own_guard=MAKER, exposed=exposed)
    said = condition(decide(seen, NOW), "Isolated")
    assert (said.status, said.reason) == ("False", "GuardDataExposed" if exposed else "Attached")
    assert all(words in said.message for words in (*exposed, *UNPROTECTED))


# -- the stop --------------------------------------------------------------------------------------------


def deleted(decision: Decision) -> list[Doomed]:
    return [one for action in decision.actions if isinstance(action, Delete) for one in action.objects]


def test_a_fire_of_before_it_was_attached_deletes_nothing() -> None:
    stranger = replace(WORKLOAD, uid="new", ours=False)
    fired = job(status={"guard": {"fire": FIRE}})
    assert deleted(decide(Snapshot(fired, stranger, (), own_guard=OwnGuard()), NOW)) == []


@pytest.mark.parametrize("kind", ALL)
def test_the_first_stop_is_asked_for_although_nothing_can_be_read(kind: str) -> None:
    cluster = Cluster(refused=(*ALL, "Pod", "StatefulSet"))
    decision = decide(cluster.gather(attached(kind, guard={"fire": FIRE})), NOW)
    assert deleted(decision) == [Doomed(ADAPTER[kind].resource, "run-7", "w")]
    assert cluster.reads == 0, "each may hang for as long as a request may"


@pytest.mark.parametrize(("kind", "refused"), [("Job", "Pod"), ("RayJob", "RayCluster"), ("RayJob", "Pod")])
def test_what_cannot_be_read_is_not_taken_for_gone(kind: str, refused: str) -> None:
    there = [one for one in (target(kind), *belongings(kind)) if one["kind"] != "Pod"]
    seen = Cluster(*there, refused=(refused,)).gather(attached(kind, guard={"fire": FIRE}, stop=STOP))
    assert not seen.pods and seen.pods_unread
    assert says(decide(seen, NOW), "Stopped") == ("False", "StopBlocked")
    with pytest.raises(ApiError, match=refused):
        Cluster(*there, refused=(refused,)).gather(attached(kind))


# -- rights, and the guard's own pod ---------------------------------------------------------------------


def test_the_operator_may_read_and_delete_what_belongs_to_it_and_creates_nothing_of_it() -> None:
    def rights(kind: str) -> dict[str, list[str]]:
        return {rule["resources"][0]: rule["verbs"] for rule in workload_rules(ADAPTER[kind])}

    assert rights("RayCluster") == {"rayclusters": ["delete", "get"]}
    assert rights("TrainJob") == {
        "trainjobs": ["delete", "get"], "jobsets": ["delete", "get"], "jobs": ["delete", "list"]
    }  # fmt: skip
    assert {"delete", "get"} <= set(rights("RayJob")["rayclusters"]) & set(rights("RayJob")["jobs"])


def test_the_guard_reads_all_of_the_claim() -> None:
    own = cast(Any, job().spec.guard.own_pod)
    made = {
        resource.kind: body for resource, body in guard_objects(job(), own, ADAPTER["RayCluster"], CONFIG)
    }
    spec = made["StatefulSet"]["spec"]["template"]["spec"]
    claim = {"claimName": "shared", "readOnly": True}
    assert {"name": "checkpoints", "persistentVolumeClaim": claim} in spec["volumes"]
    [guard] = spec["containers"]
    assert {"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True} in guard["volumeMounts"]
    values = {one["name"]: one.get("value") for one in guard["env"]}
    assert values["RLGUARD_GUARD_CHECKPOINT_ROOT"] == "/checkpoints"
    assert guard["name"] == names.GUARD_CONTAINER
