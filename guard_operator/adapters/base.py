"""The table of kinds: what the operator must know about each, as pure functions; none talks to a cluster.

A new kind needs one module with a `WorkloadAdapter` and one line in `guard_operator.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from guard_operator.api.names import MAX_JOB_NAME
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
    guards know to keep quiet. `between` leads to the templates of what stands between the workload and these
    pods, if that is made of templates, too: by the operator's labels it is found. `limit` leads to how many
    restarts of their containers, whichever they are, fail the workload; (): restarts do not. `elastic` leads
    to what lets any of the pods be rank 0; (): the first one is.
    """

    path: tuple[str | int, ...]
    container: str
    guarded: bool
    index_field: str | None = None
    between: tuple[tuple[str | int, ...], ...] = ()
    limit: tuple[str | int, ...] = ()
    elastic: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """An object that a workload names, of whose template its pods are made; in its namespace, or in none.

    `field` names it.
    """

    resource: Resource
    name: str
    namespaced: bool
    field: str


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


class WorkloadAdapter(ABC):
    """One row of the table of kinds: what the operator must know about a kind of workload."""

    resource: Resource
    #: What a true condition of this type means; the first one decides.
    conditions: Mapping[str, WorkloadState] = {}
    #: Who must run its pods, and where its spec names another one.
    manager: str
    managed_by: tuple[str, ...] = ("managedBy",)
    #: The label by which its own controller knows all pods, with `{name}` or `{uid}` of the workload.
    #: "": they are those of what it makes (`OuterAdapter`).
    selector: str = ""
    #: Fields of the workload's spec that `state` reads.
    state_fields: tuple[str, ...] = ("suspend",)
    #: Labels of a pod that `holds_rank0` reads.
    pod_labels: tuple[str, ...] = ()
    #: What controls the pods where the workload does not itself: the workload controls the first, that the
    #: next, and they have the workload's labels.
    between: tuple[Resource, ...] = ()
    #: Characters that a workload's name may have.
    max_name: int = MAX_JOB_NAME
    #: Annotations of the workload that leave no place for a guard, each with the reason.
    refused_annotations: Mapping[str, str] = {}
    #: Whether none is made of a template: one that exists is guarded, as `spec.targetRef` names it.
    only_attached: bool = False

    @abstractmethod
    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """Every pod template; at least one is guarded.

        Raises:
            TemplateError: the spec has no place for a guard; it names the field.
        """

    @abstractmethod
    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        """Whether this pod (its labels) of a workload with this spec is the one in which rank 0 runs."""

    @abstractmethod
    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """How many pods a workload with this spec has while it runs."""

    def is_ready(self, workload: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether a pod of it is ready, by its status."""
        return False

    @property
    def selects_by_uid(self) -> bool:
        """Whether `selector` names the workload's UID, so that a pod without an owner is known by it, too."""
        return "{uid}" in self.selector

    def pod_selector(self, name: str, uid: str) -> str:
        """Label selector of the pods of a workload that nobody prepared."""
        return self.selector.format(name=name, uid=uid)

    def prepared(self, spec: Json) -> Json:
        """The spec with defaults made explicit that would otherwise hurt. The argument is left as it is."""
        return deepcopy(spec)

    def assigned(self, workload: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002
        """Paths in labels and spec of what a cluster wrote there, and refuses in a new one."""
        return ()

    def state(self, workload: Mapping[str, Any]) -> tuple[WorkloadState, str]:
        """The state and the workload's own message: from its conditions, `spec.suspend`, and ready pods."""
        for condition in at(workload, "status", "conditions") or []:
            if condition.get("status") == "True" and condition.get("type") in self.conditions:
                words = condition.get("reason", ""), condition.get("message", "")
                return self.conditions[condition["type"]], ": ".join(filter(None, words))
        if at(workload, "spec", "suspend") is True:
            return WorkloadState.SUSPENDED, ""
        return (WorkloadState.RUNNING if self.is_ready(workload) else WorkloadState.PENDING), ""

    def check_manager(self, spec: Mapping[str, Any], *where: str | int) -> None:
        """Refuse a workload, whose spec stands at `where`, that is left to somebody else.

        Raises:
            TemplateError: it names the field.
        """
        if at(spec, *self.managed_by) not in (None, self.manager):
            why = f"must be {self.manager}: pods elsewhere are not stopped"
            raise TemplateError(dotted((*where, *self.managed_by)), why)


class OuterAdapter(WorkloadAdapter):
    """Of a kind that has no pods but those of what it makes, which is of kinds with rows of their own."""

    #: The kinds of what it makes that has pods.
    makes: tuple[Resource, ...]

    @abstractmethod
    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of what it makes as it is now, one for each of these kinds; "": none yet."""

    @abstractmethod
    def may_make(self, kind: str, name: str, workload: str) -> bool:
        """Whether what a workload of this name makes of this kind may be called `name`."""

    @abstractmethod
    def attached(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> str:
        """The container that trains, in the pod of rank 0 of a workload that nobody prepared.

        Args:
            spec: of the workload.
            made: what it has made, as it is in the cluster.

        Raises:
            TemplateError: no stop would end it, or nothing tells which pod is rank 0; it names the field.
        """


class ComposedAdapter(WorkloadAdapter):
    """Of a kind whose pods are made of the template of another object, which somebody else may change.

    The operator reads that object, checks what both make together, and creates a copy of it with the guard in
    it, which the workload then names: so what was checked is what runs. A spec with that object in it is
    called composed; all other methods take one.
    """

    #: What the copy is, in the workload's namespace. One of that kind may be named, too.
    copied: Resource
    #: What else may be named: of these kinds there is one for all namespaces.
    shared: tuple[Resource, ...]

    @abstractmethod
    def source(self, spec: Mapping[str, Any]) -> TemplateSource:
        """What a spec names.

        Raises:
            TemplateError: it names nothing of these kinds.
        """

    @abstractmethod
    def composed(self, spec: Mapping[str, Any], source: Mapping[str, Any]) -> Json:
        """The spec with this object in it, changed as the spec says.

        Raises:
            TemplateError: the two do not go together; it names the field.
        """

    @abstractmethod
    def recomposed(self, spec: Mapping[str, Any], copy: Mapping[str, Any]) -> Json:
        """The spec with the copy in it that was made for it."""

    @abstractmethod
    def as_given(self, spec: Mapping[str, Any]) -> Json:
        """A composed spec as it was before."""

    @abstractmethod
    def split(self, spec: Mapping[str, Any], name: str) -> tuple[Json, Json]:
        """A composed spec as it is created: the spec of the workload, and that of its copy of this name."""
