"""What a stop reaches beside the workload: only what the workload itself controls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from guard_operator.api.types import Spec, Status, StopMethod
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.actuate import Actuator
from guard_operator.reconcile.decision import StopWorkload
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import BATCH_JOBS, Client, Resource

Json = dict[str, Any]


class Cluster:
    """Stands in for the requests: what is there, and what was deleted. Its fault is who made it."""

    def __init__(self, *owners: Json) -> None:
        self.there: Json | None = {"metadata": {"uid": "child", "ownerReferences": list(owners)}}
        self.deleted: list[str] = []

    def get(self, resource: Resource, _namespace: str, name: str) -> Json | None:
        assert (resource, name) == (BATCH_JOBS, "run")
        return self.there

    def merge(self, *_: Any) -> None:
        pass

    def delete(self, resource: Resource, _namespace: str, name: str, uid: str) -> None:
        self.deleted.append(f"{resource.kind} {name} {uid}")


def job() -> Job:
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"checkpoint": {}}}
    guard = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}}
    template = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {}}
    spec = Spec.model_validate({"template": template, "guard": guard})
    return Job("run", "ns", "u", 1, "1", {}, spec, Status())


def stop(cluster: Cluster, method: StopMethod = StopMethod.STOP) -> list[str]:
    none = cast(Any, None)
    actuator = Actuator(cast(Client, cluster), OperatorConfig("guard:1"), none, none, none, none)
    actuator._stop(job(), StopWorkload(method, "w"), none)
    return cluster.deleted


def owner(uid: str, **more: Any) -> Json:
    return {"uid": uid, "controller": True, **more}


def test_the_submitter_of_a_rayjob_goes_with_a_stop() -> None:
    assert stop(Cluster(owner("w"))) == ["Job run child"]
    assert stop(Cluster(owner("w")), StopMethod.SUSPEND) == []


@pytest.mark.parametrize(
    "owners", [[], [owner("other")], [owner("w", controller=False)]], ids=["none", "other", "no controller"]
)
def test_a_namesake_is_left_alone(owners: list[Json]) -> None:
    assert stop(Cluster(*owners)) == []


def test_one_that_is_not_there_holds_up_nothing() -> None:
    cluster = Cluster()
    cluster.there = None
    assert stop(cluster) == []
