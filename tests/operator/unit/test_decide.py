"""`decide` over named cases, without a server.

Aspects: creating and refusing; running; ends that are no fires; silence, and what must be read live and
written down before a run is halted; jobs that are being deleted; kinds that this operator does not know;
conditions that never turn back; transition times. `test_teardown.py` has the teardown. Every case names the
snapshot and what must come out; every decision is also checked to be the same when made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from guard_core.wire import Verdict
from guard_operator.adapters import WorkloadState
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import Phase, Spec, Status
from guard_operator.guards.reading import Reading
from guard_operator.reconcile.decide import (
    HELD_BACK_SECONDS,
    decide,
)
from guard_operator.reconcile.decision import (
    CaptureEvidence,
    CreateWorkload,
    Decision,
)
from guard_operator.reconcile.endings import EVIDENCE_SECONDS
from guard_operator.reconcile.halts import must_be_live
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
    STOPPING_SECONDS,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "c"},
    },
    "onSilence": {"afterSeconds": 300, "action": "Warn"},
}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": LONG_AGO.isoformat()}
BEAT = {"level": "healthy", "code": "ok", "reason": "fine", "step": 1}
#: The guard of rank 0 was heard.
HEARD = Reading(
    "uid-run-master-0",
    verdict=Verdict(level="healthy", code="ok", reason="fine", fire=False, halt=False, stop=False),
    heard_at=NOW,
)
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
IN_A_QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}


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


def seen(*values: Any, **more: Any) -> Snapshot:
    """A snapshot in which the guard was heard."""
    return Snapshot(*values, **{"reading": HEARD, **more})


def deleting(status: dict[str, Any]) -> Job:
    return replace(job({**REF, **status}), deleting=True)


def guard(**values: Any) -> dict[str, Any]:
    return {"guard": {**BEAT, **values}}


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


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
    return seen(given, **{"workload": workload(), "pods": (pod(),), "silent_for": age, **values})


GOING = pod(terminating=True)
CLUSTER = Between(RAY_CLUSTERS, "run-x2", "uid-cluster")
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


CASES: dict[str, tuple[Snapshot, Expected]] = {
    "nothing there: create": (
        seen(job(), preparation=Preparation()),
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
        seen(job(), preparation=Preparation(Reason.TEMPLATE_REFUSED, "field x")),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "TemplateRefused")}, {"Isolated"}),
    ),
    "claim missing": (
        seen(job(), preparation=Preparation(Reason.CLAIM_MISSING, "claim", 15.0)),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "ClaimMissing")}),
    ),
    "someone else's workload has the name": (
        seen(job(), workload(ours=False)),
        Expected(Phase.REFUSED, (), {("Guarded", "False", "NameTaken")}),
    ),
    "relaxed isolation says what it costs": (
        seen(job(), preparation=Preparation(), broken=("hostNetwork: x",)),
        Expected(Phase.PENDING, (CreateWorkload(),), {("Isolated", "False", "RelaxedIsolation")}),
    ),
    "a pod that cannot start is said": (
        seen(
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
    "a pod that goes waits for nothing": (
        seen(
            job(REF),
            workload(WorkloadState.PENDING),
            (pod(terminating=True, waiting=Waiting(Reason.UNSCHEDULABLE, "no node")),),
        ),
        Expected(Phase.PENDING, silent_about={"Waiting"}),
    ),
    "created, pods not running yet": (
        seen(job(), workload(WorkloadState.PENDING)),
        Expected(
            Phase.PENDING,
            (),
            {("Guarded", "True", "WorkloadCreated"), ("GuardSilent", "Unknown", "GuardNotRunning")},
        ),
    ),
    "suspended by its author": (
        seen(job(REF), workload(WorkloadState.SUSPENDED)),
        Expected(Phase.SUSPENDED, (), {("Guarded", "True", "WorkloadCreated")}, {"Waiting"}),
    ),
    "suspended by a queue": (
        seen(replace(job(REF), labels=IN_A_QUEUE), workload(WorkloadState.SUSPENDED)),
        Expected(
            Phase.SUSPENDED,
            (),
            {("Waiting", "True", "Queued"), ("GuardSilent", "Unknown", "GuardNotRunning")},
            {"Halted", "Failed"},
        ),
    ),
    "admitted by a queue": (
        seen(replace(job(REF), labels=IN_A_QUEUE), workload(WorkloadState.PENDING)),
        Expected(Phase.PENDING, (), set(), {"Waiting"}),
    ),
    "running, but no step of the trainer was reported yet": (
        seen(job({**REF, **guard(step=None)}), workload(), (pod(),), silent_for=1.0),
        Expected(Phase.STARTING, (), {("Fired", "False", "NotFired")}),
    ),
    "running, guard reports": (
        seen(job({**REF, **guard()}), workload(), (pod(),), silent_for=1.0),
        Expected(
            Phase.RUNNING, (), {("Fired", "False", "NotFired"), ("GuardSilent", "False", "GuardReports")}
        ),
    ),
    "said to run, but its only pod goes, and another may not be made": (
        seen(job({**REF, **guard()}), workload(), (pod(terminating=True),), silent_for=1.0),
        Expected(Phase.PENDING, (), {("Fired", "False", "NotFired")}),
    ),
    "said to run, but no pod of it is there": (
        seen(job({**REF, **guard()}), workload(), silent_for=1.0),
        Expected(Phase.PENDING),
    ),
    "running, no verdict yet": (
        seen(job(REF), workload(), (pod(),), silent_for=1.0),
        Expected(
            Phase.STARTING,
            (),
            {("Fired", "Unknown", "NoVerdictYet"), ("GuardSilent", "Unknown", "NoVerdictYet")},
        ),
    ),
    "guard silent, policy Warn": (
        seen(job({**REF, **guard()}), workload(), (pod(),), silent_for=301.0),
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
    "no guard, policy Stop, while most guards are silent": (
        silent(live=True, most_silent=True, pods=(pod(guarded=False),)),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("GuardSilent", "True", "GuardSilent")}
        ),
    ),
    "guard never reported, policy Stop": (
        seen(
            job(REF, onSilence={"afterSeconds": 30, "action": "Stop"}),
            workload(),
            (pod(),),
            silent_for=31.0,
            live=True,
        ),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("Fired", "Unknown", "NoVerdictYet")}
        ),
    ),
    "silence cannot be told while the watch shows nothing": (
        silent(silent_for=None, deaf=True, live=True),
        Expected(Phase.RUNNING, (), {("GuardSilent", "Unknown", "WatchInterrupted")}, {"Halted", "Stopped"}),
    ),
    "halted by the guard: written down before anything is done": (
        seen(job({**REF, **guard(halt={**FIRE, "code": "stale"})}), workload(), (pod(),), live=True),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardHalt"), ("Fired", "False", "NotFired")}, {"Stopped"}
        ),
    ),
    "fired before there was a workload": (
        seen(job(guard(fire=FIRE))),
        Expected(Phase.STOPPED, (), {("Stopped", "True", "NoPodsLeft")}),
    ),
    "the guard's container has ended: there is no verdict now": (
        seen(job({**REF, **guard(**JUDGED)}), workload(), (pod(guard_since=None),), silent_for=1.0),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "another guard runs than that which was heard: there is no verdict now": (
        seen(job({**REF, **guard(**JUDGED)}), workload(), (pod(uid="another"),), silent_for=1.0),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "the kubelet calls the guard ready, and the operator cannot reach it: nothing is stopped": (
        silent(0.0, live=True, unreached="the operator cannot reach the guard"),
        Expected(
            Phase.RUNNING,
            (),
            {("Guarded", "Unknown", "GuardUnreachable"), ("GuardSilent", "Unknown", "GuardUnreachable")},
            {"Halted", "Stopped"},
        ),
    ),
    "nobody knows how the run was judged before this guard, policy Stop": (
        silent(0.0, live=True, reading=replace(HEARD, lost="it ended without a last word")),
        Expected(Phase.RUNNING, (), {("Halted", "True", "PastUnknown")}, {"Stopped"}),
    ),
    "the only guard that runs is not rank 0's: there is no verdict now": (
        seen(
            job({**REF, **guard(**JUDGED)}),
            workload(),
            (pod(guard_since=None), pod("w", rank0=False, guarded=False)),
            silent_for=1.0,
        ),
        Expected(Phase.RUNNING, (), {("Fired", "Unknown", "GuardNotRunning")}),
    ),
    "rank 0 runs without its guard": (
        seen(job({**REF, **guard()}), workload(), (pod(guarded=False),), silent_for=1.0),
        Expected(
            Phase.RUNNING, (), {("Guarded", "False", "GuardMissing"), ("Fired", "Unknown", "GuardNotRunning")}
        ),
    ),
    "rank 0 has run without its guard for too long, policy Stop": (
        silent(31.0, live=True, pods=(pod(guarded=False),)),
        Expected(
            Phase.RUNNING, (), {("Halted", "True", "GuardSilent"), ("GuardSilent", "True", "GuardSilent")}
        ),
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
        seen(job({**REF, **ended("Disrupted", 5), "evidence": "e"})),
        Expected(Phase.DISRUPTED),
    ),
    "being deleted, and its workload is gone already: no more is said": (
        seen(deleting({"phase": "Running", **said("Guarded")})),
        Expected(Phase.RUNNING, (), {("Guarded", "True", "Before")}, {"Disrupted", "Stopped"}),
    ),
    "of a kind that this operator does not know: it is not judged": (
        seen(
            job({**REF, **guard(), "phase": "Running", **said("Guarded")}),
            preparation=UNKNOWN_KIND,
            unknown_kind=True,
        ),
        Expected(
            Phase.RUNNING, (), {("Guarded", "Unknown", "UnsupportedKind")}, {"Disrupted", "Stopped", "Failed"}
        ),
    ),
    "what it cost stays said, whatever the operator would admit today": (
        seen(job({**REF, **guard(), **said("Isolated", "False")}), workload(), (pod(),)),
        Expected(Phase.RUNNING, (), {("Isolated", "False", "Before")}),
    ),
    "succeeded": (
        seen(job({**REF, **guard(**JUDGED)}), workload(WorkloadState.SUCCEEDED)),
        Expected(
            Phase.SUCCEEDED,
            (EVIDENCE,),
            {("Succeeded", "True", "WorkloadSucceeded"), ("Fired", "False", "NotFired")},
            {"Stopped"},
        ),
    ),
    "succeeded before its last checkpoints were evaluated": (
        seen(
            job({**REF, **guard(**JUDGED | {"evaluated": 1, "waiting": 2})}),
            workload(WorkloadState.SUCCEEDED),
        ),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "CheckpointsLeft")}),
    ),
    "failed by itself": (
        seen(job({**REF, **guard()}), workload(WorkloadState.FAILED), (pod(phase="Failed"),)),
        Expected(
            Phase.FAILED,
            (EVIDENCE,),
            {("Failed", "True", "WorkloadFailed"), ("Fired", "False", "NotFired")},
            {"Disrupted"},
        ),
    ),
    "evicted": (
        seen(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.EVICTED),)),
        Expected(
            Phase.DISRUPTED,
            (EVIDENCE,),
            {("Disrupted", "True", "Evicted"), ("Fired", "Unknown", "NoVerdictYet")},
            {"Failed"},
        ),
    ),
    "preempted": (
        seen(job(REF), workload(WorkloadState.FAILED), (pod(disruption=Disruption.PREEMPTED),)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "Preempted")}),
    ),
    "evicted, noted before the pod went": (
        seen(job({**REF, **said("Disrupted", "False", "NodeLost")}), workload(WorkloadState.FAILED)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "NodeLost")}),
    ),
    "evicted, still running elsewhere: noted": (
        seen(job(REF), workload(), (pod(disruption=Disruption.EVICTED),)),
        Expected(Phase.STARTING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted and recovered: forgotten": (
        seen(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(),)),
        Expected(Phase.STARTING, (), silent_about={"Disrupted"}),
    ),
    "evicted, not yet recovered: still noted": (
        seen(job({**REF, **said("Disrupted", "False", "Evicted")}), workload(), (pod(phase="Pending"),)),
        Expected(Phase.STARTING, (), {("Disrupted", "False", "Evicted")}),
    ),
    "evicted once, and failed later in another pod: failed": (
        seen(
            job(REF),
            workload(WorkloadState.FAILED),
            (pod("a", phase="Failed", disruption=Disruption.EVICTED), pod("b", phase="Failed")),
        ),
        Expected(Phase.FAILED, (EVIDENCE,), {("Failed", "True", "WorkloadFailed")}, {"Disrupted"}),
    ),
    "failed by itself, with the words of its newest rank-0 pod": (
        seen(
            job({**REF, **guard()}),
            workload(WorkloadState.FAILED, message="failed"),
            (pod("a", phase="Failed", failure="old"), pod("b", phase="Failed", failure="exit code 1: boom")),
        ),
        Expected(Phase.FAILED, (EVIDENCE,), {("Failed", "True", "WorkloadFailed")}),
    ),
    "cleaned up while the operator was down, and the trainer had finished": (
        seen(job({**REF, **guard(**JUDGED, **FINISHED)})),
        Expected(
            Phase.SUCCEEDED,
            (EVIDENCE,),
            {("Succeeded", "True", "WorkloadSucceeded"), ("Fired", "False", "NotFired")},
            {"Disrupted"},
        ),
    ),
    "deleted while its trainer, which says that it has finished, still runs": (
        seen(job({**REF, **guard(**JUDGED, **FINISHED)}), None, (pod(),)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Succeeded"}),
    ),
    "being deleted while its trainer, which says that it has finished, still runs": (
        seen(job({**REF, **guard(**JUDGED, **FINISHED)}), workload(deleted=NOW), (GOING,)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Succeeded"}),
    ),
    "cleaned up while the operator was down, and evaluations were left": (
        seen(job({**REF, **guard(**JUDGED | {"evaluated": 1, "waiting": 2}, **FINISHED)})),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "CheckpointsLeft")}),
    ),
    "cleaned up while the operator was down, and the last verdict was not healthy": (
        seen(job({**REF, **guard(**JUDGED | {"level": "warning", "code": "x"}, **FINISHED)})),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "NotJudged")}),
    ),
    "cleaned up while the operator was down, and the guard had fired": (
        seen(job({**REF, **guard(**JUDGED, **FINISHED, fire=FIRE)})),
        Expected(Phase.STOPPED, (FINAL,), {("Fired", "True", "HackingGap")}, {"Succeeded", "Disrupted"}),
    ),
    "an attempt had finished, and another one trained when the workload was deleted": (
        seen(job({**REF, **guard(**JUDGED, **FINISHED | {"attempt": 1})})),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "succeeded, and cleaned up at once": (
        seen(job({**REF, **guard(**JUDGED)}), workload(WorkloadState.SUCCEEDED, deleted=NOW)),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "WorkloadSucceeded")}),
    ),
    "succeeded while its guard was silent": (
        seen(job({**REF, **guard(**JUDGED), **said("GuardSilent")}), workload(WorkloadState.SUCCEEDED)),
        Expected(Phase.SUCCEEDED, (EVIDENCE,), {("Succeeded", "True", "NotJudged")}),
    ),
    "workload deleted by someone": (
        seen(job({**REF, **guard()})),
        Expected(
            Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}, {"Stopped", "Failed"}
        ),
    ),
    "workload being deleted by someone": (
        seen(job({**REF, **guard()}), workload(deleted=NOW), (GOING,)),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "a namesake took the workload's place": (
        seen(job(REF), workload(uid="other")),
        Expected(Phase.DISRUPTED, (EVIDENCE,), {("Disrupted", "True", "WorkloadDeleted")}),
    ),
    "succeeded stays succeeded when the workload is cleaned up": (
        seen(job({**REF, **said("Succeeded")})),
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
    assert decide(snapshot, NOW) == decision


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        ({}, "NotJudged", "the guard gave no verdict"),
        ({"level": "healthy"}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "announced": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "evaluated": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "waiting": None}, "NotJudged", "it is not known which checkpoints were evaluated"),
        ({**JUDGED, "announced": 0, "evaluated": 0}, "NotJudged", "no checkpoint was announced"),
        (
            {**JUDGED, "level": "unknown", "code": "warming_up", "reason": "1 of 3 rounds"},
            "NotJudged",
            "NOT JUDGED: unknown (warming_up): 1 of 3 rounds; save more often",
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
            {**JUDGED, "level": "warning", "code": "fell_below_start", "reason": "it fell", "waiting": 1},
            "CheckpointsLeft",
            "1 evaluations were left waiting; warning (fell_below_start): it fell; set RLGUARD_DRAIN_SECONDS",
        ),
    ],
)
def test_a_success_is_plain_only_if_all_of_it_was_judged(
    last: dict[str, Any], reason: str, words: str
) -> None:
    status = {**REF, **({"guard": {**BEAT, **last}} if last else {})}
    ended = seen(job(status), workload(WorkloadState.SUCCEEDED, message="all replicas succeeded"))
    decision = decide(ended, NOW)
    condition = condition_of(_after(decision, ended), ConditionType.SUCCEEDED)
    assert decision.report.phase is Phase.SUCCEEDED
    assert condition is not None and (condition.status, condition.reason) == ("True", reason)
    assert condition.message.startswith("all replicas succeeded; NOT JUDGED: ")
    assert words in condition.message


def test_a_plain_success_names_the_steps_that_came_after_the_last_judgement() -> None:
    status = {**REF, "guard": {**BEAT, **TRAINED_ON, "step": 120, "stepsSinceEvaluation": 20}}
    ended = seen(job(status), workload(WorkloadState.SUCCEEDED, message="all replicas succeeded"))
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
    running = seen(job({**REF, **guard()}), workload(), (pod(),), silent_for=1.0)
    first = decide(running, LONG_AGO)
    again = seen(
        Job("run", "ns", "u", 4, "11", {}, running.job.spec, _after(first, running)),
        workload(),
        (pod(),),
        silent_for=1.0,
    )
    for condition in decide(again, NOW).report.conditions:
        assert condition.last_transition_time == LONG_AGO
        assert condition.observed_generation == 4
    fallen = seen(again.job, workload(), (pod(),), silent_for=999.0)
    moved = {c.type: c.last_transition_time for c in decide(fallen, NOW).report.conditions}
    assert moved["GuardSilent"] == moved["Fired"] == NOW and moved["Isolated"] == LONG_AGO


@pytest.mark.parametrize(
    ("snapshot", "live"),
    [
        (silent(29.0), False),
        (silent(31.0), True),
        (silent(31.0, said("Halted")), False),
        (silent(31.0, said("Fired")), False),
        (silent(31.0, guard(fire=FIRE)), False),
        (seen(job({**REF, **guard()}), workload(), (pod(),), silent_for=301.0), True),
        (seen(job({**REF, **guard(halt=FIRE)}), workload(), (pod(),)), True),
        (seen(job({**REF, **guard(halt=FIRE), **said("Halted")}), workload(), (pod(),)), False),
        (seen(job({**REF, **guard(fire=FIRE, halt=FIRE)}), workload(), (pod(),)), False),
        (seen(job(REF), workload(), (pod(),)), False),
        (seen(job(REF), workload(WorkloadState.FAILED), (pod(),)), True),
        (seen(job(REF), workload(WorkloadState.SUCCEEDED), (pod(),)), True),
        (seen(job(REF), None, ()), True),
        (seen(job(REF), None, (), unknown_kind=True), False),
        (seen(job({**REF, **said("Failed")}), workload(WorkloadState.FAILED), (pod(),)), False),
        (seen(job({**REF, **guard(fire=FIRE)}), workload(WorkloadState.FAILED), (pod(),)), False),
    ],
)
def test_what_must_be_read_live(snapshot: Snapshot, live: bool) -> None:
    assert must_be_live(snapshot) is live


def test_a_silence_that_is_held_back_says_why_and_is_looked_at_again_soon() -> None:
    decision = decide(silent(live=True, most_silent=True), NOW)
    said_so = {c.type: c.message for c in decision.report.conditions}
    assert "more than half of all guards" in said_so["GuardSilent"]
    assert decision.look_again == HELD_BACK_SECONDS
    assert decide(silent(silent_for=None, deaf=True, live=True), NOW).look_again == 60.0


def test_a_guard_on_a_node_that_does_not_respond_is_not_blamed() -> None:
    """It goes on judging beside its trainer; only its reports are lost."""
    decision = decide(silent(live=True, pods=(pod(cut_off=True, node="gpu-1"),)), NOW)
    said_so = {c.type: c.message for c in decision.report.conditions}
    assert "node gpu-1 does not respond" in said_so["GuardSilent"]
    assert decision.look_again == HELD_BACK_SECONDS


def test_a_halt_that_was_written_down_is_acted_on_soon() -> None:
    assert decide(silent(live=True), NOW).look_again == STOPPING_SECONDS
    assert decide(silent(), NOW).look_again == STOPPING_SECONDS


def test_what_was_told_before_is_history_while_no_guard_runs() -> None:
    status = {**REF, **guard(**JUDGED, step=9, readAt=NOW.isoformat())}
    snapshot = seen(job(status), workload(), (pod(guard_since=None),), silent_for=1.0)
    fired = condition_of(_after(decide(snapshot, NOW), snapshot), ConditionType.FIRED)
    assert fired is not None and fired.message == (
        "there is no verdict now: no guard runs that was heard; "
        "its last verdict, read at 2026-01-02T00:00:00Z: healthy (ok) at step 9: fine"
    )


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
    failed = seen(job({**REF, **guard()}), workload(WorkloadState.FAILED, message="failed"), pods)
    told = condition_of(_after(decide(failed, NOW), failed), ConditionType.FAILED)
    assert told is not None
    assert told.message == "failed" + "".join(f"; pod {name}: exit code 1" for name in named)
