"""Jobs, workloads and pods like the real ones, as an API server sends them, for the operator's benchmarks.

A status is what the operator itself would write of such a run, so that an operator that comes upon it has
nothing to do.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from guards import verdict

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from rlguard.core.wire import Verdict  # noqa: E402
from rlguard.operator.adapters import find_adapter  # noqa: E402
from rlguard.operator.api.names import (  # noqa: E402
    API_VERSION,
    GUARD_CONTAINER,
    KIND,
    NAMESPACE_LABEL,
    UID_LABEL,
)
from rlguard.operator.config import OperatorConfig  # noqa: E402
from rlguard.operator.guards.keeper import PREFIX  # noqa: E402
from rlguard.operator.guards.reading import Reading  # noqa: E402
from rlguard.operator.reconcile.actuate import status_patch  # noqa: E402
from rlguard.operator.reconcile.decide import decide  # noqa: E402
from rlguard.operator.reconcile.inject import build_workload  # noqa: E402
from rlguard.operator.reconcile.owned import host_of  # noqa: E402
from rlguard.operator.reconcile.parse import parse_job  # noqa: E402
from rlguard.operator.reconcile.snapshot import Pod, Snapshot, Workload, WorkloadState  # noqa: E402
from rlguard.operator.reconcile.support import new_credentials  # noqa: E402

Json = dict[str, Any]
STAMP = "2026-01-01T00:00:00Z"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IMAGE = "guard:1"
TEAMS, WORKERS = 20, 15
SAMPLE = ROOT / "k8s" / "samples" / "multi-node.yaml"


def managed(owner: str, of: object, version: str = "v1") -> list[Json]:
    """`managedFields` of about the size that servers keep."""
    fields = {f"f:{key}": {} for key in re.findall(r'"(\w+)":', json.dumps(of))}
    entry = {"manager": owner, "operation": "Update", "time": STAMP, "apiVersion": version}
    return [{**entry, "fieldsType": "FieldsV1", "fieldsV1": fields}]


def condition(kind: str, status: str = "True", message: str = "") -> Json:
    times = {"lastTransitionTime": STAMP, "lastProbeTime": None}
    return {"type": kind, "status": status, "reason": kind, "message": message, **times}


def uid(kind: int, number: int) -> str:
    return f"{kind:08x}-0000-4000-8000-{number:012x}"


JOB, WORKLOAD, SECRET, POD = 1, 2, 3, 16
#: Where the operator's Lease is. What the guards of these jobs listen at, which no other program here does.
OPERATOR_NAMESPACE, PORT = "default", 18_787


@cache
def _sample_spec() -> Json:
    documents = yaml.safe_load_all(SAMPLE.read_text(encoding="utf-8"))
    spec: Json = next(one for one in documents if one["kind"] == KIND)["spec"]
    return json.loads(json.dumps(spec))  # the file's anchors are one object in two places


def address(number: int) -> str:
    """Of the pod with the guard: one that is this machine's own."""
    return f"127.100.{number // 250}.{number % 250 + 1}"


def a_key(job: Json) -> Mapping[str, str]:
    """A key and tokens for the guard of a job, as the operator makes them."""
    return new_credentials(parse_job(job), NOW)


def host(job: Json) -> str:
    """The name in that key."""
    return host_of(parse_job(job))


def a_kept_secret(job: Json, number: int, key: Mapping[str, str]) -> Json:
    """What the operator keeps of a run in its own namespace."""
    of = job["metadata"]
    labels = {UID_LABEL: of["uid"], NAMESPACE_LABEL: of["namespace"]}
    metadata = {"name": PREFIX + of["uid"], "namespace": OPERATOR_NAMESPACE, "labels": labels}
    metadata |= {"uid": uid(SECRET, number), "creationTimestamp": STAMP}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in key.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def a_job(number: int) -> Json:
    """A job of one of `TEAMS` namespaces that runs well."""
    metadata = {
        "name": f"grpo-run-{number}", "namespace": f"team-{number % TEAMS}", "uid": uid(JOB, number),
        "creationTimestamp": STAMP, "resourceVersion": str(10_000_000 + number), "generation": 1,
    }  # fmt: skip
    ref = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": metadata["name"]}
    ref |= {"uid": uid(WORKLOAD, number)}
    spec = copy.deepcopy(_sample_spec())
    spec["guard"]["port"] = PORT
    job: Json = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": spec,
        "status": {"workloadRef": ref},
    }
    reading = Reading(uid(POD, number), "", Verdict.model_validate_json(json.dumps(verdict(number))), NOW)
    guard = Pod(
        "master-0", reading.pod, guarded=True, rank0=True, phase="Running", ready=True, guard_since=NOW
    )
    workload = Workload(uid(WORKLOAD, number), ours=True, state=WorkloadState.RUNNING, message="")
    parsed = parse_job(job, reading)
    decision = decide(Snapshot(parsed, workload, (guard,), reading=reading, silent_for=0.0), NOW)
    job["status"] = status_patch(metadata, decision.report, parsed.guard)["status"]
    metadata["managedFields"] = [
        *managed("kubectl", job["spec"], API_VERSION),
        *managed("rlguard-operator", job["status"], API_VERSION),
    ]
    return job


def a_workload(job: Json, number: int) -> Json:
    """The PyTorchJob that the operator made of it."""
    parsed = parse_job(job)
    adapter = find_adapter("kubeflow.org/v1", "PyTorchJob")
    assert adapter is not None
    workload = copy.deepcopy(build_workload(parsed, adapter, OperatorConfig(IMAGE)))
    metadata = {"uid": uid(WORKLOAD, number), "creationTimestamp": STAMP, "resourceVersion": str(number)}
    workload["metadata"] |= {
        **metadata,
        "managedFields": managed("rlguard-operator", workload["spec"], "kubeflow.org/v1"),
    }
    workload["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = WORKERS
    replicas = {"Master": {"active": 1}, "Worker": {"active": WORKERS}}
    told = [condition("Created"), condition("Running")]
    workload["status"] = {"conditions": told, "replicaStatuses": replicas}
    return workload


def a_pod(workload: Json, number: int, index: int) -> Json:
    """One of its pods: 0 is the Master, with the guard."""
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
        "name": f"{workload['metadata']['name']}-{role.lower()}-{index}", "uid": uid(POD + index, number),
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
    assert index or GUARD_CONTAINER in {c["name"] for c in inits}
    status = {
        "phase": "Running", "conditions": [condition(kind) for kind in kinds],
        "hostIP": "10.0.0.1", "podIP": "10.0.0.2" if index else address(number),
        "containerStatuses": containers, "initContainerStatuses": inits,
    }  # fmt: skip
    spec = {**template["spec"], "nodeName": f"ip-10-0-{index}-{number % 250}.ec2.internal"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
