"""Reads what belongs to a workload that a job is attached to: its pods, and what makes them. Each time live.

Nothing of it has the operator's labels. It is found by those of its own controller, which have its UID or its
name. A RayJob and a TrainJob have no pods of their own: theirs are of a RayCluster and a Job, and of a
JobSet, which are read by their names and noted by their UIDs, because they go before their pods do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from guard_operator.adapters import OuterAdapter, WorkloadAdapter, at, find_adapter
from guard_operator.api import names
from guard_operator.api.types import MadeRef
from guard_operator.reconcile.attached import to_note
from guard_operator.reconcile.halts import goes_on_unread, is_to_stop, was_there
from guard_operator.reconcile.snapshot import Between, Job
from guard_operator.runtime.client import PODS, Client, Json, Resource, controller_of, controller_ref
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Belongings:
    """What belongs to a target.

    `controllers`: UIDs of what may control its pods, also if it is gone.
    `made`: what it has made that makes its pods; `note`: what is to be noted of that; None: nothing.
    `labelled`: whether what makes the pods has the labels by which they are known.
    `unread`: of a run that is to stop, why not all of its pods could be read; "": they could.
    `makers_unread`: the same of what makes them, which is then taken for there.
    """

    pods: tuple[Json, ...] = ()
    between: tuple[Between, ...] = ()
    controllers: frozenset[str] = frozenset()
    made: tuple[Json, ...] = ()
    note: tuple[MadeRef, ...] | None = None
    labelled: bool = False
    unread: str = ""
    makers_unread: str = ""


def read_target(
    client: Client,
    adapter: WorkloadAdapter,
    job: Job,
    raw: Mapping[str, Any] | None,
    uid: str | None,
    known: tuple[MadeRef, ...] = (),
) -> Belongings:
    """What belongs to the target of this UID.

    Args:
        client: of the API server.
        adapter: of its kind.
        job: what is attached to it.
        raw: what has its name now, if anything.
        uid: its UID; None: there was none yet.
        known: what it has made, if more is known of that than the status says.

    Raises:
        ClusterError: a read failed for now, and no stop is held up by that.
    """
    if uid is None or job.spec.target_ref is None:
        return Belongings()
    return _belongings(client, adapter, job, raw, uid, known)


def read_unlabelled(
    client: Client, adapter: WorkloadAdapter, job: Job, raw: Mapping[str, Any] | None, uid: str
) -> Belongings:
    """What belongs to the job's own workload, and of its pods those that lost the operator's label.

    What that workload made and what has gone before its pods is noted nowhere, unlike that of a target: pods
    below it are not found.
    """
    found = _belongings(client, adapter, job, raw, uid, ())
    # One that nothing controls anybody may make, with any labels, and the operator may not delete it.
    own = (raw for raw in found.pods if controller_of(raw) is not None)
    unlabelled = (raw for raw in own if names.UID_LABEL not in (at(raw, "metadata", "labels") or {}))
    return replace(found, pods=tuple(unlabelled))


def _belongings(
    client: Client,
    adapter: WorkloadAdapter,
    job: Job,
    raw: Mapping[str, Any] | None,
    uid: str,
    known: tuple[MadeRef, ...],
) -> Belongings:
    if isinstance(adapter, OuterAdapter):
        return _of_outer(_Reading(client, job, named=True), adapter, raw, uid, known)
    reading = _Reading(client, job)
    between = reading.between(adapter, job.workload_name, uid)
    return Belongings(
        pods=tuple(reading.pods(adapter, job.workload_name, uid, between)),
        between=between,
        controllers=frozenset(one.uid for one in between) | {uid},
        labelled=bool(between),
        unread=reading.failed,
    )


class _Reading:
    """Reads for one job. Of a run whose stop goes on unread, what cannot be read is nothing.

    `named`: whether what is found by a UID must have the name of what has it, too: the UID may be forged.
    `failed`: why pods may be missing; "": none is. `makers_failed`: the same of what makes them.
    """

    def __init__(self, client: Client, job: Job, named: bool = False) -> None:
        self._client, self.job, self._named = client, job, named
        self.failed = self.makers_failed = ""

    def one(self, resource: Resource, name: str, uid: str | None) -> Json | None:
        """What has this name. `uid`: of what had it last; if it cannot be read it is taken for there.

        Its pods are then known by it all the same.
        """
        try:
            was = uid is not None and was_there(self.job)
            return self._client.get(resource, self.job.namespace, name, was_there=was)
        except ClusterError as error:
            why = self._failed(resource, error)
        if uid is None:
            self.failed = why
            return None
        self.makers_failed = why
        return {"metadata": {"name": name, "uid": uid}}

    def between(self, adapter: WorkloadAdapter, name: str, uid: str) -> tuple[Between, ...]:
        """What stands between a workload with pods of its own and them."""
        return controlled(adapter, uid, lambda kind: self._selected(kind, adapter, name, uid))

    def pods(self, adapter: WorkloadAdapter, name: str, uid: str, between: tuple[Between, ...]) -> list[Json]:
        """Those of a workload with pods of its own."""
        makers = frozenset({uid} | {one.uid for one in between})
        found = self._selected(PODS, adapter, name, uid)
        return [raw for raw in found if _is_of(raw, adapter, name, makers)]

    def _selected(self, resource: Resource, adapter: WorkloadAdapter, name: str, uid: str) -> list[Json]:
        try:
            found = listed(self._client, resource, self.job, adapter.pod_selector(name, uid))
        except ClusterError as error:
            self.failed = self._failed(resource, error)
            return []
        label = adapter.name_label if self._named else ""
        return [raw for raw in found if not label or at(raw, "metadata", "labels", label) == name]

    def _failed(self, resource: Resource, error: ClusterError) -> str:
        if not goes_on_unread(self.job):
            raise error
        where = f"{self.job.namespace}/{self.job.name}"
        log.warning("%s: %s of its workload cannot be read: %s", where, resource.plural, error)
        return str(error)


def _of_outer(
    reading: _Reading,
    adapter: OuterAdapter,
    raw: Mapping[str, Any] | None,
    uid: str,
    known: tuple[MadeRef, ...],
) -> Belongings:
    """What belongs to a workload that has no pods of its own."""
    job, noted = reading.job, _noted(adapter, reading.job, known)
    found = tuple(_there(reading, adapter, raw, noted))
    foreign = {one.uid for one, there in found if controller_of(there) not in {uid, None}}
    noted = tuple(one for one in noted if one.uid not in foreign)
    there = tuple((one, raw) for one, raw in found if controller_of(raw) == uid or one in noted)
    now = tuple(one for one, _ in there)
    between = [_as_between(one, raw) for one, raw in there]
    pods, left, labelled = list[Json](), set[str](), True
    for one in dict.fromkeys((*noted, *now)):
        if (inner := find_adapter(one.api_version, one.kind)) is None:
            continue
        below = reading.between(inner, one.name, one.uid)
        of_it = reading.pods(inner, one.name, one.uid, below)
        labelled = labelled and bool(below or not inner.between)
        between += below
        pods += of_it
        left |= {one.uid} if of_it else set()
    return Belongings(
        pods=tuple(pods),
        between=tuple(between),
        controllers=frozenset({one.uid for one in between} | {one.uid for one in noted}),
        made=tuple(raw for _, raw in there),
        note=to_note(noted, now, left, bool(reading.failed or is_to_stop(job) or job.status.stop)),
        labelled=labelled,
        unread=reading.failed,
        makers_unread=reading.makers_failed,
    )


def _noted(adapter: OuterAdapter, job: Job, known: tuple[MadeRef, ...]) -> tuple[MadeRef, ...]:
    """What the status says that the workload has made, or is known of that, and that it may have made.

    Whoever may write the status can name there what is somebody else's.
    """
    ref, kinds = job.status.workload_ref, {(one.api_version, one.kind) for one in adapter.makes}
    return tuple(
        one
        for one in dict.fromkeys((*((ref.made if ref is not None else None) or ()), *known))
        if (one.api_version, one.kind) in kinds and adapter.may_make(one.kind, one.name, job.workload_name)
    )


def _there(
    reading: _Reading, adapter: OuterAdapter, raw: Mapping[str, Any] | None, noted: tuple[MadeRef, ...]
) -> Iterable[tuple[MadeRef, Json]]:
    """What is there now under the names of what the workload has made, whosever it is."""
    names = zip(adapter.makes, adapter.made(raw), strict=True) if raw is not None else ()
    workload = reading.job.workload_name
    known = {(one.api_version, one.kind, one.name): one.uid for one in noted}
    made = (one for one in names if adapter.may_make(one[0].kind, one[1], workload))
    every = dict.fromkeys((*known, *((kind.api_version, kind.kind, name) for kind, name in made)))
    for api_version, kind, name in every:
        if (inner := find_adapter(api_version, kind)) is None:
            continue
        there = reading.one(inner.resource, name, known.get((api_version, kind, name)))
        if there is None:
            continue
        found = there["metadata"]["uid"]
        yield MadeRef(api_version=api_version, kind=kind, name=name, uid=found), there


def _is_of(raw: Json, adapter: WorkloadAdapter, name: str, makers: frozenset[str]) -> bool:
    """Whether a pod with the labels of the workload of this name is of it: any template may have them.

    One that nothing controls may have been orphaned, and trains on: the UID tells enough of it, the name of a
    workload does not. What controlled a pod may be gone before it is; its name tells whose it was.
    """
    controller = controller_ref(raw)
    if not controller:
        return bool(adapter.name_label)
    if controller.get("uid") in makers:
        return True
    labels = at(raw, "metadata", "labels") or {}
    was = "-".join((name, *(str(labels.get(label)) for label in adapter.maker_labels)))
    kinds = {(kind.api_version, kind.kind, was) for kind in adapter.between}
    return tuple(controller.get(key) for key in ("apiVersion", "kind", "name")) in kinds


def controlled(
    adapter: WorkloadAdapter, uid: str, read: Callable[[Resource], Iterable[Json]]
) -> tuple[Between, ...]:
    """What the workload of this UID controls, and so on, down to what may control its pods.

    `read`: what of a kind may be of it.
    """
    found, controllers = list[Between](), {uid}
    for kind in adapter.between:
        for raw in read(kind):
            if controller_of(raw) in controllers:
                of = raw["metadata"]
                found.append(Between(kind, of["name"], of["uid"], "deletionTimestamp" in of))
        controllers |= {one.uid for one in found}
    return tuple(found)


def listed(client: Client, resource: Resource, job: Job, selector: str) -> list[Json]:
    """What of this kind has these labels, in the namespace of the job.

    Raises:
        ClusterError: it could not be read for now.
    """
    items: list[Json] = client.list(resource, job.namespace, {"labelSelector": selector}).get("items") or []
    return items


def _as_between(one: MadeRef, raw: Json) -> Between:
    adapter = find_adapter(one.api_version, one.kind)
    assert adapter is not None, "what is there was read by it"
    return Between(adapter.resource, one.name, one.uid, "deletionTimestamp" in raw["metadata"])
