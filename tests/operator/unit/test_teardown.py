"""The teardown as `decide` makes it: what is deleted, when it is over, and what blocks it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.adapters.ray import RAY_CLUSTERS
from rlguard.operator.api.status import Phase
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.snapshot import (
    SELDOM,
    SOON,
    Between,
    CaptureEvidence,
    Delete,
    Doomed,
    Remembered,
    Snapshot,
)
from rlguard.operator.reconcile.teardown import (
    FINALIZER_SECONDS,
    LOGS_SECONDS,
    OVERDUE_SECONDS,
)
from rlguard.operator.runtime.client import PODS

from .given import (
    ADAPTER,
    BEAT,
    FIRE,
    GOING,
    NOW,
    REF,
    condition,
    deleted,
    job,
    manifest,
    message,
    parse_job,
    pod,
    says,
    workload,
)

Json = dict[str, Any]
FIRED = {**REF, "guard": {**BEAT, "fire": FIRE}}
EVIDENCE, FINAL = CaptureEvidence(final=False), CaptureEvidence(final=True)
OF_WORKLOAD = Doomed(ADAPTER["PyTorchJob"].resource, "run", "w")
DELETE = Delete((OF_WORKLOAD,))
POD = Doomed(PODS, "run-master-0", "uid-run-master-0")
CLUSTER = Between(RAY_CLUSTERS, "run-x2", "uid-cluster")
SEEN = Remembered(pods=(("run-master-0", "u1"),))


def begun(seconds_ago: float = 1.0, evidence: str | None = "e") -> Json:
    """The status of a fired run of which the workload was told to go."""
    asked = {"stop": {"requestedAt": (NOW - timedelta(seconds=seconds_ago)).isoformat()}}
    return FIRED | asked | ({"evidence": evidence} if evidence else {})


def going(*values: Any, seconds_ago: float = 1.0, evidence: str | None = "e", **more: Any) -> Snapshot:
    """A run whose teardown has begun."""
    return Snapshot(job(status=begun(seconds_ago, evidence)), *values, **more)


# -- what is deleted -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        FIRED,
        REF | {"guard": {**BEAT, "fire": {**FIRE, "code": "of_a_newer_guard"}}},
        REF | condition("Fired"),
        REF | condition("Halted"),
        FIRED | condition("Succeeded"),
    ],
    ids=["fire", "of a newer guard", "without the guard's field", "halt", "after its end"],
)
def test_a_latch_deletes_the_workload_and_begins_to_collect_the_evidence(status: Json) -> None:
    decision = decide(Snapshot(job(status=status), workload(), (pod(),)), NOW)
    assert decision.actions == (EVIDENCE, DELETE)
    assert decision.report.phase is Phase.STOPPING and decision.look_again == SOON
    assert decision.report.stop is not None and decision.report.stop.requested_at == NOW
    assert [one.uid for one in decision.report.stop.pods] == ["uid-run-master-0"]


@pytest.mark.parametrize("state", [WorkloadState.PENDING, WorkloadState.SUSPENDED, WorkloadState.FAILED])
def test_a_workload_without_pods_is_deleted_too(state: WorkloadState) -> None:
    """A queue cannot admit it again, and a controller cannot start it again."""
    assert decide(Snapshot(job(status=FIRED), workload(state)), NOW).actions == (EVIDENCE, DELETE)


def test_from_the_second_look_on_everything_is_deleted_that_is_not_on_its_way_out() -> None:
    """As a pod whose owner reference was removed, or what makes pods where the workload cannot be deleted."""
    both = (pod(), pod("other", terminating=True))
    assert deleted(decide(going(workload(deleted=NOW), both), NOW)) == [POD]
    refused = going(workload(), (pod(),), between=(CLUSTER,), known=Remembered(refusal="no"))
    cluster = Doomed(RAY_CLUSTERS, "run-x2", "uid-cluster")
    assert deleted(decide(refused, NOW)) == [OF_WORKLOAD, cluster, POD]
    assert cluster not in deleted(
        decide(replace(refused, between=(replace(CLUSTER, terminating=True),)), NOW)
    )
    assert decide(going(workload(ours=False), (GOING,)), NOW).actions == (), "what is not ours is left alone"


@pytest.mark.parametrize("status", [FIRED, begun()], ids=["first look", "later"])
def test_slow_pods_are_deleted_first_with_the_time_that_the_job_allows(status: Json) -> None:
    """A kubelet never shortens a grace period that runs, so one that is on its way out keeps its own."""
    pods = (
        pod(grace=86400),
        pod("quick", grace=60, terminating=True),
        pod("going", grace=900, terminating=True),
    )
    first, *_ = deleted(decide(Snapshot(job(status=status, stopGraceSeconds=60), workload(), pods), NOW))
    assert first == replace(POD, grace=60)


@pytest.mark.parametrize(
    ("seconds", "evidence", "expected"), [(-1, None, []), (1, None, [POD]), (-1, "e", [POD])]
)
def test_a_pod_that_has_ended_is_kept_a_moment_for_its_log(
    seconds: float, evidence: str | None, expected: list[Doomed]
) -> None:
    over = (pod(phase="Failed", grace=86400),)
    seen = going(workload(deleted=NOW), over, seconds_ago=LOGS_SECONDS + seconds, evidence=evidence)
    assert deleted(decide(seen, NOW)) == expected
    assert (EVIDENCE in decide(seen, NOW).actions) is (evidence is None), "asked for until it is written"


# -- when it is over -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        {"workload": workload(WorkloadState.FAILED)},
        {"workload": workload(deleted=NOW)},
        {"pods": (pod(phase="Failed", terminating=True),)},
        {"known": SEEN},
        {"unread": "503"},
        {"between": (CLUSTER,)},
    ],
    ids=["workload", "one that goes", "pod that ended", "pod that was seen", "unread", "maker"],
)
def test_it_is_stopped_only_when_workload_and_pods_are_gone(left: Json) -> None:
    decision = decide(going(**left), NOW)
    assert decision.report.phase is Phase.STOPPING and says(decision)["Stopped"][0] == "False"


def test_then_it_is_stopped_at_once() -> None:
    decision = decide(going(known=SEEN, live=True), NOW)
    assert decision.report.phase is Phase.STOPPED and decision.actions == () and decision.look_again is None
    assert decision.report.stop is not None and decision.report.stop.stopped_at == NOW
    assert decision.report.stop.pods == []
    without_evidence = decide(going(evidence=None), NOW)
    assert without_evidence.actions == (FINAL,) and without_evidence.report.phase is Phase.STOPPED


def test_one_that_was_never_created_is_never_created() -> None:
    decision = decide(Snapshot(job(status={"guard": FIRED["guard"]})), NOW)
    assert decision.report.phase is Phase.STOPPED and decision.actions == () and decision.report.stop is None


def test_what_comes_back_is_a_teardown_of_its_own() -> None:
    decision = decide(Snapshot(job(status=begun(7200) | condition("Stopped")), None, (pod(),)), NOW)
    assert deleted(decision) == [POD] and decision.report.phase is Phase.STOPPING
    assert decision.report.stop is not None and decision.report.stop.requested_at == NOW


# -- what blocks it --------------------------------------------------------------------------------------


def kept(seconds: float, *finalizers: str, pods: Any = ()) -> Snapshot:
    """A workload whose deletion began so long ago."""
    deletion = workload(deleted=NOW - timedelta(seconds=seconds), finalizers=finalizers)
    return going(deletion, pods, seconds_ago=seconds)


def late(seconds: float = 60, **values: Any) -> Snapshot:
    """A pod that should have ended so long ago."""
    one = pod(terminating=True, due=NOW - timedelta(seconds=seconds), node="n7", **values)
    return going(workload(), (one,), seconds_ago=90)


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (
            going(workload(), (pod(),), known=Remembered(refusal='admission webhook "w" denied: ask Bob')),
            'a delete was refused: admission webhook "w" denied: ask Bob; 1 pods are left: run-master-0',
        ),
        (going(workload(), unread="503: etcd"), "the pods cannot be read: 503: etcd"),
        (kept(FINALIZER_SECONDS + 1, "foregroundDeletion", "a/b"), "PyTorchJob run is kept by a/b: "),
        (kept(FINALIZER_SECONDS + 1, "foregroundDeletion"), "the cluster's garbage collector"),
        (late(), "pod run-master-0 should have ended at 23:59:00: look at node n7, and delete the node"),
        (late(finalizers=("a/b",)), "look at node n7"),
        (late(phase="Failed", finalizers=("a/b",)), "pod run-master-0 has ended and is kept by a/b"),
    ],
    ids=["webhook", "unread", "finalizer", "no collector", "dead node", "still runs", "finalizer of a pod"],
)
def test_what_blocks_it_is_said_in_its_own_words(snapshot: Snapshot, words: str) -> None:
    decision = decide(snapshot, NOW)
    assert says(decision)["Stopped"] == ("False", "StopBlocked") and words in message(decision, "Stopped")


@pytest.mark.parametrize(
    "snapshot",
    [kept(FINALIZER_SECONDS - 1, "a/b"), kept(60, "a/b", pods=(GOING,)), late(OVERDUE_SECONDS - 1)],
    ids=["a finalizer for a moment", "pods have their time", "a pod is nearly in time"],
)
def test_what_takes_its_time_is_not_blocked(snapshot: Snapshot) -> None:
    assert says(decide(snapshot, NOW))["Stopped"][1] == "PodsTerminating"


# -- a target, and onFire: Report ------------------------------------------------------------------------


def attached(status: Json) -> Any:
    feed = {"follow": {"path": "log", "format": "verl"}}
    own = {"checkpoints": {"claimName": "c"}, "placement": "Pod", "metrics": feed}
    raw = manifest(status=status, guard=own)
    del raw["spec"]["template"]
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run"}
    return parse_job(raw | {"spec": raw["spec"] | {"targetRef": target}})


def test_a_target_that_somebody_recreates_is_deleted_again_and_who_it_was_is_said() -> None:
    again = workload(uid="new", ours=False, manager="argocd-controller")
    decision = decide(Snapshot(attached(begun(60) | condition("Stopped")), again), NOW)
    assert deleted(decision) == [replace(OF_WORKLOAD, uid="new")]
    assert says(decision)["Stopped"][1] == "TargetRecreated"
    said = message(decision, "Stopped")
    assert said.startswith("argocd-controller recreated PyTorchJob run after the fire")
    gone = decide(Snapshot(attached(begun())), NOW)
    assert gone.report.phase is Phase.STOPPED and gone.look_again == SELDOM, "no event tells"


def test_a_fire_that_is_only_reported_deletes_nothing() -> None:
    def reported(status: Json, state: WorkloadState) -> Any:
        return decide(Snapshot(job(status=status, onFire="Report"), workload(state), (pod(),)), NOW)

    decision = reported(FIRED, WorkloadState.RUNNING)
    assert decision.report.phase is Phase.RUNNING and decision.actions == () and decision.report.stop is None
    assert says(decision)["Fired"] == ("True", "HackingGap") and "Stopped" not in says(decision)
    assert reported(FIRED, WorkloadState.SUCCEEDED).report.phase is Phase.SUCCEEDED
    after_the_end = reported(FIRED | condition("Succeeded"), WorkloadState.SUCCEEDED)
    assert says(after_the_end)["Fired"][0] == "True" and after_the_end.actions == ()
    assert reported(FIRED | condition("Halted"), WorkloadState.RUNNING).actions == (EVIDENCE, DELETE)
