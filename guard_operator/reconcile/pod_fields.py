"""Misspelt fields of a pod template, with the field that was probably meant. Pure.

The API server refuses an unknown field when the workload is created. This finds it earlier, and says which
one was meant. A field that resembles none of these is left to the API server: it may be of a later release.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

#: How alike two names must be, as difflib measures it.
ALIKE = 0.8

#: Path of an object from the pod spec -> the fields that Kubernetes 1.34 knows there.
FIELDS: Mapping[str, str] = {
    "": "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy "
    "enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
    "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy "
    "priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName "
    "schedulerName schedulingGates securityContext serviceAccount serviceAccountName setHostnameAsFQDN "
    "shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints "
    "volumes",
    "securityContext": "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser "
    "seLinuxChangePolicy seLinuxOptions seccompProfile supplementalGroups supplementalGroupsPolicy sysctls "
    "windowsOptions",
    "volumes[]": "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir "
    "ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs "
    "persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret "
    "storageos vsphereVolume",
    "containers[]": "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports "
    "readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext startupProbe "
    "stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts "
    "workingDir",
    "containers[].securityContext": "allowPrivilegeEscalation appArmorProfile capabilities privileged "
    "procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile "
    "windowsOptions",
    "containers[].resources": "claims limits requests",
    "containers[].env[]": "name value valueFrom",
    "containers[].env[].valueFrom": "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
    "containers[].envFrom[]": "configMapRef prefix secretRef",
    "containers[].volumeMounts[]": "mountPath mountPropagation name readOnly recursiveReadOnly subPath "
    "subPathExpr",
    "containers[].volumeDevices[]": "devicePath name",
    "containers[].ports[]": "containerPort hostIP hostPort name protocol",
}


def misspelt(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find unknown fields that resemble a known one: where it stands, and what was probably meant."""
    yield from _misspelt(pod, "", "")


def _misspelt(value: Any, schema: str, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        return
    known = FIELDS[schema].split()
    for name, content in value.items():
        field = f"{where}.{name}".lstrip(".")
        if name not in known and (meant := difflib.get_close_matches(str(name), known, 1, ALIKE)):
            yield field, meant[0]
        inner = f"{schema}.{name}".lstrip(".").replace("initContainers", "containers")
        if inner in FIELDS:
            yield from _misspelt(content, inner, field)
        elif f"{inner}[]" in FIELDS and isinstance(content, list):
            for index, item in enumerate(content):
                yield from _misspelt(item, f"{inner}[]", f"{field}[{index}]")
