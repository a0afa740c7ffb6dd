"""What RayJob and RayCluster of KubeRay have in common: the groups of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlguard.operator.adapters.base import PodTemplate, TemplateError, at, count, dotted
from rlguard.operator.api.names import GROUP
from rlguard.operator.runtime.client import Resource

RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
MANAGER = "ray.io/kuberay-operator"
#: The labels of the head. It counts as rank 0: Ray runs the program there, and without it nothing runs.
HEAD_LABELS = {"ray.io/node-type": "head"}
HEAD, WORKERS = "headGroupSpec", "workerGroupSpecs"


def groups(spec: Mapping[str, Any], *where: str) -> Iterator[tuple[str | int, ...]]:
    """Where the head and the groups of workers of a cluster are, whose spec stands at `where`.

    Raises:
        TemplateError: the groups are no list.
    """
    workers = at(spec, *where, WORKERS)
    if not isinstance(workers, list | None):
        raise TemplateError(dotted((*where, WORKERS)), "must be a list of objects")
    yield (*where, HEAD)
    for number in range(len(workers or [])):
        yield (*where, WORKERS, number)


def first_container(spec: Mapping[str, Any], *group: str | int) -> str:
    """The name of the container of a group that runs Ray.

    Raises:
        TemplateError: there is none.
    """
    path = (*group, "template", "spec", "containers")
    name = at(spec, *path, 0, "name")
    if not isinstance(name, str):
        raise TemplateError(dotted(path), "must have a container with a name: the first one runs Ray")
    return name


def group_template(spec: Mapping[str, Any], group: tuple[str | int, ...]) -> PodTemplate:
    """The template of a group, whose own labels win over those of its template.

    Raises:
        TemplateError: it has labels that only the operator gives, or no container.
    """
    labels = at(spec, *group, "labels")
    if any(str(label).startswith(f"{GROUP}/") for label in (labels if isinstance(labels, dict) else ())):
        why = f"must not have labels of {GROUP}: by them the operator finds the pods that it must stop"
        raise TemplateError(dotted((*group, "labels")), why)
    place, container = (*group, "template"), first_container(spec, *group)
    if HEAD in group:
        return PodTemplate(place, container, guarded=True)
    pods = count(at(spec, *group, "replicas") or 0) * count(at(spec, *group, "numOfHosts"))
    return PodTemplate(place, container, guarded=False, pods=pods)
