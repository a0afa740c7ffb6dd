"""Gathering without a server: disruptions, waiting, last words, whose a workload or a pod is, what a cache
keeps, and which caches are not believed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guard_operator.adapters import ADAPTERS, WorkloadState, find_adapter
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.api.types import Phase, StopMethod
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.decide import decide
from guard_operator.reconcile.decision import Decision, RecordLatches, StopWorkload
from guard_operator.reconcile.digest import injected_digest
from guard_operator.reconcile.gather import (
    DEAF_SECONDS,
    Caches,
    Gatherer,
    _Owner,
    _pod,
    _workload,
)
from guard_operator.reconcile.halts import halt_due
from guard_operator.reconcile.heartbeats import HeartbeatClock
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.slim import slim_job, slim_pod, slim_workload
from guard_operator.reconcile.snapshot import (
    Between,
    Disruption,
    Pod,
    Preparation,
    Snapshot,
    guard_of,
    own_end,
)
from guard_operator.reconcile.targets import read_unlabelled
from guard_operator.runtime.client import CLAIMS, EVENTS, Client, Resource
from guard_operator.runtime.errors import ApiError, TransportError

ADAPTER = ADAPTERS[0]
Json = dict[str, Any]
ROLES = ("Master", "Worker")
WITH_GUARD, OTHER_GUARD = ({"initContainers": [{"name": "rlguard-guard", "image": one}]} for one in "ab")
REPLICA = "training.kubeflow.org/replica-"


def owner(uid: str, controller: bool = True, kind: str = "x/v1 X", name: str = "run") -> Json:
    version, kind = kind.split()
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller}


def seen(raw: Json, workload_uid: str | None = "w") -> Pod:
    return _pod(ADAPTER, raw, _Owner(workload_uid))


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
    assert seen(slim_pod(pod(status))).disruption is expected


def test_a_slim_pod_says_the_same_as_the_pod() -> None:
    for raw in (pod(), pod(target("DeletionByPodGC")), pod(deletionTimestamp="2026-01-01T00:00:00Z")):
        assert seen(slim_pod(raw)) == seen(raw)
    assert "managedFields" not in slim_pod(pod())["metadata"]


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
    found = seen(slim_pod(pod(status))).waiting
    assert (None if found is None else (found.reason, found.message)) == expected


def ended(message: str, key: str = "state", name: str = "rlguard-guard") -> Json:
    state = {"terminated": {"exitCode": 0, "message": message}}
    return {"initContainerStatuses": [{"name": "other", "state": {}}, {"name": name, key: state}]}


LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("key", ["state", "lastState"])
def test_the_last_word_of_a_guard_is_read(key: str) -> None:
    raw = pod(ended(json.dumps({"fire": LATCH}), key))
    found = seen(slim_pod(raw))
    assert found.fire is not None and found.fire.step == 4 and found.halt is None
    assert found == seen(raw)


@pytest.mark.parametrize(
    ("ready", "cut_off"),
    [
        ({"status": "False", "reason": "NodeNotReady"}, True),
        ({"status": "Unknown", "reason": "NodeNotReady"}, True),
        ({"status": "True", "reason": "NodeNotReady"}, False),
        ({"status": "False", "reason": "ContainersNotReady"}, False),
        ({"status": "True"}, False),
    ],
)
def test_a_pod_is_cut_off_when_the_control_plane_has_lost_its_node(ready: Json, cut_off: bool) -> None:
    status = {"conditions": [{"type": "ContainersReady", **ready}, {"type": "Ready", **ready}]}
    assert seen(pod(status)).cut_off is seen(slim_pod(pod(status))).cut_off is cut_off
    assert not seen(pod({"conditions": [{"type": "ContainersReady", **ready}]})).cut_off


@pytest.mark.parametrize(
    "status",
    [
        ended(""),
        ended("Traceback (most recent call last)"),
        ended('{"fire": {"code": "x"}}'),
        ended("[]"),
        ended(json.dumps({"fire": LATCH}), name="init"),
    ],
    ids=["none", "no JSON", "half a latch", "no object", "of another container"],
)
def test_what_is_no_last_word_says_nothing(status: Json) -> None:
    found = seen(pod(status))
    assert found.fire is None and found.halt is None


def test_a_worker_is_rank_0_only_where_there_is_no_master() -> None:
    worker = pod(labels={REPLICA + "index": "0", REPLICA + "type": "worker"})
    both, alone = ({"pytorchReplicaSpecs": {role: {} for role in roles}} for roles in (ROLES, ROLES[1:]))
    for spec, rank0 in ((both, False), (alone, True), ({}, False)):
        assert _pod(ADAPTER, worker, _Owner("w", spec)).rank0 is rank0


@pytest.mark.parametrize(
    ("spec", "annotated", "guarded", "changed"),
    [
        (WITH_GUARD, WITH_GUARD, True, False),
        (OTHER_GUARD, WITH_GUARD, True, True),
        (WITH_GUARD, None, True, False),
        ({}, WITH_GUARD, False, False),
        ({"initContainers": [{"name": "other"}]}, None, False, False),
    ],
    ids=["as injected", "changed", "of an older operator", "taken away", "never there"],
)
def test_rank_0_is_guarded_by_the_guard_that_was_injected(
    spec: Json, annotated: Json | None, guarded: bool, changed: bool
) -> None:
    raw = pod(annotations={"rlguard.dev/guard-digest": injected_digest(annotated)} if annotated else {})
    raw["spec"] = spec
    for told in (seen(raw), seen(slim_pod(raw))):
        assert (told.rank0, told.guarded, told.changed) == (True, guarded, changed)


@pytest.mark.parametrize("annotated", [OTHER_GUARD, WITH_GUARD, None], ids=["rewritten", "as made", "none"])
@pytest.mark.parametrize("spec", [WITH_GUARD, OTHER_GUARD, {}], ids=["as made", "changed", "taken away"])
def test_once_a_digest_is_noted_it_alone_counts(spec: Json, annotated: Json | None) -> None:
    raw = pod(annotations={"rlguard.dev/guard-digest": injected_digest(annotated)} if annotated else {})
    raw["spec"] = spec
    workload = _Owner("w", digest=injected_digest(WITH_GUARD))
    for one in (raw, slim_pod(raw)):
        assert _pod(ADAPTER, one, workload).changed is (spec is OTHER_GUARD)
    packed = str(slim_pod(pod(annotations={"rlguard.dev/guard-digest": "v1:" + "x" * 100_000})))
    assert len(packed) < 1_000 and "v1:x" in packed, "an annotation has no bound"


@pytest.mark.parametrize(
    ("state", "since"),
    [
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, datetime(2026, 1, 1, tzinfo=UTC)),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, None),
        ({"terminated": {"exitCode": 1}}, None),
        ({}, None),
    ],
)
def test_since_when_a_guard_runs(state: Json, since: datetime | None) -> None:
    assert seen(slim_pod(pod(guard(state=state)))).guard_since == since
    other = container("other", key="initContainerStatuses", state=state)
    assert seen(slim_pod(pod(other))).guard_since is None


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
        found = seen(slim_pod(raw))
        assert found.failure == seen(raw).failure == failure
        assert found.failed_at == (datetime.fromisoformat(at) if failure else None)


def test_how_long_a_pod_has_to_end() -> None:
    assert seen(slim_pod(pod())).grace == 30
    raw = pod()
    raw["spec"] |= {"terminationGracePeriodSeconds": 86400, "nodeName": "n"}
    assert (seen(slim_pod(raw)).grace, seen(slim_pod(raw)).node) == (86400, "n")
    raw["metadata"]["deletionGracePeriodSeconds"] = 60
    assert seen(slim_pod(raw)).grace == 60


def test_only_index_0_with_a_guard_is_the_guarded_pod() -> None:
    assert seen(pod()).guarded
    other = pod(labels={REPLICA + "index": "1", REPLICA + "type": "master"})
    assert not seen(other).guarded
    assert not seen(pod() | {"spec": {}}).guarded


def test_a_slim_workload_has_the_same_state() -> None:
    raw = {
        "metadata": {"name": "w", "uid": "u", "managedFields": [1]},
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": {}}},
    }
    slim = slim_workload(ADAPTER, raw)
    assert ADAPTER.state(slim) == ADAPTER.state(raw)
    assert "pytorchReplicaSpecs" not in slim["spec"]


def raw_job(**status: Any) -> Json:
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
            "checkpoints": {"volume": "c"},
        },
        "onSilence": {"afterSeconds": 300, "action": "Warn"},
    }
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1", "managedFields": [1]}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_slim_job_is_the_same_job_without_the_detector_state() -> None:
    raw = raw_job(guard={"step": 3, "detectorState": "x" * 10_000}, phase="Running")
    slim, full = parse_job(slim_job(raw)), parse_job(raw)
    assert slim.spec == full.spec
    assert slim.status.guard is not None and slim.status.guard.step == 3
    assert slim.status.guard.detector_state is None
    assert raw["status"]["guard"]["detectorState"], "the original is left as it is"


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
    assert _workload(ADAPTER, parse_job(job), raw).ours is ours


@pytest.mark.parametrize(
    "owners", [[], [owner("other")], [owner("w", controller=False)]], ids=["none", "other", "no controller"]
)
def test_a_pod_that_the_workload_does_not_control_says_nothing_but_must_go(owners: list[Json]) -> None:
    """Anyone may give a pod our labels, and any last words."""
    status = {**ended(json.dumps({"fire": LATCH, "halt": LATCH})), **target("EvictionByEvictionAPI")}
    told = seen(pod(status))
    assert told.guarded and told.fire and told.halt and told.disruption
    mute = seen(pod(status, ownerReferences=owners, deletionTimestamp="2026-01-01T00:00:00Z"))
    due = datetime(2026, 1, 1, tzinfo=UTC)
    assert mute == Pod("p", "u", guarded=False, phase="Running", terminating=True, due=due)
    assert seen(pod(unscheduled("no node"), ownerReferences=owners)).waiting is None


STOP = {"requestedAt": "2026-01-01T00:00:00Z", "method": "Stop"}
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


def test_of_what_stands_between_only_what_the_workload_controls_is_its_own() -> None:
    job = created(guard={"fire": LATCH}, stop=STOP)
    job["spec"]["template"] |= {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    world = Behind(job)
    own, going = raycluster(owner("w")), raycluster(owner("w"))
    going["metadata"] |= {"name": "other", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.between_there = [own, raycluster(owner("else")), going]
    snapshot = world.gather()
    assert snapshot is not None
    of = own["metadata"]
    assert snapshot.between == (
        Between(RAY_CLUSTERS, of["name"], of["uid"]),
        Between(RAY_CLUSTERS, "other", of["uid"], terminating=True),
    )


@pytest.mark.parametrize("kinds", [(), ("Job", "RayJob")])
def test_a_kind_that_is_switched_off_is_unknown(kinds: tuple[str, ...]) -> None:
    world = Behind(created())
    world.gatherer = Gatherer(
        cast(Client, world), OperatorConfig("guard:1", kinds=kinds), cast(Caches, world), HeartbeatClock()
    )
    snapshot = world.gather()
    assert snapshot is not None and snapshot.unknown_kind is bool(kinds)


def test_without_a_workload_no_pod_is_heard() -> None:
    for owners in ([], [owner("w")]):
        assert seen(pod(ended(json.dumps({"fire": LATCH})), ownerReferences=owners), None).fire is None


# -- what is read live -----------------------------------------------------------------------------------


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
        self.quiet = 0.0
        self.broken = False
        self.refused: tuple[str, ...] = ()
        self.cached_workload: Json | None = workload(owner("u"))
        self.workload_there: Json | None = workload(owner("u"))
        self.asked: list[str] = []
        self.now = 1000.0
        self.events: list[Json] = []
        beats, config = HeartbeatClock(lambda: self.now), OperatorConfig("guard:1")
        clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)  # noqa: E731
        self.gatherer = Gatherer(cast(Client, self), config, cast(Caches, self), beats, clock)

    def gather(self) -> Snapshot | None:
        self.asked.clear()
        return self.gatherer.gather(parse_job(self.cached))

    # Caches
    def quiet_for(self, _namespace: str) -> float:
        return self.quiet

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


def beat(second: int, **guard: Any) -> Json:
    return created(guard={"heartbeat": f"2026-01-01T00:00:{second:02}Z", **guard})


def newer(raw: Json) -> Json:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": "2"}}


def test_a_running_job_costs_no_request() -> None:
    world = Behind(beat(1))
    snapshot = world.gather()
    assert snapshot is not None and snapshot.heartbeat_age == 0 and not snapshot.live
    assert world.asked == []


def test_what_a_guard_left_is_taken_where_nothing_else_can_be_read() -> None:
    """It had latched, could not write it, and ended; and the kind of its run is unreadable since."""
    world = Behind(beat(1), beat(1))
    world.broken, world.cached_workload = True, None
    world.cached_pods = [pod(ended(json.dumps({"fire": LATCH})))]
    written: list[Decision] = []
    acts = SimpleNamespace(actuate=lambda _snapshot, decision: written.append(decision))
    controller = Controller(world.gatherer, cast(Any, acts), lambda: datetime(2026, 1, 1, tzinfo=UTC))
    controller.say_unlisted(world.cached, ["PyTorchJob"])
    ((latches,),) = (one.actions for one in written)
    assert isinstance(latches, RecordLatches) and latches.fire is not None and world.asked == []


@pytest.mark.parametrize("owners", [[owner("other")], []])
def test_the_words_of_a_pod_of_others_are_not_taken(owners: list[Json]) -> None:
    world = Behind(beat(1))
    world.cached_pods = [pod(ended(json.dumps({"fire": LATCH})), ownerReferences=owners)]
    seen = world.gatherer.last_words(parse_job(world.cached))
    assert [one.fire for one in seen.pods] == [None]


AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("status", "known"),
    [
        ({}, True),
        ({"guard": {"fire": LATCH}}, False),
        ({"guard": {"halt": LATCH}}, True),
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "R", **AT}]}, False),
    ],
    ids=["goes on", "fired", "halts", "has ended"],
)
def test_a_workload_whose_kind_is_no_longer_served_is_not_gone(status: Json, known: bool) -> None:
    """Its version was taken off the CRD: the workload and its pods are there, and nobody deleted them."""
    asked: list[Any] = []
    world = Behind(created(**status), created(**status))
    world.cached_workload = None
    world.get = lambda kind, *_args, **how: (  # type: ignore[method-assign,assignment]
        asked.append(how.get("was_there")) if kind.kind == "PyTorchJob" else created(**status)
    )
    world.gather()
    assert set(asked) == {known}
    world = Behind(raw_job(), raw_job())
    world.cached_workload, asked[:] = None, []
    world.get = lambda *_args, **how: asked.append(how.get("was_there"))  # type: ignore[method-assign]
    world.gather()
    assert True not in asked, "of a run that has not begun it is a kind that is not installed"


RUNS: Json = {"status": {"conditions": [{"type": "Running", "status": "True"}]}}


def relabelled(*owners: Json, **more: Any) -> Json:
    """A pod of rank 0 without its guard, from a template that lost the operator's label."""
    raw = pod(ownerReferences=list(owners or (owner("w"),)), **more)
    del raw["spec"]["initContainers"]
    return raw


