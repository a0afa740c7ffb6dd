"""A guard in a pod of its own: StatefulSet, Service, and what the trainer's pod gets for it. Pure.

A StatefulSet of one replica starts no second pod before the first has ended, also when a node is lost, so no
two guards write one state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from guard_operator.adapters import PodTemplate, WorkloadAdapter, at
from guard_operator.api import names
from guard_operator.api.types import GuardPod, GuardSpec
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.guard_container import (
    guard_address,
    guard_container,
    guard_volumes,
    reporting_environment,
)
from guard_operator.reconcile.mesh import exclude_port
from guard_operator.reconcile.owned import host_of, job_labels, owned
from guard_operator.reconcile.refusals import (
    Violation,
    checkpoint_mount,
    field_of,
    pod_spec,
    trainer,
)
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import SERVICES, STATEFUL_SETS, Json, Resource

WAITER = names.WAITING_CONTAINER
NOBODY = 65534
#: The guard's image has Python; a trainer's image is not asked for anything.
WAIT = """\
import http.client, os, ssl, sys, time
from urllib.parse import urlsplit
guard = urlsplit(os.environ["RLGUARD_URL"])
context = ssl.create_default_context(cadata=os.environ["RLGUARD_CA"])
until = time.monotonic() + float(sys.argv[1])
while True:
    try:
        connection = http.client.HTTPSConnection(guard.hostname, guard.port, timeout=5, context=context)
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        if response.status == 200:
            sys.exit()
        said = response.read(600).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        said = f"no guard responds: {error}"
    if time.monotonic() > until:
        print(f"the guard was not ready after {sys.argv[1]} s: {said}", file=sys.stderr)
        sys.exit(int(sys.argv[2]))
    time.sleep(1)
"""


def guard_objects(
    job: Job, own: GuardPod, adapter: WorkloadAdapter, config: OperatorConfig
) -> Iterator[tuple[Resource, Json]]:
    """Build what runs the guard. The template has passed `find_obstacles` and `refusals.find_violations`.

    Args:
        job: the job.
        own: what its author says of the guard's pod.
        adapter: of the workload.
        config: of the operator.
    """
    name = names.guard_name(job.name, job.uid)
    labels = {names.UID_LABEL: job.uid, names.PART_LABEL: names.GUARD_PART}
    # Headless, so that the name leads to the pod itself; also while the guard is not ready. One that comes
    # back takes steps at once, and is ready minutes later where its base model is large.
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": "guard", "port": job.spec.guard.port}],
    }
    yield SERVICES, owned(job, SERVICES, name, spec=service)
    metadata: Json = {"labels": labels | job_labels(job)}
    exclude_port(metadata, job.spec.guard.port)
    of_one = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": _pod(job, own, adapter, config)},
    }
    yield STATEFUL_SETS, owned(job, STATEFUL_SETS, name, spec=of_one)


def _pod(job: Job, own: GuardPod, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    checkpoints, claim_name = _checkpoints(job, adapter)
    support = names.support_name(job.name, job.uid)
    # Read-only as a volume, too: so the kubelet gives nothing in it to the group of the guard.
    claim = {"claimName": claim_name, "readOnly": True}
    volume = {"name": checkpoints["name"], "persistentVolumeClaim": claim}
    placed = own.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"node_selector", "tolerations", "priority_class_name", "service_account_name"},
    )
    # With which the guard's image comes to a trainer, too.
    if pull_secrets := _trainers(job, adapter).get("imagePullSecrets"):
        placed["imagePullSecrets"] = copy.deepcopy(pull_secrets)
    return placed | {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": layout.GUARD_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            **_groups(job, adapter),
        },
        "containers": [guard_container(job, checkpoints, config)],
        "volumes": [volume, *guard_volumes(job.spec.guard, support)],
    }


def _trainers(job: Job, adapter: WorkloadAdapter) -> Json:
    """The pod of rank 0 of the template; nothing of a workload that exists."""
    return {} if job.spec.target_ref is not None else _guarded(adapter, job.spec.made_from.spec)[1]


def _checkpoints(job: Job, adapter: WorkloadAdapter) -> tuple[Json, str]:
    """How the guard mounts the checkpoints, and of which claim: as the trainer does, or all of a claim."""
    checkpoints = job.spec.guard.checkpoints
    if checkpoints.claim_name is not None:
        mount = {"name": layout.CHECKPOINTS_VOLUME, "mountPath": layout.CHECKPOINTS_DIR}
        return mount, checkpoints.claim_name
    template, trainers = _guarded(adapter, job.spec.made_from.spec)
    own, claim = (
        checkpoint_mount(trainers, template, checkpoints.volume),
        _checkpoint_claim(trainers, job.spec.guard),
    )
    assert own is not None and claim is not None, "find_violations and find_obstacles have passed"
    return own, claim


def _groups(job: Job, adapter: WorkloadAdapter) -> Json:
    """The trainer's groups: a sidecar has those of its pod, and may read what was written for them."""
    if job.spec.target_ref is not None:
        return {}
    template, pod = _guarded(adapter, job.spec.made_from.spec)
    security = pod.get("securityContext") or {}
    own = (trainer(pod, template) or {}).get("securityContext") or {}
    named = [own.get("runAsGroup", security.get("runAsGroup")), security.get("fsGroup")]
    named += security.get("supplementalGroups") or []
    groups = sorted({group for group in named if isinstance(group, int) and group > 0})
    return {"supplementalGroups": groups} if groups else {}


