"""Chart, samples and overlays against a real API server: accepted in a dry run, and admission works.

Not here, because it needs a kubelet: pods that start, a rolling upgrade, and `helm test`.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import count
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_core import __version__
from guard_operator.adapters import ADAPTERS, ComposedAdapter, WorkloadAdapter, find_adapter
from guard_operator.api.names import KIND, guard_name
from guard_operator.api.schema import crd
from guard_operator.api.types import GuardPod, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.evidence import build_evidence
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.refusals import find_violations
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import Job, with_spec
from guard_operator.reconcile.support import new_credentials, support_objects
from guard_operator.runtime.client import (
    APPLY,
    CONFIG_MAPS,
    MERGE,
    SECRETS,
    STATEFUL_SETS,
    Client,
    Resource,
    load_configuration,
)
from guard_operator.runtime.errors import ApiError

from .conftest import CHART, NAMESPACE, ROOT, VALUES, Helm, Json, Render, Tools, load

pytestmark = pytest.mark.nightly

eventually = load(ROOT / "tests/operator/integration/waiting.py", "chart_waiting").eventually
pod_fields = load(ROOT / "tests/operator/unit/pod_fields.py", "pod_fields")

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
SAMPLES = sorted(p for p in ROOT.glob("k8s/samples/**/*.yaml") if p.name != "kustomization.yaml")
OVERLAYS = sorted(p.parent for p in ROOT.glob("k8s/**/kustomization.yaml"))
STRICT, RELAXED, UNWATCHED = "team-strict", "team-relaxed", "team-unwatched"
RELEASES = {"strict": STRICT, "relaxed": RELAXED}
NAMESPACES = [NAMESPACE, "team-a", "team-b", STRICT, RELAXED, UNWATCHED, "rlguard-demo", "training"]
HOST_PATH = "/mnt/k8s-disks"
CONFIG = OperatorConfig(f"rlguard/guard-hf:{__version__}", relaxed_host_paths=(HOST_PATH,))
#: The jobs of the namespaces with policies, once `admission` has created them.
JOBS: dict[str, Job] = {}


# -- every object is accepted ----------------------------------------------------------------------------


class Cluster:
    """Server-side apply of any object, with its plural from the server's own discovery."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def path(self, obj: Json) -> str:
        version, kind = obj["apiVersion"], obj["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            for resource in self.client.request("GET", base)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        plural, namespaced = self._plurals[version, kind]
        scope = f"/namespaces/{obj['metadata'].get('namespace', 'default')}" if namespaced else ""
        return f"{base}{scope}/{plural}/{obj['metadata']['name']}"

    def apply(self, obj: Json, dry_run: bool = True) -> Json:
        query = {"fieldManager": "chart-test", "force": "true", "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        return self.client.request("PATCH", self.path(obj), query=query, body=obj, content_type=APPLY)


@pytest.fixture(scope="session")
def cluster(client: Client) -> Cluster:
    cluster = Cluster(client)
    for name in NAMESPACES:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, dry_run=False)
    return cluster


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
        template = job.spec.made_from
        if isinstance(adapter, ComposedAdapter):
            source = adapter.source(template.spec)
            named = (source.resource.kind, source.name)
            [found] = [d for d in documents if (d["kind"], d["metadata"]["name"]) == named]
            job = with_spec(job, adapter.composed(template.spec, found))
        assert find_violations(adapter, job.spec.made_from.spec, job.spec.guard, config) == ()
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
    pod, trains = made["spec"]["template"]["spec"], template_pod(raw)
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


def template_pod(raw: Json) -> Json:
    pod: Json = raw["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return pod


def submit(
    client: Client,
    namespace: str,
    name: str,
    change: Callable[[Json], Any] = lambda _: None,
    dry_run: bool = False,
) -> Job:
    """The sample as a job of this name in the API server, after a change of its spec."""
    raw = sample() | {"metadata": {"name": name, "namespace": namespace}}
    change(raw["spec"])
    path = f"/apis/rlguard.dev/v1alpha1/namespaces/{namespace}/guardedtrainingjobs"
    query = {"dryRun": "All"} if dry_run else {}
    made = client.request("POST", path, query=query, body=raw)
    made["metadata"].setdefault("resourceVersion", "0")  # a dry run has none
    return parse_job(made)


def guarded_pod(namespace: str, job: Job | None = None, role: str = "Master") -> Json:
    """The pod that the training-operator makes of what our operator built."""
    job = job or JOBS.get(namespace) or job_of(sample(), namespace)
    workload = build_workload(job, ADAPTERS[0], CONFIG)
    template = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
    labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-type": role.lower()}
    metadata = template["metadata"] | {
        "name": f"{job.name}-{role.lower()}-0",
        "namespace": namespace,
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def without_guard(pod: Json) -> Json:
    """The same pod as one that gets no guard."""
    spec = pod["spec"]
    spec["initContainers"].pop()
    spec["volumes"] = [v for v in spec["volumes"] if not v["name"].startswith("rlguard-")]
    trainer = spec["containers"][0]
    trainer.pop("env")
    trainer["volumeMounts"] = [m for m in trainer["volumeMounts"] if not m["name"].startswith("rlguard-")]
    return pod


def create(client: Client, pod: Json, dry_run: bool = True) -> Json:
    query = {"fieldManager": "training-operator", "fieldValidation": "Strict"}
    query |= {"dryRun": "All"} if dry_run else {}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    return client.request("POST", path, query=query, body=pod)


def only_forbidden(error: ApiError) -> str:
    """Its words; any other error is the test's own mistake."""
    if error.status != 403:
        raise error
    return str(error)


def refusal(client: Client, pod: Json) -> str | None:
    """What the API server says against the pod; None if it admits it."""
    try:
        create(client, pod)
    except ApiError as error:
        return only_forbidden(error)
    return None


@pytest.fixture(scope="session")
def admission(cluster: Cluster, render: Render) -> Client:
    """Two releases, one for each namespace: the defaults, and one that admits what Relaxed may have.

    In each namespace there is a job; what the policies know of it, they know from there.
    """
    values = {
        "strict": {"admissionPolicy.guardImages": '["mine/", "one/guard:1"]'},
        "relaxed": {"relaxed.hostNetwork": "true", "relaxed.hostPaths": f'["{HOST_PATH}"]'},
    }
    for release, namespace in RELEASES.items():
        for obj in render({"watchNamespaces": f'["{namespace}"]', **values[release]}, release):
            if obj["kind"].startswith(("ValidatingAdmissionPolicy", "Role", "ServiceAccount")):
                cluster.apply(obj, dry_run=False)
    for namespace in (STRICT, RELAXED):  # the server takes a moment to load them
        bad = guarded_pod(namespace)
        bad["spec"]["hostPID"] = True
        eventually(partial(refusal, cluster.client, bad), f"the policies work in {namespace}")
    JOBS[STRICT] = submit(cluster.client, STRICT, "single-gpu")
    relax = partial(set_guard, isolation="Relaxed")
    JOBS[RELAXED] = submit(cluster.client, RELAXED, "single-gpu", relax)
    for namespace in (STRICT, RELAXED):  # nor does it know a new job at once
        known(cluster.client, namespace, JOBS[namespace])
    return cluster.client


def known(client: Client, namespace: str, job: Job) -> None:
    """Wait until the policies have seen a job that was just created."""
    bad = guarded_pod(namespace, job)
    guard(bad["spec"])["image"] = "other"
    eventually(partial(refusal, client, bad), f"the policies know the job {job.name}")


def set_guard(spec: Json, **values: Any) -> None:
    spec["guard"].update(values)


@pytest.mark.always
def test_the_pod_that_the_operator_made_is_admitted(admission: Client) -> None:
    assert refusal(admission, guarded_pod(STRICT)) is None


@pytest.mark.always
def test_a_worker_without_a_guard_is_admitted(admission: Client) -> None:
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    assert refusal(admission, pod) is None


@pytest.mark.always
def test_the_pod_of_a_batch_job_must_have_its_guard(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    pod["metadata"]["labels"] |= {
        "training.kubeflow.org/replica-type": "",
        "batch.kubernetes.io/job-name": "batch-job",
    }
    assert refusal(admission, pod) is None
    without_guard(pod)
    assert "must have its guard" in str(refusal(admission, pod))
    pod["metadata"]["labels"]["rlguard.dev/submitter"] = "true"
    assert refusal(admission, pod) is None, "it only submits a RayJob"


def as_batch(spec: Json, mode: str = "NonIndexed") -> None:
    """The trainer of the sample as a Job."""
    replica = spec["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    job = {"completionMode": mode, "template": replica}
    spec["template"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": job}


def test_no_label_spares_a_batch_job_its_guard(admission: Client) -> None:
    job = submit(admission, STRICT, "spared", as_batch)
    pod = guarded_pod(STRICT)
    pod["metadata"]["labels"] = {
        "rlguard.dev/job": job.name,
        "rlguard.dev/job-uid": job.uid,
        "rlguard.dev/submitter": "true",
        "batch.kubernetes.io/job-name": job.name,
    }
    without_guard(pod)
    said = "the pods of a Job, of the replicatedJob with rank 0, or of a job without a Master, must each"
    eventually(lambda: said in str(refusal(admission, pod)), "the policies know the job and spare it nothing")


def test_the_head_of_a_rayjob_must_have_its_guard_and_its_workers_need_none(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    pod["metadata"]["labels"] |= {"training.kubeflow.org/replica-type": "", "ray.io/node-type": "head"}
    assert refusal(admission, pod) is None
    for container in (guard(pod["spec"]), trainer(pod["spec"])):  # as KubeRay does
        container["env"].extend({"name": name, "value": "run-head-svc"} for name in ("FQ_RAY_IP", "RAY_IP"))
    assert refusal(admission, pod) is None
    without_guard(pod)
    assert "must have its guard" in str(refusal(admission, pod))
    pod["metadata"]["labels"]["ray.io/node-type"] = "worker"
    assert refusal(admission, pod) is None


def as_jobset(spec: Json, **more: Any) -> None:
    """The trainer of the sample as a JobSet, with workers beside it."""
    replica = spec["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    parts = [{"name": name, "template": {"spec": {"template": replica}}} for name in ("trainer", "workers")]
    workload = {"replicatedJobs": parts, **more}
    spec["template"] = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": workload}


def test_the_pods_of_a_jobset_have_their_guard_where_rank_0_is(admission: Client) -> None:
    job = submit(admission, STRICT, "set", as_jobset)
    pod = guarded_pod(STRICT)
    names = {"rlguard.dev/job": job.name, "rlguard.dev/job-uid": job.uid}
    ofset = {"jobset.sigs.k8s.io/jobset-name": job.name, "batch.kubernetes.io/job-name": "set-trainer-0"}
    part = "jobset.sigs.k8s.io/replicatedjob-name"
    without_guard(pod)

    def said(**labels: str) -> str:
        pod["metadata"]["labels"] = names | ofset | labels
        return str(refusal(admission, pod))

    eventually(lambda: "must each have their guard" in said(**{part: "trainer"}), "the policies know it")
    assert "must each have their guard" in said()
    assert said(**{part: "workers"}) == "None"


def as_trainjob(spec: Json) -> None:
    """A TrainJob, whose pods are made of what its job does not show."""
    workload = {"runtimeRef": {"name": "torch"}}
    spec["template"] = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": workload}


def test_the_nodes_of_a_trainjob_have_their_guard(admission: Client) -> None:
    job = submit(admission, STRICT, "train", as_trainjob)
    pod = guarded_pod(STRICT)
    names = {"rlguard.dev/job": job.name, "rlguard.dev/job-uid": job.uid}
    ofset = {"jobset.sigs.k8s.io/jobset-name": job.name, "batch.kubernetes.io/job-name": "train-node-0"}
    part = "jobset.sigs.k8s.io/replicatedjob-name"
    without_guard(pod)

    def said(**labels: str) -> str:
        pod["metadata"]["labels"] = names | ofset | labels
        return str(refusal(admission, pod))

    eventually(lambda: "must each have their guard" in said(**{part: "node"}), "the policies know it")
    assert "must each have their guard" in said()
    assert said(**{part: "dataset-initializer"}) == "None"


@pytest.mark.always
def test_other_pods_and_other_namespaces_are_left_alone(admission: Client) -> None:
    pod = guarded_pod(UNWATCHED)
    pod["spec"]["hostPID"] = True
    assert refusal(admission, pod) is None
    pod = guarded_pod(STRICT)
    pod["spec"]["hostPID"] = True
    pod["metadata"]["labels"] = {}
    assert refusal(admission, pod) is None


def test_tokens_that_irsa_and_pod_identity_add_are_admitted(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    for audience in ("sts.amazonaws.com", "pods.eks.amazonaws.com"):
        token = {"serviceAccountToken": {"audience": audience, "path": "token"}}
        pod["spec"]["volumes"].append({"name": audience.replace(".", "-"), "projected": {"sources": [token]}})
    assert refusal(admission, pod) is None


@dataclass(frozen=True)
class Case:
    """A change of a pod that is refused. `pod_only`: the operator cannot meet it in a template."""

    name: str
    change: Callable[[Json], Any]
    said: str
    pod_only: bool = False

    def __str__(self) -> str:
        return self.name


def trainer(pod: Json) -> Json:
    found: Json = pod["containers"][0]
    return found


def guard(pod: Json) -> Json:
    found: Json = pod["initContainers"][-1]
    return found


def mount(container: Json, name: str) -> Json:
    found: Json = next(m for m in container["volumeMounts"] if m["name"] == name)
    return found


def volume(pod: Json, **source: Any) -> None:
    pod["volumes"].append({"name": "extra", **source})


def keep_state_in(pod: Json, claim: str) -> None:
    (state,) = (v for v in pod["volumes"] if v["name"] == "rlguard-state")
    del state["emptyDir"]
    state["persistentVolumeClaim"] = {"claimName": claim}


def extra(pod: Json, **container: Any) -> None:
    pod["containers"].append({"name": "extra", "image": "busybox", **container})


CASES = [
    Case("shareProcessNamespace", lambda p: p.update(shareProcessNamespace=True), "shareProcessNamespace"),
    Case("hostPID", lambda p: p.update(hostPID=True), "hostPID"),
    Case("hostIPC", lambda p: p.update(hostIPC=True), "hostIPC"),
    Case("hostNetwork", lambda p: p.update(hostNetwork=True), "hostNetwork"),
    Case("hostPath", lambda p: volume(p, hostPath={"path": "/etc"}), "volume extra: hostPath"),
    Case(
        "the held-out claim",
        lambda p: volume(p, persistentVolumeClaim={"claimName": "heldout"}),
        "volume extra: must not be a claim of the guard's",
    ),
    Case(
        "the claim of the guard's state",
        lambda p: (keep_state_in(p, "s"), volume(p, persistentVolumeClaim={"claimName": "s"})),
        "volume extra: must not be a claim of the guard's",
        pod_only=True,
    ),
    Case(
        "a token",
        lambda p: volume(p, projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        "volume extra: must not have a service-account token",
    ),
    Case(
        "a token for the API server by name",
        lambda p: volume(
            p,
            projected={
                "sources": [
                    {"serviceAccountToken": {"path": "t", "audience": "https://kubernetes.default.svc"}}
                ]
            },
        ),
        "volume extra: must not have a service-account token",
    ),
    Case(
        "a volume with a reserved name",
        lambda p: p["volumes"].append({"name": "rlguard-extra", "emptyDir": {}}),
        "volume rlguard-extra",
    ),
    Case("a container with a reserved name", lambda p: extra(p, name="rlguard-x"), "container rlguard-x"),
    Case(
        "privileged",
        lambda p: extra(p, securityContext={"privileged": True}),
        "extra: must not be privileged",
    ),
    Case(
        "a capability",
        lambda p: extra(p, securityContext={"capabilities": {"add": ["cap_sys_ptrace"]}}),
        "extra: must not add a capability",
    ),
    Case(
        "the guard's user", lambda p: extra(p, securityContext={"runAsUser": 64532}), "extra: must not run as"
    ),
    Case(
        "the guard's user for the pod",
        lambda p: p["securityContext"].update(runAsUser=64532),
        "pytorch: must not run as",
    ),
    Case(
        "the guard's port",
        lambda p: trainer(p).update(ports=[{"containerPort": 8470}]),
        "pytorch: must not use a port of the guard's",
    ),
    Case(
        "the guard's metrics port",
        lambda p: trainer(p).update(ports=[{"containerPort": 8471}]),
        "pytorch: must not use a port of the guard's",
    ),
    Case(
        "a second target for Prometheus",
        lambda p: trainer(p).update(ports=[{"name": "rlguard-metrics", "containerPort": 9}]),
        "pytorch: must not use a port of the guard's, nor its name",
    ),
    Case(
        "another address of the guard",
        lambda p: trainer(p).setdefault("env", []).append({"name": "RLGUARD_URL", "value": "http://x"}),
        "pytorch: must not set RLGUARD_URL",
    ),
    *(
        Case(
            f"checkpoints over what is the guard's, as {path}",
            lambda p, path=path: [
                m.update(mountPath=path)
                for c in [*p.get("initContainers", []), *p["containers"]]
                for m in c["volumeMounts"]
                if m["name"] == "checkpoints"
            ],
            "over the guard's directories",
        )
        for path in (
            *("/var/run", "/opt/rlguard", "//opt/rlguard"),
            *("/x/../opt/rlguard", "/opt/./rlguard", "/opt/.."),
        )
    ),
    Case(
        "the guard's volume in the trainer",
        lambda p: trainer(p)["volumeMounts"].append({"name": "rlguard-state", "mountPath": "/x"}),
        "pytorch: must not mount the guard's volumes",
    ),
    Case(
        "the guard's volume in the trainer as a device",
        lambda p: (
            keep_state_in(p, "s"),
            trainer(p).update(volumeDevices=[{"name": "rlguard-state", "devicePath": "/dev/x"}]),
        ),
        "pytorch: must not mount the guard's volumes",
        pod_only=True,
    ),
    Case(
        "the guard's socket to write",
        lambda p: mount(trainer(p), "rlguard-socket").pop("readOnly"),
        "pytorch: must not mount the guard's volumes, but for its socket read-only",
        pod_only=True,
    ),
    Case(
        "the guard's socket to write in another container",
        lambda p: extra(p, volumeMounts=[mount(trainer(p), "rlguard-socket") | {"readOnly": False}]),
        "extra: must not mount the guard's volumes, but for its socket read-only",
        pod_only=True,
    ),
    Case(
        "the guard's socket elsewhere",
        lambda p: mount(trainer(p), "rlguard-socket").update(mountPath="/x"),
        "pytorch: must not mount the guard's volumes, but for its socket read-only",
        pod_only=True,
    ),
    Case("a token by default", lambda p: p.pop("automountServiceAccountToken"), "automount", pod_only=True),
    Case("no guard", lambda p: p["initContainers"].pop(), "must have its guard", pod_only=True),
    Case(
        "a guard that ends",
        lambda p: [guard(p).pop(k) for k in list(guard(p)) if k == "restartPolicy" or k.endswith("Probe")],
        "must stay a sidecar",
        pod_only=True,
    ),
    Case(
        "a guard as another user",
        lambda p: guard(p)["securityContext"].update(runAsUser=10001),
        "must stay a sidecar",
        pod_only=True,
    ),
]


VOLUMES_OF_THE_JOB = "the guard's volumes must be those of its job"
ENVIRONMENT_OF_THE_JOB = "the guard's environment must name its own job"
PROBES_OF_THE_OPERATOR = "the guard must run what its image runs"


#: A namespace of Relaxed jobs: there the allow-list of Strict does not answer first.
@pytest.mark.parametrize("namespace", [RELAXED, STRICT])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_the_operator_refuses_the_api_server_refuses(
    admission: Client, case: Case, namespace: str
) -> None:
    pod = guarded_pod(namespace)
    case.change(pod["spec"])
    answer = refusal(admission, pod)
    if namespace == RELAXED and case.name == "hostNetwork":
        assert answer is None
        return
    assert answer is not None
    if namespace == RELAXED:
        # What takes a volume of the guard's breaks a rule of two policies, and so do checkpoints that its
        # environment has elsewhere, and a guard that ends, which can have no probe; the API server says the
        # first, and their order is its own.
        also = {"checkpoints over": ENVIRONMENT_OF_THE_JOB, "a guard that ends": PROBES_OF_THE_OPERATOR}
        elsewhere = any(case.name.startswith(name) and said in answer for name, said in also.items())
        assert case.said in answer or elsewhere or (case.pod_only and VOLUMES_OF_THE_JOB in answer), answer
    if not case.pod_only:
        raw = sample()
        case.change(template_pod(raw))
        job = job_of(raw)
        assert find_violations(ADAPTERS[0], job.spec.template.spec, job.spec.guard, CONFIG)


@pytest.mark.always
def test_a_guard_stays_a_sidecar_also_once_its_job_is_gone(admission: Client) -> None:
    """Then no policy knows which probes it must have."""
    (case,) = (case for case in CASES if case.name == "a guard that ends")
    pod = guarded_pod(RELAXED)
    pod["metadata"]["labels"]["rlguard.dev/job-uid"] = "of-a-job-that-is-gone"
    assert refusal(admission, pod) is None
    case.change(pod["spec"])
    assert case.said in str(refusal(admission, pod))


@pytest.mark.parametrize("isolation", ["Strict", "Relaxed"])
@pytest.mark.parametrize("kind", ["secret", "configMap"])
def test_held_out_data_in_the_environment_is_refused(admission: Client, kind: str, isolation: str) -> None:
    name = f"{kind}-{isolation}".lower()
    heldout = {"secretName" if kind == "secret" else "configMapName": "split"}
    job = submit(
        admission,
        RELAXED,
        name,
        lambda spec: (spec["guard"]["heldout"].update(volume=heldout), set_guard(spec, isolation=isolation)),
    )
    known(admission, RELAXED, job)
    secure = {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    reference = {f"{kind}KeyRef": {"name": "split", "key": "k"}}
    for environment in (
        {"env": [{"name": "A", "valueFrom": reference}]},
        {"envFrom": [{f"{kind}Ref": {"name": "split"}}]},
    ):
        pod = guarded_pod(RELAXED, job)
        assert refusal(admission, pod) is None
        extra(pod["spec"], **environment, **secure)
        answer = refusal(admission, pod)
        assert answer is not None and "extra: must not have in its environment" in answer
    pod = guarded_pod(RELAXED, job)
    volume(pod["spec"], projected={"sources": [{kind: {"name": "split"}}]})
    answer = refusal(admission, pod)
    assert answer is not None and "extra: must not be what only the guard may have" in answer


# -- the allow-list: one row for every field of a pod ----------------------------------------------------


#: Refused or dropped by an API server itself, before any policy is asked; some by none that has the field.
SERVERS_OWN = {
    "PodSpec.ephemeralContainers",  # only for pods that run
    "Container.volumeDevices",  # the guard's volume is no claim here; a case above has one that is
    "VolumeDevice.name",
    "EnvVarSource.fileKeyRef",  # behind a gate up to 1.34
    "VolumeProjection.podCertificate",
    "PodSpec.resourceClaims",  # of another shape in 1.30, and behind a gate
    "SecurityContext.procMount",  # behind a gate in 1.30
}


#: The same where the guard is in another pod: the trainer's has no volume of these names.
NOT_THERE = {"Container.volumeMounts", "VolumeMount.name"}


@pytest.fixture(scope="session")
def trained_apart(admission: Client) -> dict[str, Job]:
    """In each namespace a job whose guard has a pod of its own."""
    jobs = {}
    for namespace, isolation in ((STRICT, "Strict"), (RELAXED, "Relaxed")):

        def change(spec: Json, isolation: str = isolation) -> None:
            apart(spec)
            set_guard(spec, isolation=isolation)

        jobs[namespace] = submit(admission, namespace, "trained-apart", change)
        sources: list[Json] = [{"persistentVolumeClaim": {"claimName": "state"}}]
        if namespace == STRICT:  # of which another policy knows
            sources.append({"nfs": {"server": "nfs", "path": "/"}})
        for source in sources:
            bad = guarded_pod(namespace, jobs[namespace])
            volume(bad["spec"], **source)
            eventually(partial(refusal, admission, bad), "the policies know the job")
    return jobs


@pytest.mark.parametrize("placement", ["Sidecar", "Pod"])
@pytest.mark.parametrize("namespace", [STRICT, RELAXED])
@pytest.mark.parametrize("row", pod_fields.ROWS, ids=str)
def test_operator_and_api_server_agree_on_every_row(
    admission: Client, trained_apart: dict[str, Job], row: Any, namespace: str, placement: str
) -> None:
    pod = guarded_pod(namespace, trained_apart[namespace] if placement == "Pod" else None)
    outcome = row.becomes(placement)
    pod["spec"].setdefault("serviceAccountName", "default")  # as in a cluster, where each namespace has one
    row.put(pod["spec"])
    if namespace == STRICT:  # as the operator writes it in every container
        for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"][1:]]:
            security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            container["securityContext"] = security | container.get("securityContext", {})
            if container["securityContext"].get("privileged"):
                del container["securityContext"]["allowPrivilegeEscalation"]  # else the server refuses it
    made, answer = None, ""
    try:
        made = create(admission, pod)
    except ApiError as error:
        answer = str(error)
    by_policy = "ValidatingAdmissionPolicy" in answer
    refused = outcome == "refused" or (outcome == "relaxed" and namespace == STRICT)
    servers_own = SERVERS_OWN | (NOT_THERE if placement == "Pod" else set())
    if refused and f"{row.schema}.{row.field}" in servers_own:
        shown = f'"{row.field}": "{row.value}"' if isinstance(row.value, str) else row.field
        assert answer or shown not in json.dumps(made["spec"] if made else {}), "it was let through"
    else:
        assert by_policy == refused, answer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod: pod.update(securityContext={}), "pytorch: must not be root"),
        (lambda pod: trainer(pod).update(securityContext={}), "pytorch: must have allowPrivilegeEscalation"),
        (
            lambda pod: trainer(pod)["securityContext"]["capabilities"].update(drop=["NET_RAW"]),
            "pytorch: must have allowPrivilegeEscalation: false and drop all",
        ),
    ],
)
def test_a_container_that_a_webhook_adds_is_confined_too(
    admission: Client, change: Callable[[Json], Any], said: str
) -> None:
    pod = guarded_pod(STRICT)
    change(pod["spec"])
    assert said in str(refusal(admission, pod))
    pod = guarded_pod(RELAXED)
    pod["spec"]["securityContext"] = {}
    assert refusal(admission, pod) is None


# -- the guard as its job wants it -----------------------------------------------------------------------


def variable(pod: Json, name: str) -> Json:
    found: Json = next(v for v in guard(pod)["env"] if v["name"] == name)
    return found


def own_volume(pod: Json, name: str, **source: Any) -> None:
    volumes = [v for v in pod["volumes"] if v["name"] != name]
    pod["volumes"] = [*volumes, {"name": name, **source}]


#: What a program in the guard's container could carry to where the trainer can read it.
STOLEN = ("/var/run/rlguard/heldout", "/var/run/rlguard/socket/heldout")


def mount_of(pod: Json, name: str) -> Json:
    found: Json = next(m for m in guard(pod)["volumeMounts"] if m["name"] == name)
    return found


def support_of(pod: Json) -> str:
    """Name of the job's own Secret and ConfigMap."""
    return str(next(v for v in pod["volumes"] if v["name"] == "rlguard-policy")["configMap"]["name"])


def said_of_heldout(pod: Json, old: str, new: str) -> None:
    """Put something else in the last place where the guard is told `old` of its evaluation."""
    told = variable(pod, "RLGUARD_GUARD_HELDOUT")
    assert old in told["value"]
    told["value"] = new.join(told["value"].rsplit(old, 1))
    json.loads(told["value"])


CHANGED_GUARDS: dict[str, tuple[Callable[[Json], Any], str]] = {
    "image": (lambda p: guard(p).update(image="evil/guard:1"), "image must be one of rlguard/guard-hf"),
    "an image that begins alike": (
        lambda p: guard(p).update(image="rlguard/guard-hf-evil:1"),
        "image must be one of rlguard/guard-hf",
    ),
    "command": (lambda p: guard(p).update(command=["sleep", "inf"]), "must run what its image runs"),
    "args": (lambda p: guard(p).update(args=["x"]), "must run what its image runs"),
    "lifecycle": (
        lambda p: guard(p).update(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
        "must run what its image runs",
    ),
    "last words from elsewhere": (
        lambda p: guard(p).update(terminationMessagePath="/checkpoints/words"),
        "must run what its image runs",
    ),
    "policy file": (
        lambda p: variable(p, "RLGUARD_GUARD_POLICY_FILE").update(value="/checkpoints/policy.yaml"),
        "environment must be as the operator wrote it",
    ),
    "no policy file": (
        lambda p: guard(p)["env"].remove(variable(p, "RLGUARD_GUARD_POLICY_FILE")),
        "environment must be as the operator wrote it",
    ),
    "a policy file twice": (
        lambda p: guard(p)["env"].append({"name": "RLGUARD_GUARD_POLICY_FILE", "value": "/x"}),
        "environment must be as the operator wrote it",
    ),
    "another variable": (
        lambda p: guard(p)["env"].append({"name": "PYTHONPATH", "value": "/checkpoints"}),
        "environment must be as the operator wrote it",
    ),
    "another job": (
        lambda p: variable(p, "RLGUARD_GUARD_CLUSTER__UID").update(value="u"),
        "must name its own job",
    ),
    "another split": (
        lambda p: variable(p, "RLGUARD_GUARD_HELDOUT").update(
            value=variable(p, "RLGUARD_GUARD_HELDOUT")["value"].replace("heldout.jsonl", "easy.jsonl")
        ),
        "must name its own job",
    ),
    "another scorer": (
        lambda p: variable(p, "RLGUARD_GUARD_HELDOUT").update(
            value=variable(p, "RLGUARD_GUARD_HELDOUT")["value"].replace("numeric", "exact")
        ),
        "must name its own job",
    ),
    "another port": (
        lambda p: variable(p, "RLGUARD_GUARD_PORT").update(value="9999"),
        "must name its own job",
    ),
    "held-out volume": (
        lambda p: own_volume(p, "rlguard-heldout", persistentVolumeClaim={"claimName": "easy"}),
        "volumes must be those of its job",
    ),
    "a held-out volume of another kind": (
        lambda p: own_volume(p, "rlguard-heldout", emptyDir={}),
        "volumes must be those of its job",
    ),
    "policy volume": (
        lambda p: own_volume(p, "rlguard-policy", configMap={"name": "easy"}),
        "volumes must be those of its job",
    ),
    "tokens": (
        lambda p: own_volume(p, "rlguard-secrets", secret={"secretName": "other"}),
        "volumes must be those of its job",
    ),
    "state": (
        lambda p: own_volume(p, "rlguard-state", persistentVolumeClaim={"claimName": "other"}),
        "volumes must be those of its job",
    ),
    "a socket that others can replace": (
        lambda p: own_volume(p, "rlguard-socket", persistentVolumeClaim={"claimName": "other"}),
        "volumes must be those of its job",
    ),
    "a home that others write": (
        lambda p: own_volume(p, "rlguard-tmp", persistentVolumeClaim={"claimName": "other"}),
        "volumes must be those of its job",
    ),
    "shared memory that others write": (
        lambda p: own_volume(p, "rlguard-shm", configMap={"name": "other"}),
        "volumes must be those of its job",
    ),
    "a token from elsewhere": (
        lambda p: own_volume(p, "rlguard-token", secret={"secretName": "other"}),
        "volumes must be those of its job",
    ),
    "another socket": (
        lambda p: variable(p, "RLGUARD_GUARD_SOCKET").update(value="/checkpoints/guard.sock"),
        "must be as the operator wrote it",
    ),
    "a mount over its code": (
        lambda p: guard(p)["volumeMounts"].append(
            {"name": "checkpoints", "mountPath": "/srv/scorers", "readOnly": True}
        ),
        "and nothing else",
    ),
    "a mount elsewhere": (
        lambda p: next(m for m in guard(p)["volumeMounts"] if m["name"] == "rlguard-policy").update(
            mountPath="/elsewhere"
        ),
        "where the operator mounted them",
    ),
    "no held-out data": (
        lambda p: guard(p)["volumeMounts"].remove(
            next(m for m in guard(p)["volumeMounts"] if m["name"] == "rlguard-heldout")
        ),
        "where the operator mounted them",
    ),
    "writable checkpoints": (
        lambda p: next(m for m in guard(p)["volumeMounts"] if m["name"] == "checkpoints").pop("readOnly"),
        "the checkpoints read-only",
    ),
    **{
        f"a {probe} that runs in the guard": (
            lambda p, probe=probe: guard(p)[probe]["exec"].update(command=["cp", "-r", *STOLEN]),
            "must run what its image runs",
        )
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    },
    **{
        f"a {probe} of another kind": (
            lambda p, probe=probe: guard(p).update({probe: {"tcpSocket": {"port": 8470}}}),
            "must run what its image runs",
        )
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    },
    "no startup probe": (lambda p: guard(p).pop("startupProbe"), "must run what its image runs"),
    "a startup probe that a guard passes before it is ready": (
        lambda p: guard(p).update(startupProbe=guard(p)["livenessProbe"]),
        "must run what its image runs",
    ),
    "privileges": (
        lambda p: guard(p)["securityContext"].update(privileged=True, allowPrivilegeEscalation=True),
        "no more privileges",
    ),
    "a capability": (
        lambda p: guard(p)["securityContext"]["capabilities"].update(add=["NET_RAW"]),
        "no more privileges",
    ),
    "the guard of a rank that scores nothing": (
        lambda p: guard(p)["env"].append({"name": "RLGUARD_GUARD_CLUSTER__REPLICA_INDEX", "value": "1"}),
        "must name its own job",
    ),
    "the same by what an author writes": (
        lambda p: guard(p)["env"].append(
            {
                "name": "RLGUARD_GUARD_CLUSTER__REPLICA_INDEX",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}},
            }
        ),
        "must name its own job",
    ),
    "another namespace": (
        lambda p: variable(p, "RLGUARD_GUARD_CLUSTER__NAMESPACE").update(value="other"),
        "must name its own job",
    ),
    "checkpoints elsewhere": (
        lambda p: variable(p, "RLGUARD_GUARD_CHECKPOINT_ROOT").update(value="/tmp"),
        "must name its own job",
    ),
    "a best checkpoint that nobody asked for": (
        lambda p: guard(p)["env"].append({"name": "RLGUARD_GUARD_KEEP_BEST_CHECKPOINT", "value": "true"}),
        "must name its own job",
    ),
    "another evaluator": (
        lambda p: said_of_heldout(p, '"kind": "hf"', '"kind": "vllm"'),
        "must name its own job",
    ),
    "a second split": (
        lambda p: said_of_heldout(p, "}", ', "split": "/checkpoints/easy.jsonl"}'),
        "must name its own job",
    ),
    "the same with a space": (
        lambda p: said_of_heldout(p, "}", ', "split" : "/checkpoints/easy.jsonl"}'),
        "must name its own job",
    ),
    "the same under a name that is written otherwise": (
        lambda p: said_of_heldout(p, "}", ', "\\u0073plit": "/checkpoints/easy.jsonl"}'),
        "must name its own job",
    ),
    "a second evaluator": (
        lambda p: said_of_heldout(p, "}", ', "evaluator": {"kind": "vllm"}}'),
        "must name its own job",
    ),
    "the read token in the hand of whoever reports": (
        lambda p: own_volume(
            p,
            "rlguard-secrets",
            secret={
                "secretName": support_of(p),
                "items": [{"key": "ingest-token", "path": at} for at in ("ingest-token", "read-token")],
            },
        ),
        "volumes must be those of its job",
    ),
    "another file of the held-out data": (
        lambda p: mount_of(p, "rlguard-heldout").update(subPath="easy"),
        "where the operator mounted them",
    ),
    "a state that others write": (
        lambda p: mount_of(p, "rlguard-state").update(subPath="easy"),
        "where the operator mounted them",
    ),
}


@pytest.mark.parametrize("namespace", [STRICT, RELAXED])
@pytest.mark.parametrize(("change", "said"), CHANGED_GUARDS.values(), ids=CHANGED_GUARDS.keys())
def test_a_guard_that_is_not_as_its_job_says_is_refused(
    admission: Client, change: Callable[[Json], Any], said: str, namespace: str
) -> None:
    pod = guarded_pod(namespace)
    change(pod["spec"])
    assert said in str(refusal(admission, pod))


def with_split(split: str) -> Callable[[Json], None]:
    return lambda spec: spec["guard"]["heldout"].update(split=split)


def test_a_split_that_the_api_server_takes_is_one_that_the_policies_know(admission: Client) -> None:
    job = submit(admission, STRICT, "its-split", with_split("it's für/held out.jsonl"))
    known(admission, STRICT, job)
    assert refusal(admission, guarded_pod(STRICT, job)) is None


@pytest.mark.parametrize("split", ['a"b.jsonl', "a\tb.jsonl", "a\\b.jsonl", "a$$(HOME).jsonl"])
def test_a_split_that_the_guard_is_told_otherwise_than_it_is_written_is_refused(
    admission: Client, split: str
) -> None:
    with pytest.raises(ApiError, match=r"spec\.guard\.heldout\.split"):
        submit(admission, STRICT, "odd-split", with_split(split), dry_run=True)


def test_a_guard_follows_the_log_that_its_job_names_and_no_other(admission: Client) -> None:
    metrics: Json = {"follow": {"path": "run/metrics.jsonl", "format": "verl"}}
    job = submit(admission, STRICT, "followed", partial(set_guard, metrics=metrics))
    known(admission, STRICT, job)
    assert refusal(admission, guarded_pod(STRICT, job)) is None
    pod = guarded_pod(STRICT, job)
    followed = variable(pod["spec"], "RLGUARD_GUARD_METRICS")
    followed["value"] = followed["value"].replace("run/metrics.jsonl", "run/easy.jsonl")
    assert "must name its own job" in str(refusal(admission, pod))
    guard(pod["spec"])["env"].remove(followed)
    assert "must name its own job" in str(refusal(admission, pod)), "nobody would report"
    other = guarded_pod(STRICT)
    guard(other["spec"])["env"].append(dict(followed))
    assert "must name its own job" in str(refusal(admission, other)), "its trainer reports itself"
    pod = guarded_pod(STRICT, job)
    followed = variable(pod["spec"], "RLGUARD_GUARD_METRICS")
    followed["value"] = followed["value"].replace('"format"', '"path":"run/easy.jsonl","format"')
    assert "must name its own job" in str(refusal(admission, pod)), (
        "of a name that is there twice the last counts"
    )
    metrics |= {"checkpoints": {"path": "global", "layout": "verl"}}
    metrics["follow"] |= {"runConfig": "global/.hydra/config.yaml"}
    job = submit(admission, STRICT, "followed-elsewhere", partial(set_guard, metrics=metrics))
    known(admission, STRICT, job)
    assert refusal(admission, guarded_pod(STRICT, job)) is None
    pod = guarded_pod(STRICT, job)
    followed = variable(pod["spec"], "RLGUARD_GUARD_METRICS")
    followed["value"] = followed["value"].replace("global/.hydra", "other/.hydra")
    assert "must name its own job" in str(refusal(admission, pod)), "it says which KL counts"


def test_a_newer_guard_of_the_same_repository_is_admitted(admission: Client) -> None:
    """A pod that is made anew after the chart was upgraded still has the image of its day."""
    pod = guarded_pod(STRICT)
    guard(pod["spec"])["image"] = "rlguard/guard-hf:0.0.1"
    guard(pod["spec"])["env"].remove(variable(pod["spec"], "RLGUARD_GUARD_METRICS_HOST"))
    assert refusal(admission, pod) is None


def test_what_webhooks_and_the_job_controller_add_to_every_container_is_admitted(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    path = "/var/run/secrets/eks.amazonaws.com/serviceaccount"
    token = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "path": "token"}}
    pod["spec"]["volumes"].append({"name": "aws-iam-token", "projected": {"sources": [token]}})
    for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
        container["env"] += [{"name": "AWS_ROLE_ARN", "value": "arn"}, {"name": "JOB_COMPLETION_INDEX"}]
        container["volumeMounts"].append({"name": "aws-iam-token", "mountPath": path, "readOnly": True})
    assert refusal(admission, pod) is None


def test_a_profile_in_its_former_place_is_seen_as_the_field(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    name = "container.apparmor.security.beta.kubernetes.io/pytorch"
    pod["metadata"]["annotations"][name] = "unconfined"
    assert "must not be Unconfined" in str(refusal(admission, pod))
    pod["metadata"]["annotations"][name] = "runtime/default"
    assert refusal(admission, pod) is None


def test_a_relaxed_job_has_no_more_than_the_chart_admits(admission: Client) -> None:
    job = submit(admission, STRICT, "relaxed-here", partial(set_guard, isolation="Relaxed"))
    known(admission, STRICT, job)
    assert refusal(admission, guarded_pod(STRICT, job)) is None
    pod = guarded_pod(STRICT, job)
    pod["spec"]["hostNetwork"] = True
    assert "relaxed.hostNetwork is false" in str(refusal(admission, pod))
    pod = guarded_pod(STRICT, job)
    volume(pod["spec"], hostPath={"path": HOST_PATH})
    assert "hostPath must be under one of" in str(refusal(admission, pod))


def test_a_job_that_says_everything_of_its_guard(admission: Client) -> None:
    def all_of_it(spec: Json) -> None:
        heldout = {
            "volume": {"configMapName": "split"},
            "split": "données/test.jsonl",
            "scorer": "mine:score",
        }
        heldout |= {
            "proxyScorer": "grader:pay",
            "trainPrompts": "train.jsonl",
            "evaluator": {"vllm": {}},
        }
        set_guard(spec, heldout=heldout, image="mine/guard@sha256:abc", imagePullPolicy="Always")
        set_guard(spec, state={"claimName": "state"}, port=9000)

    job = submit(admission, STRICT, "everything", all_of_it)
    known(admission, STRICT, job)
    pod = guarded_pod(STRICT, job)
    assert refusal(admission, pod) is None
    guard(pod["spec"])["image"] = CONFIG.guard_image
    assert "image must be mine/guard@sha256:abc" in str(refusal(admission, pod))


def test_a_guard_that_keeps_the_best_checkpoint(admission: Client) -> None:
    state = {"claimName": "state", "keepBest": True}
    job = submit(admission, STRICT, "keeps-best", partial(set_guard, state=state))
    known(admission, STRICT, job)
    assert refusal(admission, guarded_pod(STRICT, job)) is None
    pod = guarded_pod(STRICT, job)
    mount_of(pod["spec"], "rlguard-state").update(subPath="of-another-job")
    assert "where the operator mounted them" in str(refusal(admission, pod))


def test_workers_without_a_master_must_have_their_guards(admission: Client) -> None:
    def no_master(spec: Json) -> None:
        replicas = spec["template"]["spec"]["pytorchReplicaSpecs"]
        replicas["Worker"] = replicas.pop("Master")

    job = submit(admission, STRICT, "no-master", no_master)
    known_worker = guarded_pod(STRICT, job, "Worker")
    assert refusal(admission, known_worker) is None
    without = without_guard(guarded_pod(STRICT, job, "Worker"))
    eventually(
        lambda: "a job without a Master, must each have their guard" in str(refusal(admission, without)),
        "a Worker without its guard is refused",
    )


#: What the training-operator puts before a Worker, from its own template.
INIT_PYTORCH = {
    "name": "init-pytorch",
    "image": "alpine:3.10",
    "command": ["sh", "-c", "until nslookup run-master-0; do sleep 2; done;"],
    "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}},
}


def test_a_worker_that_waits_for_its_master_is_admitted(admission: Client) -> None:
    """Its init container is the training-operator's, which gives it no security context."""
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    pod["spec"]["initContainers"] = [INIT_PYTORCH]
    assert refusal(admission, pod) is None


@pytest.mark.parametrize(
    "more",
    [
        {"name": "init-other"},
        {"env": [{"name": "A", "value": "b"}]},
        {"volumeMounts": [{"name": "checkpoints", "mountPath": "/c"}]},
        {"securityContext": {"runAsUser": 1000}},
        {"restartPolicy": "Always"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_no_other_container_goes_by_its_name(admission: Client, more: Json) -> None:
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    pod["spec"]["initContainers"] = [INIT_PYTORCH | more]
    assert "must have allowPrivilegeEscalation: false" in str(refusal(admission, pod))


@pytest.mark.parametrize("role", ["master", "worker"])
def test_beside_a_guard_nothing_goes_by_its_name(admission: Client, role: str) -> None:
    """Whatever a label says: root beside a guard is on its network, and a sidecar is for as long as it."""
    pod = guarded_pod(STRICT)
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = role
    user = pod["spec"]["securityContext"].pop("runAsUser")
    trainer(pod["spec"])["securityContext"]["runAsUser"] = user
    assert refusal(admission, pod) is None
    for more in ({}, {"restartPolicy": "Always"}):
        beside = copy.deepcopy(pod)
        beside["spec"]["initContainers"].insert(0, INIT_PYTORCH | more)
        assert "init-pytorch: must not be root" in str(refusal(admission, beside))


@pytest.mark.parametrize("role", ["", "Worker", "launcher"])
def test_only_a_worker_waits_for_its_master(admission: Client, role: str) -> None:
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = role
    assert refusal(admission, pod) is None
    pod["spec"]["initContainers"] = [INIT_PYTORCH]
    assert "init-pytorch: must have allowPrivilegeEscalation: false" in str(refusal(admission, pod))


def test_a_trainer_of_its_name_is_held_against_the_job(admission: Client) -> None:
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    pod["spec"]["containers"] = [*pod["spec"]["containers"], INIT_PYTORCH]
    assert "must have allowPrivilegeEscalation: false" in str(refusal(admission, pod))


def test_a_worker_is_held_against_its_job_too(admission: Client) -> None:
    pod = without_guard(guarded_pod(STRICT))
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    trainer(pod["spec"])["securityContext"]["runAsUser"] = 0
    assert "pytorch: must not be root" in str(refusal(admission, pod))


@pytest.mark.parametrize(
    ("path", "admitted"),
    [
        (HOST_PATH, True),
        (f"{HOST_PATH}/0", True),
        (f"{HOST_PATH}-other", False),
        ("/etc", False),
    ],
)
def test_relaxed_admits_the_listed_host_paths(admission: Client, path: str, admitted: bool) -> None:
    pod = guarded_pod(RELAXED)
    pod["spec"]["hostNetwork"] = True
    volume(pod["spec"], hostPath={"path": path})
    assert (refusal(admission, pod) is None) == admitted


class TestARunningPod:
    @pytest.fixture(scope="class")
    def pod(self, admission: Client) -> Json:
        return create(admission, guarded_pod(STRICT), dry_run=False)

    def patch(self, client: Client, pod: Json, patch: Json, sub: str = "") -> Json:
        path = f"/api/v1/namespaces/{STRICT}/pods/{pod['metadata']['name']}{sub}"
        return client.request("PATCH", path, query={"dryRun": "All"}, body=patch, content_type=MERGE)

    def test_keeps_the_labels_by_which_the_operator_finds_it(self, admission: Client, pod: Json) -> None:
        for value in (None, "other"):
            for sub in ("", "/status"):
                with pytest.raises(ApiError, match="must stay"):
                    self.patch(admission, pod, {"metadata": {"labels": {"rlguard.dev/job-uid": value}}}, sub)

    def test_tells_how_it_is(self, admission: Client, pod: Json) -> None:
        """As its kubelet does all the time."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        said = self.patch(admission, pod, {"status": status}, "/status")
        assert said["status"]["phase"] == "Running"

    def test_may_be_annotated(self, admission: Client, pod: Json) -> None:
        self.patch(admission, pod, {"metadata": {"annotations": {"note": "x"}, "labels": {"note": "x"}}})

    def test_keeps_the_image_of_its_guard(self, admission: Client, pod: Json) -> None:
        """What `kubectl set image` does: of a pod that is there an image may be changed."""
        spec: Json = {"initContainers": [{"name": "rlguard-guard", "image": "evil/guard:1"}]}
        path = f"/api/v1/namespaces/{STRICT}/pods/{pod['metadata']['name']}"
        kind = "application/strategic-merge-patch+json"
        patch = partial(admission.request, "PATCH", path, query={"dryRun": "All"}, content_type=kind)
        with pytest.raises(ApiError, match="the image of the guard"):
            patch(body={"spec": spec})
        trainer: Json = {"containers": [{"name": "pytorch", "image": "mine/trainer:2"}]}
        patch(body={"spec": trainer})

    def test_may_be_debugged(self, admission: Client, pod: Json) -> None:
        debug(admission, pod, targetContainerName="pytorch")

    @pytest.mark.parametrize(
        ("container", "said"),
        [
            ({"targetContainerName": "rlguard-guard"}, "must not target the guard"),
            ({"volumeMounts": [{"name": "rlguard-heldout", "mountPath": "/x"}]}, "the guard's volumes"),
            ({"securityContext": {"privileged": True}}, "must not be privileged"),
            ({"securityContext": {"runAsUser": 64532}}, "must not run as user"),
        ],
    )
    def test_is_not_debugged_into_the_guard(
        self, admission: Client, pod: Json, container: Json, said: str
    ) -> None:
        with pytest.raises(ApiError, match=said):
            debug(admission, pod, **container)


def bound(client: Client, name: str, actions: list[str]) -> None:
    """Have this binding do that."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}"
    client.request("PATCH", path, body={"spec": {"validationActions": actions}}, content_type=MERGE)


def test_a_debugger_from_before_the_policy_holds_up_no_update(admission: Client) -> None:
    """Else the pod's finalizers could not be taken away, and it would stay for ever."""
    pod = guarded_pod(STRICT)
    pod["metadata"]["name"] = "debugged"
    create(admission, pod, dry_run=False)
    path = f"/api/v1/namespaces/{STRICT}/pods/debugged"

    def debug(name: str) -> bool:
        container = {"name": name, "image": "busybox", "targetContainerName": "rlguard-guard"}
        body = {"spec": {"ephemeralContainers": [container]}}
        kind = "application/strategic-merge-patch+json"
        try:
            admission.request("PATCH", f"{path}/ephemeralcontainers", body=body, content_type=kind)
        except ApiError:
            return False
        return True

    binding = f"{NAMESPACE}-strict-rlguard-changed-pods"
    bound(admission, binding, ["Audit"])
    try:
        eventually(partial(debug, "older"), "the policy is off")
    finally:
        bound(admission, binding, ["Deny"])
    numbers = count()
    eventually(lambda: not debug(f"newer-{next(numbers)}"), "the policy is on again")
    admission.request("PATCH", path, body={"metadata": {"finalizers": ["a/b"]}}, content_type=MERGE)
    admission.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE)


# -- a guard in a pod of its own -------------------------------------------------------------------------


def apart(spec: Json) -> None:
    set_guard(spec, placement="Pod", state={"claimName": "state"})


def own_guard_pod(namespace: str, job: Job) -> Json:
    """The pod that the StatefulSet controller makes of what our operator built."""
    own = job.spec.guard.own_pod
    assert own is not None
    made = dict(guard_objects(job, own, ADAPTERS[0], CONFIG))[STATEFUL_SETS]
    name, template = f"{made['metadata']['name']}-0", made["spec"]["template"]
    labels = template["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": name}
    metadata = template["metadata"] | {"name": name, "namespace": namespace, "labels": labels}
    spec = template["spec"] | {"hostname": name, "subdomain": made["spec"]["serviceName"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def alone(pod: Json) -> Json:
    (container,) = pod["spec"]["containers"]
    return container


#: What a trainer's pod may be changed into, and what is said against it. Where two policies refuse the pod,
#: the server answers with the words of either: it keeps its policies in no order.
OF_A_TRAINER: dict[str, tuple[Any, ...]] = {
    "no label": (
        lambda p: p["metadata"]["labels"].pop("rlguard.dev/placement"),
        "the label rlguard.dev/placement must be Pod",
        "the pod of rank 0 must have its guard",
    ),
    "the label of a guard": (
        lambda p: p["metadata"]["labels"].update({"rlguard.dev/part": "guard"}),
        "the guard must be where its job puts it",
        "the guard's own pod must have the container rlguard-guard and no other",
    ),
    "the held-out claim": (
        lambda p: volume(p["spec"], persistentVolumeClaim={"claimName": "heldout"}),
        "only the guard may have",
    ),
    "the state": (
        lambda p: volume(p["spec"], persistentVolumeClaim={"claimName": "state"}),
        "only the guard may have",
    ),
    "all tokens and the private key": (
        lambda p: volume(p["spec"], secret={"secretName": support(p)}),
        "only the guard may have",
    ),
    "the same, projected": (
        lambda p: volume(p["spec"], projected={"sources": [{"secret": {"name": support(p)}}]}),
        "only the guard may have",
    ),
    "the private key as its certificate": (
        lambda p: variable(p["spec"], "RLGUARD_CA")["valueFrom"]["secretKeyRef"].update(key="tls.key"),
        "only the guard may have",
    ),
    "the read token": (
        lambda p: next(e for e in trainer(p["spec"])["env"] if e["name"] == "RLGUARD_TOKEN").update(
            valueFrom={"secretKeyRef": {"name": support(p), "key": "read-token"}}
        ),
        "only the guard may have",
    ),
    "the account of the guard, and its role": (
        lambda p: p["spec"].update(serviceAccountName=support(p)),
        "no other pod of that job may",
    ),
    "all of them as its environment": (
        lambda p: p["spec"]["containers"][0].update(envFrom=[{"secretRef": {"name": support(p)}}]),
        "only the guard may have",
    ),
}
#: The same of a guard's.
OF_A_GUARD: dict[str, tuple[Any, ...]] = {
    "no label": (
        lambda p: p["metadata"]["labels"].pop("rlguard.dev/part"),
        "only the guard may have",
        "no other pod of that job may",
        "names that start with rlguard- are the operator's",
    ),
    "the label of a sidecar's pod": (
        lambda p: p["metadata"]["labels"].pop("rlguard.dev/placement"),
        "the label rlguard.dev/placement must be Pod",
    ),
    "another image": (lambda p: alone(p).update(image="other"), "the guard's image must be"),
    "a command": (lambda p: alone(p).update(command=["true"]), "must run what its image runs"),
    "another account": (
        lambda p: p["spec"].update(serviceAccountName="x"),
        "as the ServiceAccount of its job",
    ),
    "a fellow": (
        lambda p: p["spec"]["containers"].append(alone(p) | {"name": "other", "ports": []}),
        "the container rlguard-guard and no other",
    ),
    "another address": (
        lambda p: next(e for e in alone(p)["env"] if e["name"] == "RLGUARD_GUARD_HOST").update(
            valueFrom={"fieldRef": {"fieldPath": "status.hostIP"}}
        ),
        "environment must be as the operator wrote it",
    ),
    "checkpoints that it may write": (
        lambda p: next(m for m in alone(p)["volumeMounts"] if m["name"] == "checkpoints").pop("readOnly"),
        "the checkpoints read-only",
    ),
    "another split": (
        lambda p: next(v for v in p["spec"]["volumes"] if v["name"] == "rlguard-heldout").update(
            persistentVolumeClaim={"claimName": "mine"}
        ),
        "volumes must be those of its job",
    ),
    "another state": (
        lambda p: next(v for v in p["spec"]["volumes"] if v["name"] == "rlguard-state").update(
            persistentVolumeClaim={"claimName": "mine"}
        ),
        "volumes must be those of its job",
    ),
}


def debug(client: Client, pod: Json, **container: Any) -> Json:
    """What `kubectl debug` does."""
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", **container}]}}
    path = f"/api/v1/namespaces/{STRICT}/pods/{pod['metadata']['name']}/ephemeralcontainers"
    kind = "application/strategic-merge-patch+json"
    return client.request("PATCH", path, query={"dryRun": "All"}, body=body, content_type=kind)


def support(pod: Json) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels['rlguard.dev/job']}-{labels['rlguard.dev/job-uid'][:8]}"


def refused_as_changed(client: Client, pod: Json, change: Callable[[Json], Any], *either: str) -> None:
    """It is refused after the change, with any of these words."""
    change(pod)
    said = str(refusal(client, pod))
    assert any(words in said for words in either), said


class TestAGuardInAPodOfItsOwn:
    @pytest.fixture(scope="class")
    def job(self, admission: Client) -> Job:
        job = submit(admission, STRICT, "apart", apart)
        of_guards, of_created = guarded_pod(STRICT, job), own_guard_pod(STRICT, job)
        volume(of_guards["spec"], persistentVolumeClaim={"claimName": "state"})
        of_created["spec"]["containers"].append(alone(of_created) | {"name": "other", "ports": []})
        for pod in (of_guards, of_created):  # each policy learns of a job by itself
            eventually(partial(refusal, admission, pod), "the policies know the job")
        return job

    def test_both_pods_are_admitted(self, admission: Client, job: Job) -> None:
        assert refusal(admission, guarded_pod(STRICT, job)) is None
        assert refusal(admission, own_guard_pod(STRICT, job)) is None

    @pytest.mark.parametrize("case", OF_A_TRAINER.values(), ids=OF_A_TRAINER.keys())
    def test_a_trainer_gets_nothing_of_the_guards(
        self, admission: Client, job: Job, case: tuple[Any, ...]
    ) -> None:
        refused_as_changed(admission, guarded_pod(STRICT, job), *case)

    @pytest.mark.parametrize("label", ["guard", None], ids=["with its label", "as no guard's pod any more"])
    def test_keeps_its_image(self, admission: Client, job: Job, label: str | None) -> None:
        made = own_guard_pod(STRICT, job)
        made["metadata"]["name"] += f"-{label}".lower()
        create(admission, made, dry_run=False)
        spec: Json = {"containers": [{"name": "rlguard-guard", "image": "evil/guard:1"}]}
        patch = {"metadata": {"labels": {"rlguard.dev/part": label}}, "spec": spec}
        path = f"/api/v1/namespaces/{STRICT}/pods/{made['metadata']['name']}"
        kind = "application/strategic-merge-patch+json"
        with pytest.raises(ApiError, match="the image of the guard"):
            admission.request("PATCH", path, query={"dryRun": "All"}, body=patch, content_type=kind)

    @pytest.mark.parametrize("case", OF_A_GUARD.values(), ids=OF_A_GUARD.keys())
    def test_the_guard_is_as_its_job_says(self, admission: Client, job: Job, case: tuple[Any, ...]) -> None:
        refused_as_changed(admission, own_guard_pod(STRICT, job), *case)

    @pytest.mark.parametrize(
        "environment",
        [
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "{own}", "key": "tls.key"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "{own}", "key": "ingest-token"}}}]},
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "{own}", "key": "x"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "split", "key": "x"}}}]},
            {"envFrom": [{"secretRef": {"name": "{own}"}}]},
            {"envFrom": [{"configMapRef": {"name": "{own}"}}]},
        ],
        ids=["key", "token", "policy", "split", "all", "all of the policy"],
    )
    def test_nobody_debugs_a_trainer_into_what_is_the_guards(
        self, admission: Client, debugged: Json, environment: Json
    ) -> None:
        """No volume of the trainer's pod tells which Secrets these are; its job does."""
        own = support(debugged)
        text = yaml.safe_dump(environment).replace("{own}", own)
        with pytest.raises(ApiError, match="only the guard may have"):
            debug(admission, debugged, **yaml.safe_load(text))

    def test_whoever_debugs_it_may_have_other_secrets(self, admission: Client, debugged: Json) -> None:
        mine = {"secretKeyRef": {"name": "mine", "key": "x"}}
        debug(admission, debugged, env=[{"name": "A", "valueFrom": mine}, {"name": "B", "value": "b"}])

    @pytest.fixture(scope="class")
    def debugged(self, admission: Client) -> Json:
        def with_a_secret(spec: Json) -> None:
            apart(spec)
            spec["guard"]["heldout"]["volume"] = {"secretName": "split"}

        job = submit(admission, STRICT, "debugged-apart", with_a_secret)
        pod = guarded_pod(STRICT, job)
        made = create(admission, pod, dry_run=False)
        leak = {"name": "A", "valueFrom": {"secretKeyRef": {"name": support(pod), "key": "tls.key"}}}

        def refused() -> bool:
            try:
                debug(admission, made, env=[leak])
            except ApiError:
                return True
            return False

        eventually(refused, "the policies know the job")
        return made

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda p: p.update(shareProcessNamespace=True), "shareProcessNamespace must not be set"),
            (lambda p: trainer(p).update(securityContext={"runAsUser": 64532}), "must not run as user 64532"),
        ],
    )
    def test_no_label_opens_a_pod_to_what_its_guard_is_in(
        self, admission: Client, change: Callable[[Json], Any], said: str
    ) -> None:
        """Of a job that is gone, and under Relaxed: nothing else is said against such a pod."""
        pod = guarded_pod(RELAXED)
        pod["metadata"]["labels"] |= {"rlguard.dev/placement": "Pod", "rlguard.dev/job-uid": "of-no-job"}
        assert refusal(admission, pod) is None
        change(pod["spec"])
        assert said in str(refusal(admission, pod))

    def test_no_label_spares_a_job_with_a_sidecar_its_guard(self, admission: Client) -> None:
        pod = without_guard(guarded_pod(STRICT))
        pod["metadata"]["labels"]["rlguard.dev/placement"] = "Pod"
        assert "the label rlguard.dev/placement must be Pod" in str(refusal(admission, pod))

    def test_a_job_with_a_sidecar_has_no_guard_in_a_pod_of_its_own(self, admission: Client, job: Job) -> None:
        pod, sidecar = own_guard_pod(STRICT, job), JOBS[STRICT]
        del pod["metadata"]["labels"]["rlguard.dev/placement"]
        pod["metadata"]["labels"]["rlguard.dev/job-uid"] = sidecar.uid
        assert "the guard must be where its job puts it" in str(refusal(admission, pod))