def test_a_rank_0_that_lost_the_operators_label_is_one_without_its_guard() -> None:
    """Whoever may change the workload takes the label off its template, and deletes the pod."""
    world = Behind(beat(1), beat(1))
    world.cached_workload = world.workload_there = workload(owner("u")) | RUNS
    world.cached_pods, world.pods_there, world.hidden_there = [], [], [relabelled()]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.heartbeat_age == 0
    decision = decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC))
    guarded = next(c for c in decision.report.conditions if c.type == "Guarded")
    assert (guarded.status, guarded.reason) == ("False", "GuardMissing")
    world.now += 601
    silent = world.gather()
    assert silent is not None and silent.live and silent.heartbeat_age == 601
    said = decide(silent, datetime(2026, 1, 1, tzinfo=UTC)).report.conditions
    assert next(c.status for c in said if c.type == "GuardSilent") == "True"


@pytest.mark.parametrize("hidden", [relabelled(owner("other")), pod(labels={"rlguard.dev/job-uid": "v"})])
def test_what_is_of_others_is_not_taken_for_such_a_pod(hidden: Json) -> None:
    world = Behind(beat(1))
    world.cached_workload = workload(owner("u")) | RUNS
    world.cached_pods, world.hidden_there = [], [hidden]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.pods == ()


