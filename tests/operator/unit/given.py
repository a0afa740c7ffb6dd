"""What the unit tests of the operator start from: jobs, pods, snapshots, and a cluster without a server."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from rlguard.core.wire import Verdict
from rlguard.operator.adapters import ADAPTERS, WorkloadState
from rlguard.operator.config import OperatorConfig
from rlguard.operator.guards.reading import Reading
from rlguard.operator.reconcile.gather import Caches, Gatherer
from rlguard.operator.reconcile.parse import parse_job
from rlguard.operator.reconcile.snapshot import (
    Decision,
    Delete,
    Doomed,
    Job,
    Pod,
    Remembered,
    Snapshot,
    Workload,
)
from rlguard.operator.runtime.client import Client, Resource
from rlguard.operator.runtime.errors import ApiError

Json = dict[str, Any]

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
UID = "0123456789ab"
#: Name of the Secret and the ConfigMap of the job, and of the StatefulSet of its guard.
SUPPORT = f"run-{UID[:8]}"
CONFIG = OperatorConfig("guard:1")
ADAPTER = {one.resource.kind: one for one in ADAPTERS}

FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": LONG_AGO.isoformat()}
WELL = Verdict(level="healthy", code="ok", reason="fine", fire=False, halt=False, stop=False)
#: What `status.guard` has of a run that is well, and of one all of which was judged.
BEAT = {"level": "healthy", "code": "ok", "reason": "fine", "step": 1}
JUDGED = {"level": "healthy", "code": "ok", "reason": "fine", "announced": 3, "evaluated": 3, "waiting": 0}
STOP = {"requestedAt": NOW.isoformat()}


def template(*containers: str, **pod: Any) -> Json:
    """A pod template, whose containers mount the checkpoints; a claim has them."""
    mounts = [{"name": "ckpt", "mountPath": "/ckpt"}]
    made = [{"name": name, "image": "i", "volumeMounts": mounts} for name in containers or ("pytorch",)]
    volumes = [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    return {"spec": {"containers": made, "volumes": volumes, **pod}}


def pytorchjob(*pods: Json) -> Json:
    """The spec of a PyTorchJob with these pod templates: its Master, and its Worker."""
    replicas = zip(("Master", "Worker"), pods or (template(),), strict=False)
    return {"pytorchReplicaSpecs": {role: {"template": pod} for role, pod in replicas}}


def reference(kind: str = "PyTorchJob", name: str = "run", uid: str = "w") -> Json:
    """The part of a status that names the workload."""
    version = ADAPTER[kind].resource.api_version
    return {"workloadRef": {"apiVersion": version, "kind": kind, "name": name, "uid": uid}}


REF = reference()


def manifest(
    spec: Json | None = None,
    kind: str = "PyTorchJob",
    status: Json | None = None,
    guard: Json | None = None,
    **more: Any,
) -> Json:
    """A GuardedTrainingJob called `run`; `guard` and `more` are added to its spec."""
    version = ADAPTER[kind].resource.api_version if kind in ADAPTER else "kubeflow.org/v1"
    workload = {"apiVersion": version, "kind": kind, "spec": pytorchjob() if spec is None else spec}
    own = {
        "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "ckpt"},
        **(guard or {}),
    }
    metadata = {"name": "run", "namespace": "ns", "uid": UID, "resourceVersion": "1"}
    given = {"template": copy.deepcopy(workload), "guard": own, **more}
    return {"metadata": metadata, "spec": given, "status": status or {}}


def job(*given: Any, **more: Any) -> Job:
    """The same, as the operator reads it."""
    return parse_job(manifest(*given, **more))


def condition(kind: str, status: str = "True", reason: str = "Before", at: datetime = LONG_AGO) -> Json:
    """The part of a status with one condition."""
    return {
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at.isoformat()}
        ]
    }


def workload(state: WorkloadState = WorkloadState.RUNNING, **values: Any) -> Workload:
    """The job's own."""
    return Workload(**{"uid": "w", "ours": True, "state": state, **values})


def pod(name: str = "run-master-0", **values: Any) -> Pod:
    """The pod of rank 0, with its guard."""
    given = {"name": name, "uid": f"uid-{name}", "rank0": True, "guarded": True, "guard_since": LONG_AGO}
    return Pod(**{**given, "phase": "Running", **values})


#: The guard of rank 0 was heard.
HEARD = Reading("uid-run-master-0", verdict=WELL, heard_at=NOW)
GOING = pod(terminating=True)


def seen(*values: Any, **more: Any) -> Snapshot:
    """A snapshot in which the guard was heard."""
    return Snapshot(*values, **{"reading": HEARD, **more})


def says(decision: Decision) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    return {one.type: (one.status, one.reason) for one in decision.report.conditions}


def message(decision: Decision, kind: str) -> str:
    """What one condition says to people."""
    return next(one.message for one in decision.report.conditions if one.type == kind)


