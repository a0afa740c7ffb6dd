"""Gathering without a server: disruptions, waiting, last words, whose a workload or a pod is, what a cache
keeps, and which caches are not believed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from guard_operator.adapters import ADAPTERS, WorkloadState
from guard_operator.api.types import Phase
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.slim import slim_pod
from guard_operator.reconcile.snapshot import (
    Decision,
    Delete,
    Disruption,
    Doomed,
    Pod,
    Snapshot,
    guard_of,
)
from guard_operator.runtime.client import CLAIMS, EVENTS, Client, Resource
from guard_operator.runtime.errors import ApiError, TransportError

Json = dict[str, Any]
REPLICA = "training.kubeflow.org/replica-"


def owner(uid: str, controller: bool = True, kind: str = "x/v1 X", name: str = "run") -> Json:
    version, kind = kind.split()
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller}


def seen(raw: Json) -> Pod:
    """What the operator makes of a pod of the run."""
    world = Behind(created(), created())
    world.cached_pods = world.pods_there = [slim_pod(raw)]
    snapshot = world.gather()
    assert snapshot is not None
    return snapshot.pods[0]


def pod(status: Json | None = None, **metadata: Any) -> Json:
    labels = {REPLICA + "index": "0", REPLICA + "type": "master", "rlguard.dev/job": "run"}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "labels": labels,
            "ownerReferences": [owner("w")],
            "managedFields": [1],
            **metadata,
        },
        "spec": {
            "initContainers": [{"name": "rlguard-guard", "image": "g"}],
            "containers": [{"name": "pytorch"}],
        },
        "status": {"phase": "Running", "hostIP": "x", **(status or {})},
    }


def target(reason: str) -> Json:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


DISRUPTIONS: dict[str, tuple[Json, Disruption | None]] = {
    "none": ({}, None),
    "preempted": (target("PreemptionByScheduler"), Disruption.PREEMPTED),
    "evicted by the API": (target("EvictionByEvictionAPI"), Disruption.EVICTED),
    "node pressure": (target("TerminationByKubelet"), Disruption.EVICTED),
    "tainted node": (target("DeletionByTaintManager"), Disruption.NODE_LOST),
    "collected with its node": (target("DeletionByPodGC"), Disruption.NODE_LOST),
    "unknown reason": (target("Meteorite"), Disruption.EVICTED),
    "evicted, old style": ({"reason": "Evicted"}, Disruption.EVICTED),
    "node shut down": ({"reason": "NodeShutdown"}, Disruption.NODE_LOST),
    "another condition": ({"conditions": [{"type": "Ready", "status": "True"}]}, None),
    "target withdrawn": ({"conditions": [{"type": "DisruptionTarget", "status": "False"}]}, None),
    "out of memory": ({"phase": "Failed", "reason": "OOMKilled"}, None),
}


@pytest.mark.parametrize(("status", "expected"), DISRUPTIONS.values(), ids=DISRUPTIONS.keys())
def test_disruptions(status: Json, expected: Disruption | None) -> None:
    assert seen(pod(status)).disruption is expected


def unscheduled(message: str) -> Json:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def container(name: str = "pytorch", *, key: str = "containerStatuses", **status: Any) -> Json:
    return {key: [{"name": name, **status}]}


def guard(**status: Any) -> Json:
    return container("rlguard-guard", key="initContainerStatuses", **status)


def waits(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


CRASH = {"terminated": {"exitCode": 2, "message": "INFO start\nrlguard guard: no split\n"}}
WAITING: dict[str, tuple[Json, tuple[str, str] | None]] = {
    "no node": (unscheduled("0/3 nodes"), ("Unschedulable", "0/3 nodes")),
    "no image": (
        container(state=waits("ImagePullBackOff", "not found")),
        ("ContainerWaiting", "container pytorch: ImagePullBackOff: not found"),
    ),
    "no Secret for the guard": (
        guard(state=waits("CreateContainerConfigError", 'secret "x" not found')),
        ("ContainerWaiting", 'container rlguard-guard: CreateContainerConfigError: secret "x" not found'),
    ),
    "the trainer crashes": (
        container(state=waits("CrashLoopBackOff")),
        ("ContainerWaiting", "container pytorch: CrashLoopBackOff"),
    ),
    "the guard has crashed": (
        guard(state=CRASH, restartCount=0),
        (
            "GuardCrashed",
            "the guard ended with exit code 2 (0 restarts): INFO start\nrlguard guard: no split",
        ),
    ),
    "the guard has left its verdict and why it ended": (
        guard(state={"terminated": {"exitCode": 2, "message": '{"steps": 0, "error": "no split"}'}}),
        ("GuardCrashed", "the guard ended with exit code 2 (0 restarts): no split"),
    ),
    "the guard waits for its restart": (
        guard(state=waits("CrashLoopBackOff"), lastState={"terminated": {"exitCode": 137}}, restartCount=3),
        ("GuardCrashed", "the guard ended with exit code 137 (3 restarts)"),
    ),
    "the guard starts once more": (
        guard(state={"running": {}}, started=False, lastState=CRASH, restartCount=1),
        (
            "GuardCrashed",
            "the guard ended with exit code 2 (1 restarts): INFO start\nrlguard guard: no split",
        ),
    ),
    "the guard was ended because it did not get ready": (
        guard(
            state={"running": {}}, started=False, lastState={"terminated": {"exitCode": 0}}, restartCount=1
        ),
        ("GuardCrashed", "the guard ended with exit code 0 (1 restarts)"),
    ),
    "the guard is up again": (guard(state={"running": {}}, started=True, lastState=CRASH), None),
    "the guard has done its work": (guard(state={"terminated": {"exitCode": 0}}), None),
    "on the way": (container(state=waits("PodInitializing")), None),
    "over": ({"phase": "Failed", **guard(state=CRASH)}, None),
}


@pytest.mark.parametrize(("status", "expected"), WAITING.values(), ids=WAITING.keys())
def test_what_a_pod_waits_for(status: Json, expected: tuple[str, str] | None) -> None:
    found = seen(pod(status)).waiting
    assert (None if found is None else (found.reason, found.message)) == expected


def ended(message: str, key: str = "state", name: str = "rlguard-guard") -> Json:
    state = {"terminated": {"exitCode": 0, "message": message}}
    return {"initContainerStatuses": [{"name": "other", "state": {}}, {"name": name, key: state}]}


LAST_WORD = {
    **{"sequence": 9, "level": "fired", "code": "hacking_gap", "reason": "gap", "fire": True, "halt": False},
    **{"stop": True, "latch_attempt": 0, "latch_step": 4, "steps": 5},
}
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("key", ["state", "lastState"])
def test_the_last_word_of_a_guard_is_read(key: str) -> None:
    found = seen(pod(ended(json.dumps(LAST_WORD), key)))
    assert found.last_word is not None
    assert (found.last_word.sequence, found.last_word.verdict.latch_step) == (9, 4)


def test_a_fire_that_only_its_last_word_tells_is_in_the_snapshot() -> None:
    world = Behind(created(guard={"step": 3}))
    world.cached_pods = world.pods_there = [pod(ended(json.dumps(LAST_WORD)) | {"phase": "Failed"})]
    snapshot = world.gather()
    assert snapshot is not None
    fire = guard_of(snapshot.job).fire
    assert fire is not None and (fire.code, fire.step) == ("hacking_gap", 4)
    assert guard_of(snapshot.job).step == 3, "nothing else was changed"


@pytest.mark.parametrize(
    ("ready", "cut_off"),
    [
        ({"status": "False", "reason": "NodeNotReady"}, True),
        ({"status": "True", "reason": "NodeNotReady"}, False),
        ({"status": "False", "reason": "ContainersNotReady"}, False),
    ],
)
def test_a_pod_is_cut_off_when_the_control_plane_has_lost_its_node(ready: Json, cut_off: bool) -> None:
    status = {"conditions": [{"type": "ContainersReady", **ready}, {"type": "Ready", **ready}]}
    assert seen(pod(status)).cut_off is cut_off
    assert not seen(pod({"conditions": [{"type": "ContainersReady", **ready}]})).cut_off


@pytest.mark.parametrize(
    "status",
    [
        ended("Traceback (most recent call last)"),
        ended('{"sequence": 1, "level": "healthy"}'),
        ended(json.dumps(LAST_WORD), name="init"),
    ],
    ids=["no JSON", "half a verdict", "of another container"],
)
def test_what_is_no_last_word_says_nothing(status: Json) -> None:
    assert seen(pod(status)).last_word is None


@pytest.mark.parametrize(
    ("ended", "failure"),
    [
        ({"exitCode": 1, "message": "Traceback\n  x\nValueError: boom\n"},
         "container pytorch ended with exit code 1: ValueError: boom"),
        ({"exitCode": 137}, "container pytorch ended with exit code 137"),
        ({"exitCode": 0, "message": "bye"}, ""),
    ],
)  # fmt: skip
def test_how_a_trainer_failed(ended: Json, failure: str) -> None:
    at = "2026-01-01T00:00:09Z"
    for index in ("0", "1"):  # a worker is as likely to fail first
        raw = pod(container(state={"terminated": ended | {"finishedAt": at}}))
        raw["metadata"]["labels"][REPLICA + "index"] = index
        found = seen(raw)
        assert found.failure == failure
        assert found.failed_at == (datetime.fromisoformat(at) if failure else None)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def resource_of(kind: str) -> Resource:
    return next(one.resource for one in ADAPTERS if one.resource.kind == kind)


def deleted(decision: Decision) -> list[Doomed]:
    return [one for action in decision.actions if isinstance(action, Delete) for one in action.objects]


def raw_job(**status: Any) -> Json:
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "c"},
        },
        "onSilence": {"afterSeconds": 300, "action": "Warn"},
    }
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", "managedFields": [1]}
    return {"metadata": metadata, "spec": spec, "status": status}


# -- ours, or somebody else's ----------------------------------------------------------------------------


def created(**status: Any) -> Json:
    """A job whose workload has the UID `w`."""
    ref = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run", "uid": "w"}
    return raw_job(workloadRef=ref, **status)


def workload(*owners: Json, uid: str = "w") -> Json:
    return {"metadata": {"name": "run", "namespace": "ns", "uid": uid, "ownerReferences": list(owners)}}


@pytest.mark.parametrize(
    ("job", "raw", "ours"),
    [
        (raw_job(), workload(owner("u")), True),
        (raw_job(), workload(owner("other")), False),
        (raw_job(), workload(owner("u", controller=False)), False),
        (raw_job(), workload(), False),
        (created(), workload(), True),
        (created(), workload(owner("other")), True),
        (created(), workload(uid="namesake"), False),
    ],
    ids=["owned", "other's", "owned, not controlled", "nobody's", "noted", "noted, taken over", "namesake"],
)
def test_whose_a_workload_is(job: Json, raw: Json, ours: bool) -> None:
    world = Behind(job, job)
    world.cached_workload = world.workload_there = raw
    snapshot = world.gather()
    assert snapshot is not None and snapshot.workload is not None and snapshot.workload.ours is ours


@pytest.mark.parametrize(
    "owners", [[], [owner("other")], [owner("w", controller=False)]], ids=["none", "other", "no controller"]
)
def test_a_pod_that_the_workload_does_not_control_says_nothing_but_must_go(owners: list[Json]) -> None:
    """Anyone may give a pod our labels, and any last words."""
    status = {**ended(json.dumps(LAST_WORD)), **target("EvictionByEvictionAPI")}
    told = seen(pod(status))
    assert told.guarded and told.last_word and told.disruption
    mute = seen(pod(status, ownerReferences=owners, deletionTimestamp="2026-01-01T00:00:00Z"))
    due = datetime(2026, 1, 1, tzinfo=UTC)
    assert mute == Pod("p", "u", guarded=False, phase="Running", terminating=True, due=due)
    assert seen(pod(unscheduled("no node"), ownerReferences=owners)).waiting is None


STOP = {"requestedAt": "2026-01-01T00:00:00Z"}
HEAD = {"rlguard.dev/job": "run", "rlguard.dev/job-uid": "u", "ray.io/node-type": "head"}


def raycluster(*owners: Json, uid: str = "c") -> Json:
    return {"metadata": {"name": "run-x", "namespace": "ns", "uid": uid, "ownerReferences": list(owners)}}


@pytest.mark.parametrize(
    ("clusters", "owners", "heard"),
    [
        ([raycluster(owner("w"))], [owner("c")], True),
        ([raycluster(owner("w"))], [owner("w")], True),
        ([raycluster(owner("w"))], [owner("other")], False),
        ([raycluster(owner("w"))], [owner("c", controller=False)], False),
        ([raycluster(owner("w"))], [], False),
        ([raycluster(owner("other"))], [owner("c")], False),
        ([raycluster(owner("w", controller=False))], [owner("c")], False),
        ([raycluster()], [owner("c")], False),
        ([], [owner("c")], False),
    ],
    ids=[
        "the cluster's", "the workload's", "another's", "not controlled", "nobody's", "of a foreign cluster",
        "of a cluster that it does not control", "of nobody's cluster", "of a cluster that is gone",
    ],
)  # fmt: skip
@pytest.mark.parametrize("live", [False, True])
def test_a_pod_between_which_and_the_workload_stands_a_cluster(
    clusters: list[Json], owners: list[Json], heard: bool, live: bool
) -> None:
    """The labels of a pod and of a cluster are anybody's to give; only the chain of controllers counts."""
    job = created(**({"guard": {"fire": LATCH}, "stop": STOP} if live else {}))
    job["spec"]["template"] |= {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    world = Behind(job)
    made = pod({"phase": "Running"}, ownerReferences=owners, labels=HEAD)
    world.cached_pods, world.pods_there = ([], [made]) if live else ([made], [])
    world.cached_between, world.between_there = ([], clusters) if live else (clusters, [])
    snapshot = world.gather()
    assert snapshot is not None
    (seen,) = snapshot.pods
    assert seen.rank0 is heard and seen.guarded is heard


# -- what is read live -----------------------------------------------------------------------------------


class Guards:
    """Guards that are heard, until a test sets `unheard_since`."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.clock, self.unheard_since = clock, cast(float | None, None)

    def reading(self, _uid: str) -> None:
        return None

    def silent_for(self, _uid: str, _pod: str) -> float:
        return 0.0 if self.unheard_since is None else self.clock() - self.unheard_since

    def most_are_unreached(self) -> bool:
        return False


class Behind:
    """The fault of these tests: caches that are behind. `cached` is what they hold, `there` what is.

    It stands in for the caches and for the requests; `asked` records the latter.
    """

    def __init__(self, cached: Json, there: Json | None = None) -> None:
        self.cached, self.job = cached, there
        self.cached_pods: list[Json] = [pod()]
        self.pods_there: list[Json] = [pod()]
        self.cached_between: list[Json] = []
        self.between_there: list[Json] = []
        self.hidden_there: list[Json] = []
        self.broken = False
        self.refused: tuple[str, ...] = ()
        self.cached_workload: Json | None = workload(owner("u"))
        self.workload_there: Json | None = workload(owner("u"))
        self.asked: list[str] = []
        self.now = 1000.0
        self.events: list[Json] = []
        self.guards, config = Guards(lambda: self.now), OperatorConfig("guard:1")
        clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)  # noqa: E731
        self.gatherer = Gatherer(cast(Client, self), config, cast(Caches, self), self.guards, clock)

    def gather(self) -> Snapshot | None:
        self.asked.clear()
        return self.gatherer.gather(parse_job(self.cached))

    # Caches
    def workload(self, _resource: Resource, _namespace: str, _name: str) -> Json | None:
        return self.cached_workload

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return self.cached_pods

    def between(self, resource: Resource, _namespace: str, uid: str) -> list[Json]:
        assert (resource.kind, uid) == ("RayCluster", "u")
        return self.cached_between

    # Client
    def get(self, resource: Resource, _namespace: str, _name: str, **_how: object) -> Json | None:
        self._ask(f"get {resource.kind}")
        return self.job if resource.kind == "GuardedTrainingJob" else self.workload_there

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        if query == {"labelSelector": "training.kubeflow.org/job-name=run"}:
            self._ask("list hidden")
            return {"items": self.hidden_there}
        self._ask(f"list {resource.kind}")
        if resource is EVENTS:
            assert query == {"fieldSelector": "involvedObject.uid=u", "limit": "500"}
            return {"items": self.events}
        assert query == {"labelSelector": "rlguard.dev/job-uid=u"}
        return {"items": self.pods_there if resource.kind == "Pod" else self.between_there}

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.broken:
            raise TransportError("injected")
        if what in self.refused:
            raise ApiError(403, "Forbidden", what)


EVERYTHING = ["get GuardedTrainingJob", "get PyTorchJob", "list Pod"]


def heard(step: int, **guard: Any) -> Json:
    return created(guard={"level": "healthy", "step": step, **guard})


def newer(raw: Json) -> Json:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": "2"}}


AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def relabelled(*owners: Json, **more: Any) -> Json:
    """A pod of rank 0 without its guard, from a template that lost the operator's label."""
    raw = pod(ownerReferences=list(owners or (owner("w"),)), **more)
    del raw["spec"]["initContainers"]
    return raw


def test_nothing_is_called_stopped_while_a_pod_without_the_label_is_there() -> None:
    world = Behind(created(guard={"fire": LATCH}, stop=STOP), created(guard={"fire": LATCH}, stop=STOP))
    world.cached_pods, world.pods_there, world.hidden_there = [], [], [relabelled()]
    snapshot = world.gather()
    assert snapshot is not None and [one.name for one in snapshot.pods] == ["p"]
    world.refused = ("list hidden",)
    snapshot = world.gather()
    assert snapshot is not None and snapshot.pods_unread == "403 Forbidden: list hidden"


def silent(cached: Json, there: Json) -> Behind:
    """A run of which the guard has not been heard for 301 s."""
    world = Behind(cached, there)
    world.guards.unheard_since = world.now - 301
    return world


def test_a_guard_that_is_silent_is_found_silent_live() -> None:
    world = silent(heard(1), newer(heard(1)))
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.silent_for == 301
    assert snapshot.job.resource_version == "2", "what is written is fenced by what was read"
    assert world.asked == EVERYTHING and not snapshot.most_silent


def test_a_guard_whose_pod_has_ended_behind_the_cache_is_not_silent() -> None:
    world = silent(heard(1), heard(1))
    world.pods_there = [pod({"phase": "Succeeded"})]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.silent_for is None


def test_a_guard_that_the_kubelet_calls_ready_is_not_silent() -> None:
    world = silent(heard(1), heard(1))
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "rlguard-guard", "ready": True, "started": True, "state": running}
    world.cached_pods = [pod({"phase": "Running", "podIP": "10.0.0.1", "initContainerStatuses": [status]})]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.silent_for == 0


