"""RayJobs with real Ray, under the real KubeRay: head, worker and submitter are pods that run."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import yaml

from guard_core.wire import Code
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.runtime.client import BATCH_JOBS
from tests.e2e import given, jobs, then, timeouts
from tests.e2e.kube import Json, Namespace
from tests.e2e.workloads import RayRun, as_rayjob

PROGRAM = Path(__file__).with_name("ray_program.py")


def test_a_ray_program_that_hacks_its_reward_is_stopped(namespace: Namespace) -> None:
    """GRPO in an actor on the worker. It knows of no guard: the one in the head's pod reads its log."""
    job = given_a_ray_program(namespace)

    then.eventually(lambda: len(job.everything) == 3, "head, worker and submitter", timeouts.RAY)
    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    assert Code(fire["code"]).finding is not None and fire["code"] != "kl_hard_stop", fire
    nothing_of_the_run_is_left(job)
    it_was_paid_for_what_is_wrong(job)


def test_a_driver_that_reports_is_stopped(namespace: Namespace) -> None:
    """As in k8s/samples/rayjob.yaml: the driver in the head has the guard's socket. It does not obey."""
    *others, job = jobs.scripted("run", namespace.cluster.images["trainer"], ("steps 8", "fire"), deaf=True)
    given.objects(namespace, [*others, as_rayjob(job, namespace.cluster.images["ray"])])
    job = RayRun(namespace, "run")

    then.the_job_has_fired(job, "KlHardStop", within=timeouts.RAY)

    nothing_of_the_run_is_left(job)


# -- given and then, in the words of these tests ---------------------------------------------------------


def given_a_ray_program(namespace: Namespace) -> RayRun:
    """The demo's data and held-out split; its trainer is an actor of a Ray program."""
    rendered = list(yaml.safe_load_all(namespace.kubectl("kustomize", str(jobs.DEMO))))
    others = [one for one in rendered if one["kind"] != "GuardedTrainingJob"]
    (job,) = (one for one in rendered if one["kind"] == "GuardedTrainingJob")
    pod = jobs.pod_spec_of(job)
    # The worker writes the checkpoints, and the guard in the head's pod reads them.
    claim = {"name": "checkpoints", **given.a_claim(namespace, "checkpoints")}
    program = {"name": "program", "configMap": {"name": "program"}}
    pod["volumes"] = [*(one for one in pod["volumes"] if one["name"] != "checkpoints"), claim, program]
    jobs.trainer_of(job)["volumeMounts"].append({"name": "program", "mountPath": "/program"})
    run = ["python", f"/program/{PROGRAM.name}", "/demo/train.jsonl", "/scratch/model", "/checkpoints"]
    job = followed(as_rayjob(job, namespace.cluster.images["ray"], run))
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}}
    files |= {"data": {PROGRAM.name: PROGRAM.read_text()}}
    given.objects(namespace, [*others, files, job])
    return RayRun(namespace, job["metadata"]["name"])


def followed(job: Json) -> Json:
    """The guard reads the log; of the sampling it is told by nobody, so it is set."""
    made = copy.deepcopy(job)
    guard = made["spec"]["guard"]
    guard["metrics"] = {
        "follow": {"path": "metrics.jsonl", "format": "rlguard"},
        "checkpoints": {"layout": "trl"},
    }
    guard["resources"]["requests"]["cpu"] = "100m"  # the submitter has half a core by default
    guard["policy"]["silent"]["afterSeconds"] = timeouts.GRPO  # Ray and a warm-up come first
    guard["heldout"]["backlog"] = "newest"  # the program waits for nobody
    guard["heldout"]["evaluator"]["checkpoint"] |= {"temperature": 1, "maxNewTokens": 16}
    return made


def nothing_of_the_run_is_left(job: RayRun) -> None:
    """No pod of head, worker or submitter, and nothing that would make one."""
    then.the_job_is_stopped(job)
    assert job.everything == [], [pod["metadata"]["name"] for pod in job.everything]
    assert job.deployment == ("Failed", "DeadlineExceeded")
    for resource in (RAY_CLUSTERS, BATCH_JOBS):
        assert not job.client.list(resource, job.namespace.name, {})["items"], resource.kind
    assert job.status["stop"]["method"] == "Stop"
    assert "StopEscalated" not in then.events(job)


def it_was_paid_for_what_is_wrong(job: RayRun) -> None:
    """The round of the fire, which may be the first: the starting policy is paid 0.2 more than it scores."""
    evidence = then.evidence(job)
    fired = json.loads(evidence["history.jsonl"].splitlines()[-1])
    assert fired["reward"] > fired["heldout"] + 0.3, fired
    assert evidence["guard.log"].strip()