def attach(spec: Json, kind: str = "RayCluster") -> None:
    """To a workload that exists, instead of what it is made of."""
    del spec["template"]
    api_version = next(one.resource.api_version for one in ADAPTERS if one.resource.kind == kind)
    spec["targetRef"] = {"apiVersion": api_version, "kind": kind, "name": "shared"}
    follow = {"path": "run/metrics.jsonl", "format": "verl"}
    set_guard(
        spec,
        placement="Pod",
        state={"claimName": "state"},
        checkpoints={"claimName": "ckpt"},
        metrics={"follow": follow},
    )


def of_checkpoints(entries: list[Json]) -> Json:
    return next(one for one in entries if one["name"] == "checkpoints")


#: What the pod of a guard that is attached may be changed into, and what is said against it.
OF_AN_ATTACHED_GUARD: dict[str, tuple[Any, ...]] = {
    "another claim": (
        lambda p: of_checkpoints(p["spec"]["volumes"]).update(persistentVolumeClaim={"claimName": "mine"}),
        "volumes must be those of its job",
    ),
    "elsewhere": (
        lambda p: of_checkpoints(alone(p)["volumeMounts"]).update(mountPath="/data"),
        "the guard must mount its own volumes where the operator mounted them",
        ENVIRONMENT_OF_THE_JOB,
    ),
}


