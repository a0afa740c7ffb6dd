"""The last look at a pod as it would be created: no container but the guard has what is the guard's. Pure.

It reads the finished pod and what the job says is the guard's, and nothing that the injection keeps or names:
a mistake there must not hide itself. `refusals` looks at the template, earlier and with better words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guard_operator.api.names import GUARD_CONTAINER, RESERVED_PREFIX
from guard_operator.reconcile.layout import (
    CA_ENV,
    CERTIFICATE_KEY,
    INGEST_TOKEN_KEY,
    TOKEN_ENV,
)
from guard_operator.reconcile.refusals import MOUNTS, SourceRef

_KINDS = {"secret": "Secret", "configMap": "ConfigMap", "persistentVolumeClaim": "PersistentVolumeClaim"}
_NAMES = ("secretName", "claimName", "name")
_REFERENCES = {
    "secretKeyRef": "Secret",
    "secretRef": "Secret",
    "configMapKeyRef": "ConfigMap",
    "configMapRef": "ConfigMap",
}
#: Variables, each with its key of the guard's Secret, that both have: with them the trainer reports.
SHARED = (TOKEN_ENV, INGEST_TOKEN_KEY), (CA_ENV, CERTIFICATE_KEY)


def leaks(pod: Mapping[str, Any], own: frozenset[SourceRef]) -> tuple[str, ...]:
    """What a container that is not the guard would have of the guard's; a sentence for each.

    Args:
        pod: the spec of the pod, built.
        own: (kind, name) of every claim, Secret and ConfigMap that only the guard may have.
    """
    return tuple(_leaks(pod, own))


def _leaks(pod: Mapping[str, Any], own: frozenset[SourceRef]) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "every container would get the token of the pod's service account"
    guards = [c for c in pod.get("initContainers") or [] if c.get("name") == GUARD_CONTAINER]
    beside = guards[0] if len(guards) == 1 else None
    for container, what in had(pod, own, beside, tokens=True):
        yield f"container {container} must not have {what}: it is the guard's"


def had(
    pod: Mapping[str, Any],
    own: frozenset[SourceRef],
    guard: Mapping[str, Any] | None = None,
    *,
    tokens: bool = False,
) -> Iterator[tuple[str, str]]:
    """Which containers of a pod, but for `guard`, have what of the guard's.

    `tokens`: whether the pod's ServiceAccount is the guard's, so that every token of it is, too.
    """
    private = {v.get("name"): v for v in pod.get("volumes") or [] if _is_private(v, own, tokens)}
    for container in (*(pod.get("initContainers") or []), *(pod.get("containers") or [])):
        if container is not guard:
            for what in (*_mounted(container, private), *_referred(container, own)):
                yield str(container.get("name")), what


def _is_private(volume: Mapping[str, Any], own: frozenset[SourceRef], tokens: bool) -> bool:
    """Whether a volume, whatever its name, holds what is the guard's, or a token if those count."""
    projected = (volume.get("projected") or {}).get("sources") or []
    sources = {source for part in (volume, *projected) for source in _sources(part)}
    return bool(sources & own) or (tokens and any("serviceAccountToken" in part for part in projected))


def _sources(part: Mapping[str, Any]) -> Iterator[SourceRef]:
    for field, kind in _KINDS.items():
        value = part.get(field) or {}
        yield from ((kind, value[key]) for key in _NAMES if isinstance(value.get(key), str))


def _mounted(container: Mapping[str, Any], private: Mapping[str, Any]) -> Iterator[str]:
    mounts = [mount for key in MOUNTS for mount in container.get(key) or []]
    files = [(v.get("valueFrom") or {}).get("fileKeyRef") or {} for v in container.get("env") or []]
    for mount in (*mounts, *({"name": file.get("volumeName")} for file in files)):
        name = mount.get("name")
        # A name that is the guard's is refused, also where the pod has no such volume.
        if name in private or str(name).startswith(RESERVED_PREFIX):
            yield f"the volume {name}"


def _referred(container: Mapping[str, Any], own: frozenset[SourceRef]) -> Iterator[str]:
    variables = container.get("env") or []
    parts = [(v.get("name"), v.get("valueFrom") or {}) for v in variables]
    parts += [(None, part) for part in container.get("envFrom") or []]
    for variable, part in parts:
        for field, kind in _REFERENCES.items():
            reference = part.get(field) or {}
            shared = (variable, reference.get("key")) in SHARED
            if (kind, reference.get("name")) in own and not shared:
                yield f"the {kind} {reference.get('name')} in its environment"
