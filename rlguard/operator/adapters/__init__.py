"""The kinds of workload that can be guarded."""

from collections.abc import Collection

from rlguard.operator.adapters.base import (
    PodTemplate,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    dotted,
)
from rlguard.operator.adapters.job import JobAdapter
from rlguard.operator.adapters.jobset import JobSetAdapter
from rlguard.operator.adapters.pytorchjob import PyTorchJobAdapter
from rlguard.operator.adapters.raycluster import RayClusterAdapter
from rlguard.operator.adapters.rayjob import RayJobAdapter
from rlguard.operator.adapters.trainjob import TrainJobAdapter

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
    "PodTemplate",
    "TemplateError",
    "WorkloadAdapter",
    "WorkloadState",
    "at",
    "dotted",
    "find_adapter",
    "makers",
    "switched_on",
]


def switched_on(kinds: Collection[str]) -> tuple[WorkloadAdapter, ...]:
    """The adapters of these kinds, such as RayJob; of all if none is named."""
    return tuple(one for one in ADAPTERS if not kinds or one.resource.kind in kinds)


def makers(adapter: WorkloadAdapter) -> tuple[WorkloadAdapter, ...]:
    """The rows of what makes the pods of a workload that exists: what it `makes`, or itself."""
    found = (find_adapter(one.api_version, one.kind) for one in adapter.makes or (adapter.resource,))
    return tuple(one for one in found if one is not None)


def find_adapter(api_version: str, kind: str, kinds: Collection[str] = ()) -> WorkloadAdapter | None:
    """The adapter for this kind of workload; None if it cannot be guarded, or is not switched on."""
    for adapter in switched_on(kinds):
        if (adapter.resource.api_version, adapter.resource.kind) == (api_version, kind):
            return adapter
    return None
