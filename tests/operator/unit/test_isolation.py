"""The isolation table: each row refuses what it names, and nothing that a GPU job needs is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlguard.operator.adapters import ADAPTERS
from rlguard.operator.api.reasons import Reason
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.inject import build_workload
from rlguard.operator.reconcile.isolation import TABLE, broken_rows, guard_objects_of
from rlguard.operator.reconcile.review import Review, review
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.targets import exposures

from . import isolation_cases as cases
from .given import CONFIG, SUPPORT, pytorchjob, template
from .given import job as given_job

Json = dict[str, Any]
BROKEN = cases.broken(SUPPORT)


def template_pod() -> Json:
    pod: Json = template()["spec"]
    return pod


def job(*pods: Json, **guard: Any) -> Job:
    """A PyTorchJob whose replicas have these pods, the first of them rank 0."""
    made = pytorchjob(*({"spec": pod} for pod in pods or (template_pod(),)))
    return given_job(made, guard={"state": {"claimName": cases.STATE}, **guard})


def in_a_pod(*pods: Json) -> Job:
    return job(*pods, placement="Pod", pod={"serviceAccountName": cases.ACCOUNT})


def reviewed(one: Job) -> Review:
    return review(ADAPTERS[0], one, CONFIG)


def rows(pod: Json, one: Job | None = None, **options: bool) -> list[str]:
    one = one or in_a_pod()
    own = guard_objects_of(one.name, one.uid, one.spec.guard, CONFIG)
    return [found.row for found in broken_rows(pod, own, **options)]


def test_every_row_has_a_case_and_there_is_no_other() -> None:
    told = {*BROKEN, *cases.IN_TEMPLATE, *cases.IN_DEBUG_CONTAINER}
    assert told == {row.id for row in TABLE} and len({row.id for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", BROKEN)
def test_a_row_is_broken_by_what_it_names_and_by_nothing_else(row: str) -> None:
    pod = template_pod()
    assert rows(pod, beside=True) == []
    BROKEN[row](pod)
    assert rows(pod, beside=True) == [row]


@pytest.mark.parametrize("row", cases.IN_TEMPLATE)
def test_a_template_has_no_name_that_the_operator_gives(row: str) -> None:
    pod = template_pod()
    cases.IN_TEMPLATE[row](pod)
    assert rows(pod, template=True) == [row]


def test_a_debug_container_does_not_enter_the_guard() -> None:
    for row, fields in cases.IN_DEBUG_CONTAINER.items():
        assert rows({**template_pod(), "ephemeralContainers": [{"name": "debug", **fields}]}) == [row]


@pytest.mark.parametrize("row", ["host-network", "shared-processes"])
def test_what_only_matters_beside_the_guard_is_admitted_elsewhere(row: str) -> None:
    pod = template_pod()
    BROKEN[row](pod)
    assert rows(pod, beside=False) == []
    assert reviewed(job(template_pod(), pod)).reason is None
    assert reviewed(job(pod)).reason is Reason.TEMPLATE_REFUSED


@pytest.mark.parametrize("change", cases.ADMITTED.values(), ids=cases.ADMITTED.keys())
def test_what_gpu_training_needs_is_admitted(change: Any) -> None:
    pod = template_pod()
    change(pod)
    assert reviewed(job(pod)) == Review()
    assert build_workload(job(pod), ADAPTERS[0], CONFIG)


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/", True),
        ("//var//lib/./", True),
        ("/var/lib/kubelet", True),
        ("/var/lib/kubelet/pods/x", True),
        ("/mnt/a/../../var/lib/kubelet", True),
        ("/mnt/k8s-disks", True),
        ("/mnt/k8s-disks/0", True),
        ("/proc/1/root", True),
        ("/mnt/k8s-disks/0/data", False),
        ("/var/lib/kubelet-data", False),
        ("/data", False),
    ],
)
def test_a_host_path_reaches_no_directory_of_the_node(path: str, reached: bool) -> None:
    pod = template_pod()
    cases.volume(hostPath={"path": path})(pod)
    assert (rows(pod) == ["host-path"]) is reached


def test_the_directories_of_the_node_are_the_installations_own() -> None:
    pod = template_pod()
    cases.volume(hostPath={"path": "/data/kubelet/pods"})(pod)
    one, config = job(pod), OperatorConfig("guard:1", node_directories=("/data/kubelet",))
    assert review(ADAPTERS[0], one, CONFIG).reason is None
    (message,) = review(ADAPTERS[0], one, config).findings
    assert "hostPath.path must not be /data/kubelet/pods, which reaches /data/kubelet" in message


@pytest.mark.parametrize("row", [*BROKEN, *cases.IN_TEMPLATE])
def test_relaxed_admits_every_row_and_lists_those_that_are_broken(row: str) -> None:
    pod = template_pod()
    (BROKEN | cases.IN_TEMPLATE)[row](pod)
    if row == "guard-account":
        return  # a Sidecar has none
    strict, relaxed = reviewed(job(pod)), reviewed(job(pod, isolation="Relaxed"))
    assert strict.reason is Reason.TEMPLATE_REFUSED
    assert relaxed.reason is None and relaxed.broken == strict.findings


def test_a_finding_that_replicas_share_is_printed_once_in_two_lines_at_most() -> None:
    pods = template_pod(), template_pod()
    for pod in pods:
        BROKEN["privileged"](pod)
    (finding,) = reviewed(job(*pods)).findings
    assert finding.startswith("spec.template.spec.pytorchReplicaSpecs.Master.template.spec.containers[1].")
    assert finding.endswith("(also in spec.template.spec.pytorchReplicaSpecs.Worker.template.spec)")
    assert len(finding) <= 2 * 160


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            cases.container(volumeMount=[]),
            "containers[1].volumeMount is no field of a pod: did you mean volumeM",
        ),
        (
            cases.volume(persistantVolumeClaim={}),
            "persistantVolumeClaim is no field of a pod: did you mean pers",
        ),
        (cases.container(resources={"limit": {}}), "limit is no field of a pod: did you mean limits?"),
        (cases.pod(toleration=[]), "toleration is no field of a pod: did you mean tolerations?"),
    ],
)
def test_a_typo_names_the_field_that_was_probably_meant(change: Any, finding: str) -> None:
    pod = template_pod()
    change(pod)
    assert finding in " ".join(reviewed(job(pod, isolation="Relaxed")).findings)


def test_a_field_of_a_later_release_is_left_to_the_api_server() -> None:
    pod = template_pod() | {"somethingNew": {"a": 1}}
    assert reviewed(job(pod)).reason is None


def test_the_operators_own_pods_break_no_row() -> None:
    for one in (job(), in_a_pod()):
        workload = build_workload(one, ADAPTERS[0], CONFIG)
        pod = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        assert rows(pod, one, beside=one.spec.guard.own_pod is None) == []


def test_the_trainer_may_have_the_two_keys_that_it_shares_with_the_guard() -> None:
    for key, found in (("ingest-token", []), ("tls.crt", []), ("read-token", ["secret-env"])):
        pod = template_pod()
        cases.env(valueFrom={"secretKeyRef": {"name": SUPPORT, "key": key}})(pod)
        assert rows(pod) == found


@pytest.mark.parametrize("row", BROKEN)
def test_a_pod_of_a_workload_that_existed_is_held_against_the_same_rows(row: str) -> None:
    one, spec = in_a_pod(), template_pod()
    BROKEN[row](spec)
    own = guard_objects_of(one.name, one.uid, one.spec.guard, CONFIG)
    found = list(exposures({"metadata": {"name": "p"}, "spec": spec}, own))
    assert bool(found) is (row not in ("host-network", "shared-processes"))
    assert all(sentence.startswith("pod p: ") for sentence in found)


@pytest.mark.parametrize("junk", [None, [], "x", 7, {"containers": "x"}, {"volumes": [None, {"csi": 3}]}])
def test_what_is_no_pod_breaks_no_row_and_raises_nothing(junk: Any) -> None:
    assert rows(copy.deepcopy(junk) if isinstance(junk, dict) else {"containers": [junk]}) == []
