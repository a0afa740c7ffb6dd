"""The kinds of workload that can be guarded."""

from guard_operator.adapters.base import (
    Child,
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    dotted,
)
from guard_operator.adapters.job import JobAdapter
from guard_operator.adapters.jobset import JobSetAdapter
from guard_operator.adapters.pytorchjob import PyTorchJobAdapter
from guard_operator.adapters.rayjob import RayJobAdapter

ADAPTERS: tuple[WorkloadAdapter, ...] = (
    PyTorchJobAdapter(),
    JobAdapter(),
    RayJobAdapter(),
    JobSetAdapter(),
)

__all__ = [
    "ADAPTERS",
    "Child",
    "PodTemplate",
    "TemplateError",
    "WorkloadAdapter",
    "WorkloadState",
    "at",
    "dotted",
    "find_adapter",
]


def find_adapter(api_version: str, kind: str) -> WorkloadAdapter | None:
    """The adapter for this kind of workload, None if it cannot be guarded."""
    for adapter in ADAPTERS:
        if (adapter.resource.api_version, adapter.resource.kind) == (api_version, kind):
            return adapter
    return None
