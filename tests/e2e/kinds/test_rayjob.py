"""RayJobs with real Ray, under the real KubeRay: head, worker and submitter are pods that run."""

from __future__ import annotations

import json

from rlguard.operator.runtime.client import BATCH_JOBS
from tests.e2e import given, jobs, then, timeouts
from tests.e2e.kube import RAY_CLUSTERS, Namespace
from tests.e2e.workloads import RayRun, as_rayjob

from . import demo, ends


def test_a_ray_program_that_hacks_its_reward_is_stopped(namespace: Namespace) -> None:
    """GRPO in an actor on the worker. It writes as verl does and knows of no guard: the head's reads it."""
    job = given_a_ray_program(namespace)

    then.eventually(lambda: len(job.everything) == 3, "head, worker and submitter", timeouts.RAY)
    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    then.it_fired_for_its_score(fire)
    nothing_of_the_run_is_left(job)
    it_was_paid_for_what_is_wrong(job)


def test_a_driver_that_reports_is_stopped(namespace: Namespace) -> None:
    """As in k8s/samples/rayjob.yaml: the driver in the head has the guard's address. It does not obey."""
    *others, job = jobs.scripted("run", namespace.cluster.images["trainer"], ("steps 8", "fire"), deaf=True)
    given.objects(namespace, [*others, as_rayjob(job, namespace.cluster.images["ray"])])
    job = RayRun(namespace, "run")

    then.the_job_has_fired(job, "KlHardStop", within=timeouts.RAY)

    nothing_of_the_run_is_left(job)


# -- given and then, in the words of these tests ---------------------------------------------------------


def given_a_ray_program(namespace: Namespace) -> RayRun:
    """The demo's data and held-out split; its trainer is an actor of a Ray program."""
    others, job = demo.with_program(namespace)
    # The worker writes the checkpoints, and the guard in the head's pod reads them.
    given.a_claim(namespace, demo.CLAIM)
    program = demo.command("ray", "/checkpoints", "verl")
    job = demo.followed(as_rayjob(job, namespace.cluster.images["ray"], program), "verl")
    given.objects(namespace, [*others, job])
    return RayRun(namespace, job["metadata"]["name"])


def nothing_of_the_run_is_left(job: RayRun) -> None:
    """No pod of head, worker or submitter, and nothing that would make one."""
    ends.nothing_is_left(job, RAY_CLUSTERS, BATCH_JOBS)


def it_was_paid_for_what_is_wrong(job: RayRun) -> None:
    """The round of the fire, which may be the first: the starting policy is paid 0.2 more than it scores."""
    evidence = then.evidence(job)
    fired = json.loads(evidence["history.jsonl"].splitlines()[-1])
    assert fired["reward"] > fired["heldout"] + 0.3, fired
    assert evidence["guard.log"].strip()
