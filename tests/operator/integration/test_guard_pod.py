"""A guard in a pod of its own, with the operator process on a real API server.

- The API server refuses settings that mean nothing.
- A run is guarded, fires, is stopped and told; its trainer may finish before the last evaluation.
- The last word of its guard counts; its StatefulSet comes back, also as a newer operator makes it.
- A guard that never gets ready holds no GPUs; a StatefulSet of its name that is somebody else's is told.
- A claim that two nodes cannot share is refused.
The tests play training-operator, StatefulSet controller, garbage collector and kubelet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_operator.api.names import WAITING_CONTAINER
from guard_operator.reconcile.layout import GAVE_UP
from guard_operator.runtime.client import (
    CLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Client,
)
from guard_operator.runtime.errors import ApiError

from .controlplane import ControlPlane
from .waiting import eventually
from .world import PYTORCHJOBS, RUNNING, World, is_deleted, is_going, world

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
# -- with the operator -----------------------------------------------------------------------------------


class PodWorld(World):
    """A world in which the guard has a pod of its own."""

    def submit_with(
        self, make_job: Callable[..., Json], modes: tuple[str, ...] = ("ReadWriteMany",), **guard: Any
    ) -> None:
        """Submit such a job, with the claims that it names."""
        for name in ("heldout", "state"):
            self.claim(name)
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        self.put(CLAIMS, {"metadata": {"name": "checkpoints"}, "spec": spec})
        job = make_job(state={"claimName": "state"}, placement="Pod", **guard)
        pod = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        pod["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
        self.submit(job)

    def set_(self) -> Json | None:
        """The StatefulSet of the guard."""
        items = self.client.list(STATEFUL_SETS, self.namespace, {}).get("items") or []
        there = [raw for raw in items if not is_going(raw)]
        return there[0] if there else None

    def start_guard(self) -> Json:
        """What the StatefulSet controller and a kubelet do."""
        made = eventually(self.set_, "the StatefulSet is there")
        name, template = f"{made['metadata']['name']}-0", made["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {"name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
        meta = template["metadata"] | {"name": name, "ownerReferences": [owner]}
        pod = self.put(PODS, {"metadata": meta, "spec": {**template["spec"], "nodeName": "other"}})
        (status,) = RUNNING["initContainerStatuses"]
        self.pod_status(self.with_guard({"phase": "Running", "containerStatuses": [status]}), name)
        return pod

    def trainer_starts(self) -> None:
        self.start_pod(guarded=False)

    def delete_pods_of_trainer(self) -> None:
        """Its pods end, and are cleaned up."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.client.request("DELETE", PODS.path(self.namespace, "run-master-0"), body=options)

    def collect(self) -> None:
        """What the garbage collector does once the StatefulSet is gone."""
        for pod in self.pods():
            if pod["metadata"]["labels"].get("rlguard.dev/part") == "guard":
                path = PODS.path(self.namespace, pod["metadata"]["name"])
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
                self.client.request("DELETE", path, body=options)

    def goes(self) -> None:
        """Wait until the operator has ended the guard."""
        eventually(lambda: is_deleted(self.set_()), "the StatefulSet is deleted")
        self.collect()


