"""A guard beside its trainer (placement Sidecar): what rank 0's pod gets for it, and what is refused. Pure.

It is the last of the init containers, and keeps running (a native sidecar): it starts before the trainer,
ends after it, and does not keep a finished job alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlguard.operator.adapters import PodTemplate, dotted
from rlguard.operator.api import names
from rlguard.operator.api.guard import GuardSpec
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.guard_container import (
    guard_container,
    guard_volumes,
    let_report,
)
from rlguard.operator.reconcile.isolation import Violation
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.templates import checkpoint_mount, field_of
from rlguard.operator.runtime.client import Json


def add_guard(job: Job, template: PodTemplate, pod: Json, config: OperatorConfig) -> None:
    """Put the guard into the pod of rank 0, whose template has passed `refusals.find_violations`."""
    guard = job.spec.guard
    pod["enableServiceLinks"] = False  # those of a Service `rlguard-guard` read as settings
    mount = checkpoint_mount(pod, template, guard.checkpoints.volume)
    assert mount is not None, "find_violations has passed"
    pod["volumes"] = pod.get("volumes", []) + guard_volumes(guard, names.support_name(job.name, job.uid))
    container = guard_container(job, mount, config, template.index_field)
    container["restartPolicy"] = "Always"  # what makes an init container a sidecar
    pod["initContainers"] = [*pod.get("initContainers", []), container]
    let_report(job, template, pod, "127.0.0.1", drains=True)


def find_obstacles(template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    """Find what is refused of rank 0's template because the guard is in its pods."""
    if template.elastic:
        why = "needs guard.placement: Pod: no pod of an elastic job is always rank 0"
        yield Violation(dotted(("spec.template.spec", *template.elastic)), why)
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(key) or []):
            for place, port in enumerate(container.get("ports") or []):
                if port.get("containerPort") == guard.port:
                    why = f"must not be {guard.port}: the guard listens there (spec.guard.port)"
                    yield Violation(
                        f"{key}[{index}].ports[{place}].containerPort", why, place=field_of(template)
                    )
