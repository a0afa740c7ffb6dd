"""What is decided of a run whose guard has a pod of its own, and what is seen of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rlguard.core.wire import Verdict
from rlguard.operator.adapters import WorkloadState
from rlguard.operator.guards.reading import Reading
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.endings import EVIDENCE_SECONDS, HEARD_SECONDS, JUDGED_SECONDS
from rlguard.operator.reconcile.snapshot import (
    SOON,
    Between,
    CaptureEvidence,
    Delete,
    Doomed,
    EnsureGuard,
    Pod,
    Snapshot,
    delete_makers,
)
from rlguard.operator.runtime.client import BATCH_JOBS, STATEFUL_SETS

from . import given
from .given import (
    FIRE,
    NOW,
    SUPPORT,
    UID,
    WELL,
    Cluster,
    condition,
    message,
    reference,
    says,
    thing,
    workload,
)

Json = dict[str, Any]
SPEC = {"template": given.template("trainer")}
OWN_POD = {"placement": "Pod", "state": {"claimName": "state"}}
SET = Between(STATEFUL_SETS, SUPPORT, "set")
OF_WORKLOAD = Doomed(BATCH_JOBS, "run", "w")
REF = reference("Job")
JUDGED = given.JUDGED | {"step": 9, "attempt": 0}
ENDED = {"ended": {"attempt": 0, "step": 9}}
WAITS = JUDGED | {"waiting": 1, "evaluated": 2}
#: The guard was heard long before the trainer's end, or just now.
EARLIER, NOW_HEARD = (
    Reading("uid-guard", verdict=WELL, heard_at=NOW - timedelta(days=days)) for days in (1, -1)
)
TRAINER = Pod("run-x7k2p", "uid-trainer", guarded=False, phase="Running", rank0=True)
GUARD = Pod(f"{SUPPORT}-0", "uid-guard", guarded=True, phase="Running", guard_since=NOW)
SUCCEEDED, SUSPENDED = WorkloadState.SUCCEEDED, WorkloadState.SUSPENDED


def seen(
    state: WorkloadState = WorkloadState.RUNNING,
    status: Json | None = None,
    made: Between | None = SET,
    action: str = "Stop",
    **values: Any,
) -> Snapshot:
    full = {**REF, "guard": JUDGED, **(status or {})}
    of = given.job(SPEC, "Job", full, OWN_POD, onSilence={"action": action})
    more = {"pods": (GUARD, TRAINER), "silent_for": 1.0, "reading": NOW_HEARD, **values}
    return Snapshot(of, workload(state), guard_maker=made, **more)


def judging(seconds: float, before: Json | None = None) -> Json:
    """The status of a run whose trainer was seen to have finished so long ago, when its guard said this."""
    of = seen(SUCCEEDED, {"guard": before or JUDGED}, pods=(GUARD,))
    first = decide(of, NOW - timedelta(seconds=seconds)).report.conditions
    noted = [one.model_dump(mode="json", by_alias=True) for one in first if one.type == "Succeeded"]
    assert noted[0]["reason"] == "GuardJudges"
    return {"conditions": noted}


# -- while it runs ---------------------------------------------------------------------------------------


def test_it_is_there_while_its_run_is_and_takes_no_gpu_while_a_queue_holds_that_back() -> None:
    going = replace(SET, terminating=True)
    for state in (WorkloadState.PENDING, WorkloadState.RUNNING):
        assert decide(seen(state, made=None), NOW).actions == (EnsureGuard(),)
        assert decide(seen(state), NOW).actions == decide(seen(state, made=going), NOW).actions == ()
    assert decide(seen(SUSPENDED), NOW).actions == (delete_makers((SET,)),)
    assert decide(seen(SUSPENDED, made=None), NOW).actions == ()


def test_a_rank_0_without_a_sidecar_is_as_it_should_be() -> None:
    assert says(decide(seen(), NOW))["Guarded"] == ("True", "WorkloadCreated")
    assert says(decide(seen(pods=(TRAINER,)), NOW))["Fired"] == ("Unknown", "GuardNotRunning")


def test_a_fire_stops_both() -> None:
    fired = {"guard": JUDGED | {"fire": FIRE}}
    evidence = CaptureEvidence(final=False)
    both = Delete((OF_WORKLOAD, *delete_makers((SET,)).objects))
    assert decide(seen(status=fired), NOW).actions == (evidence, both)
    going = decide(seen(status=fired, made=replace(SET, terminating=True)), NOW)
    assert going.actions == (evidence, Delete((OF_WORKLOAD,)))
    left = decide(replace(seen(status=fired, pods=()), workload=None), NOW)
    assert says(left)["Stopped"] == ("False", "StopRequested"), "its StatefulSet would make the guard again"
    assert delete_makers((SET,)) in left.actions


def test_a_guard_on_a_lost_node_is_silent_while_its_trainer_goes_on() -> None:
    """A toleration for lost nodes would else let the run train unjudged for as long as the node is away."""
    lost = replace(GUARD, node="a", cut_off=True)
    elsewhere = seen(pods=(lost, replace(TRAINER, node="b")), silent_for=601.0, live=True)
    assert says(decide(elsewhere, NOW))["Halted"] == ("True", "GuardSilent")
    beside = seen(pods=(lost, replace(TRAINER, node="a", cut_off=True)), silent_for=601.0, live=True)
    assert "Halted" not in says(decide(beside, NOW)), "both run on, and its guard judges it"


# -- after its trainer -----------------------------------------------------------------------------------

NEVER_SAID = "the guard was not heard since the trainer ended"
#: (status, what else is seen, what is said of the end, words of it).
ENDS: dict[str, tuple[Json, Json, tuple[str, str], str]] = {
    "it judges what is left": ({}, {}, ("Unknown", "GuardJudges"), ""),
    "it has heard of the end, and nothing waits": (
        judging(0) | {"guard": JUDGED | ENDED}, {}, ("True", "WorkloadSucceeded"), "",
    ),
    "it has not heard of the end, and may still": (
        judging(HEARD_SECONDS - 1), {}, ("Unknown", "GuardJudges"), "",
    ),
    "nothing is to be expected any more": (judging(HEARD_SECONDS), {}, ("True", "WorkloadSucceeded"), ""),
    "what it said is of before the end": (
        judging(JUDGED_SECONDS - 1, JUDGED | ENDED) | {"guard": JUDGED | ENDED}, {"reading": EARLIER},
        ("Unknown", "GuardJudges"), "",
    ),
    "and it is heard no more": (
        judging(JUDGED_SECONDS, JUDGED | ENDED) | {"guard": JUDGED | ENDED}, {"reading": EARLIER},
        ("True", "NotJudged"), NEVER_SAID,
    ),
    "its StatefulSet was deleted": (
        judging(0), {"reading": EARLIER, "made": None}, ("True", "NotJudged"), NEVER_SAID,
    ),
    "it falls silent, in the very look that finds it so": (
        judging(700) | {"guard": JUDGED | ENDED}, {"silent_for": 601.0, "action": "Warn"},
        ("True", "NotJudged"), "silent",
    ),
    "it judges for too long": (
        judging(JUDGED_SECONDS) | {"guard": WAITS | ENDED}, {}, ("True", "CheckpointsLeft"),
        "a faster evaluator",
    ),
    "it is gone, and something waits": (
        {"guard": WAITS | ENDED}, {"made": None, "pods": ()}, ("True", "CheckpointsLeft"), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "values", "said", "words"), ENDS.values(), ids=ENDS.keys())
def test_what_was_not_judged_after_the_trainer_has_not_passed(
    status: Json, values: Json, said: tuple[str, str], words: str
) -> None:
    decision = decide(seen(SUCCEEDED, status, **{"pods": (GUARD,), **values}), NOW)
    assert says(decision)["Succeeded"] == said and words in message(decision, "Succeeded")


def test_a_workload_that_is_removed_while_its_guard_judges_has_finished_all_the_same() -> None:
    """By a TTL, for example. Its trainer need not have told anybody that it finished."""
    status = judging(JUDGED_SECONDS - 1, JUDGED) | {"guard": WAITS}
    gone = replace(seen(SUCCEEDED, status, pods=(GUARD,)), workload=None)
    assert decide(gone, NOW).report.phase == "Judging"
    late = decide(gone, NOW + timedelta(seconds=2))
    assert says(late)["Succeeded"] == ("True", "CheckpointsLeft") and "Disrupted" not in says(late)


def test_it_ends_once_the_evidence_is_there_or_is_not_to_come() -> None:
    over, late = condition("Succeeded", at=NOW), NOW + timedelta(seconds=EVIDENCE_SECONDS + 1)
    first = decide(seen(SUCCEEDED, over, pods=(GUARD,)), NOW)
    assert first.actions == (CaptureEvidence(final=False),) and first.look_again is not None
    written = decide(seen(SUCCEEDED, over | {"evidence": "e"}, pods=(GUARD,)), NOW)
    assert written.actions == decide(seen(SUCCEEDED, over), late).actions == (delete_makers((SET,)),)
    assert written.look_again == SOON, "a delete that is refused is asked for again: it has a GPU"
    done = decide(seen(SUCCEEDED, over, None, pods=()), late)
    assert done.actions == () and done.look_again is None


# -- what is seen ----------------------------------------------------------------------------------------


def namespace(maker: str = "set", **status: Any) -> Cluster:
    """A workload, the StatefulSet of its guard, and the guard's pod, which this one controls."""
    labels = {"rlguard.dev/job-uid": UID}
    guard = {"name": "rlguard-guard", "started": True, "state": {"running": {"startedAt": NOW.isoformat()}}}
    about = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [guard | status]}
    spec = {"containers": [{"name": "rlguard-guard"}]}
    return Cluster(
        thing("Job", "run", "w", UID, labels=labels, status={"active": 1}),
        thing("StatefulSet", SUPPORT, "set", UID, labels=labels),
        thing("Pod", f"{SUPPORT}-0", "u", maker, labels=labels, spec=spec, status=about),
    )


