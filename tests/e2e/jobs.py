"""The objects that tests apply: the demo that users run, and a scripted trainer for everything but training.

All are lists of manifests for `kubectl apply`. Nothing here talks to a cluster.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .kube import ROOT, TRAINER_CONTAINER

Json = dict[str, Any]

DEMO = ROOT / "k8s" / "samples" / "cpu-demo"
#: What its overlay for kind makes: its namespace and its job.
DEMO_NAMESPACE, DEMO_NAME = "rlguard-demo", "cpu-demo"

_SCRIPT = Path(__file__).with_name("scripted_trainer.py")
_TINY_LLAMA = ROOT / "trainer_image" / "demo" / "tiny_llama.py"
_ITEMS = [(f"item-{i}", f"{i:02}+{i:02}=", f"{2 * i:02}") for i in range(8)]

#: Judges a run unless a test says otherwise: a KL that leaves the reference fires within five steps,
#: and checkpoints are evaluated once each.
QUICK_POLICY = {"detector": "HeldoutGuard", "kl": {"hardStop": 0.08, "minSteps": 5}}

#: Both containers of a pod as restricted as Pod Security asks for.
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def heldout_split() -> str:
    """Eight additions as JSONL."""
    rows = ({"id": name, "prompt": prompt, "answer": answer} for name, prompt, answer in _ITEMS)
    return "".join(json.dumps(row) + "\n" for row in rows)


def demo_with(rendered: Sequence[Json], arguments: Sequence[str], env: Mapping[str, str]) -> list[Json]:
    """The rendered demo with more arguments of its trainer (the later of two values counts) and variables."""
    objects = json.loads(json.dumps(rendered))
    for one in objects:
        if one["kind"] == "GuardedTrainingJob":
            trainer_of(one)["args"] += arguments
            trainer_of(one)["env"] += [{"name": key, "value": value} for key, value in env.items()]
    return list(objects)


def pod_spec_of(job: Json, role: str = "Master") -> Json:
    """The pod of a role in a job's template, to be changed in place."""
    spec: Json = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
    return spec


def trainer_of(job: Json, role: str = "Master") -> Json:
    """The trainer container of a role in a job's template, to be changed in place."""
    return next(c for c in pod_spec_of(job, role)["containers"] if c["name"] == TRAINER_CONTAINER)


def scripted(
    name: str,
    image: str,
    orders: Sequence[str] = (),
    *,
    deaf: bool = False,
    restart: str = "Never",
    heldout: Json | None = None,
    checkpoints: Json | None = None,
    policy: Json | None = None,
    state: Json | None = None,
    **spec: Any,
) -> list[Json]:
    """A scripted run with what it mounts; the GuardedTrainingJob is the last object.

    Args:
        name: of the job.
        image: the trainer image.
        orders: done first by every start of the trainer; see scripted_trainer.py.
        deaf: the trainer goes on when the guard says stop.
        restart: the PyTorchJob's restartPolicy: Never, OnFailure, ExitCode.
        heldout: `spec.guard.heldout.volume`; a Secret that comes with the job if absent.
        checkpoints: source of the volume of checkpoints; an emptyDir if absent.
        policy: `spec.guard.policy`.
        state: `spec.guard.state`.
        spec: further fields of the job's spec, such as onFire and onSilence.
    """
    files = {"trainer.py": _SCRIPT.read_text(), "tiny_llama.py": _TINY_LLAMA.read_text()}
    pod = _pod(image, name, ["python", "/script/trainer.py", *orders], deaf)
    pod["volumes"][0] |= checkpoints or {"emptyDir": {}}
    replicas = {"Master": {"replicas": 1, "restartPolicy": restart, "template": {"spec": pod}}}
    return _guarded(name, files, replicas, heldout, policy, state, **spec)


