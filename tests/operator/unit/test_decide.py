"""`decide` over named cases, without a server: each names a snapshot and what must come out.

`test_teardown.py` has the teardown, `test_guard_pod_decisions.py` what is different with `placement: Pod`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import Phase, Status
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.endings import EVIDENCE_SECONDS
from rlguard.operator.reconcile.halts import must_be_live
from rlguard.operator.reconcile.snapshot import (
    SELDOM,
    SOON,
    CaptureEvidence,
    CreateWorkload,
    Decision,
    Disruption,
    Pod,
    Preparation,
    Snapshot,
    Waiting,
)

from .given import (
    BEAT,
    FIRE,
    GOING,
    HEARD,
    JUDGED,
    LONG_AGO,
    NOW,
    REF,
    condition,
    job,
    message,
    pod,
    says,
    seen,
    workload,
)

Json = dict[str, Any]
#: What a guard says beside its counts whose trainer has told it that it had finished.
FINISHED = {"attempt": 0, "step": 9, "ended": {"attempt": 0, "step": 9}}
IN_A_QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
EVIDENCE, FINAL = CaptureEvidence(final=False), CaptureEvidence(final=True)
PENDING, RUNNING, SUSPENDED = WorkloadState.PENDING, WorkloadState.RUNNING, WorkloadState.SUSPENDED
SUCCEEDED, FAILED = WorkloadState.SUCCEEDED, WorkloadState.FAILED
FULL, NO_IMAGE = Waiting(Reason.UNSCHEDULABLE, "no node"), Waiting(Reason.CONTAINER_WAITING, "image")
STUCK_WORKER = pod("run-worker-0", rank0=False, guarded=False, waiting=NO_IMAGE)


def of(*status: Json, **spec: Any) -> Any:
    """A job whose workload was created, with these parts of a status."""
    merged = {key: value for part in (REF, *status) for key, value in part.items()}
    return job(status=merged, **{"onSilence": {"afterSeconds": 300, "action": "Warn"}, **spec})


def guard(**values: Any) -> Json:
    return {"guard": {**BEAT, **values}}


def runs(status: Json | None = None, **values: Any) -> Snapshot:
    """A run that goes on, one second after its guard was heard."""
    given = of(guard() if status is None else status)
    return seen(given, **{"workload": workload(), "pods": (pod(),), "silent_for": 1.0, **values})


def silent(age: float = 31.0, status: Json | None = None, **values: Any) -> Snapshot:
    """A run whose guard has not reported for `age` seconds, with a limit of 30 and the policy Stop."""
    given = of(guard(), status or {}, onSilence={"afterSeconds": 30, "action": "Stop"})
    return seen(given, **{"workload": workload(), "pods": (pod(),), "silent_for": age, **values})


def ended(state: WorkloadState | None, *status: Json, pods: tuple[Pod, ...] = (), **values: Any) -> Snapshot:
    """A run whose workload is in this state; None: it is gone."""
    return seen(of(*status), None if state is None else workload(state, **values), pods)


@dataclass(frozen=True)
class Case:
    """What must come out: conditions as "Type Status Reason", and types of which nothing is said."""

    snapshot: Snapshot
    phase: Phase
    said: str = ""
    actions: tuple[Any, ...] = ()
    unsaid: str = ""


CASES: dict[str, Case] = {
    "nothing there: create": Case(
        seen(job(), preparation=Preparation()), Phase.PENDING,
        "Guarded False WorkloadPending, Isolated True StrictIsolation, Fired Unknown NoVerdictYet",
        (CreateWorkload(),), "Stopped Halted Succeeded Failed Disrupted",
    ),
    "template refused": Case(
        seen(job(), preparation=Preparation(Reason.TEMPLATE_REFUSED, "field x")), Phase.REFUSED,
        "Guarded False TemplateRefused", unsaid="Isolated",
    ),
    "someone else's workload has the name": Case(
        seen(job(), workload(ours=False)), Phase.REFUSED, "Guarded False NameTaken",
    ),
    "relaxed isolation lists what is broken": Case(
        seen(job(), preparation=Preparation(), broken=("hostNetwork: x",)), Phase.PENDING,
        "Isolated False RelaxedIsolation", (CreateWorkload(),),
    ),
    "what was created stays as isolated as it was": Case(
        runs(guard() | condition("Isolated", "False")), Phase.RUNNING, "Isolated False Before",
    ),
    "the guarded pod that cannot start is named first": Case(
        seen(of(), workload(PENDING), (STUCK_WORKER, pod(waiting=FULL))),
        Phase.PENDING, "Waiting True Unschedulable",
    ),
    "a pod that goes waits for nothing": Case(
        seen(of(), workload(PENDING), (pod(terminating=True, waiting=FULL),)), Phase.PENDING,
        unsaid="Waiting",
    ),
    "created, pods not running yet": Case(
        seen(job(), workload(PENDING)), Phase.PENDING,
        "Guarded True WorkloadCreated, GuardSilent Unknown GuardNotRunning",
    ),
    "suspended by its author": Case(
        seen(of(), workload(SUSPENDED)), Phase.SUSPENDED, "Guarded True WorkloadCreated",
        unsaid="Waiting",
    ),
    "suspended by a queue": Case(
        seen(replace(of(), labels=IN_A_QUEUE), workload(SUSPENDED)), Phase.SUSPENDED,
        "Waiting True Queued, GuardSilent Unknown GuardNotRunning", unsaid="Halted Failed",
    ),
    "admitted by a queue": Case(
        seen(replace(of(), labels=IN_A_QUEUE), workload(PENDING)), Phase.PENDING, unsaid="Waiting",
    ),
    "running, but no step of the trainer was reported yet": Case(
        runs(guard(step=None)), Phase.STARTING, "Fired False NotFired",
    ),
    "running, guard reports": Case(
        runs(), Phase.RUNNING, "Fired False NotFired, GuardSilent False GuardReports",
    ),
    "said to run, but its only pod goes, and another may not be made": Case(
        runs(pods=(GOING,)), Phase.PENDING, "Fired False NotFired",
    ),
    "running, no verdict yet": Case(
        runs({}), Phase.STARTING, "Fired Unknown NoVerdictYet, GuardSilent Unknown NoVerdictYet",
    ),
    "what it is made of cannot be read: nothing else is said, and nothing done": Case(
        runs(guard() | {"phase": "Running"} | condition("Fired", "False"), unread="no RayCluster is listed"),
        Phase.RUNNING, "GuardSilent Unknown KindUnread, Fired Unknown KindUnread", unsaid="Halted",
    ),
    "cannot be read, and over": Case(
        seen(of(condition("Failed"), {"phase": "Failed"}), unread="no Pod is"), Phase.FAILED,
        "Failed True Before",
    ),
    "cannot be read, and its guard left a fire": Case(
        seen(of(guard(fire=FIRE)), workload(), unread="no Pod is"), Phase.STOPPING, "Fired True HackingGap",
    ),
    "guard silent, policy Warn": Case(
        runs(silent_for=301.0), Phase.RUNNING, "GuardSilent True GuardSilent", unsaid="Halted Stopped",
    ),
    "guard silent, policy Stop: written down before anything is done": Case(
        silent(live=True), Phase.RUNNING,
        "GuardSilent True GuardSilent, Halted True GuardSilent, Fired Unknown GuardSilent",
        unsaid="Stopped",
    ),
    "guard silent, policy Stop, from a cache: nothing": Case(
        silent(), Phase.PENDING, unsaid="Halted Stopped GuardSilent",
    ),
    "guard silent, policy Stop, most others too: nothing is stopped": Case(
        silent(live=True, most_silent=True), Phase.RUNNING, "GuardSilent True MostGuardsSilent",
        unsaid="Halted Stopped",
    ),
    "guard silent, policy Stop, on a node that does not respond: nothing is stopped": Case(
        silent(live=True, pods=(pod(cut_off=True, node="gpu-1"),)), Phase.RUNNING,
        "GuardSilent True GuardSilent", unsaid="Halted Stopped",
    ),
    "rank 0 without its guard, on such a node, and most guards silent": Case(
        silent(live=True, most_silent=True, pods=(pod(cut_off=True, guarded=False),)), Phase.RUNNING,
        "Halted True GuardSilent, GuardSilent True GuardSilent",
    ),
    "halted by the guard: written down before anything is done": Case(
        runs(guard(halt={**FIRE, "code": "stale"}), live=True), Phase.RUNNING,
        "Halted True GuardHalt, Fired False NotFired", unsaid="Stopped",
    ),
    "nobody knows how the run was judged before this guard, policy Stop": Case(
        silent(0.0, live=True, reading=replace(HEARD, lost="it ended without a last word")),
        Phase.RUNNING, "Halted True PastUnknown", unsaid="Stopped",
    ),
    "the kubelet calls the guard ready, and the operator cannot reach it: nothing is stopped": Case(
        silent(0.0, live=True, unreached="the operator cannot reach the guard"), Phase.RUNNING,
        "Guarded Unknown GuardUnreachable, GuardSilent Unknown GuardUnreachable", unsaid="Halted Stopped",
    ),
    "the guard's container has ended: there is no verdict now": Case(
        runs(guard(**JUDGED), pods=(pod(guard_since=None), pod("w", rank0=False, guarded=False))),
        Phase.RUNNING, "Fired Unknown GuardNotRunning",
    ),
    "another guard runs than that which was heard: there is no verdict now": Case(
        runs(guard(**JUDGED), pods=(pod(uid="another"),)), Phase.RUNNING, "Fired Unknown GuardNotRunning",
    ),
    "rank 0 runs without its guard": Case(
        runs(pods=(pod(guarded=False),)), Phase.RUNNING,
        "Guarded False GuardMissing, Fired Unknown GuardNotRunning",
    ),
    "over, and a pod that outlives it is silent": Case(
        silent(31.0, condition("Succeeded", at=NOW - timedelta(seconds=EVIDENCE_SECONDS + 1)), live=True),
        Phase.SUCCEEDED, unsaid="Halted Stopped",
    ),
    "over, with evidence": Case(seen(of(condition("Disrupted", at=NOW), {"evidence": "e"})), Phase.DISRUPTED),
    "over, and cleaned up": Case(
        ended(None, condition("Succeeded")), Phase.SUCCEEDED, "Succeeded True Before", unsaid="Disrupted",
    ),
    "being deleted, and its workload is gone already: no more is said": Case(
        seen(replace(of({"phase": "Running"}, condition("Guarded")), deleting=True)), Phase.RUNNING,
        "Guarded True Before", unsaid="Disrupted Stopped",
    ),
    "succeeded": Case(
        ended(SUCCEEDED, guard(**JUDGED)), Phase.SUCCEEDED,
        "Succeeded True WorkloadSucceeded, Fired False NotFired", (EVIDENCE,), "Stopped",
    ),
    "succeeded, and cleaned up at once": Case(
        ended(SUCCEEDED, guard(**JUDGED), deleted=NOW), Phase.SUCCEEDED,
        "Succeeded True WorkloadSucceeded", (EVIDENCE,),
    ),
    "succeeded while its guard was silent": Case(
        ended(SUCCEEDED, guard(**JUDGED), condition("GuardSilent")), Phase.SUCCEEDED,
        "Succeeded True NotJudged", (EVIDENCE,),
    ),
    "succeeded with a warning while its guard was silent": Case(
        ended(SUCCEEDED, guard(**JUDGED | {"level": "warning", "code": "x"}), condition("GuardSilent")),
        Phase.SUCCEEDED, "Succeeded True NotJudged", (EVIDENCE,),
    ),
    "failed by itself": Case(
        ended(FAILED, guard(), pods=(pod(phase="Failed"),)), Phase.FAILED,
        "Failed True WorkloadFailed, Fired False NotFired", (EVIDENCE,), "Disrupted",
    ),
    "evicted": Case(
        ended(FAILED, pods=(pod(disruption=Disruption.EVICTED),)), Phase.DISRUPTED,
        "Disrupted True Evicted, Fired Unknown NoVerdictYet", (EVIDENCE,), "Failed",
    ),
    "evicted, noted before the pod went": Case(
        ended(FAILED, condition("Disrupted", "False", "NodeLost")), Phase.DISRUPTED,
        "Disrupted True NodeLost", (EVIDENCE,),
    ),
    "evicted, still running elsewhere: noted": Case(
        ended(RUNNING, pods=(pod(disruption=Disruption.EVICTED),)), Phase.STARTING,
        "Disrupted False Evicted",
    ),
    "evicted, not yet recovered: still noted": Case(
        ended(RUNNING, condition("Disrupted", "False", "Evicted"), pods=(pod(phase="Pending"),)),
        Phase.STARTING, "Disrupted False Evicted",
    ),
    "evicted and recovered: forgotten": Case(
        ended(RUNNING, condition("Disrupted", "False", "Evicted"), pods=(pod(),)), Phase.STARTING,
        unsaid="Disrupted",
    ),
    "evicted once, and failed later in another pod: failed": Case(
        ended(FAILED, pods=(pod("a", disruption=Disruption.EVICTED), pod("b", phase="Failed"))),
        Phase.FAILED, "Failed True WorkloadFailed", (EVIDENCE,), "Disrupted",
    ),
    "cleaned up while the operator was down, and the trainer had finished": Case(
        ended(None, guard(**JUDGED, **FINISHED)), Phase.SUCCEEDED,
        "Succeeded True WorkloadSucceeded, Fired False NotFired", (EVIDENCE,), "Disrupted",
    ),
    "cleaned up while the operator was down, and the guard had fired": Case(
        ended(None, guard(**JUDGED, **FINISHED, fire=FIRE)), Phase.STOPPED, "Fired True HackingGap",
        (FINAL,), "Succeeded Disrupted",
    ),
    "deleted while its trainer, which says that it has finished, still runs": Case(
        ended(None, guard(**JUDGED, **FINISHED), pods=(pod(),)), Phase.DISRUPTED,
        "Disrupted True WorkloadDeleted", (EVIDENCE,), "Succeeded",
    ),
    "an attempt had finished, and another one trained when the workload was deleted": Case(
        ended(None, guard(**JUDGED, **FINISHED | {"attempt": 1})), Phase.DISRUPTED,
        "Disrupted True WorkloadDeleted", (EVIDENCE,),
    ),
    "being deleted by someone": Case(
        ended(RUNNING, guard(), pods=(GOING,), deleted=NOW), Phase.DISRUPTED,
        "Disrupted True WorkloadDeleted", (EVIDENCE,), "Stopped Failed",
    ),
    "a namesake took the workload's place": Case(
        ended(RUNNING, uid="other"), Phase.DISRUPTED, "Disrupted True WorkloadDeleted", (EVIDENCE,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_decision(case: Case) -> None:
    snapshot = case.snapshot
    decision = decide(snapshot, NOW)
    assert decision.report.phase == case.phase
    if case.phase is not Phase.STOPPING:  # test_teardown.py
        assert decision.actions == case.actions
    found = {f"{kind} {status} {reason}" for kind, (status, reason) in says(decision).items()}
    assert {*filter(None, case.said.split(", "))} <= found
    kinds = [one.type for one in decision.report.conditions]
    assert not {*case.unsaid.split()} & {*kinds} and kinds == sorted(set(kinds))
    assert decide(snapshot, NOW) == decision
    fired = snapshot.job.status.guard is not None and snapshot.job.status.guard.fire is not None
    assert (says(decision)["Fired"][0] == "True" if "Fired" in kinds else False) is fired


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        ({}, "NotJudged", "done; NOT JUDGED: the guard gave no verdict"),
        (
            {**JUDGED, "announced": 6, "failed": 1, "skipped": 2},
            "NotJudged",
            "done; NOT JUDGED: 3 of 6 checkpoints were not evaluated (1 failed, 2 skipped)",
        ),
        (
            {**JUDGED, "evaluated": 2, "waiting": 1},
            "CheckpointsLeft",
            "done; NOT JUDGED: 1 of 3 checkpoints were not evaluated, 1 evaluations were left waiting; "
            "set RLGUARD_DRAIN_SECONDS",
        ),
        (
            {**JUDGED, "level": "warning", "code": "fell_below_start", "reason": "it fell", "waiting": 1},
            "CheckpointsLeft",
            "done; NOT JUDGED: 1 evaluations were left waiting; warning (fell_below_start): it fell; set RL",
        ),
        (
            {**JUDGED, "level": "warning", "code": "of_a_newer_guard", "reason": "it fell"},
            "FinishedWithWarning",
            "done; finished with a warning: it fell",
        ),
        (
            {
                **{**JUDGED, "step": 120, "stepsSinceEvaluation": 20, "longestRound": 25},
                "lastEvaluation": {"attempt": 0, "step": 100, "score": 0.5, "items": 8, "path": "/c/100"},
            },
            "WorkloadSucceeded",
            "done; steps 101 to 120 came after the last judged checkpoint",
        ),
    ],
)
def test_a_success_is_plain_only_if_all_of_it_was_judged(last: Json, reason: str, words: str) -> None:
    decision = decide(ended(SUCCEEDED, guard(**last) if last else {}, message="done"), NOW)
    assert decision.report.phase is Phase.SUCCEEDED
    assert says(decision)["Succeeded"] == ("True", reason)
    assert message(decision, "Succeeded").startswith(words)


def _after(decision: Decision, snapshot: Snapshot) -> Status:
    report = decision.report
    update = {"conditions": list(report.conditions), "stop": report.stop, "phase": report.phase}
    return snapshot.job.status.model_copy(update={**update, "workload_ref": report.workload_ref})


def test_the_transition_time_moves_only_with_the_status() -> None:
    running = runs()
    again = replace(running.job, generation=4, status=_after(decide(running, LONG_AGO), running))
    for one in decide(replace(running, job=again), NOW).report.conditions:
        assert (one.last_transition_time, one.observed_generation) == (LONG_AGO, 4)
    fallen = decide(replace(running, job=again, silent_for=999.0), NOW)
    moved = {one.type: one.last_transition_time for one in fallen.report.conditions}
    assert moved["GuardSilent"] == moved["Fired"] == NOW and moved["Isolated"] == LONG_AGO


@pytest.mark.parametrize(
    ("snapshot", "live"),
    [
        (silent(29.0), False),
        (silent(31.0), True),
        (silent(31.0, condition("Halted")), False),
        (silent(31.0, guard(fire=FIRE)), False),
        (runs(guard(halt=FIRE)), True),
        (runs(guard(halt=FIRE) | condition("Halted")), False),
        (runs(guard(fire=FIRE, halt=FIRE)), False),
        (ended(RUNNING, pods=(pod(),)), False),
        (ended(FAILED, pods=(pod(),)), True),
        (ended(SUCCEEDED, pods=(pod(),)), True),
        (ended(None), True),
        (ended(FAILED, condition("Failed")), False),
    ],
)
def test_what_must_be_read_live(snapshot: Snapshot, live: bool) -> None:
    assert must_be_live(snapshot) is live


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"most_silent": True}, "more than half of all guards"),
        ({"pods": (pod(cut_off=True, node="gpu-1"),)}, "node gpu-1 does not respond"),
    ],
)
def test_a_silence_that_is_held_back_says_why_and_is_looked_at_again_soon(values: Json, words: str) -> None:
    decision = decide(silent(live=True, **values), NOW)
    assert words in message(decision, "GuardSilent") and decision.look_again == SELDOM


def test_a_halt_that_was_written_down_is_acted_on_soon() -> None:
    assert decide(silent(live=True), NOW).look_again == SOON
    assert decide(silent(), NOW).look_again == SOON


def test_what_was_told_before_is_history_while_no_guard_runs() -> None:
    status = guard(**JUDGED, step=9, readAt=NOW.isoformat())
    assert message(decide(runs(status, pods=(pod(guard_since=None),)), NOW), ConditionType.FIRED) == (
        "there is no verdict now: no guard runs that was heard; "
        "its last verdict, read at 2026-01-02T00:00:00Z: healthy (ok) at step 9: fine"
    )


def worker(name: str, failed: float, **more: Any) -> Pod:
    """One that has failed so many seconds ago."""
    given = {"rank0": False, "guarded": False, "failure": "exit code 1", **more}
    return pod(name, phase="Failed", failed_at=NOW - timedelta(seconds=failed), **given)


def master(name: str, failed: float, made: float = 300.0) -> Pod:
    return worker(name, failed, rank0=True, created=_ago(made))


def _ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


FAILURES: dict[str, tuple[tuple[Pod, ...], list[str]]] = {
    "a worker alone": ((pod("m"), worker("w", 9)), ["w"]),
    "the first of several, and rank 0 for it": (
        (master("m", 5), worker("w0", 8), worker("w1", 9)), ["w1", "m"],
    ),
    "rank 0, and a worker that was ended for it": ((master("m", 9), worker("w", 5)), ["m"]),
    "a worker of an earlier try": ((worker("w", 400), master("m", 9)), ["m"]),
    "rank 0 of an earlier try": ((master("a", 400, made=500), pod("m")), ["a"]),
    "a worker of this try, and rank 0 of an earlier one": (
        (master("a", 400, made=500), pod("m", created=_ago(300)), worker("w", 9)), ["w"],
    ),
    "nobody, as far as is known": ((pod("m"),), []),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "named"), FAILURES.values(), ids=FAILURES.keys())
def test_what_failed_first_is_told_and_what_failed_of_rank_0(pods: tuple[Pod, ...], named: list[str]) -> None:
    decision = decide(ended(FAILED, guard(), pods=pods, message="failed"), NOW)
    told = "".join(f"; pod {name}: exit code 1" for name in named)
    assert message(decision, "Failed") == f"failed{told}"
