"""The chart's admission policies against a real API server: pods, shells, who may create what.

The operator runs with the rights that the chart gives it, under these policies. Its workloads are the pods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.operator.api.names import guard_name, support_name
from rlguard.operator.runtime.client import (
    CONFIG_MAPS,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Client,
    Resource,
    load_configuration,
)
from rlguard.operator.runtime.errors import ApiError
from tests.operator.integration.controlplane import ControlPlane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import JOBS, PYTORCHJOBS, World, token_for
from tests.operator.unit import isolation_cases as cases

from .conftest import NAMESPACE, ROOT, Cluster, Json, Render

pytestmark = pytest.mark.nightly

STRICT, OTHER = "team-strict", "team-other"
MADE = (SECRETS, CONFIG_MAPS, SERVICES, STATEFUL_SETS, PYTORCHJOBS)
#: A name so long that the guard's StatefulSet has not all of it.
LONG = "n" * 47
#: What only the guards may have.
OWN: Json = {
    "heldout": {"volume": {"claimName": cases.HELDOUT}, "split": "h.jsonl", "evaluator": {"hf": {}}},
    "state": {"claimName": cases.STATE},
}
PLACED: dict[str, Json] = {
    "beside": {},
    "apart": {"placement": "Pod", "pod": {"serviceAccountName": cases.ACCOUNT}},
    "relaxed": {"isolation": "Relaxed"},
    LONG: {"placement": "Pod"},
}
KINDS = {
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
    "Job": ("batch", "v1", "jobs"),
    "RayJob": ("ray.io", "v1", "rayjobs"),
    "RayCluster": ("ray.io", "v1", "rayclusters"),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
}


def sample(name: str, **guard: Any) -> Json:
    """A sample as a job of this name, with a Worker like its Master."""
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "single-gpu.yaml").read_text())
    job: Json = next(d for d in documents if d["kind"] == JOBS.kind)
    job["metadata"] = {"name": name, "namespace": STRICT}
    replicas = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"] = copy.deepcopy(replicas["Master"])
    job["spec"]["guard"] |= OWN | guard
    return job


def refusal(client: Client, resource: Resource, body: Json, namespace: str = STRICT) -> str:
    """What the API server says against a new object; "" if it admits it. Nothing is made."""
    typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    try:
        client.create(resource, namespace, typed, "test", dry_run=True)
    except ApiError as error:
        if error.status != 403:  # any other error is the test's own mistake
            raise
        return error.message
    return ""


class Strict(World):
    """The operator of a release that watches one namespace."""

    system = NAMESPACE

    def _grant(self) -> None:
        self.token = token_for(self.client, NAMESPACE, "strict-rlguard")

    def pod(self, name: str, role: str = "Master") -> Json:
        """The pod that the training-operator makes of a job's workload."""
        workload = self.client.get(PYTORCHJOBS, STRICT, name)
        assert workload is not None
        template = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
        labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-type": role.lower()}
        metadata = template["metadata"] | {"name": f"{name}-{role.lower()}-0", "labels": labels}
        # As in a cluster, where each namespace has an account.
        return {"metadata": metadata, "spec": {"serviceAccountName": "default"} | template["spec"]}

    def guards_pod(self, name: str) -> Json:
        """The pod that the StatefulSet controller makes of the guard's."""
        made = self.client.get(STATEFUL_SETS, STRICT, guard_name(name, self.uid(name)))
        assert made is not None
        pod, template = f"{made['metadata']['name']}-0", made["spec"]["template"]
        labels = template["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": pod}
        spec = template["spec"] | {"hostname": pod, "subdomain": made["spec"]["serviceName"]}
        return {"metadata": template["metadata"] | {"name": pod, "labels": labels}, "spec": spec}

    def uid(self, name: str) -> str:
        job = self.client.get(JOBS, STRICT, name)
        assert job is not None
        return str(job["metadata"]["uid"])

    def refuses(self, pod: Json, namespace: str = STRICT) -> str:
        return refusal(self.client, PODS, pod, namespace)


