"""The gauges of the operator, and its flags."""

from __future__ import annotations

import time
from typing import Any

import pytest

from guard_core.wire import Verdict
from guard_operator.__main__ import parser
from guard_operator.api.reasons import Reason
from guard_operator.guards.reading import Reading
from guard_operator.reconcile.gauges import JobGauges
from guard_operator.runtime.metrics import OperatorMetrics

Json = dict[str, Any]


def raw(name: str, **status: Any) -> Json:
    meta = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": status}


def unread(_uid: str) -> None:
    """Nothing was read of any guard."""


def condition(kind: str, status: str, reason: str = "R") -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def held(kind: str, reason: str = "R") -> tuple[str, str, str]:
    return "rlguard_job_condition_seconds", kind, reason


AGE = ("rlguard_evaluation_age_seconds", "", "")
#: Which gauges of a job there are, by its status.
GAUGES: dict[str, tuple[Json, set[tuple[str, str, str]]]] = {
    "new": ({}, set()),
    "running, nothing evaluated": ({"phase": "Running", "conditions": [condition("Fired", "False")]}, {AGE}),
    "silent, nothing evaluated": (
        {"phase": "Running", "conditions": [condition("GuardSilent", "True"), condition("Fired", "Unknown")]},
        {AGE, held("GuardSilent")},
    ),
    "starting, and its guard has not reported": (
        {
            "phase": "Starting",
            "conditions": [condition(kind, "Unknown") for kind in ("Fired", "GuardSilent")],
        },
        set(),
    ),
    "suspended": (
        {
            "phase": "Suspended",
            "guard": {"lastEvaluationTime": "2026-01-01T00:00:00Z"},
            "conditions": [condition("Fired", "False")],
        },
        set(),
    ),
    "being stopped": (
        {"phase": "Stopping", "conditions": [condition("Stopped", "False", Reason.STOP_BLOCKED)]},
        {held("Stopped", Reason.STOP_BLOCKED)},
    ),
    "stopped": ({"phase": "Stopped", "conditions": [condition("Stopped", "True")]}, set()),
    "waiting": ({"phase": "Pending", "conditions": [condition("Waiting", "True")]}, {held("Waiting")}),
    "failed while it waited": ({"phase": "Failed", "conditions": [condition("Waiting", "True")]}, set()),
    "succeeded": ({"phase": "Succeeded", "conditions": [condition("Guarded", "True")]}, set()),
}


@pytest.mark.parametrize(("status", "expected"), GAUGES.values(), ids=GAUGES.keys())
def test_what_is_measured_of_a_job(status: Json, expected: set[tuple[str, str, str]]) -> None:
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: [raw("run", **status)], list, list, unread))
    of_job = {
        (sample.name, sample.labels.get("type", ""), sample.labels.get("reason", "")): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("namespace") == "a"
    }
    assert of_job.keys() == expected
    assert all(value > 0 for value in of_job.values())


@pytest.mark.parametrize(
    "time", ["2026-01-01T00:00:00x1Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99"]
)
def test_a_time_that_is_none_takes_no_gauge_of_another_job(time: str) -> None:
    """The API server takes all of these for a date-time, and whoever writes a status chooses."""
    runs = [condition("Fired", "False")]
    jobs = [
        raw("odd", phase="Running", guard={"lastEvaluationTime": time}, conditions=runs),
        raw(
            "worse", phase="Running", conditions=[condition("Waiting", "True") | {"lastTransitionTime": time}]
        ),
        raw("run", phase="Running", guard={"lastEvaluationTime": "2026-01-01T00:00:00Z"}, conditions=runs),
    ]
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: jobs, list, list, unread))
    value = metrics.registry.get_sample_value
    names = ("odd", "worse", "run")
    ages = [value("rlguard_evaluation_age_seconds", {"namespace": "a", "name": name}) for name in names]
    assert ages[:2] == [None, None] and ages[2]


def test_phases_and_what_cannot_be_read_are_counted() -> None:
    jobs = [raw("a", phase="Running"), raw("b", phase="Running"), raw("c", phase="Stopped"), raw("d")]
    metrics = OperatorMetrics()
    spaces, kinds = [("a", True), ("gone", False)], [("a", "Job", True), ("a", "RayJob", False)]
    metrics.registry.register(JobGauges(lambda: jobs, lambda: spaces, lambda: kinds, unread))
    value = metrics.registry.get_sample_value
    assert [value("rlguard_jobs", {"phase": phase}) for phase in ("Running", "Stopped", "Pending")] == [
        2,
        1,
        1,
    ]
    synced = [value("rlguard_namespace_synced", {"namespace": name}) for name in ("a", "gone")]
    assert synced == [1, 0]
    listed = [value("rlguard_kind_synced", {"namespace": "a", "kind": kind}) for kind in ("Job", "RayJob")]
    assert listed == [1, 0]


@pytest.mark.parametrize(("phase", "listed"), [("Running", 0), ("Succeeded", 1)])
def test_a_kind_that_is_not_served_is_synced_unless_a_run_of_it_goes_on(phase: str, listed: int) -> None:
    """One that nobody installed is missed by nobody."""
    jobs = [raw("a", phase=phase, workloadRef={"kind": "JobSet"})]
    kinds: list[tuple[str, str, bool | None]] = [("", "JobSet", None), ("", "RayJob", None)]
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: jobs, lambda: [], lambda: kinds, unread))
    value = metrics.registry.get_sample_value
    there = [value("rlguard_kind_synced", {"namespace": "", "kind": kind}) for kind in ("JobSet", "RayJob")]
    assert there == [listed, 1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gaurd-image=g"], "--gaurd-image is not a flag: did you mean --guard-image?"),
        (["--guard-image=g", "--zzz"], "--zzz is not a flag: known are --bind, --guard-image"),
        (["--guard-image=g", f"--{'z' * 999}"], "z… is not a flag"),
    ],
)
def test_a_flag_that_does_not_exist_says_which_may_be_meant(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(flags)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ('{"limit": {"memory": "4Gi"}}', "limit: Extra inputs are not permitted"),
        ('{"limits": {"memory": null}}', "limits.memory.int: Input should be a valid integer"),
    ],
)
def test_resources_of_guards_that_cannot_be_are_named(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--guard-image=g", f"--guard-resources={text}"])
    assert said in capsys.readouterr().err
    assert parser().parse_args(["--guard-image=g", "--guard-resources={}"]).guard_resources == {}


def test_what_was_read_of_a_guard_is_measured_and_what_is_unknown_is_absent() -> None:
    said: Json = {"level": "warning", "code": "stale", "reason": "x", "evaluated": 2, "kl_ema": 0.5}
    verdict = Verdict(**said, fire=False, halt=False, stop=False)
    reading = Reading("pod", verdict=verdict, unreached_since=time.monotonic() - 5)
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: [raw("run")], list, list, lambda _uid: reading))
    told = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("name") == "run"
    }
    assert told["rlguard_job_level", None] == 2 and told["rlguard_job_kl_ema", None] == 0.5
    assert told["rlguard_job_checkpoints", "evaluated"] == 2
    assert ("rlguard_job_reward_ema", None) not in told
    assert told["rlguard_job_guard_unreachable_seconds", None] >= 5
