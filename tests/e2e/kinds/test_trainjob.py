"""TrainJobs under the real controllers of Kubeflow Trainer and JobSet, with pods that run."""

from __future__ import annotations

from rlguard.operator.runtime.client import BATCH_JOBS, STATEFUL_SETS
from tests.e2e import given, jobs, then, timeouts
from tests.e2e.kube import JOB_SETS, Json, Namespace
from tests.e2e.workloads import AttachedTrainRun, as_trainjob, workload_of

from . import demo, ends


def test_a_trainjob_that_exists_and_hacks_is_stopped(namespace: Namespace, shared: list[Json]) -> None:
    """GRPO in a pod that knows of no guard. Its JobSet goes before its pod does."""
    others, demo_job = demo.with_program(namespace)
    trainer = jobs.trainer_of(demo_job)
    trainer |= {"command": demo.command("here"), "args": []}
    runtime, theirs = as_trainjob(demo_job)
    made = workload_of(theirs, AttachedTrainRun.target)
    given.objects(namespace, [*others, *shared, jobs.claim("state"), runtime, made])
    job = AttachedTrainRun(namespace, demo_job["metadata"]["name"])
    given.objects(namespace, [demo.attached(demo_job, AttachedTrainRun.resource, AttachedTrainRun.target)])
    then.the_condition_is(job, "Guarded", "True", "WorkloadAttached", within=timeouts.START)

    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    then.it_fired_for_its_score(fire)
    ends.nothing_is_left(job, JOB_SETS, BATCH_JOBS)
    assert not job.client.list(STATEFUL_SETS, namespace.name, {})["items"], "nor its guard"
