"""Pods that cannot be deleted hold up neither the stop of what makes them nor what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from guard_operator.api.types import Phase, Spec, Status, StopMethod
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.decision import (
    Decision,
    DeletePods,
    Report,
    StopWorkload,
)
from guard_operator.reconcile.snapshot import Job, Snapshot
from guard_operator.runtime.client import BATCH_JOBS, PODS, Client, Resource
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError

Json = dict[str, Any]

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
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    spec = Spec.model_validate({"template": template, "guard": guard})
    return Job("run", "ns", "u", 1, "1", {}, spec, Status())


def actuator(cluster: Cluster) -> Actuator:
    none = cast(Any, None)
    return Actuator(cast(Client, cluster), OperatorConfig("guard:1"), none, none, none)


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