class TestAnAttachedGuard:
    @pytest.fixture(scope="class")
    def job(self, admission: Client) -> Job:
        job = submit(admission, STRICT, "attached", attach)
        bad = own_guard_pod(STRICT, job)
        alone(bad)["image"] = "other"
        eventually(partial(refusal, admission, bad), "the policies know the job")
        return job

    def test_its_pod_is_admitted(self, admission: Client, job: Job) -> None:
        assert refusal(admission, own_guard_pod(STRICT, job)) is None

    @pytest.mark.parametrize("case", OF_AN_ATTACHED_GUARD.values(), ids=OF_AN_ATTACHED_GUARD.keys())
    def test_it_is_as_its_job_says(self, admission: Client, job: Job, case: tuple[Any, ...]) -> None:
        refused_as_changed(admission, own_guard_pod(STRICT, job), *case)


# -- who may enter the container of a guard --------------------------------------------------------------


def entered(client: Client, pod: str, container: str, way: str = "exec") -> str:
    """What the API server says against a shell there; "" if it would pass it on to a kubelet."""
    query = {"container": container, "stdout": "true"} | ({"command": "sh"} if way == "exec" else {})
    try:
        client.request("POST", f"/api/v1/namespaces/{STRICT}/pods/{pod}/{way}", query=query)
    except ApiError as error:
        return only_forbidden(error) if error.status == 403 else ""
    return ""


