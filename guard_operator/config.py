"""What an installation of the operator decides for all of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guard_operator.runtime.client import Json


def default_guard_resources() -> Json:
    """Resources of guards of which nobody said any."""
    return {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of the operator process.

    `namespaces` empty means cluster-wide, and `kinds` empty every kind of workload. `relaxed_host_paths` are
    directories whose contents a template may mount under `isolation: Relaxed`; None: nobody has read the
    operator's. `no_host_network`: nor may a template have the node's network. What is of guards is for jobs
    that do not say it themselves; without a pull policy it is that of Kubernetes. `kueue`: the
    Workloads of Kueue are read, and taken out of their queue by a stop.
    """

    guard_image: str
    namespaces: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    relaxed_host_paths: tuple[str, ...] | None = ()
    no_host_network: bool = False
    guard_resources: Json = field(default_factory=default_guard_resources)
    guard_pull_policy: str | None = None
    kueue: bool = False
