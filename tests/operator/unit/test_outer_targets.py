"""RayJobs and TrainJobs that exist (`spec.targetRef`): they have no pods but those of what they make.

What they make is read by its name; what is refused; that nothing is called stopped while something is left.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guard_operator.adapters import WorkloadAdapter, find_adapter
from guard_operator.adapters.jobset import JOB_SETS
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.types import ConditionStatus
from guard_operator.config import OperatorConfig
from guard_operator.rbac import workload_rules
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.decision import Decision, Delete, Doomed
from guard_operator.reconcile.gather import DEAF_SECONDS, Caches, Gatherer
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.snapshot import Job, Snapshot
from guard_operator.reconcile.targets import why_not_attached
from guard_operator.runtime.client import BATCH_JOBS, Client, Resource
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
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": "2026-01-01T00:00:00Z"}
VERSIONS = {
    "RayJob": "ray.io/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "RayCluster": "ray.io/v1",
    "PyTorchJob": "kubeflow.org/v1",
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
}
HEAD = {"template": {"spec": {"containers": [{"name": "ray", "image": "r"}]}}}
WORKERS = {"groupName": "gpu", "replicas": 2, "minReplicas": 0, "maxReplicas": 4}
RAY: Json = {"rayClusterSpec": {"headGroupSpec": HEAD, "workerGroupSpecs": [WORKERS]}, "entrypoint": "train"}
TRAIN: Json = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}}


def adapter_of(kind: str) -> WorkloadAdapter:
    found = find_adapter(VERSIONS[kind], kind)
    assert found is not None
    return found


def thing(kind: str, name: str, uid: str, owner: str | None = None, **more: Any) -> Json:
    owners = [] if owner is None else [{"uid": owner, "controller": True}]
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "ownerReferences": owners, "labels": {}},
        "spec": {},
        "status": {},
        **more,
    }


def pod(name: str, owner: str | None, **labels: str) -> Json:
    raw = thing("Pod", name, f"uid-{name}", owner, status={"phase": "Running"})
    raw["spec"] = {"containers": [{"name": "ray", "image": "r"}]}
    raw["metadata"]["labels"] = {key.replace("_", "/", 1): value for key, value in labels.items()}
    return raw


def rayjob(deployment: str = "Running", cluster: str = "run-7-abcde", uid: str = "w") -> Json:
    status = {"jobDeploymentStatus": deployment, "rayClusterName": cluster}
    return thing("RayJob", "run-7", uid, spec=copy.deepcopy(RAY), status=status)


def trainjob(uid: str = "w") -> Json:
    status = {"jobsStatus": [{"name": "node", "ready": 1}]}
    return thing("TrainJob", "run-7", uid, spec=copy.deepcopy(TRAIN), status=status)


def cluster(uid: str = "c", owner: str | None = "w", name: str = "run-7-abcde") -> Json:
    return thing("RayCluster", name, uid, owner)


def jobset(uid: str = "s", *names: str) -> Json:
    spec = {"replicatedJobs": [{"name": name} for name in names or ("node",)]}
    return thing("JobSet", "run-7", uid, "w", spec=spec)


def job(kind: str, attached: bool = True, **status: Any) -> Job:
    return parse_job(raw_job(kind, attached=attached, **status))


def raw_job(kind: str, attached: bool = True, **status: Any) -> Json:
    ref: Json = {"apiVersion": VERSIONS[kind], "kind": kind, "name": "run-7", "uid": "w"}
    return {
        "metadata": {"name": "watch", "namespace": "ns", "uid": UID, "resourceVersion": "7"},
        "spec": {
            "targetRef": {"apiVersion": VERSIONS[kind], "kind": kind, "name": "run-7"},
            "guard": {
                "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
                "checkpoints": {"claimName": "shared"},
                "state": {"claimName": "state"},
                "placement": "Pod",
                "metrics": {"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
            },
        },
        "status": ({"workloadRef": ref} if attached else {}) | status,
    }


class Cluster:
    """An API server. `refused`: kinds of which nothing can be read."""

    def __init__(self, *there: Json, refused: tuple[str, ...] = ()) -> None:
        self.there, self.refused, self.asked = list(there), refused, set[str]()
        self.unserved: tuple[str, ...] = ()
        self.reads = 0

    def create(self, *_asked: object, dry_run: bool) -> None:
        assert dry_run, "to look changes nothing"

    def gatherer(self, deaf: bool = False) -> Gatherer:
        caches = cast(Caches, _Caches(DEAF_SECONDS + 1.0 if deaf else 0.0))
        return Gatherer(cast(Client, self), CONFIG, caches, UNHEARD_OF, lambda: NOW)

    def gather(self, given: Job) -> Snapshot:
        found = self.gatherer().gather(given)
        assert found is not None
        return found

    def get(self, resource: Resource, _namespace: str, name: str, was_there: bool = False) -> Json | None:
        self._may(resource)
        if resource.kind in self.unserved:
            if was_there:
                raise ApiError(404, "", "404 page not found")
            return None
        if resource.kind == "PersistentVolumeClaim":
            return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"]}}
        found = (one for one in self.there if (one["kind"], one["metadata"]["name"]) == (resource.kind, name))
        return next(found, None)

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        self._may(resource)
        selector = str(query.get("labelSelector", "none="))
        self.asked.add(selector)
        label, _, value = selector.partition("=")
        of_kind = (one for one in self.there if one["kind"] == resource.kind)
        if not selector:
            return {"items": list(of_kind)}
        return {"items": [one for one in of_kind if one["metadata"]["labels"].get(label) == value]}

    def _may(self, resource: Resource) -> None:
        self.reads += 1
        if resource.kind in self.refused:
            raise ApiError(403, "Forbidden", resource.kind)


class _Caches:
    def __init__(self, quiet: float) -> None:
        self._quiet = quiet

    def quiet_for(self, _namespace: str) -> float:
        return self._quiet

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return []

    def workload(self, _resource: Resource, _namespace: str, _name: str) -> Json | None:
        return None

    def between(self, _resource: Resource, _namespace: str, _uid: str) -> list[Json]:
        return []


RAY_PODS = (
    pod("head", "c", **{"ray.io_cluster": "run-7-abcde", "ray.io_node-type": "head"}),
    pod("worker", "c", **{"ray.io_cluster": "run-7-abcde", "ray.io_node-type": "worker"}),
    pod(
        "submitter",
        "j",
        **{"batch.kubernetes.io_controller-uid": "j", "batch.kubernetes.io_job-name": "run-7"},
    ),
)
OF_A_RAYJOB = (cluster(), thing("Job", "run-7", "j", "w"), *RAY_PODS)


def node(name: str, uid: str = "s") -> Json:
    labels = {"jobset-uid": uid, "jobset-name": "run-7", "replicatedjob-name": "node", "job-index": "0"}
    every = {f"jobset.sigs.k8s.io_{key}": value for key, value in labels.items()}
    made = pod(name, "n", **every, **{"batch.kubernetes.io_job-completion-index": name[-1]})
    of = {"apiVersion": "batch/v1", "kind": "Job", "name": "run-7-node-0"}
    made["metadata"]["ownerReferences"][0] |= of
    return made


def child(uid: str = "s") -> Json:
    made = thing("Job", "run-7-node-0", "n", uid)
    names = {"jobset-uid": uid, "jobset-name": "run-7"}
    made["metadata"]["labels"] = {f"jobset.sigs.k8s.io/{key}": value for key, value in names.items()}
    return made


OF_A_TRAINJOB = (jobset(), child(), node("node-0"), node("node-1"))
OF = {"RayJob": OF_A_RAYJOB, "TrainJob": OF_A_TRAINJOB}
TARGET = {"RayJob": rayjob, "TrainJob": trainjob}
PODS_OF = {"RayJob": {"head", "worker", "submitter"}, "TrainJob": {"node-0", "node-1"}}
KINDS = ("RayJob", "TrainJob")


# -- what it has made ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_its_pods_are_those_of_what_it_has_made(kind: str) -> None:
    given = job(kind)
    seen = Cluster(TARGET[kind](), *OF[kind]).gather(given)
    assert {one.name for one in seen.pods} == PODS_OF[kind]
    assert [one.name for one in seen.pods if one.rank0] == ["head" if kind == "RayJob" else "node-0"]
    assert seen.trainer == ("ray" if kind == "RayJob" else "node")


STOP = {"requestedAt": NOW.isoformat()}


def said(decision: Decision, kind: str) -> ConditionStatus:
    (found,) = (one for one in decision.report.conditions if one.type == kind)
    return found


def says(decision: Decision, kind: str) -> tuple[str, str]:
    return said(decision, kind).status, said(decision, kind).reason


def test_a_namesake_of_what_it_makes_is_not_its_own() -> None:
    """By its name alone, as where somebody has made another run in its place."""
    stranger = thing("Job", "run-7", "j", "somebody")
    for of_another in (cluster(owner=None), cluster(owner="somebody")):
        seen = Cluster(rayjob(), of_another, stranger, *RAY_PODS).gather(job("RayJob"))
        assert (seen.pods, seen.between) == ((), ())


# -- pods of the job's own that lost the operator's label ---------------------------------------------------


def own_job(kind: str, **status: Any) -> Job:
    """A job whose workload was made of a template, which has lost the operator's labels since."""
    raw, spec = raw_job(kind, **status), TARGET[kind]()["spec"]
    target = raw["spec"].pop("targetRef")
    raw["metadata"]["name"] = target["name"]
    raw["spec"]["template"] = {"apiVersion": target["apiVersion"], "kind": kind, "spec": spec}
    del raw["spec"]["guard"]["metrics"], raw["spec"]["guard"]["placement"]
    return parse_job(raw)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_0_whose_template_lost_the_label_is_one_without_its_guard(kind: str) -> None:
    """Whoever may change the workload while it is suspended may change its template, too."""
    seen = Cluster(TARGET[kind](), *OF[kind]).gather(own_job(kind, phase="Running"))
    assert {one.name for one in seen.pods} == PODS_OF[kind] and seen.silent_for == 0
    assert [one.name for one in seen.pods if one.rank0] == ["head" if kind == "RayJob" else "node-0"]
    assert says(decide(seen, NOW), "Guarded") == ("False", "GuardMissing")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_called_stopped_while_such_a_pod_is_there(kind: str) -> None:
    fired = own_job(kind, guard={"fire": FIRE}, stop=STOP, phase="Stopping")
    seen = Cluster(TARGET[kind](), *OF[kind]).gather(fired)
    assert {one.name for one in seen.pods} == PODS_OF[kind]
    assert says(decide(seen, NOW), "Stopped") == ("False", "PodsTerminating")
    pods_unread = Cluster(TARGET[kind](), *OF[kind], refused=("Pod",)).gather(fired)
    assert pods_unread.pods_unread and says(decide(pods_unread, NOW), "Stopped")[0] == "False"


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_else_has_made_under_these_names_is_not_its_own(kind: str) -> None:
    theirs = [one | {"metadata": dict(one["metadata"])} for one in OF[kind]]
    for one in theirs:
        if one["kind"] != "Pod":
            one["metadata"]["ownerReferences"] = [{"uid": "somebody", "controller": True}]
    assert Cluster(TARGET[kind](), *theirs).gather(own_job(kind, phase="Running")).pods == ()


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_runs_is_guarded(kind: str) -> None:
    prepared = Cluster(TARGET[kind](), *OF[kind]).gather(job(kind, attached=False))
    assert prepared.preparation is not None and prepared.preparation.reason is None
    ref = decide(prepared, NOW).report.workload_ref
    assert ref is not None and ref.uid == "w"


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_has_made_nothing_is_waited_for(kind: str) -> None:
    seen = Cluster(TARGET[kind]()).gather(job(kind, attached=False))
    assert seen.preparation is not None and seen.preparation.reason == "TargetMissing"
    assert seen.preparation.message == f"spec.targetRef: {kind} run-7 has made nothing yet that has pods"


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_a_queue_holds_back_is_guarded(kind: str) -> None:
    held = thing(kind, "run-7", "w", spec=copy.deepcopy(RAY if kind == "RayJob" else TRAIN))
    held["spec"]["suspend"] = True
    seen = Cluster(held).gather(job(kind, attached=False))
    assert seen.preparation is not None and seen.preparation.reason is None


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("RayJob", {"clusterSelector": {"a": "b"}}, "spec.clusterSelector"),
        ("RayJob", {"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy"),
        ("RayJob", {"rayClusterSpec": {}}, "spec.rayClusterSpec.headGroupSpec.template.spec.containers"),
        ("TrainJob", {"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy"),
    ],
)
def test_what_no_stop_would_end_is_refused(kind: str, change: Json, why: str) -> None:
    raw = TARGET[kind]()
    raw["spec"] |= change
    assert why_not_attached(adapter_of(kind), raw, True).startswith(why)
    seen = Cluster(raw).gather(job(kind, attached=False))
    assert seen.preparation is not None and seen.preparation.reason == "TargetRefused"


