"""What the operator decides about one job at one moment: frozen values, no behaviour.

`decide` makes a `Decision` of a `Snapshot`, and `actuate` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from guard_operator.api.types import ConditionStatus, Phase, StopStatus, WorkloadRef
from guard_operator.reconcile.snapshot import Between
from guard_operator.runtime.client import Resource


@dataclass(frozen=True, slots=True)
class Report:
    """The operator's part of the status."""

    phase: Phase
    conditions: tuple[ConditionStatus, ...]
    workload_ref: WorkloadRef | None = None
    stop: StopStatus | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create what the guard needs, then the workload."""


@dataclass(frozen=True, slots=True)
class EnsureGuard:
    """Create what is missing of what the guard mounts, with the same bytes, and of what runs its own pod."""


@dataclass(frozen=True, slots=True)
class CaptureEvidence:
    """Write the evidence ConfigMap, beside the stop and never before it.

    Unless `final`, evidence without logs is not written, because the pods are still there and the next
    attempt may get them.
    """

    final: bool


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object to delete, fenced by its UID. `grace`: seconds that a pod has to end; None: as it says."""

    resource: Resource
    name: str
    uid: str
    grace: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete these objects in the foreground: what they own goes before they do."""

    objects: tuple[Doomed, ...]


def delete_makers(makers: Iterable[Between]) -> Delete:
    """Delete what makes pods."""
    return Delete(tuple(Doomed(one.resource, one.name, one.uid) for one in makers))


Action = CreateWorkload | EnsureGuard | CaptureEvidence | Delete


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, what to say, and in how many seconds to look again (None: on the next event)."""

    report: Report
    actions: tuple[Action, ...] = field(default=())
    look_again: float | None = None
