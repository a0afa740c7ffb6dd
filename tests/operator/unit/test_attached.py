"""A workload that exists and that its job does not own (`spec.targetRef`).

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

from guard_operator.adapters import WorkloadAdapter, WorkloadState, find_adapter
from guard_operator.api import names
from guard_operator.api.reasons import Reason
from guard_operator.api.types import Phase
from guard_operator.config import OperatorConfig
from guard_operator.rbac import workload_rules
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.decision import Decision, Delete, Doomed
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.parse import JOBS, parse_job
from guard_operator.reconcile.review import Review, review, review_manifest
from guard_operator.reconcile.snapshot import (
    Between,
    Job,
    OwnGuard,
    Pod,
    Preparation,
    Snapshot,
    Workload,
)
from guard_operator.reconcile.targets import UNPROTECTED, why_not_attached
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
KINDS = {
    "PyTorchJob": ("kubeflow.org/v1", "training.kubeflow.org/job-name=run-7"),
    "Job": ("batch/v1", "batch.kubernetes.io/controller-uid=w"),
    "RayCluster": ("ray.io/v1", "ray.io/cluster=run-7"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobset.sigs.k8s.io/jobset-uid=w"),
}
CONTAINERS = {"template": {"spec": {"containers": [{"name": "trainer", "image": "t"}]}}}
SPECS: dict[str, Json] = {
    "PyTorchJob": {
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "t"}]}}}
        }
    },
    "Job": CONTAINERS,
    "RayCluster": {
        "headGroupSpec": CONTAINERS,
        "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 2}],
    },
    "JobSet": {"replicatedJobs": [{"name": "only", "template": {"spec": CONTAINERS}}]},
}
#: Labels of a pod with rank 0.
RANK0 = {
    "PyTorchJob": {
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/replica-type": "master",
    },
    "Job": {"batch.kubernetes.io/job-completion-index": "0"},
    "RayCluster": {"ray.io/node-type": "head"},
    "JobSet": {"jobset.sigs.k8s.io/replicatedjob-name": "only"},
}


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
            "targetRef": {"apiVersion": KINDS[kind][0], "kind": kind, "name": "run-7"},
            "guard": {key: value for key, value in guard.items() if value is not None},
            "onSilence": {"afterSeconds": 300, "action": "Stop"},
        },
        "status": status or {},
    }


def job(kind: str = "RayCluster", status: Json | None = None, **more: Any) -> Job:
    return parse_job(manifest(kind, status, **more))


def adapter_of(kind: str) -> WorkloadAdapter:
    found = find_adapter(KINDS[kind][0], kind)
    assert found is not None
    return found


def ref(kind: str = "RayCluster", uid: str = "w") -> Json:
    return {
        "workloadRef": {"apiVersion": KINDS[kind][0], "kind": kind, "name": "run-7", "uid": uid},
    }


# -- the spec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_exists_is_guarded_by_a_pod_that_follows(kind: str) -> None:
    said = review(adapter_of(kind), job(kind), CONFIG)
    assert said == Review()


@pytest.mark.parametrize("given", [{}, {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}}])
def test_a_job_has_a_template_or_a_target(given: Json) -> None:
    raw = manifest()
    target = raw["spec"].pop("targetRef")
    raw["spec"] |= given | ({"targetRef": target} if given else {})
    with pytest.raises(ValidationError, match="exactly one of template and targetRef"):
        parse_job(raw)
    assert review_manifest(raw, CONFIG).reason == "InvalidSpec"


@pytest.mark.parametrize(
    "missing",
    [{"placement": None}, {"placement": "Sidecar"}, {"metrics": None}, {"checkpoints": {"volume": "ckpt"}}],
    ids=str,
)
def test_what_a_guard_beside_it_needs_is_said(missing: Json) -> None:
    said = review(adapter_of("RayCluster"), job(**missing), CONFIG)
    assert said.reason == "TargetRefused"
    (sentence,) = said.findings
    assert "guard.placement: Pod, guard.metrics" in sentence and "checkpoints.claimName" in sentence


@pytest.mark.parametrize("claim", ["heldout", "state"])
def test_the_checkpoints_are_not_the_guards_own(claim: str) -> None:
    said = review(adapter_of("Job"), job("Job", checkpoints={"claimName": claim}), CONFIG)
    assert said.reason == "TargetRefused" and said.findings[0].startswith("spec.guard.checkpoints.claimName")


def test_nobody_tells_it_where_to_start() -> None:
    raw = manifest("Job")
    raw["spec"]["resumedFrom"] = {"name": "before", "checkpoint": "/checkpoints/step_9"}
    said = review(adapter_of("Job"), parse_job(raw), CONFIG)
    assert said.reason == "TargetRefused" and "resumedFrom" in said.findings[0]


def test_a_claim_of_a_target_is_no_volume_of_a_template() -> None:
    raw = manifest("Job")
    del raw["spec"]["targetRef"]
    raw["spec"]["template"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": CONTAINERS}
    said = review(adapter_of("Job"), parse_job(raw), CONFIG)
    assert said.reason == "TemplateRefused" and "is for targetRef" in said.findings[0]
    with pytest.raises(ValidationError, match="exactly one of volume and claimName"):
        job(checkpoints={"claimName": "shared", "volume": "ckpt"})


def test_an_unknown_kind_is_named_with_its_field() -> None:
    raw = manifest()
    raw["spec"]["targetRef"]["kind"] = "Deployment"
    (sentence,) = review_manifest(raw, CONFIG).findings
    assert sentence == "spec.targetRef: ray.io/v1 Deployment cannot be guarded"


# -- the workload ----------------------------------------------------------------------------------------


def target(kind: str, uid: str = "w", **more: Any) -> Json:
    api_version, _ = KINDS[kind]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "run-7", "namespace": "ns", "uid": uid},
        "spec": copy.deepcopy(SPECS[kind]),
        "status": {},
        **more,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_guarded_as_it_is(kind: str) -> None:
    assert why_not_attached(adapter_of(kind), target(kind), True) == ""


def going(raw: Json) -> None:
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def ended(raw: Json) -> None:
    raw["status"] = {"conditions": [{"type": "Complete", "status": "True", "reason": "Done"}]}


def controlled(raw: Json) -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "flow", "controller": True}
    raw["metadata"]["ownerReferences"] = [{"kind": "Other"}, owner]


def chosen(raw: Json) -> None:
    raw["spec"]["manualSelector"] = True


def several(raw: Json) -> None:
    raw["spec"]["parallelism"] = 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (going, "it is being deleted"),
        (ended, "it has ended already (Succeeded: Done)"),
        (controlled, "Workflow flow controls it: name that"),
        (chosen, "spec.manualSelector"),
        (several, "spec.parallelism"),
    ],
)
def test_why_it_cannot(change: Callable[[Json], None], why: str) -> None:
    raw = target("Job")
    change(raw)
    assert why_not_attached(adapter_of("Job"), raw, True).startswith(why)


def test_nothing_of_a_kind_that_is_only_attached_is_created() -> None:
    assert [rule["verbs"] for rule in workload_rules(adapter_of("RayCluster"))] == [["delete", "get"]]


# -- its pods --------------------------------------------------------------------------------------------


def pod(name: str, uid: str | None = "w", kind: str = "RayCluster", spec: Json | None = None) -> Json:
    owners = [] if uid is None else [{"uid": uid, "controller": True}]
    metadata = {"name": name, "uid": f"uid-{name}", "ownerReferences": owners, "labels": dict(RANK0[kind])}
    container = {"name": "trainer", **(spec or {})}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Running"}}


class Cluster:
    """The requests and the caches. What is cached of a target is nothing: it has none of our labels."""

    def __init__(self, kind: str, raw: Json | None, *pods: Json, claim_modes: str = "ReadWriteMany") -> None:
        self.kind, self.target, self.pods_there = kind, raw, list(pods)
        self.claim_modes, self.claim_owner = claim_modes, "nobody"
        self.between_there: list[Json] = []
        self.jobs: list[Json] = []
        self.sets: list[Json] = []
        self.asked: list[str] = []
        self.refuses: dict[str, ApiError] = {}
        self.tried: list[str] = []

    def create(self, resource: Resource, _namespace: str, _body: Json, _manager: str, dry_run: bool) -> None:
        assert dry_run, "to look changes nothing"
        self.tried.append(resource.kind)
        if resource.kind in self.refuses:
            raise self.refuses[resource.kind]

    def gather(self, given: Job) -> Snapshot:
        gatherer = Gatherer(cast(Client, self), CONFIG, cast(Caches, _Caches(self)), UNHEARD_OF, lambda: NOW)
        found = gatherer.gather(given)
        assert found is not None
        return found

    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        self.asked.append(f"get {resource.kind} {name}")
        if resource is JOBS:
            return manifest(self.kind, ref(self.kind))
        if resource.kind == "PersistentVolumeClaim":
            metadata = {"name": name, "ownerReferences": [{"uid": self.claim_owner}]}
            return {"metadata": metadata, "spec": {"accessModes": [self.claim_modes]}}
        assert name == "run-7", "the target has a name of its own"
        return self.target

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        selector = query.get("labelSelector") or query["fieldSelector"]
        self.asked.append(f"list {resource.kind} {selector}")
        if selector in {f"rlguard.dev/job-uid={UID}", f"metadata.name=watch-{UID[:8]}"}:
            return {"items": self.sets if resource is STATEFUL_SETS else []}
        assert selector == KINDS[self.kind][1]
        return {"items": self.pods_there if resource.kind == "Pod" else self.between_there}


class _Caches:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def quiet_for(self, _namespace: str) -> float:
        return 0.0

    def workload(self, *_place: Any) -> None:
        raise AssertionError("a target is in no cache")

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return []

    def between(self, resource: Resource, _namespace: str, uid: str) -> list[Json]:
        assert (resource, uid) == (STATEFUL_SETS, UID), "what a target controls is in no cache"
        return self._cluster.sets


@pytest.mark.parametrize("kind", KINDS)
def test_its_pods_are_found_by_its_own_labels(kind: str) -> None:
    cluster = Cluster(kind, target(kind), pod("head", kind=kind))
    seen = cluster.gather(job(kind, ref(kind)))
    assert seen.workload is not None and seen.workload.ours
    (one,) = seen.pods
    assert (one.name, one.rank0, one.guarded) == ("head", kind != "JobSet" or one.rank0, False)
    assert seen.trainer == ("pytorch" if kind == "PyTorchJob" else "trainer")


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_a_namesake_are_not_its_own(kind: str) -> None:
    """One that nothing controls may have been orphaned, if it has the UID of a workload, and trains on."""
    cluster = Cluster(kind, target(kind), pod("other", "another"), pod("none", None))
    by_uid = {"Job", "JobSet"}
    found = cluster.gather(job(kind, ref(kind))).pods
    assert [one.name for one in found] == (["none"] if kind in by_uid else [])


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_found_when_it_is_gone(kind: str) -> None:
    seen = Cluster(kind, None, pod("left", kind=kind)).gather(job(kind, ref(kind)))
    assert seen.workload is None and [one.name for one in seen.pods] == ["left"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_of_its_name_is_not_its_own(kind: str) -> None:
    cluster = Cluster(kind, target(kind, uid="new"), pod("head", "new", kind))
    if kind in {"Job", "JobSet"}:
        cluster.pods_there = []  # by the UID of the old one the server finds none
    seen = cluster.gather(job(kind, ref(kind)))
    assert seen.workload is not None and not seen.workload.ours
    assert seen.pods == () and seen.trainer == ""


# -- what is found before it is guarded ------------------------------------------------------------------


def test_a_guard_elsewhere_needs_checkpoints_that_two_nodes_share() -> None:
    found = Cluster("RayCluster", target("RayCluster"), claim_modes="ReadWriteOnce").gather(job()).preparation
    assert found is not None and found.reason == "TargetRefused"
    assert found.message.startswith("spec.guard.checkpoints.claimName: PersistentVolumeClaim shared: ")


def test_all_claims_of_the_guard_are_looked_for() -> None:
    cluster = Cluster("RayCluster", target("RayCluster"))
    assert cluster.gather(job()).preparation == Preparation()
    assert [one for one in cluster.asked if "Claim" in one] == [
        f"get PersistentVolumeClaim {name}" for name in ("heldout", "state", "shared", "shared")
    ]


# -- what its pods have ----------------------------------------------------------------------------------


def with_volume(source: Json) -> Json:
    raw = pod("head")
    raw["spec"]["volumes"] = [{"name": "data", **source}]
    return raw


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
    own = {"serviceAccountName": "scorer"}
    mounts = with_volume(source)
    mounts["spec"]["serviceAccountName"] = "scorer"
    seen = Cluster("RayCluster", target("RayCluster"), mounts).gather(job(status=ref(), pod=own))
    fields = ["serviceAccountName", *([f"volumes[0].{exposed}"] if exposed else [])]
    assert [one.split(" must not")[0] for one in seen.exposed] == [f"pod head: {field}" for field in fields]


# -- decisions -------------------------------------------------------------------------------------------

WORKLOAD = Workload("w", ours=True, state=WorkloadState.RUNNING)
STRANGER = replace(WORKLOAD, uid="new", ours=False)
MAKER = OwnGuard(Between(STATEFUL_SETS, "guard", "s"))
HEAD = Pod("head", "p", guarded=False, phase="Running", rank0=True)
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": "2026-01-01T00:00:00Z"}


def says(decision: Decision, kind: str) -> tuple[str, str]:
    (found,) = (one for one in decision.report.conditions if one.type == kind)
    return found.status, found.reason


def test_it_is_written_down_before_anything_is_done() -> None:
    there = replace(WORKLOAD, ours=False)
    decision = decide(Snapshot(job(), there, (HEAD,), Preparation(), own_guard=OwnGuard()), NOW)
    noted = decision.report.workload_ref
    assert decision.actions == () and noted is not None
    assert (noted.kind, noted.name, noted.uid) == ("RayCluster", "run-7", "w")
    assert says(decision, "Guarded") == ("True", "WorkloadAttached")


@pytest.mark.parametrize("exposed", [(), ("pod head has it",)])
def test_what_is_not_protected_is_said(exposed: tuple[str, ...]) -> None:
    seen = Snapshot(job(status=ref()), WORKLOAD, (HEAD,), own_guard=MAKER, exposed=exposed)
    decision = decide(seen, NOW)
    reason = "GuardDataExposed" if exposed else "Attached"
    assert says(decision, "Isolated") == ("False", reason)
    said = next(one for one in decision.report.conditions if one.type == "Isolated").message
    assert all(words in said for words in (*exposed, *UNPROTECTED))


def deleted(decision: Decision) -> list[Doomed]:
    return [one for action in decision.actions if isinstance(action, Delete) for one in action.objects]


def of_workload(uid: str, kind: str = "RayCluster") -> Doomed:
    return Doomed(adapter_of(kind).resource, "run-7", uid)


def test_a_fire_of_before_it_was_attached_deletes_nothing() -> None:
    fired = job(status={"guard": {"fire": FIRE}})
    assert deleted(decide(Snapshot(fired, STRANGER, (), own_guard=OwnGuard()), NOW)) == []


class Forbidden(Cluster):
    """Nothing of the target may be read any more."""

    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        raise ApiError(403, "Forbidden", f"get {resource.kind} {name}")

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        raise ApiError(403, "Forbidden", f"list {resource.kind}")


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet"])
def test_the_first_stop_is_asked_for_although_it_cannot_be_read(kind: str) -> None:
    given = job(kind, {**ref(kind), "guard": {"fire": FIRE}})
    seen = Forbidden(kind, None).gather(given)
    assert of_workload("w", kind) in deleted(decide(seen, NOW))


def test_its_pods_may_be_there_although_they_cannot_be_read() -> None:
    """Those with the operator's labels can."""

    class WithoutPods(Cluster):
        def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
            if query["labelSelector"] == KINDS["Job"][1]:
                raise ApiError(403, "Forbidden", "list Pod")
            return super().list(resource, _namespace, query)

    stop = {"requestedAt": NOW.isoformat()}
    seen = WithoutPods("Job", None).gather(job("Job", {**ref("Job"), "guard": {"fire": FIRE}, "stop": stop}))
    assert not seen.pods and seen.pods_unread
    assert decide(seen, NOW).report.phase is Phase.STOPPING