def report_to_guard_pod(
    job: Job, own: GuardPod, template: PodTemplate, pod: Json, config: OperatorConfig
) -> None:
    """Give a trainer's pod what it needs to report to a guard in another pod, and a start that waits for it.

    It waits in an init container, after those of the template, so that no step is made without a guard. A
    trainer whose log is followed only waits: it has nothing to report.
    """
    waiter = _waiter(job, own, config)
    mount = checkpoint_mount(pod, template, job.spec.guard.checkpoints.volume)
    if mount is not None and "subPath" in mount:
        # The kubelet makes the folder for it: for the guard it cannot, in a volume that is read-only.
        waiter["volumeMounts"] = [
            {key: mount[key] for key in ("name", "mountPath", "subPath")} | {"readOnly": True}
        ]
    pod["initContainers"] = [*pod.get("initContainers", []), waiter]
    for container in pod["containers"]:
        if container.get("name") == template.container and job.spec.guard.metrics is None:
            given = container.get("env", [])
            container["env"] = [*given, *reporting_environment(job, host_of(job), given)]


def _waiter(job: Job, own: GuardPod, config: OperatorConfig) -> Json:
    container: Json = {
        "name": WAITER,
        "image": job.spec.guard.image or config.guard_image,
        "command": ["python", "-I", "-c", WAIT, str(own.ready_seconds), str(layout.GAVE_UP)],
        "env": guard_address(job, host_of(job)),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if pull_policy := job.spec.guard.image_pull_policy or config.guard_pull_policy:
        container["imagePullPolicy"] = pull_policy
    return container


# -- what stands in the way of it ------------------------------------------------------------------------


def find_obstacles(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], guard: GuardSpec, own: GuardPod
) -> Iterator[Violation]:
    """Find what is refused of a template because its guard is in another pod."""
    for template in adapter.pod_templates(spec):
        pod, where = pod_spec(spec, template), field_of(template)
        if own.service_account_name in _accounts(pod):
            why = "must not be the guard's, whose role the trainer would have"
            yield Violation(f"{where}.serviceAccountName", why)
        if template.guarded and (why := _why_not_found(pod)):
            yield Violation(f"{where}.dnsPolicy", why)
        labels = (at(spec, *template.path, "metadata") or {}).get("labels") or {}
        if names.PART_LABEL in labels:
            path = where.removesuffix(".spec")
            why = f"must not have {names.PART_LABEL}: by it the guard's own pod is found"
            yield Violation(f"{path}.metadata.labels", why)
        if any(one.get("name") == WAITER for one in [*pod.get("initContainers", []), *pod["containers"]]):
            yield Violation(where, f"must not have a container {WAITER}: the operator adds one of this name")
        if template.guarded and _checkpoint_claim(pod, guard) is None:
            why = "must be a persistentVolumeClaim: the guard reads the checkpoints from another pod"
            yield Violation(f"{where}.volumes ({guard.checkpoints.volume})", why)


def why_not_shared(claim: Mapping[str, Any]) -> str:
    """Why two nodes cannot share this PersistentVolumeClaim; "" if they can."""
    modes = (claim.get("spec") or {}).get("accessModes") or []
    if "ReadWriteMany" in modes:
        return ""
    found = ", ".join(map(str, modes)) or "none"
    return (
        f"its access modes are {found}, and a guard in a pod of its own reads the checkpoints on another "
        "node: use storage with ReadWriteMany, such as EFS or FSx for Lustre, or, with a template, placement "
        "Sidecar"
    )


def _why_not_found(pod: Mapping[str, Any]) -> str:
    """Why a trainer in this pod would not find its guard by name; "" if it will, as far as is known."""
    policy = pod.get("dnsPolicy") or "ClusterFirst"
    if pod.get("hostNetwork") and policy == "ClusterFirst":
        return (
            "must be ClusterFirstWithHostNet with hostNetwork: the guard is found by its name in the cluster"
        )
    if policy == "Default":
        return (
            "must not be Default: the guard is found by its name in the cluster, which the node does not know"
        )
    return ""


def _accounts(pod: Mapping[str, Any]) -> set[str]:
    """The ServiceAccount of a template's pod. Where none is named, it is the namespace's `default`."""
    return {str(pod[key]) for key in ("serviceAccountName", "serviceAccount") if pod.get(key)} or {"default"}


def _guarded(adapter: WorkloadAdapter, spec: Mapping[str, Any]) -> tuple[PodTemplate, Json]:
    """The template of rank 0, and its pod."""
    template = next(one for one in adapter.pod_templates(spec) if one.guarded)
    return template, pod_spec(spec, template)


def _checkpoint_claim(pod: Mapping[str, Any], guard: GuardSpec) -> str | None:
    for volume in pod.get("volumes", []):
        if volume.get("name") == guard.checkpoints.volume:
            claim: str | None = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            return claim
    return None
