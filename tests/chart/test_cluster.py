"""Chart, samples and overlays against a real API server: accepted in a dry run.

Not here, because it needs a kubelet: pods that start, a rolling upgrade, and `helm test`.
"""

from __future__ import annotations

import copy
import re
import subprocess
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_core import __version__
from guard_operator.adapters import ADAPTERS, find_adapter
from guard_operator.api.names import KIND
from guard_operator.api.schema import crd
from guard_operator.api.status import Status
from guard_operator.api.types import Spec
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import (
    MERGE,
    STATEFUL_SETS,
)
from guard_operator.runtime.errors import ApiError

from .conftest import CHART, NAMESPACE, ROOT, VALUES, Cluster, Helm, Json, Render, Tools

pytestmark = pytest.mark.nightly

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
SAMPLES = sorted(p for p in ROOT.glob("k8s/samples/**/*.yaml") if p.name != "kustomization.yaml")
OVERLAYS = sorted(p.parent for p in ROOT.glob("k8s/**/kustomization.yaml"))
UNWATCHED = "team-unwatched"
NAMESPACES = [NAMESPACE, "team-a", "team-b", UNWATCHED, "rlguard-demo", "training"]
CONFIG = OperatorConfig(f"rlguard/guard-hf:{__version__}")


# -- every object is accepted ----------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def namespaces(cluster: Cluster) -> None:
    for name in NAMESPACES:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, dry_run=False)