def deleted(decision: Decision) -> list[Doomed]:
    """What is to be deleted, in its order."""
    return [one for action in decision.actions if isinstance(action, Delete) for one in action.objects]


# -- a cluster -------------------------------------------------------------------------------------------


def owner(uid: str, controller: bool = True) -> Json:
    """A reference to the owner of an object."""
    return {"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": controller}


def thing(kind: str, name: str, uid: str, *owners: str | Json, **more: Any) -> Json:
    """An object; `labels` may be among the rest."""
    references = [owner(one) if isinstance(one, str) else one for one in owners]
    metadata = {"name": name, "namespace": "ns", "uid": uid, "labels": more.pop("labels", {})}
    metadata["ownerReferences"] = references
    return {"kind": kind, "metadata": metadata, "spec": {}, "status": {}, **more}


class Cluster:
    """API server and caches of a namespace: `there` is what it has, and `cached` what is known of that.

    `refused`: kinds that cannot be read, and ("hidden") pods by other labels than the operator's. `refuses`:
    what is said to a kind that is to be created. `asked`: the requests.
    """

    def __init__(
        self, *there: Json, cached: Iterable[Json] | None = None, refused: Sequence[str] = ()
    ) -> None:
        self.there = list(there)
        self.cached = self.there if cached is None else list(cached)
        self.refused, self.refuses = tuple(refused), dict[str, ApiError]()
        self.job: Json | None = None
        self.claims: dict[str, Json] = {}
        self.made: Json = {}
        self.asked: list[str] = []
        self.silent_for = 0.0
        self.known = Remembered()

    def gather(self, job: Json, there: Json | None = None, unread: Sequence[str] = ()) -> Snapshot:
        """The snapshot of a job that is cached so, and is so in the API server."""
        found = self.look(job, job if there is None else there, unread)
        assert found is not None
        return found

    def look(self, job: Json, there: Json | None, unread: Sequence[str] = ()) -> Snapshot | None:
        """The same; None: the job is gone."""
        self.asked.clear()
        self.job = there
        guards = SimpleNamespace(
            reading=lambda _uid: None,
            silent_for=lambda _uid, _pod: self.silent_for,
            most_are_unreached=lambda: False,
        )
        gatherer = Gatherer(cast(Client, self), CONFIG, cast(Caches, self), cast(Any, guards), lambda: NOW)
        return gatherer.gather(parse_job(job), self.known, unread)

    # Caches
    def workload(self, resource: Resource, _namespace: str, name: str) -> Json | None:
        return _first(self.cached, resource, name)

    def pods(self, _namespace: str, uid: str) -> list[Json]:
        return _labelled(self.cached, "Pod", f"rlguard.dev/job-uid={uid}")

    def between(self, resource: Resource, _namespace: str, uid: str) -> list[Json]:
        return _labelled(self.cached, resource.kind, f"rlguard.dev/job-uid={uid}")

    # Client
    def get(self, resource: Resource, _namespace: str, name: str, **_how: object) -> Json | None:
        self._ask("get", resource.kind)
        if resource.kind == "GuardedTrainingJob":
            return self.job
        if resource.kind == "PersistentVolumeClaim":
            return self.claims.get(name, {"metadata": {}, "spec": {"accessModes": ["ReadWriteMany"]}})
        return _first(self.there, resource, name)

    def list(self, resource: Resource, _namespace: str, query: Mapping[str, str]) -> Json:
        selector = query.get("labelSelector", "")
        hidden = resource.kind == "Pod" and not selector.startswith("rlguard.dev")
        self._ask("list", "hidden" if hidden else resource.kind)
        return {"items": _labelled(self.there, resource.kind, selector)}

    def create(self, resource: Resource, _namespace: str, _body: Json, _manager: str, dry_run: bool) -> Json:
        assert dry_run, "to look changes nothing"
        if resource.kind in self.refuses:
            raise self.refuses[resource.kind]
        return self.made

    def apply(self, _resource: Resource, _body: Json, _manager: str, dry_run: bool) -> Json:
        assert dry_run, "to look changes nothing"
        return self.made

    def _ask(self, verb: str, kind: str) -> None:
        self.asked.append(f"{verb} {kind}")
        if kind in self.refused:
            raise ApiError(403, "Forbidden", f"{verb} {kind}")


def _first(among: Iterable[Json], resource: Resource, name: str) -> Json | None:
    found = (one for one in among if (one["kind"], one["metadata"]["name"]) == (resource.kind, name))
    return next(found, None)


def _labelled(among: Iterable[Json], kind: str, selector: str) -> list[Json]:
    label, _, value = selector.partition("=")
    of_kind = (one for one in among if one["kind"] == kind)
    return [one for one in of_kind if not label or one["metadata"]["labels"].get(label) == value]
