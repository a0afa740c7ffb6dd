"""The digest of what was injected: the same for a pod as built and as an API server gives it back.

It is another one after every change that decides what runs as the guard.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from guard_operator.adapters import ADAPTERS
from guard_operator.api.names import DIGEST_ANNOTATION
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.digest import injected_digest, is_as_injected
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.snapshot import Job

Json = dict[str, Any]


def built(**guard: Any) -> Json:
    """The template of a rank-0 pod, as the operator writes it."""
    mounts = [{"name": "ckpt", "mountPath": "/ckpt"}]
    pod = {
        "containers": [{"name": "pytorch", "image": "t", "volumeMounts": mounts}],
        "volumes": [{"name": "ckpt", "emptyDir": {}}],
    }
    replicas = {"Master": {"template": {"metadata": {"annotations": {"a": "b"}}, "spec": pod}}}
    template = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    heldout = {"volume": {"secretName": "split"}, "evaluator": {"checkpoint": {}}}
    own = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}, **guard}
    spec = Spec.model_validate({"template": template, "guard": own})
    job = Job("run", "ns", "0123456789ab", 1, "1", {}, spec, Status())
    found: Json = build_workload(job, ADAPTERS[0], OperatorConfig("guard:1"))
    master: Json = found["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    return master


def guard_of(pod: Json) -> Json:
    found: Json = pod["spec"]["initContainers"][-1]
    return found


def volume(pod: Json, name: str) -> Json:
    found: Json = next(v for v in pod["spec"]["volumes"] if v["name"] == name)
    return found


def variable(pod: Json, name: str) -> Json:
    found: Json = next(e for e in guard_of(pod)["env"] if e["name"] == name)
    return found


def test_the_template_carries_the_digest_of_its_guard_beside_its_own_annotations() -> None:
    pod = built()
    assert pod["metadata"]["annotations"] == {"a": "b", DIGEST_ANNOTATION: injected_digest(pod["spec"])}
    assert is_as_injected(pod) is True


def test_another_job_has_another_digest() -> None:
    assert injected_digest(built()["spec"]) != injected_digest(built(image="mine")["spec"])


#: What a cluster does to every pod, or may do to this one.
HARMLESS: dict[str, Callable[[Json], Any]] = {
    "defaults of the container": lambda p: guard_of(p).update(
        imagePullPolicy="IfNotPresent", terminationMessagePath="/dev/termination-log"
    ),
    "defaults of the probes": lambda p: guard_of(p)["livenessProbe"].update(successThreshold=1),
    "defaults of the ports": lambda p: guard_of(p)["ports"][0].update(protocol="TCP"),
    "defaults of the environment": lambda p: variable(p, "RLGUARD_GUARD_METRICS_HOST")["valueFrom"][
        "fieldRef"
    ].update(apiVersion="v1"),
    "defaults of a volume": lambda p: volume(p, "rlguard-heldout")["secret"].update(defaultMode=420),
    "procMount": lambda p: guard_of(p)["securityContext"].update(procMount="Default"),
    "resources": lambda p: guard_of(p).update(resources={"limits": {"memory": "9Gi"}}),
    "another container": lambda p: p["spec"]["containers"].append({"name": "mesh"}),
    "another volume": lambda p: p["spec"]["volumes"].append({"name": "kube-api-access", "projected": {}}),
    "an Indexed Job": lambda p: guard_of(p)["env"].append(
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ),
    "KubeRay": lambda p: guard_of(p)["env"].extend(
        [{"name": "FQ_RAY_IP", "value": "run-head-svc.ns.svc"}, {"name": "RAY_IP", "value": "run-head-svc"}]
    ),
    "IRSA": lambda p: (
        guard_of(p)["env"].append({"name": "AWS_ROLE_ARN", "value": "arn"}),
        guard_of(p)["volumeMounts"].append(
            {"name": "aws-iam-token", "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount"}
        ),
    ),
}

#: What makes it another guard.
CHANGED: dict[str, Callable[[Json], Any]] = {
    "image": lambda p: guard_of(p).update(image="other"),
    "command": lambda p: guard_of(p).update(command=["sleep", "infinity"]),
    "args": lambda p: guard_of(p).update(args=["--help"]),
    "working directory": lambda p: guard_of(p).update(workingDir="/ckpt"),
    "no sidecar": lambda p: guard_of(p).pop("restartPolicy"),
    "policy file": lambda p: variable(p, "RLGUARD_GUARD_POLICY_FILE").update(value="/ckpt/policy.yaml"),
    "held-out settings": lambda p: variable(p, "RLGUARD_GUARD_HELDOUT").update(value="{}"),
    "another variable": lambda p: guard_of(p)["env"].append({"name": "PYTHONPATH", "value": "/ckpt"}),
    "envFrom": lambda p: guard_of(p).update(envFrom=[{"configMapRef": {"name": "x"}}]),
    "held-out volume": lambda p: volume(p, "rlguard-heldout")["secret"].update(secretName="easy"),
    "policy volume": lambda p: volume(p, "rlguard-policy")["configMap"].update(name="easy"),
    "another volume of its names": lambda p: p["spec"]["volumes"].append({"name": "rlguard-x"}),
    "a mount over its code": lambda p: guard_of(p)["volumeMounts"].append(
        {"name": "ckpt", "mountPath": "/opt/rlguard"}
    ),
    "a mount over its token": lambda p: guard_of(p)["volumeMounts"].append(
        {"name": "ckpt", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount/"}
    ),
    "its token": lambda p: guard_of(p)["volumeMounts"].remove(
        next(m for m in guard_of(p)["volumeMounts"] if m["name"] == "rlguard-token")
    ),
    "writable checkpoints": lambda p: guard_of(p)["volumeMounts"][0].pop("readOnly"),
    "user": lambda p: guard_of(p)["securityContext"].update(runAsUser=10001),
    "capability": lambda p: guard_of(p)["securityContext"]["capabilities"].update(add=["NET_RAW"]),
    "privileged": lambda p: guard_of(p)["securityContext"].update(privileged=True),
    "probe": lambda p: guard_of(p)["startupProbe"].update(exec={"command": ["true"]}),
    "lifecycle": lambda p: guard_of(p).update(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
    "last words from elsewhere": lambda p: guard_of(p).update(terminationMessagePath="/ckpt/words"),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_a_cluster_adds_changes_nothing(change: Callable[[Json], Any]) -> None:
    pod = built()
    change(pod)
    assert is_as_injected(pod) is True


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED.keys())
def test_another_guard_has_another_digest(change: Callable[[Json], Any]) -> None:
    pod = built()
    change(pod)
    assert is_as_injected(pod) is False


def test_a_pod_whose_guard_is_gone_or_there_twice_is_not_as_injected() -> None:
    pod = built()
    pod["spec"]["initContainers"].append(copy.deepcopy(guard_of(pod)))
    assert is_as_injected(pod) is False
    pod["spec"]["initContainers"].clear()
    assert injected_digest(pod["spec"]) is None
    assert is_as_injected(pod) is False


@pytest.mark.parametrize("written", [None, "", "v0:abc", 7])
def test_a_pod_of_another_version_is_not_judged(written: Any) -> None:
    pod = built()
    pod["metadata"]["annotations"][DIGEST_ANNOTATION] = written
    assert is_as_injected(pod) is None


def test_a_pod_without_annotations_is_not_judged() -> None:
    assert is_as_injected({"spec": built()["spec"]}) is None


@pytest.mark.parametrize("annotated", [True, False], ids=["annotation rewritten", "annotation removed"])
@pytest.mark.parametrize("change", [None, *CHANGED.values()], ids=["unchanged", *CHANGED.keys()])
def test_what_was_noted_counts_whatever_the_annotation_says(
    change: Callable[[Json], Any] | None, annotated: bool
) -> None:
    pod = built()
    noted = injected_digest(pod["spec"])
    if change is not None:
        change(pod)
    pod["metadata"]["annotations"] = {DIGEST_ANNOTATION: injected_digest(pod["spec"])} if annotated else {}
    assert is_as_injected(pod, noted) is (change is None)
    assert is_as_injected(pod) is (True if annotated else None), "that alone says nothing of it"


def test_what_another_version_noted_is_not_compared() -> None:
    pod = built()
    assert is_as_injected(pod, "v0:abc") is is_as_injected(pod, "v10:abc") is None


def test_the_digest_of_an_example_stays() -> None:
    """Another value would make every running pod look changed: raise `digest.VERSION` with it."""
    guard = {"name": "rlguard-guard", "image": "g", "env": [{"name": "A", "value": "b"}]}
    pod = {"initContainers": [guard], "volumes": [{"name": "rlguard-tmp", "emptyDir": {}}]}
    assert injected_digest(pod) == "v1:04a392ae05e3ac80fbb5b932bdcc4daedf3ead925c9963be74ff30a2d9581e41"
