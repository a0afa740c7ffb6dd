"""A guard in a pod of its own: StatefulSet, Service, and what the trainer's pod gets for it. Pure.

A StatefulSet of one replica starts no second pod before the first has ended, also when a node is lost, so no
two guards write one state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rlguard.operator.adapters import PodTemplate, WorkloadAdapter, at
from rlguard.operator.api import names
from rlguard.operator.api.guard import GuardPod, GuardSpec
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile import layout
from rlguard.operator.reconcile.guard_container import (
    exclude_port,
    guard_address,
    guard_container,
    guard_volumes,
    image_of,
    let_report,
    restricted,
)
from rlguard.operator.reconcile.isolation import Violation
from rlguard.operator.reconcile.owned import host_of, job_labels, owned
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.templates import checkpoint_mount, field_of, rank0_of, trainer
from rlguard.operator.runtime.client import SERVICES, STATEFUL_SETS, Json, Resource

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
    """Build what runs the guard. The template has passed `refusals.find_violations`.

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
    checkpoints, claim_name, of_trainer = _beside_trainer(job, adapter)
    # Read-only as a volume, too: so the kubelet gives nothing in it to the group of the guard.
    claim = {"claimName": claim_name, "readOnly": True}
    volume = {"name": checkpoints["name"], "persistentVolumeClaim": claim}
    placed = own.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"node_selector", "tolerations", "priority_class_name", "service_account_name"},
    )
    security = {"runAsNonRoot": True, "fsGroup": layout.GUARD_UID, "fsGroupChangePolicy": "OnRootMismatch"}
    return {
        **placed,
        **of_trainer,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security | of_trainer.get("securityContext", {}),
        "containers": [guard_container(job, checkpoints, config)],
        "volumes": [volume, *guard_volumes(job.spec.guard, names.support_name(job.name, job.uid))],
    }


def _beside_trainer(job: Job, adapter: WorkloadAdapter) -> tuple[Json, str | None, Json]:
    """How the guard mounts the checkpoints, of which claim, and what its pod has of the trainer's.

    Of a template: as the trainer mounts it, and its pull secrets and groups. Of a target: all of a claim.
    """
    checkpoints = job.spec.guard.checkpoints
    if checkpoints.claim_name is not None:
        mount = {"name": layout.CHECKPOINTS_VOLUME, "mountPath": layout.CHECKPOINTS_DIR}
        return mount, checkpoints.claim_name, {}
    template, pod = rank0_of(adapter, job.spec.made_from.spec)
    own = checkpoint_mount(pod, template, checkpoints.volume)
    assert own is not None, "find_violations has passed"
    # With the secrets the guard's image comes to a trainer, too. In its groups the guard reads what was
    # written for them, as a sidecar does, which has those of its pod.
    security, container = pod.get("securityContext") or {}, trainer(pod, template) or {}
    named = [(container.get("securityContext") or {}).get("runAsGroup", security.get("runAsGroup"))]
    named += [security.get("fsGroup"), *(security.get("supplementalGroups") or [])]
    groups = sorted({group for group in named if isinstance(group, int) and group > 0})
    shared: Json = {"securityContext": {"supplementalGroups": groups}} if groups else {}
    if pod.get("imagePullSecrets"):
        shared["imagePullSecrets"] = copy.deepcopy(pod["imagePullSecrets"])
    return own, _checkpoint_claim(pod, job.spec.guard), shared


def wait_for_guard(job: Job, template: PodTemplate, pod: Json, config: OperatorConfig) -> None:
    """Give the pod of rank 0 what it reports to a guard in another pod with, and a start that waits for it.

    It waits in an init container, after those of the template, so that no step is made without a guard. A
    trainer whose log is followed only waits: it has nothing to report.
    """
    waiter = _waiter(job, config)
    mount = checkpoint_mount(pod, template, job.spec.guard.checkpoints.volume)
    if mount is not None and "subPath" in mount:
        # The kubelet makes the folder for it: for the guard it cannot, in a volume that is read-only.
        waiter["volumeMounts"] = [
            {key: mount[key] for key in ("name", "mountPath", "subPath")} | {"readOnly": True}
        ]
    pod["initContainers"] = [*pod.get("initContainers", []), waiter]
    let_report(job, template, pod, host_of(job), drains=False)


def _waiter(job: Job, config: OperatorConfig) -> Json:
    own = job.spec.guard.own_pod
    assert own is not None, "its guard has a pod of its own"
    return {
        "name": names.WAITING_CONTAINER,
        **image_of(job.spec.guard, config),
        "command": ["python", "-I", "-c", WAIT, str(own.ready_seconds), str(layout.GAVE_UP)],
        "env": guard_address(job, host_of(job)),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": restricted(NOBODY),
    }


# -- what stands in the way of it ------------------------------------------------------------------------


def find_obstacles(template: PodTemplate, pod: Mapping[str, Any], guard: GuardSpec) -> Iterator[Violation]:
    """Find what is refused of rank 0's template because its guard is in another pod."""
    where, policy = field_of(template), pod.get("dnsPolicy") or "ClusterFirst"
    if guard.own_pod is not None and guard.own_pod.service_account_name == "default":
        why = "must not be default: a pod that names no account has it, and would have the guard's role"
        yield Violation("spec.guard.pod.serviceAccountName", why)
    if policy == "Default" or (pod.get("hostNetwork") and policy == "ClusterFirst"):
        wanted = "ClusterFirstWithHostNet" if pod.get("hostNetwork") else "ClusterFirst"
        yield Violation(
            f"{where}.dnsPolicy", f"must be {wanted}: the guard is found by its name in the cluster"
        )
    if _checkpoint_claim(pod, guard) is None:
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


def _checkpoint_claim(pod: Mapping[str, Any], guard: GuardSpec) -> str | None:
    volumes = (one for one in pod.get("volumes", []) if one.get("name") == guard.checkpoints.volume)
    claim: str | None = at(next(volumes, None), "persistentVolumeClaim", "claimName")
    return claim
