"""A guard in a pod of its own: real StatefulSet, Service and TLS, and a volume that both pods mount."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guard_operator.api.names import guard_name
from guard_operator.runtime.client import PODS, STATEFUL_SETS

from . import given, jobs, then, timeouts, when
from .kube import Job, Json, Namespace


class PodRun(Job):
    """A run whose guard has a pod of its own."""

    @property
    def set_name(self) -> str:
        return guard_name(self.name, self.uid)

    @property
    def guard_pod(self) -> Json | None:
        return self.client.get(PODS, self.namespace.name, f"{self.set_name}-0")


@pytest.fixture
def shared(namespace: Namespace) -> Iterator[list[Json]]:
    """A claim that two nodes could share: the default storage of kind has no ReadWriteMany."""
    cluster, volume = namespace.cluster, f"{namespace.name}-shared"
    (node,) = cluster.kubectl("get", "nodes", "-o", "name").split()
    cluster.on_node(node.removeprefix("node/"), "mkdir", "-p", "-m", "0777", f"/var/{volume}")
    claim = jobs.claim("checkpoints")
    claim["spec"] |= {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": f"/var/{volume}"},
        "claimRef": {"namespace": namespace.name, "name": "checkpoints"},
    }
    yield [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec},
        claim,
    ]
    cluster.kubectl("delete", "persistentvolume", volume, "--wait=false")
    cluster.on_node(node.removeprefix("node/"), "rm", "-rf", f"/var/{volume}")


def test_a_guard_in_its_own_pod_outlives_its_pod_and_stops_the_run(
    namespace: Namespace, shared: list[Json]
) -> None:
    job = a_run(namespace, shared)
    before = then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
    assert job.guard_pod is not None and job.pod["metadata"]["uid"] != job.guard_pod["metadata"]["uid"]

    lost = job.guard_pod["metadata"]["uid"]
    namespace.kubectl("delete", "pod", f"{job.set_name}-0", "--wait=false")
    then.eventually(
        lambda: (job.guard_pod or {"metadata": {"uid": lost}})["metadata"]["uid"] != lost,
        "another pod of the guard",
        timeouts.REPLACE,
    )
    when.the_trainer_is_told(job, "steps 4")
    after = then.the_guard_has_counted(job, 12, within=timeouts.REPLACE)
    assert (after["steps"], after["attempt"]) == (12, before["attempt"]), "nothing twice, nothing lost"
    then.the_job_never_fired(job)

    name = job.set_name
    when.the_trainer_fires(job)
    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)
    log = then.evidence(job)["guard.log"]
    assert log.strip() and not log.startswith("not available")
    then.eventually(
        lambda: job.client.get(STATEFUL_SETS, namespace.name, name) is None, "no StatefulSet", timeouts.STOP
    )


def a_run(namespace: Namespace, shared: list[Json]) -> PodRun:
    *others, job = jobs.scripted(
        "run",
        namespace.cluster.images["trainer"],
        ("steps 8",),
        deaf=True,
        checkpoints={"persistentVolumeClaim": {"claimName": "checkpoints"}},
        state={"claimName": "state"},
    )
    job["spec"]["guard"]["placement"] = "Pod"
    given.objects(namespace, [*shared, jobs.claim("state"), *others, job])
    return PodRun(namespace, "run")
