"""The kinds of workload that can be guarded."""

from collections.abc import Collection

from guard_operator.adapters.base import (
    ComposedAdapter,
    OuterAdapter,
    PodTemplate,
    TemplateError,
    TemplateSource,
    WorkloadAdapter,
    WorkloadState,
    at,
    dotted,
)
from guard_operator.adapters.job import JobAdapter
from guard_operator.adapters.jobset import JobSetAdapter
from guard_operator.adapters.pytorchjob import PyTorchJobAdapter
from guard_operator.adapters.raycluster import RayClusterAdapter
from guard_operator.adapters.rayjob import RayJobAdapter
from guard_operator.adapters.trainjob import TrainJobAdapter

ADAPTERS: tuple[WorkloadAdapter, ...] = (
    PyTorchJobAdapter(),
    JobAdapter(),
    RayJobAdapter(),
    RayClusterAdapter(),
    JobSetAdapter(),
    TrainJobAdapter(),
)

__all__ = [
    "ADAPTERS",
    "ComposedAdapter",
    "OuterAdapter",
    "PodTemplate",
    "TemplateError",
    "TemplateSource",
    "WorkloadAdapter",
    "WorkloadState",
    "at",
    "dotted",
    "find_adapter",
    "switched_on",
]


def switched_on(kinds: Collection[str]) -> tuple[WorkloadAdapter, ...]:
    """The adapters of these kinds, such as RayJob; of all if none is named."""
    return tuple(one for one in ADAPTERS if not kinds or one.resource.kind in kinds)


def find_adapter(api_version: str, kind: str, kinds: Collection[str] = ()) -> WorkloadAdapter | None:
    """The adapter for this kind of workload; None if it cannot be guarded, or is not switched on."""
    for adapter in switched_on(kinds):
        if (adapter.resource.api_version, adapter.resource.kind) == (api_version, kind):
            return adapter
    return None
