"""What is made of pods and workloads, whose they are, and what is read live before it is believed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.api.status import Phase
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.slim import slim_pod
from rlguard.operator.reconcile.snapshot import Disruption, Doomed, Pod, Remembered, guard_of

from .given import (
    ADAPTER,
    NOW,
    REF,
    STOP,
    UID,
    Cluster,
    condition,
    deleted,
    manifest,
    owner,
    reference,
    template,
    thing,
)

Json = dict[str, Any]
REPLICA = "training.kubeflow.org/replica-"
OURS = {"rlguard.dev/job": "run", "rlguard.dev/job-uid": UID}
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}
LAST_WORD = {
    **{"sequence": 9, "level": "fired", "code": "hacking_gap", "reason": "gap", "fire": True, "halt": False},
    **{"stop": True, "latch_attempt": 0, "latch_step": 4, "steps": 5},
}


def raw_pod(status: Json | None = None, *owners: str | Json, index: str = "0", **metadata: Any) -> Json:
    """A pod of the run, of rank 0 with its guard, unless something else is said."""
    labels = {
        **OURS,
        REPLICA + "index": index,
        REPLICA + "type": "master",
        "training.kubeflow.org/job-name": "run",
    }
    spec = {"initContainers": [{"name": "rlguard-guard"}], "containers": [{"name": "pytorch"}]}
    raw = thing("Pod", "p", "u", *(owners or ("w",)), labels=labels, spec=spec)
    raw["metadata"] |= {"managedFields": [1], **metadata}
    return raw | {"status": {"phase": "Running", "hostIP": "x", **(status or {})}}


def raw_workload(*owners: str | Json, uid: str = "w", **more: Any) -> Json:
    return thing("PyTorchJob", "run", uid, *owners, labels=OURS, **more)


def seen(raw: Json) -> Pod:
    """What the operator makes of a pod, by what it caches of it."""
    cached = slim_pod(raw) | {"kind": "Pod"}
    return Cluster(raw_workload(UID), cached).gather(manifest(status=REF)).pods[0]


# -- what a pod says -------------------------------------------------------------------------------------


def target(reason: str) -> Json:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


DISRUPTIONS: dict[str, tuple[Json, Disruption | None]] = {
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
}  # fmt: skip


@pytest.mark.parametrize(("status", "expected"), DISRUPTIONS.values(), ids=DISRUPTIONS.keys())
def test_disruptions(status: Json, expected: Disruption | None) -> None:
    assert seen(raw_pod(status)).disruption is expected


def container(name: str = "pytorch", *, key: str = "containerStatuses", **status: Any) -> Json:
    return {key: [{"name": name, **status}]}


def guard(**status: Any) -> Json:
    return container("rlguard-guard", key="initContainerStatuses", **status)


def waits(reason: str, words: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": words}}


UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
CRASH = {"terminated": {"exitCode": 2, "message": "INFO start\nrlguard guard: no split\n"}}
AT_ONCE, LEFT = (
    {"terminated": {"exitCode": 0}},
    {"exitCode": 2, "message": '{"steps": 0, "error": "no split"}'},
)
NO_SECRET = waits("CreateContainerConfigError", 'secret "x" not found')
WAITING: dict[str, tuple[Json, str]] = {
    "no node": (UNSCHEDULED, "Unschedulable: 0/3 nodes"),
    "no image": (
        container(state=waits("ImagePullBackOff", "not found")),
        "ContainerWaiting: container pytorch: ImagePullBackOff: not found",
    ),
    "no Secret for the guard": (
        guard(state=NO_SECRET),
        'ContainerWaiting: container rlguard-guard: CreateContainerConfigError: secret "x" not found',
    ),
    "the guard has crashed": (
        guard(state=CRASH, restartCount=0),
        "GuardCrashed: the guard ended with exit code 2 (0 restarts): INFO start\nrlguard guard: no split",
    ),
    "the guard has left its verdict and why it ended": (
        guard(state={"terminated": LEFT}),
        "GuardCrashed: the guard ended with exit code 2 (0 restarts): no split",
    ),
    "the guard waits for its restart": (
        guard(state=waits("CrashLoopBackOff"), lastState={"terminated": {"exitCode": 137}}, restartCount=3),
        "GuardCrashed: the guard ended with exit code 137 (3 restarts)",
    ),
    "the guard was ended because it did not get ready": (
        guard(state={"running": {}}, started=False, lastState=AT_ONCE, restartCount=1),
        "GuardCrashed: the guard ended with exit code 0 (1 restarts)",
    ),
    "the guard is up again": (guard(state={"running": {}}, started=True, lastState=CRASH), ""),
    "the guard has done its work": (guard(state=AT_ONCE), ""),
    "on the way": (container(state=waits("PodInitializing")), ""),
    "over": ({"phase": "Failed", **guard(state=CRASH)}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("status", "expected"), WAITING.values(), ids=WAITING.keys())
def test_what_a_pod_waits_for(status: Json, expected: str) -> None:
    found = seen(raw_pod(status)).waiting
    assert ("" if found is None else f"{found.reason}: {found.message}") == expected


def ended(message: str, key: str = "state", name: str = "rlguard-guard") -> Json:
    state = {"terminated": {"exitCode": 0, "message": message}}
    return {"initContainerStatuses": [{"name": "other", "state": {}}, {"name": name, key: state}]}


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (ended(json.dumps(LAST_WORD)), 4),
        (ended(json.dumps(LAST_WORD), "lastState"), 4),
        (ended("Traceback (most recent call last)"), None),
        (ended('{"sequence": 1, "level": "healthy"}'), None),
        (ended(json.dumps(LAST_WORD), name="init"), None),
    ],
    ids=["ended", "started again", "no JSON", "half a verdict", "of another container"],
)
def test_the_last_word_of_a_guard_is_read(status: Json, step: int | None) -> None:
    found = seen(raw_pod(status)).last_word
    assert (None if found is None else found.latch_step) == step


@pytest.mark.parametrize("unread", [(), ("PyTorchJob",)])
def test_a_fire_that_only_a_last_word_tells_is_in_the_snapshot(unread: tuple[str, ...]) -> None:
    left = raw_pod(ended(json.dumps(LAST_WORD)) | {"phase": "Failed"})
    world = Cluster(raw_workload(UID), left)
    said = guard_of(world.gather(heard(3), unread=unread).job)
    assert said.fire is not None and (said.fire.code, said.fire.step) == ("hacking_gap", 4)
    assert said.step == 3, "nothing else was changed"
    assert not unread or world.asked == []


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
    assert seen(raw_pod(status)).cut_off is cut_off
    assert not seen(raw_pod({"conditions": [{"type": "ContainersReady", **ready}]})).cut_off


@pytest.mark.parametrize("index", ["0", "1"], ids=["rank 0", "a worker, which is as likely to fail first"])
def test_how_a_trainer_failed(index: str) -> None:
    def found(**ended: Any) -> Pod:
        terminated = {"finishedAt": "2026-01-01T00:00:09Z", **ended}
        return seen(raw_pod(container(state={"terminated": terminated}), index=index))

    failed = found(exitCode=1, message="Traceback\n  x\nValueError: boom\n")
    assert failed.failure == "container pytorch ended with exit code 1: ValueError: boom"
    assert failed.failed_at == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert found(exitCode=137).failure == "container pytorch ended with exit code 137"
    assert found(exitCode=0, message="bye").failure == ""


# -- ours, or somebody else's ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "raw", "ours"),
    [
        ({}, raw_workload(UID), True),
        ({}, raw_workload("other"), False),
        ({}, raw_workload(owner(UID, controller=False)), False),
        (REF, raw_workload("other"), True),
        (REF, raw_workload(uid="namesake"), False),
    ],
    ids=["owned", "other's", "owned, not controlled", "noted, taken over", "namesake"],
)
def test_whose_a_workload_is(status: Json, raw: Json, ours: bool) -> None:
    workload = Cluster(raw).gather(manifest(status=status)).workload
    assert workload is not None and workload.ours is ours


@pytest.mark.parametrize("by", ["other", owner("w", controller=False)], ids=["other", "no controller"])
def test_a_pod_that_the_workload_does_not_control_says_nothing_but_must_go(by: str | Json) -> None:
    """Anyone may give a pod our labels, and any last words."""
    status = {**ended(json.dumps(LAST_WORD)), **target("EvictionByEvictionAPI")}
    told = seen(raw_pod(status))
    assert told.guarded and told.last_word and told.disruption
    mute = seen(raw_pod(status, by, deletionTimestamp=NOW.isoformat()))
    assert mute == Pod("p", "u", guarded=False, phase="Running", terminating=True, due=NOW)
    assert seen(raw_pod(UNSCHEDULED, by)).waiting is None


@pytest.mark.parametrize(
    ("cluster", "by", "heard"),
    [
        ("w", "c", True),
        ("w", "w", True),
        ("w", "other", False),
        ("w", owner("c", controller=False), False),
        ("other", "c", False),
        (owner("w", controller=False), "c", False),
        (None, "c", False),
    ],
    ids=[
        "the cluster's", "the workload's", "another's", "not controlled", "of a foreign cluster",
        "of a cluster that it does not control", "of a cluster that is gone",
    ],
)  # fmt: skip
@pytest.mark.parametrize("live", [False, True])
def test_a_pod_between_which_and_the_workload_stands_a_cluster(
    cluster: str | Json | None, by: str | Json, heard: bool, live: bool
) -> None:
    """The labels of a pod and of a cluster are anybody's to give; only the chain of controllers counts."""
    status = reference("RayJob") | ({"guard": {"fire": LATCH}, "stop": STOP} if live else {})
    head = raw_pod(None, by)
    head["metadata"]["labels"] |= {"ray.io/node-type": "head"}
    made = [] if cluster is None else [thing("RayCluster", "run-x", "c", cluster, labels=OURS)]
    work = thing("RayJob", "run", "w", UID, labels=OURS)
    world = Cluster(work, *made, head, cached=[] if live else None)
    (found,) = world.gather(manifest({}, "RayJob", status)).pods
    assert found.rank0 is heard and found.guarded is heard