@pytest.mark.parametrize("values", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_rendered_object_is_accepted(cluster: Cluster, render: Render, values: Path) -> None:
    for obj in render(values):
        cluster.apply(obj)


def test_an_object_that_is_wrong_would_be_refused(cluster: Cluster, render: Render) -> None:
    deployment = next(o for o in render() if o["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Never"
    with pytest.raises(ApiError, match="imagePullPolicies"):
        cluster.apply(deployment)


def test_helm_itself_finds_the_release_installable(cluster: Cluster, helm: Helm, kubeconfig: Path) -> None:
    done = helm(
        "install", "rlguard", CHART, "--dry-run=server", f"--kubeconfig={kubeconfig}", "--namespace", "x",
        "--set", "crds.install=false,replicas=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert "watches all namespaces" in notes
    assert "There is one replica" in notes
    assert "guardedtrainingjobs.rlguard.dev must be of this version" in notes


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("replicas=2", ["rlguard/operator", "rlguard/guard-hf"]),
        ("image.pullPolicy=Never", ["rlguard/guard-hf"]),
        ("image.registry=r.example.com", ["rlguard/guard-hf"]),
        ("global.imageRegistry=r.example.com", []),
    ],
)
def test_images_without_a_registry_are_told_of(
    cluster: Cluster, helm: Helm, kubeconfig: Path, settings: str, told: list[str]
) -> None:
    done = helm(
        "install", "rlguard", CHART, "--dry-run=server", f"--kubeconfig={kubeconfig}", "--namespace", "x",
        "--set", f"crds.install=false,{settings}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\S+) names no registry", done.stdout) == told


# -- samples and overlays --------------------------------------------------------------------------------


def job_of(raw: Json, namespace: str = "default") -> Job:
    spec = Spec.model_validate(raw["spec"])
    return Job(raw["metadata"]["name"], namespace, "0123456789abcdef", 1, "1", {}, spec, Status())


def check(cluster: Cluster, documents: list[Json]) -> list[Json]:
    """Every object passes a dry run; so does the workload of every job; nothing is refused. The jobs.

    Kinds whose CRDs are not here meet their controllers in `tests/kinds`; their pods are checked here, too.
    """
    jobs = [d for d in documents if d["kind"] == KIND]
    for document in documents:
        if not document["apiVersion"].startswith("trainer.kubeflow.org/"):
            cluster.apply(document)
    for raw in jobs:
        job = job_of(raw, raw["metadata"].get("namespace", "default"))
        config = OperatorConfig("guard:1")
        adapter = find_adapter(job.spec.workload.api_version, job.spec.workload.kind)
        assert adapter is not None
        if job.spec.target_ref is not None:
            own = job.spec.guard.own_pod
            assert own is not None and review(adapter, job, config).reason is None
            for _, body in guard_objects(job, own, adapter, config):
                cluster.apply(body)
            continue
        assert review(adapter, job, config).reason is None
        workload = build_workload(job, adapter, config)
        if adapter.resource.group in {"batch", "kubeflow.org"}:
            cluster.apply(workload)
        for place in adapter.pod_templates(workload["spec"]):
            pod_template = reduce(getitem, place.path, workload["spec"])
            pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(pod_template)}
            pod["metadata"] |= {"name": "pod", "namespace": job.namespace}
            cluster.apply(pod)
    return jobs


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_sample(cluster: Cluster, path: Path) -> None:
    check(cluster, list(yaml.safe_load_all(path.read_text())))


def build(tools: Tools, directory: Path) -> list[Json]:
    command = [tools.kustomize, "build", directory]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("directory", OVERLAYS, ids=lambda p: str(p.relative_to(ROOT / "k8s")))
def test_overlay(cluster: Cluster, tools: Tools, directory: Path) -> None:
    assert check(cluster, build(tools, directory))


def test_what_the_eks_overlay_adds_to_every_pod(tools: Tools) -> None:
    documents = build(tools, ROOT / "k8s" / "overlays" / "eks")
    claims = {d["metadata"]["name"]: d for d in documents if d["kind"] == "PersistentVolumeClaim"}
    for job in (d for d in documents if d["kind"] == KIND):
        for role in job["spec"]["template"]["spec"]["pytorchReplicaSpecs"].values():
            template = role["template"]
            pod, container = template["spec"], template["spec"]["containers"][0]
            assert template["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
            assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod[
                "tolerations"
            ]
            assert pod["serviceAccountName"] == "trainer"
            assert container["image"].startswith("123456789012.dkr.ecr.")
            used = {
                v["persistentVolumeClaim"]["claimName"]
                for v in pod["volumes"]
                if "persistentVolumeClaim" in v
            }
            assert used <= claims.keys()
        heldout = claims[job["spec"]["guard"]["heldout"]["volume"]["claimName"]]
        assert heldout["spec"]["accessModes"] == ["ReadOnlyMany"]


#: Labels and taints of the nodes of four kinds of EKS cluster, for the operator and for GPUs.
SYSTEM = {"key": "CriticalAddonsOnly", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
ON_DEMAND = {"kubernetes.io/arch": "amd64", "karpenter.sh/capacity-type": "on-demand"}
AUTO = ON_DEMAND | {"eks.amazonaws.com/compute-type": "auto"}
GROUP = {"kubernetes.io/arch": "amd64", "eks.amazonaws.com/nodegroup": "one"}
CLUSTERS: dict[str, dict[str, tuple[Json, list[Json]]]] = {
    "Auto Mode": {
        "operator": (AUTO | {"karpenter.sh/nodepool": "system"}, [SYSTEM]),
        "gpu": (AUTO | {"karpenter.sh/nodepool": "gpu", "eks.amazonaws.com/instance-category": "p"}, [GPU]),
    },
    "Karpenter alone": {
        "operator": (ON_DEMAND | {"karpenter.sh/nodepool": "default"}, []),
        "gpu": (ON_DEMAND | {"karpenter.sh/nodepool": "gpu", "nvidia.com/gpu.present": "true"}, [GPU]),
    },
    "node groups": {"operator": (GROUP, []), "gpu": (GROUP | {"nvidia.com/gpu.present": "true"}, [GPU])},
}


def fits(pod: Json, labels: Json, taints: list[Json]) -> bool:
    """Whether the scheduler may place a pod on such a node, by selector, required affinity and taints."""
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    holds = {
        "In": lambda e: labels.get(e["key"]) in e["values"],
        "NotIn": lambda e: labels.get(e["key"]) not in e["values"],
        "Exists": lambda e: e["key"] in labels,
        "DoesNotExist": lambda e: e["key"] not in labels,
    }
    terms = required["nodeSelectorTerms"] if required else [{"matchExpressions": []}]
    return (
        pod.get("nodeSelector", {}).items() <= labels.items()
        and any(all(holds[e["operator"]](e) for e in term["matchExpressions"]) for term in terms)
        and {taint["key"] for taint in taints} <= {one["key"] for one in pod.get("tolerations", [])}
    )


@pytest.mark.parametrize("kind", CLUSTERS)
def test_on_eks_nothing_waits_for_a_node_that_cannot_come(tools: Tools, render: Render, kind: str) -> None:
    nodes, overlay = CLUSTERS[kind], ROOT / "k8s" / "overlays" / "eks"
    deployment = next(o for o in render(overlay / "values.yaml") if o["kind"] == "Deployment")
    operator = deployment["spec"]["template"]["spec"]
    assert fits(operator, *nodes["operator"])
    assert not fits(operator, *nodes["gpu"])
    for job in (d for d in build(tools, overlay) if d["kind"] == KIND):
        for role in job["spec"]["template"]["spec"]["pytorchReplicaSpecs"].values():
            labels, taints = nodes["gpu"]
            assert fits(role["template"]["spec"], labels, taints)
            assert not fits(role["template"]["spec"], labels | {"karpenter.sh/capacity-type": "spot"}, taints)


def test_on_eks_a_guard_in_a_pod_of_its_own_has_a_node_and_a_role_of_its_own(tools: Tools) -> None:
    documents = build(tools, ROOT / "k8s" / "overlays" / "eks")
    roles = {
        d["metadata"]["name"]: d["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        for d in documents
        if d["kind"] == "ServiceAccount"
    }
    raw = next(d for d in documents if d["kind"] == KIND and d["metadata"]["name"] == "guard-pod")
    job = job_of(raw, "training")
    assert job.spec.guard.own_pod is not None
    made = dict(guard_objects(job, job.spec.guard.own_pod, ADAPTERS[0], CONFIG))[STATEFUL_SETS]
    pod, trains = (
        made["spec"]["template"]["spec"],
        raw["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"],
    )
    assert roles[pod["serviceAccountName"]] != roles[trains["serviceAccountName"]]
    g6, gpu = GROUP | {"node.kubernetes.io/instance-type": "g6.2xlarge"}, CLUSTERS["node groups"]["gpu"]
    assert fits(pod, g6, [GPU]) and not fits(pod, *gpu)
    assert review(ADAPTERS[0], job, CONFIG).findings == ()


def test_on_eks_no_claim_waits_for_a_default_storage_class(tools: Tools) -> None:
    documents = build(tools, ROOT / "k8s" / "overlays" / "eks")
    made = {d["metadata"]["name"] for d in documents if d["kind"] == "StorageClass"}
    volumes = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolume"}
    claims = [d["spec"] for d in documents if d["kind"] == "PersistentVolumeClaim"]
    assert claims
    for claim in claims:  # without the field it would be the default class, which Auto Mode has not
        assert claim["storageClassName"] in made or claim["volumeName"] in volumes


# -- admission: the operator's refusals, for pods that were changed behind its back ----------------------


def sample() -> Json:
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "single-gpu.yaml").read_text())
    return next(d for d in documents if d["kind"] == KIND)


# -- the life of a release, as far as it needs no kubelet ------------------------------------------------


def test_install_upgrade_and_uninstall_keep_the_crd_and_the_jobs(
    cluster: Cluster, helm: Helm, kubeconfig: Path
) -> None:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return helm(*arguments, f"--kubeconfig={kubeconfig}", "--namespace", NAMESPACE)

    def objects() -> list[Json]:
        done = run("get", "manifest", "rlguard")
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def exists(obj: Json) -> bool:
        try:
            cluster.client.request("GET", cluster.path(obj))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # A CRD that was applied by hand is not Helm's; docs/tasks/run-on-kubernetes.md says how it becomes so.
    done = run("install", "rlguard", CHART)
    assert done.returncode != 0 and "cannot be imported into the current release" in done.stderr
    crd_path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/guardedtrainingjobs.rlguard.dev"
    owner = {"meta.helm.sh/release-name": "rlguard", "meta.helm.sh/release-namespace": NAMESPACE}
    adoption = {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": owner}
    cluster.client.request("PATCH", crd_path, body={"metadata": adoption}, content_type=MERGE)

    done = run("install", "rlguard", CHART)
    assert done.returncode == 0, done.stderr
    installed = objects()
    assert all(map(exists, installed))
    job = sample() | {"metadata": {"name": "kept", "namespace": UNWATCHED}}
    cluster.apply(job, dry_run=False)

    # An upgrade brings a lost part of the CRD back.
    columns: Any = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    cluster.client.request("PATCH", crd_path, body=columns, content_type="application/json-patch+json")
    done = run("upgrade", "rlguard", CHART, "--set", "replicas=3,podDisruptionBudget.enabled=false")
    assert done.returncode == 0, done.stderr
    version = cluster.client.request("GET", crd_path)["spec"]["versions"][0]
    assert version["additionalPrinterColumns"] == crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert next(o for o in objects() if o["kind"] == "Deployment")["spec"]["replicas"] == 3
    assert [o["kind"] for o in installed if not exists(o)] == ["PodDisruptionBudget"]

    done = run("uninstall", "rlguard")
    assert done.returncode == 0, done.stderr
    left = [o["kind"] for o in installed if exists(o)]
    assert left == ["CustomResourceDefinition"]
    assert exists(job)
