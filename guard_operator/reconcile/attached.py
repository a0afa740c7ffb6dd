"""A workload that exists and that the job does not own (`spec.targetRef`): refusals, and what is seen. Pure.

Nobody looked at its pods when they were made, and nothing is put into them. What can be seen of them later
is told: a pod that has what is the guard's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from guard_operator.adapters import (
    ADAPTERS,
    OuterAdapter,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    find_adapter,
)
from guard_operator.api.names import API_VERSION, KIND
from guard_operator.api.types import (
    MAX_MADE,
    NEEDED_BY_TARGET,
    RESUMED_BY_TEMPLATE,
    MadeRef,
    Spec,
)
from guard_operator.reconcile.leaks import had
from guard_operator.reconcile.refusals import (
    SourceRef,
    Violation,
    evaluator_findings,
    guarded_sources,
)
from guard_operator.runtime.client import Json

#: What does not hold here and holds for a workload that is made of a template.
UNPROTECTED = (
    "nobody checked the pods of the workload when they were made, so they may be root, have a token, or "
    "reach the storage of the held-out split in ways that are not seen",
    "its trainer did not wait for the guard, and what it wrote before is not judged",
    "it is judged by what its trainer writes into its log and its checkpoints, as always",
)


def attachment_obstacles(spec: Spec) -> Iterator[Violation]:
    """What is refused of a job with a target, or admitted at a cost."""
    guard = spec.guard
    if guard.own_pod is None or guard.metrics is None or guard.checkpoints.claim_name is None:
        yield Violation("spec", NEEDED_BY_TARGET)
    if spec.resumed_from is not None:
        yield Violation("spec", RESUMED_BY_TEMPLATE)
    why = guarded_sources(guard).get(("PersistentVolumeClaim", str(guard.checkpoints.claim_name)))
    if why is not None:
        yield Violation("spec.guard.checkpoints.claimName", why)
    yield from evaluator_findings(guard)


def why_not_attached(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], between: bool, made: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Why this workload cannot be guarded as it is; "" if it can.

    Args:
        adapter: of its kind.
        raw: as it is in the cluster.
        between: whether anything was found of what stands between it, or what it has made, and its pods.
        made: what it has made that makes its pods, if they are not its own.
    """
    return next(_against(adapter, raw, between, made), "")


def _against(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], between: bool, made: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    if "deletionTimestamp" in raw["metadata"]:
        yield "it is being deleted"
    state, message = adapter.state(raw)
    if state in {WorkloadState.SUCCEEDED, WorkloadState.FAILED}:
        yield f"it has ended already ({state}{f': {message}' if message else ''})"
    if adapter.between and state is WorkloadState.RUNNING and not between:
        label = _roots_of(adapter)[0].pod_selector("name", "uid").partition("=")[0]
        yield f"it runs, and nothing of it has the label {label}, by which its pods are known: is it older?"
    if at(raw, "spec", "manualSelector") is True:
        yield "spec.manualSelector must not be set: its pods could not be told from others"
    for owner in raw["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and (why := _of_owner(owner)):
            yield f"it belongs to {owner.get('kind')} {owner.get('name')}, {why}"
    try:
        _trainer(adapter, _object(raw.get("spec")), made)
    except TemplateError as error:
        yield f"spec.{error}"


def _roots_of(adapter: WorkloadAdapter) -> tuple[WorkloadAdapter, ...]:
    """Of the kinds by which the pods of one of this kind are known."""
    kinds = adapter.makes if isinstance(adapter, OuterAdapter) else (adapter.resource,)
    found = (find_adapter(one.api_version, one.kind) for one in kinds)
    return tuple(one for one in found if one is not None)


def _of_owner(owner: Mapping[str, Any]) -> str:
    """Why what belongs to it is not guarded by itself; "" if it may be."""
    named = owner.get("apiVersion"), owner.get("kind")
    if named == (API_VERSION, KIND):
        return "which guards it"
    if any(named == (one.resource.api_version, one.resource.kind) for one in ADAPTERS):
        return "which would make it again: that is what is to be guarded"
    return ""


def attached_trainer(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> str:
    """The container that trains in the pod of rank 0; "" where it is not known."""
    try:
        return _trainer(adapter, spec, ())
    except TemplateError:
        return ""


def _trainer(adapter: WorkloadAdapter, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> str:
    if isinstance(adapter, OuterAdapter):
        return adapter.attached(spec, made)
    return next(one.container for one in adapter.pod_templates(spec) if one.guarded)


def has_made_nothing(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], made: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether its pods are of what it makes, and that has not come yet. A queue may hold it back for long."""
    if not isinstance(adapter, OuterAdapter) or made:
        return False
    return adapter.state(raw)[0] in {WorkloadState.PENDING, WorkloadState.RUNNING}


def to_note(
    noted: Sequence[MadeRef], there: Sequence[MadeRef], left: Collection[str], stopping: bool
) -> tuple[MadeRef, ...]:
    """What is to be known of what a workload has made: what is there, or has pods.

    Args:
        noted: what was known of it.
        there: what is there now.
        left: UIDs of it of which pods are left.
        stopping: of a run that is to stop nothing is forgotten, but where the status takes no more: first
            what is gone and has no pod.
    """
    now = {one.uid for one in there}
    kept = [one for one in noted if stopping or one.uid in now or one.uid in left]
    known = {one.uid for one in kept}
    every = (*kept, *(one for one in there if one.uid not in known))
    spare = [one for one in every if one.uid not in now and one.uid not in left]
    too_many = spare[: max(0, len(every) - MAX_MADE)]
    return tuple(one for one in every if one not in too_many)[-MAX_MADE:]


def exposures(pod: Json, own: frozenset[SourceRef], service_account: str) -> Iterator[str]:
    """What a pod of the workload has that only the guard may have; a sentence for each.

    Args:
        pod: the whole pod, as it is in the cluster.
        own: (kind, name) of every claim, Secret and ConfigMap that only the guard may have.
        service_account: the guard's.
    """
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    for container, what in had(spec, own):
        yield f"pod {name}: container {container} has {what}, which is the guard's"
    if service_account in {spec.get("serviceAccountName"), spec.get("serviceAccount")}:
        yield f"pod {name} has the guard's ServiceAccount {service_account}, so it can write the verdict"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
