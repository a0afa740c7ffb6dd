"""What the operator's caches take for many jobs: objects like the real ones, as an API server sends them.

    python tests/bench/bench_memory.py [--jobs 5000] [--pods 16]

No server is needed: every job, workload and pod goes as JSON through the same decoding, slimming and storing
as in the operator. Shown is the memory of the process without them and with them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import yaml
from kubernetes.client import Configuration

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from guard_operator.adapters import find_adapter  # noqa: E402
from guard_operator.api.names import API_VERSION, KIND  # noqa: E402
from guard_operator.app import _Caches  # noqa: E402
from guard_operator.config import OperatorConfig  # noqa: E402
from guard_operator.reconcile.heartbeats import HeartbeatClock  # noqa: E402
from guard_operator.reconcile.inject import build_workload  # noqa: E402
from guard_operator.reconcile.parse import parse_job  # noqa: E402
from guard_operator.runtime.client import Client  # noqa: E402
from guard_operator.runtime.metrics import OperatorMetrics  # noqa: E402
from guard_operator.runtime.queue import WorkQueue  # noqa: E402
from guard_operator.runtime.reflector import Key, Reflector, Timing  # noqa: E402

Json = dict[str, Any]
STAMP = "2026-01-01T00:00:00Z"
SAMPLE = ROOT / "k8s" / "samples" / "multi-node.yaml"


def memory() -> float:
    """Resident memory of this process, MiB."""
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def managed(owner: str, of: object) -> list[Json]:
    """`managedFields` of about the size that servers keep."""
    fields = {f"f:{key}": {} for key in re.findall(r'"(\w+)":', json.dumps(of))}
    return [{"manager": owner, "operation": "Update", "time": STAMP, "fieldsV1": fields}]


def condition(kind: str, status: str = "True", message: str = "") -> Json:
    times = {"lastTransitionTime": STAMP, "lastProbeTime": None}
    return {"type": kind, "status": status, "reason": kind, "message": message, **times}


def a_job(number: int) -> Json:
    raw = next(d for d in yaml.safe_load_all(SAMPLE.read_text(encoding="utf-8")) if d["kind"] == KIND)
    metadata = {
        "name": f"grpo-run-{number}", "namespace": f"team-{number % 20}", "uid": uid("job", number),
        "creationTimestamp": STAMP, "resourceVersion": str(10_000_000 + number), "generation": 1,
    }  # fmt: skip
    rounds = [{"attempt": 0, "step": n, "reward": 0.5, "heldout": 0.4, "kl": 0.01} for n in range(50)]
    guard = {
        "heartbeat": STAMP, "level": "healthy", "code": "ok", "reason": "no rule fired", "attempt": 0,
        "step": number, "steps": number, "rounds": 50, "announced": 50, "evaluated": 50, "waiting": 0,
        "inLoopEma": 0.512345, "heldoutEma": 0.498765, "klEma": 0.0123, "gap": 0.0135,
        "historyTail": rounds, "detectorState": "x" * 20_000,
        "bestCheckpoint": {"attempt": 0, "step": 40, "score": 0.6, "items": 128, "path": "/ckpt/40"},
    }  # fmt: skip
    kinds = ("Fired", "GuardSilent", "Guarded", "Isolated")
    ref = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": metadata["name"]}
    status = {
        "observedGeneration": 1, "phase": "Running", "guard": guard,
        "workloadRef": {**ref, "uid": uid("workload", number)},
        "conditions": [condition(kind, message="a sentence for people, of a usual length") for kind in kinds],
    }  # fmt: skip
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": raw["spec"],
        "status": status,
    }
    metadata["managedFields"] = managed("kubectl", raw["spec"]) + managed("rlguard-guard", guard)
    return job


def a_workload(job: Json, number: int) -> Json:
    parsed = parse_job(job)
    adapter = find_adapter("kubeflow.org/v1", "PyTorchJob")
    assert adapter is not None
    workload = copy.deepcopy(build_workload(parsed, adapter, OperatorConfig("guard:1")))
    metadata = {"uid": uid("workload", number), "creationTimestamp": STAMP, "resourceVersion": str(number)}
    workload["metadata"] |= {**metadata, "managedFields": managed("rlguard-operator", workload["spec"])}
    replicas = {"Master": {"active": 1}, "Worker": {"active": 15}}
    workload["status"] = {
        "conditions": [condition("Created"), condition("Running")],
        "replicaStatuses": replicas,
    }
    return workload


def a_pod(workload: Json, number: int, index: int) -> Json:
    role = "Worker" if index else "Master"
    template = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
    replica = "training.kubeflow.org/replica-"
    labels = {
        **template["metadata"]["labels"], replica + "index": str(max(0, index - 1)),
        replica + "type": role.lower(), "training.kubeflow.org/job-name": workload["metadata"]["name"],
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
    }  # fmt: skip
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": workload["metadata"]["name"]}
    metadata = {
        "name": f"{workload['metadata']['name']}-{role.lower()}-{index}", "uid": uid(f"pod{index}", number),
        "namespace": workload["metadata"]["namespace"], "labels": labels, "creationTimestamp": STAMP,
        "annotations": template["metadata"].get("annotations") or {}, "resourceVersion": str(number + index),
        "ownerReferences": [{**owner, "uid": workload["metadata"]["uid"], "controller": True}],
        "managedFields": managed("manager", template["spec"]) + managed("kubelet", template["spec"]),
    }  # fmt: skip
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    one = {
        "image": "registry.example.com/team/trainer:1", "imageID": "sha256:" + "0" * 64, "ready": True,
        "containerID": "containerd://" + "0" * 64, "started": True, "restartCount": 0, "lastState": {},
        "state": {"running": {"startedAt": STAMP}},
    }  # fmt: skip
    containers = [{"name": c["name"], **one} for c in template["spec"]["containers"]]
    inits = [{"name": c["name"], **one} for c in template["spec"].get("initContainers") or []]
    status = {
        "phase": "Running", "conditions": [condition(kind) for kind in kinds], "hostIP": "10.0.0.1",
        "podIP": "10.0.0.2", "containerStatuses": containers, "initContainerStatuses": inits,
    }  # fmt: skip
    spec = {**template["spec"], "nodeName": f"ip-10-0-{index}-{number % 250}.ec2.internal"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def uid(kind: str, number: int) -> str:
    return f"{abs(hash(kind)) % 16**8:08x}-0000-4000-8000-{number:012x}"


def show(reflector: Reflector, raw: Json) -> None:
    """As a watch does."""
    reflector._fold({"type": "ADDED", "object": json.loads(json.dumps(raw))})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=16)
    options = parser.parse_args()
    queue: WorkQueue[Key] = WorkQueue(OperatorMetrics())
    caches = _Caches(Client(cast(Any, Configuration())), (None,), (), queue, HeartbeatClock(), Timing())
    (jobs,), (pods,) = caches._jobs, caches._pods
    workloads = next(r for r in caches.reflectors if r.state()["path"] == "/apis/kubeflow.org/v1/pytorchjobs")
    before = memory()
    print(f"operator without jobs    {before:7.1f} MiB")
    size = 0
    for number in range(options.jobs):
        job = a_job(number)
        workload = a_workload(job, number)
        show(jobs, job)
        show(workloads, workload)
        for index in range(options.pods):
            pod = a_pod(workload, number, index)
            size += len(json.dumps(pod)) if number == 0 else 0
            show(pods, pod)
    print(f"a pod as JSON            {size / options.pods / 1024:7.1f} KiB")
    print(f"with {options.jobs} jobs of {options.pods} pods {memory():7.1f} MiB")


if __name__ == "__main__":
    main()
