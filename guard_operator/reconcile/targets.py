"""A workload that exists and that the job does not own (`spec.targetRef`): refusals, and what belongs to it.

Nobody looked at its pods when they were made, and nothing is put into them. They have none of the operator's
labels: they are found by those of the workload's own controller, each time live. A RayJob and a TrainJob have
no pods of their own: theirs are of a RayCluster and a Job, and of a JobSet, which are read by their names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guard_operator.adapters import (
    OuterAdapter,
    TemplateError,
    WorkloadAdapter,
    WorkloadState,
    at,
    find_adapter,
)
from guard_operator.api import names
from guard_operator.api.types import NEEDED_BY_TARGET, RESUMED_BY_TEMPLATE, Spec
from guard_operator.reconcile.halts import goes_on_unread
from guard_operator.reconcile.leaks import had
from guard_operator.reconcile.refusals import (
    SourceRef,
    Violation,
    evaluator_findings,
    guarded_sources,
)
from guard_operator.reconcile.snapshot import Between, Job
from guard_operator.runtime.client import PODS, Client, Json, Resource, controller_of, controller_ref
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

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
    if owner := controller_ref(dict(raw)):
        yield f"{owner.get('kind')} {owner.get('name')} controls it: name that, if it can be guarded"
    try:
        _trainer(adapter, _object(raw.get("spec")), made)
    except TemplateError as error:
        yield f"spec.{error}"


def _roots_of(adapter: WorkloadAdapter) -> tuple[WorkloadAdapter, ...]:
    """Of the kinds by which the pods of one of this kind are known."""
    kinds = adapter.makes if isinstance(adapter, OuterAdapter) else (adapter.resource,)
    found = (find_adapter(one.api_version, one.kind) for one in kinds)
    return tuple(one for one in found if one is not None)


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


@dataclass(frozen=True, slots=True)
class Belongings:
    """What belongs to a target.

    `controllers`: UIDs of what may control its pods. `made`: what it has made that makes its pods.
    `labelled`: whether what makes the pods has the labels by which they are known.
    `unread`: of a run that is to stop, why not all of its pods could be read; "": they could.
    """

    pods: tuple[Json, ...] = ()
    between: tuple[Between, ...] = ()
    controllers: frozenset[str] = frozenset()
    made: tuple[Json, ...] = ()
    labelled: bool = False
    unread: str = ""


def read_target(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str | None
) -> Belongings:
    """What belongs to the target of this UID.

    Args:
        client: of the API server.
        adapter: of its kind.
        job: what is attached to it.
        raw: what has its name now, if anything.
        uid: its UID; None: there was none yet.

    Raises:
        ClusterError: a read failed for now, and no stop is held up by that.
    """
    if uid is None or job.spec.target_ref is None:
        return Belongings()
    return _belongings(client, adapter, job, raw, uid)


def read_unlabelled(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Belongings:
    """What belongs to the job's own workload, and of its pods those that lost the operator's label."""
    found = _belongings(client, adapter, job, raw, uid)
    # One that nothing controls anybody may make, with any labels, and the operator may not delete it.
    own = (raw for raw in found.pods if controller_of(raw) is not None)
    unlabelled = (raw for raw in own if names.UID_LABEL not in (at(raw, "metadata", "labels") or {}))
    return replace(found, pods=tuple(unlabelled))


def _belongings(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Belongings:
    reading = _Reading(client, job)
    if not isinstance(adapter, OuterAdapter):
        return reading.of(adapter, job.workload_name, uid)
    made = tuple(reading.made(adapter, raw, uid))
    inner = [reading.of(one, there["metadata"]["name"], there["metadata"]["uid"]) for one, there in made]
    makers = tuple(_between(one.resource, there) for one, there in made)
    between = (*makers, *(one for found in inner for one in found.between))
    return Belongings(
        pods=tuple(pod for found in inner for pod in found.pods),
        between=between,
        controllers=frozenset(one.uid for one in between),
        made=tuple(there for _, there in made),
        labelled=all(found.labelled or not one.between for (one, _), found in zip(made, inner, strict=True)),
        unread=reading.failed,
    )


class _Reading:
    """Reads for one job. `failed`: of a run whose teardown goes on unread, why pods may be missing."""

    def __init__(self, client: Client, job: Job) -> None:
        self._client, self._job = client, job
        self.failed = ""

    def of(self, adapter: WorkloadAdapter, name: str, uid: str) -> Belongings:
        """What belongs to an object that has pods of its own."""
        between = controlled(adapter, uid, lambda kind: self._selected(kind, adapter, name, uid))
        makers = frozenset({uid} | {one.uid for one in between})
        found = self._selected(PODS, adapter, name, uid)
        pods = tuple(raw for raw in found if _is_of(raw, adapter, makers))
        return Belongings(pods, between, makers, labelled=bool(between), unread=self.failed)

    def made(
        self, adapter: OuterAdapter, raw: Mapping[str, Any] | None, uid: str
    ) -> Iterator[tuple[WorkloadAdapter, Json]]:
        """What the workload of this UID has made that is there."""
        for kind, name in zip(adapter.makes, adapter.made(raw), strict=True) if raw is not None else ():
            inner = find_adapter(kind.api_version, kind.kind)
            if inner is None or not adapter.may_make(kind.kind, name, self._job.workload_name):
                continue
            try:
                there = self._client.get(kind, self._job.namespace, name)
            except ClusterError as error:
                self._note(kind, error)
                continue
            if there is not None and controller_of(there) == uid:
                yield inner, there

    def _selected(self, kind: Resource, adapter: WorkloadAdapter, name: str, uid: str) -> list[Json]:
        try:
            return listed(self._client, kind, self._job, adapter.pod_selector(name, uid))
        except ClusterError as error:
            self._note(kind, error)
            return []

    def _note(self, kind: Resource, error: ClusterError) -> None:
        if not goes_on_unread(self._job):
            raise error
        where = f"{self._job.namespace}/{self._job.name}"
        log.warning("%s: %s of its workload cannot be read: %s", where, kind.plural, error)
        self.failed = str(error)


def _is_of(raw: Json, adapter: WorkloadAdapter, makers: frozenset[str]) -> bool:
    """Whether a pod with the labels of a workload is of it: any template may have them.

    One that nothing controls may have been orphaned, and trains on: a label with the UID of the workload
    tells enough of it, one with the name does not.
    """
    controller = controller_of(raw)
    return adapter.selects_by_uid if controller is None else controller in makers


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


def exposures(pod: Json, own: frozenset[SourceRef], service_account: str | None) -> Iterator[str]:
    """What a pod of the workload has that only the guard may have; a sentence for each.

    Args:
        pod: the whole pod, as it is in the cluster.
        own: (kind, name) of every claim, Secret and ConfigMap that only the guard may have.
        service_account: that of the guard's pod; None: it has none.
    """
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    for container, what in had(spec, own):
        yield f"pod {name}: container {container} has {what}, which is the guard's"
    accounts = {spec.get("serviceAccountName"), spec.get("serviceAccount")}
    if service_account is not None and service_account in accounts:
        yield f"pod {name} has the guard's ServiceAccount {service_account}, and so what its role may read"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
