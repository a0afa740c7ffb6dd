"""Fixtures: that the cluster has the controllers of other kinds."""

from __future__ import annotations

import pytest

from tests.e2e.kube import Cluster

CRDS = (
    "rayjobs.ray.io",
    "jobsets.jobset.x-k8s.io",
    "trainjobs.trainer.kubeflow.org",
    "clusterqueues.kueue.x-k8s.io",
)


@pytest.fixture(scope="session", autouse=True)
def controllers(cluster: Cluster) -> None:
    """KubeRay, JobSet, Trainer and Kueue, and an image with Ray."""
    missing = [] if "ray" in cluster.images else ["an image with Ray"]
    for crd in CRDS:
        if cluster.try_kubectl("get", "crd", crd).returncode != 0:
            missing.append(crd)
    if missing:
        pytest.fail(
            f"the cluster lacks {', '.join(missing)}: make kind-up KINDS='kuberay jobset trainer kueue'"
        )
