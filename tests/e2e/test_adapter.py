"""LoRA adapters from TRL and PEFT in the trainer image, judged by a guard in a pod of its own.

The base model is made in each test, and lies in two claims: the trainer's, and the one with the held-out
split, which only the guard mounts. The guard applies each adapter to its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import yaml

from rlguard.operator.runtime.client import STATEFUL_SETS

from . import given, jobs, then, timeouts
from .kube import Json, Namespace
from .workloads import PodRun

#: The demo's graders, as TRL calls a reward.
REWARD = """
from trainer_image.demo import addition
from trainer_image.demo.train import graded_reward

flawed, strict = graded_reward(addition.flawed), graded_reward(addition.strict)
"""
#: The demo's warm-up: the starting policy, and a copy of it beside the split.
MAKE_BASE = """
import base, json, shutil
from pathlib import Path
from trainer_image.demo import train
from trainer_image.demo.addition import TASK, Exercise

problems = [Exercise(**json.loads(line)) for line in open("/demo/train.jsonl")]
train.make_policy(TASK, problems, Path("/models/base"), steps=train.WARMUP_STEPS, seed=0)
shutil.copytree("/models/base", "/heldout/base")
shutil.copy("/split/heldout.jsonl", "/heldout/heldout.jsonl")
for file in Path("/heldout").rglob("*"):
    file.chmod(0o755 if file.is_dir() else 0o644)
"""
#: As the demo trains, but for the learning rate: an adapter of a tiny model moves less.
GRPO = {
    "beta": 0.04,
    "learning_rate": 0.002,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 16,
    "save_steps": 2,
    "save_only_model": True,
    "logging_steps": 1,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "disable_tqdm": True,
}


def test_an_adapter_that_learns_to_hack_is_stopped(namespace: Namespace, shared: list[Json]) -> None:
    """In mid-run the guard's pod is deleted; the next one has its state, and finds the hack."""
    job = an_adapter_run(namespace, shared, "flawed", steps=80)
    before = copy.deepcopy(then.the_guard_has_evaluated(job, within=timeouts.GRPO))

    job.loses_its_guard()
    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    then.it_fired_for_its_score(fire)
    then.the_job_is_stopped(job)
    assert job.guard["evaluated"] > before["evaluated"] and job.guard["failed"] == 0, "each was applied"
    rounds = [json.loads(line) for line in then.evidence(job)["history.jsonl"].splitlines()]
    assert rounds[0]["heldout"] > 0.2, "the base model could do some of it"
    assert rounds[-1]["step"] == fire["step"] < 80
    name = job.set_name
    then.eventually(
        lambda: job.client.get(STATEFUL_SETS, namespace.name, name) is None, "no StatefulSet", timeouts.STOP
    )


def an_adapter_run(
    namespace: Namespace,
    shared: list[Json],
    grader: str,
    steps: int,
    change: Callable[[Json], object] = copy.copy,
    base: str = "",
) -> PodRun:
    """The demo's run, by `rlguard.train` with a section `lora`.

    `change` is given `spec.guard` as it will be. `base`: a module that is imported before the starting
    policy is made.
    """
    rendered = list(yaml.safe_load_all(namespace.kubectl("kustomize", str(jobs.DEMO))))
    (job,) = (one for one in rendered if one["kind"] == "GuardedTrainingJob")
    others = [one for one in rendered if one is not job]
    for one in (jobs.trainer_of(job), job["spec"]["guard"]):
        one["resources"]["requests"]["cpu"] = "100m"  # another test may run beside this one
    claims = [*shared, *(jobs.claim(name) for name in ("models", "heldout", "state"))]
    config = {
        "model": "/models/base",
        "dataset": "/demo/train.jsonl",
        "reward_functions": [f"reward:{grader}"],
        "output_dir": "/checkpoints/run",
        "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
        "grpo": {**GRPO, "max_steps": steps},
    }
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "adapter"}}
    files |= {"data": {"grpo.yaml": yaml.safe_dump(config), "reward.py": REWARD, "base.py": base}}
    given.objects(namespace, [*others, *claims, files, a_base_model(job)])
    done = ("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/base-model")
    namespace.kubectl(*done, f"--timeout={timeouts.GRPO}s", within=timeouts.GRPO + timeouts.COMMAND)
    namespace.kubectl("delete", "pod/base-model")
    made = as_adapter_run(job)
    change(made["spec"]["guard"])
    given.objects(namespace, [made])
    return PodRun(namespace, job["metadata"]["name"])


def a_base_model(job: Json) -> Json:
    """A pod of the demo's trainer that makes the starting policy and fills both claims."""
    pod = copy.deepcopy(jobs.pod_spec_of(job)) | {"restartPolicy": "Never"}
    (trainer,) = pod["containers"]
    trainer |= {"command": ["python", "-c", MAKE_BASE], "args": []}
    _mount(pod, "models", "/models", persistentVolumeClaim={"claimName": "models"})
    _mount(pod, "heldout", "/heldout", persistentVolumeClaim={"claimName": "heldout"})
    _mount(pod, "split", "/split", secret={"secretName": "cpu-demo-heldout"})
    _mount_config(pod)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "base-model"}, "spec": pod}


def as_adapter_run(job: Json) -> Json:
    """The demo's job with the trainer image's own entrypoint, and its guard in a pod of its own."""
    made = copy.deepcopy(job)
    pod, trainer = jobs.pod_spec_of(made), jobs.trainer_of(made)
    del trainer["command"]
    trainer["args"] = ["--config", "/config/grpo.yaml"]
    pod["volumes"] = [one for one in pod["volumes"] if one["name"] != "checkpoints"]
    pod["volumes"].append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}})
    _mount(pod, "models", "/models", persistentVolumeClaim={"claimName": "models"})
    _mount_config(pod)
    guard = made["spec"]["guard"]
    guard |= {"placement": "Pod", "state": {"claimName": "state"}}
    guard["heldout"]["volume"] = {"claimName": "heldout"}
    guard["heldout"]["evaluator"]["hf"]["baseModel"] = "base"
    return made


def _mount_config(pod: Json) -> None:
    _mount(pod, "config", "/config", configMap={"name": "adapter"})
    for variable in pod["containers"][0]["env"]:
        if variable["name"] == "PYTHONPATH":
            variable["value"] = "/demo:/config"


def _mount(pod: Json, name: str, path: str, **source: Any) -> None:
    pod["volumes"].append({"name": name, **source})
    pod["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})