class TestAShellInAGuard:
    @pytest.fixture(scope="class")
    def developer(self, accounts: Accounts, admission: Client) -> Client:
        """Whoever may run and look into pods of the namespace."""
        into = {"apiGroups": [""], "resources": ["pods/exec", "pods/attach"], "verbs": ["create", "get"]}
        accounts.may(STRICT, "developer", into)
        client = accounts.client(STRICT, "developer")
        eventually(lambda: entered(client, "run-master-0", "pytorch") == "", "it may enter pods")
        eventually(lambda: entered(client, "run-master-0", "rlguard-guard") != "", "the policy is on")
        return client

    @pytest.mark.parametrize("way", ["exec", "attach"])
    @pytest.mark.parametrize(
        ("pod", "container"),
        [("run-master-0", "rlguard-guard"), ("run-0a1b2c3d-0", "")],
        ids=["named", "alone"],
    )
    def test_is_refused(self, developer: Client, pod: str, container: str, way: str) -> None:
        assert "enters the container of a guard" in entered(developer, pod, container, way)

    @pytest.mark.parametrize(
        ("pod", "container"),
        [("run-master-0", "pytorch"), ("run-0a1b2c3d-0", "other"), ("run-master-0", "")],
        ids=["the trainer", "another one", "the only one"],
    )
    def test_elsewhere_is_nobodys_business(self, developer: Client, pod: str, container: str) -> None:
        assert entered(developer, pod, container) == ""

    def test_is_for_who_may_operate_jobs(self, accounts: Accounts, admission: Client) -> None:
        assert entered(admission, "run-master-0", "rlguard-guard") == "", "an administrator may"
        into = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
        operates = {"apiGroups": ["rlguard.dev"], "resources": ["guardedtrainingjobs"], "verbs": ["operate"]}
        accounts.may(STRICT, "on-call", into, operates)
        client = accounts.client(STRICT, "on-call")
        eventually(lambda: entered(client, "run-master-0", "rlguard-guard") == "", "its right counts")


