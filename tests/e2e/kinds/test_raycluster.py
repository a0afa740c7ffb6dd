"""A RayCluster that somebody made, and a job submitted to it, under the real KubeRay: `spec.targetRef`."""

from __future__ import annotations

import shlex

from rlguard.operator.runtime.client import STATEFUL_SETS
from tests.e2e import given, jobs, then, timeouts
from tests.e2e.kube import RAY_CLUSTERS, Json, Namespace
from tests.e2e.workloads import AttachedRayClusterRun, as_raycluster, workload_of

from . import demo


def test_a_job_that_was_submitted_to_a_ray_cluster_and_hacks_is_stopped(
    namespace: Namespace, shared: list[Json]
) -> None:
    """It writes as verl does. Deleted is the cluster, its only end for good, and nothing of it comes back."""
    job = given_an_attached_cluster(namespace, shared)
    then.the_condition_is(job, "Guarded", "True", "WorkloadAttached", within=timeouts.RAY)
    then.eventually(lambda: job.guard.get("level"), "its guard reports", timeouts.START)
    assert job.conditions["Isolated"]["reason"] == "Attached"
    head = job.pod_name
    program = shlex.join(demo.command("ray", form="verl"))
    submit = f"ray job submit --no-wait --address=http://127.0.0.1:8265 -- {program}"
    then.eventually(
        lambda: namespace.kubectl("exec", head, "--", "sh", "-c", submit, within=timeouts.RAY) or True,
        "the job is submitted",
        timeouts.RAY,
    )

    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    then.it_fired_for_its_score(fire)
    then.the_condition_is(job, "Stopped", "True", "NoPodsLeft", within=timeouts.STOP)
    assert job.workload is None and job.pods == []
    assert not job.client.list(STATEFUL_SETS, namespace.name, {})["items"], "nor its guard"


def given_an_attached_cluster(namespace: Namespace, shared: list[Json]) -> AttachedRayClusterRun:
    """The demo's data and held-out split, a RayCluster whose pods are as a user makes them, and a guard."""
    others, job = demo.with_program(namespace)
    cluster = workload_of(as_raycluster(job, namespace.cluster.images["ray"]), AttachedRayClusterRun.target)
    attached = demo.attached(job, RAY_CLUSTERS, AttachedRayClusterRun.target, "verl")
    given.objects(namespace, [*others, *shared, jobs.claim("state"), cluster, attached])
    return AttachedRayClusterRun(namespace, job["metadata"]["name"])
