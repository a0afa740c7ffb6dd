"""k8s/samples and k8s/overlays: the API server takes every object, and the operator makes every run.

Jobs of kinds whose CRDs are not here have their workloads made in `tests/kinds`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.core import __version__
from rlguard.core.policy import Policy
from rlguard.operator.api.types import Spec
from rlguard.operator.runtime.client import BATCH_JOBS, CLAIMS, PODS, STATEFUL_SETS, Client
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.world import JOBS, PYTORCHJOBS, World

from .conftest import ROOT, Cluster, Json, Render, tool

K8S = ROOT / "k8s"
SAMPLES = sorted(p for p in K8S.glob("samples/**/*.yaml") if p.name != "kustomization.yaml")
OVERLAYS = sorted(p.parent for p in K8S.glob("overlays/*/kustomization.yaml"))
DEMO = K8S / "samples" / "cpu-demo"
SERVED = {"PyTorchJob": PYTORCHJOBS, "Job": BATCH_JOBS}
FOREIGN = ("trainer.kubeflow.org/",)


def build(directory: Path) -> list[Json]:
    command = [tool("kustomize"), "build", directory]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(documents: list[Json], kind: str) -> dict[str, Json]:
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def claims_in(value: Any) -> Iterator[str]:
    """Every claim that is named anywhere in an object."""
    if isinstance(value, dict):
        yield from (name for key, name in value.items() if key == "claimName")
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from claims_in(one)


@pytest.mark.nightly
@pytest.mark.parametrize("path", [*SAMPLES, *OVERLAYS], ids=lambda p: str(p.relative_to(K8S)))
def test_it_is_taken_and_run(
    cluster: Cluster, client: Client, plane: ControlPlane, tmp_path: Path, path: Path
) -> None:
    documents = build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    jobs = of_kind(documents, JOBS.kind)
    namespace = next((j["metadata"].get("namespace") for j in jobs.values()), None) or path.stem
    cluster.namespaces(namespace)
    for document in documents:
        if not document["apiVersion"].startswith(FOREIGN):
            if document["kind"] not in {"Namespace", "StorageClass", "PersistentVolume"}:
                document["metadata"]["namespace"] = namespace
            cluster.apply(document, dry_run=False)
    here = World(plane, client, namespace, tmp_path)
    try:
        for name in set(claims_in([*jobs.values()])) - of_kind(documents, CLAIMS.kind).keys():
            here.claim(name, "ReadWriteMany")
        here.operator()
        for name, job in jobs.items():
            kind = job["spec"].get("template", {}).get("kind")
            if kind not in SERVED:
                continue
            one = here.another(name)
            one.expect("Guarded", "True", "WorkloadCreated", within=60)
            made = client.get(SERVED[kind], namespace, name)
            assert made is not None
            replicas = made["spec"].get(
                "pytorchReplicaSpecs", {"": {"template": made["spec"].get("template")}}
            )
            sets = client.list(STATEFUL_SETS, namespace, {})["items"]
            for template in (part["template"] for part in [*replicas.values(), *(s["spec"] for s in sets)]):
                labels = template["metadata"].get("labels") or {}
                pod = {"metadata": {"name": "pod", "labels": labels}, "spec": template["spec"]}
                client.create(PODS, namespace, pod, "test", dry_run=True)
    finally:
        here.close()


def test_samples_and_overlays_name_the_images_of_this_version() -> None:
    named = r"rlguard/(?:guard|guard-hf|guard-vllm|trainer):(\S+?)[\"'}\s]"
    tags = [tag for file in K8S.glob("**/*.yaml") for tag in re.findall(named, file.read_text())]
    assert tags and set(tags) == {__version__}


# -- the demo on a cluster -------------------------------------------------------------------------------


def test_the_demo_on_a_cluster_has_the_policy_of_the_demo() -> None:
    job = yaml.safe_load((DEMO / "job.yaml").read_text())
    own = yaml.safe_load((ROOT / "rlguard" / "cli" / "demo" / "policy.yaml").read_text())
    assert Spec.model_validate(job["spec"]).guard.policy == Policy.model_validate(own)


# -- EKS -------------------------------------------------------------------------------------------------

EKS = K8S / "overlays" / "eks"
#: Labels and taints of the nodes of three kinds of EKS cluster, for the operator and for GPUs.
SYSTEM = {"key": "CriticalAddonsOnly", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
ON_DEMAND = {"kubernetes.io/arch": "amd64", "karpenter.sh/capacity-type": "on-demand"}
AUTO = ON_DEMAND | {"eks.amazonaws.com/compute-type": "auto"}
GROUP = {"kubernetes.io/arch": "amd64", "eks.amazonaws.com/nodegroup": "one"}
Node = tuple[Json, list[Json]]
CLUSTERS: dict[str, tuple[Node, Node]] = {
    "Auto Mode": (
        (AUTO | {"karpenter.sh/nodepool": "system"}, [SYSTEM]),
        (AUTO | {"karpenter.sh/nodepool": "gpu", "eks.amazonaws.com/instance-category": "p"}, [GPU]),
    ),
    "Karpenter alone": (
        (ON_DEMAND | {"karpenter.sh/nodepool": "default"}, []),
        (ON_DEMAND | {"karpenter.sh/nodepool": "gpu", "nvidia.com/gpu.present": "true"}, [GPU]),
    ),
    "node groups": ((GROUP, []), (GROUP | {"nvidia.com/gpu.present": "true"}, [GPU])),
}


def fits(pod: Json, node: Node) -> bool:
    """Whether the scheduler may place a pod on such a node, by selector, required affinity and taints."""
    labels, taints = node
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    holds = {
        "NotIn": lambda e: labels.get(e["key"]) not in e["values"],
        "DoesNotExist": lambda e: e["key"] not in labels,
    }
    terms = required["nodeSelectorTerms"] if required else [{"matchExpressions": []}]
    return (
        pod.get("nodeSelector", {}).items() <= labels.items()
        and any(all(holds[e["operator"]](e) for e in term["matchExpressions"]) for term in terms)
        and {taint["key"] for taint in taints} <= {one["key"] for one in pod.get("tolerations", [])}
    )


@pytest.fixture(scope="module")
def eks() -> list[Json]:
    return build(EKS)


def pods_of(job: Json) -> list[Json]:
    replicas = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"].values()
    return [role["template"]["spec"] for role in replicas]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", CLUSTERS)
def test_on_eks_nothing_waits_for_a_node_that_cannot_come(eks: list[Json], render: Render, kind: str) -> None:
    operators, gpu = CLUSTERS[kind]
    (deployment,) = of_kind(render(EKS / "values.yaml"), "Deployment").values()
    operator = deployment["spec"]["template"]["spec"]
    assert fits(operator, operators) and not fits(operator, gpu)
    spot = (gpu[0] | {"karpenter.sh/capacity-type": "spot"}, gpu[1])
    for pod in (pod for job in of_kind(eks, JOBS.kind).values() for pod in pods_of(job)):
        assert fits(pod, gpu) and not fits(pod, spot)


@pytest.mark.nightly
def test_on_eks_a_guard_in_a_pod_of_its_own_has_a_role_of_its_own(eks: list[Json]) -> None:
    role = "eks.amazonaws.com/role-arn"
    roles = {
        name: one["metadata"]["annotations"][role] for name, one in of_kind(eks, "ServiceAccount").items()
    }
    job = of_kind(eks, JOBS.kind)["guard-pod"]
    own = roles[job["spec"]["guard"]["pod"]["serviceAccountName"]]
    assert own not in {roles[pod["serviceAccountName"]] for pod in pods_of(job)}


@pytest.mark.nightly
def test_on_eks_no_claim_waits_for_a_default_storage_class(eks: list[Json]) -> None:
    claims = of_kind(eks, CLAIMS.kind).values()
    assert claims
    for claim in claims:  # without the field it would be the default class, which Auto Mode has not
        spec = claim["spec"]
        made = spec["storageClassName"] in of_kind(eks, "StorageClass")
        assert made or spec["volumeName"] in of_kind(eks, "PersistentVolume")