@pytest.fixture(scope="module")
def strict(
    cluster: Cluster, render: Render, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Strict]:
    """A release that watches one namespace, with a job of each placement and isolation."""
    cluster.namespaces(NAMESPACE, STRICT, OTHER)
    values = {"watchNamespaces": f'["{STRICT}"]', "admissionPolicy.guardImages": '["mine/", "one/guard:1"]'}
    for obj in render(values, "strict"):
        if obj["kind"].startswith(("ValidatingAdmissionPolicy", "Role", "ServiceAccount")):
            cluster.apply(obj, dry_run=False)
    made = Strict(plane, cluster.client, STRICT, tmp_path_factory.mktemp("strict"))
    try:
        for name in (cases.HELDOUT, cases.STATE, "models", "single-gpu-checkpoints"):
            made.claim(name, "ReadWriteMany")
        for name, guard in PLACED.items():
            made.submit(sample(name, **guard))
        made.operator()
        for name in PLACED:
            made.another(name).expect("Guarded", "True", "WorkloadCreated", within=60)
        for name in ("beside", "apart"):  # the server takes a moment to know policies and jobs
            bad = made.pod(name)
            bad["spec"]["hostPID"] = True
            eventually(partial(made.refuses, bad), f"the policies know the job {name}")
        yield made
    finally:
        made.close()


# -- pods ------------------------------------------------------------------------------------------------

#: Rows that this API server itself answers for, or drops the field of: it is behind a gate, or a pod cannot
#: have it beside what every pod has. Those have the operator's tests alone.
SERVERS_OWN = {"device", "env-file", "pod-certificate", "windows"}
#: Rows that hold in the pod of a guard alone, and one of jobs whose guard has an account of its own.
OF_THE_GUARDS_POD, OF_AN_ACCOUNT = {"host-network", "shared-processes", "mount"}, {"guard-account"}
ROWS = sorted(cases.broken("").keys() - SERVERS_OWN)


def changed(strict: Strict, name: str, change: str, role: str = "Master") -> Json:
    """A pod of a job after one change."""
    pod = strict.pod(name, role)
    changes = {**cases.broken(support_name(name, strict.uid(name))), **cases.ADMITTED}
    changes[change](pod["spec"])
    return pod


@pytest.mark.always
@pytest.mark.parametrize(
    ("name", "role", "row"),
    [
        (name, role, row)
        for name, role, apart_from in (
            ("beside", "Master", OF_AN_ACCOUNT),
            ("beside", "Worker", OF_THE_GUARDS_POD | OF_AN_ACCOUNT),
            ("apart", "Master", OF_THE_GUARDS_POD),
        )
        for row in sorted(set(ROWS) - apart_from)
    ],
)
def test_what_breaks_a_row_is_refused(strict: Strict, name: str, role: str, row: str) -> None:
    assert f"(isolation: {row})" in strict.refuses(changed(strict, name, row, role))


@pytest.mark.parametrize("row", sorted(OF_THE_GUARDS_POD - {"mount"}))
def test_where_no_guard_is_in_the_pod_there_is_nothing_to_reach(strict: Strict, row: str) -> None:
    assert strict.refuses(changed(strict, "apart", row)) == ""


@pytest.mark.parametrize("name", cases.ADMITTED)
def test_what_gpu_training_needs_is_admitted(strict: Strict, name: str) -> None:
    assert strict.refuses(changed(strict, "beside", name)) == ""


def test_a_relaxed_job_has_what_it_wants(strict: Strict) -> None:
    for row in ("privileged", "host-path", "host-pid", "secret-env", "claim"):
        assert strict.refuses(changed(strict, "relaxed", row)) == ""


@pytest.mark.always
def test_the_pods_that_the_operator_made_are_admitted(strict: Strict) -> None:
    made = [strict.pod("beside"), strict.pod("beside", "Worker"), strict.pod("apart")]
    assert [strict.refuses(pod) for pod in [*made, strict.guards_pod("apart")]] == [""] * 4


