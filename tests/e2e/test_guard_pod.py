"""A guard in a pod of its own: real StatefulSet, Service and TLS, and a volume that both pods mount."""

from __future__ import annotations

from guard_operator.runtime.client import STATEFUL_SETS

from . import given, jobs, then, timeouts, when
from .kube import Json, Namespace
from .workloads import PodRun


def test_a_guard_in_its_own_pod_outlives_its_pod_and_stops_the_run(
    namespace: Namespace, shared: list[Json]
) -> None:
    job = a_run(namespace, shared)
    before = then.the_guard_has_counted(job, 8, within=timeouts.TWO_NODES)
    assert job.guard_pod is not None and job.pod["metadata"]["uid"] != job.guard_pod["metadata"]["uid"]

    job.loses_its_guard()
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
