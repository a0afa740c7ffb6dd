"""What the operator refuses before it asks any cluster: for a reconcile, and for `rlguard wrap`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from rlguard.core.wording import quoted
from rlguard.operator.adapters import WorkloadAdapter
from rlguard.operator.api.guard import Isolation
from rlguard.operator.api.names import JOB_NAME_PATTERN, JOB_NAME_RULE, MAX_JOB_NAME
from rlguard.operator.api.reasons import Reason
from rlguard.operator.api.types import Spec
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.inject import build_workload
from rlguard.operator.reconcile.isolation import guard_objects_of, sentences
from rlguard.operator.reconcile.parse import invalid_spec, parse_job
from rlguard.operator.reconcile.refusals import find_violations, isolation_findings
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.targets import attachment_obstacles
from rlguard.operator.reconcile.templates import checkpoint_mount, rank0_of
from rlguard.operator.runtime.client import Json

#: In the place of what the API server gives an object when it is created.
_UNBORN = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000", "resourceVersion": "0"}


@dataclass(frozen=True, slots=True)
class Review:
    """Why no workload is created for a job, a sentence for each finding; reason None: nothing forbids it.

    `broken`: the rows of the isolation table that `isolation: Relaxed` admits. `workload`: what is to be
    created, {} where there is a reason not to; it is made of the job, and no part of what was found.
    """

    reason: Reason | None = None
    findings: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    workload: Json = field(default_factory=dict, compare=False)


def review(adapter: WorkloadAdapter | None, job: Job, config: OperatorConfig) -> Review:
    """What the job alone says; `adapter` None: there is none for its kind."""
    if adapter is None or (adapter.only_attached and not job.is_attached):
        return Review(Reason.UNSUPPORTED_KIND, (_unsupported(adapter, job.spec),))
    if job.is_attached:
        refused = tuple(f"{one.field}: {one.message}" for one in attachment_obstacles(job.spec))
        return Review(Reason.TARGET_REFUSED, refused) if refused else Review()
    return _of_template(adapter, job, config)


def _of_template(adapter: WorkloadAdapter, job: Job, config: OperatorConfig) -> Review:
    template, guard = job.spec.made_from, job.spec.guard
    found = find_violations(adapter, template.spec, guard)
    own = guard_objects_of(job.name, job.uid, guard, config)
    broken = isolation_findings(adapter, template.spec, guard, own)
    strict = guard.isolation is Isolation.STRICT
    refused = (
        *_annotations(adapter, template.metadata.annotations),
        *sentences([*found, *(broken if strict else ())]),
    ) or tuple(_start(adapter, job.spec))
    if refused:
        return Review(Reason.TEMPLATE_REFUSED, refused)
    return Review(broken=sentences(broken), workload=build_workload(job, adapter, config))


def _unsupported(adapter: WorkloadAdapter | None, spec: Spec) -> str:
    where = "spec.template" if spec.target_ref is None else "spec.targetRef"
    kind = f"{where}: {spec.workload.api_version} {spec.workload.kind}"
    if adapter is None:
        return f"{kind} cannot be guarded"
    return f"{kind} is guarded where it exists, and none is made: name it in spec.targetRef"


def _annotations(adapter: WorkloadAdapter, annotations: Mapping[str, str]) -> Iterator[str]:
    for name, why in adapter.refused_annotations.items():
        if name in annotations:
            yield f"spec.template.metadata.annotations[{name!r}] must not be set: {why}"


def _start(adapter: WorkloadAdapter, spec: Spec) -> Iterator[str]:
    """The checkpoint of another run must lie where the trainer of this one has the volume, too.

    The template has passed everything else.
    """
    if spec.resumed_from is None:
        return
    path, volume = PurePosixPath(spec.resumed_from.checkpoint), spec.guard.checkpoints.volume
    template, pod = rank0_of(adapter, spec.made_from.spec)
    mount = checkpoint_mount(pod, template, volume)
    root = None if mount is None else str(mount["mountPath"])
    if ".." in path.parts or root is None or not path.is_relative_to(root):
        yield (
            f"spec.resumedFrom.checkpoint must be in the volume {volume}, which is mounted at {root}: it is "
            f"{quoted(str(path))}"
        )


def review_manifest(manifest: Mapping[str, Any], config: OperatorConfig) -> Review:
    """The same of a `GuardedTrainingJob` that is not created yet, with what the API server says of its names.

    Args:
        manifest: with a mapping `metadata` that has a name, and with `spec`.
        config: what the operator's installation decides.
    """
    name = str(manifest["metadata"]["name"])
    if len(name) > MAX_JOB_NAME or re.fullmatch(JOB_NAME_PATTERN, name) is None:
        return Review(Reason.INVALID_SPEC, (f"{JOB_NAME_RULE}, not {name[:80]!r}",))
    namespace = manifest["metadata"].get("namespace")
    if namespace and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", str(namespace)) is None:
        said = f"metadata.namespace must be a DNS label, not {str(namespace)[:80]!r}"
        return Review(Reason.INVALID_SPEC, (said,))
    try:
        job = parse_job({**manifest, "metadata": _UNBORN | dict(manifest["metadata"])})
    except ValidationError as error:
        return Review(Reason.INVALID_SPEC, (invalid_spec(error),))
    return review(job.adapter, job, config)