def test_a_halt_is_read_live() -> None:
    world = Behind(heard(1, halt=LATCH), newer(heard(1, halt=LATCH)))
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.job.resource_version == "2"
    assert world.asked == EVERYTHING


AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def test_how_a_run_ended_is_read_live() -> None:
    """Two watches: that of the pods, which tells of the eviction, may be behind that of the workloads."""
    world = Behind(heard(1), newer(heard(2)))
    world.cached_workload = world.workload_there = workload(owner("u")) | FAILED
    world.pods_there = [pod(target("EvictionByEvictionAPI") | {"phase": "Failed"})]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and world.asked == EVERYTHING
    decision = decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC))
    assert decision.report.phase is Phase.DISRUPTED
    world.cached = created(conditions=[{"type": "Disrupted", "status": "True", "reason": "Evicted", **AT}])
    ended = world.gather()
    assert ended is not None and not ended.live and world.asked == [], "it is written, and costs nothing more"


@pytest.mark.parametrize("there", [None, {"metadata": {"uid": "another"}}], ids=["gone", "a namesake"])
def test_a_job_that_is_gone_is_not_halted(there: Json | None) -> None:
    assert Behind(heard(1, halt=LATCH), there).gather() is None


def rayjob(**status: Any) -> Behind:
    raw = created(guard={"fire": LATCH}, **status)
    raw["spec"]["template"] |= {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    world = Behind(raw)
    world.refused = ("get RayJob", "list RayCluster")
    world.cached_between = [raycluster(owner("w"))]
    return world


def test_the_first_stop_is_asked_for_although_nothing_can_be_read() -> None:
    world = rayjob()
    world.refused += ("list Pod",)
    world.cached_pods, world.cached_workload = [], None
    snapshot = world.gather()
    assert snapshot is not None and not snapshot.pods
    assert snapshot.workload is not None and (snapshot.workload.uid, snapshot.workload.ours) == ("w", True)
    assert snapshot.workload.state is WorkloadState.PENDING, "nothing is called stopped"


def test_the_first_delete_waits_for_no_request_and_then_everything_is_read_live() -> None:
    world = Behind(created(guard={"fire": LATCH}))
    world.cached_pods = []
    first = world.gather()
    assert first is not None and world.asked == []
    assert Doomed(resource_of("PyTorchJob"), "run", "w") in deleted(decide(first, NOW))
    world.cached = created(guard={"fire": LATCH}, stop=STOP)
    snapshot = world.gather()
    assert snapshot is not None and [one.phase for one in snapshot.pods] == ["Running"]
    assert world.asked == ["get PyTorchJob", "list Pod"]


def test_nothing_is_called_stopped_that_no_cache_has() -> None:
    """A fire before the workload is noted: it may be there all the same."""
    world = Behind(raw_job(guard={"fire": LATCH}))
    world.cached_pods, world.cached_workload = [], None
    snapshot = world.gather()
    assert snapshot is not None and snapshot.workload is not None and snapshot.workload.uid == "w"


def test_a_job_that_is_being_deleted_creates_nothing() -> None:
    raw = raw_job()
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = Behind(raw)
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]
    world.get = lambda *_args, **_how: None  # type: ignore[method-assign,assignment]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.job.deleting and snapshot.preparation is None