@pytest.mark.parametrize(
    ("kind", "found"), [("Job", ["own"]), ("JobSet", ["own", "below"]), ("PyTorchJob", ["own"])]
)
def test_a_pod_that_something_else_controls_or_nothing_is_none_of_a_workloads(
    kind: str, found: list[str]
) -> None:
    """Anybody may make one with any labels, as by the template of a Deployment.

    The chart lets the operator delete none of either, so it would wait for them for ever.
    """
    world, versions = Behind(created()), {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}
    adapter = find_adapter(versions.get(kind, "kubeflow.org/v1"), kind)
    assert adapter is not None
    of_it = {
        "jobset.sigs.k8s.io/replicatedjob-name": "only",
        "jobset.sigs.k8s.io/job-index": "0",
    }
    deployed = owner("rs", kind="apps/v1 ReplicaSet", name="run-only-0")
    custom, cron = (
        owner("other", kind=kind, name="run-only-0") for kind in ("example.org/v1 Job", "batch/v1 CronJob")
    )
    pods = [
        relabelled(owner("w"), name="own"),
        relabelled(owner("gone", kind="batch/v1 Job", name="run-only-0"), name="below", labels=of_it),
        relabelled(owner("j", kind="batch/v1 Job", name="run-only-0-copy"), name="copied", labels=of_it),
        relabelled(owner("j", kind="batch/v1 Job", name="run-only-0"), name="bare", labels={}),
        relabelled(deployed, name="web", labels=of_it),
        relabelled(custom, name="custom", labels=of_it),
        relabelled(cron, name="cron", labels=of_it),
        relabelled(owner("w", controller=False), name="forged"),
    ]
    world.list = lambda *_query: {"items": pods}  # type: ignore[method-assign]
    seen = read_unlabelled(cast(Client, world), adapter, parse_job(created()), None, "w")
    assert [one["metadata"]["name"] for one in seen.pods] == found and not seen.unread