@pytest.fixture
def apart(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[PodWorld]:
    with world(plane, client, namespace, tmp_path, PodWorld) as made:
        yield made


@pytest.fixture
def guarded(apart: PodWorld, make_job: Callable[..., Json]) -> PodWorld:
    """A run with its guard beside it, which reports."""
    apart.submit_with(make_job)
    apart.operator()
    apart.expect("Guarded", "True", "WorkloadCreated")
    apart.start_guard()
    apart.trainer_starts()
    apart.guard_says(step=1)
    apart.expect("Fired", "False", "NotFired")
    return apart


JUDGED = {"level": "healthy", "code": "ok", "reason": "fine", "announced": 3, "evaluated": 3, "waiting": 0}


@pytest.mark.always
def test_a_fire_stops_trainer_and_guard_and_is_told(guarded: PodWorld) -> None:
    namespace, name = guarded.namespace, guarded.set_()["metadata"]["name"]
    assert guarded.client.get(SERVICES, namespace, name) is not None
    secret = guarded.client.get(SECRETS, namespace, name)
    assert {"tls.crt", "tls.key", "ingest-token", "read-token", "supervisor-token"} == secret["data"].keys()
    guarded.fire()
    guarded.expect("Fired", "True", "HackingGap")
    guarded.collect_garbage()
    guarded.goes()
    guarded.expect("Stopped", "True", "NoPodsLeft", within=60)
    assert guarded.evidence()["verdict.json"] and guarded.set_() is None and not guarded.pods()


def test_the_guard_judges_after_the_trainer_and_then_it_ends(guarded: PodWorld) -> None:
    guarded.guard_says(step=9, **JUDGED | {"waiting": 1, "evaluated": 2})
    guarded.delete_pods_of_trainer()
    guarded.workload_condition("Succeeded")
    guarded.expect("Succeeded", "Unknown", "GuardJudges")
    assert guarded.phase() == "Judging" and guarded.set_() is not None
    ended = {"attempt": 0, "step": 9}
    guarded.guard_says(step=9, attempt=0, ended=ended, **JUDGED)
    guarded.expect("Succeeded", "True", "WorkloadSucceeded", within=60)
    guarded.goes()


def test_a_fire_after_the_end_of_the_trainer_is_a_fire(guarded: PodWorld) -> None:
    guarded.guard_says(step=9, **JUDGED | {"waiting": 1, "evaluated": 2})
    guarded.delete_pods_of_trainer()
    guarded.workload_condition("Succeeded")
    guarded.expect("Succeeded", "Unknown", "GuardJudges")
    guarded.fire()
    guarded.goes()
    guarded.ends()
    assert guarded.conditions()["Fired"][:2] == ("True", "HackingGap")


def test_a_workload_that_a_ttl_removes_while_the_guard_judges_has_finished(guarded: PodWorld) -> None:
    guarded.guard_says(step=9, **JUDGED | {"waiting": 1, "evaluated": 2})
    guarded.delete_pods_of_trainer()
    guarded.workload_condition("Succeeded")
    guarded.expect("Succeeded", "Unknown", "GuardJudges")
    guarded.client.request("DELETE", PYTORCHJOBS.path(guarded.namespace, "run"))
    guarded.guard_says(step=10, **JUDGED | {"waiting": 1, "evaluated": 2})
    eventually(lambda: guarded.job()["status"]["guard"]["step"] == 10, "it reports")
    assert guarded.phase() == "Judging" and guarded.set_() is not None
    ended = {"attempt": 0, "step": 10}
    guarded.guard_says(step=10, attempt=0, ended=ended, **JUDGED)
    guarded.expect("Succeeded", "True", "WorkloadSucceeded", within=60)


def test_a_trainer_that_waited_in_vain_is_stopped_and_told(
    apart: PodWorld, make_job: Callable[..., Json]
) -> None:
    """Its `restartPolicy` would have it wait again and again."""
    apart.submit_with(make_job)
    apart.operator()
    apart.expect("Guarded", "True", "WorkloadCreated")
    apart.start_pod()
    words = "the guard was not ready after 1800 s: no guard responds"
    waited = {"terminated": {"exitCode": GAVE_UP, "message": words}}
    (status,) = RUNNING["initContainerStatuses"]
    again = status | {"name": WAITING_CONTAINER, "ready": False, "restartCount": 1, "lastState": waited}
    apart.pod_status({"phase": "Pending", "initContainerStatuses": [again]})
    assert words in apart.expect("Halted", "True", "GuardNotReady")
    apart.ends()
    assert apart.set_() is None and not apart.pods()


def test_the_last_word_of_a_guard_that_could_not_report_counts(guarded: PodWorld) -> None:
    fire = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": "2026-01-01T00:00:00Z"}
    (status,) = RUNNING["initContainerStatuses"]
    over = {"terminated": {"exitCode": 0, "message": json.dumps({"fire": fire})}}
    name = f"{guarded.set_()['metadata']['name']}-0"
    ended = status | {"state": over, "ready": False, "started": False}
    guarded.pod_status({"phase": "Running", "containerStatuses": [ended]}, name)
    guarded.expect("Fired", "True", "HackingGap")


def test_a_set_that_somebody_deleted_is_made_again(guarded: PodWorld) -> None:
    before = guarded.set_()
    guarded.client.request("DELETE", STATEFUL_SETS.path(guarded.namespace, before["metadata"]["name"]))
    eventually(
        lambda: (guarded.set_() or before)["metadata"]["uid"] != before["metadata"]["uid"], "it is back"
    )


@pytest.mark.slow
def test_a_guard_that_a_newer_operator_makes_again_goes_on(
    apart: PodWorld, make_job: Callable[..., Json]
) -> None:
    apart.submit_with(make_job)
    first = apart.operator(lease_seconds=4)
    apart.expect("Guarded", "True", "WorkloadCreated")
    apart.start_guard()
    apart.trainer_starts()
    before = apart.set_()
    first.kill()
    apart.operator("--guard-image=guard:2", lease_seconds=4)
    apart.guard_says(step=1)
    apart.expect("Fired", "False", "NotFired", within=60)
    assert apart.set_() == before, "what is there stays"
    apart.client.request("DELETE", STATEFUL_SETS.path(apart.namespace, before["metadata"]["name"]))
    apart.collect()
    eventually(lambda: (apart.set_() or before)["metadata"]["uid"] != before["metadata"]["uid"], "it is back")
    pod = apart.start_guard()
    assert pod["spec"]["containers"][0]["image"] == "guard:2"
    apart.expect("Fired", "False", "NotFired", within=60)


@pytest.mark.parametrize("modes", [("ReadWriteOnce",), ("ReadWriteOncePod",)])
def test_a_claim_that_two_nodes_cannot_share_is_refused(
    apart: PodWorld, make_job: Callable[..., Json], modes: tuple[str, ...]
) -> None:
    apart.submit_with(make_job, modes)
    apart.operator()
    said = apart.expect("Guarded", "False", "TemplateRefused")
    assert "checkpoints: its access modes are" in said and modes[0] in said
    assert apart.set_() is None and apart.phase() == "Refused"


def test_one_that_the_api_server_refuses_is_said_before_there_is_a_run(
    apart: PodWorld, make_job: Callable[..., Json]
) -> None:
    """Found out later, it is a healthy run that is stopped for the silence of a guard that nobody made."""
    apart.submit_with(make_job, resources={"limits": {"memory": "16GB"}})
    apart.operator()
    said = apart.expect("Guarded", "False", "GuardRefused")
    assert "the StatefulSet run-" in said and "quantities must match" in said
    assert apart.phase() == "Refused" and apart.client.get(PYTORCHJOBS, apart.namespace, "run") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pod": {"readySeconds": 60}, "placement": "Sidecar"}, "pod means nothing without placement"),
        ({"placement": "Pod"}, "placement Pod needs state.claimName"),
    ],
)
def test_the_api_server_refuses_what_means_nothing(
    apart: PodWorld, make_job: Callable[..., Json], settings: Json, words: str
) -> None:
    with pytest.raises(ApiError, match=words):
        apart.submit(make_job(**settings))
