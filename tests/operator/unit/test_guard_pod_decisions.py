"""What is decided of a run whose guard has a pod of its own, and what is gathered for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guard_core.wire import Verdict
from guard_operator.adapters import WorkloadState, find_adapter
from guard_operator.api.types import GuardPod, OnSilence, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.guards.reading import Reading
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.endings import (
    EVIDENCE_SECONDS,
    HEARD_SECONDS,
    JUDGED_SECONDS,
)
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.snapshot import (
    Between,
    CaptureEvidence,
    Decision,
    Delete,
    Doomed,
    EnsureGuard,
    Job,
    OwnGuard,
    Pod,
    Snapshot,
    Workload,
    delete_makers,
)
from guard_operator.reconcile.teardown import STOPPING_SECONDS
from guard_operator.runtime.client import BATCH_JOBS, EVENTS, PODS, STATEFUL_SETS, Client, Resource

Json = dict[str, Any]
ADAPTER = find_adapter("batch/v1", "Job")
assert ADAPTER is not None
CONFIG = OperatorConfig(guard_image="guard:1")


def template() -> Json:
    mounts = [{"name": "ckpt", "mountPath": "/ckpt"}]
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": "trainer", "image": "trainer:1", "volumeMounts": mounts}],
        "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    return {"template": {"spec": pod}}


def job() -> Job:
    guard = {
        "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "ckpt"},
        "state": {"claimName": "state"},
        "placement": "Pod",
    }
    workload = {"apiVersion": "batch/v1", "kind": "Job", "spec": template()}
    return Job(
        "run",
        "ns",
        "0123456789ab",
        1,
        "1",
        {},
        Spec.model_validate({"template": workload, "guard": guard}),
        Status(),
    )


def made() -> dict[str, Json]:
    return {r.kind: body for r, body in guard_objects(job(), GuardPod(), ADAPTER, CONFIG)}


# -- what is decided -------------------------------------------------------------------------------------

#: Guards of which nothing was heard for long.
UNHEARD_OF = cast(
    Any,
    SimpleNamespace(
        reading=lambda _uid: None, silent_for=lambda _uid, _pod: 601.0, most_are_unreached=lambda: False
    ),
)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SET = Between(STATEFUL_SETS, "run-01234567", "set")
OF_WORKLOAD = Doomed(BATCH_JOBS, "run", "w")
REF = {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": "w"}}
JUDGED = {
    **{"level": "healthy", "code": "ok", "reason": "fine", "step": 9},
    **{"attempt": 0, "announced": 3, "evaluated": 3, "waiting": 0},
}
WELL = Verdict(level="healthy", code="ok", reason="fine", fire=False, halt=False, stop=False)
#: The guard was heard long before the trainer's end, or just now.
EARLIER, NOW_HEARD = (
    Reading("uid-guard", verdict=WELL, heard_at=NOW - timedelta(days=days)) for days in (1, -1)
)
ENDED = {"ended": {"attempt": 0, "step": 9}}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": NOW.isoformat()}
TRAINER = Pod("run-x7k2p", "uid-trainer", guarded=False, phase="Running", rank0=True)
GUARD = Pod("run-01234567-0", "uid-guard", guarded=True, phase="Running", guard_since=NOW)


def seen(
    state: WorkloadState = WorkloadState.RUNNING,
    status: Json | None = None,
    made: Between | None = SET,
    **values: Any,
) -> Snapshot:
    of = replace(job(), status=Status.model_validate({**REF, "guard": JUDGED, **(status or {})}))
    given = {"pods": (GUARD, TRAINER), "silent_for": 1.0, "reading": NOW_HEARD, **values}
    return Snapshot(of, Workload("w", True, state), own_guard=OwnGuard(made), **given)


def said(decision: Decision) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in decision.report.conditions}


def judging(seconds: float, guard: Json | None = None) -> Json:
    """The status of a run whose trainer was seen to have finished so long ago, when its guard said this."""
    status = {"guard": guard or JUDGED}
    first = decide(
        seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), NOW - timedelta(seconds=seconds)
    ).report.conditions
    noted = [c.model_dump(mode="json", by_alias=True) for c in first if c.type == "Succeeded"]
    assert noted[0]["reason"] == "GuardJudges"
    return {"conditions": noted}


def test_it_is_started_with_the_run_and_again_if_it_is_gone() -> None:
    for state in (WorkloadState.PENDING, WorkloadState.RUNNING):
        assert decide(seen(state, made=None), NOW).actions == (EnsureGuard(),)
        assert decide(seen(state), NOW).actions == ()
        assert decide(seen(state, made=replace(SET, terminating=True)), NOW).actions == ()


def test_it_takes_no_gpu_while_a_queue_holds_the_run_back() -> None:
    assert decide(seen(WorkloadState.SUSPENDED), NOW).actions == (delete_makers((SET,)),)
    assert decide(seen(WorkloadState.SUSPENDED, made=None), NOW).actions == ()


def test_a_rank_0_without_a_sidecar_is_as_it_should_be() -> None:
    assert said(decide(seen(), NOW))["Guarded"] == ("True", "WorkloadCreated")
    assert said(decide(seen(pods=(TRAINER,)), NOW))["Fired"] == ("Unknown", "GuardNotRunning")


def test_a_fire_stops_both() -> None:
    fired = {"guard": JUDGED | {"fire": FIRE}}
    decision = decide(seen(status=fired), NOW)
    assert decision.actions == (
        CaptureEvidence(final=False),
        Delete((OF_WORKLOAD, *delete_makers((SET,)).objects)),
    )
    going = decide(seen(status=fired, made=replace(SET, terminating=True)), NOW)
    assert going.actions == (CaptureEvidence(final=False), Delete((OF_WORKLOAD,)))
    left = decide(replace(seen(status=fired, pods=()), workload=None), NOW)
    assert said(left)["Stopped"] == ("False", "StopRequested"), "its StatefulSet would make the guard again"
    assert delete_makers((SET,)) in left.actions


def test_it_is_waited_for_until_it_has_heard_of_the_end() -> None:
    """What it waits for may be a checkpoint that was announced a moment ago."""

    def succeeded(status: Json) -> tuple[str, str]:
        return said(decide(seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), NOW))["Succeeded"]

    assert succeeded({}) == ("Unknown", "GuardJudges")
    assert succeeded(judging(0) | {"guard": JUDGED | ENDED}) == ("True", "WorkloadSucceeded")
    assert succeeded(judging(HEARD_SECONDS - 1)) == ("Unknown", "GuardJudges")
    assert succeeded(judging(HEARD_SECONDS)) == ("True", "WorkloadSucceeded")


def test_a_report_of_before_the_end_says_nothing_of_what_was_announced_last() -> None:
    """A guard that dies with its trainer has not said what it still had to judge."""

    def succeeded(seconds: float, before: Json, made: Between | None = SET) -> tuple[str, str, str]:
        status = judging(seconds, before) | {"guard": before}
        decision = decide(seen(WorkloadState.SUCCEEDED, status, made, pods=(GUARD,), reading=EARLIER), NOW)
        (found,) = (c for c in decision.report.conditions if c.type == "Succeeded")
        return found.status, found.reason, found.message

    for before in (JUDGED | ENDED, JUDGED):
        assert succeeded(JUDGED_SECONDS - 1, before)[:2] == ("Unknown", "GuardJudges")
        status, reason, message = succeeded(JUDGED_SECONDS, before)
        assert (status, reason) == ("True", "NotJudged")
        assert "the guard was not heard since the trainer ended" in message
        assert succeeded(0, before, made=None)[:2] == ("True", "NotJudged"), "its StatefulSet was deleted"
    assert decide(seen(WorkloadState.SUCCEEDED, None, None, pods=()), NOW).report.phase == "Succeeded"
    never = {"level": "unknown"}
    assert succeeded(HEARD_SECONDS, never)[:2] == ("Unknown", "GuardJudges")


def test_a_guard_that_falls_silent_while_it_judges_is_no_plain_success() -> None:
    """In the very look that finds it silent, before the status says so."""
    status = judging(700) | {"guard": JUDGED | ENDED}
    for live in (False, True):
        snapshot = seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,), silent_for=601.0, live=live)
        warn = snapshot.job.spec.model_copy(update={"on_silence": OnSilence(action="Warn")})
        of = replace(snapshot, job=replace(snapshot.job, spec=warn))
        assert said(decide(of, NOW))["Succeeded"] == ("True", "NotJudged")


def test_a_workload_that_is_removed_while_its_guard_judges_has_finished_all_the_same() -> None:
    """By a TTL, for example. Its trainer need not have told anybody that it finished."""
    waits = JUDGED | {"waiting": 1, "evaluated": 2}
    status = judging(JUDGED_SECONDS - 1, JUDGED) | {"guard": waits}
    gone = replace(seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), workload=None)
    assert decide(gone, NOW).report.phase == "Judging"
    late = decide(gone, NOW + timedelta(seconds=2))
    assert said(late)["Succeeded"] == ("True", "CheckpointsLeft") and "Disrupted" not in said(late)
    left = next(c.message for c in late.report.conditions if c.type == "Succeeded")
    assert "RLGUARD_DRAIN_SECONDS" not in left and "a faster evaluator" in left
    assert "backlog" not in left, "what is passed over is not judged either"


WAITS = {"guard": JUDGED | {"waiting": 1, "evaluated": 2} | ENDED}


@pytest.mark.parametrize(
    "seen_now",
    [
        lambda: seen(WorkloadState.SUCCEEDED, WAITS | judging(JUDGED_SECONDS), pods=(GUARD,)),
        lambda: seen(WorkloadState.SUCCEEDED, WAITS, pods=(GUARD,), silent_for=601.0, live=True),
        lambda: seen(WorkloadState.SUCCEEDED, WAITS, None, pods=()),
    ],
    ids=["for too long", "silent", "gone"],
)
def test_a_guard_that_judges_no_more_is_not_waited_for(seen_now: Callable[[], Snapshot]) -> None:
    snapshot = seen_now()
    of = replace(
        snapshot.job, spec=snapshot.job.spec.model_copy(update={"on_silence": OnSilence(action="Warn")})
    )
    decision = decide(replace(snapshot, job=of), NOW)
    assert said(decision)["Succeeded"] == ("True", "CheckpointsLeft"), "and that is said"


def test_it_ends_once_the_evidence_is_there_or_is_not_to_come() -> None:
    over = {
        "conditions": [
            {"type": "Succeeded", "status": "True", "reason": "x", "lastTransitionTime": NOW.isoformat()}
        ]
    }
    first = decide(seen(WorkloadState.SUCCEEDED, over, pods=(GUARD,)), NOW)
    assert first.actions == (CaptureEvidence(final=False),) and first.look_again is not None
    written = decide(seen(WorkloadState.SUCCEEDED, over | {"evidence": "e"}, pods=(GUARD,)), NOW)
    assert written.actions == (delete_makers((SET,)),)
    assert written.look_again == STOPPING_SECONDS, "a delete that is refused is asked for again: it has a GPU"
    late = NOW + timedelta(seconds=EVIDENCE_SECONDS + 1)
    assert decide(seen(WorkloadState.SUCCEEDED, over, pods=(GUARD,)), late).actions == (
        delete_makers((SET,)),
    )
    done = decide(seen(WorkloadState.SUCCEEDED, over, None, pods=()), late)
    assert done.actions == () and done.look_again is None


# -- a guard that does not come, is not heard, or is elsewhere -------------------------------------------


def halted(snapshot: Snapshot) -> tuple[str, str] | None:
    return said(decide(replace(snapshot, live=True), NOW)).get("Halted")


def test_a_guard_on_a_lost_node_is_silent_while_its_trainer_goes_on() -> None:
    """A toleration for lost nodes would else let the run train unjudged for as long as the node is away."""
    lost = replace(GUARD, node="a", cut_off=True)
    elsewhere = seen(pods=(lost, replace(TRAINER, node="b")), silent_for=601.0)
    assert halted(elsewhere) == ("True", "GuardSilent")
    beside = seen(pods=(lost, replace(TRAINER, node="a", cut_off=True)), silent_for=601.0)
    assert halted(beside) is None, "both run on, and its guard judges it"


# -- what is seen ----------------------------------------------------------------------------------------


def raw_pod(**status: Any) -> Json:
    template = made()["StatefulSet"]["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "uid": "set", "controller": True}
    metadata = {"name": "run-01234567-0", "namespace": "ns", "uid": "u", "ownerReferences": [owner]}
    guard = {"name": "rlguard-guard", "started": True, "state": {"running": {"startedAt": NOW.isoformat()}}}
    return {
        "metadata": template["metadata"] | metadata,
        "spec": template["spec"],
        "status": {"phase": "Running", "containerStatuses": [guard | status]},
    }


def test_its_pod_is_believed_if_its_own_set_controls_it() -> None:
    word = {"sequence": 9, "level": "fired", "code": "hacking_gap", "reason": "gap", "fire": True}
    word |= {"halt": False, "stop": True, "latch_step": 4}
    last = {"terminated": {"exitCode": 0, "message": json.dumps(word)}}
    world = Namespace()
    world.made = [raw_pod(lastState=last)]
    pod = world.gather().pods[0]
    assert (pod.guarded, pod.rank0, pod.guard_since) == (True, False, NOW)
    assert pod.last_word is not None and pod.last_word.verdict.code == "hacking_gap"
    world.sets[0]["metadata"]["uid"] = "another"
    other = world.gather().pods[0]
    assert not other.guarded and other.last_word is None


# -- what is gathered ------------------------------------------------------------------------------------


class Namespace:
    """Caches and client at once: what a namespace has of a job, and what somebody put in the way of it."""

    def __init__(self, status: Json | None = None, kind: str = "Job", **spec: Any) -> None:
        of = job()
        raw = {"template": {"apiVersion": "batch/v1", "kind": kind, "spec": template()}, **spec}
        guard = {
            "placement": "Pod",
            **of.spec.guard.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        metadata = {"name": "run", "namespace": "ns", "uid": "0123456789ab", "resourceVersion": "1"}
        self.job = {"metadata": metadata, "spec": raw | {"guard": guard}, "status": {**REF, **(status or {})}}
        owner = {"kind": "GuardedTrainingJob", "name": "run", "uid": "0123456789ab", "controller": True}
        self.sets = [
            {
                "metadata": {
                    **{"name": "run-01234567", "namespace": "ns", "uid": "set", "ownerReferences": [owner]},
                    "creationTimestamp": (NOW - timedelta(seconds=60)).isoformat(),
                }
            }
        ]
        self.work: Json | None = {
            "metadata": {"name": "run", "namespace": "ns", "uid": "w", "ownerReferences": [owner]},
            "status": {"active": 1},
        }
        self.uncached: list[Json] = []
        self.made: list[Json] = []
        self.events: list[Json] = []
        self.asked: list[str] = []
        caches = cast(Caches, self)
        self.gatherer = Gatherer(cast(Client, self), CONFIG, caches, UNHEARD_OF, lambda: NOW)

    def gather(self) -> Snapshot:
        self.asked.clear()
        snapshot = self.gatherer.gather(parse_job(self.job))
        assert snapshot is not None
        return snapshot

    # Caches
    def workload(self, _resource: Resource, _namespace: str, _name: str) -> Json | None:
        return self.work

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return self.made

    def between(self, resource: Resource, _namespace: str, _uid: str) -> list[Json]:
        assert resource is STATEFUL_SETS
        return [one for one in self.sets if "foreign" not in one]

    # Client
    def get(self, resource: Resource, _namespace: str, _name: str, **_how: object) -> Json | None:
        return self.job if resource.kind == "GuardedTrainingJob" else self.work

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        self.asked.append(f"list {resource.kind}")
        if resource is EVENTS:
            of = query["fieldSelector"].removeprefix("involvedObject.uid=")
            return {"items": [one for one in self.events if one["of"] == of]}
        if resource is PODS:
            return {"items": self.made}
        if "labelSelector" in query:
            return {"items": self.between(resource, "ns", "")}
        assert query == {"fieldSelector": "metadata.name=run-01234567"}
        return {"items": self.sets + self.uncached}


@pytest.mark.parametrize("gone", ["succeeded", "removed", "somebody else's"])
def test_a_guard_that_judges_is_to_be_heard(gone: str) -> None:
    world = Namespace({"guard": {"level": "healthy"}})
    world.made = [raw_pod()]
    world.made[0]["status"]["podIP"] = "10.0.0.1"
    assert world.gather().silent_for is None, "the trainer's pod is not there yet"
    assert world.work is not None
    if gone == "succeeded":
        world.work["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    elif gone == "removed":
        world.work = None
    else:
        world.work["metadata"] |= {"uid": "other", "ownerReferences": []}
    assert world.gather().silent_for == 601.0
