"""Every alert of the chart, as Prometheus' own promtool sees it: what makes it fire, and what does not."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from .conftest import ROOT, Json, Render, find, tool

pytestmark = pytest.mark.nightly

#: Labels of a scraped replica. Both replicas have the gauges of the jobs, and one alert is told of each job.
ONE, TWO = (f'instance="10.0.0.{n}:8080",pod="rlguard-{n}",service="rlguard"' for n in (1, 2))
JOB = 'namespace="team",name="run"'


@dataclass(frozen=True)
class Case:
    """Series by name and labels, one sample every 30 s, and the labels of the alerts that are firing `at`."""

    alert: str
    series: dict[str, str]
    at: str = "30m"
    firing: list[dict[str, str]] = field(default_factory=list)


def of_job(metric: str, values: str) -> dict[str, str]:
    return {f"{metric}{{{JOB},{one}}}": values for one in (ONE, TWO)}


def held(condition: str, values: str) -> dict[str, str]:
    """For how long a condition of the job has been as it is."""
    return {f"rlguard_job_condition_seconds{{{JOB},{condition},{one}}}": values for one in (ONE, TWO)}


def once(metric: str, values: str, labels: str = ONE) -> dict[str, str]:
    return {f"{metric}{{{labels}}}": values}


def away(name: str, values: str) -> dict[str, str]:
    return once("rlguard_job_guard_unreachable_seconds", values, f'namespace="team",name="{name}",{ONE}')


THE_JOB = [{"namespace": "team", "name": "run"}]
NOTHING: list[dict[str, str]] = [{}]
FIRES, EVALUATED = "rlguard_fires_total", "rlguard_evaluation_age_seconds"
GOING, BLOCKED = ('type="Stopped",reason="PodsTerminating"', 'type="Stopped",reason="StopBlocked"')
STUCK, QUEUED = ('type="Waiting",reason="Unschedulable"', 'type="Waiting",reason="Queued"')
AWAY, LEVEL, JOBS = "rlguard_job_guard_unreachable_seconds", "rlguard_job_level", "rlguard_jobs"
RUNNING = 'phase="Running",'
LEADER = 'leader_election_master_status{name="guardedtrainingjob",namespace="rlguard-system",%s}'
ERRORS = 'controller_runtime_reconcile_errors_total{controller="guardedtrainingjob",%s}'
BUSY = 'workqueue_longest_running_processor_seconds{name="guardedtrainingjob",%s}'
HALTS = "rlguard_halts_total"
QUIET, THE_QUIET = 'reason="GuardSilent",', [{"reason": "GuardSilent"}]
GAP, THE_GAP = 'reason="HackingGap",', [{"reason": "HackingGap"}]


CASES = {
    "a first fire": Case("RLGuardFired", once(FIRES, "_x40 1x100", GAP + ONE), "22m", THE_GAP),
    "one more": Case("RLGuardFired", once(FIRES, "3x40 4x100", GAP + ONE), "22m", THE_GAP),
    "fires of an hour ago": Case("RLGuardFired", once(FIRES, "3x20 4x200", GAP + ONE), "60m"),
    "a first halt": Case("RLGuardHalted", once(HALTS, "_x40 1x100", QUIET + ONE), "22m", THE_QUIET),
    "one halt more": Case("RLGuardHalted", once(HALTS, "3x40 4x100", QUIET + ONE), "22m", THE_QUIET),
    "halts of an hour ago": Case("RLGuardHalted", once(HALTS, "3x20 4x200", QUIET + ONE), "60m"),
    "nobody leads": Case("RLGuardNoLeader", {LEADER % ONE: "0x200", LEADER % TWO: "0x200"}, "10m", NOTHING),
    "no operator is scraped": Case("RLGuardNoLeader", {"up": "0x200"}, "10m", NOTHING),
    "a leader that follows soon": Case(
        "RLGuardNoLeader", {LEADER % ONE: "1x20 0x200", LEADER % TWO: "0x24 1x200"}, "12m"
    ),
    "a teardown that never ends": Case("RLGuardTeardownSlow", held(GOING, "0+30x200"), "5m", THE_JOB),
    "one that is quick": Case("RLGuardTeardownSlow", held(GOING, "0 30 60 stale"), "1m"),
    "one that has ended": Case("RLGuardTeardownSlow", held(GOING, "0+30x20 stale"), "20m"),
    "a pod on a dead node": Case("RLGuardStopBlocked", held(BLOCKED, "60+30x200"), "3m", THE_JOB),
    "something that was in the way": Case("RLGuardStopBlocked", held(BLOCKED, "60 stale"), "3m"),
    "old scores": Case("RLGuardEvaluationStale", of_job(EVALUATED, "7000+30x20"), "5m", THE_JOB),
    "scores every hour": Case("RLGuardEvaluationStale", of_job(EVALUATED, "0+30x120 0+30x120"), "90m"),
    "a split that is not there": Case("RLGuardWaiting", held(STUCK, "0+30x100"), "20m", THE_JOB),
    "a node that comes": Case("RLGuardWaiting", held(STUCK, "0+30x20 stale"), "20m"),
    "a run in a queue": Case("RLGuardWaiting", held(QUEUED, "0+30x100"), "40m"),
    "a guard that nobody reaches": Case("RLGuardUnreachable", of_job(AWAY, "0x4 30+30x100"), "10m", THE_JOB),
    "one that restarts": Case("RLGuardUnreachable", of_job(AWAY, "0 30 60 0x100"), "4m"),
    "most guards at once": Case(
        "RLGuardMostUnreachable",
        away("a", "60+30x100") | away("b", "90+30x100") | away("c", "0x100"),
        "10m",
        NOTHING,
    ),
    "one guard alone": Case("RLGuardMostUnreachable", away("a", "60+30x100")),
    "two of four": Case(
        "RLGuardMostUnreachable",
        away("a", "60+30x100") | away("b", "60+30x100") | away("c", "0x100") | away("d", "0x100"),
    ),
    "a run of which nothing is exported": Case(
        "RLGuardMetricsMissing", once(JOBS, "2x100", RUNNING + ONE) | of_job(LEVEL, "0x100"), "10m", NOTHING
    ),
    "runs of which nothing at all is": Case(
        "RLGuardMetricsMissing", once(JOBS, "1x100", RUNNING + ONE), "10m", NOTHING
    ),
    "every run is exported": Case(
        "RLGuardMetricsMissing",
        once(JOBS, "1x100", RUNNING + ONE) | once(JOBS, "1x100", RUNNING + TWO) | of_job(LEVEL, "0x100"),
    ),
    "a namespace that is gone": Case(
        "RLGuardNamespaceUnreadable",
        once("rlguard_namespace_synced", "1x100", f'namespace="here",{ONE}')
        | once("rlguard_namespace_synced", "0x100", f'namespace="gone",{ONE}'),
        "10m",
        [{"namespace": "gone"}],
    ),
    "a kind that cannot be listed": Case(
        "RLGuardKindUnreadable",
        once("rlguard_kind_synced", "1x100", f'namespace="",kind="Job",{ONE}')
        | once("rlguard_kind_synced", "0x100", f'namespace="",kind="RayJob",{ONE}'),
        "10m",
        [{"kind": "RayJob"}],
    ),
    "one that is listed late": Case(
        "RLGuardKindUnreadable", once("rlguard_kind_synced", "0x4 1x100", f'namespace="",kind="RayJob",{ONE}')
    ),
    "one that is read late": Case(
        "RLGuardNamespaceUnreadable", once("rlguard_namespace_synced", "0x4 1x100", f'namespace="here",{ONE}')
    ),
    "one job fails, once a minute": Case(
        "RLGuardReconcileErrors", {ERRORS % ONE: "0+1x10 11+0.5x200"}, "40m", NOTHING
    ),
    "a conflict now and then": Case("RLGuardReconcileErrors", {ERRORS % ONE: "0x40 1x40 2x40 3x40"}, "70m"),
    "a worker hangs": Case("RLGuardWorkerStuck", {BUSY % ONE: "0+30x100"}, "20m", NOTHING),
    "workers are busy": Case("RLGuardWorkerStuck", {BUSY % ONE: "0 10 20 100 0 10 20 100 0x100"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def rules(render: Render) -> dict[str, Json]:
    """The alerts of the chart with its defaults, by name."""
    groups = find(render({"metrics.prometheusRule.enabled": "true"}), "PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(directory: Path, rules: dict[str, Json], case: Case) -> str:
    """What promtool has against this case; "" if nothing."""
    (directory / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "rlguard", "rules": list(rules.values())}]})
    )
    body = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [as_test(rules, case)],
    }
    (directory / "test.yaml").write_text(yaml.safe_dump(body))
    command = [tool("promtool"), "test", "rules", directory / "test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def as_test(rules: dict[str, Json], case: Case) -> Json:
    rule = rules[case.alert]
    expected = [
        {"exp_labels": rule["labels"] | labels, "exp_annotations": annotations(rule, labels)}
        for labels in case.firing
    ]
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}],
    }


def annotations(rule: Json, labels: dict[str, str]) -> dict[str, str]:
    """The annotations with these labels filled in."""
    texts: dict[str, str] = rule["annotations"]
    return {k: re.sub(r"{{ \$labels\.(\w+) }}", lambda m: labels[m[1]], text) for k, text in texts.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_makes_an_alert_fire(tmp_path: Path, rules: dict[str, Json], case: Case) -> None:
    assert promtool(tmp_path, rules, case) == ""


def test_every_alert_is_shown_to_fire_and_not_to_fire(rules: dict[str, Json]) -> None:
    assert {case.alert for case in CASES.values() if case.firing} == rules.keys()
    assert {case.alert for case in CASES.values() if not case.firing} == rules.keys()


def test_dashboard_and_alerts_ask_for_metrics_that_exist(render: Render, rules: dict[str, Json]) -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text().split("## A guard")[0]
    known = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    board = find(render({"metrics.dashboard.enabled": "true"}), "ConfigMap")["data"]["rlguard.json"]
    asked = [target["expr"] for panel in json.loads(board)["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for rule in rules.values()]
    ours = r"\b(?:rlguard|workqueue|controller_runtime|rest_client|leader_election)_\w+"
    names = set(re.findall(ours, " ".join(asked)))
    assert len(asked) > 10 and names and names <= known
