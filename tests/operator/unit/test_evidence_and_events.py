"""Evidence is bounded, leaves nothing out that fits and delays nothing; Events come with transitions only."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any, cast

import pytest
import yaml

from rlguard.core.apply_body import apply_body
from rlguard.core.policy import Policy
from rlguard.operator.api.reasons import ConditionType
from rlguard.operator.api.status import ConditionStatus
from rlguard.operator.reconcile.events import transitions
from rlguard.operator.reconcile.evidence import (
    CONDITION_BYTES,
    LOG_BYTES,
    ROLLOUTS_BYTES,
    EvidenceCollector,
    build_evidence,
)
from rlguard.operator.reconcile.snapshot import Job, Pod, Snapshot
from rlguard.operator.runtime.client import Client
from rlguard.operator.runtime.errors import TransportError

from . import given
from .given import NOW

Json = dict[str, Any]
CHECKPOINT = {"attempt": 0, "step": 5, "score": 0.5, "items": 10, "path": "/ckpt/5"}


def condition(kind: str, status: str, reason: str = "R", message: str = "m") -> ConditionStatus:
    return ConditionStatus(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)


def job(*conditions: ConditionStatus, keep: bool = False, **guard: Any) -> Job:
    of = given.job(status={"guard": guard}, keepEvidence=keep)
    return replace(of, status=of.status.model_copy(update={"conditions": list(conditions)}))


# -- evidence --------------------------------------------------------------------------------------------


def test_evidence_holds_verdict_end_checkpoint_logs_and_what_the_guard_told() -> None:
    """The verdict of a run that was halted, failed or was taken away is that of one that is well."""
    one = job(condition("Halted", "True", "GuardSilent"), reason="gap 0.2 > 0.1", bestCheckpoint=CHECKPOINT)
    told = {"history.jsonl": '{"step":1}\n', "steps.jsonl": '{"step":9}', "rollouts.json": "[]", "more": "x"}
    data = build_evidence(one, told, {"trainer.log": "bye"}, NOW)["data"]
    assert json.loads(data["verdict.json"]) == {"reason": "gap 0.2 > 0.1"}
    halted = {"type": "Halted", "status": "True", "reason": "GuardSilent", "message": "m"}
    assert json.loads(data["conditions.json"]) == [halted]
    assert {name: data.get(name) for name in told} == told | {"more": None}
    assert json.loads(data["last-good-checkpoint.json"])["path"] == "/ckpt/5"
    assert Policy.model_validate(yaml.safe_load(data["policy.yaml"])) == Policy()
    assert data["trainer.log"] == "bye"


def test_evidence_can_be_read_by_people_of_any_language() -> None:
    """And by the API server, to which no half of a pair goes."""
    failed = condition("Failed", "True", message="内存")
    one = job(failed, reason="奖励上升", bestCheckpoint=CHECKPOINT | {"path": "/模型"})
    body = build_evidence(one, {"rollouts.json": '["六"]'}, {}, NOW)
    text = json.dumps(body["data"], ensure_ascii=False)
    assert all(word in text for word in ("奖励上升", "/模型", "六", "内存"))
    assert yaml.safe_load(apply_body(body)) == body


@pytest.mark.parametrize("kept", [False, True])
def test_evidence_goes_with_its_job_unless_it_is_to_stay(kept: bool) -> None:
    metadata = build_evidence(job(keep=kept), {}, {}, NOW)["metadata"]
    assert ("ownerReferences" not in metadata) is kept
    assert metadata["labels"] == {"rlguard.dev/job": "run"}


def test_evidence_is_bounded_and_keeps_the_end() -> None:
    """Whatever a guard tells. The steps go before all else."""
    most, text = "\U0001f600" * 4096, "é" * LOG_BYTES + "end"
    evaluation = {**CHECKPOINT, "path": most, "sha256": "0" * 64}
    latch = {"code": "c" * 63, "reason": most, "attempt": 1, "step": 2**53, "at": NOW.isoformat()}
    longest = [condition(kind, "Unknown", "R" * 63, "é" * 32768) for kind in ConditionType]
    said = {"bestCheckpoint": evaluation, "lastEvaluation": evaluation, "reason": most}
    full = job(*longest, **said, fire=latch, halt=latch)
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


class Logs:
    """Gives the logs but those of `silent` containers."""

    def __init__(self, *silent: str) -> None:
        self.made: list[Json] = []
        self._silent = silent

    def log_tail(self, namespace: str, pod: str, container: str, *_bounds: Any) -> str:
        if container in self._silent:
            raise TransportError("it is gone")
        return f"{namespace} {pod} {container}"

    def create(self, _resource: Any, _namespace: str, body: Json, _manager: str) -> None:
        self.made.append(body)


PODS = (
    Pod("run-0", "p", guarded=True, phase="Running", rank0=True),
    Pod("run-worker-0", "w", guarded=False, phase="Running"),
)
TRAINER, GUARD, GONE = "ns run-0 train", "ns run-0 rlguard-guard", "not available: it is gone"
NO_POD = "not available: no pod is there, or which of its containers trains is not known"


@pytest.mark.parametrize(
    ("silent", "pods", "final", "trainer", "guard"),
    [
        ((), PODS, False, TRAINER, GUARD),
        (("rlguard-guard",), PODS, False, TRAINER, GONE),
        (("train",), PODS, True, GONE, GUARD),
        ((), (), True, NO_POD, NO_POD),
    ],
)
def test_a_log_that_cannot_be_had_is_said_to_be_missing(
    silent: tuple[str, ...], pods: tuple[Pod, ...], final: bool, trainer: str, guard: str
) -> None:
    done, logs = threading.Event(), Logs(*silent)
    collector = EvidenceCollector(
        cast(Client, logs), lambda uid: {"history.jsonl": uid}, lambda _key: done.set()
    )
    collector.collect(Snapshot(job(), pods=pods, trainer="train"), final)
    assert done.wait(60)
    (body,) = logs.made
    data = body["data"]
    assert data["history.jsonl"] == job().uid, "with what its guard told"
    assert (data["trainer.log"], data["guard.log"]) == (trainer, guard)


# -- Events ----------------------------------------------------------------------------------------------

#: (condition before, condition after, the Event).
CASES: dict[str, tuple[str, str, str]] = {
    "first fire": ("", "Fired True", "Warning R"),
    "still fired": ("Fired True", "Fired True", ""),
    "unknown to not fired": ("Fired Unknown", "Fired False", ""),
    "guarded": ("Guarded False", "Guarded True", "Normal R"),
    "refused": ("", "Guarded False ClaimMissing", "Warning ClaimMissing"),
    "refused again": ("Guarded False ClaimMissing", "Guarded False ClaimMissing", ""),
    "refused for another reason": ("Guarded False X", "Guarded False NameTaken", "Warning NameTaken"),
    "pending": ("", "Guarded False WorkloadPending", ""),
    "relaxed": ("", "Isolated False", "Warning R"),
    "a pod has what is the guard's": ("Isolated False Attached", "Isolated False Exposed", "Warning Exposed"),
    "attached as before": ("Isolated False Attached", "Isolated False Attached", ""),
    "strict": ("", "Isolated True", ""),
    "stop asked for": ("", "Stopped False", "Normal R"),
    "still stopping": ("Stopped False", "Stopped False", ""),
    "stopped": ("Stopped False", "Stopped True", "Normal R"),
    "pods are overdue": ("Stopped False PodsTerminating", "Stopped False StopBlocked", "Warning StopBlocked"),
    "pods are still overdue": ("Stopped False StopBlocked", "Stopped False StopBlocked", ""),
    "back": ("GuardSilent True", "GuardSilent False", "Normal R"),
    "evicted": ("Disrupted False", "Disrupted True", "Warning R"),
    "succeeded": ("", "Succeeded True", "Normal R"),
    "succeeded, not judged": ("", "Succeeded True NotJudged", "Warning NotJudged"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES.keys())
def test_events_come_with_transitions(before: str, after: str, expected: str) -> None:
    old = [condition(*before.split())] if before else []
    told = [f"{one.type} {one.reason}" for one in transitions(old, [condition(*after.split())])]
    assert told == ([expected] if expected else [])
