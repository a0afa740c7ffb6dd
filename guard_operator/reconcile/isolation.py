"""What a template may have under `isolation: Strict`: every field of a pod, decided, with the reason. Data.

It is an allow-list. A field that is not named here, such as one that a later Kubernetes adds, is refused
until somebody has decided about it; a test compares the names with those of a real API server. `refusals`
applies the decisions; the chart's admission policy and docs/reference/isolation.md are generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Says(StrEnum):
    """What becomes of a template that has the field."""

    ALLOWED = "allowed"
    CHECKED = "depends on its value"
    RELAXED = "needs Relaxed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldDecision:
    """What is decided about a field. Of RELAXED, `reason` is also what is no longer protected.

    `apart`: what is decided where the guard has a pod of its own, if that is something else. What matters in
    one pod alone is allowed there; where another reason remains, it is said.
    """

    says: Says
    reason: str
    apart: FieldDecision | None = None


Decisions = Mapping[str, FieldDecision]
UNKNOWN = FieldDecision(Says.REFUSED, "this version of the operator does not know what it opens")


def _each(
    says: Says, names: str, reason: str, apart: FieldDecision | None = None
) -> dict[str, FieldDecision]:
    """The same decision about several fields."""
    return dict.fromkeys(names.split(), FieldDecision(says, reason, apart))


_LISTED = "its items are decided one by one"
_PROFILES = (
    "a profile that the node loaded or the runtime's own; Unconfined, which AppArmor's may also be by an "
    "annotation of the pod, needs Relaxed"
)

POD: Decisions = {
    **_each(
        Says.ALLOWED,
        "affinity nodeName nodeSelector overhead os preemptionPolicy priority priorityClassName "
        "readinessGates schedulerName schedulingGates tolerations topologySpreadConstraints",
        "its author decides where and when the pod runs",
    ),
    **_each(
        Says.ALLOWED,
        "activeDeadlineSeconds restartPolicy terminationGracePeriodSeconds",
        "how long it runs and ends; a guard that is gone is silent",
    ),
    **_each(
        Says.ALLOWED,
        "dnsConfig dnsPolicy hostAliases hostname hostnameOverride setHostnameAsFQDN subdomain",
        "a wrong name leads the guard nowhere: what it calls, API server and https endpoint, shows a "
        "certificate",
    ),
    **_each(
        Says.ALLOWED,
        "enableServiceLinks",
        "no variable that Kubernetes makes of a Service is a setting of the guard, whatever it is called",
    ),
    **_each(
        Says.ALLOWED,
        "automountServiceAccountToken serviceAccount serviceAccountName",
        "no container but the guard gets a token: the operator switches the automatic one off",
    ),
    **_each(Says.ALLOWED, "imagePullSecrets", "the kubelet reads them, no container does"),
    **_each(Says.ALLOWED, "runtimeClassName", "an administrator made it: GPU runtimes and sandboxes need it"),
    **_each(Says.ALLOWED, "hostUsers", "false isolates more, true is the default"),
    **_each(Says.ALLOWED, "resources", "a guard that is starved is silent"),
    **_each(Says.CHECKED, "containers initContainers volumes securityContext", _LISTED),
    **_each(
        Says.REFUSED,
        "shareProcessNamespace",
        "the trainer would see the guard's processes",
        FieldDecision(Says.ALLOWED, "the guard's processes are in another pod"),
    ),
    **_each(
        Says.REFUSED,
        "hostPID hostIPC",
        "the trainer would see the processes or the memory of the node, and so the guard's if that is there",
    ),
    **_each(
        Says.RELAXED,
        "hostNetwork",
        "every process on the node can reach the guard's port; only its tokens protect it",
        FieldDecision(
            Says.RELAXED,
            "a trainer on the node's network is known by no label, so everybody is let through to the "
            "guard's port; only its tokens protect it",
        ),
    ),
    **_each(
        Says.RELAXED,
        "resourceClaims",
        "the driver of a resource claim may bring directories and devices of the node into a container",
    ),
    **_each(
        Says.REFUSED, "ephemeralContainers", "they are added to running pods and are no part of a template"
    ),
}

VOLUMES: Decisions = {
    **_each(
        Says.CHECKED,
        "configMap secret persistentVolumeClaim",
        "any but those that are the guard's",
    ),
    **_each(Says.ALLOWED, "emptyDir downwardAPI", "it holds what the pod itself writes or is"),
    **_each(Says.ALLOWED, "image", "the read-only files of an image, like those of the container's own"),
    **_each(Says.CHECKED, "projected", _LISTED),
    **_each(Says.CHECKED, "ephemeral", "a new and empty claim; not one that copies another"),
    **_each(
        Says.RELAXED,
        "csi nfs awsElasticBlockStore azureDisk azureFile cephfs cinder fc flexVolume flocker "
        "gcePersistentDisk glusterfs iscsi photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos "
        "vsphereVolume",
        "it names its storage by itself, so it may be where the held-out data lies; a claim does not",
    ),
    **_each(
        Says.CHECKED,
        "hostPath",
        "needs Relaxed, and a directory that the operator's configuration lists",
    ),
    **_each(Says.REFUSED, "gitRepo", "the kubelet runs git for it, as root on the node"),
}

PROJECTED: Decisions = {
    **_each(Says.CHECKED, "configMap secret", "any but those that are the guard's"),
    **_each(Says.ALLOWED, "downwardAPI clusterTrustBundle", "nothing in it is secret"),
    **_each(
        Says.REFUSED,
        "serviceAccountToken podCertificate",
        "with the pod's credentials the trainer could write the guard's status",
        FieldDecision(
            Says.REFUSED,
            "nobody looks at what the pod's account may do: with its credentials the trainer might read the "
            "guard's Secret, or delete its pod",
        ),
    ),
}

#: The spec of the claim of an `ephemeral` volume.
EPHEMERAL_CLAIM: Decisions = {
    **_each(
        Says.ALLOWED,
        "accessModes resources storageClassName volumeAttributesClassName volumeMode",
        "how large the volume is and of what kind",
    ),
    **_each(
        Says.REFUSED,
        "dataSource dataSourceRef selector volumeName",
        "the volume would hold what is already somewhere, which may be the held-out data",
    ),
}

CONTAINER: Decisions = {
    **_each(
        Says.ALLOWED,
        "args command image imagePullPolicy name stdin stdinOnce tty workingDir",
        "its author decides what the container runs",
    ),
    **_each(
        Says.ALLOWED,
        "lifecycle livenessProbe readinessProbe startupProbe",
        "a command runs in the container itself, a request is the kubelet's, which has none of the tokens",
    ),
    **_each(
        Says.ALLOWED,
        "resizePolicy resources restartPolicy restartPolicyRules",
        "what it uses and when it is started again; devices come from plug-ins of the node",
    ),
    **_each(
        Says.ALLOWED,
        "terminationMessagePath terminationMessagePolicy",
        "the operator listens to the last words of the guard's own container alone",
    ),
    **_each(Says.CHECKED, "env envFrom ports securityContext volumeDevices volumeMounts", _LISTED),
}

ENV_SOURCES: Decisions = {
    **_each(Says.CHECKED, "configMapKeyRef secretKeyRef", "any but those that are the guard's"),
    **_each(Says.ALLOWED, "fieldRef resourceFieldRef", "nothing in it is secret"),
    **_each(Says.CHECKED, "fileKeyRef", "a file of any volume but the guard's"),
}

ENV_FROM: Decisions = {
    **_each(Says.CHECKED, "configMapRef secretRef", "any but those that are the guard's"),
    **_each(Says.ALLOWED, "prefix", "a part of names"),
}

MOUNT: Decisions = {
    **_each(Says.CHECKED, "name", "any volume but the guard's"),
    **_each(
        Says.ALLOWED,
        "devicePath mountPath readOnly recursiveReadOnly subPath subPathExpr",
        "where the container has it; a link that leads out of a volume ends in the container's own files",
    ),
    **_each(
        Says.ALLOWED,
        "mountPropagation",
        "the way back to the node (Bidirectional) needs a privileged container, which is refused",
    ),
}

PORT: Decisions = {
    **_each(
        Says.CHECKED,
        "containerPort",
        "any but the guard's",
        FieldDecision(Says.ALLOWED, "the guard listens in another pod"),
    ),
    **_each(Says.CHECKED, "name", "any but that by which Prometheus finds the guard's figures"),
    **_each(Says.ALLOWED, "hostIP hostPort protocol", "it leads to the container's own port"),
}

_USER = {
    **_each(
        Says.CHECKED,
        "runAsNonRoot runAsUser",
        "not root, and not the guard's user",
        FieldDecision(Says.CHECKED, "not root"),
    ),
    **_each(
        Says.ALLOWED,
        "runAsGroup",
        "the guard's files are in volumes that no other container mounts, but for its socket",
    ),
    **_each(Says.CHECKED, "appArmorProfile seccompProfile", _PROFILES),
    **_each(Says.RELAXED, "seLinuxOptions", "a type such as spc_t does not confine the container"),
    **_each(Says.REFUSED, "windowsOptions", "the guard's image is for Linux"),
}

SECURITY: Decisions = {
    **_USER,
    **_each(Says.CHECKED, "capabilities", "none is added; the operator drops all"),
    **_each(
        Says.CHECKED, "allowPrivilegeEscalation", "false, which the operator writes where nothing is set"
    ),
    **_each(Says.ALLOWED, "readOnlyRootFilesystem", "it isolates more"),
    **_each(Says.CHECKED, "procMount", "Default; Unmasked needs Relaxed"),
    **_each(Says.REFUSED, "privileged", "the trainer could read every volume"),
}

POD_SECURITY: Decisions = {
    **_USER,
    **_each(
        Says.ALLOWED,
        "fsGroup fsGroupChangePolicy seLinuxChangePolicy supplementalGroups supplementalGroupsPolicy",
        "who may read the pod's volumes; of the guard's only its socket is mounted elsewhere, read-only",
    ),
    **_each(
        Says.RELAXED,
        "sysctls",
        "the guard shares the network settings of the pod",
        FieldDecision(Says.ALLOWED, "they are those of the trainer's pod, and not of the guard's"),
    ),
}

#: What is decided, by the name that each object has in the OpenAPI document of Kubernetes.
TABLES: Mapping[str, Decisions] = {
    "PodSpec": POD,
    "PodSecurityContext": POD_SECURITY,
    "Volume": VOLUMES,
    "VolumeProjection": PROJECTED,
    "PersistentVolumeClaimSpec": EPHEMERAL_CLAIM,
    "Container": CONTAINER,
    "SecurityContext": SECURITY,
    "EnvVarSource": ENV_SOURCES,
    "EnvFromSource": ENV_FROM,
    "VolumeMount": MOUNT,
    "VolumeDevice": MOUNT,
    "ContainerPort": PORT,
}

#: Capabilities with which a container can leave its own file system and processes; not even Relaxed has them.
HOST_CAPABILITIES = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"}
)
#: What root, or a capability, can do beside the guard.
ROOT_COST = (
    "containers of a pod share its network and its /etc/hosts; root, or a capability, can read the guard's "
    "traffic and lead it elsewhere"
)
#: The same where the guard has a pod of its own.
ROOT_COST_APART = (
    "root, or a capability, is the shortest way out of a container to its node, and so to the guard's pod if "
    "that is on the same one"
)
