"""The states of a PyTorchJob, from its conditions and `suspend`."""

from __future__ import annotations

from typing import Any

import pytest

from guard_operator.adapters import WorkloadState, find_adapter

ADAPTER = find_adapter("kubeflow.org/v1", "PyTorchJob")
Json = dict[str, Any]


def condition(kind: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "message": f"{kind} it is"}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "created": ({"status": {"conditions": [condition("Created")]}}, WorkloadState.PENDING),
    "running": (
        {"status": {"conditions": [condition("Created"), condition("Running")]}},
        WorkloadState.RUNNING,
    ),
    "failed wins": (
        {"status": {"conditions": [condition("Running"), condition("Failed")]}},
        WorkloadState.FAILED,
    ),
    "succeeded": (
        {"status": {"conditions": [condition("Running", "False"), condition("Succeeded")]}},
        WorkloadState.SUCCEEDED,
    ),
    "suspended before any status": ({"spec": {"runPolicy": {"suspend": True}}}, WorkloadState.SUSPENDED),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_pytorchjob_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER is not None
    assert ADAPTER.state(workload)[0] is state