# -- what is read live -----------------------------------------------------------------------------------

EVERYTHING = ["get GuardedTrainingJob", "get PyTorchJob", "list Pod"]


def heard(step: int, **guard: Any) -> Json:
    return manifest(status=REF | {"guard": {"level": "healthy", "step": step, **guard}}, spec={})


def newer(raw: Json) -> Json:
    return raw | {"metadata": raw["metadata"] | {"resourceVersion": "2"}}


def silent(pod: Json, cached: Json | None = None) -> Cluster:
    """A run of which the guard has not been heard for longer than it may."""
    world = Cluster(raw_workload(UID), pod, cached=[raw_workload(UID), cached or raw_pod()])
    world.silent_for = 601.0
    return world


def test_a_guard_that_is_silent_is_found_silent_live() -> None:
    world = silent(raw_pod())
    snapshot = world.gather(heard(1), newer(heard(1)))
    assert snapshot.live and snapshot.silent_for == 601 and not snapshot.most_silent
    assert snapshot.job.resource_version == "2", "what is written is fenced by what was read"
    assert world.asked == EVERYTHING
    over = silent(raw_pod({"phase": "Succeeded"})).gather(heard(1))
    assert over.live and over.silent_for is None, "its pod has ended behind the cache"


def test_a_guard_that_the_kubelet_calls_ready_is_not_silent() -> None:
    running = {"ready": True, "started": True, "state": {"running": {"startedAt": NOW.isoformat()}}}
    ready = raw_pod({"podIP": "10.0.0.1", **guard(**running)})
    assert silent(ready, ready).gather(heard(1)).silent_for == 0


