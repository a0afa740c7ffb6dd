"""Chart, samples and overlays against a real API server: accepted in a dry run, and admission works.

Not here, because it needs a kubelet: pods that start, a rolling upgrade, and `helm test`.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_operator.adapters import ADAPTERS, find
from guard_operator.api.names import KIND
from guard_operator.api.schema import crd
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.refusals import inspect
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import APPLY, MERGE, Client
from guard_operator.runtime.errors import ApiError

from .conftest import CHART, NAMESPACE, ROOT, VALUES, Helm, Json, Render, Tools, load

eventually = load(ROOT / "tests/operator/integration/waiting.py", "chart_waiting").eventually

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
SAMPLES = sorted(p for p in ROOT.glob("k8s/samples/**/*.yaml") if p.name != "kustomization.yaml")
OVERLAYS = sorted(p.parent for p in ROOT.glob("k8s/**/kustomization.yaml"))
STRICT, RELAXED, UNWATCHED = "team-strict", "team-relaxed", "team-unwatched"
NAMESPACES = [NAMESPACE, "team-a", "team-b", STRICT, RELAXED, UNWATCHED, "rlguard-demo", "training"]
HOST_PATH = "/mnt/k8s-disks"


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


# -- samples and overlays --------------------------------------------------------------------------------


def job_of(raw: Json, namespace: str = "default") -> Job:
    spec = Spec.model_validate(raw["spec"])
    return Job(raw["metadata"]["name"], namespace, "0123456789abcdef", 1, "1", {}, spec, Status())


def check(cluster: Cluster, documents: list[Json]) -> list[Json]:
    """Every object passes a dry run; so does the workload of every job; nothing is refused. The jobs."""
    jobs = [d for d in documents if d["kind"] == KIND]
    for document in documents:
        cluster.apply(document)
    for raw in jobs:
        job = job_of(raw, raw["metadata"].get("namespace", "default"))
        config, template = OperatorConfig("guard:1"), job.spec.template
        adapter = find(template.api_version, template.kind)
        assert adapter is not None
        assert inspect(adapter, template.spec, job.spec.guard, config) == ()
        workload = build_workload(job, adapter, config)
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
            assert pod["nodeSelector"] and pod["serviceAccountName"] == "trainer"
            assert container["image"].startswith("123456789012.dkr.ecr.")
            used = {
                v["persistentVolumeClaim"]["claimName"]
                for v in pod["volumes"]
                if "persistentVolumeClaim" in v
            }
            assert used <= claims.keys()
        heldout = claims[job["spec"]["guard"]["heldout"]["volume"]["claimName"]]
        assert heldout["spec"]["accessModes"] == ["ReadOnlyMany"]


# -- admission: the operator's refusals, for pods that were changed behind its back ----------------------


def sample() -> Json:
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "single-gpu.yaml").read_text())
    return next(d for d in documents if d["kind"] == KIND)


def template_pod(raw: Json) -> Json:
    pod: Json = raw["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return pod


def guarded_pod(namespace: str) -> Json:
    """The pod that the training-operator makes of what our operator built."""
    workload = build_workload(job_of(sample(), namespace), ADAPTERS[0], OperatorConfig("guard:1"))
    template = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-type": "master"}
    metadata = {"name": "single-gpu-master-0", "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def create(client: Client, pod: Json, dry_run: bool = True) -> Json:
    query = {"fieldManager": "training-operator", "fieldValidation": "Strict"}
    query |= {"dryRun": "All"} if dry_run else {}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    return client.request("POST", path, query=query, body=pod)


def refusal(client: Client, pod: Json) -> str | None:
    """What the API server says against the pod; None if it admits it."""
    try:
        create(client, pod)
    except ApiError as error:
        if error.status != 403:
            raise
        return str(error)
    return None


@pytest.fixture(scope="session")
def admission(cluster: Cluster, render: Render) -> Client:
    """Two releases, one for each namespace: the defaults, and one that admits what Relaxed may have."""
    relaxed = {"relaxed.hostNetwork": "true", "relaxed.hostPaths": f'["{HOST_PATH}"]'}
    for release, namespace, values in (("strict", STRICT, {}), ("relaxed", RELAXED, relaxed)):
        for obj in render({"watchNamespaces": f'["{namespace}"]', **values}, release):
            if obj["kind"].startswith("ValidatingAdmissionPolicy"):
                cluster.apply(obj, dry_run=False)
    for namespace in (STRICT, RELAXED):  # the server takes a moment to load them
        bad = guarded_pod(namespace)
        bad["spec"]["hostPID"] = True
        eventually(partial(refusal, cluster.client, bad), f"the policies work in {namespace}")
    return cluster.client


def test_the_pod_that_the_operator_made_is_admitted(admission: Client) -> None:
    assert refusal(admission, guarded_pod(STRICT)) is None


def test_a_worker_without_a_guard_is_admitted(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    pod["spec"] = template_pod(sample()) | {"automountServiceAccountToken": False}
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "worker"
    assert refusal(admission, pod) is None


def test_the_pod_of_a_batch_job_must_have_its_guard(admission: Client) -> None:
    pod = guarded_pod(STRICT)
    pod["metadata"]["labels"] |= {
        "training.kubeflow.org/replica-type": "",
        "batch.kubernetes.io/job-name": "batch-job",
    }
    assert refusal(admission, pod) is None
    pod["spec"] = template_pod(sample()) | {"automountServiceAccountToken": False}
    assert "must have its guard" in str(refusal(admission, pod))


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
    Case(
        "checkpoints over the guard's directories",
        lambda p: [
            m.update(mountPath="/var/run")
            for c in [*p.get("initContainers", []), *p["containers"]]
            for m in c["volumeMounts"]
            if m["name"] == "checkpoints"
        ],
        "over the guard's directories",
    ),
    Case(
        "the guard's volume in the trainer",
        lambda p: trainer(p)["volumeMounts"].append({"name": "rlguard-state", "mountPath": "/x"}),
        "pytorch: must not mount the guard's volumes",
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_the_operator_refuses_the_api_server_refuses(admission: Client, case: Case) -> None:
    pod = guarded_pod(STRICT)
    case.change(pod["spec"])
    answer = refusal(admission, pod)
    assert answer is not None and case.said in answer, answer
    if not case.pod_only:
        raw = sample()
        case.change(template_pod(raw))
        job = job_of(raw)
        assert inspect(ADAPTERS[0], job.spec.template.spec, job.spec.guard, OperatorConfig("guard:1"))


@pytest.mark.parametrize(
    ("kind", "environment"),
    [
        ("secret", {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "split", "key": "k"}}}]}),
        ("secret", {"envFrom": [{"secretRef": {"name": "split"}}]}),
        (
            "configMap",
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "split", "key": "k"}}}]},
        ),
        ("configMap", {"envFrom": [{"configMapRef": {"name": "split"}}]}),
    ],
)
def test_held_out_data_in_the_environment_is_refused(admission: Client, kind: str, environment: Json) -> None:
    pod = guarded_pod(STRICT)
    source = {"secret": {"secretName": "split"}} if kind == "secret" else {"configMap": {"name": "split"}}
    volumes = [v for v in pod["spec"]["volumes"] if v["name"] != "rlguard-heldout"]
    pod["spec"]["volumes"] = [*volumes, {"name": "rlguard-heldout", **source}]
    assert refusal(admission, pod) is None
    extra(pod["spec"], **environment)
    answer = refusal(admission, pod)
    assert answer is not None and "extra: must not refer to the held-out data" in answer
    pod["spec"]["containers"].pop()
    volume(pod["spec"], projected={"sources": [{kind: {"name": "split"}}]})
    answer = refusal(admission, pod)
    assert answer is not None and "extra: must not be the held-out volume" in answer


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

    def patch(self, client: Client, pod: Json, patch: Json, sub: str = "", kind: str = MERGE) -> Json:
        path = f"/api/v1/namespaces/{STRICT}/pods/{pod['metadata']['name']}{sub}"
        return client.request("PATCH", path, query={"dryRun": "All"}, body=patch, content_type=kind)

    def debug(self, client: Client, pod: Json, **container: Any) -> Json:
        """What `kubectl debug` does."""
        body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", **container}]}}
        kind = "application/strategic-merge-patch+json"
        return self.patch(client, pod, body, "/ephemeralcontainers", kind)

    def test_keeps_the_labels_by_which_the_operator_finds_it(self, admission: Client, pod: Json) -> None:
        for value in (None, "other"):
            with pytest.raises(ApiError, match="must stay"):
                self.patch(admission, pod, {"metadata": {"labels": {"rlguard.dev/job-uid": value}}})

    def test_may_be_annotated(self, admission: Client, pod: Json) -> None:
        self.patch(admission, pod, {"metadata": {"annotations": {"note": "x"}, "labels": {"note": "x"}}})

    def test_may_be_debugged(self, admission: Client, pod: Json) -> None:
        self.debug(admission, pod, targetContainerName="pytorch")

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
            self.debug(admission, pod, **container)


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
