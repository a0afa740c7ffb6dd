"""A guard in a pod of its own: StatefulSet, Service, NetworkPolicy, and what the trainer has of it. Pure.

A StatefulSet of one replica starts no second pod before the first has ended, also when a node is lost, so no
two guards write one state. The trainer reaches it over TLS, with the certificate that was made for this job.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guard_operator.adapters import PodTemplate, WorkloadAdapter, at
from guard_operator.api import names
from guard_operator.api.types import GuardPod, GuardSpec
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.digest import injected_digest
from guard_operator.reconcile.guard_container import (
    from_secret,
    guard_container,
    guard_volumes,
    own_address,
    patience,
)
from guard_operator.reconcile.owned import job_labels, owned
from guard_operator.reconcile.refusals import (
    Violation,
    checkpoint_mount,
    field_of,
    pod_spec,
    trainer,
)
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.client import NETWORK_POLICIES, SERVICES, STATEFUL_SETS, Json, Resource

HOST_ENV = "RLGUARD_GUARD_HOST"
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


def host_of(job: Job) -> str:
    """The name by which the trainer reaches the guard, and which its certificate has."""
    return f"{names.guard_name(job.name, job.uid)}.{job.namespace}.svc"


def guard_objects(
    job: Job,
    own: GuardPod,
    adapter: WorkloadAdapter,
    config: OperatorConfig,
    scrapers: Sequence[Json] = (),
) -> Iterator[tuple[Resource, Json]]:
    """What runs the guard. The template has passed `find_obstacles` and `refusals.find_violations`.

    Args:
        job: the job.
        own: what its author says of the guard's pod.
        adapter: of the workload.
        config: of the operator.
        scrapers: NetworkPolicyPeers that may read the metrics; nobody if empty.
    """
    name, port = names.guard_name(job.name, job.uid), job.spec.guard.port
    labels = {names.UID_LABEL: job.uid, names.PART_LABEL: names.GUARD_PART}
    # Headless, so that the name leads to the pod itself; also while the guard is not ready. One that comes
    # back takes steps at once, and is ready minutes later where its base model is large.
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": "ingest", "port": port}],
    }
    yield SERVICES, owned(job, SERVICES, name, spec=service)
    reporters: Json = {"ports": [{"port": port}]}
    if not _trainers(job, adapter).get("hostNetwork"):  # what uses a node's network is known by no label
        reporters["from"] = [{"podSelector": {"matchLabels": {names.UID_LABEL: job.uid}}}]
    readers = {"ports": [{"port": job.spec.guard.metrics_port}], "from": list(scrapers)}
    who = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [reporters, *([readers] if scrapers else [])],  # a rule from nobody would be one from all
    }
    yield NETWORK_POLICIES, owned(job, NETWORK_POLICIES, name, spec=who)
    pod = guard_pod(job, own, adapter, config)
    metadata = {
        "labels": labels | job_labels(job),
        "annotations": {names.DIGEST_ANNOTATION: injected_digest(pod)},
    }
    of_one = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": pod},
    }
    yield STATEFUL_SETS, owned(job, STATEFUL_SETS, name, spec=of_one)


def guard_pod(job: Job, own: GuardPod, adapter: WorkloadAdapter, config: OperatorConfig) -> Json:
    """The spec of its pod."""
    checkpoints, claim_name = _checkpoints(job, adapter)
    support = names.support_name(job.name, job.uid)
    environment: dict[str, Json] = {
        HOST_ENV: own_address(),
        "RLGUARD_GUARD_TLS_CERTIFICATE": {"value": f"{layout.SECRET_DIR}/{layout.CERTIFICATE_KEY}"},
        "RLGUARD_GUARD_TLS_KEY": {"value": f"{layout.SECRET_DIR}/{layout.PRIVATE_KEY_KEY}"},
    }
    # Read-only as a volume, too: so the kubelet gives nothing in it to the group of the guard.
    claim = {"claimName": claim_name, "readOnly": True}
    volume = {"name": checkpoints["name"], "persistentVolumeClaim": claim}
    placed = own.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"node_selector", "tolerations", "priority_class_name"},
    )
    # With which the guard's image comes to a trainer, too.
    if pull_secrets := _trainers(job, adapter).get("imagePullSecrets"):
        placed["imagePullSecrets"] = copy.deepcopy(pull_secrets)
    return placed | {
        "serviceAccountName": own_service_account(job, own),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": layout.GUARD_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            **_groups(job, adapter),
        },
        "containers": [guard_container(job, checkpoints, config, environment=environment)],
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


def own_service_account(job: Job, own: GuardPod) -> str:
    """The guard's: the one that the job names, else the one made for it."""
    return own.service_account_name or names.support_name(job.name, job.uid)


def let_report(job: Job, own: GuardPod, template: PodTemplate, pod: Json, config: OperatorConfig) -> None:
    """Give a trainer's pod what it needs to report: address, certificate and token, and a start that waits.

    It waits in an init container, after those of the template, so that no step is made without a guard. One
    that is followed only waits: it has nothing to report.
    """
    support = names.support_name(job.name, job.uid)
    url = {"name": layout.URL_ENV, "value": f"https://{host_of(job)}:{job.spec.guard.port}"}
    authority = {"name": layout.CA_ENV, **from_secret(support, layout.CERTIFICATE_KEY)}
    token = {"name": layout.TOKEN_ENV, **from_secret(support, layout.INGEST_TOKEN_KEY)}
    waiter = _waiter(job, own, [url, authority], config)
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
            container["env"] = [*given, url, authority, token, *patience(job, given)]


def _waiter(job: Job, own: GuardPod, environment: list[Json], config: OperatorConfig) -> Json:
    container: Json = {
        "name": WAITER,
        "image": job.spec.guard.image or config.guard_image,
        "command": ["python", "-I", "-c", WAIT, str(own.ready_seconds), str(layout.GAVE_UP)],
        "env": copy.deepcopy(environment),
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
    """What is refused of a template and a guard because they are in two pods."""
    if guard.state.claim_name is None:
        why = "must be set: a guard that is moved to another node has no other memory of its run"
        yield Violation("spec.guard.state.claimName", why)
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
        "node: use storage with ReadWriteMany, such as EFS or FSx for Lustre, or, of a template, placement "
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
