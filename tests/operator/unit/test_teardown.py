"""The teardown as `decide` makes it: what is deleted, when it is over, and what blocks it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from guard_operator.adapters import WorkloadState
from guard_operator.adapters.pytorchjob import PyTorchJobAdapter
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.reasons import ConditionType
from guard_operator.api.types import ConditionStatus, Phase, Spec
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.snapshot import (
    Between,
    CaptureEvidence,
    Decision,
    Delete,
    Doomed,
    Job,
    Remembered,
    Snapshot,
)
from guard_operator.reconcile.teardown import (
    FINALIZER_SECONDS,
    LOGS_SECONDS,
    OVERDUE_SECONDS,
    RECREATED_SECONDS,
    STOPPING_SECONDS,
)
from guard_operator.runtime.client import PODS

from .test_decide import (
    FIRE,
    GOING,
    NOW,
    REF,
    SPEC,
    ago,
    guard,
    job,
    pod,
    said,
    workload,
)

EVIDENCE, FINAL = CaptureEvidence(final=False), CaptureEvidence(final=True)
OF_WORKLOAD = Doomed(PyTorchJobAdapter.resource, "run", "w")
DELETE = Delete((OF_WORKLOAD,))
POD = Doomed(PODS, "run-master-0", "uid-run-master-0")
DENIED = Remembered(refusal='admission webhook "w" denied: ask Bob')
SEEN = Remembered(pods=(("run-master-0", "u1"),))
CLUSTER = Between(RAY_CLUSTERS, "run-x2", "uid-cluster")


def begun(seconds_ago: float = 1.0, evidence: str | None = "e") -> dict[str, Any]:
    """The status of a fired run of which the workload was told to go."""
    noted = {"evidence": evidence} if evidence else {}
    return {**REF, **guard(fire=FIRE), "stop": {"requestedAt": ago(seconds_ago)}, **noted}


def fired(**spec: Any) -> Job:
    return job({**REF, **guard(fire=FIRE)}, **spec)


def deletes(decision: Decision) -> list[Doomed]:
    return [one for action in decision.actions if isinstance(action, Delete) for one in action.objects]


def stopped(snapshot: Snapshot) -> ConditionStatus:
    """What is said of the teardown."""
    condition = next(
        (c for c in decide(snapshot, NOW).report.conditions if c.type == ConditionType.STOPPED), None
    )
    assert condition is not None
    return condition


# -- what is deleted -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        guard(fire=FIRE),
        guard(fire={**FIRE, "code": "of_a_newer_guard"}),
        said("Fired"),
        said("Halted"),
        {**guard(fire=FIRE), **said("Succeeded")},
    ],
    ids=["fire", "of a newer guard", "without the guard's field", "halt", "after its end"],
)
def test_a_latch_deletes_the_workload_and_begins_to_collect_the_evidence(status: dict[str, Any]) -> None:
    decision = decide(Snapshot(job({**REF, **status}), workload(), (pod(),)), NOW)
    assert decision.actions == (EVIDENCE, DELETE)
    assert decision.report.phase is Phase.STOPPING and decision.look_again == STOPPING_SECONDS
    assert decision.report.stop is not None and decision.report.stop.requested_at == NOW
    assert [one.uid for one in decision.report.stop.pods] == ["uid-run-master-0"]


@pytest.mark.parametrize("state", [WorkloadState.PENDING, WorkloadState.SUSPENDED, WorkloadState.FAILED])
def test_a_workload_without_pods_is_deleted_too(state: WorkloadState) -> None:
    """A queue cannot admit it again, and a controller cannot start it again."""
    assert decide(Snapshot(fired(), workload(state)), NOW).actions == (EVIDENCE, DELETE)


def test_from_the_second_look_on_every_pod_is_deleted_that_is_not_on_its_way_out() -> None:
    """As one whose owner reference was removed, or that a controller made again."""
    seen = Snapshot(job(begun()), workload(deleted=NOW), (pod(), pod("other", terminating=True)))
    assert deletes(decide(seen, NOW)) == [POD]


def test_what_makes_pods_is_deleted_where_the_workload_cannot_be() -> None:
    seen = Snapshot(job(begun()), workload(), (pod(),), between=(CLUSTER,), known=Remembered(refusal="no"))
    assert deletes(decide(seen, NOW)) == [OF_WORKLOAD, Doomed(RAY_CLUSTERS, "run-x2", "uid-cluster"), POD]
    going = replace(seen, between=(replace(CLUSTER, terminating=True),))
    assert deletes(decide(going, NOW)) == [OF_WORKLOAD, POD]


@pytest.mark.parametrize("status", [{**REF, **guard(fire=FIRE)}, begun()], ids=["first look", "later"])
def test_slow_pods_are_deleted_first_with_the_time_that_the_job_allows(status: dict[str, Any]) -> None:
    """A kubelet never shortens a grace period that runs, so one that is on its way out keeps its own."""
    pods = (
        pod(grace=86400),
        pod("quick", grace=60, terminating=True),
        pod("going", grace=900, terminating=True),
    )
    first, *_ = deletes(decide(Snapshot(job(status, stopGraceSeconds=60), workload(), pods), NOW))
    assert first == replace(POD, grace=60)


def test_a_pod_that_has_ended_is_kept_a_moment_for_its_log() -> None:
    over = (pod(phase="Failed", grace=86400),)
    waits = Snapshot(job(begun(LOGS_SECONDS - 1, evidence=None)), workload(deleted=NOW), over)
    assert deletes(decide(waits, NOW)) == []
    later = Snapshot(job(begun(LOGS_SECONDS + 1, evidence=None)), workload(deleted=NOW), over)
    assert deletes(decide(later, NOW)) == [POD]
    had = Snapshot(job(begun()), workload(deleted=NOW), over)
    assert deletes(decide(had, NOW)) == [POD]


def test_what_is_not_ours_is_left_alone() -> None:
    assert decide(Snapshot(job(begun()), workload(ours=False), (GOING,)), NOW).actions == ()


def test_the_evidence_is_asked_for_until_it_is_written() -> None:
    assert EVIDENCE in decide(Snapshot(job(begun(evidence=None)), workload(), (GOING,)), NOW).actions
    assert EVIDENCE not in decide(Snapshot(job(begun()), workload(), (GOING,)), NOW).actions


# -- when it is over -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        {"workload": workload(WorkloadState.FAILED)},
        {"workload": workload(deleted=NOW)},
        {"pods": (GOING,)},
        {"pods": (pod(phase="Failed", terminating=True),)},
        {"known": SEEN},
        {"pods_unread": "503"},
        {"between": (CLUSTER,)},
    ],
    ids=["workload", "one that goes", "pod", "pod that ended", "pod that was seen", "unread", "maker"],
)
def test_it_is_stopped_only_when_workload_and_pods_are_gone(left: dict[str, Any]) -> None:
    there = Snapshot(job(begun()), **left)
    assert decide(there, NOW).report.phase is Phase.STOPPING and stopped(there).status == "False"


def test_then_it_is_stopped_at_once() -> None:
    gone = Snapshot(job(begun()), known=SEEN, all_pods_read=True)
    decision = decide(gone, NOW)
    assert decision.report.phase is Phase.STOPPED and decision.actions == () and decision.look_again is None
    assert decision.report.stop is not None and decision.report.stop.stopped_at == NOW
    assert decision.report.stop.pods == []
    without_evidence = decide(Snapshot(job(begun(evidence=None))), NOW)
    assert without_evidence.actions == (FINAL,) and without_evidence.report.phase is Phase.STOPPED


def test_one_that_was_never_created_is_never_created() -> None:
    decision = decide(Snapshot(job(guard(fire=FIRE))), NOW)
    assert decision.report.phase is Phase.STOPPED and decision.actions == () and decision.report.stop is None


def test_what_comes_back_is_a_teardown_of_its_own() -> None:
    status = {**begun(7200), **said("Stopped")}
    decision = decide(Snapshot(job(status), None, (pod(),)), NOW)
    assert deletes(decision) == [POD] and decision.report.phase is Phase.STOPPING
    assert decision.report.stop is not None and decision.report.stop.requested_at == NOW


# -- what blocks it --------------------------------------------------------------------------------------


def kept_since(seconds: float, *finalizers: str) -> Snapshot:
    deleted = NOW - timedelta(seconds=seconds)
    return Snapshot(job(begun(seconds)), workload(deleted=deleted, finalizers=finalizers))


def late(**values: Any) -> Snapshot:
    """A pod that should have ended at 23:59:00."""
    one = pod(terminating=True, due=NOW - timedelta(seconds=60), node="n7", **values)
    return Snapshot(job(begun(90)), workload(), (one,))


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (
            Snapshot(
                job(begun()),
                workload(),
                (pod(),),
                known=Remembered(refusal='admission webhook "w" denied: ask Bob'),
            ),
            'a delete was refused: admission webhook "w" denied: ask Bob; 1 pods are left: run-master-0',
        ),
        (Snapshot(job(begun()), workload(), pods_unread="503: etcd"), "the pods cannot be read: 503: etcd"),
        (kept_since(FINALIZER_SECONDS + 1, "foregroundDeletion", "a/b"), "PyTorchJob run is kept by a/b: "),
        (kept_since(FINALIZER_SECONDS + 1, "foregroundDeletion"), "the cluster's garbage collector"),
        (late(), "pod run-master-0 should have ended at 23:59:00: look at node n7, and delete the node"),
        (late(finalizers=("a/b",)), "look at node n7"),
        (late(phase="Failed", finalizers=("a/b",)), "pod run-master-0 has ended and is kept by a/b"),
    ],
    ids=["webhook", "unread", "finalizer", "no collector", "dead node", "still runs", "finalizer of a pod"],
)
def test_what_blocks_it_is_said_in_its_own_words(snapshot: Snapshot, words: str) -> None:
    condition = stopped(snapshot)
    assert (condition.status, condition.reason) == ("False", "StopBlocked") and words in condition.message


@pytest.mark.parametrize(
    "snapshot",
    [
        kept_since(FINALIZER_SECONDS - 1, "a/b"),
        Snapshot(
            job(begun(60)), workload(deleted=NOW - timedelta(seconds=60), finalizers=("a/b",)), (GOING,)
        ),
        Snapshot(
            job(begun(60)), None, (pod(terminating=True, due=NOW - timedelta(seconds=OVERDUE_SECONDS - 1)),)
        ),
    ],
    ids=["a finalizer for a moment", "pods have their time", "a pod is nearly in time"],
)
def test_what_takes_its_time_is_not_blocked(snapshot: Snapshot) -> None:
    assert stopped(snapshot).reason == "PodsTerminating"


# -- a target --------------------------------------------------------------------------------------------


def attached(status: dict[str, Any]) -> Job:
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run"}
    return replace(job(status), spec=Spec.model_validate({
        "targetRef": target, "guard": SPEC["guard"] | {"checkpoints": {"claimName": "c"}},
    }))  # fmt: skip


def test_a_target_that_somebody_recreates_is_deleted_again_and_who_it_was_is_said() -> None:
    again = workload(uid="new", ours=False, manager="argocd-controller")
    seen = Snapshot(attached({**begun(60), **said("Stopped")}), again)
    assert deletes(decide(seen, NOW)) == [replace(OF_WORKLOAD, uid="new")]
    condition = stopped(seen)
    assert condition.reason == "TargetRecreated"
    assert condition.message.startswith("argocd-controller recreated PyTorchJob run after the fire")


def test_a_target_that_is_gone_is_looked_for_again() -> None:
    decision = decide(Snapshot(attached(begun())), NOW)
    assert decision.report.phase is Phase.STOPPED and decision.look_again == RECREATED_SECONDS


# -- onFire: Report --------------------------------------------------------------------------------------


def test_a_fire_that_is_only_reported_deletes_nothing() -> None:
    decision = decide(Snapshot(fired(onFire="Report"), workload(), (pod(),)), NOW)
    assert decision.report.phase is Phase.RUNNING and decision.actions == () and decision.report.stop is None
    says = {(c.type, c.status, c.reason) for c in decision.report.conditions}
    assert ("Fired", "True", "HackingGap") in says and "Stopped" not in {kind for kind, _, _ in says}
    ended = decide(Snapshot(fired(onFire="Report"), workload(WorkloadState.SUCCEEDED)), NOW)
    assert ended.report.phase is Phase.SUCCEEDED


def test_a_fire_after_the_end_that_is_only_reported_is_told() -> None:
    over = job({**REF, **guard(fire=FIRE), **said("Succeeded")}, onFire="Report")
    decision = decide(Snapshot(over, workload(WorkloadState.SUCCEEDED)), NOW)
    assert ("Fired", "True") in {(c.type, c.status) for c in decision.report.conditions}
    assert decision.actions == ()


def test_a_halt_stops_all_the_same() -> None:
    halted = job({**REF, **guard(fire=FIRE), **said("Halted")}, onFire="Report")
    assert decide(Snapshot(halted, workload(), (pod(),)), NOW).actions == (EVIDENCE, DELETE)
