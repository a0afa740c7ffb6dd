"""The gauges of the operator, and its flags."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from rlguard.core.wire import Verdict
from rlguard.operator.__main__ import parser
from rlguard.operator.guards.reading import Reading
from rlguard.operator.reconcile.gauges import JobGauges
from rlguard.operator.runtime.metrics import OperatorMetrics

Json = dict[str, Any]
EVER = "2026-01-01T00:00:00Z"
#: Times that the API server takes for a date-time, and that are none. Whoever writes a status chooses.
ODD_TIMES = ("2026-01-01T00:00:00x1Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99")


def raw(name: str, **status: Any) -> Json:
    meta = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": status}


def measured(
    jobs: Iterable[Json],
    namespaces: Iterable[tuple[str, bool]] = (),
    kinds: Iterable[tuple[str, str, bool | None]] = (),
    reading: Reading | None = None,
) -> dict[str, float]:
    """Every gauge of jobs, by its name and its labels in their order."""
    metrics = OperatorMetrics()
    gauges = JobGauges(lambda: jobs, lambda: namespaces, lambda: kinds, lambda _uid: reading)
    metrics.registry.register(gauges)
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }


def conditions(*said: str, at: str = EVER) -> Json:
    """Such as "Fired False"."""
    parts = (one.split() for one in said)
    of = [{"type": k, "status": s, "reason": "R", "lastTransitionTime": at} for k, s in parts]
    return {"conditions": of}


AGE, HELD = "rlguard_evaluation_age_seconds a run", "rlguard_job_condition_seconds a run"
EVALUATED = {"guard": {"lastEvaluationTime": EVER}}


@pytest.mark.parametrize(
    ("phase", "status", "expected"),
    [
        ("Pending", {}, set()),
        ("Running", conditions("Fired False"), {AGE}),
        ("Running", conditions("GuardSilent True", "Fired Unknown"), {AGE, f"{HELD} GuardSilent R"}),
        ("Starting", conditions("Fired Unknown", "GuardSilent Unknown"), set()),
        ("Suspended", conditions("Fired False") | EVALUATED, set()),
        ("Stopping", conditions("Stopped False"), {f"{HELD} Stopped R"}),
        ("Stopped", conditions("Stopped True"), set()),
        ("Pending", conditions("Waiting True"), {f"{HELD} Waiting R"}),
        ("Failed", conditions("Waiting True"), set()),
    ],
)
def test_what_is_measured_of_a_job(phase: str, status: Json, expected: set[str]) -> None:
    found = measured([raw("run", phase=phase, **status)])
    of_job = {name: value for name, value in found.items() if " a run" in name}
    assert of_job.keys() == expected and all(value > 0 for value in of_job.values())


@pytest.mark.parametrize("at", ODD_TIMES)
def test_a_time_that_is_none_takes_no_gauge_of_another_job(at: str) -> None:
    runs = conditions("Fired False")
    jobs = [
        raw("odd", phase="Running", guard={"lastEvaluationTime": at}, **runs),
        raw("worse", phase="Running", **conditions("Waiting True", at=at)),
        raw("run", phase="Running", **EVALUATED, **runs),
    ]
    assert [name for name in measured(jobs) if "_seconds" in name] == [AGE]


def test_phases_and_what_cannot_be_read_are_counted() -> None:
    jobs = [raw("a", phase="Running", workloadRef={"kind": "JobSet"}), raw("b", phase="Running"), raw("d")]
    kinds = [("a", "Job", True), ("a", "RayJob", False), ("a", "JobSet", None), ("a", "TrainJob", None)]
    found = measured(jobs, [("a", True), ("gone", False)], kinds)
    assert (found["rlguard_jobs Running"], found["rlguard_jobs Pending"]) == (2, 1)
    assert (found["rlguard_namespace_synced a"], found["rlguard_namespace_synced gone"]) == (1, 0)
    synced = {kind: found[f"rlguard_kind_synced a {kind}"] for _, kind, _ in kinds}
    assert synced == {"Job": 1, "RayJob": 0, "JobSet": 0, "TrainJob": 1}, "nobody misses what no run has"


def test_what_was_read_of_a_guard_is_measured_and_what_is_unknown_is_absent() -> None:
    said: Json = {"level": "warning", "code": "stale", "reason": "x", "evaluated": 2, "kl_ema": 0.5}
    verdict = Verdict(**said, fire=False, halt=False, stop=False)
    found = measured(
        [raw("run")], reading=Reading("p", verdict=verdict, unreached_since=time.monotonic() - 5)
    )
    assert found["rlguard_job_level a run"] == 2 and found["rlguard_job_kl_ema a run"] == 0.5
    assert found["rlguard_job_checkpoints a run evaluated"] == 2
    assert "rlguard_job_reward_ema a run" not in found
    assert found["rlguard_job_guard_unreachable_seconds a run"] >= 5


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--guard-resources=", "it is not JSON"),
        ('--guard-resources={"limit": {"memory": "4Gi"}}', "limit: Extra inputs are not permitted"),
        (
            '--guard-resources={"limits": {"memory": null}}',
            "limits.memory.int: Input should be a valid integer",
        ),
    ],
)
def test_a_flag_that_cannot_be_says_why(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--guard-image=g", flag])
    assert said in capsys.readouterr().err
    assert parser().parse_args(["--guard-image=g", "--guard-resources={}"]).guard_resources == {}
