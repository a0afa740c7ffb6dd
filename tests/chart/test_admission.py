"""The chart's admission policies against a real API server: pods, shells, who may create what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard_core import __version__
from guard_operator.adapters import ADAPTERS, WorkloadAdapter
from guard_operator.api.guard import GuardPod
from guard_operator.api.names import KIND, guard_name, support_name
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.evidence import build_evidence
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.isolation import TABLE, broken_rows, guard_objects_of
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.snapshot import Job
from guard_operator.reconcile.support import new_credentials, support_objects
from guard_operator.runtime.client import (
    CONFIG_MAPS,
    SECRETS,
    STATEFUL_SETS,
    Client,
    Resource,
    load_configuration,
)
from guard_operator.runtime.errors import ApiError

from .conftest import NAMESPACE, ROOT, Cluster, Json, Render, load

pytestmark = pytest.mark.nightly

eventually = load(ROOT / "tests/operator/integration/waiting.py", "chart_waiting").eventually
cases = load(ROOT / "tests/operator/unit/isolation_cases.py", "isolation_cases")

STRICT, OTHER = "team-strict", "team-other"
CONFIG = OperatorConfig(f"rlguard/guard-hf:{__version__}")
#: The jobs that `admission` has created: with a guard beside the trainer, in another pod, and unprotected.
JOBS: dict[str, Job] = {}


def sample() -> Json:
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "single-gpu.yaml").read_text())
    return next(d for d in documents if d["kind"] == KIND)


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


def guarded_pod(job: Job, role: str = "Master") -> Json:
    """The pod that the training-operator makes of what our operator built."""
    workload = build_workload(with_worker(job), ADAPTERS[0], CONFIG)
    template = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
    labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-type": role.lower()}
    name = f"{job.name}-{role.lower()}-0"
    metadata = template["metadata"] | {"name": name, "namespace": STRICT, "labels": labels}
    spec = {"serviceAccountName": "default"} | template[
        "spec"
    ]  # as in a cluster, where each namespace has one
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_worker(job: Job) -> Job:
    """The job with a Worker like its Master, and a name and UID as they are."""
    replicas = job.spec.made_from.spec["pytorchReplicaSpecs"]
    replicas.setdefault("Worker", copy.deepcopy(replicas["Master"]))
    return job


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


def set_guard(spec: Json, **values: Any) -> None:
    spec["guard"].update(values)


@pytest.fixture(scope="session")
def admission(cluster: Cluster, render: Render) -> Client:
    """A release that watches one namespace, with a job of each placement and isolation."""
    for name in (NAMESPACE, STRICT, OTHER):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, dry_run=False)
    values = {"watchNamespaces": f'["{STRICT}"]', "admissionPolicy.guardImages": '["mine/", "one/guard:1"]'}
    for obj in render(values, "strict"):
        if obj["kind"].startswith(("ValidatingAdmissionPolicy", "Role", "ServiceAccount")):
            cluster.apply(obj, dry_run=False)
    for name, guard in {
        "beside": {},
        "apart": {"placement": "Pod", "pod": {"serviceAccountName": cases.ACCOUNT}},
        "relaxed": {"isolation": "Relaxed"},
    }.items():
        JOBS[name] = submit(cluster.client, STRICT, name, partial(set_guard, **OWN, **guard))
    for name in ("beside", "apart"):  # the server takes a moment to know policies and jobs
        bad = guarded_pod(JOBS[name])
        bad["spec"]["hostPID"] = True
        eventually(partial(refusal, cluster.client, bad), f"the policies know the job {name}")
    return cluster.client


#: What only the guards may have.
OWN: Json = {
    "heldout": {"volume": {"claimName": cases.HELDOUT}, "split": "h.jsonl", "evaluator": {"hf": {}}},
    "state": {"claimName": cases.STATE},
}
#: Rows that this API server itself answers for, or drops the field of: it is behind a gate, or a pod cannot
#: have it beside what every pod has.
SERVERS_OWN = {"device", "env-file", "pod-certificate", "windows"}


def changes(job: Job) -> Json:
    """Every way to break a row, and everything that is admitted, for the pods of a job."""
    broken = cases.broken(support_name(job.name, job.uid))
    return {**broken, **cases.ADMITTED}


def rows(job: Job, pod: Json) -> set[str]:
    """The rows that the operator finds broken."""
    own = guard_objects_of(job.name, job.uid, job.spec.guard, CONFIG)
    names = [one["name"] for one in pod["spec"].get("initContainers", [])]
    return {one.row for one in broken_rows(pod["spec"], own, beside="rlguard-guard" in names)}


def changed(job: Job, names: list[str], role: str = "Master") -> Json:
    """A pod of a job after some changes, with a name of its own for each volume and container."""
    pod = guarded_pod(job, role)
    for name in names:
        changes(job)[name](pod["spec"])
    for key in ("volumes", "containers"):
        for number, one in enumerate(pod["spec"][key]):
            one["name"] = f"extra-{number}" if one["name"] == "extra" else one["name"]
    return pod


#: Rows as a pod can break them on an API server. Those of SERVERS_OWN have the operator's tests alone.
ROWS = {row.id for row in TABLE if not row.in_template} - SERVERS_OWN - {"debugger"}


@pytest.mark.always
@pytest.mark.parametrize(
    ("row", "job"),
    # A pod whose guard stands elsewhere has no volume of it to mount.
    sorted({(row, job) for row in ROWS for job in ("beside", "apart")} - {("mount", "apart")}),
)
def test_what_breaks_a_row_is_refused(admission: Client, row: str, job: str) -> None:
    pod = changed(JOBS[job], [row])
    assert {row} >= rows(JOBS[job], pod)
    answer = refusal(admission, pod)
    assert (answer is not None) == bool(rows(JOBS[job], pod)), answer
    assert answer is None or f"(isolation: {row})" in answer


@pytest.mark.parametrize("name", cases.ADMITTED)
def test_what_gpu_training_needs_is_admitted(admission: Client, name: str) -> None:
    assert refusal(admission, changed(JOBS["beside"], [name])) is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    job=st.sampled_from(["beside", "apart"]),
    role=st.sampled_from(["Master", "Worker"]),
    names=st.sets(st.sampled_from(sorted({*cases.broken(""), *cases.ADMITTED} - SERVERS_OWN)), max_size=3),
)
def test_operator_and_api_server_agree(admission: Client, job: str, role: str, names: set[str]) -> None:
    pod = changed(JOBS[job], sorted(names), role)
    if {"host-ipc", "host-pid", "host-network"} & names:
        pod["spec"].pop("hostUsers", None)  # the server admits no user namespace beside these
        names = names - {"unmasked-proc"}
    try:
        create(admission, pod)
        refused = False
    except ApiError as error:
        if error.status != 403:
            return  # the server's own validation
        refused = True
    assert refused == bool(rows(JOBS[job], pod))


def test_a_relaxed_job_has_what_it_wants(admission: Client) -> None:
    job = JOBS["relaxed"]
    for row in ("privileged", "host-path", "host-pid", "secret-env", "claim"):
        assert refusal(admission, changed(job, [row])) is None


@pytest.mark.always
def test_the_pods_that_the_operator_made_are_admitted(admission: Client) -> None:
    assert refusal(admission, guarded_pod(JOBS["beside"])) is None
    assert refusal(admission, guarded_pod(JOBS["beside"], "Worker")) is None
    assert refusal(admission, guarded_pod(JOBS["apart"])) is None
    assert refusal(admission, own_guard_pod(STRICT, JOBS["apart"])) is None


def test_what_webhooks_add_is_admitted(admission: Client) -> None:
    """A mesh, OpenTelemetry, IRSA: variables, a sidecar and a volume in every container, the guard's too."""
    pod = guarded_pod(JOBS["beside"])
    token = {"path": "token", "audience": "sts.amazonaws.com"}
    pod["spec"]["volumes"].append({"name": "iam", "projected": {"sources": [{"serviceAccountToken": token}]}})
    for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        container.setdefault("env", []).append({"name": "HTTPS_PROXY", "value": "http://proxy"})
        container.setdefault("volumeMounts", []).append({"name": "iam", "mountPath": "/iam"})
    mesh = {"name": "istio-proxy", "image": "proxy", "restartPolicy": "Always"}
    mesh["securityContext"] = {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}
    pod["spec"]["initContainers"].insert(0, mesh)
    assert refusal(admission, pod) is None


