"""Manifests like the public ones (docs/evidence/public-manifests.md) are guarded as they are.

They are ours: nothing of a public one is in this repository. Each has the features of several.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlguard.cli.wrap.command import app

Json = dict[str, Any]

ELASTIC = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: elastic}
spec:
  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: 8, maxRestarts: 3}
  pytorchReplicaSpecs:
    Worker:
      replicas: $NODES
      template:
        spec:
          containers:
          - name: pytorch
            image: ${IMAGE}
            resources: {limits: {nvidia.com/gpu: $GPUS, vpc.amazonaws.com/efa: $EFA}}
            volumeMounts:
            - {name: shm, mountPath: /dev/shm}
            - {name: disk, mountPath: /local}
            - {name: ckpt, mountPath: /ckpt}
          volumes:
          - {name: shm, hostPath: {path: /dev/shm}}
          - name: disk
            hostPath:
              path: /mnt/k8s-disks/0   # the node's RAID
          - {name: ckpt, persistentVolumeClaim: {claimName: fsx}}
"""
RDMA = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: rdma}
spec:
  replicatedJobs:
  - name: trainer
    template:
      spec:
        template:
          spec:
            runtimeClassName: nvidia
            serviceAccountName: registry
            resourceClaims:
            - {name: roce, resourceClaimTemplateName: roce}
            containers:
            - name: main
              image: ray
              resources: {claims: [{name: roce}]}
              securityContext: {runAsUser: 0, capabilities: {add: [IPC_LOCK, SYS_NICE]}}
              volumeMounts: [{name: ckpt, mountPath: /ckpt}]
            volumes:
            - {name: ckpt, persistentVolumeClaim: {claimName: work}}
            - {name: source, hostPath: {path: /workspace/source, type: DirectoryOrCreate}}
"""
BUCKET = """\
apiVersion: batch/v1
kind: Job
metadata: {name: bucket}
spec:
  template:
    metadata:
      annotations: {gke-gcsfuse/volumes: "true"}
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: i, volumeMounts: [{name: ckpt, mountPath: /bucket}]}
      volumes:
      - name: ckpt
        csi: {driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: $BUCKET}}
"""


def wrap(path: Path, text: str, *options: str) -> tuple[str, str]:
    """Wrap a manifest; stdout and stderr."""
    path.write_text(text)
    arguments = ["-f", str(path), "--heldout", "claim:held/h.jsonl", "--checkpoints", "ckpt", *options]
    done = CliRunner().invoke(app, [*arguments, "--scorer", "numeric"])
    return done.stdout, done.stderr + str(done.exception or "")


@pytest.mark.parametrize(("text", "options"), [(ELASTIC, ("--placement", "Pod")), (RDMA, ()), (BUCKET, ())])
def test_it_is_guarded_under_the_default_isolation(
    tmp_path: Path, text: str, options: tuple[str, ...]
) -> None:
    out, told = wrap(tmp_path / "job.yaml", text, *options)
    guarded: Json = yaml.safe_load(out)
    assert guarded and "isolation" not in guarded["spec"]["guard"], told
    assert "not isolated" not in told
    before, after = yaml.safe_load(text)["spec"], guarded["spec"]["template"]["spec"]
    assert after == yaml.safe_load(yaml.safe_dump(before).replace("disks/0", "disks/0/elastic"))


def test_a_local_disk_that_holds_the_kubelets_files_is_narrowed_to_a_folder(tmp_path: Path) -> None:
    out, told = wrap(tmp_path / "job.yaml", ELASTIC, "--placement", "Pod")
    assert "path: /mnt/k8s-disks/0/elastic # the node's RAID" in out
    assert "hostPath /mnt/k8s-disks/0: now /mnt/k8s-disks/0/elastic" in told


@pytest.mark.parametrize("path", ["/", "/var/lib", "/mnt/k8s-disks/0/kubelet"])
def test_any_other_path_to_them_is_refused(tmp_path: Path, path: str) -> None:
    out, told = wrap(tmp_path / "job.yaml", RDMA.replace("/workspace/source", path))
    assert not out and f"hostPath.path must not be {path}, which reaches" in told


def test_an_elastic_job_needs_a_guard_in_a_pod_of_its_own(tmp_path: Path) -> None:
    out, told = wrap(tmp_path / "job.yaml", ELASTIC)
    assert not out and "elasticPolicy needs guard.placement: Pod" in told
