"""A queue of the real Kueue in front of real runs: a Job of Kubernetes, and a PyTorchJob."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlguard.operator.api.names import QUEUE_LABEL
from rlguard.operator.runtime.client import Resource, controller_of
from tests.e2e import given, jobs, then, timeouts, when
from tests.e2e.kube import Job, Json, Namespace
from tests.e2e.workloads import BatchRun, as_batch_job

QUEUE = "training"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
VERSION = "kueue.x-k8s.io/v1beta1"
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
#: What one run asks for: 100m for its guard, 100m for its trainer.
ROOM_FOR_ONE = "300m"
#: For how long a guard of a run may be silent, seconds.
SILENT = 30


@pytest.fixture
def queue(namespace: Namespace) -> Iterator[str]:
    """A queue of this namespace that has room for one run."""
    name = namespace.name
    resources = [{"name": "cpu", "nominalQuota": ROOM_FOR_ONE}, {"name": "memory", "nominalQuota": "100Gi"}]
    group = {
        "coveredResources": ["cpu", "memory"],
        "flavors": [{"name": name, "resources": resources}],
    }
    cluster_queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    made = [
        _object("ResourceFlavor", name, spec={}),
        _object("ClusterQueue", name, spec=cluster_queue),
        _object("LocalQueue", QUEUE, spec={"clusterQueue": name}),
        _object("WorkloadPriorityClass", name, value=1000),
    ]
    given.objects(namespace, made)
    yield name
    for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
        namespace.kubectl("delete", kind, name, "--wait=false")


def _object(kind: str, name: str, **content: Any) -> Json:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, **content}


Submit = Callable[..., Job]


def _batch(namespace: Namespace, name: str, *orders: str, priority: str = "", **options: Any) -> Job:
    *others, job = jobs.scripted(name, namespace.cluster.images["trainer"], orders, **options)
    _submit(namespace, [*others, as_batch_job(job)], priority)
    return BatchRun(namespace, name)


def _pytorch(namespace: Namespace, name: str, *orders: str, priority: str = "", **options: Any) -> Job:
    _submit(namespace, jobs.scripted(name, namespace.cluster.images["trainer"], orders, **options), priority)
    return namespace.job(name)


def _submit(namespace: Namespace, manifests: list[Json], priority: str) -> None:
    wanted = {PRIORITY_LABEL: priority} if priority else {}
    manifests[-1]["metadata"]["labels"] = {QUEUE_LABEL: QUEUE} | wanted
    given.objects(namespace, manifests)


@pytest.mark.parametrize("submit", [_batch, _pytorch])
def test_a_run_waits_fires_and_the_next_one_has_its_quota(
    namespace: Namespace, queue: str, submit: Submit
) -> None:
    first = submit(namespace, "first", "steps 8", deaf=True)
    then.the_guard_has_counted(first, 8, within=timeouts.START)
    silence = {"afterSeconds": SILENT, "action": "Stop"}
    second = submit(namespace, "second", "steps 8", "exit 0", onSilence=silence)
    waiting = then.the_condition_is(second, "Waiting", "True", "Queued")
    assert f"waits in queue {QUEUE}" in waiting and second.pods == []
    it_waits_longer_than_a_guard_may_be_silent(second)

    fires_and_gives_its_quota_back(first)
    then.the_condition_is(second, "Succeeded", "True", within=timeouts.START)
    assert second.guard["steps"] == 8, "it waited longer than a guard may be silent, and was not stopped"
    assert "Halted" not in second.conditions
    then.the_job_never_fired(second)

    def reserving() -> str:
        return namespace.kubectl(
            "get", "clusterqueue", queue, "--output=jsonpath={.status.reservingWorkloads}"
        )

    then.eventually(lambda: reserving() == "0", "the queue holds quota for neither", timeouts.REPORT)


@pytest.mark.parametrize("submit", [_batch, _pytorch])
def test_a_run_that_is_preempted_comes_back_with_what_its_guard_knew(
    namespace: Namespace, queue: str, submit: Submit
) -> None:
    checkpoints, state = given.a_claim(namespace, "checkpoints"), given.a_claim(namespace, "guards")
    silence = {"afterSeconds": SILENT, "action": "Stop"}
    kept = {"checkpoints": checkpoints, "state": state["persistentVolumeClaim"], "onSilence": silence}
    first = submit(namespace, "first", "steps 8", deaf=True, **kept)
    then.the_guard_has_counted(first, 8, within=timeouts.START)
    when.the_trainer_is_told(first, "checkpoint")
    before = then.the_guard_has_evaluated(first)

    urgent = submit(namespace, "urgent", "steps 8", "sleep 40", "exit 0", priority=queue)

    then.the_condition_is(first, "Waiting", "True", "Queued", within=timeouts.STOP)
    assert first.guard["steps"] == before["steps"], "of the time before"
    then.the_condition_is(urgent, "Succeeded", "True", within=timeouts.START)
    after = then.the_guard_has_counted(first, 16, within=timeouts.REPLACE)
    assert (before["attempt"], after["attempt"]) == (0, 1)
    for known in ("rounds", "bestCheckpoint", "lastEvaluation"):
        assert after[known] == before[known], known
    assert "Halted" not in first.conditions, "it waited longer than a guard may be silent"
    then.the_job_never_fired(first)

    fires_and_gives_its_quota_back(first)


def it_waits_longer_than_a_guard_may_be_silent(job: Job) -> None:
    """And all the while nobody calls its guard silent, which there is none of."""
    end = time.monotonic() + SILENT + 1
    while time.monotonic() < end:
        conditions = job.conditions
        assert (conditions["Waiting"]["status"], job.pods) == ("True", [])
        assert conditions["GuardSilent"]["status"] != "True" and "Halted" not in conditions, conditions
        time.sleep(1.0)


def fires_and_gives_its_quota_back(job: Job) -> None:
    """Nothing of it is left with Kueue, either, which could admit it again."""
    workload = job.workload
    assert workload is not None
    when.the_trainer_fires(job)

    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)

    def entries() -> list[Json]:
        every: list[Json] = job.client.list(KUEUE_WORKLOADS, job.namespace.name, {})["items"]
        return [one for one in every if controller_of(one) == workload["metadata"]["uid"]]

    then.eventually(lambda: not entries(), "Kueue has no Workload of it", timeouts.REPORT)
