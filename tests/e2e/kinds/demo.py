"""Runs of a program that trains and knows of no guard: the demo's data, its held-out split, program.py."""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

from rlguard.operator.runtime.client import Resource
from tests.e2e import jobs, timeouts, workloads
from tests.e2e.kube import Json, Namespace

PROGRAM = Path(__file__).with_name("program.py")
CLAIM = "checkpoints"
#: Where a run to which a guard is attached saves in that claim: another user's may lie beside it.
FOLDER = "run"
#: How a guard follows the program, by the form in which it writes: verl's says where its checkpoints are.
FORMS = {
    "trl": {
        "follow": {"path": "metrics.jsonl", "format": "rlguard"},
        "checkpoints": {"layout": "trl"},
    },
    "verl": {"follow": {"path": "metrics.jsonl", "format": "verl"}},
}


def command(how: str, out: str = f"/checkpoints/{FOLDER}", form: str = "trl") -> list[str]:
    """What starts the program; `how` and `form`: see there."""
    return ["python", f"/program/{PROGRAM.name}", how, form, "/demo/train.jsonl", "/scratch/model", out]


def with_program(namespace: Namespace) -> tuple[list[Json], Json]:
    """What the demo has beside its job, with the program; and the job, whose pod has that and a claim.

    The claim is still to be made.
    """
    rendered = list(yaml.safe_load_all(namespace.kubectl("kustomize", str(jobs.DEMO))))
    others = [one for one in rendered if one["kind"] != "GuardedTrainingJob"]
    (job,) = (one for one in rendered if one["kind"] == "GuardedTrainingJob")
    pod = jobs.pod_spec_of(job)
    claim = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": CLAIM}}
    program = {"name": "program", "configMap": {"name": "program"}}
    pod["volumes"] = [*(one for one in pod["volumes"] if one["name"] != "checkpoints"), claim, program]
    jobs.trainer_of(job)["volumeMounts"].append({"name": "program", "mountPath": "/program"})
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}}
    files |= {"data": {PROGRAM.name: PROGRAM.read_text()}}
    return [*others, files], job


def followed(job: Json, form: str = "trl") -> Json:
    """The guard reads the log; of the sampling it is told by nobody, so it is set."""
    made = copy.deepcopy(job)
    guard = made["spec"]["guard"]
    guard["metrics"] = copy.deepcopy(FORMS[form])
    guard["resources"]["requests"]["cpu"] = "100m"  # Ray's submitter has half a core by default
    guard["policy"]["silent"]["afterSeconds"] = timeouts.GRPO  # Ray and a warm-up come first
    guard["heldout"]["backlog"] = "newest"  # the program waits for nobody
    guard["heldout"]["evaluator"]["hf"] |= {"temperature": 1, "maxNewTokens": 16}
    return made


def attached(job: Json, kind: Resource, name: str, form: str = "trl") -> Json:
    """The same job for a workload that exists; its guard has a claim `state`."""
    made = workloads.attached(followed(job), kind, name, "")
    metrics = copy.deepcopy(FORMS[form])
    metrics["follow"]["path"] = f"{FOLDER}/metrics.jsonl"
    metrics.setdefault("checkpoints", {})["path"] = FOLDER
    made["spec"]["guard"]["metrics"] = metrics
    return made