def test_a_halt_is_read_live() -> None:
    world = Cluster(raw_workload(UID), raw_pod())
    snapshot = world.gather(heard(1, halt=LATCH), newer(heard(1, halt=LATCH)))
    assert snapshot.live and snapshot.job.resource_version == "2" and world.asked == EVERYTHING
    for there in (None, {"metadata": {"uid": "another"}}):
        assert world.look(heard(1, halt=LATCH), there) is None, "gone, or a namesake"


def test_how_a_run_ended_is_read_live() -> None:
    """Two watches: that of the pods, which tells of the eviction, may be behind that of the workloads."""
    failed = raw_workload(UID, status={"conditions": [{"type": "Failed", "status": "True"}]})
    evicted = raw_pod(target("EvictionByEvictionAPI") | {"phase": "Failed"})
    world = Cluster(failed, evicted, cached=[failed, raw_pod()])
    snapshot = world.gather(heard(1))
    assert snapshot.live and world.asked == EVERYTHING
    assert decide(snapshot, NOW).report.phase is Phase.DISRUPTED
    over = world.gather(manifest(status=REF | condition("Disrupted")))
    assert not over.live and world.asked == [], "it is written, and costs nothing more"


FIRED = REF | {"guard": {"fire": LATCH}}


def test_the_first_delete_waits_for_no_request_and_then_everything_is_read_live() -> None:
    world = Cluster(raw_workload(UID), raw_pod(), cached=[], refused=("PyTorchJob", "Pod"))
    first = world.gather(manifest(status=FIRED))
    assert world.asked == []
    assert first.workload is not None and first.workload.state is WorkloadState.PENDING
    assert deleted(decide(first, NOW)) == [Doomed(ADAPTER["PyTorchJob"].resource, "run", "w")]
    world.refused = ()
    later = world.gather(manifest(status=FIRED | {"stop": STOP}))
    assert [one.phase for one in later.pods] == ["Running"] and world.asked == EVERYTHING[1:]
    never_noted = world.gather(manifest(status={"guard": {"fire": LATCH}})).workload
    assert never_noted is not None and never_noted.uid == "w", "it may be there all the same"


