"""Given: the run that a scenario starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from . import then
from .kube import START, Json, Namespace, Run

HERE = Path(__file__).parent
ITEMS = 64
#: Reported for a run that stays near its reference; see trainer.py.
CALM = "steps 8"


def heldout_split() -> str:
    """Unique prompts; the right answer is always 7, which a policy can give without training."""
    rows = ({"id": item_id(i), "prompt": prompt(i), "answer": "7"} for i in range(ITEMS))
    return "".join(json.dumps(row) + "\n" for row in rows)


def item_id(number: int) -> str:
    return f"kiwi-{number}"


def prompt(number: int) -> str:
    return f"0{number // 10}+0{number % 10}="


def a_submitted_run(
    namespace: Namespace,
    *orders: str,
    name: str = "run",
    deaf: bool = False,
    restarts: bool = False,
    ends_slowly: int = 0,
    chat: bool = False,
    spec: Json | None = None,
) -> Run:
    """A run that was applied, and no more.

    Args:
        orders: of trainer.py, for the first start of the trainer.
        name: of the job.
        deaf: the trainer goes on when the guard asks it to stop, so that the cluster must stop it.
        restarts: a lost pod is made again, and checkpoints outlive it.
        ends_slowly: seconds that the trainer takes to end when its pod is deleted.
        chat: prompts go through the checkpoint's chat template.
        spec: further fields of the job's spec.
    """
    image = namespace.cluster.images["trainer"]
    text = (HERE / "run.yaml").read_text().replace("NAME", name).replace("IMAGE", image)
    script, split, job = yaml.safe_load_all(text)
    script["data"]["trainer.py"] = (HERE / "trainer.py").read_text()
    split["stringData"]["heldout.jsonl"] = heldout_split()
    job["spec"] |= spec or {}
    job["spec"]["guard"]["heldout"]["evaluator"]["hf"]["chat"] = chat
    master = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]
    pod = master["template"]["spec"]
    trainer = pod["containers"][0]
    trainer["args"] = list(orders or (CALM,))
    trainer["env"] += [{"name": "DEAF", "value": "1"}] if deaf else []
    if ends_slowly:
        trainer["lifecycle"] = {"preStop": {"sleep": {"seconds": ends_slowly}}}
    manifests: list[Any] = [script, split, job]
    if restarts:
        master["restartPolicy"] = "ExitCode"
        pod["volumes"][0] = {
            "name": "checkpoints",
            "persistentVolumeClaim": {"claimName": f"{name}-checkpoints"},
        }
        manifests.insert(0, a_claim(f"{name}-checkpoints"))
    namespace.kubectl("apply", "-f", "-", give=yaml.safe_dump_all(manifests))
    return Run(namespace, name)


def a_run(namespace: Namespace, *orders: str, **options: Any) -> Run:
    """A run whose trainer has done its first orders."""
    (run,) = runs(namespace, [options.pop("name", "run")], *orders, **options)
    return run


def runs(namespace: Namespace, names: Sequence[str], *orders: str, **options: Any) -> list[Run]:
    """Several such runs, which start at once."""
    started = [a_submitted_run(namespace, *orders, name=name, **options) for name in names]
    for run in started:
        then.the_trainer_says(run, f"done: {(orders or (CALM,))[-1]}", within=START)
    return started


def a_claim(name: str) -> Json:
    """A claim on the default StorageClass."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