@pytest.mark.parametrize(
    "more",
    [
        {"rayClusterSpec": {**RAY["rayClusterSpec"], "enableInTreeAutoscaling": True}},
        {"rayClusterSpec": {**RAY["rayClusterSpec"], "gcsFaultToleranceOptions": {"redisAddress": "r"}}},
        {"submissionMode": "SidecarMode"},
        {"entrypointNumGpus": 1},
        {"deletionStrategy": {"onSuccess": {"policy": "DeleteNone"}}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_a_template_may_not_have_for_its_guards_sake_is_admitted(more: Json) -> None:
    raw = rayjob()
    raw["spec"] |= more
    assert why_not_attached(adapter_of("RayJob"), raw, True) == ""
    autoscales = "enableInTreeAutoscaling" in raw["spec"]["rayClusterSpec"]
    assert adapter_of("RayJob").pods_wanted(raw["spec"]) == (1 if autoscales else 3)


def test_a_trainjob_of_which_nothing_tells_rank_0_is_refused() -> None:
    there = (trainjob(), jobset("s", "launcher"), child())
    seen = Cluster(*there).gather(job("TrainJob", attached=False))
    assert seen.preparation is not None and seen.preparation.reason == "TargetRefused"
    assert "has no replicatedJob node: nothing tells which pod is rank 0" in seen.preparation.message


def test_a_trainjob_whose_pods_cannot_be_known_is_refused() -> None:
    """JobSet before v0.9 gives pods no label with its UID: "no pod is left" would be said of none."""
    seen = Cluster(trainjob(), jobset()).gather(job("TrainJob", attached=False))
    assert seen.preparation is not None and seen.preparation.reason == "TargetRefused"
    assert "nothing of it has the label jobset.sigs.k8s.io/jobset-uid" in seen.preparation.message


# -- the stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_stop_is_asked_for_although_nothing_can_be_read(kind: str) -> None:
    refused = ("RayJob", "TrainJob", "RayCluster", "Job", "JobSet", "Pod", "StatefulSet")
    fired = job(kind, guard={"fire": FIRE})
    world = Cluster(refused=refused)
    decision = decide(world.gather(fired), NOW)
    assert Delete((Doomed(adapter_of(kind).resource, "run-7", "w"),)) in decision.actions
    assert world.reads == 0, "each may hang for as long as a request may"


@pytest.mark.parametrize("refused", ["RayCluster", "Pod"])
def test_what_cannot_be_read_is_not_taken_for_gone(refused: str) -> None:
    fired = job("RayJob", guard={"fire": FIRE}, stop=STOP)
    seen = Cluster(cluster(), thing("Job", "run-7", "j", "w"), rayjob("Failed"), refused=(refused,))
    assert says(decide(seen.gather(fired), NOW), "Stopped") == ("False", "StopBlocked")
    for running in (job("RayJob"), job("RayJob", guard={"fire": FIRE}, **STOPPED)):
        with pytest.raises(ApiError, match=refused):
            Cluster(rayjob(), cluster(), refused=(refused,)).gather(running)


STOPPED = {
    "stop": STOP,
    "conditions": [
        {"type": "Stopped", "status": "True", "reason": "r", "lastTransitionTime": NOW.isoformat()}
    ],
}


# -- rights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "resource"), [("RayJob", RAY_CLUSTERS), ("RayJob", BATCH_JOBS), ("TrainJob", JOB_SETS)]
)
def test_what_it_makes_may_be_read_and_deleted(kind: str, resource: Resource) -> None:
    adapter = adapter_of(kind)
    (rule,) = (one for one in workload_rules(adapter) if one["resources"] == [resource.plural])
    assert {"get", "delete"} <= set(rule["verbs"])