def test_a_claim_that_it_owns_is_warned_of_and_that_stays() -> None:
    """A fire deletes its checkpoints with it."""
    cluster = Cluster("RayCluster", target("RayCluster"))
    cluster.claim_owner = "w"
    seen = cluster.gather(job())
    decision = decide(seen, NOW)
    assert says(decision, "Guarded") == ("True", "ClaimOwned")
    (told,) = (one for one in decision.report.conditions if one.type == "Guarded")
    assert "PersistentVolumeClaim shared" in told.message
    later = job(status={**ref(), "conditions": [told.model_dump(mode="json", by_alias=True)]})
    again = decide(Snapshot(later, WORKLOAD, (HEAD,), own_guard=MAKER), NOW)
    assert says(again, "Guarded") == ("True", "ClaimOwned")


FORBIDDEN = ApiError(403, "Forbidden", "exceeded quota: pods")
WRONG = ApiError(400, "BadRequest", "quantities must match the regular expression")


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap", "Service", "StatefulSet"])
@pytest.mark.parametrize(
    "error", [FORBIDDEN, WRONG, ApiError(500, "InternalError", "failed calling webhook")]
)
def test_what_the_server_refuses_of_its_guard_is_known_before_it_is_attached(
    kind: str, error: ApiError
) -> None:
    """It would be a healthy run, said to have a guard, that is stopped for the silence of one nobody made."""
    cluster = Cluster("Job", target("Job"), pod("head", kind="Job"))
    cluster.refuses = {kind: error}
    seen = cluster.gather(job("Job"))
    assert seen.preparation is not None and seen.preparation.reason is Reason.GUARD_REFUSED
    assert f"the {kind} " in seen.preparation.message and error.message in seen.preparation.message
    decision = decide(seen, NOW)
    assert decision.report.phase is Phase.REFUSED and decision.report.workload_ref is None
    assert says(decision, "Guarded") == ("False", "GuardRefused") and decision.look_again is not None


# -- actions ---------------------------------------------------------------------------------------------


def test_the_guard_reads_all_of_the_claim() -> None:
    made = {
        resource.kind: body
        for resource, body in guard_objects(
            job(), cast(Any, job().spec.guard.own_pod), adapter_of("RayCluster"), CONFIG
        )
    }
    pod_ = made["StatefulSet"]["spec"]["template"]["spec"]
    claim = {"claimName": "shared", "readOnly": True}
    assert {"name": "checkpoints", "persistentVolumeClaim": claim} in pod_["volumes"]
    (guard,) = pod_["containers"]
    mount = {"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True}
    assert mount in guard["volumeMounts"]
    values = {one["name"]: one.get("value") for one in guard["env"]}
    assert values["RLGUARD_GUARD_CHECKPOINT_ROOT"] == "/checkpoints"
    assert guard["name"] == names.GUARD_CONTAINER
