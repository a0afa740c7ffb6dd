"""Evidence is bounded and leaves nothing out that fits; Events come with transitions only."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from guard_core.apply_body import apply_body
from guard_core.policy import Policy
from guard_operator.api.reasons import ConditionType
from guard_operator.api.types import ConditionStatus, Spec, Status
from guard_operator.reconcile.events import transitions
from guard_operator.reconcile.evidence import CONDITION_BYTES, LOG_BYTES, ROLLOUTS_BYTES, build_evidence
from guard_operator.reconcile.snapshot import Job

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "c"},
    },
}
CHECKPOINT = {"attempt": 0, "step": 5, "score": 0.5, "items": 10, "path": "/ckpt/5"}


def job(**guard: Any) -> Job:
    return Job(
        "run",
        "ns",
        "0123456789",
        1,
        "1",
        {},
        Spec.model_validate(SPEC),
        Status.model_validate({"guard": guard}),
    )


def test_evidence_holds_verdict_checkpoint_logs_and_what_the_guard_told() -> None:
    one = job(reason="gap 0.2 > 0.1", bestCheckpoint=CHECKPOINT)
    told = {"history.jsonl": '{"step":1}\n', "steps.jsonl": '{"step":9}', "rollouts.json": "[]", "more": "x"}
    data = build_evidence(one, told, {"trainer.log": "bye"}, NOW)["data"]
    assert json.loads(data["verdict.json"]) == {"reason": "gap 0.2 > 0.1"}
    assert {name: data.get(name) for name in told} == told | {"more": None}
    assert json.loads(data["last-good-checkpoint.json"])["path"] == "/ckpt/5"
    assert Policy.model_validate(yaml.safe_load(data["policy.yaml"])) == Policy()
    assert data["trainer.log"] == "bye"


def ended(of: Job, *conditions: ConditionStatus) -> Job:
    return replace(of, status=of.status.model_copy(update={"conditions": list(conditions)}))


def test_evidence_says_how_the_run_ended() -> None:
    """The verdict of a run that was halted, failed or was taken away is that of one that is well."""
    one = ended(job(reason="r"), condition("Halted", "True", "GuardSilent"), condition("Fired", "Unknown"))
    assert json.loads(build_evidence(one, {}, {}, NOW)["data"]["conditions.json"]) == [
        {"type": "Halted", "status": "True", "reason": "GuardSilent", "message": "m"},
        {"type": "Fired", "status": "Unknown", "reason": "R", "message": "m"},
    ]


def test_evidence_can_be_read_by_people_of_any_language() -> None:
    """And by the API server, to which no half of a pair goes."""
    one = job(reason="奖励上升", bestCheckpoint=CHECKPOINT | {"path": "/模型"})
    said = condition("Failed", "True").model_copy(update={"message": "内存"})
    body = build_evidence(ended(one, said), {"rollouts.json": '["六"]'}, {}, NOW)
    for name, word in (
        ("verdict", "奖励上升"),
        ("last-good-checkpoint", "/模型"),
        ("rollouts", '"六"'),
        ("conditions", "内存"),
    ):
        assert word in body["data"][f"{name}.json"]
    assert yaml.safe_load(apply_body(body)) == body


@pytest.mark.parametrize("kept", [False, True])
def test_evidence_goes_with_its_job_unless_it_is_to_stay(kept: bool) -> None:
    one = job()
    one = replace(one, spec=one.spec.model_copy(update={"keep_evidence": kept}))
    metadata = build_evidence(one, {}, {}, NOW)["metadata"]
    assert ("ownerReferences" not in metadata) is kept
    assert metadata["labels"] == {"rlguard.dev/job": "run"}


def test_evidence_is_bounded_and_keeps_the_end() -> None:
    """Whatever a guard tells. The steps go before all else."""
    most, text = "\U0001f600" * 4096, "é" * LOG_BYTES + "end"
    evaluation = {**CHECKPOINT, "path": most, "sha256": "0" * 64}
    latch = {"code": "c" * 63, "reason": most, "attempt": 1, "step": 2**53, "at": NOW.isoformat()}
    full = job(bestCheckpoint=evaluation, lastEvaluation=evaluation, reason=most, fire=latch, halt=latch)
    longest = [condition(kind, "Unknown", "R" * 63) for kind in ConditionType]
    full = ended(full, *(one.model_copy(update={"message": "é" * 32768}) for one in longest))
    steps = "\n".join(["head", *(f"{n:03}" + "é" * 61 for n in range(1, 257))])
    told = {"history.jsonl": text, "rollouts.json": "x" * ROLLOUTS_BYTES, "steps.jsonl": steps}
    body = build_evidence(full, told, {"trainer.log": text, "guard.log": text}, NOW)
    data = body["data"]
    assert len(json.dumps(body, ensure_ascii=False).encode()) < 256 * 1024
    assert all(data[name].endswith("end") for name in ("history.jsonl", "trainer.log", "guard.log"))
    assert {len(one["message"]) for one in json.loads(data["conditions.json"])} == {CONDITION_BYTES // 2}
    fewer = data["steps.jsonl"].split("\n")
    assert fewer[0] == "head" and fewer[-1].startswith("256") and len(fewer) < 257
    told["rollouts.json"] += "x"
    assert "rollouts.json" not in build_evidence(full, told, {}, NOW)["data"], "half would be no JSON"


def condition(kind: str, status: str, reason: str = "R") -> ConditionStatus:
    return ConditionStatus(type=kind, status=status, reason=reason, message="m", last_transition_time=NOW)


CASES: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    "first fire": (None, ("Fired", "True"), [("Warning", "R")]),
    "still fired": (("Fired", "True"), ("Fired", "True"), []),
    "unknown to not fired": (("Fired", "Unknown"), ("Fired", "False"), []),
    "guarded": (("Guarded", "False"), ("Guarded", "True"), [("Normal", "R")]),
    "refused": (None, ("Guarded", "False", "ClaimMissing"), [("Warning", "ClaimMissing")]),
    "refused again": (("Guarded", "False", "ClaimMissing"), ("Guarded", "False", "ClaimMissing"), []),
    "refused for another reason": (
        ("Guarded", "False", "ClaimMissing"),
        ("Guarded", "False", "WorkloadRefused"),
        [("Warning", "WorkloadRefused")],
    ),
    "pending": (None, ("Guarded", "False", "WorkloadPending"), []),
    "relaxed": (None, ("Isolated", "False"), [("Warning", "R")]),
    "a pod has what is the guard's": (
        ("Isolated", "False", "Attached"),
        ("Isolated", "False", "GuardDataExposed"),
        [("Warning", "GuardDataExposed")],
    ),
    "attached as before": (("Isolated", "False", "Attached"), ("Isolated", "False", "Attached"), []),
    "strict": (None, ("Isolated", "True"), []),
    "stop asked for": (None, ("Stopped", "False"), [("Normal", "R")]),
    "still stopping": (("Stopped", "False"), ("Stopped", "False"), []),
    "stopped": (("Stopped", "False"), ("Stopped", "True"), [("Normal", "R")]),
    "pods are overdue": (
        ("Stopped", "False", "PodsTerminating"),
        ("Stopped", "False", "StopBlocked"),
        [("Warning", "StopBlocked")],
    ),
    "pods are still overdue": (("Stopped", "False", "StopBlocked"), ("Stopped", "False", "StopBlocked"), []),
    "silent": (("GuardSilent", "False"), ("GuardSilent", "True"), [("Warning", "R")]),
    "back": (("GuardSilent", "True"), ("GuardSilent", "False"), [("Normal", "R")]),
    "evicted": (("Disrupted", "False"), ("Disrupted", "True"), [("Warning", "R")]),
    "succeeded": (None, ("Succeeded", "True"), [("Normal", "R")]),
    "succeeded, not judged": (None, ("Succeeded", "True", "NotJudged"), [("Warning", "NotJudged")]),
    "succeeded, some left": (
        None,
        ("Succeeded", "True", "CheckpointsLeft"),
        [("Warning", "CheckpointsLeft")],
    ),
}


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES.keys())
def test_events_come_with_transitions(before: Any, after: Any, expected: list[tuple[str, str]]) -> None:
    old = [condition(*before)] if before else []
    assert [(e.type, e.reason) for e in transitions(old, [condition(*after)])] == expected
