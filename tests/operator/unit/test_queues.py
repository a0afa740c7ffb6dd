"""Kueue: whose Workload it is, what it says, and what is said of a wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guard_operator.adapters import WorkloadState
from guard_operator.api.types import Phase, Spec, Status
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.queues import MESSAGE_LENGTH, queued_of
from guard_operator.reconcile.slim import slim_queued
from guard_operator.reconcile.snapshot import Job, Queued, Snapshot, Workload

Json = dict[str, Any]
#: Guards of which nothing was read.
UNHEARD_OF = cast(
    Any,
    SimpleNamespace(
        reading=lambda _uid: None, silent_for=lambda _uid, _pod: 0.0, most_are_unreached=lambda: False
    ),
)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = {
    "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "c"},
    },
}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": NOW.isoformat()}
REF = {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": "w"}}
ACTIVE = Queued("gpus")


def entry(*conditions: tuple[str, str, str, str], owner: str = "w", **values: Any) -> Json:
    """A Workload of Kueue. `conditions`: type, status, reason, message."""
    keys = ("type", "status", "reason", "message")
    name = values.pop("name", "job-run-x")
    metadata = {"name": name, "uid": f"uid-{name}", "namespace": "ns", "labels": {"other": "x"}}
    return {
        "metadata": metadata | {"ownerReferences": [{"uid": owner, "controller": True, "name": "run"}]},
        "spec": {"queueName": "gpus", "podSets": [{}], **values},
        "status": {"conditions": [dict(zip(keys, one, strict=True)) for one in conditions]},
    }


def said(*conditions: tuple[str, str, str, str], **values: Any) -> Queued:
    raw = entry(*conditions, **values)
    found = queued_of([raw], "w")
    assert found is not None and found == queued_of([slim_queued(raw)], "w"), "what is cached says the same"
    return found


def test_only_what_the_workload_controls_is_its_own() -> None:
    """Anybody may write a label."""
    namesake, own = entry(owner="other", name="a"), entry(name="b")
    assert queued_of([namesake], "w") is None
    found = queued_of([namesake, own], "w")
    assert found is not None and found.queue == "gpus"
    going = entry(name="a")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert queued_of([going], "w") is None


PENDING = ("QuotaReserved", "False", "Pending", "couldn't assign flavors to pod set main: insufficient quota")
PREEMPTED = ("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: 1)")
AGAIN = ("QuotaReserved", "False", "Pending", PREEMPTED[3])
RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus")


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([], ""),
        ([PENDING], f"Pending: {PENDING[3]}"),
        ([RESERVED, ("Admitted", "False", "NoReservation", "x")], "an admission check is not through"),
        ([PREEMPTED, AGAIN], f"its quota was taken back (Preempted: {PREEMPTED[3]})"),
        ([PREEMPTED, PENDING], f"taken back (Preempted: {PREEMPTED[3]}); Pending: couldn't"),
        ([("Finished", "True", "FailedToStart", "flavors conflict")], "ended it: FailedToStart: flavors"),
    ],
)
def test_why_it_waits_in_the_queues_own_words(conditions: list[Any], words: str) -> None:
    found = said(*conditions)
    assert words in found.message
    assert found.message.count(PREEMPTED[3]) <= 1


def test_its_words_are_bounded_and_any_shape_is_read() -> None:
    found = said(("QuotaReserved", "False", "R" * 5000, "m" * 40_000), queueName="q" * 5000)
    assert len(found.message) < 2 * MESSAGE_LENGTH and len(found.queue) <= 100
    for status in ({"conditions": {"type": 1}}, {"conditions": [{}]}, {}, None):
        assert queued_of([{**entry(), "status": status}], "w") is not None
    for spec in ({"active": None}, {"active": True}, {}):
        assert "not active" not in said(**spec).message
    assert "Workload job-run-x is not active" in said(active=False).message


# -- decisions -------------------------------------------------------------------------------------------


def job(status: Json | None = None, labels: Json | None = None, **spec: Any) -> Job:
    return Job(
        "run", "ns", "u", 1, "1", labels or {}, Spec.model_validate({**SPEC, **spec}),
        Status.model_validate({**REF, **(status or {})}),
    )  # fmt: skip


def workload(state: WorkloadState) -> Workload:
    return Workload("w", ours=True, state=state)


SUSPENDED, RUNNING = WorkloadState.SUSPENDED, WorkloadState.RUNNING


@pytest.mark.parametrize(
    ("queued", "labels", "message"),
    [
        (replace(ACTIVE, message="Pending: no quota"), {}, "waits in queue gpus: Pending: no quota"),
        (None, {"kueue.x-k8s.io/queue-name": "gpus"}, "waits in queue gpus: nothing is known"),
    ],
)
def test_a_run_that_waits_says_so_and_is_not_silent(
    queued: Queued | None, labels: Json, message: str
) -> None:
    snapshot = Snapshot(job(labels=labels), workload(SUSPENDED), queued=queued)
    report = decide(snapshot, NOW).report
    found = {c.type: c for c in report.conditions}
    assert report.phase is Phase.SUSPENDED
    assert (found["Waiting"].status, found["Waiting"].reason) == ("True", "Queued")
    assert message in found["Waiting"].message
    assert found["GuardSilent"].status == "Unknown" and "Halted" not in found and "Failed" not in found


@pytest.mark.parametrize("state", [RUNNING, WorkloadState.PENDING])
def test_what_was_admitted_waits_in_no_queue(state: WorkloadState) -> None:
    found = decide(Snapshot(job(), workload(state), queued=ACTIVE), NOW).report.conditions
    assert "Waiting" not in {c.type for c in found}
    suspended = Snapshot(job(), workload(SUSPENDED))
    assert "Waiting" not in {c.type for c in decide(suspended, NOW).report.conditions}, "nor without a queue"
