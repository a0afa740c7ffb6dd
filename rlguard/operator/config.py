"""What an installation of the operator decides for all of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlguard.operator.runtime.client import Json

#: Where kubelet and runtime keep the volumes and images of pods, and what the node runs or reads as root.
NODE_DIRECTORIES = (
    "/bin", "/boot", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr",
    "/home/kubernetes", "/opt/bin", "/opt/cni", "/opt/containerd", "/var/run", "/var/snap",
    "/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet",
    "/var/lib/rancher", "/var/spool/cron",
    # Local disks: EKS (nodeadm's RAID0) and GKE (ephemeral SSD) move both of them there.
    "/mnt/k8s-disks/0/containerd", "/mnt/k8s-disks/0/kubelet",
    "/mnt/stateful_partition/kube-ephemeral-ssd/containerd",
    "/mnt/stateful_partition/kube-ephemeral-ssd/kubelet", "/mnt/stateful_partition/kube-ephemeral-ssd/var",
    "/mnt/stateful_partition/var",
)  # fmt: skip
#: Of IRSA and EKS Pod Identity, whose webhooks add such tokens to pods.
TOKEN_AUDIENCES = ("sts.amazonaws.com", "pods.eks.amazonaws.com")


def default_guard_resources() -> Json:
    """Resources of guards of which nobody said any."""
    return {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of the operator process.

    `namespaces` empty means cluster-wide, and `kinds` empty every kind of workload. `node_directories`: what
    a host path may neither cover nor lie below. `token_audiences`: of projected service-account tokens that
    the API server does not accept, so that a trainer may have them. What is of guards is for jobs
    that do not say it themselves; without a pull policy it is that of Kubernetes.
    """

    guard_image: str
    namespaces: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    node_directories: tuple[str, ...] = NODE_DIRECTORIES
    token_audiences: tuple[str, ...] = TOKEN_AUDIENCES
    guard_resources: Json = field(default_factory=default_guard_resources)
    guard_pull_policy: str | None = None
