"""What Strict allows: every field of a pod, and every way to the guard that depends on a value.

The rows are in pod_fields.yaml; tests/operator/integration compares their names with a real API server's.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_operator.adapters import ADAPTERS
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.inject import LeakError, build_workload, own_sources
from guard_operator.reconcile.isolation import POD, TABLES
from guard_operator.reconcile.leaks import leaks
from guard_operator.reconcile.refusals import Violation, copies, find_violations
from guard_operator.reconcile.snapshot import Job

_SPEC = importlib.util.spec_from_file_location("pod_fields", Path(__file__).with_name("pod_fields.py"))
assert _SPEC and _SPEC.loader
pod_fields = importlib.util.module_from_spec(_SPEC)
sys.modules["pod_fields"] = pod_fields
_SPEC.loader.exec_module(pod_fields)

Json = dict[str, Any]
CONFIG = OperatorConfig("guard:1", relaxed_host_paths=("/mnt/k8s-disks",))


def template_pod() -> Json:
    mounts = [{"name": "checkpoints", "mountPath": "/ckpt"}]
    return {
        "securityContext": {"runAsNonRoot": True},
        "containers": [{"name": "pytorch", "image": "trainer", "volumeMounts": mounts}],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }


def job(pod: Json | None = None, **guard: Any) -> Job:
    spec = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod or template_pod()}}}}
    template = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    own = {"heldout": heldout, "checkpoints": {"volume": "checkpoints"}, **guard}
    parsed = Spec.model_validate({"template": template, "guard": own})
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


STATE = {"state": {"claimName": "state"}}
#: What `spec.guard` says of where the guard runs.
PLACED: dict[str, Json] = {"Sidecar": STATE, "Pod": STATE | {"placement": "Pod"}}


def findings(pod: Json, **guard: Any) -> tuple[Violation, ...]:
    one = job(pod, **guard)
    return find_violations(ADAPTERS[0], one.spec.template.spec, one.spec.guard, CONFIG)


def built(one: Job) -> Json:
    workload = build_workload(one, ADAPTERS[0], CONFIG)
    pod: Json = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return pod


# -- one row for every field -----------------------------------------------------------------------------


def test_every_field_that_is_decided_has_a_row_and_no_other() -> None:
    rows = {schema: set(fields) for schema, fields in pod_fields.TABLES.items()}
    merged = rows.pop("VolumeMount") | rows.pop("VolumeDevice")  # one table for both
    decided = {schema: set(decisions) for schema, decisions in TABLES.items()}
    assert decided.pop("VolumeMount") == decided.pop("VolumeDevice") == merged
    assert rows.pop("Volume") == decided.pop("Volume") | {"name"}
    assert rows == decided


def test_a_row_that_matters_beside_the_guard_alone_is_one() -> None:
    assert set(pod_fields.ONLY_BESIDE) <= set(map(str, pod_fields.ROWS))


@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("row", pod_fields.ROWS, ids=str)
def test_a_row(row: Any, placement: str) -> None:
    pod, outcome = template_pod(), row.becomes(placement)
    row.put(pod)
    strict, relaxed = (
        findings(pod, isolation=isolation, **PLACED[placement]) for isolation in ("Strict", "Relaxed")
    )
    assert all(finding.cost is None for finding in strict)
    if outcome == "allowed":
        assert strict == relaxed == ()
    elif outcome == "relaxed":
        assert strict and "Relaxed" in " ".join(finding.message for finding in strict)
        assert relaxed and all(finding.cost for finding in relaxed)
    else:
        assert strict and any(finding.cost is None for finding in relaxed)


@pytest.mark.parametrize("schema", TABLES)
def test_a_field_that_nobody_has_decided_about_is_refused(schema: str) -> None:
    pod = template_pod()
    pod_fields.Row(schema, "sharesTheGuardsMemory", "refused", {"x": "y"}).put(pod)
    for isolation in ("Strict", "Relaxed"):
        assert any(
            f.field.endswith("sharesTheGuardsMemory") and "does not know" in f.message and f.cost is None
            for f in findings(pod, isolation=isolation)
        )


def test_what_is_off_counts_as_not_there() -> None:
    pod = template_pod() | {"hostPID": False, "shareProcessNamespace": None, "newField": False}
    assert findings(pod) == ()


@pytest.mark.parametrize("container", ["pytorch", "rlguard-guard"])
@pytest.mark.parametrize(("profile", "admitted"), [("unconfined", False), ("runtime/default", True)])
def test_a_profile_in_its_former_place(container: str, profile: str, admitted: bool) -> None:
    """An API server makes the field of the annotation, after the operator has looked at the field."""
    name = f"container.apparmor.security.beta.kubernetes.io/{container}"

    def found(isolation: str) -> tuple[Violation, ...]:
        one = job(template_pod(), isolation=isolation)
        template = one.spec.template.spec["pytorchReplicaSpecs"]["Master"]["template"]
        template["metadata"] = {"annotations": {name: profile, "note": "unconfined"}}
        return find_violations(ADAPTERS[0], one.spec.template.spec, one.spec.guard, CONFIG)

    strict, relaxed = found("Strict"), found("Relaxed")
    if admitted:
        assert strict == relaxed == ()
    else:
        (said,), (cost,) = strict, relaxed
        assert said.cost is None and "Master.template.metadata.annotations" in said.field
        assert container in said.field and "Relaxed" in said.message
        assert cost.cost and "kernel" in cost.cost


# -- users -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "admitted"),
    [
        ({"runAsNonRoot": True}, {}, True),
        ({"runAsUser": 10001}, {}, True),
        ({}, {"runAsNonRoot": True}, True),
        ({}, {"runAsUser": 10001}, True),
        ({"runAsUser": 0}, {"runAsUser": 10001}, True),
        ({}, {}, False),
        ({"runAsUser": 0}, {}, False),
        ({"runAsUser": 10001}, {"runAsUser": 0}, False),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, False),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, False),
    ],
)
def test_root(outer: Json, inner: Json, admitted: bool) -> None:
    """An image may be root's, so a template must say that it is not, for the pod or for each container."""
    pod = template_pod()
    pod["securityContext"], pod["containers"][0]["securityContext"] = outer, inner
    found = findings(pod)
    assert (found == ()) == admitted
    for finding in found:
        assert finding.field.endswith("containers[0].securityContext.runAsUser")
        assert "runAsNonRoot" in finding.message and "isolation: Relaxed" in finding.message
        assert "network" in finding.message, "the reason is said"


