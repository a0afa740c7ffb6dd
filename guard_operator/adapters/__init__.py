"""The kinds of workload that can be guarded."""

from guard_operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
)
from guard_operator.adapters.job import JobAdapter
from guard_operator.adapters.pytorchjob import PyTorchJobAdapter

ADAPTERS: tuple[WorkloadAdapter, ...] = (PyTorchJobAdapter(), JobAdapter())

__all__ = ["ADAPTERS", "PodTemplate", "TemplateError", "WorkloadAdapter", "WorkloadState", "find_adapter"]


def find_adapter(api_version: str, kind: str) -> WorkloadAdapter | None:
    """The adapter for this kind of workload, None if it cannot be guarded."""
    for adapter in ADAPTERS:
        if (adapter.resource.api_version, adapter.resource.kind) == (api_version, kind):
            return adapter
    return None