# -- who may create a job, what the operator may create ------------------------------


@dataclass
class Accounts:
    """Service accounts of a namespace, with real tokens."""

    cluster: Cluster
    kubeconfig: Path
    directory: Path

    def may(self, namespace: str, account: str, *rules: Json) -> None:
        meta = {"name": account, "namespace": namespace}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta}
        self.cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}, dry_run=False)
        self.cluster.apply({**role, "rules": list(rules)}, dry_run=False)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        self.cluster.apply(
            {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}, dry_run=False
        )

    def client(self, namespace: str, account: str) -> Client:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.cluster.client.request("POST", path, body=body)["status"]["token"]
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        file = self.directory / f"{namespace}-{account}"
        file.write_text(yaml.safe_dump(config))
        return Client(load_configuration(str(file)))


@pytest.fixture(scope="module")
def accounts(
    cluster: Cluster, admission: Client, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Accounts:
    return Accounts(cluster, kubeconfig, tmp_path_factory.mktemp("accounts"))


class TestWhoMayCreateAJob:
    def create(self, client: Client, name: str = "mine", **values: Any) -> str:
        try:
            submit(client, STRICT, name, partial(set_guard, **values), dry_run=True)
        except ApiError as error:
            return only_forbidden(error)
        return ""

    def test_who_may_create_pods(self, accounts: Accounts) -> None:
        jobs = {"apiGroups": ["rlguard.dev"], "resources": ["guardedtrainingjobs"], "verbs": ["create"]}
        pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
        accounts.may(STRICT, "author", jobs)
        assert "you may not create pods" in self.create(accounts.client(STRICT, "author"))
        accounts.may(STRICT, "author", jobs, pods)
        eventually(
            lambda: not self.create(accounts.client(STRICT, "author")), "the right to create pods counts"
        )

    @pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.resource.kind)
    def test_nobody_has_the_operator_stop_what_he_may_not_delete(
        self, accounts: Accounts, adapter: WorkloadAdapter
    ) -> None:
        kind, name = adapter.resource, f"other-{adapter.resource.plural}"
        create = {"verbs": ["create"], "apiGroups": ["", "rlguard.dev"]}
        create["resources"] = ["pods", "guardedtrainingjobs"]
        accounts.may(STRICT, name, create)
        client = accounts.client(STRICT, name)

        def answer() -> str:
            try:
                submit(client, STRICT, "mine", partial(attach, kind=kind.kind), dry_run=True)
            except ApiError as error:
                return only_forbidden(error)
            return ""

        eventually(lambda: f"you may not delete {kind.kind} shared" in answer(), "the other rights count")
        delete = {"verbs": ["delete"], "apiGroups": [kind.group], "resources": [kind.plural]}
        accounts.may(STRICT, name, create, delete | {"resourceNames": ["another"]})
        assert f"you may not delete {kind.kind} shared" in answer()
        accounts.may(STRICT, name, create, delete | {"resourceNames": ["shared"]})
        eventually(lambda: answer() == "", "the right to delete it counts")

    @pytest.mark.parametrize(
        ("image", "admitted"),
        [
            ("one/guard:1", True),
            ("mine/guard:2", True),
            ("mine/guard@sha256:a", True),
            ("one/guard:11", False),
            ("one/guard", False),
            ("evil/mine/guard:1", False),
        ],
    )
    def test_with_a_guard_image_that_is_listed(self, admission: Client, image: str, admitted: bool) -> None:
        answer = self.create(admission, image=image)
        assert (answer == "") == admitted
        assert admitted or "admissionPolicy.guardImages" in answer

    def test_with_the_default_image(self, admission: Client) -> None:
        assert self.create(admission) == ""


