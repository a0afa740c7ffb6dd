"""`decide` over named cases, without a server.

Aspects: creating and refusing; running; fired and halted (first request, re-asserting, escalating,
confirming); ends that are no fires; silence; conditions that never turn back; transition times. Every case
names the snapshot and what must come out; every decision is also checked to be the same when made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from guard_operator.adapters import WorkloadState
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import Latched, Phase, Spec, Status, StopMethod
from guard_operator.reconcile.decide import REASSERT_SECONDS, condition_of, decide
from guard_operator.reconcile.snapshot import (
    CaptureEvidence,
    CreateWorkload,
    Decision,
    DeletePods,
    Disruption,
    Job,
    Pod,
    Preparation,
    RecordLatches,
    Snapshot,
    StopWorkload,
    Waiting,
    Workload,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": LONG_AGO.isoformat()}
BEAT = {"heartbeat": NOW.isoformat()}
REF = {"workloadRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run", "uid": "w"}}


def job(status: dict[str, Any] | None = None, **spec: Any) -> Job:
    return Job(
        "run",
        "ns",
        "u",
        3,
        "10",
        {},
        Spec.model_validate({**SPEC, **spec}),
        Status.model_validate(status or {}),
    )


def guard(**values: Any) -> dict[str, Any]:
    return {"guard": {**BEAT, **values}}


def stop(method: str, seconds_ago: float, evidence: str | None = "e") -> dict[str, Any]:
    at = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    return {"stop": {"requestedAt": at, "method": method, **({"evidence": evidence} if evidence else {})}}


def said(kind: str, status: str = "True", reason: str = "Before") -> dict[str, Any]:
    condition = {"type": kind, "status": status, "reason": reason, "lastTransitionTime": LONG_AGO.isoformat()}
    return {"conditions": [condition]}


def workload(state: WorkloadState = WorkloadState.RUNNING, **values: Any) -> Workload:
    return Workload(**{"uid": "w", "ours": True, "state": state, **values})


def pod(name: str = "run-master-0", **values: Any) -> Pod:
    return Pod(**{"name": name, "uid": f"uid-{name}", "guarded": True, "phase": "Running", **values})


GOING = pod(terminating=True)
LATCHED = Latched.model_validate(FIRE)
HASTY, PATIENT = CaptureEvidence(0.3, final=False), CaptureEvidence(1.0, final=False)
FINAL = CaptureEvidence(1.0, final=True)


@dataclass(frozen=True)
class Expected:
    """What must come out; conditions as (type, status, reason)."""

    phase: Phase
    actions: tuple[Any, ...] = ()
    says: set[tuple[str, str, str]] = field(default_factory=set)
    silent_about: set[str] = field(default_factory=set)
    method: StopMethod | None = None


CASES: dict[str, tuple[Snapshot, Expected]] = {
    "nothing there: create": (
        Snapshot(job(), preparation=Preparation()),
        Expected(
            Phase.PENDING,
            (CreateWorkload(),),
            {
                ("Guarded", "False", "WorkloadPending"),
                ("Isolated", "True", "StrictIsolation"),
                ("Fired", "Unknown", "NoVerdictYet"),
            },
            {"Stopped", "Halted", "Succeeded", "Failed", "Disrupted"},
        ),
    ),
    "template refused": (
        Snapshot(job(), preparation=Preparation(Reason.TEMPLATE_REFUSED, "field x")),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "TemplateRefused")}, {"Isolated"}),
    ),
    "claim missing": (
        Snapshot(job(), preparation=Preparation(Reason.CLAIM_MISSING, "claim", 15.0)),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "ClaimMissing")}),
    ),
    "someone else's workload has the name": (
        Snapshot(job(), workload(ours=False)),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "NameTaken")}),
    ),
    "relaxed isolation says what it costs": (
        Snapshot(job(), preparation=Preparation(), costs=("hostNetwork: x",)),
        Expected(Phase.PENDING, (CreateWorkload(),), {("Isolated", "False", "RelaxedIsolation")}),
    ),
    "a pod that cannot start is said": (
        Snapshot(
            job(REF),
            workload(WorkloadState.PENDING),
            (
                pod("run-worker-0", guarded=False, waiting=Waiting(Reason.CONTAINER_WAITING, "image")),
                pod(phase="Pending", waiting=Waiting(Reason.UNSCHEDULABLE, "no node")),
            ),
        ),
        Expected(Phase.PENDING, (), {("Waiting", "True", "Unschedulable")}),
    ),
    "a pod that goes waits for nothing": (
        Snapshot(
            job(REF),
            workload(WorkloadState.PENDING),
            (pod(terminating=True, waiting=Waiting(Reason.UNSCHEDULABLE, "no node")),),
        ),
        Expected(Phase.PENDING, silent_about={"Waiting"}),
    ),
    "created, pods not running yet": (
        Snapshot(job(), workload(WorkloadState.PENDING)),
        Expected(
            Phase.PENDING,
            (),
            {("Guarded", "True", "WorkloadCreated"), ("GuardSilent", "Unknown", "GuardNotRunning")},
        ),
    ),
    "suspended by a queue": (
        Snapshot(job(REF), workload(WorkloadState.SUSPENDED)),
        Expected(Phase.SUSPENDED, (), {("Guarded", "True", "WorkloadCreated")}),
    ),
    "running, guard reports": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=1.0),
        Expected(
            Phase.RUNNING, (), {("Fired", "False", "NotFired"), ("GuardSilent", "False", "GuardReports")}
        ),
    ),
    "running, no verdict yet": (
        Snapshot(job(REF), workload(), (pod(),), heartbeat_age=1.0),
        Expected(
            Phase.RUNNING,
            (),
            {("Fired", "Unknown", "NoVerdictYet"), ("GuardSilent", "Unknown", "NoVerdictYet")},
        ),
    ),
    "guard silent, policy Warn": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=301.0),
        Expected(Phase.RUNNING, (), {("GuardSilent", "True", "GuardSilent")}, {"Halted", "Stopped"}),
    ),
    "guard silent, policy Stop": (
        Snapshot(
            job({**REF, **guard()}, onSilence={"afterSeconds": 30, "policy": "Stop"}),
            workload(),
            (pod(),),
            heartbeat_age=31.0,
        ),
        Expected(
            Phase.STOPPING,
            (HASTY, StopWorkload(StopMethod.STOP, "w")),
            {
                ("Halted", "True", "GuardSilent"),
                ("Fired", "False", "NotFired"),
                ("Stopped", "False", "StopRequested"),
            },
        ),
    ),
    "guard never reported, policy Stop": (
        Snapshot(
            job(REF, onSilence={"afterSeconds": 30, "policy": "Stop"}),
            workload(),
            (pod(),),
            heartbeat_age=31.0,
        ),
        Expected(
            Phase.STOPPING,
            (HASTY, StopWorkload(StopMethod.STOP, "w")),
            {("Halted", "True", "GuardSilent"), ("Fired", "Unknown", "NoVerdictYet")},
        ),
    ),
    "halted by the guard": (
        Snapshot(job({**REF, **guard(halt={**FIRE, "code": "stale"})}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING,
            (HASTY, StopWorkload(StopMethod.STOP, "w")),
            {("Halted", "True", "GuardHalt"), ("Fired", "False", "NotFired")},
        ),
    ),
    "halted stays halted when the guard is back": (
        Snapshot(
            job({**REF, **guard(), **said("Halted"), **stop("Stop", 1)}),
            workload(),
            (pod(),),
            heartbeat_age=0.0,
        ),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.STOP, "w"),), {("Halted", "True", "Before")}),
    ),
    "fired: evidence, then stop": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING,
            (HASTY, StopWorkload(StopMethod.STOP, "w")),
            {("Fired", "True", "HackingGap"), ("Stopped", "False", "StopRequested")},
            {"Halted", "Failed"},
            StopMethod.STOP,
        ),
    ),
    "fired by a rule of a newer guard": (
        Snapshot(job({**REF, **guard(fire={**FIRE, "code": "cusum"})}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING, (HASTY, StopWorkload(StopMethod.STOP, "w")), {("Fired", "True", "OtherRule")}
        ),
    ),
    "fired stays fired without the guard's field": (
        Snapshot(job({**REF, **said("Fired"), **stop("Stop", 1)}), workload(), (pod(),)),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.STOP, "w"),), {("Fired", "True", "Before")}),
    ),
    "fired, onFire Suspend": (
        Snapshot(job({**REF, **guard(fire=FIRE)}, onFire="Suspend"), workload(), (pod(),)),
        Expected(Phase.STOPPING, (HASTY, StopWorkload(StopMethod.SUSPEND, "w")), method=StopMethod.SUSPEND),
    ),
    "fired, onFire Delete": (
        Snapshot(job({**REF, **guard(fire=FIRE)}, onFire="Delete"), workload(), (pod(),)),
        Expected(Phase.STOPPING, (HASTY, StopWorkload(StopMethod.DELETE, "w")), method=StopMethod.DELETE),
    ),
    "fired before there was a workload": (
        Snapshot(job(guard(fire=FIRE))),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}),
    ),
    "fired, and all is over when it is seen: evidence all the same": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.FAILED)),
        Expected(Phase.STOPPED, (FINAL,), {("Stopped", "True", "NoPodsLeft")}, method=StopMethod.STOP),
    ),
    "fired while the workload has no pods yet": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.PENDING)),
        Expected(
            Phase.STOPPING,
            (HASTY, StopWorkload(StopMethod.STOP, "w")),
            {("Stopped", "False", "StopRequested")},
        ),
    ),
    "stopping: asserted again": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.STOP, "w"),),
            {("Stopped", "False", "PodsTerminating")},
            method=StopMethod.STOP,
        ),
    ),
    "stopping: evidence is tried again": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1, None)}), workload(), (GOING,)),
        Expected(Phase.STOPPING, (PATIENT,)),
    ),
    "stopping: all pods on their way out": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 900)}), workload(), (GOING,)),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "PodsTerminating")}, method=StopMethod.STOP),
    ),
    "stopping: a new pod beside one on its way out": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}), workload(), (GOING, pod("run-master-1"))
        ),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.STOP, "w"),)),
    ),
    "stopping: the patch had no effect": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", REASSERT_SECONDS)}), workload(), (pod(),)),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.DELETE, "w"),), method=StopMethod.DELETE),
    ),
    "stopping: resumed by a queue": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Suspend", 900)}, onFire="Suspend"), workload(), (pod(),)
        ),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.DELETE, "w"),), method=StopMethod.DELETE),
    ),
    "stopping: the delete had no effect on the pods": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Delete", REASSERT_SECONDS)}), None, (pod(), GOING)),
        Expected(
            Phase.STOPPING,
            (DeletePods((("run-master-0", "uid-run-master-0"),)),),
            method=StopMethod.DELETE_PODS,
        ),
    ),
    "stopping: pods are deleted and the workload too": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("DeletePods", 900)}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.DELETE, "w"), DeletePods((("run-master-0", "uid-run-master-0"),))),
            method=StopMethod.DELETE_PODS,
        ),
    ),
    "stopping: someone else's workload is left alone": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Delete", 1)}), workload(ours=False), (pod(),)),
        Expected(Phase.STOPPING, ()),
    ),
    "stopping: a finished pod still counts, and is deleted": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}),
            workload(WorkloadState.FAILED),
            (pod(phase="Failed"), pod("other", phase="Succeeded", terminating=True)),
        ),
        Expected(Phase.STOPPING, (DeletePods((("run-master-0", "uid-run-master-0"),)),)),
    ),
    "stopping: a finished pod beside one that runs": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}),
            workload(),
            (pod(phase="Failed"), pod("other")),
        ),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.STOP, "w"), DeletePods((("run-master-0", "uid-run-master-0"),))),
        ),
    ),
    "stopping: a finished pod stays until its log is in the evidence": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1, evidence=None)}),
            workload(WorkloadState.FAILED),
            (pod(phase="Failed"),),
        ),
        Expected(Phase.STOPPING, (PATIENT,)),
    ),
    "stopping: a finished pod whose log cannot be had goes in the end": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", REASSERT_SECONDS + 1, evidence=None)}),
            workload(WorkloadState.FAILED),
            (pod(phase="Failed"),),
        ),
        Expected(
            Phase.STOPPING,
            (PATIENT, DeletePods((("run-master-0", "uid-run-master-0"),))),
            method=StopMethod.STOP,
        ),
    ),
    "stopped: workload failed by its deadline": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}), workload(WorkloadState.FAILED)),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}, {"Failed"}),
    ),
    "stopped: workload deleted": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Delete", 1)})),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}, {"Disrupted"}),
    ),
    "stopped: suspended as asked": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Suspend", 1)}, onFire="Suspend"),
            workload(WorkloadState.SUSPENDED),
        ),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}),
    ),
    "suspended by a queue is not stopped": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}), workload(WorkloadState.SUSPENDED)),
        Expected(
            Phase.STOPPING, (StopWorkload(StopMethod.STOP, "w"),), {("Stopped", "False", "PodsTerminating")}
        ),
    ),
    "stopped without evidence: written at the end": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1, None)})),
        Expected(Phase.STOPPED, (FINAL,)),
    ),
    "stopped, then a pod is back": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 900), **said("Stopped")}), workload(), (pod(),)
        ),
        Expected(
            Phase.STOPPING, (StopWorkload(StopMethod.DELETE, "w"),), {("Stopped", "False", "PodsTerminating")}
        ),
    ),
    "fired after it had succeeded": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **said("Succeeded")}),
            workload(WorkloadState.SUCCEEDED),
            (pod(phase="Succeeded"),),
        ),
        Expected(
            Phase.STOPPING, (HASTY, StopWorkload(StopMethod.STOP, "w")), {("Fired", "True", "HackingGap")}
        ),
    ),
    "the guard's last word is in its pod": (
        Snapshot(
            job({**REF, **guard(), **said("Failed"), "phase": "Failed"}),
            workload(WorkloadState.FAILED),
            (pod(phase="Failed", fire=LATCHED),),
        ),
        Expected(Phase.FAILED, (RecordLatches(LATCHED, None),), {("Failed", "True", "Before")}, {"Fired"}),
    ),
    "the last word was a halt": (
        Snapshot(job({**REF, **guard(), "phase": "Running"}), workload(), (pod(halt=LATCHED),)),
        Expected(Phase.RUNNING, (RecordLatches(None, LATCHED),)),
    ),
    "the last word is in the status already": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(fire=LATCHED),)),
        Expected(Phase.STOPPING, (HASTY, StopWorkload(StopMethod.STOP, "w"))),
    ),
    "the last word of a guard that is not rank 0's": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(), pod("w-1", guarded=False, fire=LATCHED))),
        Expected(Phase.RUNNING, ()),
    ),
    "succeeded": (
        Snapshot(job({**REF, **guard()}), workload(WorkloadState.SUCCEEDED)),
        Expected(
            Phase.SUCCEEDED,
            (),
            {("Succeeded", "True", "WorkloadSucceeded"), ("Fired", "False", "NotFired")},
            {"Stopped"},
        ),
    ),
    "succeeded before its last checkpoints were evaluated": (
        Snapshot(job({**REF, **guard(waiting=2)}), workload(WorkloadState.SUCCEEDED)),
        Expected(Phase.SUCCEEDED, (), {("Succeeded", "True", "CheckpointsLeft")}),
    ),
    "failed by itself": (
        Snapshot(job({**REF, **guard()}), workload(WorkloadState.FAILED), (pod(phase="Failed"),)),
        Expected(
            Phase.FAILED,
            (),
            {("Failed", "True", "WorkloadFailed"), ("Fired", "False", "NotFired")},
            {"Disrupted"},
        ),
    ),
    "evicted": (
        Snapshot(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.EVICTED),)),
        Expected(
            Phase.DISRUPTED,
            (),
            {("Disrupted", "True", "Evicted"), ("Fired", "Unknown", "NoVerdictYet")},
            {"Failed"},
        ),
    ),
    "preempted": (
        Snapshot(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.PREEMPTED),)),
        Expected(Phase.DISRUPTED, (), {("Disrupted", "True", "Preempted")}),
    ),
    "evicted, noted before the pod went": (
        Snapshot(job({**REF, **said("Disrupted", "False", "NodeLost")}), workload(WorkloadState.FAILED)),
        Expected(Phase.DISRUPTED, (), {("Disrupted", "True", "NodeLost")}),
    ),
    "evicted, still running elsewhere: noted": (
        Snapshot(job(REF), workload(), (pod(disruption=Disruption.EVICTED),)),
        Expected(Phase.RUNNING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted and recovered: forgotten": (
        Snapshot(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(),)),
        Expected(Phase.RUNNING, (), silent_about={"Disrupted"}),
    ),
    "evicted, not yet recovered: still noted": (
        Snapshot(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(phase="Pending"),)),
        Expected(Phase.RUNNING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "a worker is evicted that is older than rank 0: noted": (
        Snapshot(job(REF), workload(), (pod("w", guarded=False, disruption=Disruption.EVICTED), pod("m"))),
        Expected(Phase.RUNNING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted, its pod kept, and recovered in another: forgotten": (
        Snapshot(
            job({**REF, **said("Disrupted", "False", "Evicted")}),
            workload(),
            (pod("a", phase="Failed", disruption=Disruption.EVICTED), pod("b")),
        ),
        Expected(Phase.RUNNING, (), silent_about={"Disrupted"}),
    ),
    "evicted once, and failed later in another pod: failed": (
        Snapshot(
            job(REF),
            workload(WorkloadState.FAILED),
            (pod("a", phase="Failed", disruption=Disruption.EVICTED), pod("b", phase="Failed")),
        ),
        Expected(Phase.FAILED, (), {("Failed", "True", "WorkloadFailed")}, {"Disrupted"}),
    ),
    "workload deleted by someone": (
        Snapshot(job({**REF, **guard()})),
        Expected(Phase.DISRUPTED, (), {("Disrupted", "True", "WorkloadDeleted")}, {"Stopped", "Failed"}),
    ),
    "workload being deleted by someone": (
        Snapshot(job({**REF, **guard()}), workload(terminating=True), (GOING,)),
        Expected(Phase.DISRUPTED, (), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "a namesake took the workload's place": (
        Snapshot(job(REF), workload(uid="other")),
        Expected(Phase.DISRUPTED, (), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "succeeded stays succeeded when the workload is cleaned up": (
        Snapshot(job({**REF, **said("Succeeded")})),
        Expected(Phase.SUCCEEDED, (), {("Succeeded", "True", "Before")}, {"Disrupted"}),
    ),
}


@pytest.mark.parametrize(("snapshot", "expected"), CASES.values(), ids=CASES.keys())
def test_decision(snapshot: Snapshot, expected: Expected) -> None:
    decision = decide(snapshot, NOW)
    says = {(c.type, c.status, c.reason) for c in decision.report.conditions}
    assert decision.report.phase == expected.phase
    assert decision.actions == expected.actions
    assert expected.says <= says
    assert not expected.silent_about & {kind for kind, _, _ in says}
    if expected.method is not None:
        assert decision.report.stop is not None
        assert decision.report.stop.method == expected.method
    assert decide(snapshot, NOW) == decision


@pytest.mark.parametrize("snapshot", [snapshot for snapshot, _ in CASES.values()], ids=CASES.keys())
def test_one_condition_of_each_type_in_one_order(snapshot: Snapshot) -> None:
    kinds = [c.type for c in decide(snapshot, NOW).report.conditions]
    assert kinds == sorted(set(kinds))


@pytest.mark.parametrize("snapshot", [snapshot for snapshot, _ in CASES.values()], ids=CASES.keys())
def test_only_a_fire_of_the_guard_is_called_a_fire(snapshot: Snapshot) -> None:
    status = snapshot.job.status
    fired = condition_of(status, ConditionType.FIRED)
    was = fired is not None and fired.status == "True"
    evidence = was or (status.guard is not None and status.guard.fire is not None)
    says = {(c.type, c.status) for c in decide(snapshot, NOW).report.conditions}
    assert (("Fired", "True") in says) == evidence


def _after(decision: Decision, snapshot: Snapshot) -> Status:
    report = decision.report
    update = {"conditions": list(report.conditions), "stop": report.stop, "phase": report.phase}
    return snapshot.job.status.model_copy(update={**update, "workload_ref": report.workload_ref})


def test_the_transition_time_moves_only_with_the_status() -> None:
    running = Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=1.0)
    first = decide(running, LONG_AGO)
    again = Snapshot(
        Job("run", "ns", "u", 4, "11", {}, running.job.spec, _after(first, running)),
        workload(),
        (pod(),),
        heartbeat_age=1.0,
    )
    for condition in decide(again, NOW).report.conditions:
        assert condition.last_transition_time == LONG_AGO
        assert condition.observed_generation == 4
    silent = Snapshot(again.job, workload(), (pod(),), heartbeat_age=999.0)
    moved = {c.type: c.last_transition_time for c in decide(silent, NOW).report.conditions}
    assert moved["GuardSilent"] == NOW and moved["Fired"] == LONG_AGO


def test_a_stop_request_is_dated_once() -> None:
    fired = Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(),))
    first = decide(fired, LONG_AGO)
    later = Snapshot(
        Job("run", "ns", "u", 3, "11", {}, fired.job.spec, _after(first, fired)), workload(), (GOING,)
    )
    stop_status = decide(later, LONG_AGO + timedelta(seconds=1)).report.stop
    assert stop_status is not None and stop_status.requested_at == LONG_AGO


@pytest.mark.parametrize(
    ("age", "seconds"), [(None, None), (0.0, 60.0), (270.0, 30.1), (300.0, 0.1), (301.0, 60.0)]
)
def test_a_running_job_is_looked_at_when_its_guard_would_be_silent(
    age: float | None, seconds: float | None
) -> None:
    running = Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=age)
    assert decide(running, NOW).look_again == pytest.approx(seconds)
