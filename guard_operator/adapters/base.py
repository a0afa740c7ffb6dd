"""The port between the operator and a kind of workload: a few pure functions; none talks to a cluster.

A new kind needs one module with an `WorkloadAdapter` and one line in `guard_operator.adapters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from guard_operator.api.types import StopMethod
from guard_operator.runtime.client import Json, Resource


class TemplateError(ValueError):
    """`spec.template.spec` has not the shape that its kind needs. `field` is the path of what is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class WorkloadState(StrEnum):
    """What a workload says about itself."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One pod template of a workload.

    `path` leads to it from the workload's spec; a number in it is a place in a list. `container` is the one
    that trains. `guarded` says whether its pods get a guard. Where one template makes several pods of which
    only the first holds rank 0, `index_field` is the downward-API field with a pod's index, so that the other
    guards know to keep quiet. `between` leads to the template of what stands between the workload and these
    pods, if that is made of a template, too: by the operator's labels it is found.
    """

    path: tuple[str | int, ...]
    container: str
    guarded: bool
    index_field: str | None = None
    between: tuple[str | int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """An object of the workload's that a stop must reach. `patch`: a merge patch; None: it is deleted."""

    resource: Resource
    name: str
    patch: Json | None = None


def dotted(path: Iterable[str | int]) -> str:
    """A path in words, such as `workerGroupSpecs[0].template`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def at(node: Any, *path: str | int) -> Any:
    """What stands at a path in JSON of any shape; None: nothing."""
    for key in path:
        if isinstance(key, int):
            node = node[key] if isinstance(node, list) and key < len(node) else None
        else:
            node = node.get(key) if isinstance(node, dict) else None
    return node


def count(value: object) -> int:
    """A number of pods as a spec has it; 1, the default of every kind, if it has none."""
    return value if isinstance(value, int) else 1


class WorkloadAdapter(Protocol):
    """What the operator must know about a kind of workload."""

    resource: Resource
    #: Fields of the workload's spec that `state` reads.
    state_fields: tuple[str, ...]
    #: Labels of a pod that `holds_rank0` reads.
    pod_labels: tuple[str, ...]
    #: What controls the pods where the workload does not itself: the workload controls that, and it has the
    #: workload's labels.
    between: tuple[Resource, ...]
    #: What the children are that a stop reaches, with the verbs that it needs for them.
    children: tuple[tuple[Resource, tuple[str, ...]], ...]
    #: Characters that a workload's name may have.
    max_name: int
    #: Annotations of the workload that leave no place for a guard, each with the reason.
    refused_annotations: Mapping[str, str]

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Every pod template; at least one is guarded.

        Raises:
            TemplateError: the spec has no place for a guard; it names the field.
        """

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        """Whether this pod (its labels) of a workload with this spec is the one in which rank 0 runs."""

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """How many pods a workload with this spec has while it runs."""

    def prepared(self, spec: Json) -> Json:
        """The spec with defaults made explicit that would otherwise hurt. The argument is left as it is."""

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Paths in labels and spec of what a cluster wrote there, and refuses in a new one."""

    def state(self, workload: Mapping[str, Any]) -> tuple[WorkloadState, str]:
        """The state and the workload's own message, from its `spec` and `status`."""

    def stop_patch(self, method: StopMethod) -> Json | None:
        """The merge patch of the workload that stops it this way; None: this way is a delete."""

    def stop_children(self, method: StopMethod, name: str, spec: Mapping[str, Any]) -> tuple[Child, ...]:
        """What must be stopped beside a workload of this name and spec."""