class TestWhatTheOperatorMayCreate:
    @pytest.fixture(scope="class")
    def operator(self, accounts: Accounts) -> Client:
        return accounts.client(NAMESPACE, "strict-rlguard")

    def objects(self) -> list[tuple[Resource, Json]]:
        """All that it creates for a job."""
        job = JOBS[STRICT]
        made = support_objects(job, job.spec.guard.policy, new_credentials(job, datetime.now(UTC)))
        return [*made, (ADAPTERS[0].resource, build_workload(job, ADAPTERS[0], CONFIG))]

    def test_all_that_a_job_needs_and_nothing_that_no_job_owns(self, operator: Client) -> None:
        for resource, body in self.objects():
            operator.create(resource, STRICT, body, "rlguard-operator", dry_run=True)
            loose = copy.deepcopy(body)
            loose["metadata"] |= {"name": "loose", "ownerReferences": []}
            with pytest.raises(ApiError, match="only what a GuardedTrainingJob owns"):
                operator.create(resource, STRICT, loose, "rlguard-operator", dry_run=True)

    def test_nobody_else_takes_the_names_of_what_it_makes(self, operator: Client, admission: Client) -> None:
        """It takes what is there for its own: a policy, for example."""
        job = submit(admission, STRICT, "n" * 50, apart)
        support_name, own = f"{job.name}-{job.uid[:8]}", guard_name(job.name, job.uid)
        assert support_name != own
        made = list(support_objects(job, job.spec.guard.policy, {}))
        made += guard_objects(job, GuardPod(), ADAPTERS[0], CONFIG)
        assert {resource.kind for resource, _ in made} == {"Secret", "ConfigMap", "Service", "StatefulSet"}
        made.append((CONFIG_MAPS, build_evidence(job, None, {}, datetime.now(UTC))))

        def taken(resource: Resource, body: Json) -> str:
            try:
                admission.create(resource, STRICT, body, "somebody", dry_run=True)
            except ApiError as error:
                return only_forbidden(error)
            return ""

        eventually(partial(taken, *made[0]), "the policies know the job")
        for resource, body in made:
            assert "the operator makes what has this name" in taken(resource, body), resource.kind
            other = copy.deepcopy(body)
            other["metadata"] |= {"name": f"{body['metadata']['name'][:40]}-other", "ownerReferences": []}
            assert taken(resource, other) == "", resource.kind
        for resource, body in made:
            operator.create(resource, STRICT, body, "rlguard-operator", dry_run=True)

    def test_secrets_are_read_and_kept_in_its_own_namespace_alone(self, operator: Client) -> None:
        state = {"metadata": {"name": "state"}, "stringData": {"a": "b"}}
        operator.create(SECRETS, NAMESPACE, state, "rlguard-operator", dry_run=True)
        assert operator.get(SECRETS, NAMESPACE, "state") is None
        with pytest.raises(ApiError, match="403"):
            operator.get(SECRETS, STRICT, "state")
        with pytest.raises(ApiError, match="only what a GuardedTrainingJob owns"):
            operator.create(SECRETS, STRICT, state, "rlguard-operator", dry_run=True)

    def test_the_evidence(self, operator: Client) -> None:
        job = JOBS[STRICT]
        body = build_evidence(job, None, {}, datetime.now(UTC))
        operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)
        del body["metadata"]["ownerReferences"]  # spec.keepEvidence
        operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)
        body["metadata"]["labels"] = {}
        with pytest.raises(ApiError, match="only what a GuardedTrainingJob owns"):
            operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)

    def test_it_deletes_the_pods_of_jobs_alone(self, operator: Client, admission: Client) -> None:
        job = guarded_pod(STRICT)
        job["metadata"]["name"] = "of-a-job"
        create(admission, job, dry_run=False)
        other = {"name": "of-nobody", "namespace": STRICT}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        create(admission, {"apiVersion": "v1", "kind": "Pod", "metadata": other, "spec": spec}, dry_run=False)
        path = f"/api/v1/namespaces/{STRICT}/pods/"
        operator.request("DELETE", f"{path}of-a-job", query={"dryRun": "All"})
        with pytest.raises(ApiError, match="delete only pods of workloads"):
            operator.request("DELETE", f"{path}of-nobody", query={"dryRun": "All"})

    @pytest.mark.parametrize(
        ("owner", "admitted"),
        [
            ({"apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": True}, True),
            ({"apiVersion": "batch/v1", "kind": "Job", "controller": True}, True),
            ({"apiVersion": "batch/v1", "kind": "Job", "controller": False}, False),
            ({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}, False),
            ({"apiVersion": "example.com/v1", "kind": "Job", "controller": True}, False),
        ],
        ids=str,
    )
    def test_it_deletes_pods_of_what_it_may_be_attached_to(
        self, operator: Client, admission: Client, owner: Json, admitted: bool
    ) -> None:
        name = f"of-{owner['kind'].lower()}-{len(str(owner))}"
        metadata = {"name": name, "namespace": STRICT, "ownerReferences": [owner | {"name": "x", "uid": "y"}]}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        create(admission, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, False)
        path = f"/api/v1/namespaces/{STRICT}/pods/{name}"
        if admitted:
            operator.request("DELETE", path, query={"dryRun": "All"})
        else:
            with pytest.raises(ApiError, match="delete only pods of workloads"):
                operator.request("DELETE", path, query={"dryRun": "All"})


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

    # A CRD that was applied by hand is not Helm's; docs/install.md says how it becomes so.
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