def test_nothing_is_called_stopped_while_a_pod_without_the_label_is_there() -> None:
    world = Behind(created(guard={"fire": LATCH}, stop=STOP), created(guard={"fire": LATCH}, stop=STOP))
    world.cached_pods, world.pods_there, world.hidden_there = [], [], [relabelled()]
    snapshot = world.gather()
    assert snapshot is not None and [one.name for one in snapshot.pods] == ["p"]
    world.refused = ("list hidden",)
    snapshot = world.gather()
    assert snapshot is not None and snapshot.pods_unread == "403 Forbidden: list hidden"


MOUNT = {"metadata": {}, "type": "Warning", "reason": "FailedMount", "message": 'secret "heldout" not found'}


def starting(minute: int) -> Json:
    """A pod that was made at this time of the day before, and has not started."""
    return pod({"phase": "Pending"}, creationTimestamp=f"2025-12-31T23:{minute}:00Z")


def test_a_pod_that_does_not_start_is_asked_for_in_the_events() -> None:
    world = Behind(created())
    world.cached_pods, world.events = [starting(59)], [MOUNT]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.late and snapshot.obstacle is not None
    assert snapshot.obstacle.reason == "VolumeUnavailable" and "heldout" in snapshot.obstacle.message
    assert world.asked == ["list Event"]


