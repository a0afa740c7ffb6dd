"""A trainer without a line of our code, token or address: the guard reads the log that it writes."""

from __future__ import annotations

import json

from . import given, jobs, then, timeouts
from .kube import Namespace
from .workloads import BatchRun, as_batch_job

#: Writes eight steps, then those of `more`, and goes on doing nothing. Its only link is its log.
TRAINER = """
import json, os, sys, time
assert not [name for name in os.environ if name.startswith("RLGUARD_")], "it was told of a guard"
assert not os.path.exists("/var/run/rlguard"), "it has something of the guard's"
os.makedirs("/checkpoints/run", exist_ok=True)
step = 0
with open("/checkpoints/run/metrics.jsonl", "a", buffering=1) as log:
    for kl in [0.01] * 8 + json.loads(sys.argv[1]):
        step += 1
        log.write(json.dumps({"step": step, "reward": 0.5, "kl": kl}) + "\\n")
        time.sleep(0.2)
print("written", flush=True)
time.sleep(3600)
"""
#: In the guard's container this is the split.
LINK = """
import os, time
os.makedirs("/checkpoints/run")
os.symlink("/var/run/rlguard/heldout/heldout.jsonl", "/checkpoints/run/metrics.jsonl")
time.sleep(3600)
"""


def a_followed_run(namespace: Namespace, program: str, *arguments: str) -> BatchRun:
    *others, job = jobs.scripted("run", namespace.cluster.images["trainer"])
    jobs.trainer_of(job)["command"] = ["python", "-c", program, *arguments]
    follow = {"path": "run/metrics.jsonl", "format": "rlguard"}
    job["spec"]["guard"]["metrics"] = {"follow": follow, "checkpoints": {"layout": "trl"}}
    given.objects(namespace, [*others, as_batch_job(job, backoffLimit=0)])
    return BatchRun(namespace, "run")


def test_a_run_that_is_followed_is_stopped_when_its_log_says_so(namespace: Namespace) -> None:
    job = a_followed_run(namespace, TRAINER, json.dumps([1000.0] * 10))

    then.the_job_has_fired(job, "KlHardStop", within=timeouts.START)
    then.the_job_is_stopped(job)


def test_a_link_to_the_held_out_split_is_not_read(namespace: Namespace) -> None:
    job = a_followed_run(namespace, LINK)

    then.eventually(lambda: job.guard.get("code") == "not_followed", "the guard says so", timeouts.START)
    assert job.guard["level"] == "unknown" and not job.guard.get("steps")
    then.the_job_never_fired(job)