def test_an_init_container_must_not_be_root_either() -> None:
    pod = template_pod() | {"initContainers": [{"name": "a", "securityContext": {"runAsUser": 0}}]}
    (found,) = findings(pod)
    assert found.field.endswith("initContainers[0].securityContext.runAsUser")


def test_no_container_keeps_a_capability() -> None:
    pod = template_pod() | {"initContainers": [{"name": "download", "image": "dl"}]}
    pod["containers"][0]["securityContext"] = {
        "capabilities": {"drop": ["KILL"]},
        "readOnlyRootFilesystem": True,
    }
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    strict = built(job(pod))
    assert strict["containers"][0]["securityContext"] == confined | {"readOnlyRootFilesystem": True}
    assert strict["initContainers"][0]["securityContext"] == confined
    relaxed = built(job(pod, isolation="Relaxed"))
    assert relaxed["containers"][0]["securityContext"] == pod["containers"][0]["securityContext"]
    assert "securityContext" not in relaxed["initContainers"][0]


# -- in one pod, and in two -------------------------------------------------------------------------------


def container(**fields: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["containers"][0].update(fields)


def secured(**fields: Any) -> Callable[[Json], Any]:
    return container(securityContext={"runAsNonRoot": True, **fields})


def volume(**source: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["volumes"].append({"name": "extra", **source})


#: What matters beside the guard alone, and why it is refused there.
FALLS_AWAY: dict[str, tuple[Callable[[Json], Any], str]] = {
    "its processes": (lambda pod: pod.update(shareProcessNamespace=True), "would see the guard's processes"),
    "its user": (secured(runAsUser=64532), "that is the guard's user"),
    "its user for the pod": (
        lambda pod: pod.update(securityContext={"runAsUser": 64532}),
        "that is the guard's user",
    ),
    "its port": (container(ports=[{"containerPort": 8470}]), "the guard listens there (spec.guard.port)"),
    "its port for metrics": (
        container(ports=[{"containerPort": 8471}]),
        "the guard listens there (spec.guard.metricsPort)",
    ),
    "its network settings": (
        lambda pod: pod["securityContext"].update(sysctls=[{"name": "net.core.somaxconn", "value": "1"}]),
        "the guard shares the network settings",
    ),
}
#: What matters wherever the guard is: why beside it, and why from another pod, if that is another reason.
STAYS: dict[str, tuple[Any, ...]] = {
    "root": (secured(runAsUser=0), "share its network", "to the guard's pod if that is on the same one"),
    "more privileges": (secured(allowPrivilegeEscalation=True), "share its network", "on the same one"),
    "a capability": (secured(capabilities={"add": ["KILL"]}), "share its network", "on the same one"),
    "every volume of the node": (secured(privileged=True), "could read every volume"),
    "processes of the node": (lambda pod: pod.update(hostPID=True), "node, and so the guard's if"),
    "memory of the node": (lambda pod: pod.update(hostIPC=True), "node, and so the guard's if"),
    "the network of the node": (
        lambda pod: pod.update(hostNetwork=True),
        "every process on the node can reach the guard's port",
        "known by no label, so everybody is let through",
    ),
    "the node's kernel": (secured(seccompProfile={"type": "Unconfined"}), "of the node's kernel"),
    "a token": (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        "the trainer could write the guard's status",
        "nobody looks at what the pod's account may do",
    ),
    "the held-out data": (
        volume(persistentVolumeClaim={"claimName": "heldout"}),
        "the trainer could read the split",
    ),
    "its state": (
        volume(persistentVolumeClaim={"claimName": "state"}),
        "the trainer could rewrite what it knows",
    ),
    "storage by itself": (volume(nfs={"server": "n", "path": "/"}), "where the held-out data lies"),
    "a name of its volumes": (
        lambda pod: pod["volumes"].append({"name": "rlguard-heldout", "emptyDir": {}}),
        "such volumes are the operator's",
    ),
    "a name of its containers": (
        lambda pod: pod["containers"].append({"name": "rlguard-guard", "image": "mine"}),
        "such containers are the operator's",
    ),
    "the name of its port": (
        container(ports=[{"name": "rlguard-metrics", "containerPort": 9}]),
        "that is the guard's",
    ),
    "where it reports": (
        container(env=[{"name": "RLGUARD_URL", "value": "http://x"}]),
        "the operator sets it",
    ),
    "checkpoints over its programs": (
        lambda pod: pod["containers"][0]["volumeMounts"][0].update(mountPath="/usr"),
        "the guard uses",
    ),
}


@pytest.mark.parametrize(("change", "why"), FALLS_AWAY.values(), ids=FALLS_AWAY.keys())
def test_what_matters_in_one_pod_alone_falls_away_where_there_are_two(
    change: Callable[[Json], Any], why: str
) -> None:
    pod = template_pod()
    change(pod)
    (refused,) = findings(pod, **PLACED["Sidecar"])
    assert refused.cost is None and why in refused.message
    for isolation in ("Strict", "Relaxed"):
        assert findings(pod, isolation=isolation, **PLACED["Pod"]) == ()


@pytest.mark.parametrize("case", STAYS.values(), ids=STAYS.keys())
def test_what_matters_wherever_the_guard_is_stays_for_a_reason_that_is_true_there(
    case: tuple[Any, ...],
) -> None:
    pod, change, beside, apart = template_pod(), case[0], case[1], case[-1]
    change(pod)
    (in_one,), (in_two,) = findings(pod, **PLACED["Sidecar"]), findings(pod, **PLACED["Pod"])
    assert in_one.cost is in_two.cost is None
    assert beside in in_one.message and apart in in_two.message
    assert beside == apart or beside not in in_two.message
    assert in_one.field == in_two.field
    assert in_one.message.split(":")[0] == in_two.message.split(":")[0], "what is refused is the same"


# -- what is the guard's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
@pytest.mark.parametrize(
    ("source", "copied"),
    [
        ({"kind": "PersistentVolumeClaim", "name": "heldout"}, True),
        ({"kind": "PersistentVolumeClaim", "name": "state"}, True),
        ({"kind": "PersistentVolumeClaim", "name": "models"}, False),
        ({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "heldout"}, False),
        (None, False),
    ],
)
def test_a_claim_that_copies_the_guards(field: str, source: Any, copied: bool) -> None:
    guard = job(state={"claimName": "state"}).spec.guard
    assert copies({"spec": {field: source}}, guard) is copied
    assert copies({}, guard) is False


FOLLOW: Json = {"follow": {"path": "run/log.jsonl", "format": "verl"}}


@pytest.mark.parametrize("wrong", ['a"b', "a\\b", "$$(X)", "$(X)/y"])
@pytest.mark.parametrize(
    ("field", "guard"),
    [
        ("metrics.follow.path", lambda text: {"metrics": {"follow": {"path": text, "format": "verl"}}}),
        ("metrics.follow.runConfig", lambda text: {"metrics": configured(text)}),
        ("metrics.checkpoints.path", lambda text: {"metrics": FOLLOW | {"checkpoints": {"path": text}}}),
    ],
    ids=["log", "configuration", "checkpoints"],
)
def test_what_the_policy_would_not_find_again_is_refused_before_there_is_a_pod(
    field: str, guard: Callable[[str], Json], wrong: str
) -> None:
    """It looks for them in the guard's variables as they stand in the job: every pod would be refused."""
    found = findings(template_pod(), **guard(wrong))
    assert [one.field for one in found] == [f"spec.guard.{field}"] and "must have no" in found[0].message
    assert not findings(template_pod(), **guard("plain-1_2.3"))


def configured(path: str) -> Json:
    return {"follow": FOLLOW["follow"] | {"runConfig": path}}


@pytest.mark.parametrize("name", ["split", "scorer", "evaluator", "kind"])
@pytest.mark.parametrize("evaluator", ["hf", "vllm"])
def test_a_variable_of_a_chat_template_has_no_name_that_the_policy_counts(evaluator: str, name: str) -> None:
    for kwargs in ({name: 1}, {"extra": [{"of": {name: "x"}}]}):
        heldout = {
            "volume": {"claimName": "heldout"},
            "evaluator": {evaluator: {"chatTemplateKwargs": kwargs}},
        }
        (found,) = findings(template_pod(), heldout=heldout)
        assert found.field.endswith(f"{evaluator}.chatTemplateKwargs") and repr(name) in found.message
        heldout["evaluator"] = {evaluator: {"chatTemplateKwargs": {"enable_thinking": name}}}
        assert not findings(template_pod(), heldout=heldout)


@pytest.mark.parametrize("label", ["rlguard.dev/placement", "rlguard.dev/part", "rlguard.dev/anything"])
def test_a_template_has_no_label_of_the_operators(label: str) -> None:
    one = job()
    template = one.spec.made_from.spec["pytorchReplicaSpecs"]["Master"]["template"]
    template["metadata"] = {"labels": {label: "Pod", "app": "x"}}
    (found,) = find_violations(ADAPTERS[0], one.spec.made_from.spec, one.spec.guard, CONFIG)
    assert label in found.field and "must not be set" in found.message


def test_the_guard_could_not_follow_a_path_of_the_trainers_environment() -> None:
    pod = template_pod()
    pod["containers"][0]["volumeMounts"][0]["subPathExpr"] = "$(RUN)"
    (found,) = findings(pod)
    assert "subPathExpr" in found.message


# -- the last look ---------------------------------------------------------------------------------------

OWN = frozenset({("Secret", "split"), ("ConfigMap", "policy"), ("PersistentVolumeClaim", "heldout")})


def finished() -> Json:
    """A pod as the injection leaves it."""
    guard = {"name": "rlguard-guard", "volumeMounts": [{"name": "rlguard-heldout", "mountPath": "/h"}]}
    trainer = {
        "name": "pytorch",
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [{"secretRef": {"name": "x"}}],
    }
    return {
        "automountServiceAccountToken": False,
        "initContainers": [guard],
        "containers": [trainer],
        "volumes": [{"name": "rlguard-heldout", "secret": {"secretName": "split"}}],
    }


def via(source: Json) -> Callable[[Json], Any]:
    """A volume of the trainer's own name."""
    return lambda pod: (
        pod["volumes"].append({"name": "mine", **source}),
        pod["containers"][0].update(volumeMounts=[{"name": "mine", "mountPath": "/m"}]),
    )


def env(value_from: Json, name: str = "A") -> Callable[[Json], Any]:
    return lambda pod: pod["containers"][0].update(env=[{"name": name, "valueFrom": value_from}])


SOCKET = {"name": "rlguard-socket", "mountPath": "/var/run/rlguard/socket"}

LEAKS: dict[str, Callable[[Json], Any]] = {
    "a mount by name": lambda pod: pod["containers"][0].update(volumeMounts=[{"name": "rlguard-heldout"}]),
    "a name that is not there yet": lambda pod: pod["containers"][0].update(
        volumeMounts=[{"name": "rlguard-x"}]
    ),
    "a device": lambda pod: pod["containers"][0].update(volumeDevices=[{"name": "rlguard-heldout"}]),
    "an init container": lambda pod: pod["initContainers"].insert(
        0, {"name": "a", "volumeMounts": [{"name": "rlguard-heldout"}]}
    ),
    "a Secret under another name": via({"secret": {"secretName": "split"}}),
    "a ConfigMap under another name": via({"configMap": {"name": "policy"}}),
    "a claim under another name": via({"persistentVolumeClaim": {"claimName": "heldout"}}),
    "a projected Secret": via({"projected": {"sources": [{"secret": {"name": "split"}}]}}),
    "a token": via({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
    "a variable": env({"secretKeyRef": {"name": "split", "key": "k"}}),
    "the trainer's variable with another key": env(
        {"secretKeyRef": {"name": "split", "key": "read-token"}}, "RLGUARD_TOKEN"
    ),
    "another variable with the trainer's key": env(
        {"secretKeyRef": {"name": "split", "key": "ingest-token"}}
    ),
    "a variable of a ConfigMap": env({"configMapKeyRef": {"name": "policy", "key": "k"}}),
    "a variable from a file": env({"fileKeyRef": {"volumeName": "rlguard-heldout", "path": "p", "key": "k"}}),
    "all variables": lambda pod: pod["containers"][0].update(envFrom=[{"secretRef": {"name": "split"}}]),
    "all variables of a ConfigMap": lambda pod: pod["containers"][0].update(
        envFrom=[{"configMapRef": {"name": "policy"}}]
    ),
    "the automatic token": lambda pod: pod.pop("automountServiceAccountToken"),
    "the guard's socket to write": lambda pod: pod["containers"][0].update(volumeMounts=[SOCKET]),
    "a socket that is not to write in words": lambda pod: pod["containers"][0].update(
        volumeMounts=[SOCKET | {"readOnly": "true"}]
    ),
    "the guard's socket elsewhere": lambda pod: pod["containers"][0].update(
        volumeMounts=[SOCKET | {"mountPath": "/x", "readOnly": True}]
    ),
    "what is the guard's under the name of its socket": lambda pod: (
        pod["volumes"].append({"name": SOCKET["name"], "secret": {"secretName": "split"}}),
        pod["containers"][0].update(volumeMounts=[SOCKET | {"readOnly": True}]),
    ),
}


def test_a_finished_pod_has_no_leak() -> None:
    assert leaks(finished(), OWN) == ()
    pod = finished()
    env({"secretKeyRef": {"name": "split", "key": "ingest-token"}}, "RLGUARD_TOKEN")(pod)
    pod["containers"][0].update(volumeMounts=[SOCKET | {"readOnly": True}])
    assert leaks(pod, OWN) == ()


@pytest.mark.parametrize("change", LEAKS.values(), ids=LEAKS.keys())
def test_a_leak_is_found(change: Callable[[Json], Any]) -> None:
    pod = finished()
    change(pod)
    assert len(leaks(pod, OWN)) == 1


def test_a_guard_by_name_alone_is_no_guard() -> None:
    """A container of the template that calls itself the guard would see all of it."""
    pod = finished()
    pod["containers"].append(copy.deepcopy(pod["initContainers"][0]))
    assert leaks(pod, OWN)


#: Mistakes of the injection: each gives the trainer what is the guard's. Nothing has asked the refusals.
MISTAKES: dict[str, Callable[[Json], Any]] = {
    "mounts for all": lambda pod: pod["containers"][0]["volumeMounts"].extend(
        mount for mount in pod["initContainers"][-1]["volumeMounts"] if mount["name"] == "rlguard-heldout"
    ),
    "a volume without its prefix": lambda pod: (
        next(v for v in pod["volumes"] if v["name"] == "rlguard-heldout").update(name="heldout"),
        pod["containers"][0]["volumeMounts"].append({"name": "heldout", "mountPath": "/h"}),
    ),
    "the read token for the trainer": lambda pod: next(
        v for v in pod["containers"][0]["env"] if v["name"] == "RLGUARD_TOKEN"
    )["valueFrom"]["secretKeyRef"].update(key="read-token"),
    "the token of the pod": lambda pod: pod.update(automountServiceAccountToken=True),
    "a socket that the trainer may replace": lambda pod: [
        m.pop("readOnly") for m in pod["containers"][0]["volumeMounts"] if m["name"] == "rlguard-socket"
    ],
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_of_the_injection_is_caught(mistake: Callable[[Json], Any]) -> None:
    pod, own = built(job()), own_sources(job())
    assert not leaks(pod, own)
    mistake(pod)
    assert leaks(pod, own)


def test_what_the_job_names_and_what_is_made_for_it_is_the_guards() -> None:
    heldout = {"volume": {"secretName": "split"}, "evaluator": {"hf": {}}}
    for source in ({"secret": {"secretName": name}} for name in ("split", "run-01234567")):
        pod = template_pod()
        via(source)(pod)
        pod["containers"][0]["volumeMounts"].append({"name": "checkpoints", "mountPath": "/ckpt"})
        with pytest.raises(LeakError, match="the volume mine"):
            built(job(pod, heldout=heldout))


def test_every_decision_says_why() -> None:
    for decisions in TABLES.values():
        assert all(len(decision.reason) > 10 for decision in decisions.values())
    assert POD["hostPID"].reason != POD["hostNetwork"].reason