def test_events_that_cannot_be_read_hold_up_nothing() -> None:
    world = Behind(created())
    world.cached_pods, world.broken = [starting(59)], True
    snapshot = world.gather()
    assert snapshot is not None and snapshot.late and snapshot.obstacle is None


def test_a_pod_that_was_only_just_made_costs_no_request() -> None:
    world = Behind(created())
    world.cached_pods = [pod({"phase": "Pending"}, creationTimestamp="2026-01-01T00:00:00Z")]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.late and world.asked == []


def test_a_run_that_must_stop_waits_for_nothing() -> None:
    world = Behind(beat(1, fire=LATCH))
    world.cached_pods = [starting(59)]
    snapshot = world.gather()
    assert snapshot is not None and not snapshot.late and world.asked == []


def test_a_guard_that_is_silent_in_the_cache_alone_is_not_silent() -> None:
    world = Behind(beat(1), newer(beat(59)))
    world.gather()
    world.now += 301
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.heartbeat_age == 0
    assert snapshot.job.resource_version == "2", "what is written is fenced by what was read"
    assert world.asked == EVERYTHING


def test_a_guard_that_is_silent_is_found_silent_live() -> None:
    world = Behind(beat(1), newer(beat(1)))
    world.gather()
    world.now += 301
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.heartbeat_age == 301
    assert world.asked == EVERYTHING and not snapshot.most_silent


def test_a_guard_whose_pod_has_ended_behind_the_cache_is_not_silent() -> None:
    world = Behind(beat(1), beat(1))
    world.pods_there = [pod({"phase": "Succeeded"})]
    world.gather()
    world.now += 301
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.heartbeat_age is None


def test_nobody_is_silent_while_the_api_server_does_not_answer() -> None:
    world = Behind(beat(1), beat(1))
    world.gather()
    world.now += 301
    world.broken = True
    with pytest.raises(TransportError):
        world.gather()


def test_a_rank_0_without_its_guard_is_silent_from_its_start_whatever_is_reported() -> None:
    raw = pod()
    raw["spec"] = {}
    world = Behind(beat(1), newer(beat(59)))
    world.cached_pods = world.pods_there = [raw]
    world.gather()
    world.now += 301
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.heartbeat_age == 301


def over(*true: str) -> Json:
    """A job that is over, as it is cached: without its spec."""
    conditions = [{"type": kind, "status": "True"} for kind in true]
    return {"metadata": created()["metadata"], "status": {"conditions": conditions, "evidence": "e"}}


def test_of_a_run_that_ended_by_itself_nothing_is_read_any_more() -> None:
    world = Behind(over("Succeeded"), created())
    world.between = lambda *_args: []  # type: ignore[method-assign]
    assert world.gatherer.read_again(world.cached) is None and world.asked == []
    world.between = lambda *_args: [{"metadata": {}}]  # type: ignore[method-assign]
    assert world.gatherer.read_again(world.cached) == created(), "its guard's own pod is still to go"


@pytest.mark.parametrize("latch", ["Fired", "Halted"])
def test_a_run_that_was_stopped_is_read_when_something_happens_to_it(latch: str) -> None:
    world = Behind(over(latch, "Stopped"), created())
    assert world.gatherer.read_again(world.cached) == created()
    assert world.asked == ["get GuardedTrainingJob"]
    world.job = {**created(), "metadata": {**created()["metadata"], "uid": "another"}}
    assert world.gatherer.read_again(world.cached) is None, "a namesake"
    world.job = None
    assert world.gatherer.read_again(world.cached) is None


def test_a_halt_is_read_live() -> None:
    world = Behind(beat(1, halt=LATCH), newer(beat(1, halt=LATCH)))
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and snapshot.job.resource_version == "2"
    assert world.asked == EVERYTHING


AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def test_how_a_run_ended_is_read_live() -> None:
    """Two watches: that of the pods, which tells of the eviction, may be behind that of the workloads."""
    world = Behind(beat(1), newer(beat(2)))
    world.cached_workload = world.workload_there = workload(owner("u")) | FAILED
    world.pods_there = [pod(target("EvictionByEvictionAPI") | {"phase": "Failed"})]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and world.asked == EVERYTHING
    decision = decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC))
    assert decision.report.phase is Phase.DISRUPTED
    world.cached = created(conditions=[{"type": "Disrupted", "status": "True", "reason": "Evicted", **AT}])
    ended = world.gather()
    assert ended is not None and not ended.live and world.asked == [], "it is written, and costs nothing more"


def test_a_workload_that_has_failed_in_the_cache_alone_has_not() -> None:
    """As one that was suspended and is made anew."""
    world = Behind(beat(1), newer(beat(2)))
    world.cached_workload = workload(owner("u")) | FAILED
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and own_end(snapshot) is None


@pytest.mark.parametrize("there", [None, {"metadata": {"uid": "another"}}], ids=["gone", "a namesake"])
def test_a_job_that_is_gone_is_not_halted(there: Json | None) -> None:
    assert Behind(beat(1, halt=LATCH), there).gather() is None


def test_the_first_stop_of_a_fire_waits_for_no_request() -> None:
    world = Behind(beat(1, fire=LATCH))
    snapshot = world.gather()
    assert snapshot is not None and snapshot.pods and world.asked == []


def test_a_first_stop_is_asked_for_after_one_read_that_failed_and_nothing_is_called_stopped_for_it() -> None:
    """Each further one may hang, too. What ended in a cache that is behind may be there all the same."""
    world = Behind(created(guard={"fire": LATCH}))
    ended = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
    world.cached_workload, world.cached_pods = workload(owner("u")) | ended, []
    world.refused = ("get PyTorchJob",)
    snapshot = world.gather()
    assert snapshot is not None and world.asked == ["get PyTorchJob"] and snapshot.pods_unread
    decision = decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC))
    assert StopWorkload(StopMethod.STOP, "w") in decision.actions and decision.report.phase == "Stopping"