def test_what_webhooks_add_is_admitted(strict: Strict) -> None:
    """A mesh, OpenTelemetry, IRSA: variables, a sidecar and a volume in every container, the guard's too."""
    pod = strict.pod("beside")
    token = {"path": "token", "audience": "sts.amazonaws.com"}
    pod["spec"]["volumes"].append({"name": "iam", "projected": {"sources": [{"serviceAccountToken": token}]}})
    for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        container.setdefault("env", []).append({"name": "HTTPS_PROXY", "value": "http://proxy"})
        container.setdefault("volumeMounts", []).append({"name": "iam", "mountPath": "/iam"})
    mesh = {"name": "istio-proxy", "image": "proxy", "restartPolicy": "Always"}
    mesh["securityContext"] = {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}
    pod["spec"]["initContainers"].insert(0, mesh)
    assert strict.refuses(pod) == ""


@pytest.mark.always
def test_the_pod_of_rank_0_must_have_its_guard(strict: Strict) -> None:
    pod = strict.pod("beside")
    del pod["spec"]["initContainers"]
    pod["spec"]["volumes"] = [v for v in pod["spec"]["volumes"] if not v["name"].startswith("rlguard-")]
    assert "must have its guard" in strict.refuses(pod)


@pytest.mark.always
def test_other_pods_and_other_namespaces_are_left_alone(strict: Strict) -> None:
    pod = changed(strict, "beside", "privileged")
    assert strict.refuses(copy.deepcopy(pod), OTHER) == ""
    del pod["metadata"]["labels"]["rlguard.dev/job-uid"]
    assert strict.refuses(pod) == ""


def test_a_debug_container_looks_at_the_trainer_and_does_not_enter_the_guard(strict: Strict) -> None:
    strict.put(PODS, strict.pod("beside"))

    def debug(**fields: Any) -> str:
        path = f"/api/v1/namespaces/{STRICT}/pods/beside-master-0/ephemeralcontainers"
        body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", **fields}]}}
        kind = "application/strategic-merge-patch+json"
        try:
            strict.client.request("PATCH", path, query={"dryRun": "All"}, body=body, content_type=kind)
        except ApiError as error:
            return error.message
        return ""

    assert debug(targetContainerName="pytorch") == ""
    enters = {
        **cases.IN_DEBUG_CONTAINER,
        "mount": {"volumeMounts": [{"name": "rlguard-heldout", "mountPath": "/x"}]},
        "privileged": {"securityContext": {"privileged": True}},
    }
    for row, fields in enters.items():
        assert f"(isolation: {row})" in debug(**fields)


# -- accounts --------------------------------------------------------------------------------------------


