"""What a stop asks beside the workload: only what the workload controls. What is refused is a delete.

Pods that cannot be deleted hold up neither the stop of what makes them nor what is said of it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.types import Phase, Spec, Status, StopMethod, StopStatus, TargetRef
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.decision import (
    Action,
    Decision,
    DeleteBetween,
    DeletePods,
    LeaveQueue,
    Report,
    StopWorkload,
)
from guard_operator.reconcile.snapshot import Between, Job, Snapshot
from guard_operator.runtime.client import BATCH_JOBS, PODS, Client, Resource
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError

Json = dict[str, Any]
RAYJOB = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {}}

PARTS = [{"name": "only", "replicas": 2, "template": {"spec": {}}}]
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": PARTS}}


#: As a status: no answer.
HUNG = 0


def fault(status: int) -> ClusterError:
    return ApiError(status, "Refused", "somebody says no") if status else TransportError("no answer")


class Cluster:
    """Stands in for the requests. Its faults: a child of somebody else, and one that cannot be touched."""

    def __init__(self, *owners: Json, status: int | None = None, everything: bool = False) -> None:
        self.everything = everything
        self.child: Json | None = {"metadata": {"uid": "child", "ownerReferences": list(owners)}}
        self.status = status
        self.done: list[str] = []

    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        self.asked = f"{resource.kind} {name}"
        return self.child

    def merge(self, resource: Resource, _namespace: str, name: str, patch: Json, _manager: str) -> None:
        self._touch(resource)
        self.done.append(f"patch {resource.kind} {name} {patch['metadata']['uid']}")

    def delete(self, resource: Resource, _namespace: str, name: str, uid: str) -> None:
        self._touch(resource)
        self.done.append(f"delete {resource.kind} {name} {uid}")

    def _touch(self, resource: Resource) -> None:
        if (resource is BATCH_JOBS or self.everything) and self.status is not None:
            raise fault(self.status)


def job(template: Json) -> Job:
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"checkpoint": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    spec = Spec.model_validate({"template": template, "guard": guard})
    return Job("run", "ns", "u", 1, "1", {}, spec, Status())


def actuator(cluster: Cluster) -> Actuator:
    none = cast(Any, None)
    return Actuator(cast(Client, cluster), OperatorConfig("guard:1"), none, none, none)


def stop(
    cluster: Cluster, template: Json = RAYJOB, method: StopMethod = StopMethod.STOP
) -> tuple[list[str], StopMethod]:
    """What was done, and what the report then says was asked for."""
    asked = StopStatus(requested_at=datetime(2026, 1, 1, tzinfo=UTC), method=method)
    report = Report(Phase.STOPPING, (), None, asked)
    report, told = actuator(cluster)._stop(job(template), StopWorkload(method, "w"), report)
    assert report.stop is not None and bool(told) == (report.stop.method is not method)
    return cluster.done, report.stop.method


CLUSTERS = tuple(Between(RAY_CLUSTERS, name, f"uid-{name}") for name in ("a", "b"))


@pytest.mark.parametrize("status", [None, 403, 409, 500, HUNG])
def test_what_makes_pods_is_deleted_and_holds_up_nothing(status: int | None) -> None:
    cluster = Cluster(status=status, everything=True)
    actuator(cluster)._delete_between(job(RAYJOB), CLUSTERS)
    assert cluster.done == (
        [] if status is not None else ["delete RayCluster a uid-a", "delete RayCluster b uid-b"]
    )


def test_a_server_without_time_is_asked_again_for_what_makes_pods() -> None:
    cluster = Cluster(status=429, everything=True)
    with pytest.raises(ApiError, match="429"):
        actuator(cluster)._delete_between(job(RAYJOB), CLUSTERS)


def owner(uid: str, **more: Any) -> Json:
    return {"uid": uid, "controller": True, **more}


FOREIGN = [[], [owner("other")], [owner("w", controller=False)]]


def test_the_submitter_of_a_rayjob_goes_with_a_stop() -> None:
    cluster = Cluster(owner("w"))
    assert stop(cluster) == (["patch RayJob run w", "delete Job run child"], StopMethod.STOP)
    assert cluster.asked == "Job run"


def test_a_suspension_and_a_delete_leave_it_to_others() -> None:
    suspended = stop(Cluster(owner("w")), method=StopMethod.SUSPEND)
    assert suspended == (["patch RayJob run w"], StopMethod.SUSPEND)
    deleted = stop(Cluster(owner("w")), method=StopMethod.DELETE)
    assert deleted == (["delete RayJob run w"], StopMethod.DELETE)


@pytest.mark.parametrize("owners", FOREIGN, ids=["none", "other", "no controller"])
def test_a_namesake_is_left_alone(owners: list[Json]) -> None:
    assert stop(Cluster(*owners)) == (["patch RayJob run w"], StopMethod.STOP)


def test_one_that_is_not_there_holds_up_nothing() -> None:
    cluster = Cluster()
    cluster.child = None
    assert stop(cluster) == (["patch RayJob run w"], StopMethod.STOP)


def test_one_that_cannot_be_touched_goes_with_the_workload() -> None:
    done, method = stop(Cluster(owner("w"), status=403))
    assert (done, method) == (["patch RayJob run w", "delete RayJob run w"], StopMethod.DELETE)


@pytest.mark.parametrize("status", [409, 503, 504, HUNG])
def test_one_that_became_another_or_cannot_be_asked_now_is_looked_at_again(status: int) -> None:
    assert stop(Cluster(owner("w"), status=status)) == (["patch RayJob run w"], StopMethod.STOP)


@pytest.mark.parametrize("status", [404, 409, 503, 504, HUNG])
def test_a_workload_that_cannot_be_asked_now_is_not_deleted_for_that(status: int) -> None:
    assert stop(Cluster(status=status, everything=True)) == ([], StopMethod.STOP)


@pytest.mark.parametrize("status", [400, 403, 422, 500])
def test_a_workload_that_refuses_is_deleted(status: int) -> None:
    """500 is what the failure of an admission webhook reads like."""
    cluster = Cluster(status=status, everything=True)
    assert stop(cluster) == ([], StopMethod.DELETE), "its pods are next, as a delete is refused, too"


def test_a_delete_without_an_answer_is_written_down() -> None:
    assert stop(Cluster(status=HUNG, everything=True), method=StopMethod.DELETE) == ([], StopMethod.DELETE)


def test_a_server_that_has_no_time_is_asked_again() -> None:
    with pytest.raises(ApiError, match="429"):
        stop(Cluster(owner("w"), status=429))


def test_what_took_its_stop_is_not_deleted_because_it_cannot_be_read_again() -> None:
    """As when etcd elects a leader between the two requests."""
    cluster = Cluster()
    raw = job(RAYJOB)
    target = TargetRef(api_version="ray.io/v1", kind="RayJob", name="run-7")
    attached = replace(raw, spec=raw.spec.model_copy(update={"template": None, "target_ref": target}))
    cluster.get = lambda *_of: (_ for _ in ()).throw(fault(500))  # type: ignore[method-assign]
    asked = StopStatus(requested_at=datetime(2026, 1, 1, tzinfo=UTC), method=StopMethod.STOP)
    report, told = actuator(cluster)._stop(
        attached, StopWorkload(StopMethod.STOP, "w"), Report(Phase.STOPPING, (), None, asked)
    )
    assert cluster.done == ["patch RayJob run-7 w"] and not told and report.stop == asked


def test_a_jobset_is_stopped_through_its_jobs() -> None:
    cluster = Cluster(owner("w"))
    done = [f"patch Job run-only-{number} child" for number in range(2)]
    assert stop(cluster, JOBSET) == (done, StopMethod.STOP)
    assert cluster.asked == "Job run-only-1"


@pytest.mark.parametrize("owners", FOREIGN, ids=["none", "other", "no controller"])
def test_without_such_a_job_the_jobset_is_deleted(owners: list[Json]) -> None:
    assert stop(Cluster(*owners), JOBSET) == (["delete JobSet run w"], StopMethod.DELETE)


def test_one_whose_job_cannot_be_touched_is_deleted() -> None:
    assert stop(Cluster(owner("w"), status=403), JOBSET) == (["delete JobSet run w"], StopMethod.DELETE)


def test_a_suspension_of_a_jobset_asks_the_jobset() -> None:
    done = stop(Cluster(owner("w")), JOBSET, StopMethod.SUSPEND)
    assert done == (["patch JobSet run w"], StopMethod.SUSPEND)


@pytest.mark.parametrize("template", [RAYJOB, JOBSET], ids=["RayJob", "JobSet"])
@pytest.mark.parametrize("status", [403, 500])
def test_a_stop_is_written_although_everything_is_refused(template: Json, status: int) -> None:
    """Its time begins then: the next look deletes the pods."""
    assert stop(Cluster(owner("w"), status=status, everything=True), template) == ([], StopMethod.DELETE)
    refused = stop(Cluster(owner("w"), status=status, everything=True), template, StopMethod.DELETE)
    assert refused == ([], StopMethod.DELETE)


def test_a_delete_for_which_the_server_has_no_time_is_asked_again() -> None:
    with pytest.raises(ApiError, match="429"):
        stop(Cluster(owner("w"), status=429, everything=True), method=StopMethod.DELETE)


class PodsStay:
    """Stands in for an API server that refuses to delete pods; the others of its jobs it does."""

    def __init__(self, trouble: ClusterError | None) -> None:
        self.trouble = trouble
        self.stay = {"a", "b"}
        self.refusal: ClusterError | None = None
        self.now, self.takes = datetime(2026, 1, 1, tzinfo=UTC), timedelta()
        self.done: list[str] = []

    def delete(
        self, resource: Resource, _namespace: str, name: str, uid: str, grace: int | None = None
    ) -> None:
        if resource is not PODS and self.refusal is not None:
            raise self.refusal
        assert resource is PODS
        if self.trouble is not None and name in self.stay:
            raise self.trouble
        self.done.append(f"delete {name} {uid} {grace}")
        self.now += self.takes

    def merge(self, resource: Resource, _namespace: str, name: str, _patch: Json, _manager: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.done.append(f"patch {resource.kind} {name}")

    def apply(self, resource: Resource, _patch: Json, _manager: str, sub: str) -> None:
        self.done.append(f"{sub} of {resource.kind}")


PYTORCHJOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}}
HASTENED = Decision(
    Report(Phase.STOPPING, ()), (DeletePods((("a", "u"), ("b", "v")), 30), StopWorkload(StopMethod.STOP, "w"))
)
SAID = ["patch PyTorchJob run", "status of GuardedTrainingJob"]


def carry_out(server: PodsStay, decision: Decision = HASTENED) -> None:
    none = cast(Any, None)
    actuator = Actuator(cast(Client, server), OperatorConfig("guard:1"), none, none, none, lambda: server.now)
    actuator.actuate(Snapshot(job(PYTORCHJOB)), decision)


def test_pods_are_deleted_with_their_grace_before_the_workload_is_stopped() -> None:
    server = PodsStay(None)
    carry_out(server)
    assert sorted(server.done[:2]) == ["delete a u 30", "delete b v 30"]
    assert server.done[2:] == SAID


@pytest.mark.parametrize(
    "trouble",
    [fault(status) for status in (403, 429, 500, HUNG)],
)
def test_pods_that_cannot_be_deleted_hold_up_nothing_and_are_tried_again(trouble: ClusterError) -> None:
    server = PodsStay(trouble)
    with pytest.raises(type(trouble), match=str(trouble)):
        carry_out(server)
    assert server.done == SAID


@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_pod_that_is_refused_keeps_no_other_from_being_deleted(status: int) -> None:
    for stays, goes in (("a", "delete b v 30"), ("b", "delete a u 30")):
        server = PodsStay(fault(status))
        server.stay = {stays}
        with pytest.raises(ApiError, match=str(status)):
            carry_out(server)
        assert server.done == [goes, *SAID]


def test_a_pod_whose_deletion_hangs_keeps_others_for_one_look_at_most() -> None:
    server = PodsStay(fault(HUNG))
    server.stay = {"a"}
    for _ in range(50):
        with pytest.raises(TransportError):
            carry_out(server)
    assert "delete b v 30" in server.done


def test_pods_whose_deletion_is_slow_do_not_hold_up_the_stop() -> None:
    server = PodsStay(None)
    server.takes = timedelta(seconds=5.1)
    carry_out(server)
    assert len(server.done) == 1 + len(SAID) and server.done[1:] == SAID


@pytest.mark.parametrize(
    "action",
    [StopWorkload(StopMethod.STOP, "w"), LeaveQueue("q", "x"), DeleteBetween(CLUSTERS)],
    ids=["workload", "queue", "between"],
)
def test_a_server_that_never_has_time_keeps_no_stop_from_being_written(action: Action) -> None:
    """429 can be the word of an admission webhook, each time: what is harder must get its turn."""
    server = PodsStay(None)
    server.refusal = fault(429)
    with pytest.raises(ApiError, match="429"):
        carry_out(server, Decision(HASTENED.report, (action, *HASTENED.actions[:1])))
    assert sorted(server.done[:2]) == ["delete a u 30", "delete b v 30"]
    assert server.done[2:] == SAID[1:]