def rayjob(**status: Any) -> Behind:
    raw = created(guard={"fire": LATCH}, **status)
    raw["spec"]["template"] |= {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    world = Behind(raw)
    world.refused = ("get RayJob", "list RayCluster")
    world.cached_between = [raycluster(owner("w"))]
    return world


def test_a_stop_goes_on_with_what_was_seen_last_where_only_pods_can_be_read() -> None:
    """As where a conversion webhook of KubeRay is gone, or its permissions are."""
    world = rayjob(stop=STOP)
    world.pods_there = []
    assert world.cached_workload is not None
    world.cached_workload["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    snapshot = world.gather()
    assert snapshot is not None and snapshot.workload is not None and snapshot.workload.uid == "w"
    assert snapshot.workload.unread and snapshot.workload.terminating
    assert [one.uid for one in snapshot.between] == ["c"] and not snapshot.pods


def test_of_a_stop_that_goes_on_the_pods_are_as_they_were_seen_last() -> None:
    world = Behind(created(guard={"fire": LATCH}, stop=STOP))
    world.cached_pods, world.pods_there, world.refused = [pod({"phase": "Failed"})], [], ("list Pod",)
    snapshot = world.gather()
    assert snapshot is not None and [one.phase for one in snapshot.pods] == ["Failed"]
    assert snapshot.pods_unread == "403 Forbidden: list Pod"
    world.refused = ()
    snapshot = world.gather()
    assert snapshot is not None and not snapshot.pods and not snapshot.pods_unread


@pytest.mark.parametrize("method", ["Stop", "Suspend", "Delete", "DeletePods"])
def test_a_stop_goes_on_although_its_workload_was_never_seen(method: str) -> None:
    """As after a restart beside a conversion webhook that is down: nothing is cached, and all is refused."""
    world = rayjob(stop={"requestedAt": "2026-01-01T00:00:00Z", "method": method})
    world.cached_workload = None
    snapshot = world.gather()
    assert snapshot is not None and snapshot.workload is not None and snapshot.pods
    assert snapshot.workload.unread and snapshot.workload.ours and not snapshot.pods_unread
    assert snapshot.workload.state is WorkloadState.PENDING, "nothing is called stopped"


def test_the_halt_of_a_guard_goes_on_although_what_makes_its_pods_cannot_be_read() -> None:
    """Its first look is live, and nothing says yet that the run must stop."""
    world = rayjob()
    world.cached["status"]["guard"] = {"halt": LATCH}
    world.job = world.cached
    snapshot = world.gather()
    assert snapshot is not None and snapshot.live and [one.uid for one in snapshot.between] == ["c"]
    assert "list Pod" in world.asked, "nothing of it is from a cache that could be read"
    world.cached["status"]["guard"] = {"heartbeat": "2026-01-01T00:00:00Z"}
    world.quiet, world.refused = DEAF_SECONDS + 1, ("list RayCluster",)
    with pytest.raises(ApiError, match="403"):
        world.gather()


def test_a_run_that_was_seen_empty_is_doubted_once_a_pod_is_seen() -> None:
    world = rayjob(stop={**STOP, "emptySince": "2026-01-01T00:00:00Z"})
    world.refused = ("get RayJob",)
    snapshot = world.gather()
    assert (
        snapshot is not None and snapshot.pods and snapshot.workload is not None and snapshot.workload.unread
    )


@pytest.mark.parametrize("refused", ["get RayJob", "list Pod"])
def test_a_run_that_was_seen_empty_is_not_doubted(refused: str) -> None:
    world = rayjob(stop={**STOP, "emptySince": "2026-01-01T00:00:00Z"})
    world.refused, world.cached_pods = (refused,), []
    with pytest.raises(ApiError, match="403"):
        world.gather()


def test_a_fire_that_was_seen_is_acted_on_although_the_job_cannot_be_read() -> None:
    world = Behind(beat(1, fire=LATCH))
    world.quiet, world.refused = DEAF_SECONDS + 1, ("get GuardedTrainingJob",)
    snapshot = world.gather()
    assert snapshot is not None and snapshot.deaf and not snapshot.live and snapshot.pods
    world.cached = beat(1)
    with pytest.raises(ApiError, match="403"):
        world.gather()


def test_the_first_stop_is_asked_for_although_nothing_can_be_read() -> None:
    world = rayjob()
    world.refused += ("list Pod",)
    world.cached_pods, world.cached_workload = [], None
    snapshot = world.gather()
    assert snapshot is not None and not snapshot.pods
    assert snapshot.workload is not None and (snapshot.workload.uid, snapshot.workload.ours) == ("w", True)
    assert snapshot.workload.state is WorkloadState.PENDING, "nothing is called stopped"


def test_of_a_run_that_goes_on_nothing_is_assumed() -> None:
    world = Behind(created())
    world.cached_workload, world.refused = None, ("get PyTorchJob",)
    with pytest.raises(ApiError, match="403"):
        world.gather()
    silent = Behind(beat(1), beat(1))
    silent.gather()
    silent.now, silent.refused = silent.now + 301, ("get PyTorchJob",)
    with pytest.raises(ApiError, match="403"):
        silent.gather()


def test_a_halt_of_a_guard_needs_no_more_than_its_job() -> None:
    halted = Behind(created(guard={"halt": LATCH}), created(guard={"halt": LATCH}))
    halted.refused, halted.cached_workload = ("get PyTorchJob", "list Pod"), None
    snapshot = halted.gather()
    assert snapshot is not None and snapshot.live and snapshot.workload is not None
    assert (due := halt_due(snapshot)) is not None and due[0] == "GuardHalt"
    assert {c.type: c.status for c in decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC)).report.conditions}[
        "Halted"
    ] == "True"


@pytest.mark.parametrize("requested", [True, False])
def test_whether_a_pod_is_left_is_read_live(requested: bool) -> None:
    stop = {"stop": {"requestedAt": "2026-01-01T00:00:00Z", "method": "Stop"}} if requested else {}
    guard = {"fire": LATCH, "heartbeat": "2026-01-01T00:00:00Z"}
    world = Behind(created(guard=guard, **stop))
    world.cached_pods = [pod({"phase": "Failed"})] if requested else []
    snapshot = world.gather()
    assert snapshot is not None and [one.phase for one in snapshot.pods] == ["Running"]
    assert world.asked == ["get PyTorchJob", "list Pod"]


def test_a_watch_that_shows_nothing_is_not_believed() -> None:
    world = Behind(beat(1), newer(beat(1, fire=LATCH)))
    world.gather()
    world.quiet = DEAF_SECONDS + 1
    world.now += 301
    snapshot = world.gather()
    assert snapshot is not None and snapshot.deaf and snapshot.live and snapshot.heartbeat_age is None
    assert guard_of(snapshot.job).fire is not None, "a fire is seen all the same"
    world.quiet = 0.0
    snapshot = world.gather()
    assert snapshot is not None and snapshot.heartbeat_age == 0, "it counts anew"


def test_a_job_that_is_being_deleted_creates_nothing() -> None:
    raw = raw_job()
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = Behind(raw)
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]
    world.get = lambda *_args, **_how: None  # type: ignore[method-assign,assignment]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.job.deleting and snapshot.preparation is None