@pytest.mark.always
def test_the_pod_of_rank_0_must_have_its_guard(admission: Client) -> None:
    pod = guarded_pod(JOBS["beside"])
    del pod["spec"]["initContainers"]
    pod["spec"]["volumes"] = [v for v in pod["spec"]["volumes"] if not v["name"].startswith("rlguard-")]
    assert "must have its guard" in str(refusal(admission, pod))


@pytest.mark.always
def test_other_pods_and_other_namespaces_are_left_alone(admission: Client) -> None:
    pod = changed(JOBS["beside"], ["privileged"])
    other = copy.deepcopy(pod)
    other["metadata"]["namespace"] = OTHER
    assert refusal(admission, other) is None
    del pod["metadata"]["labels"]["rlguard.dev/job-uid"]
    assert refusal(admission, pod) is None


class TestADebugContainer:
    @pytest.fixture(scope="class")
    def pod(self, admission: Client) -> Json:
        return create(admission, guarded_pod(JOBS["beside"]), dry_run=False)

    def debug(self, client: Client, pod: Json, **fields: Any) -> None:
        path = f"/api/v1/namespaces/{STRICT}/pods/{pod['metadata']['name']}/ephemeralcontainers"
        container = {"name": "debug", "image": "busybox", **fields}
        body = {"spec": {"ephemeralContainers": [container]}}
        kind = "application/strategic-merge-patch+json"
        client.request("PATCH", path, query={"dryRun": "All"}, body=body, content_type=kind)

    def test_looks_at_the_trainer(self, admission: Client, pod: Json) -> None:
        self.debug(admission, pod, targetContainerName="pytorch")

    @pytest.mark.parametrize(
        ("row", "fields"),
        [
            *cases.IN_DEBUG_CONTAINER.items(),
            ("mount", {"volumeMounts": [{"name": "rlguard-heldout", "mountPath": "/x"}]}),
            ("privileged", {"securityContext": {"privileged": True}}),
        ],
    )
    def test_does_not_enter_the_guard(self, admission: Client, pod: Json, row: str, fields: Json) -> None:
        with pytest.raises(ApiError, match=rf"\(isolation: {row}\)"):
            self.debug(admission, pod, **fields)


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
        job = JOBS["beside"]
        made = support_objects(job, new_credentials(job, datetime.now(UTC)))
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
        job = submit(admission, STRICT, "n" * 50, partial(set_guard, **OWN, placement="Pod"))
        assert support_name(job.name, job.uid) != guard_name(job.name, job.uid)
        made = list(support_objects(job, {}))
        made += guard_objects(job, GuardPod(), ADAPTERS[0], CONFIG)
        assert {resource.kind for resource, _ in made} == {"Secret", "ConfigMap", "Service", "StatefulSet"}
        made.append((CONFIG_MAPS, build_evidence(job, {}, {}, datetime.now(UTC))))

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
        job = JOBS["beside"]
        body = build_evidence(job, {}, {}, datetime.now(UTC))
        operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)
        del body["metadata"]["ownerReferences"]  # spec.keepEvidence
        operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)
        body["metadata"]["labels"] = {}
        with pytest.raises(ApiError, match="only what a GuardedTrainingJob owns"):
            operator.create(CONFIG_MAPS, STRICT, body, "rlguard-operator", dry_run=True)

    def test_it_deletes_the_pods_of_jobs_alone(self, operator: Client, admission: Client) -> None:
        job = guarded_pod(JOBS["beside"])
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
