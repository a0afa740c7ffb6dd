"""One way to break each row of the isolation table, and what real manifests have that breaks none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Change = Callable[[Json], Any]
#: What only the guard of the jobs in these tests may have.
HELDOUT, STATE, ACCOUNT = "heldout", "guard-state", "guard-account"


def pod(**fields: Any) -> Change:
    """Set fields of the pod's spec."""
    return lambda spec: spec.update(fields)


def volume(name: str = "extra", **source: Any) -> Change:
    """Add a volume."""
    return lambda spec: spec.setdefault("volumes", []).append({"name": name, **source})


def container(name: str = "extra", **fields: Any) -> Change:
    """Add a container."""
    return lambda spec: spec["containers"].append({"name": name, "image": "busybox", **fields})


def env(**source: Any) -> Change:
    """Add a container with one variable."""
    return container(env=[{"name": "A", **source}])


def both(*changes: Change) -> Change:
    """Make several changes."""
    return lambda spec: [change(spec) for change in changes]


def claim_of(**source: Any) -> Change:
    """Add an ephemeral volume."""
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return volume(ephemeral={"volumeClaimTemplate": {"spec": base | source}})


def projected(**source: Any) -> Change:
    """Add a projected volume with one source."""
    return volume(projected={"sources": [source]})


def copy_of(name: str) -> Json:
    """A reference to a claim, as a claim has it that is made of it."""
    return {"kind": "PersistentVolumeClaim", "name": name}


def broken(support: str) -> dict[str, Change]:
    """A change for each row that holds for finished pods, of a job with this support name."""
    key = {"name": support, "key": "tls.key"}
    return {
        "host-pid": pod(hostPID=True),
        "host-ipc": pod(hostIPC=True),
        "host-network": pod(hostNetwork=True),
        "shared-processes": pod(shareProcessNamespace=True),
        "windows": pod(os={"name": "windows"}),
        "windows-pod": pod(securityContext={"windowsOptions": {"runAsUserName": "x"}}),
        "automatic-token": pod(automountServiceAccountToken=True),
        "guard-account": pod(serviceAccountName=ACCOUNT),
        "claim": volume(persistentVolumeClaim={"claimName": STATE}),
        "copied-claim": claim_of(dataSource=copy_of(HELDOUT)),
        "copied-claim-ref": claim_of(dataSourceRef=copy_of(HELDOUT)),
        "secret-volume": volume(secret={"secretName": support}),
        "secret-projected": projected(secret={"name": support}),
        "secret-driver": volume(csi={"driver": "x", "nodePublishSecretRef": {"name": support}}),
        "config-map-volume": volume(configMap={"name": support}),
        "config-map-projected": projected(configMap={"name": support}),
        "token": projected(
            serviceAccountToken={"path": "token", "audience": "https://kubernetes.default.svc"}
        ),
        "pod-certificate": projected(podCertificate={"signerName": "a.b/c", "keyType": "ED25519"}),
        "host-path": volume(hostPath={"path": "/var/lib"}),
        "git-repo": volume(gitRepo={"repository": "https://git.example.com/x"}),
        "container-name": container("rlguard-x"),
        "mount": container(volumeMounts=[{"name": "rlguard-heldout", "mountPath": "/x"}]),
        "device": container(volumeDevices=[{"name": "rlguard-heldout", "devicePath": "/dev/x"}]),
        "env-file": env(valueFrom={"fileKeyRef": {"volumeName": "rlguard-tmp", "path": "x", "key": "K"}}),
        "secret-env": env(valueFrom={"secretKeyRef": key}),
        "secret-env-from": container(envFrom=[{"secretRef": {"name": support}}]),
        "config-map-env": env(valueFrom={"configMapKeyRef": {"name": support, "key": "policy.yaml"}}),
        "config-map-env-from": container(envFrom=[{"configMapRef": {"name": support}}]),
        "privileged": container(securityContext={"privileged": True}),
        "capability": container(securityContext={"capabilities": {"add": ["NET_RAW", "CAP_sys_ptrace"]}}),
        "unmasked-proc": both(container(securityContext={"procMount": "Unmasked"}), pod(hostUsers=False)),
        "windows-container": container(securityContext={"windowsOptions": {"runAsUserName": "x"}}),
    }


#: Rows that hold for a template alone.
IN_TEMPLATE: dict[str, Change] = {
    "volume-name": volume("rlguard-x", emptyDir={}),
    "env-name": container(env=[{"name": "RLGUARD_URL", "value": "https://example.com"}]),
}
#: Rows of a container that is added to a pod which runs.
IN_DEBUG_CONTAINER = {"debugger": {"targetContainerName": "rlguard-guard"}}

#: What GPU training needs: it breaks no row.
ADMITTED: dict[str, Change] = {
    "root": pod(securityContext={"runAsUser": 0, "runAsGroup": 0, "fsGroup": 0}),
    "the guard's user": container(securityContext={"runAsUser": 64532}),
    "IPC_LOCK": container(securityContext={"capabilities": {"add": ["IPC_LOCK", "SYS_NICE", "NET_RAW"]}}),
    "NET_ADMIN": container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}}),
    "unconfined": container(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "privilege escalation": container(securityContext={"allowPrivilegeEscalation": True}),
    "SELinux": container(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    "a DRA claim": both(
        pod(resourceClaims=[{"name": "roce", "resourceClaimTemplateName": "roce"}]),
        container(resources={"claims": [{"name": "roce"}]}),
    ),
    "inline CSI": volume(csi={"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucket": "b"}}),
    "NFS": volume(nfs={"server": "nfs.example.com", "path": "/data"}),
    "a local disk": volume(hostPath={"path": "/mnt/k8s-disks/0/scratch", "type": "DirectoryOrCreate"}),
    "a folder beside": volume(hostPath={"path": "/var/lib/kubelets"}),
    "shared memory of the node": volume(hostPath={"path": "/dev/shm"}),
    "a token for a cloud": projected(serviceAccountToken={"path": "t", "audience": "sts.amazonaws.com"}),
    "an account": pod(serviceAccountName="default"),
    "a secret of its own": env(valueFrom={"secretKeyRef": {"name": "hf", "key": "token"}}),
    "sysctls": pod(securityContext={"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1 9"}]}),
}
