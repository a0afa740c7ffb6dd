"""What the operator refuses of the templates of a workload: what is wrong, and in which field. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from rlguard.core.wording import quoted
from rlguard.operator.adapters import PodTemplate, TemplateError, WorkloadAdapter, at, dotted
from rlguard.operator.api.guard import GuardSpec
from rlguard.operator.api.names import OWN_LABELS
from rlguard.operator.reconcile import guard_pod, sidecar
from rlguard.operator.reconcile.isolation import GuardObjects, Violation, broken_rows
from rlguard.operator.reconcile.layout import GUARD_DIRECTORIES, TMP_DIR
from rlguard.operator.reconcile.pod_fields import misspelt
from rlguard.operator.reconcile.templates import checkpoint_mounts, field_of, pods_of

#: What one variable of the guard may hold, bytes: Linux takes 128 KiB with its name, and paths are added.
MAX_SETTING = 120_000


def find_violations(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec
) -> tuple[Violation, ...]:
    """Find what is refused in `spec.template.spec` under any isolation."""
    try:
        pods = pods_of(adapter, spec)
    except TemplateError as error:
        field, _, why = f"spec.template.spec.{error}".partition(": ")
        return (Violation(field, why),)
    obstacles = sidecar.find_obstacles if guard.own_pod is None else guard_pod.find_obstacles
    return (
        *evaluator_findings(guard),
        *(
            replace(one, place=field_of(template))
            for template, pod in pods
            for one in _pod_findings(template, pod, guard)
        ),
        *(one for template, _ in pods for one in _label_findings(template, spec)),
        *(one for template, pod in pods if template.guarded for one in obstacles(template, pod, guard)),
    )


def isolation_findings(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec, own: GuardObjects
) -> tuple[Violation, ...]:
    """Find the rows of the isolation table that the templates break; none in those of the wrong shape."""
    try:
        pods = pods_of(adapter, spec)
    except TemplateError:
        return ()
    return tuple(
        replace(one, place=field_of(template))
        for template, pod in pods
        for one in broken_rows(pod, own, beside=template.guarded and guard.own_pod is None, template=True)
    )


def template_claims(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The claims that the pods of a template mount, each once, with the field that names it."""
    seen = set()
    for template, pod in pods_of(adapter, spec):
        for index, volume in enumerate(pod.get("volumes", [])):
            claim = at(volume, "persistentVolumeClaim", "claimName")
            if claim is not None and claim not in seen:
                seen.add(claim)
                yield f"{field_of(template)}.volumes[{index}].persistentVolumeClaim", claim


def is_copy(claim: Mapping[str, Any], own: GuardObjects) -> bool:
    """Whether this PersistentVolumeClaim was made as a copy of one that only the guard may have."""
    sources = (at(claim, "spec", field) for field in ("dataSource", "dataSourceRef"))
    return any(
        at(one, "kind") == "PersistentVolumeClaim" and at(one, "name") in own.claims for one in sources
    )


def evaluator_findings(guard: GuardSpec) -> Iterator[Violation]:
    """Find what is refused of how and where the policy is asked."""
    said = json.dumps(guard.heldout.model_dump(mode="json"), ensure_ascii=False).encode()
    if len(said) > MAX_SETTING:
        why = f"has {len(said)} bytes; the guard takes at most {MAX_SETTING}: shorten its systemPrompt"
        yield Violation("spec.guard.heldout", why)


def _label_findings(template: PodTemplate, spec: Mapping[str, Any]) -> Iterator[Violation]:
    place = (*template.path, "metadata", "labels")
    for name in at(spec, *place) or {}:
        if str(name).startswith(OWN_LABELS):
            why = f"must not be set: by labels of {OWN_LABELS} the operator knows whose pod it is"
            yield Violation(f"{dotted(('spec.template.spec', *place))}[{str(name)[:120]!r}]", why)


#: Of where the checkpoint volume is mounted: who makes the mount would resolve any other path first.
PLAIN_PATH = r"(/|(/(?!\.\.?(/|$))[^/]+)+/?)"


def _pod_findings(template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    for field, meant in misspelt(pod):
        yield Violation(field, f"is no field of a pod: did you mean {meant}?")
    if template.guarded:
        yield from _checkpoint_findings(template, pod, guard)


def _checkpoint_findings(
    template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec
) -> Iterator[Violation]:
    name = guard.checkpoints.volume
    if not any(volume.get("name") == name for volume in pod.get("volumes", [])):
        yield Violation("volumes", f"must have the volume {name}, which guard.checkpoints.volume names")
        return
    mounts = checkpoint_mounts(pod, template, name)
    if not mounts:
        yield Violation("containers", f"the container {template.container} must mount the volume {name}")
        return
    mount = mounts[0]
    if len(mounts) > 1:
        yield Violation(
            "containers",
            f"the container {template.container} must mount the volume {name} once, where the checkpoints "
            "are: give its other directories a volume of another name, which may be of the same claim",
        )
    if mount.get("subPathExpr"):
        yield Violation(
            "containers",
            f"the volume {name} must be mounted with subPath, not with subPathExpr: the guard has not the "
            "trainer's environment, and would look elsewhere",
        )
    given = str(mount.get("mountPath", ""))
    if re.fullmatch(PLAIN_PATH, given) is None:
        yield Violation(
            "containers",
            f"the volume {name} must be mounted at an absolute path without empty parts, . and .., "
            f"not at {quoted(given)}",
        )
        return
    path = PurePosixPath(given)
    # The guard mounts the volume at the same path, where it must not cover one of its own directories.
    if any(PurePosixPath(own).is_relative_to(path) for own in GUARD_DIRECTORIES) or any(
        path.is_relative_to(own) for own in GUARD_DIRECTORIES if own != TMP_DIR
    ):
        yield Violation(
            "containers",
            f"the volume {name} must not be mounted at {path}: the guard uses {', '.join(GUARD_DIRECTORIES)}",
        )