@dataclass
class Accounts:
    """Service accounts of the namespace, with real tokens."""

    cluster: Cluster
    plane: ControlPlane
    directory: Path

    def may(self, account: str, *rules: tuple[str, str, str]) -> None:
        """Give an account these rights alone: verbs, API group and resources of each."""
        meta = {"name": account, "namespace": STRICT}
        role: Json = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta}
        given = [
            {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split()}
            for verbs, group, resources in rules
        ]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        subjects = [{"kind": "ServiceAccount", "name": account, "namespace": STRICT}]
        for body in (
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {**role, "rules": given},
            {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": subjects},
        ):
            self.cluster.apply(body, dry_run=False)

    def client(self, account: str, namespace: str = STRICT) -> Client:
        token = token_for(self.cluster.client, namespace, account)
        file = self.plane.kubeconfig(self.directory / account, token=token)
        return Client(load_configuration(str(file)))


@pytest.fixture(scope="module")
def accounts(
    cluster: Cluster, strict: Strict, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Accounts:
    return Accounts(cluster, plane, tmp_path_factory.mktemp("accounts"))


def entered(client: Client, pod: str, container: str, way: str = "exec") -> str:
    """What the API server says against a shell there; "" if it would pass it on to a kubelet."""
    query = {"container": container, "stdout": "true"} | ({"command": "sh"} if way == "exec" else {})
    try:
        client.request("POST", f"/api/v1/namespaces/{STRICT}/pods/{pod}/{way}", query=query)
    except ApiError as error:
        return error.message if error.status == 403 else ""
    return ""


def test_a_shell_in_a_guard_is_for_who_may_operate_jobs(accounts: Accounts, strict: Strict) -> None:
    into = ("create get", "", "pods/exec pods/attach")
    accounts.may("developer", into)
    developer = accounts.client("developer")
    eventually(lambda: entered(developer, "run-master-0", "pytorch") == "", "it may enter pods")
    eventually(lambda: entered(developer, "run-master-0", "rlguard-guard") != "", "the policy is on")
    for way in ("exec", "attach"):
        for pod, container in (("run-master-0", "rlguard-guard"), ("run-0a1b2c3d-0", "")):
            assert "enters the container of a guard" in entered(developer, pod, container, way)
    for pod, container in (("run-0a1b2c3d-0", "other"), ("run-master-0", "")):
        assert entered(developer, pod, container) == "", "that is nobody's business"
    assert entered(strict.client, "run-master-0", "rlguard-guard") == "", "an administrator may"
    accounts.may("on-call", into, ("operate", "rlguard.dev", "guardedtrainingjobs"))
    on_call = accounts.client("on-call")
    eventually(lambda: entered(on_call, "run-master-0", "rlguard-guard") == "", "its right counts")


def test_who_may_create_pods_may_create_a_job(accounts: Accounts) -> None:
    jobs = ("create", "rlguard.dev", "guardedtrainingjobs")
    accounts.may("author", jobs)
    client = accounts.client("author")
    eventually(lambda: "you may not create pods" in refusal(client, JOBS, sample("mine")), "it is asked")
    accounts.may("author", jobs, ("create", "", "pods"))
    eventually(lambda: not refusal(client, JOBS, sample("mine")), "the right to create pods counts")


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_has_the_operator_stop_what_he_may_not_delete(accounts: Accounts, kind: str) -> None:
    group, version, plural = KINDS[kind]
    follow = {"path": "run/metrics.jsonl", "format": "verl"}
    job = sample("m", placement="Pod", checkpoints={"claimName": "c"}, metrics={"follow": follow})
    del job["spec"]["template"]
    job["spec"]["targetRef"] = {"apiVersion": f"{group}/{version}", "kind": kind, "name": "shared"}
    create = (("create", "", "pods"), ("create", "rlguard.dev", "guardedtrainingjobs"))
    accounts.may(plural, *create)
    client = accounts.client(plural)
    refused = f"you may not delete {kind} shared"
    eventually(lambda: refused in refusal(client, JOBS, job), "the other rights count")
    accounts.may(plural, *create, ("delete", group, plural))
    eventually(lambda: refusal(client, JOBS, job) == "", "the right to delete it counts")


@pytest.mark.parametrize(
    ("image", "admitted"),
    [
        ("one/guard:1", True),
        ("mine/guard@sha256:a", True),
        ("one/guard:11", False),
        ("one/guard", False),
        ("evil/mine/guard:1", False),
    ],
)
def test_a_guard_has_an_image_that_is_listed(strict: Strict, image: str, admitted: bool) -> None:
    answer = refusal(strict.client, JOBS, sample("mine", image=image))
    assert (answer == "") == admitted
    assert admitted or "admissionPolicy.guardImages" in answer


# -- what the operator makes -------------------------------------------------------------------------------


def copies(strict: Strict, name: str) -> Iterator[tuple[Resource, Json]]:
    """All that the operator has made for a job, as somebody might make it."""
    owner = strict.uid(name)
    for resource in MADE:
        for raw in strict.client.list(resource, STRICT, {})["items"]:
            meta = raw["metadata"]
            if any(one["uid"] == owner for one in meta.get("ownerReferences") or []):
                kept = {key: meta[key] for key in ("name", "labels", "ownerReferences") if key in meta}
                raw.get("spec", {}).pop("clusterIPs", None), raw.get("spec", {}).pop("clusterIP", None)
                body = {key: raw[key] for key in ("spec", "data", "type", "immutable") if key in raw}
                yield resource, {"metadata": kept, **body}


def evidence(strict: Strict) -> Json:
    name = support_name("beside", strict.uid("beside"))
    labels = {"rlguard.dev/job": "beside"}
    return {"metadata": {"name": f"{name}-evidence", "labels": labels}, "data": {"a": "b"}}


def test_the_operator_makes_nothing_that_no_job_owns(accounts: Accounts, strict: Strict) -> None:
    operator = accounts.client("strict-rlguard", NAMESPACE)
    only = "only what a GuardedTrainingJob owns"
    found = list(copies(strict, "apart"))
    assert {resource.kind for resource, _ in found} == {one.kind for one in MADE}
    for resource, body in found:
        body["metadata"] |= {"name": "loose", "ownerReferences": []}
        assert only in refusal(operator, resource, body), resource.kind
    kept = evidence(strict)  # spec.keepEvidence
    assert refusal(operator, CONFIG_MAPS, kept) == ""
    kept["metadata"]["labels"] = {}
    assert only in refusal(operator, CONFIG_MAPS, kept)


def test_nobody_else_takes_the_names_of_what_it_makes(strict: Strict) -> None:
    """It takes what is there for its own: a policy, for example."""
    uid = strict.uid(LONG)
    assert support_name(LONG, uid) != guard_name(LONG, uid)
    for resource, body in [*copies(strict, LONG), (CONFIG_MAPS, evidence(strict))]:
        if resource is PYTORCHJOBS:
            continue  # it has the name of its job, which anybody may have taken
        assert "the operator makes what has this name" in refusal(strict.client, resource, body)
        body["metadata"] |= {"name": f"{body['metadata']['name'][:40]}-other", "ownerReferences": []}
        assert refusal(strict.client, resource, body) == "", resource.kind


def test_secrets_are_read_and_kept_in_its_own_namespace_alone(accounts: Accounts) -> None:
    operator = accounts.client("strict-rlguard", NAMESPACE)
    state = {"metadata": {"name": "state"}, "stringData": {"a": "b"}}
    assert refusal(operator, SECRETS, state, NAMESPACE) == ""
    assert operator.get(SECRETS, NAMESPACE, "state") is None
    with pytest.raises(ApiError, match="403"):
        operator.get(SECRETS, STRICT, "state")
    assert "only what a GuardedTrainingJob owns" in refusal(operator, SECRETS, state)


def owned_by(api_version: str, kind: str, controller: bool) -> Json:
    owner = {"apiVersion": api_version, "kind": kind, "controller": controller, "name": "x", "uid": "y"}
    return {"ownerReferences": [owner]}


PODS_TO_DELETE: dict[str, tuple[Callable[[Strict], Json], bool]] = {
    "of-a-job": (lambda strict: strict.pod("beside")["metadata"], True),
    "of-nobody": (lambda _: {}, False),
    "of-a-raycluster": (lambda _: owned_by("ray.io/v1", "RayCluster", True), True),
    "of-a-batch-job": (lambda _: owned_by("batch/v1", "Job", True), True),
    "not-controlled": (lambda _: owned_by("batch/v1", "Job", False), False),
    "of-a-replicaset": (lambda _: owned_by("apps/v1", "ReplicaSet", True), False),
    "of-another-group": (lambda _: owned_by("example.com/v1", "Job", True), False),
}


@pytest.mark.parametrize("name", PODS_TO_DELETE)
def test_it_deletes_pods_of_workloads_alone(accounts: Accounts, strict: Strict, name: str) -> None:
    metadata, admitted = PODS_TO_DELETE[name]
    pod = (
        strict.pod("beside")
        if name == "of-a-job"
        else {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    strict.put(PODS, pod | {"metadata": metadata(strict) | {"name": name}})
    operator, path = accounts.client("strict-rlguard", NAMESPACE), f"/api/v1/namespaces/{STRICT}/pods/{name}"
    if admitted:
        operator.request("DELETE", path, query={"dryRun": "All"})
    else:
        with pytest.raises(ApiError, match="delete only pods of workloads"):
            operator.request("DELETE", path, query={"dryRun": "All"})