def test_what_would_leak_is_refused_even_if_the_refusals_let_it_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: a refusal that misses something."""
    monkeypatch.setattr("guard_operator.reconcile.review.find_violations", lambda *_args: ())
    leak = {"name": "rlguard-heldout", "mountPath": "/h"}
    trainer = {"name": "pytorch", "volumeMounts": [{"name": "c", "mountPath": "/c"}, leak]}
    pod_spec = {"containers": [trainer], "volumes": [{"name": "c", "emptyDir": {}}]}
    raw = raw_job()
    raw["spec"]["template"]["spec"] = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod_spec}}}}
    world = Behind(raw)
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]
    world.get = lambda kind, *_args, **_how: {} if kind is CLAIMS else None  # type: ignore[method-assign,assignment]
    snapshot = world.gather()
    assert snapshot is not None and snapshot.preparation is not None
    assert snapshot.preparation.reason == "TemplateRefused"
    assert "container pytorch must not have the volume rlguard-heldout" in snapshot.preparation.message


def to_be_created() -> Behind:
    """A job whose workload can be created."""
    raw = raw_job()
    pod_spec = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": "pytorch", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
        "volumes": [{"name": "c", "emptyDir": {}}],
    }
    raw["spec"]["template"]["spec"] = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod_spec}}}}
    world = Behind(raw)
    world.workload = lambda *_args: None  # type: ignore[method-assign,assignment]
    world.get = lambda kind, *_args, **_how: {} if kind is CLAIMS else None  # type: ignore[method-assign,assignment]
    world.create = world.apply = lambda *_args, **_more: {}  # type: ignore[attr-defined]
    return world


@pytest.mark.parametrize(
    ("replicas", "field"),
    [
        ([1], "pytorchReplicaSpecs"),
        ("x", "pytorchReplicaSpecs"),
        ({"Master": None}, "pytorchReplicaSpecs.Master"),
        ({"Master": {"template": 7}}, "pytorchReplicaSpecs.Master.template"),
    ],
    ids=str,
)
def test_a_template_of_the_wrong_shape_is_refused_in_words(replicas: Any, field: str) -> None:
    world = to_be_created()
    world.cached["spec"]["template"]["spec"]["pytorchReplicaSpecs"] = replicas
    snapshot = world.gather()
    assert snapshot is not None
    decision = decide(snapshot, datetime(2026, 1, 1, tzinfo=UTC))
    said = {one.type: one for one in decision.report.conditions}["Guarded"]
    assert (said.status, said.reason) == ("False", "TemplateRefused")
    assert f"spec.template.spec.{field} " in said.message


def test_the_digest_of_a_guard_is_known_before_it_is_made_and_noted_then() -> None:
    snapshot = to_be_created().gather()
    assert snapshot is not None and snapshot.preparation == Preparation()
    config = OperatorConfig("guard:1")
    master = build_workload(snapshot.job, ADAPTER, config)["spec"]["pytorchReplicaSpecs"]["Master"]
    assert snapshot.guard_digest == injected_digest(master["template"]["spec"]) is not None
    decision = decide(snapshot, datetime.now(UTC))
    assert (decision.report.guard_digest, decision.actions) == (snapshot.guard_digest, ())


def test_a_guard_that_is_there_or_cannot_be_made_gets_no_other_digest() -> None:
    """A newer operator would make another one."""
    for world in (Behind(created()), Behind(raw_job()), refused := to_be_created()):
        if world is refused:
            world.get = lambda *_args, **_how: None  # type: ignore[method-assign]
        snapshot = world.gather()
        assert snapshot is not None and snapshot.guard_digest is None


@pytest.mark.parametrize("source", ["heldout", "models"])
def test_a_claim_that_copies_the_held_out_one_is_refused(source: str) -> None:
    raw = raw_job()
    pod_spec = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": "pytorch", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
        "volumes": [
            {"name": "c", "emptyDir": {}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "copied"}},
        ],
    }
    raw["spec"]["template"]["spec"] = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod_spec}}}}
    raw["spec"]["guard"]["heldout"]["volume"] = {"claimName": "heldout"}
    claims = {"copied": {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": source}}}}
    world = Behind(raw)
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


@pytest.mark.parametrize("fired", [True, False])
def test_of_an_unknown_kind_only_the_pods_are_known(fired: bool) -> None:
    raw = beat(1, **({"fire": LATCH} if fired else {}))
    raw["spec"]["template"]["kind"] = "MPIJob"
    world = Behind(raw)
    snapshot = world.gather()
    assert snapshot is not None and snapshot.unknown_kind and snapshot.workload is None
    assert [one.name for one in snapshot.pods] == (["p"] if fired else [])
    assert world.asked == (["list Pod"] if fired else [])
    world.refused, world.cached_pods = ("list Pod",), [pod(name="seen")]
    snapshot = world.gather()
    assert snapshot is not None and [one.name for one in snapshot.pods] == (["seen"] if fired else [])
    assert bool(snapshot.pods_unread) is fired
