"""The table of kinds: what the operator must know about each, as pure functions; none talks to a cluster.

A new kind needs one module with a `WorkloadAdapter` and one line in `rlguard.operator.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlguard.operator.runtime.client import Json, Resource


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
    guards know to keep quiet. `between` leads to the templates of what stands between the workload and these
    pods, if that is made of templates, too: by the operator's labels it is found. `limit` leads to how many
    restarts of their containers, whichever they are, fail the workload; (): restarts do not. `elastic` leads
    to what lets any of the pods be rank 0; (): the first one is. `pods`: how many there are from the start.
    """

    path: tuple[str | int, ...]
    container: str
    guarded: bool
    index_field: str | None = None
    between: tuple[tuple[str | int, ...], ...] = ()
    limit: tuple[str | int, ...] = ()
    elastic: tuple[str | int, ...] = ()
    pods: int = 1


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


def objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Those items of a list that are objects."""
    yield from (one for one in (value if isinstance(value, list) else []) if isinstance(one, dict))


class WorkloadAdapter(ABC):
    """One row of the table of kinds: what the operator must know about a kind of workload."""

    resource: Resource
    #: What a true condition of this type means; an earlier one wins.
    conditions: Mapping[str, WorkloadState] = {}
    #: Who must run its pods.
    manager: str
    #: Where in the spec `managedBy` and `suspend` stand.
    policy: tuple[str, ...] = ()
    #: The label by which its own controller knows all pods, with `{name}` or `{uid}` of the workload.
    selector: str = ""
    #: What controls the pods where the workload does not itself: the workload controls the first, that the
    #: next, and they have the workload's labels.
    between: tuple[Resource, ...] = ()
    #: Kinds with rows of their own, by whose labels its pods are known because it has none for them itself.
    makes: tuple[Resource, ...] = ()
    #: What a template may not have, each with the reason: paths in its spec, and annotations.
    refused: Mapping[tuple[str | int, ...], str] = {}
    refused_annotations: Mapping[str, str] = {}
    #: What is written into a template where its author says nothing, by paths in its spec.
    defaults: Mapping[tuple[str, ...], Any] = {}
    #: Whether none is made of a template: one that exists is guarded, as `spec.targetRef` names it.
    only_attached: bool = False

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Every pod template; at least one is guarded, unless the kind is `only_attached`.

        Raises:
            TemplateError: the spec has no place for a guard, leaves its pods to somebody else, or has what is
                `refused`; it names the field.
        """
        self.check_manager(spec)
        for path, why in self.refused.items():
            if at(spec, *path):
                raise TemplateError(dotted(path), f"must not be set: {why}")
        return self.find_templates(spec)

    def find_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """The same, of a spec that has passed these checks."""
        return ()

    @abstractmethod
    def rank0(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The labels of the pod of rank 0 of a workload with this spec. An index that it lacks is 0."""

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """Whether a pod of it is ready, by its status."""
        return False

    def prepared(self, spec: Json) -> Json:
        """The spec with defaults made explicit that would otherwise hurt. The argument is left as it is."""
        prepared = deepcopy(spec)
        for (*place, name), value in self.defaults.items():
            node: Any = prepared
            for key in place:
                node = node.setdefault(key, {}) if isinstance(node, dict) else None
            if isinstance(node, dict):
                node.setdefault(name, value)
        return prepared

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Paths in labels and spec of what a cluster wrote there, and refuses in a new one."""
        return ()

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of what it `makes` as it is now, one for each kind; "": none yet."""
        return ()

    def trainer(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()) -> str:
        """The container that trains, in the pod of rank 0 of a workload that exists.

        Args:
            spec: of the workload.
            made: what it has made, as it is in the cluster.

        Raises:
            TemplateError: no stop would end it, or nothing tells which pod is rank 0; it names the field.
        """
        return next(one.container for one in self.pod_templates(spec) if one.guarded)

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        """Whether this pod (its labels) of a workload with this spec is the one in which rank 0 runs."""
        labels = at(pod, "metadata", "labels") or {}
        return all(str(labels.get(name, 0)).lower() == value for name, value in self.rank0(spec).items())

    @property
    def state_fields(self) -> tuple[str, ...]:
        """Fields of the workload's spec that `state` reads."""
        return (*self.policy, "suspend")[:1]

    def state(self, workload: Mapping[str, Any]) -> tuple[WorkloadState, str]:
        """The state and the workload's own message: from its conditions, `suspend`, and ready pods."""
        conditions = at(workload, "status", "conditions") or []
        true = {one.get("type"): one for one in conditions if one.get("status") == "True"}
        for kind, state in self.conditions.items():
            if kind in true:
                words = true[kind].get("reason", ""), true[kind].get("message", "")
                return state, ": ".join(filter(None, words))
        if at(workload, "spec", *self.policy, "suspend") is True:
            return WorkloadState.SUSPENDED, ""
        return (WorkloadState.RUNNING if self.is_ready(workload) else WorkloadState.PENDING), ""

    def check_manager(self, spec: Mapping[str, Any], *where: str | int) -> None:
        """Refuse a workload, whose spec stands at `where`, that is left to somebody else.

        Raises:
            TemplateError: it names the field.
        """
        field = (*self.policy, "managedBy")
        if at(spec, *field) not in (None, self.manager):
            raise TemplateError(
                dotted((*where, *field)), f"must be {self.manager}: pods elsewhere are not stopped"
            )
