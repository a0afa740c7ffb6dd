"""A workload that exists and that the job does not own (`spec.targetRef`): refusals, and what belongs to it.

Nobody looked at its pods when they were made, and nothing is put into them. They have none of the operator's
labels: they are found by those of the workload's own controller, each time live. A RayJob and a TrainJob have
no pods of their own: theirs are of a RayCluster and a Job, and of a JobSet, which are read by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlguard.operator.adapters import TemplateError, WorkloadAdapter, WorkloadState, at, makers
from rlguard.operator.api import names
from rlguard.operator.api.types import Spec
from rlguard.operator.reconcile.isolation import GuardObjects, Violation, broken_rows
from rlguard.operator.reconcile.refusals import evaluator_findings
from rlguard.operator.reconcile.snapshot import Between, Job
from rlguard.operator.runtime.client import PODS, Client, Json, Resource, controller_of, controller_ref

#: What does not hold here and holds for a workload that is made of a template.
UNPROTECTED = (
    "the admission policy does not see the pods of a workload that existed before its job",
    "its trainer did not wait for the guard, and what it wrote before is not judged",
    "it is judged by what its trainer writes into its log and its checkpoints, as always",
)


@dataclass(frozen=True, slots=True)
class Belongings:
    """What belongs to a target.

    `between`: what may control its pods, beside itself. `made`: what it has made that makes its pods.
    """

    pods: tuple[Json, ...] = ()
    between: tuple[Between, ...] = ()
    made: tuple[Json, ...] = ()


NO_BELONGINGS = Belongings()


# -- what is refused -------------------------------------------------------------------------------------


def attachment_obstacles(spec: Spec) -> Iterator[Violation]:
    """What is refused of a job with a target."""
    guard = spec.guard
    if guard.checkpoints.claim_name in {guard.heldout.volume.claim_name, guard.state.claim_name} - {None}:
        why = "must not be a claim of the guard's: the trainer writes there"
        yield Violation("spec.guard.checkpoints.claimName", why)
    yield from evaluator_findings(guard)


def why_not_attached(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Why this workload cannot be guarded as it is; "" if it can.

    Args:
        adapter: of its kind.
        raw: as it is in the cluster.
        made: what it has made that makes its pods, if they are not its own.
    """
    return next(_against(adapter, raw, made), "")


def _against(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], made: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    if "deletionTimestamp" in raw["metadata"]:
        yield "it is being deleted"
    state, message = adapter.state(raw)
    if state in {WorkloadState.SUCCEEDED, WorkloadState.FAILED}:
        yield f"it has ended already ({state}{f': {message}' if message else ''})"
    if at(raw, "spec", "manualSelector") is True:
        yield "spec.manualSelector must not be set: its pods could not be told from others"
    if owner := controller_ref(dict(raw)):
        yield f"{owner.get('kind')} {owner.get('name')} controls it: name that, if it can be guarded"
    try:
        adapter.check_manager(raw.get("spec") or {})
        adapter.trainer(raw.get("spec") or {}, made)
    except TemplateError as error:
        yield f"spec.{error}"


def attached_trainer(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> str:
    """The container that trains in the pod of rank 0; "" where it is not known."""
    try:
        return adapter.trainer(spec)
    except TemplateError:
        return ""


def has_made_nothing(
    adapter: WorkloadAdapter, raw: Mapping[str, Any], made: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether its pods are of what it makes, and that has not come yet. A queue may hold it back for long."""
    waits = adapter.state(raw)[0] in {WorkloadState.PENDING, WorkloadState.RUNNING}
    return bool(adapter.makes) and not made and waits


def exposures(pod: Json, own: GuardObjects) -> Iterator[str]:
    """The rows of the isolation table that a pod of the workload breaks, a sentence for each.

    Args:
        pod: the whole pod, as it is in the cluster.
        own: what is the guard's.
    """
    for one in broken_rows(pod.get("spec") or {}, own):
        yield f"pod {pod['metadata']['name']}: {one.field} {one.message}"


# -- what belongs to it ----------------------------------------------------------------------------------


def read_target(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Belongings:
    """What belongs to the workload of this UID.

    Args:
        client: of the API server.
        adapter: of its kind.
        job: what is attached to it, or has made it.
        raw: what has its name now, if anything.
        uid: its UID.

    Raises:
        ClusterError: a read failed for now.
    """
    if not adapter.makes:
        return _read(client, adapter, job, job.workload_name, uid)
    made = tuple(_made(client, adapter, job, raw, uid))
    inner = [
        _read(client, one, job, there["metadata"]["name"], there["metadata"]["uid"]) for one, there in made
    ]
    between = (
        *(_between(one.resource, there) for one, there in made),
        *(one for found in inner for one in found.between),
    )
    return Belongings(
        pods=tuple(pod for found in inner for pod in found.pods),
        between=between,
        made=tuple(there for _, there in made),
    )


def read_unlabelled(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Belongings:
    """What belongs to the job's own workload, and of its pods those that lost the operator's label."""
    found = read_target(client, adapter, job, raw, uid)
    # One that nothing controls anybody may make, with any labels, and the operator may not delete it.
    own = (raw for raw in found.pods if controller_of(raw) is not None)
    unlabelled = (raw for raw in own if names.UID_LABEL not in (at(raw, "metadata", "labels") or {}))
    return replace(found, pods=tuple(unlabelled))


def _read(client: Client, adapter: WorkloadAdapter, job: Job, name: str, uid: str) -> Belongings:
    """What belongs to an object that has pods of its own."""
    selector = adapter.selector.format(name=name, uid=uid)
    between = controlled(adapter, uid, lambda kind: listed(client, kind, job, selector))
    owners = {uid, *(one.uid for one in between)}
    found = listed(client, PODS, job, selector)
    return Belongings(tuple(raw for raw in found if _is_of(raw, uid, owners)), between)


def _made(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Iterator[tuple[WorkloadAdapter, Json]]:
    """What the workload of this UID has made that is there."""
    for inner, name in zip(makers(adapter), adapter.made(raw), strict=True) if raw is not None else ():
        there = client.get(inner.resource, job.namespace, name) if name else None
        if there is not None and controller_of(there) == uid:
            yield inner, there


def _is_of(raw: Json, uid: str, owners: Container[str]) -> bool:
    """Whether a pod with the labels of the workload of this UID is of it: any template may have them.

    One that nothing controls may have been orphaned, and trains on: a label with the UID tells enough of it.
    """
    controller = controller_of(raw)
    return uid in raw["metadata"]["labels"].values() if controller is None else controller in owners


def _between(resource: Resource, raw: Json) -> Between:
    metadata = raw["metadata"]
    return Between(resource, metadata["name"], metadata["uid"], "deletionTimestamp" in metadata)


def controlled(
    adapter: WorkloadAdapter, uid: str, read: Callable[[Resource], Iterable[Json]]
) -> tuple[Between, ...]:
    """What the workload of this UID controls, and so on, down to what may control its pods.

    `read`: what of a kind may be of it.
    """
    found, controllers = list[Between](), {uid}
    for kind in adapter.between:
        found += [_between(kind, raw) for raw in read(kind) if controller_of(raw) in controllers]
        controllers |= {one.uid for one in found}
    return tuple(found)


def listed(client: Client, resource: Resource, job: Job, selector: str) -> list[Json]:
    """What of this kind has these labels, in the namespace of the job.

    Raises:
        ClusterError: it could not be read for now.
    """
    items: list[Json] = client.list(resource, job.namespace, {"labelSelector": selector}).get("items") or []
    return items