def raw_job() -> Json:
    return given.manifest(SPEC, "Job", REF | {"guard": {"level": "healthy"}}, OWN_POD)


def test_its_pod_is_believed_if_its_own_set_controls_it() -> None:
    word = Verdict(
        **WELL.model_dump() | {"level": "fired", "code": "hacking_gap", "fire": True, "stop": True}
    )
    left = json.dumps({"sequence": 9, **word.model_dump(mode="json")})
    last = {"terminated": {"exitCode": 0, "message": left}}
    pod = namespace(lastState=last).gather(raw_job()).pods[0]
    assert (pod.guarded, pod.rank0, pod.guard_since) == (True, False, NOW)
    assert pod.last_word is not None and pod.last_word.code == "hacking_gap"
    other = namespace("another", lastState=last).gather(raw_job()).pods[0]
    assert not other.guarded and other.last_word is None


@pytest.mark.parametrize("gone", ["succeeded", "removed", "somebody else's"])
def test_a_guard_that_judges_is_to_be_heard(gone: str) -> None:
    world = namespace()
    world.silent_for = 601.0
    assert world.gather(raw_job()).silent_for is None, "the trainer's pod is not there yet"
    work = world.there[0]
    if gone == "succeeded":
        work["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    elif gone == "removed":
        world.there.remove(work)
    else:
        work["metadata"] |= {"uid": "other", "ownerReferences": []}
    assert world.gather(raw_job()).silent_for == 601.0