def test_nothing_is_called_stopped_while_a_pod_without_the_operators_label_is_there() -> None:
    """Its template lost the label. Its own controller needs others."""
    hidden = raw_pod()
    del hidden["metadata"]["labels"]["rlguard.dev/job-uid"]
    world = Cluster(raw_workload(UID), hidden)
    stopping = manifest(status=FIRED | {"stop": STOP})
    assert [one.name for one in world.gather(stopping).pods] == ["p"]
    world.refused = ("hidden",)
    assert world.gather(stopping).unread == "403 Forbidden: list hidden"


@pytest.mark.parametrize("stops", [False, True])
def test_a_pod_that_was_seen_and_lost_every_label_and_owner_is_there_in_what_is_read_live(
    stops: bool,
) -> None:
    bare = thing("Pod", "p", "u", labels={})
    world = silent(bare)
    world.known = Remembered((("p", "u"), ("p", "former"), ("gone", "g")))
    given = manifest(status=FIRED | {"stop": STOP}) if stops else heard(1)
    snapshot = world.gather(given)
    assert snapshot.live and [one.uid for one in snapshot.pods] == ["u"]


# -- before there is a workload --------------------------------------------------------------------------


def test_a_job_that_is_being_deleted_creates_nothing() -> None:
    raw = manifest()
    raw["metadata"]["deletionTimestamp"] = NOW.isoformat()
    snapshot = Cluster().gather(raw)
    assert snapshot.job.deleting and decide(snapshot, NOW).actions == ()


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", None])
def test_a_workload_that_a_webhook_would_give_to_another_cluster_is_refused(manager: str | None) -> None:
    """MultiKueue's does it for the queue that a job names: pods elsewhere are not stopped."""
    world = Cluster()
    world.made = {"spec": {"runPolicy": {"managedBy": manager}}}
    preparation = world.gather(manifest()).preparation
    refused = "a webhook changes it: runPolicy.managedBy: must be" in preparation.message
    assert refused is (manager is not None)


@pytest.mark.parametrize("source", ["heldout", "models"])
def test_a_claim_that_copies_the_held_out_one_is_refused(source: str) -> None:
    world = Cluster()
    world.claims = {"copied": {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": source}}}}
    pod = template()
    pod["spec"]["volumes"].append({"name": "d", "persistentVolumeClaim": {"claimName": "copied"}})
    spec = {"pytorchReplicaSpecs": {"Master": {"template": pod}}}
    preparation = world.gather(manifest(spec)).preparation
    refused = (
        "volumes[1].persistentVolumeClaim: PersistentVolumeClaim copied is a copy" in preparation.message
    )
    assert refused == (source == "heldout")
