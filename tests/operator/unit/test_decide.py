"""`decide` over named cases, without a server.

Aspects: creating and refusing; running; fired and halted (first request, re-asserting, escalating,
confirming); ends that are no fires; silence, and what must be read live and written down before a run is
halted; jobs that are being deleted; kinds that this operator does not know; conditions that never turn back;
transition times. Every case names the snapshot and what must come out; every decision is also checked to be
the same when made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from guard_operator.adapters import WorkloadState
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import Latched, Phase, Spec, Status, StopMethod
from guard_operator.reconcile.actuate import _sayable, _says, status_patch
from guard_operator.reconcile.decide import (
    DEAF_SECONDS,
    HELD_BACK_SECONDS,
    LATE_SECONDS,
    RUNNING_SECONDS,
    decide,
)
from guard_operator.reconcile.decision import (
    CaptureEvidence,
    CreateWorkload,
    Decision,
    DeleteBetween,
    DeletePods,
    RecordLatches,
    StopWorkload,
)
from guard_operator.reconcile.endings import EVIDENCE_SECONDS
from guard_operator.reconcile.glance import is_only_a_report
from guard_operator.reconcile.halts import must_be_live
from guard_operator.reconcile.parse import read_status
from guard_operator.reconcile.snapshot import (
    Between,
    Disruption,
    Job,
    Pod,
    Preparation,
    Snapshot,
    Waiting,
    Workload,
    condition_of,
)
from guard_operator.reconcile.teardown import (
    LATER_SECONDS,
    OVERDUE_SECONDS,
    REASSERT_SECONDS,
    SETTLE_ESCALATED_SECONDS,
    SETTLE_SECONDS,
    STOPPING_SECONDS,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
    "onSilence": {"afterSeconds": 300, "action": "Warn"},
}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": LONG_AGO.isoformat()}
BEAT = {"heartbeat": NOW.isoformat(), "step": 1}
#: The last word of a guard that has judged all of a run.
JUDGED = {"level": "healthy", "code": "ok", "reason": "fine", "announced": 3, "evaluated": 3, "waiting": 0}
#: What a guard says beside it whose trainer has told it that it had finished.
FINISHED = {"attempt": 0, "step": 9, "ended": {"attempt": 0, "step": 9}}
#: A run that went on after its last judged checkpoint.
TRAINED_ON = JUDGED | {
    **{"step": 500, "stepsSinceEvaluation": 25, "longestRound": 25},
    "lastEvaluation": {"attempt": 0, "step": 100, "score": 0.5, "items": 8, "path": "/c/100"},
}
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


def deleting(status: dict[str, Any]) -> Job:
    return replace(job({**REF, **status}), deleting=True)


def guard(**values: Any) -> dict[str, Any]:
    return {"guard": {**BEAT, **values}}


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def stop(method: str, seconds_ago: float, evidence: str | None = "e", **times: float) -> dict[str, Any]:
    """`times`: further times of the stop, each in seconds ago."""
    named = {"evidence": evidence} if evidence else {}
    further = {name: ago(seconds) for name, seconds in times.items()}
    return {"stop": {"requestedAt": ago(seconds_ago), "method": method, **further}, **named}


def said(kind: str, status: str = "True", reason: str = "Before") -> dict[str, Any]:
    condition = {"type": kind, "status": status, "reason": reason, "lastTransitionTime": LONG_AGO.isoformat()}
    return {"conditions": [condition]}


def ended(kind: str, seconds_ago: float) -> dict[str, Any]:
    (condition,) = said(kind)["conditions"]
    return {"conditions": [{**condition, "lastTransitionTime": ago(seconds_ago)}]}


def workload(state: WorkloadState = WorkloadState.RUNNING, **values: Any) -> Workload:
    return Workload(**{"uid": "w", "ours": True, "state": state, **values})


def pod(name: str = "run-master-0", **values: Any) -> Pod:
    given = {"name": name, "uid": f"uid-{name}", "rank0": True, "guarded": True, "guard_since": LONG_AGO}
    return Pod(**{**given, "phase": "Running", **values})


def silent(age: float = 31.0, status: dict[str, Any] | None = None, **values: Any) -> Snapshot:
    """A run whose guard has not reported for `age` seconds, with a limit of 30 and the policy Stop."""
    given = job({**REF, **guard(), **(status or {})}, onSilence={"afterSeconds": 30, "action": "Stop"})
    return Snapshot(given, **{"workload": workload(), "pods": (pod(),), "heartbeat_age": age, **values})


GOING = pod(terminating=True)
CLUSTER = Between(RAY_CLUSTERS, "run-x2", "uid-cluster")
LATCHED = Latched.model_validate(FIRE)
UNKNOWN_KIND = Preparation(Reason.UNSUPPORTED_KIND, "spec.template: x/v1 Y cannot be guarded")
EVIDENCE = CaptureEvidence(final=False)
FINAL = CaptureEvidence(final=True)


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
                pod(
                    "run-worker-0",
                    rank0=False,
                    guarded=False,
                    waiting=Waiting(Reason.CONTAINER_WAITING, "image"),
                ),
                pod(phase="Pending", waiting=Waiting(Reason.UNSCHEDULABLE, "no node")),
            ),
        ),
        Expected(Phase.PENDING, (), {("Waiting", "True", "Unschedulable")}),
    ),
    "what Events say of a pod that does not start": (
        Snapshot(
            job(REF),
            workload(WorkloadState.PENDING),
            (pod(phase="Pending"),),
            late=True,
            obstacle=Waiting(Reason.VOLUME_UNAVAILABLE, "secret"),
        ),
        Expected(Phase.PENDING, (), {("Waiting", "True", "VolumeUnavailable")}),
    ),
    "a pod's own status goes before Events": (
        Snapshot(
            job(REF),
            workload(WorkloadState.PENDING),
            (pod(phase="Pending", waiting=Waiting(Reason.UNSCHEDULABLE, "no node")),),
            obstacle=Waiting(Reason.PODS_MISSING, "quota"),
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
    "running, but no step of the trainer was reported yet": (
        Snapshot(job({**REF, **guard(step=None)}), workload(), (pod(),), heartbeat_age=1.0),
        Expected(Phase.STARTING, (), {("Fired", "False", "NotFired")}),
    ),
    "running, guard reports": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=1.0),
        Expected(
            Phase.RUNNING, (), {("Fired", "False", "NotFired"), ("GuardSilent", "False", "GuardReports")}
        ),
    ),
    "said to run, but its only pod goes, and another may not be made": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(terminating=True),), heartbeat_age=1.0),
        Expected(Phase.PENDING, (), {("Fired", "False", "NotFired")}),
    ),
    "said to run, but no pod of it is there": (
        Snapshot(job({**REF, **guard()}), workload(), heartbeat_age=1.0),
        Expected(Phase.PENDING),
    ),
    "running, no verdict yet": (
        Snapshot(job(REF), workload(), (pod(),), heartbeat_age=1.0),
        Expected(
            Phase.STARTING,
            (),
            {("Fired", "Unknown", "NoVerdictYet"), ("GuardSilent", "Unknown", "NoVerdictYet")},
        ),
    ),
    "guard silent, policy Warn": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=301.0),
        Expected(Phase.RUNNING, (), {("GuardSilent", "True", "GuardSilent")}, {"Halted", "Stopped"}),
    ),
    "guard silent, policy Stop: written down before anything is done": (
        silent(live=True),
        Expected(
            Phase.RUNNING,
            (),
            {
                ("GuardSilent", "True", "GuardSilent"),
                ("Halted", "True", "GuardSilent"),
                ("Fired", "Unknown", "GuardSilent"),
            },
            {"Stopped"},
        ),
    ),
    "guard silent, policy Stop, from a cache: nothing": (
        silent(),
        Expected(Phase.PENDING, (), silent_about={"Halted", "Stopped", "GuardSilent"}),
    ),
    "guard silent, policy Stop, most others too: nothing is stopped": (
        silent(live=True, most_silent=True),
        Expected(Phase.RUNNING, (), {("GuardSilent", "True", "MostGuardsSilent")}, {"Halted", "Stopped"}),
    ),
    "guard silent, policy Stop, on a node that does not respond: nothing is stopped": (
        silent(live=True, pods=(pod(cut_off=True, node="gpu-1"),)),
        Expected(Phase.RUNNING, (), {("GuardSilent", "True", "GuardSilent")}, {"Halted", "Stopped"}),
    ),
    "no guard, policy Stop, on a node that does not respond": (
        silent(live=True, pods=(pod(cut_off=True, guarded=False),)),
        Expected(Phase.RUNNING, (), {("Halted", "True", "GuardSilent")}),
    ),
    "no guard, policy Stop, and a guard of before on a node that does not respond": (
        silent(live=True, pods=(pod(guarded=False), pod("run-old-0", rank0=False, cut_off=True))),
        Expected(Phase.RUNNING, (), {("Halted", "True", "GuardSilent")}),
    ),
    "no guard, policy Stop, while most guards are silent": (
        silent(live=True, most_silent=True, pods=(pod(guarded=False),)),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("GuardSilent", "True", "GuardSilent")}
        ),
    ),
    "guard silent, policy Stop, and the node of another pod does not respond": (
        silent(live=True, pods=(pod(), pod("run-worker-0", rank0=False, guarded=False, cut_off=True))),
        Expected(Phase.RUNNING, (), {("Halted", "True", "GuardSilent")}),
    ),
    "guard silent, policy Stop, and that was written down": (
        silent(31.0, said("Halted"), most_silent=True),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, StopWorkload(StopMethod.STOP, "w")),
            {
                ("Halted", "True", "Before"),
                ("Fired", "Unknown", "GuardSilent"),
                ("Stopped", "False", "StopRequested"),
            },
        ),
    ),
    "guard never reported, policy Stop": (
        Snapshot(
            job(REF, onSilence={"afterSeconds": 30, "action": "Stop"}),
            workload(),
            (pod(),),
            heartbeat_age=31.0,
            live=True,
        ),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("Fired", "Unknown", "NoVerdictYet")}
        ),
    ),
    "silence cannot be told while the watch shows nothing": (
        silent(heartbeat_age=None, deaf=True, live=True),
        Expected(Phase.RUNNING, (), {("GuardSilent", "Unknown", "WatchInterrupted")}, {"Halted", "Stopped"}),
    ),
    "halted by the guard: written down before anything is done": (
        Snapshot(job({**REF, **guard(halt={**FIRE, "code": "stale"})}), workload(), (pod(),), live=True),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardHalt"), ("Fired", "False", "NotFired")}, {"Stopped"}
        ),
    ),
    "halted by the guard, from a cache: nothing": (
        Snapshot(job({**REF, **guard(halt={**FIRE, "code": "stale"})}), workload(), (pod(),)),
        Expected(Phase.PENDING, (), silent_about={"Halted", "Stopped"}),
    ),
    "halted and fired: the fire waits for nothing": (
        Snapshot(job({**REF, **guard(halt=FIRE, fire=FIRE)}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, StopWorkload(StopMethod.STOP, "w")),
            {("Halted", "True", "GuardHalt"), ("Fired", "True", "HackingGap")},
        ),
    ),
    "fired once, and halted from a cache: the fire waits for nothing": (
        Snapshot(job({**REF, **guard(halt=FIRE), **said("Fired")}), workload(), (pod(),)),
        Expected(Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w"))),
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
            (EVIDENCE, StopWorkload(StopMethod.STOP, "w")),
            {("Fired", "True", "HackingGap"), ("Stopped", "False", "StopRequested")},
            {"Halted", "Failed"},
            StopMethod.STOP,
        ),
    ),
    "fired by a rule of a newer guard": (
        Snapshot(job({**REF, **guard(fire={**FIRE, "code": "cusum"})}), workload(), (pod(),)),
        Expected(
            Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w")), {("Fired", "True", "OtherRule")}
        ),
    ),
    "fired stays fired without the guard's field": (
        Snapshot(job({**REF, **said("Fired"), **stop("Stop", 1)}), workload(), (pod(),)),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.STOP, "w"),), {("Fired", "True", "Before")}),
    ),
    "fired, onFire Suspend": (
        Snapshot(job({**REF, **guard(fire=FIRE)}, onFire="Suspend"), workload(), (pod(),)),
        Expected(
            Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.SUSPEND, "w")), method=StopMethod.SUSPEND
        ),
    ),
    "fired, onFire Delete": (
        Snapshot(job({**REF, **guard(fire=FIRE)}, onFire="Delete"), workload(), (pod(),)),
        Expected(Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.DELETE, "w")), method=StopMethod.DELETE),
    ),
    "fired before there was a workload": (
        Snapshot(job(guard(fire=FIRE))),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}),
    ),
    "fired, and all is over when it is seen: evidence all the same": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.FAILED)),
        Expected(Phase.STOPPING, (FINAL,), {("Stopped", "False", "Settling")}, method=StopMethod.STOP),
    ),
    "fired while the workload has no pods yet": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.PENDING)),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, StopWorkload(StopMethod.STOP, "w")),
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
        Expected(Phase.STOPPING, (EVIDENCE,)),
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
    "stopping: what makes pods for a workload that does not go is deleted": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Delete", REASSERT_SECONDS)}),
            workload(terminating=True),
            (pod(),),
            between=(CLUSTER, replace(CLUSTER, uid="gone", terminating=True)),
        ),
        Expected(
            Phase.STOPPING,
            (DeleteBetween((CLUSTER,)), DeletePods((("run-master-0", "uid-run-master-0"),))),
            method=StopMethod.DELETE_PODS,
        ),
    ),
    **{
        f"stopping by {method}: what makes pods is deleted although none is there now": (
            Snapshot(
                job({**REF, **guard(fire=FIRE), **stop(method, seconds)}),
                workload(terminating=True),
                between=(CLUSTER,),
            ),
            Expected(
                Phase.STOPPING,
                (DeleteBetween((CLUSTER,)), DeletePods(())),
                {("Stopped", "False", "PodsTerminating")},
                method=StopMethod.DELETE_PODS,
            ),
        )
        for method, seconds in (("Delete", REASSERT_SECONDS), ("DeletePods", 900))
    },
    "stopping: what makes its pods is left to a workload that goes": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Delete", REASSERT_SECONDS - 1)}),
            workload(terminating=True),
            (pod(),),
            between=(CLUSTER,),
        ),
        Expected(Phase.STOPPING, ()),
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
        Expected(Phase.STOPPING, (EVIDENCE,)),
    ),
    "stopping: a finished pod whose log cannot be had goes in the end": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", REASSERT_SECONDS + 1, evidence=None)}),
            workload(WorkloadState.FAILED),
            (pod(phase="Failed"),),
        ),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, DeletePods((("run-master-0", "uid-run-master-0"),))),
            method=StopMethod.STOP,
        ),
    ),
    "no pod is seen for the first time: not called stopped yet": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 900)}), workload(WorkloadState.FAILED)),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "Settling")}, {"Failed"}),
    ),
    "no pod has been seen for a moment: not called stopped yet": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 900, emptySince=SETTLE_SECONDS - 0.1)}),
            workload(WorkloadState.FAILED),
        ),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "Settling")}, {"Failed"}),
    ),
    "no pod since a request that had no effect: its controller may be behind": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Delete", 9, emptySince=SETTLE_ESCALATED_SECONDS - 0.1)})
        ),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "Settling")}, method=StopMethod.DELETE),
    ),
    "stopped after a request that had no effect": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Delete", 9, emptySince=SETTLE_ESCALATED_SECONDS)})),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}, method=StopMethod.DELETE),
    ),
    "stopped: workload failed by its deadline": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 6, emptySince=SETTLE_SECONDS)}),
            workload(WorkloadState.FAILED),
        ),
        Expected(
            Phase.STOPPED,
            (),
            {("Stopped", "True", "NoPodsLeft"), ("Fired", "True", "HackingGap")},
            {"Failed"},
        ),
    ),
    "stopped by an operator that did not wait: it stays so": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 7200), **said("Stopped")}),
            workload(WorkloadState.FAILED),
        ),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}),
    ),
    "a controller whose cache is behind made a pod again before it was called stopped": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 6, emptySince=3)}),
            workload(WorkloadState.FAILED),
            (pod(),),
        ),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.STOP, "w"),),
            {("Stopped", "False", "PodsTerminating")},
            method=StopMethod.STOP,
        ),
    ),
    "a queue resumed it before it was called stopped: the harder way is due": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Suspend", 900, emptySince=3)}, onFire="Suspend"),
            workload(),
            (pod(),),
        ),
        Expected(Phase.STOPPING, (StopWorkload(StopMethod.DELETE, "w"),), method=StopMethod.DELETE),
    ),
    "halted and stopped: it had not fired": (
        Snapshot(
            job({**REF, **guard(halt=FIRE), **said("Halted"), **stop("Stop", 9, emptySince=9)}),
            workload(WorkloadState.FAILED),
        ),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft"), ("Fired", "False", "NotFired")}),
    ),
    "pods that may take longer than the job allows are given less": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}, stopGraceSeconds=60),
            workload(),
            (pod(terminating=True, grace=86400), pod("w", terminating=True, grace=60)),
        ),
        Expected(Phase.STOPPING, (DeletePods((("run-master-0", "uid-run-master-0"),), 60),)),
    ),
    "slow pods are told to end before what makes them is, with the time that the job allows": (
        Snapshot(
            job({**REF, **guard(fire=FIRE)}, stopGraceSeconds=60),
            workload(),
            (
                pod(grace=61),
                pod("in time", grace=60),
                pod("going", terminating=True, grace=86400),
                pod("done", phase="Succeeded", grace=86400),
            ),
        ),
        Expected(
            Phase.STOPPING,
            (
                CaptureEvidence(False),
                DeletePods((("run-master-0", "uid-run-master-0"),), 60),
                StopWorkload(StopMethod.STOP, "w"),
            ),
        ),
    ),
    "a slow pod that came after the stop was asked for, too": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}, stopGraceSeconds=60),
            workload(),
            (pod(grace=86400),),
        ),
        Expected(
            Phase.STOPPING,
            (
                DeletePods((("run-master-0", "uid-run-master-0"),), 60),
                StopWorkload(StopMethod.STOP, "w"),
            ),
        ),
    ),
    "of pods that are deleted one by one, the slow ones get no longer either": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("DeletePods", 1)}, stopGraceSeconds=60),
            workload(),
            (pod(grace=86400), pod("w")),
        ),
        Expected(
            Phase.STOPPING,
            (
                DeletePods((("run-master-0", "uid-run-master-0"),), 60),
                StopWorkload(StopMethod.DELETE, "w"),
                DeletePods((("w", "uid-w"),), None),
            ),
        ),
    ),
    "a pod that should have ended long ago is said": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 60)}),
            workload(),
            (pod(terminating=True, due=NOW - timedelta(seconds=OVERDUE_SECONDS + 1)),),
        ),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "PodsOverdue")}),
    ),
    "a pod that should have ended just now is waited for": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 60)}),
            workload(),
            (pod(terminating=True, due=NOW - timedelta(seconds=OVERDUE_SECONDS)),),
        ),
        Expected(Phase.STOPPING, (), {("Stopped", "False", "PodsTerminating")}),
    ),
    "the guard's container has ended: there is no verdict now": (
        Snapshot(job({**REF, **guard(**JUDGED)}), workload(), (pod(guard_since=None),), heartbeat_age=1.0),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "the guard was started anew and has not reported: there is no verdict now": (
        Snapshot(
            job({**REF, **guard(**JUDGED)}),
            workload(),
            (pod(guard_since=NOW + timedelta(seconds=1)),),
            heartbeat_age=1.0,
        ),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "the only guard that runs is not rank 0's: there is no verdict now": (
        Snapshot(
            job({**REF, **guard(**JUDGED)}),
            workload(),
            (pod(guard_since=None), pod("w", rank0=False, guarded=False)),
            heartbeat_age=1.0,
        ),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "rank 0 runs without its guard": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(guarded=False),), heartbeat_age=1.0),
        Expected(
            Phase.RUNNING, (), {("Guarded", "False", "GuardMissing"), ("Fired", "Unknown", "GuardNotRunning")}
        ),
    ),
    "the guard of rank 0 was changed, and reports": (
        Snapshot(job({**REF, **guard()}), workload(), (pod(changed=True),), heartbeat_age=1.0),
        Expected(Phase.RUNNING, (), {("Guarded", "False", "GuardChanged"), ("Fired", "False", "NotFired")}),
    ),
    "rank 0 of the pod that goes has no guard, the new one has": (
        Snapshot(
            job({**REF, **guard()}),
            workload(),
            (pod("old", guarded=False, terminating=True), pod()),
            heartbeat_age=1.0,
        ),
        Expected(Phase.RUNNING, (), {("Guarded", "True", "WorkloadCreated"), ("Fired", "False", "NotFired")}),
    ),
    "rank 0 has run without its guard for too long, policy Stop": (
        silent(31.0, live=True, pods=(pod(guarded=False),)),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("GuardSilent", "True", "GuardSilent")}
        ),
    ),
    "stopped: workload deleted": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Delete", 6, emptySince=6)}, onFire="Delete")),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}, {"Disrupted"}),
    ),
    "stopped: suspended as asked": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Suspend", 6, emptySince=6)}, onFire="Suspend"),
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
    "over, its evidence is tried again": (
        Snapshot(job({**REF, **ended("Succeeded", 5)}), workload(WorkloadState.SUCCEEDED), (pod(),)),
        Expected(Phase.SUCCEEDED, (EVIDENCE,)),
    ),
    "over, and its logs did not come": (
        Snapshot(job({**REF, **ended("Failed", REASSERT_SECONDS + 1)}), workload(WorkloadState.FAILED)),
        Expected(Phase.FAILED, (FINAL,)),
    ),
    "over for long, without evidence": (
        Snapshot(job({**REF, **ended("Succeeded", EVIDENCE_SECONDS + 1)})),
        Expected(Phase.SUCCEEDED),
    ),
    "over, and a pod that outlives it is silent: Succeeded": (
        silent(31.0, ended("Succeeded", EVIDENCE_SECONDS + 1), live=True),
        Expected(Phase.SUCCEEDED, silent_about={"Halted", "Stopped"}),
    ),
    "over, and a pod that outlives it is silent: Failed": (
        silent(31.0, ended("Failed", EVIDENCE_SECONDS + 1), live=True),
        Expected(Phase.FAILED, silent_about={"Halted", "Stopped"}),
    ),
    "over, and a pod that outlives it is silent: Disrupted": (
        silent(31.0, ended("Disrupted", EVIDENCE_SECONDS + 1), live=True),
        Expected(Phase.DISRUPTED, silent_about={"Halted", "Stopped"}),
    ),
    "over, with evidence": (
        Snapshot(job({**REF, **ended("Disrupted", 5), "evidence": "e"})),
        Expected(Phase.DISRUPTED),
    ),
    "stopped without evidence: written at the end": (
        Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 6, None, emptySince=6)})),
        Expected(Phase.STOPPED, (FINAL,)),
    ),
    "stopped, then a pod is back: asked for anew": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Stop", 7200), **said("Stopped")}), workload(), (pod(),)
        ),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.STOP, "w"),),
            {("Stopped", "False", "PodsTerminating")},
            method=StopMethod.STOP,
        ),
    ),
    "suspended, and a queue resumed it much later: suspended again": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("Suspend", 7200), **said("Stopped")}, onFire="Suspend"),
            workload(),
            (pod(),),
        ),
        Expected(
            Phase.STOPPING,
            (StopWorkload(StopMethod.SUSPEND, "w"),),
            {("Stopped", "False", "PodsTerminating")},
            method=StopMethod.SUSPEND,
        ),
    ),
    "being deleted and fired: stopped all the same": (
        Snapshot(deleting(guard(fire=FIRE)), workload(), (pod(),)),
        Expected(
            Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w")), {("Fired", "True", "HackingGap")}
        ),
    ),
    "being deleted, and its workload is gone already: no more is said": (
        Snapshot(deleting({"phase": "Running", **said("Guarded")})),
        Expected(Phase.RUNNING, (), {("Guarded", "True", "Before")}, {"Disrupted", "Stopped"}),
    ),
    "of a kind that this operator does not know: it is not judged": (
        Snapshot(
            job({**REF, **guard(), "phase": "Running", **said("Guarded")}),
            preparation=UNKNOWN_KIND,
            unknown_kind=True,
        ),
        Expected(
            Phase.RUNNING, (), {("Guarded", "Unknown", "UnsupportedKind")}, {"Disrupted", "Stopped", "Failed"}
        ),
    ),
    "of a kind that nobody knows, and nothing was created": (
        Snapshot(job(), preparation=UNKNOWN_KIND, unknown_kind=True),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "UnsupportedKind")}),
    ),
    "fired, of a kind that this operator does not know: its pods go": (
        Snapshot(
            job({**REF, **guard(fire=FIRE)}),
            None,
            (pod(), GOING),
            preparation=UNKNOWN_KIND,
            unknown_kind=True,
        ),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, DeletePods((("run-master-0", "uid-run-master-0"),))),
            {("Stopped", "False", "StopRequested")},
            method=StopMethod.DELETE_PODS,
        ),
    ),
    "fired, of a kind that this operator does not know: never said to be stopped": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **stop("DeletePods", 900)}),
            preparation=UNKNOWN_KIND,
            unknown_kind=True,
        ),
        Expected(Phase.STOPPING, (DeletePods(()),), {("Stopped", "False", "PodsTerminating")}),
    ),
    "what it cost stays said, whatever the operator would admit today": (
        Snapshot(job({**REF, **guard(), **said("Isolated", "False")}), workload(), (pod(),)),
        Expected(Phase.RUNNING, (), {("Isolated", "False", "Before")}),
    ),
    "fired after it had succeeded": (
        Snapshot(
            job({**REF, **guard(fire=FIRE), **said("Succeeded")}),
            workload(WorkloadState.SUCCEEDED),
            (pod(phase="Succeeded"),),
        ),
        Expected(
            Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w")), {("Fired", "True", "HackingGap")}
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
    "the last word is a fire, of a run that is to stop anyway": (
        Snapshot(job({**REF, **guard(), **said("Halted")}), workload(), (pod(fire=LATCHED),)),
        Expected(
            Phase.STOPPING,
            (EVIDENCE, StopWorkload(StopMethod.STOP, "w"), RecordLatches(LATCHED)),
            {("Halted", "True", "Before")},
        ),
    ),
    "the last word is a halt, of a run that is to stop anyway": (
        Snapshot(job({**REF, **guard(), **said("Halted")}), workload(), (pod(halt=LATCHED),)),
        Expected(Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w"))),
    ),
    "the last word is in the status already": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(fire=LATCHED),)),
        Expected(Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w"))),
    ),
    "a halt in its pod beside a fire in the status": (
        Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(halt=LATCHED),)),
        Expected(Phase.STOPPING, (EVIDENCE, StopWorkload(StopMethod.STOP, "w"))),
    ),
    "the last word of a guard that is not rank 0's": (
        Snapshot(
            job({**REF, **guard()}), workload(), (pod(), pod("w-1", rank0=False, guarded=False, fire=LATCHED))
        ),
        Expected(Phase.RUNNING, ()),
    ),
    "succeeded": (
        Snapshot(job({**REF, **guard(**JUDGED)}), workload(WorkloadState.SUCCEEDED)),
        Expected(
            Phase.SUCCEEDED,
            (EVIDENCE,),
            {("Succeeded", "True", "WorkloadSucceeded"), ("Fired", "False", "NotFired")},
            {"Stopped"},
        ),
    ),
    "succeeded before its last checkpoints were evaluated": (
        Snapshot(
            job({**REF, **guard(**JUDGED | {"evaluated": 1, "waiting": 2})}),
            workload(WorkloadState.SUCCEEDED),
        ),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "CheckpointsLeft")}),
    ),
    "failed by itself": (
        Snapshot(job({**REF, **guard()}), workload(WorkloadState.FAILED), (pod(phase="Failed"),)),
        Expected(
            Phase.FAILED,
            (EVIDENCE,),
            {("Failed", "True", "WorkloadFailed"), ("Fired", "False", "NotFired")},
            {"Disrupted"},
        ),
    ),
    "evicted": (
        Snapshot(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.EVICTED),)),
        Expected(
            Phase.DISRUPTED,
            (EVIDENCE,),
            {("Disrupted", "True", "Evicted"), ("Fired", "Unknown", "NoVerdictYet")},
            {"Failed"},
        ),
    ),
    "preempted": (
        Snapshot(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.PREEMPTED),)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "Preempted")}),
    ),
    "evicted, noted before the pod went": (
        Snapshot(job({**REF, **said("Disrupted", "False", "NodeLost")}), workload(WorkloadState.FAILED)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "NodeLost")}),
    ),
    "evicted, still running elsewhere: noted": (
        Snapshot(job(REF), workload(), (pod(disruption=Disruption.EVICTED),)),
        Expected(Phase.STARTING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted and recovered: forgotten": (
        Snapshot(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(),)),
        Expected(Phase.STARTING, (), silent_about={"Disrupted"}),
    ),
    "evicted, not yet recovered: still noted": (
        Snapshot(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(phase="Pending"),)),
        Expected(Phase.STARTING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "a worker is evicted that is older than rank 0: noted": (
        Snapshot(
            job(REF),
            workload(),
            (pod("w", rank0=False, guarded=False, disruption=Disruption.EVICTED), pod("m")),
        ),
        Expected(Phase.STARTING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted, its pod kept, and recovered in another: forgotten": (
        Snapshot(
            job({**REF, **said("Disrupted", "False", "Evicted")}),
            workload(),
            (pod("a", phase="Failed", disruption=Disruption.EVICTED), pod("b")),
        ),
        Expected(Phase.STARTING, (), silent_about={"Disrupted"}),
    ),
    "evicted once, and failed later in another pod: failed": (
        Snapshot(
            job(REF),
            workload(WorkloadState.FAILED),
            (pod("a", phase="Failed", disruption=Disruption.EVICTED), pod("b", phase="Failed")),
        ),
        Expected(Phase.FAILED, (EVIDENCE,), {("Failed", "True", "WorkloadFailed")}, {"Disrupted"}),
    ),
    "failed by itself, with the words of its newest rank-0 pod": (
        Snapshot(
            job({**REF, **guard()}),
            workload(WorkloadState.FAILED, message="failed"),
            (pod("a", phase="Failed", failure="old"), pod("b", phase="Failed", failure="exit code 1: boom")),
        ),
        Expected(Phase.FAILED, (EVIDENCE,), {("Failed", "True", "WorkloadFailed")}),
    ),
    "cleaned up while the operator was down, and the trainer had finished": (
        Snapshot(job({**REF, **guard(**JUDGED, **FINISHED)})),
        Expected(
            Phase.SUCCEEDED,
            (EVIDENCE,),
            {("Succeeded", "True", "WorkloadSucceeded"), ("Fired", "False", "NotFired")},
            {"Disrupted"},
        ),
    ),
    "deleted while its trainer, which says that it has finished, still runs": (
        Snapshot(job({**REF, **guard(**JUDGED, **FINISHED)}), None, (pod(),)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Succeeded"}),
    ),
    "being deleted while its trainer, which says that it has finished, still runs": (
        Snapshot(job({**REF, **guard(**JUDGED, **FINISHED)}), workload(terminating=True), (GOING,)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Succeeded"}),
    ),
    "cleaned up while the operator was down, and evaluations were left": (
        Snapshot(job({**REF, **guard(**JUDGED | {"evaluated": 1, "waiting": 2}, **FINISHED)})),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "CheckpointsLeft")}),
    ),
    "cleaned up while the operator was down, and the last verdict was not healthy": (
        Snapshot(job({**REF, **guard(**JUDGED | {"level": "warning", "code": "x"}, **FINISHED)})),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "NotJudged")}),
    ),
    "cleaned up while the operator was down, and the guard had fired": (
        Snapshot(job({**REF, **guard(**JUDGED, **FINISHED, fire=FIRE)})),
        Expected(Phase.STOPPING, (FINAL,), {("Fired", "True", "HackingGap")}, {"Succeeded", "Disrupted"}),
    ),
    "an attempt had finished, and another one trained when the workload was deleted": (
        Snapshot(job({**REF, **guard(**JUDGED, **FINISHED | {"attempt": 1})})),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "succeeded, and cleaned up at once": (
        Snapshot(job({**REF, **guard(**JUDGED)}), workload(WorkloadState.SUCCEEDED, terminating=True)),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "WorkloadSucceeded")}),
    ),
    "succeeded while its guard was silent": (
        Snapshot(job({**REF, **guard(**JUDGED), **said("GuardSilent")}), workload(WorkloadState.SUCCEEDED)),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "NotJudged")}),
    ),
    "workload deleted by someone": (
        Snapshot(job({**REF, **guard()})),
        Expected(
            Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Stopped", "Failed"}
        ),
    ),
    "workload being deleted by someone": (
        Snapshot(job({**REF, **guard()}), workload(terminating=True), (GOING,)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "a namesake took the workload's place": (
        Snapshot(job(REF), workload(uid="other")),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
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
    plain = [
        replace(one, otherwise=None) if isinstance(one, RecordLatches) else one for one in decision.actions
    ]
    assert tuple(plain) == expected.actions
    assert expected.says <= says
    assert not expected.silent_about & {kind for kind, _, _ in says}
    if expected.method is not None:
        assert decision.report.stop is not None
        assert decision.report.stop.method == expected.method
    assert decide(snapshot, NOW) == decision


@pytest.mark.parametrize(("latch", "kind"), [("fire", "Fired"), ("halt", "Halted")])
def test_a_last_word_that_the_status_does_not_take_is_told_all_the_same(latch: str, kind: str) -> None:
    """So that the run is stopped at the next look; all else stays as it was said."""
    before = job({**REF, **guard(), **said("GuardSilent", "False"), "phase": "Running"})
    (action,) = decide(Snapshot(before, workload(), (pod(**{latch: LATCHED}),)), NOW).actions
    assert isinstance(action, RecordLatches) and action.otherwise is not None
    told = {c.type: (c.status, c.message) for c in action.otherwise.conditions}
    assert set(told) == {kind, "GuardSilent"} and action.otherwise.phase is Phase.RUNNING
    assert told[kind][0] == "True" and "step 9" in told[kind][1] and told["GuardSilent"][0] == "False"


UNREAD: dict[str, tuple[Workload | None, tuple[Pod, ...], str, bool]] = {
    "its pods": (workload(), (pod(),), "403", True),
    "its pods, which were going": (workload(), (GOING,), "403", True),
    "its pods, of which none was seen": (workload(), (), "403", True),
    "its pods, and the workload has ended": (workload(WorkloadState.FAILED), (pod(),), "403", False),
    "its pods, and the workload is gone": (None, (pod(),), "403", True),
    "neither, and the workload had ended": (workload(WorkloadState.FAILED, unread=True), (), "403", True),
    "the workload, and no pod is there": (workload(unread=True), (), "", False),
    "the workload, and its pods go": (workload(unread=True), (GOING,), "", False),
    "the workload, and a pod stays": (workload(unread=True), (GOING, pod("run-1")), "", True),
}


@pytest.mark.parametrize(("of", "pods", "unread", "harder"), UNREAD.values(), ids=UNREAD.keys())
def test_a_stop_goes_on_by_what_can_be_read(
    of: Workload | None, pods: tuple[Pod, ...], unread: str, harder: bool
) -> None:
    """Harder follows unless what can be read says that the stop has its effect; nothing is called stopped."""
    fired = job({**REF, **guard(fire=FIRE), **stop("Delete", REASSERT_SECONDS)})
    decision = decide(Snapshot(fired, of, pods, pods_unread=unread), NOW)
    assert decision.report.stop is not None and decision.report.phase is Phase.STOPPING
    assert decision.report.stop.method is (StopMethod.DELETE_PODS if harder else StopMethod.DELETE)
    told = condition_of(_after(decision, Snapshot(fired)), ConditionType.STOPPED)
    assert told is not None and (told.reason == Reason.PODS_UNREAD) is bool(unread)
    assert not unread or "cannot be read, so nobody knows what is left: 403" in told.message
    asked = StopWorkload(StopMethod.DELETE, "w") in decision.actions
    assert not unread or asked is (of is not None), "it is asked again while nobody knows"


def test_pods_that_cannot_be_read_and_that_their_workload_may_have_left_are_deleted() -> None:
    ended = workload(WorkloadState.FAILED)
    for ago_, gone in ((REASSERT_SECONDS - 1, False), (REASSERT_SECONDS, True)):
        fired = job({**REF, **guard(fire=FIRE), **stop("Stop", ago_)})
        actions = decide(Snapshot(fired, ended, (pod(), GOING), pods_unread="403"), NOW).actions
        assert (DeletePods((("run-master-0", "uid-run-master-0"),)) in actions) is gone
        assert StopWorkload(StopMethod.STOP, "w") in actions, "what its pods do is not known"


def test_what_is_known_of_a_stop_counts_where_the_status_lacks_it() -> None:
    fired, asked = job({**REF, **guard(fire=FIRE)}), job(stop("Delete", REASSERT_SECONDS)).status.stop
    decision = decide(Snapshot(fired, workload(), (pod(),), asked=asked), NOW)
    assert decision.report.stop is not None and decision.report.stop.method is StopMethod.DELETE_PODS
    suspended, asked = workload(WorkloadState.SUSPENDED), job(stop("Suspend", 1)).status.stop
    assert decide(Snapshot(fired, suspended, asked=asked), NOW).report.stop != asked, "it is empty"
    going = decide(Snapshot(fired, workload(), (GOING,), asked=asked), NOW).actions
    assert not [one for one in going if isinstance(one, StopWorkload)], "it has its effect"


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        ({}, "NotJudged", "the guard gave no verdict"),
        (BEAT, "NotJudged", "the guard gave no verdict"),
        ({"level": "healthy"}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "announced": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "evaluated": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "waiting": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "announced": 0, "evaluated": 0}, "NotJudged", "no checkpoint was announced"),
        (
            {**JUDGED, "level": "unknown", "code": "warming_up", "reason": "1 of 3 rounds"},
            "NotJudged",
            "NOT JUDGED: unknown (warming_up): 1 of 3 rounds; give the run what it lacks; a smaller",
        ),
        (
            {**JUDGED, "level": "warning", "code": "of_a_newer_guard", "reason": "it fell"},
            "NotJudged",
            "warning (of_a_newer_guard): it fell",
        ),
        (
            {**JUDGED, "announced": 6, "evaluated": 3, "failed": 1, "skipped": 2},
            "NotJudged",
            "3 of 6 checkpoints were not evaluated (1 failed, 2 skipped)",
        ),
        (
            TRAINED_ON | {"stepsSinceEvaluation": 400},
            "NotJudged",
            "NOT JUDGED: steps 101 to 500 came after the last judged checkpoint; let the trainer save",
        ),
        (
            {**JUDGED, "evaluated": 2, "waiting": 1},
            "CheckpointsLeft",
            "1 of 3 checkpoints were not evaluated, 1 evaluations were left waiting; "
            "set RLGUARD_DRAIN_SECONDS",
        ),
        (
            {**JUDGED, "level": "warning", "code": "fast_decline", "reason": "it fell", "waiting": 1},
            "CheckpointsLeft",
            "1 evaluations were left waiting; warning (fast_decline): it fell; set RLGUARD_DRAIN_SECONDS",
        ),
    ],
)
def test_a_success_is_plain_only_if_all_of_it_was_judged(
    last: dict[str, Any], reason: str, words: str
) -> None:
    status = {**REF, **({"guard": {**BEAT, **last}} if last else {})}
    ended = Snapshot(job(status), workload(WorkloadState.SUCCEEDED, message="all replicas succeeded"))
    decision = decide(ended, NOW)
    condition = condition_of(_after(decision, ended), ConditionType.SUCCEEDED)
    assert decision.report.phase is Phase.SUCCEEDED
    assert condition is not None and (condition.status, condition.reason) == ("True", reason)
    assert condition.message.startswith("all replicas succeeded; NOT JUDGED: ")
    assert words in condition.message


def test_a_plain_success_names_the_steps_that_came_after_the_last_judgement() -> None:
    status = {**REF, "guard": {**BEAT, **TRAINED_ON, "step": 120, "stepsSinceEvaluation": 20}}
    ended = Snapshot(job(status), workload(WorkloadState.SUCCEEDED, message="all replicas succeeded"))
    condition = condition_of(_after(decide(ended, NOW), ended), ConditionType.SUCCEEDED)
    assert condition is not None and condition.reason == "WorkloadSucceeded"
    assert (
        condition.message == "all replicas succeeded; steps 101 to 120 came after the last judged checkpoint"
    )


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
    fallen = Snapshot(again.job, workload(), (pod(),), heartbeat_age=999.0)
    moved = {c.type: c.last_transition_time for c in decide(fallen, NOW).report.conditions}
    assert moved["GuardSilent"] == moved["Fired"] == NOW and moved["Isolated"] == LONG_AGO


def test_a_stop_request_is_dated_once() -> None:
    fired = Snapshot(job({**REF, **guard(fire=FIRE)}), workload(), (pod(),))
    first = decide(fired, LONG_AGO)
    later = Snapshot(
        Job("run", "ns", "u", 3, "11", {}, fired.job.spec, _after(first, fired)), workload(), (GOING,)
    )
    stop_status = decide(later, LONG_AGO + timedelta(seconds=1)).report.stop
    assert stop_status is not None and stop_status.requested_at == LONG_AGO


@pytest.mark.parametrize(
    ("age", "seconds"),
    [(None, None), (0.0, 300.1), (270.0, 30.1), (300.0, 0.1), (301.0, RUNNING_SECONDS)],
)
def test_a_running_job_is_looked_at_when_its_guard_would_be_silent(
    age: float | None, seconds: float | None
) -> None:
    running = Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=age)
    assert decide(running, NOW).look_again == pytest.approx(seconds)


def test_a_running_job_is_looked_at_now_and_then_however_long_its_guard_may_be_silent() -> None:
    running = Snapshot(
        job({**REF, **guard()}, onSilence={"afterSeconds": 86400}), workload(), (pod(),), heartbeat_age=0.0
    )
    assert decide(running, NOW).look_again == RUNNING_SECONDS
    assert decide(replace(running, heartbeat_age=None, deaf=True), NOW).look_again == DEAF_SECONDS


REPORTED = {
    **{"level": "warning", "code": "no_baseline", "reason": "other", "attempt": 1, "step": 77, "steps": 78},
    **{"rounds": 5, "announced": 9, "evaluated": 4, "failed": 1, "skipped": 1, "refused": 1, "waiting": 3},
    **{"stepsSinceEvaluation": 3, "longestRound": 4, "inLoopEma": 0.1, "heldoutEma": 0.2, "klEma": 0.3},
    **{"proxyRealGap": 0.4, "ended": {"attempt": 1, "step": 77}, "heartbeat": ago(-5)},
    **{"lastEvaluation": TRAINED_ON["lastEvaluation"], "lastEvaluationTime": NOW.isoformat()},
    "advice": ["port_taken"],
    "adviceReason": "another process has the port",
}


@pytest.mark.parametrize("field", REPORTED)
def test_what_a_guard_reports_of_a_run_that_goes_on_changes_no_decision(field: str) -> None:
    """So caches need not have a job looked at for it (`glance.is_only_a_report`)."""
    first = Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=0.0)
    before = decide(first, NOW)
    status = {**REF, **guard(), "conditions": [c.model_dump(by_alias=True) for c in before.report.conditions]}
    assert before.report.phase is Phase.RUNNING and is_only_a_report(_raw(status), _raw(status))
    told = {**status, **guard(**{field: REPORTED[field]})}
    assert decide(replace(first, job=job(told)), NOW) == before


def _raw(status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "run"}, "status": {"phase": "Running", **status}}


def test_a_request_that_was_lifted_is_dated_anew_once() -> None:
    """Asked for again when the run is back, and followed by a harder one 15 s later, not at once."""
    status = {**REF, **guard(fire=FIRE), **stop("Suspend", 7200), **said("Stopped")}
    resumed = Snapshot(job(status, onFire="Suspend"), workload(), (pod(),))
    first = decide(resumed, NOW)
    assert first.report.stop is not None and first.report.stop.requested_at == NOW
    again = Snapshot(replace(resumed.job, status=_after(first, resumed)), workload(), (pod(),))
    for seconds, method in ((14, StopMethod.SUSPEND), (15, StopMethod.DELETE)):
        later = decide(again, NOW + timedelta(seconds=seconds)).report.stop
        assert later is not None and later.method == method


def test_a_run_is_resumed_again_and_again_and_suspended_each_time() -> None:
    """Each time anew, in the mildest way: that the request is old says nothing of a run that was stopped."""
    run, now = job({**REF, **guard(fire=FIRE)}, onFire="Suspend"), NOW
    runs, rests = (workload(), (pod(),)), (workload(WorkloadState.SUSPENDED), ())
    for resumed_after in (3600, 86400, 60, 7 * 86400, 3600):
        looks = [(resumed_after, runs), (2, runs), (2, rests), (SETTLE_SECONDS, rests)]
        for seconds, (seen, pods) in looks:
            now += timedelta(seconds=seconds)
            snapshot = Snapshot(run, seen, pods)
            decision = decide(snapshot, now)
            run = replace(run, status=_after(decision, snapshot))
            assert run.status.stop is not None and run.status.stop.method is StopMethod.SUSPEND, now
        assert run.status.phase is Phase.STOPPED, now
        assert StopWorkload(StopMethod.DELETE, "w") not in decision.actions


@pytest.mark.parametrize("said_at", [timedelta(0), timedelta(days=1)], ids=["after", "in the future"])
def test_a_run_that_is_back_and_does_not_end_is_met_with_something_harder(said_at: timedelta) -> None:
    """Though it could not be written down since that it is no longer stopped."""
    status = {**REF, **guard(fire=FIRE), **stop("Suspend", REASSERT_SECONDS), **said("Stopped")}
    status["conditions"][0]["lastTransitionTime"] = (NOW - timedelta(minutes=1) + said_at).isoformat()
    back = Snapshot(job(status, onFire="Suspend"), workload(), (pod(),))
    assert StopWorkload(StopMethod.DELETE, "w") in decide(back, NOW).actions


def test_a_request_from_the_future_is_followed_by_a_harder_one_all_the_same() -> None:
    """The clock that dated it was an hour ahead: it counts from now, not from in an hour."""
    status = {**REF, **guard(fire=FIRE), **stop("Stop", -3600)}
    stuck = Snapshot(job(status), workload(), (pod(),))
    first = decide(stuck, NOW)
    assert first.report.stop is not None and first.report.stop.requested_at == NOW
    again = Snapshot(replace(stuck.job, status=_after(first, stuck)), workload(), (pod(),))
    for seconds, method in ((REASSERT_SECONDS - 1, StopMethod.STOP), (REASSERT_SECONDS, StopMethod.DELETE)):
        later = decide(again, NOW + timedelta(seconds=seconds)).report.stop
        assert later is not None and later.method == method


def test_stopped_is_said_soon_although_the_clock_went_back_since_the_last_pod_ended() -> None:
    status = {**REF, **guard(fire=FIRE), **stop("Stop", 1, emptySince=-3600)}
    gone = Snapshot(job(status), workload(WorkloadState.FAILED))
    first = decide(gone, NOW)
    assert first.look_again is not None and first.look_again <= SETTLE_SECONDS
    after = replace(gone, job=replace(gone.job, status=_after(first, gone)))
    assert decide(after, NOW + timedelta(seconds=SETTLE_SECONDS)).report.phase is Phase.STOPPED


def test_a_queue_that_resumes_the_run_at_once_does_not_keep_it_going() -> None:
    """Each time its pods end, are gone for a moment, and are back before the run was called stopped."""
    looks = [
        (3, workload(), (pod(),)),
        (2, workload(), (GOING,)),
        (2, workload(WorkloadState.SUSPENDED), ()),
    ]
    run, now = job({**REF, **guard(fire=FIRE)}, onFire="Suspend"), NOW
    methods = []
    for seconds, of_queue, pods in looks * 4:
        now += timedelta(seconds=seconds)
        snapshot = Snapshot(run, of_queue, pods)
        run = replace(run, status=_after(decide(snapshot, now), snapshot))
        assert run.status.stop is not None
        methods.append(run.status.stop.method)
    assert StopMethod.DELETE in methods, methods


@pytest.mark.parametrize(
    ("snapshot", "live"),
    [
        (silent(29.0), False),
        (silent(31.0), True),
        (silent(31.0, said("Halted")), False),
        (silent(31.0, said("Fired")), False),
        (silent(31.0, guard(fire=FIRE)), False),
        (Snapshot(job({**REF, **guard()}), workload(), (pod(),), heartbeat_age=301.0), True),
        (Snapshot(job({**REF, **guard(halt=FIRE)}), workload(), (pod(),)), True),
        (Snapshot(job({**REF, **guard(halt=FIRE), **said("Halted")}), workload(), (pod(),)), False),
        (Snapshot(job({**REF, **guard(fire=FIRE, halt=FIRE)}), workload(), (pod(),)), False),
        (Snapshot(job(REF), workload(), (pod(),)), False),
        (Snapshot(job(REF), workload(WorkloadState.FAILED), (pod(),)), True),
        (Snapshot(job(REF), workload(WorkloadState.SUCCEEDED), (pod(),)), True),
        (Snapshot(job(REF), None, ()), True),
        (Snapshot(job(REF), None, (), unknown_kind=True), False),
        (Snapshot(job({**REF, **said("Failed")}), workload(WorkloadState.FAILED), (pod(),)), False),
        (Snapshot(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.FAILED), (pod(),)), False),
    ],
)
def test_what_must_be_read_live(snapshot: Snapshot, live: bool) -> None:
    assert must_be_live(snapshot) is live


def test_a_silence_that_is_held_back_says_why_and_is_looked_at_again_soon() -> None:
    decision = decide(silent(live=True, most_silent=True), NOW)
    said_so = {c.type: c.message for c in decision.report.conditions}
    assert "most guards fell silent at once" in said_so["GuardSilent"]
    assert decision.look_again == HELD_BACK_SECONDS
    assert decide(silent(heartbeat_age=None, deaf=True, live=True), NOW).look_again == 60.0


def test_what_is_late_is_looked_at_again_soon() -> None:
    late = Snapshot(job(REF), workload(WorkloadState.PENDING), (pod(phase="Pending"),), late=True)
    assert decide(late, NOW).look_again == LATE_SECONDS
    assert decide(replace(late, late=False), NOW).look_again is None
    assert decide(silent(2.0, late=True), NOW).look_again == LATE_SECONDS
    assert decide(silent(29.0, late=True), NOW).look_again == pytest.approx(1.1)


def test_a_guard_on_a_node_that_does_not_respond_is_not_blamed() -> None:
    """It goes on judging beside its trainer; only its reports are lost."""
    decision = decide(silent(live=True, pods=(pod(cut_off=True, node="gpu-1"),)), NOW)
    said_so = {c.type: c.message for c in decision.report.conditions}
    assert "node gpu-1 does not respond" in said_so["GuardSilent"]
    assert decision.look_again == HELD_BACK_SECONDS


def test_a_halt_that_was_written_down_is_acted_on_soon() -> None:
    assert decide(silent(live=True), NOW).look_again == STOPPING_SECONDS
    assert decide(silent(), NOW).look_again == STOPPING_SECONDS


def test_stopped_is_said_once_it_has_lasted_and_looked_at_a_minute_later() -> None:
    """The clock of the whole: from the moment at which no pod was seen for the first time."""
    gone = Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 1)}), workload(WorkloadState.FAILED))
    first = decide(gone, NOW)
    assert first.look_again == SETTLE_SECONDS and first.report.stop is not None
    assert first.report.stop.empty_since == NOW and first.report.stop.stopped_at is None
    settled, again = replace(gone, job=replace(gone.job, status=_after(first, gone))), NOW
    again += timedelta(seconds=SETTLE_SECONDS)
    second = decide(settled, again)
    assert second.report.phase is Phase.STOPPED and second.look_again == LATER_SECONDS
    assert second.report.stop is not None and second.report.stop.stopped_at == again
    later = replace(gone, job=replace(gone.job, status=_after(second, gone)))
    third = decide(later, again + timedelta(seconds=LATER_SECONDS))
    assert third.look_again is None and third.report == second.report


def test_a_pod_that_comes_back_starts_the_clock_anew_and_stopped_at_stays() -> None:
    status = {**REF, **guard(fire=FIRE), **stop("Stop", 90, emptySince=60, stoppedAt=55), **said("Stopped")}
    back = decide(Snapshot(job(status), workload(), (pod(),)), NOW).report.stop
    assert back is not None and back.empty_since is None
    assert back.stopped_at == NOW - timedelta(seconds=55)


def test_a_stop_that_does_not_last_is_followed_by_a_harder_one() -> None:
    """Not by the same one for ever: whoever makes the pods again does not mind it."""
    status = {**REF, **guard(fire=FIRE), **stop("Stop", REASSERT_SECONDS, emptySince=1)}
    found = decide(Snapshot(job(status), workload(), (pod(),)), NOW).report.stop
    assert found is not None and found.method is StopMethod.DELETE


def test_the_guards_image_is_noted_with_the_workload_and_stays() -> None:
    first = decide(Snapshot(job(), workload(), guard_image="guard:1"), NOW).report.workload_ref
    assert first is not None and first.guard_image == "guard:1"
    later = decide(Snapshot(job(REF), workload(), guard_image="guard:2"), NOW).report.workload_ref
    assert later is not None and later.guard_image is None, "nobody knows of a job from before"


def test_what_was_written_stays_noted_whatever_else_is_said() -> None:
    for snapshot, _expected in CASES.values():
        status = snapshot.job.status.model_copy(update={"evidence": "e", "guard_digest": "v1:a"})
        noted = replace(snapshot, job=replace(snapshot.job, status=status))
        report = decide(noted, NOW).report
        assert (report.evidence, report.guard_digest) == ("e", "v1:a")


def test_the_digest_of_a_guard_is_noted_before_it_is_made() -> None:
    """Whoever edits the workload may do so as soon as it is there."""
    snapshot = Snapshot(job(), preparation=Preparation(), guard_digest="v1:a")
    first = decide(snapshot, NOW)
    assert (first.report.guard_digest, first.actions) == ("v1:a", ())
    assert first.look_again == STOPPING_SECONDS
    noted = replace(snapshot, job=job({"guardDigest": "v1:a"}))
    assert decide(noted, NOW).actions == (CreateWorkload(),)
    upgraded = decide(replace(noted, guard_digest="v1:b"), NOW)
    assert (upgraded.report.guard_digest, upgraded.actions) == ("v1:b", ()), "its guard is another"


def test_what_an_operator_writes_is_not_what_it_has_written_before_if_only_the_digest_differs() -> None:
    snapshot = Snapshot(job(REF), workload(), (pod(),), heartbeat_age=1.0)
    report = decide(snapshot, NOW).report
    noted = replace(report, guard_digest="v1:a")
    assert _sayable(report) != _sayable(noted)
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    patch = status_patch(metadata, noted)
    assert patch["status"]["guardDigest"] == "v1:a"
    assert "guardDigest" not in status_patch(metadata, report)["status"]
    assert _says(read_status(patch)) == _sayable(noted)


def test_evidence_that_is_not_there_yet_is_asked_for_soon() -> None:
    status = {**REF, **guard(fire=FIRE), **stop("Stop", 6, None, emptySince=6)}
    assert decide(Snapshot(job(status)), NOW).look_again == STOPPING_SECONDS
    old = {**REF, **guard(fire=FIRE), **stop("Stop", 600, None, emptySince=600), **said("Stopped")}
    assert decide(Snapshot(job(old)), NOW).look_again is None, "not for ever"


def test_what_was_told_before_is_history_while_no_guard_runs() -> None:
    status = {**REF, **guard(**JUDGED, step=9)}
    snapshot = Snapshot(job(status), workload(), (pod(guard_since=None),), heartbeat_age=1.0)
    fired = condition_of(_after(decide(snapshot, NOW), snapshot), ConditionType.FIRED)
    assert fired is not None and fired.message == (
        "there is no verdict now: no guard runs that has reported; "
        "its last verdict, of 2026-01-02T00:00:00Z: healthy (ok) at step 9: fine"
    )


def test_what_is_missing_or_overdue_is_named() -> None:
    missing = Snapshot(job({**REF, **guard()}), workload(), (pod(guarded=False),), heartbeat_age=1.0)
    told = condition_of(_after(decide(missing, NOW), missing), ConditionType.GUARDED)
    assert told is not None and "pod run-master-0 without its guard" in told.message
    due = NOW - timedelta(seconds=60)
    late = Snapshot(
        job({**REF, **guard(fire=FIRE), **stop("Stop", 90)}),
        workload(),
        (pod(terminating=True, due=due, node="n7"), pod("w", terminating=True, due=NOW)),
    )
    told = condition_of(_after(decide(late, NOW), late), ConditionType.STOPPED)
    assert told is not None
    assert "run-master-0 (should have ended at 23:59:00; look at node n7," in told.message
    assert told.message.endswith("from the cluster), w")


@pytest.mark.parametrize(
    ("phase", "finalizers", "said_so"),
    [
        ("Failed", ("a/b", "c/d"), "run-master-0 (has ended, and is kept by a/b, c/d: "),
        ("Failed", (), "look at node n7"),
        ("Running", ("a/b",), "look at node n7"),
    ],
    ids=["kept", "kept by nothing", "its node is lost"],
)
def test_a_pod_that_has_ended_and_is_kept_is_no_matter_of_its_node(
    phase: str, finalizers: tuple[str, ...], said_so: str
) -> None:
    left = pod(
        terminating=True, due=NOW - timedelta(seconds=60), node="n7", phase=phase, finalizers=finalizers
    )
    late = Snapshot(job({**REF, **guard(fire=FIRE), **stop("Stop", 90)}), workload(), (left,))
    told = condition_of(_after(decide(late, NOW), late), ConditionType.STOPPED)
    assert told is not None and told.reason == "PodsOverdue" and said_so in told.message


def test_what_a_failed_run_said_last_is_told() -> None:
    failed, said_so = (
        CASES["failed by itself, with the words of its newest rank-0 pod"][0],
        "exit code 1: boom",
    )
    told = condition_of(_after(decide(failed, NOW), failed), ConditionType.FAILED)
    assert told is not None and told.message == f"failed; pod b: {said_so}"


def worker(name: str, failed: float | None, words: str = "exit code 1") -> Pod:
    """One that has failed so many seconds ago."""
    at = None if failed is None else NOW - timedelta(seconds=failed)
    return pod(name, rank0=False, guarded=False, phase="Failed", failure=words, failed_at=at)


def master(name: str, failed: float | None, made: float = 300.0) -> Pod:
    return replace(worker(name, failed), rank0=True, created=NOW - timedelta(seconds=made))


FAILURES: dict[str, tuple[tuple[Pod, ...], list[str]]] = {
    "a worker alone": ((pod("m"), worker("w", 9)), ["w"]),
    "a worker, of which nobody says when": ((pod("m"), worker("w", None)), ["w"]),
    "a worker, and rank 0 for it": ((master("m", 5), worker("w", 9)), ["w", "m"]),
    "the first of several": (
        (master("m", 5), worker("w0", 8), worker("w1", 9), worker("w2", 7)),
        ["w1", "m"],
    ),
    "rank 0, and a worker that was ended for it": ((master("m", 9), worker("w", 5)), ["m"]),
    "rank 0, and one of which nobody says when": ((master("m", 9), worker("w", None)), ["m"]),
    "a worker of an earlier try": ((worker("w", 400), master("m", 9)), ["m"]),
    "rank 0 of an earlier try": ((master("a", 400, made=500), pod("m")), ["a"]),
    "rank 0 of two earlier tries": (
        (master("a", 400, made=500), master("b", 350, made=390), pod("m")),
        ["b"],
    ),
    "a worker of this try, and rank 0 of an earlier one": (
        (master("a", 400, made=500), pod("m", created=NOW - timedelta(seconds=300)), worker("w", 9)),
        ["w"],
    ),
    "nobody, as far as is known": ((pod("m"),), []),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "named"), FAILURES.values(), ids=FAILURES.keys())
def test_what_failed_first_is_told_and_what_failed_of_rank_0(pods: tuple[Pod, ...], named: list[str]) -> None:
    failed = Snapshot(job({**REF, **guard()}), workload(WorkloadState.FAILED, message="failed"), pods)
    told = condition_of(_after(decide(failed, NOW), failed), ConditionType.FAILED)
    assert told is not None
    assert told.message == "failed" + "".join(f"; pod {name}: exit code 1" for name in named)


def test_what_cannot_be_stopped_says_so() -> None:
    snapshot = Snapshot(
        job({**REF, **guard(fire=FIRE), **stop("DeletePods", 9)}), preparation=UNKNOWN_KIND, unknown_kind=True
    )
    stopped = condition_of(_after(decide(snapshot, NOW), snapshot), ConditionType.STOPPED)
    assert stopped is not None
    assert stopped.message.startswith("spec.template: x/v1 Y cannot be guarded nor stopped by this operator")


def test_what_was_created_stays_noted_whatever_has_its_name_now() -> None:
    snapshot = Snapshot(job({**REF, **guard(fire=FIRE)}), workload(uid="other"), (pod(),))
    ref = decide(snapshot, NOW).report.workload_ref
    assert ref is not None and ref.uid == "w"
