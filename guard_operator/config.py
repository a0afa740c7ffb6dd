"""What an installation of the operator decides for all of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from guard_operator.runtime.client import Json


def _default_resources() -> Json:
    return {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of the operator process.

    `namespaces` empty means cluster-wide. `relaxed_host_paths` are directories whose contents a template may
    mount under `isolation: Relaxed`.
    """

    guard_image: str
    namespaces: tuple[str, ...] = ()
    relaxed_host_paths: tuple[str, ...] = ()
    guard_resources: Json = field(default_factory=_default_resources)