def guarded_job(*volumes: Json) -> Json:
    """A job that is refused for nothing that it says itself."""
    raw = raw_job()
    pod_spec = {
        "containers": [{"name": "pytorch", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
        "volumes": [{"name": "c", "emptyDir": {}}, *volumes],
    }
    raw["spec"]["template"]["spec"] = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod_spec}}}}
    raw["spec"]["guard"]["heldout"]["volume"] = {"claimName": "heldout"}
    return raw


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", None])
def test_a_workload_that_a_webhook_would_give_to_another_cluster_is_refused(manager: str | None) -> None:
    """MultiKueue's does it for the queue that a job names: pods elsewhere are not stopped."""
    world = Behind(guarded_job())
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]
    world.get = lambda kind, *_args, **_how: {} if kind is CLAIMS else None  # type: ignore[method-assign,assignment]
    made = {"spec": {"runPolicy": {"managedBy": manager}}}
    world.create = world.apply = lambda *_args, **_more: made  # type: ignore[attr-defined]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.preparation is not None
    refused = "a webhook changes it: runPolicy.managedBy: must be" in snapshot.preparation.message
    assert refused is (manager is not None)


@pytest.mark.parametrize("source", ["heldout", "models"])
def test_a_claim_that_copies_the_held_out_one_is_refused(source: str) -> None:
    claims = {"copied": {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": source}}}}
    world = Behind(guarded_job({"name": "d", "persistentVolumeClaim": {"claimName": "copied"}}))
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]

    def get(kind: Any, _namespace: str, name: str, **_how: object) -> Any:
        return claims.get(name, {}) if kind is CLAIMS else None

    world.get = get  # type: ignore[method-assign,assignment]
    world.create = world.apply = lambda *_args, **_more: {}  # type: ignore[attr-defined]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.preparation is not None
    refused = "volumes[1].persistentVolumeClaim: PersistentVolumeClaim copied is a copy" in (
        snapshot.preparation.message
    )
    assert refused == (source == "heldout")
