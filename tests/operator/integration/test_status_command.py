"""`rlguard status` and `rlguard report` on a real API server: what is there, and what is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_cli.errors import CliError
from guard_cli.report.command import _of_cluster as evidence_of
from guard_cli.status import _of_cluster, verdict_lines
from guard_operator.api.names import GROUP, KIND, OPERATOR_MANAGER, PLURAL, VERSION
from guard_operator.runtime.client import CONFIG_MAPS, Client, Resource

pytestmark = pytest.mark.nightly

JOBS = Resource(GROUP, VERSION, PLURAL, KIND)


@pytest.mark.always
def test_a_job_and_all_jobs(
    client: Client, namespace: str, make_job: Callable[..., dict[str, Any]], kubeconfig: Path
) -> None:
    created = client.create(JOBS, namespace, make_job("first"), "test")
    client.create(JOBS, namespace, make_job("second"), "test")
    status = {
        "guard": {
            "level": "warning",
            "code": "stale",
            "reason": "old",
            "step": 7,
        }
    }
    body = {k: copy.deepcopy(created[k]) for k in ("apiVersion", "kind")} | {
        "metadata": {"name": "first", "namespace": namespace},
        "status": status,
    }
    client.apply(JOBS, body, OPERATOR_MANAGER, "status")
    [one] = _of_cluster("first", namespace, kubeconfig)
    assert one["name"] == "first" and one["verdict"].keys() == {"level", "code", "reason", "step"}
    assert list(verdict_lines(one["verdict"]))[:2] == ["warning (stale): old", "step: 7"]
    assert [job["name"] for job in _of_cluster(None, namespace, kubeconfig)] == ["first", "second"]
    assert _of_cluster("second", namespace, kubeconfig)[0]["verdict"] == {}
    with pytest.raises(CliError, match=f"namespace {namespace} has no GuardedTrainingJob 'third'"):
        _of_cluster("third", namespace, kubeconfig)


def test_the_newest_evidence_of_a_job_also_when_the_job_is_gone(
    client: Client, namespace: str, kubeconfig: Path
) -> None:
    with pytest.raises(CliError, match=f"namespace {namespace} has no evidence of a job 'run'"):
        evidence_of("run", namespace, kubeconfig)
    for name, job, data in (
        ("run-1", "run", {"collected-at": "2026-01-02T00:00:00.000+00:00"}),
        ("run-2", "run", {"collected-at": "2026-01-03T00:00:00.000+00:00"}),
        ("run-3", "run", {"policy.yaml": "{}"}),
        ("run-4", "another", {"collected-at": "2026-01-04T00:00:00.000+00:00"}),
    ):
        metadata = {"name": name, "labels": {"rlguard.dev/job": job}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        client.create(CONFIG_MAPS, namespace, body, "test")
    assert evidence_of("run", namespace, kubeconfig)["metadata"]["name"] == "run-2"