def grpo_that_fires(name: str, image: str, nodes: int) -> list[Json]:
    """GRPO with `rlguard.train`; on several nodes under torchrun, as in k8s/samples/multi-node.yaml.

    The model is tiny and random, the reward counts a letter, and any movement of the policy is beyond the KL
    stop: after a few steps the guard fires.
    """
    files = {
        "tiny_llama.py": _TINY_LLAMA.read_text(),
        "reward.py": (
            "def ones(completions, **_):\n    return [c.count('1') / (1 + len(c)) for c in completions]\n"
        ),
        "grpo.yaml": yaml.safe_dump(
            {
                "model": "/scratch/model",
                "dataset": "/script/train.jsonl",
                "reward_functions": ["reward:ones"],
                "output_dir": "/checkpoints/run",
                "grpo": {
                    "beta": 0.04,
                    "learning_rate": 0.001,
                    "per_device_train_batch_size": 8,
                    "num_generations": 4,
                    "max_completion_length": 8,
                    "max_steps": 1000,
                    "save_steps": 1000,
                    "use_cpu": True,
                    "bf16": False,
                    "gradient_checkpointing": False,
                    "report_to": [],
                },
            }
        ),
        "train.jsonl": heldout_split(),
    }
    make_model = (
        "import tiny_llama as t; k = t.build_tokenizer('0123456789+= '); "
        "t.save(t.build_model(k, 0), k, '/scratch/model')"
    )
    launcher = "torchrun" if nodes > 1 else "python"
    train = f"exec {launcher} -m rlguard.train --config /script/grpo.yaml"
    pod = _pod(image, name, ["sh", "-c", f'python -c "{make_model}" && {train}'])
    pod["volumes"][0]["emptyDir"] = {}
    pod["containers"][0]["resources"]["limits"]["memory"] = "3Gi"  # TRL, under torchrun
    restart = "OnFailure" if nodes > 1 else "Never"
    replicas = {"Master": {"replicas": 1, "restartPolicy": restart, "template": {"spec": pod}}}
    if nodes > 1:
        replicas["Worker"] = {**replicas["Master"], "replicas": nodes - 1}
    policy = {"kl": {"hardStop": 1e-6, "emaAlpha": 0.0, "minSteps": 5}}
    return _guarded(name, files, replicas, policy=policy)


def _guarded(
    name: str,
    files: Json,
    replicas: Json,
    heldout: Json | None = None,
    policy: Json | None = None,
    state: Json | None = None,
    **spec: Any,
) -> list[Json]:
    """The job, and before it the ConfigMap with its files and the Secret with its held-out split."""
    guard = {
        "heldout": {
            "volume": heldout or {"secretName": f"{name}-heldout"},
            # Of weights made by chance, which never end a completion.
            "evaluator": {"hf": {"device": "cpu", "maxNewTokens": 4, "scoreTruncated": True}},
        },
        "checkpoints": {"volume": "checkpoints"},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "policy": policy or QUICK_POLICY,
        "state": state or {},
    }
    workload = {"pytorchReplicaSpecs": replicas}
    template = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": workload}
    job_spec = {"template": template, "guard": guard, **spec}
    return [
        _object("v1", "ConfigMap", f"{name}-script", data=files),
        _object("v1", "Secret", f"{name}-heldout", stringData={"heldout.jsonl": heldout_split()}),
        _object("rlguard.dev/v1alpha1", "GuardedTrainingJob", name, spec=job_spec),
    ]


def _pod(image: str, name: str, command: Sequence[str], deaf: bool = False) -> Json:
    values = {"PYTHONPATH": "/script", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": "/scratch"}
    values |= {"DEAF": "1"} if deaf else {}
    trainer = {
        "name": TRAINER_CONTAINER,
        "image": image,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in values.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": "/checkpoints"},
            {"name": "script", "mountPath": "/script", "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "checkpoints"},
        {"name": "script", "configMap": {"name": f"{name}-script"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    return {"securityContext": _POD_SECURITY, "containers": [trainer], "volumes": volumes}


def claim(name: str) -> Json:
    """A claim on the default StorageClass."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return _object("v1", "PersistentVolumeClaim", name, spec=spec)


def loader(name: str, image: str, claim_name: str, secret: str) -> Json:
    """A pod that copies the files of a Secret into a claim: how a user fills a held-out volume."""
    container = {
        "name": "loader",
        "image": image,
        "command": ["sh", "-c", "cp -L /from/* /to/"],
        "volumeMounts": [{"name": "from", "mountPath": "/from"}, {"name": "to", "mountPath": "/to"}],
        "securityContext": _CONTAINER_SECURITY,
    }
    volumes = [
        {"name": "from", "secret": {"secretName": secret}},
        {"name": "to", "persistentVolumeClaim": {"claimName": claim_name}},
    ]
    spec = {
        "restartPolicy": "Never",
        "securityContext": _POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }
    return _object("v1", "Pod", name, spec=spec)


def _object(api_version: str, kind: str, name: str, **content: Any) -> Json:
    typed = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
    return typed | copy.deepcopy(content)  # tests change what they get
